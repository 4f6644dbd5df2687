"""`env export`, `export envs` and `import envs`: values under their names, out and in again.

Owns the files. Our own JSON keeps everything, QingLong's is a list of {name, value, remarks}, with
a status of 1 where an item is disabled: the panel passes over it, we read it back.
Sealed values leave only with `--with-values`. A second import changes nothing: our sets are
compared whole, QingLong's rows by name and value, as its own table is.
"""

from __future__ import annotations

import json

from qinglong_edge.cli import output, render
from qinglong_edge.cli.context import read_input
from qinglong_edge.cli.envs import listed
from qinglong_edge.cli.secrets import MADE
from qinglong_edge.core.canonical import decode
from qinglong_edge.core.errors import Invalid, Refused
from qinglong_edge.core.limits import EXPORT_BYTES_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from qinglong_edge.app.envedit import Draft
    from qinglong_edge.cli.context import Context

_KIND = "qinglong_edge.envs"
_VERSION = 1
_KEYS = frozenset(("id", "kind", "value", "enabled", "remarks", "labels"))
_HEADS = ("ENV", "ITEM", "OUTCOME", "WHY")


def write(context: Context) -> int:
    """All sets, or those named, in the form that was asked for."""
    from qinglong_edge.app import envedit, sealing

    options = context.options
    if options.format == "crontab":
        raise Invalid("usage", "A crontab holds tasks.")
    sealing.guard()
    envs = listed(context, getattr(options, "names", []))
    sealed = any(item["kind"] == "secret" for env in envs for item in env["items"])
    if options.with_values and sealed:
        with sealing.Sealer(context.where) as sealer:
            for env in envs:
                env["items"] = _items(envedit.load(sealer, env["env"], known=True))
    elif sealed and options.format == "qinglong":
        raise Invalid("usage", "Values are sealed; --with-values writes them out.")
    for env in envs:
        del env["bound_by"]
    document: object = {"kind": _KIND, "version": _VERSION, "envs": envs}
    if options.format == "qinglong":
        document = [
            {
                "name": env["env"],
                **{name: each[name] for name in ("value", "remarks")},
                **({} if each["enabled"] else {"status": 1}),
            }
            for env in envs
            for each in env["items"]
        ]
    indent = None if options.json else 1
    output.write(json.dumps(document, ensure_ascii=False, indent=indent) + "\n")
    return 0


def _items(draft: Draft) -> list[dict[str, Any]]:
    """The items of a set as our own file has them."""
    return [
        {
            "id": each.id,
            "kind": "secret" if each.value is None else "public",
            "value": draft.value(each),
            "enabled": each.enabled,
            "remarks": each.remarks,
            "labels": list(each.labels),
        }
        for each in draft.items
    ]


def read(context: Context) -> int:
    """Envs of a file, all that can be kept in one transaction."""
    from qinglong_edge.app import envedit, sealing

    options = context.options
    sealing.guard()
    document = decode(read_input(options.file, EXPORT_BYTES_MAX), bytes_max=EXPORT_BYTES_MAX)
    own, public = isinstance(document, dict), frozenset(options.public or ())
    told: list[dict[str, Any]] = []
    with context.client() as client:
        sealer = sealing.Sealer(context.where, client=client)
        token: str | None = None
        for name, items in _own(document) if own else _foreign(document):
            outcomes: list[dict[str, Any]]
            try:
                draft = envedit.load(sealer, name)
                if own:
                    words = [_whole(draft, items, replace=options.replace)] * len(items)
                else:
                    clear = bool(public & {name, "*"})
                    words = [_append(draft, each, public=clear) for each in items]
                draft.weight()
                if draft.changed() and not options.dry_run:
                    asked = {"token": token, "envs": [draft.request()]}
                    token = client.call("import.stage", asked)["token"]
                outcomes = [{"outcome": each} for each in words]
            except (Invalid, Refused) as error:  # one item refuses its whole set
                outcomes = [{"outcome": "refused", **error.document()}] * len(items)
            told += [{"env": name, "item": n, **each} for n, each in enumerate(outcomes, 1)]
        if token is not None:
            client.call("import.commit", {"token": token})
    refused = sum(each["outcome"] == "refused" for each in told)
    made = sealer.keyring_made
    answer = {"dry_run": options.dry_run, "envs": told, "refused": refused, "keyring_created": made}
    rows = [(each["env"], each["item"], each["outcome"], each.get("message", "")) for each in told]
    after = (MADE if made else "") + context.planned()
    return context.show(answer, lambda: render.table(_HEADS, rows) + after)


def _append(draft: Draft, item: dict[str, Any], *, public: bool) -> str:
    """A row of QingLong's: there already by its value, or one more."""
    if any(draft.value(each) == item["value"] for each in draft.items):
        return "idempotent"
    _put(draft, item, None, public=public)
    return "inserted"


def _whole(draft: Draft, items: list[dict[str, Any]], *, replace: bool) -> str:
    """A set of our own: not there yet, there just so, or in place of what is there."""
    from qinglong_edge.core.envset import Item

    if not draft.new:
        if _items(draft) == items:
            return "idempotent"
        if not replace:
            raise Refused("env_exists", "There is an env of that name, which is not this one.")
        for each in list(draft.items):
            draft.drop(each.id)
    for item in items:
        draft.items.append(Item(id=item["id"], value=""))
        _put(draft, item, item["id"], public=item["kind"] == "public")
        draft.next_id = max(draft.next_id, item["id"] + 1)
    return "inserted" if draft.new else "replaced"


def _put(draft: Draft, item: dict[str, Any], number: int | None, *, public: bool) -> None:
    draft.put(item["value"].encode(), number=number, public=public)
    told = {"enabled": item["enabled"], "remarks": item["remarks"], "labels": (*item["labels"],)}
    draft.items[-1] = draft.items[-1].replace(**told)


def _own(document: Any) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    if document.get("kind") != _KIND:
        raise _no_export()
    if document.get("version") != _VERSION:
        raise Invalid("export_too_new", "The export was written by a newer version.")
    for env in _list(document.get("envs")):
        items = _list(env.get("items"))
        for each in items:
            if each.get("kind") == "secret" and "value" not in each:
                raise Invalid("env_values_missing", "The export was written without its values.")
            if set(each) != _KEYS or each["kind"] not in ("public", "secret"):
                raise _no_export()
            _texts([each["value"], *_texts(each["labels"])])
        _texts([env.get("env")])
        yield env["env"], items


def _foreign(document: Any) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """QingLong's rows by name, in the file's order."""
    found: dict[str, list[dict[str, Any]]] = {}
    for number, row in enumerate(_list(document), 1):
        name, value, remarks = row.get("name"), row.get("value"), row.get("remarks") or ""
        try:
            _texts([name, value, remarks])
            labels = _texts(row.get("labels") or [])
        except Invalid:
            message = "The name, the value or the remarks of a row are no text."
            raise Invalid("export_foreign", message, row=number) from None
        enabled = row.get("status", 0) == 0
        item = {"value": value, "enabled": enabled, "remarks": remarks, "labels": labels}
        found.setdefault(str(name), []).append(item)
    yield from found.items()


def _list(found: object) -> list[dict[str, Any]]:
    if not isinstance(found, list) or any(not isinstance(each, dict) for each in found):
        raise _no_export()
    return found


def _texts(found: object) -> Sequence[str]:
    if not isinstance(found, list) or any(not isinstance(each, str) for each in found):
        raise _no_export()
    return found


def _no_export() -> Invalid:
    return Invalid("export_foreign", "The file is no export of envs, ours or QingLong's.")
