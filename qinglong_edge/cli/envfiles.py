"""`env export`, `export envs` and `import envs`: values under their names, out and in again.

Owns the files. Our own JSON keeps everything and reads back exactly; QingLong's, a list of {name,
value, remarks}, keeps enabled and disabled values alike. Sealed values leave only with
`--with-values`. An import is one transaction, and a second one changes nothing: our sets are
compared whole, QingLong's rows by name and value, as its own table is.
"""

from __future__ import annotations

import json

from qinglong_edge.cli import output, render
from qinglong_edge.cli.envs import listed
from qinglong_edge.cli.secrets import MADE
from qinglong_edge.core.canonical import decode
from qinglong_edge.core.errors import Corrupt, EdgeError, Invalid, Refused
from qinglong_edge.core.limits import EXPORT_BYTES_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from qinglong_edge.app.client import Client
    from qinglong_edge.app.envedit import Draft
    from qinglong_edge.app.sealing import Sealer
    from qinglong_edge.cli.context import Context

_KIND = "qinglong_edge.envs"
_VERSION = 1
_TOLD = ("enabled", "remarks", "labels")
_HEADS = ("ENV", "ITEM", "OUTCOME", "WHY")


def write(context: Context) -> int:
    """All sets, or those named, in the form that was asked for."""
    from qinglong_edge.app import sealing

    options = context.options
    if options.format == "crontab":
        raise Invalid("usage", "A crontab holds tasks.")
    sealing.guard()
    envs = listed(context, getattr(options, "names", []))
    sealed = any(item["kind"] == "secret" for env in envs for item in env["items"])
    if options.with_values and sealed:
        with sealing.Sealer(context.where) as sealer:
            envs = [_opened(sealer, each) for each in envs]
    elif sealed and options.format == "qinglong":
        raise Invalid("usage", "Values are sealed; --with-values writes them out.")
    if options.format == "qinglong":
        rows = [
            {"name": env["env"], "value": each["value"], "remarks": each["remarks"]}
            for env in envs
            for each in env["items"]
        ]
        output.write(json.dumps(rows, ensure_ascii=False, indent=None if options.json else 2))
    else:
        lines = [
            json.dumps({"env": env["env"], "items": env["items"]}, ensure_ascii=False)
            for env in envs
        ]
        end = "" if options.json else "\n"
        head = f'{{"kind": "{_KIND}", "version": {_VERSION}, "envs": ['
        output.write(head + "".join(("," * (n > 0)) + end + each for n, each in enumerate(lines)))
        output.write(end + "]}")
    output.write("\n")
    return 0


def _opened(sealer: Sealer, env: dict[str, Any]) -> dict[str, Any]:
    from qinglong_edge.app import envedit

    draft = envedit.load(sealer, env["env"], known=True)
    values = {each.id: draft.value(each) for each in draft.items}
    items = [{**each, "value": values[each["id"]]} for each in env["items"] if each["id"] in values]
    for each in items:
        each.pop("secret_ref", None)
    return {**env, "items": items}


def read(context: Context) -> int:
    """Envs of a file, all that can be kept in one transaction."""
    from qinglong_edge.app import sealing

    options = context.options
    sealing.guard()
    document = decode(_bytes(options.file), bytes_max=EXPORT_BYTES_MAX)
    own = isinstance(document, dict)
    told: list[dict[str, Any]] = []
    with context.client() as client:
        sealer = sealing.Sealer(context.where, client=client)
        taken = _Taken(client, sealer, frozenset(options.public or ()), dry_run=options.dry_run)
        for name, items in _own(document) if own else _foreign(document):
            outcomes = taken.take(name, items, own=own, replace=options.replace)
            told += [
                {"env": name, "item": place, **outcome} for place, outcome in enumerate(outcomes, 1)
            ]
        taken.commit()
    refused = sum(each["outcome"] == "refused" for each in told)
    made = sealer.keyring_made
    answer = {"dry_run": options.dry_run, "envs": told, "refused": refused, "keyring_created": made}
    rows = [(each["env"], each["item"], each["outcome"], each.get("message", "")) for each in told]
    return context.show(answer, lambda: render.table(_HEADS, rows) + (MADE if made else ""))


def _bytes(path: str) -> bytes:
    from qinglong_edge.cli.context import read_input

    return read_input(path, EXPORT_BYTES_MAX)


class _Taken:
    """One file on its way in."""

    def __init__(
        self, client: Client, sealer: Sealer, public: frozenset[str], *, dry_run: bool
    ) -> None:
        self._client = client
        self._sealer = sealer
        self._public = public
        self._dry_run = dry_run
        self._token: str | None = None

    def take(
        self, name: str, items: list[dict[str, Any]], *, own: bool, replace: bool
    ) -> list[dict[str, Any]]:
        """What becomes of each item of a name; a refusal refuses all of them."""
        from qinglong_edge.app import envedit

        try:
            draft = envedit.load(self._sealer, name)
            if own:
                outcomes = [_whole(draft, items, replace=replace)] * len(items)
            else:
                public = name in self._public or "*" in self._public
                outcomes = [_append(draft, each, public=public) for each in items]
            draft.weight()
            if draft.changed() and not self._dry_run:
                asked = {"token": self._token, "envs": [draft.request()]}
                self._token = self._client.call("import.stage", asked)["token"]
        except Corrupt:
            raise
        except EdgeError as error:
            if error.exit_status not in (2, 3):
                raise
            return [{"outcome": "refused", **error.document()}] * len(items)
        return [{"outcome": each} for each in outcomes]

    def commit(self) -> None:
        """Make it so."""
        if self._token is not None:
            self._client.call("import.commit", {"token": self._token})


def _append(draft: Draft, item: dict[str, Any], *, public: bool) -> str:
    """A row of QingLong's: there already by its value, or one more."""
    if any(draft.value(each) == item["value"] for each in draft.items):
        return "idempotent"
    draft.put(item["value"], number=None, public=public)
    draft.items[-1] = draft.items[-1].replace(**{name: item[name] for name in _TOLD})
    return "inserted"


def _whole(draft: Draft, items: list[dict[str, Any]], *, replace: bool) -> str:
    """A set of our own: not there yet, there just so, or in place of what is there."""
    from qinglong_edge.core.envset import Item

    wanted = [(each["id"], each["kind"] == "public", *map(each.get, _TOLD)) for each in items]
    there = [
        (each.id, each.value is not None, *(getattr(each, name) for name in _TOLD))
        for each in draft.items
    ]
    if not draft.new:
        same = there == wanted
        if same and [draft.value(each) for each in draft.items] == [i["value"] for i in items]:
            return "idempotent"
        if not replace:
            raise Refused("env_exists", "There is an env of that name, which is not this one.")
        for each in list(draft.items):
            draft.drop(each.id)
    for item in items:
        draft.items.append(Item(id=item["id"], value=""))
        draft.put(item["value"], number=item["id"], public=item["kind"] == "public")
        draft.items[-1] = draft.items[-1].replace(**{name: item[name] for name in _TOLD})
        draft.next_id = max(draft.next_id, item["id"] + 1)
    return "inserted" if draft.new else "replaced"


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
            well = set(each) == {"id", "kind", "value", *_TOLD} and type(each["id"]) is int
            if not (well and each["kind"] in ("public", "secret") and _texts([each["value"]])):
                raise _no_export()
            each["labels"] = tuple(_texts(each["labels"]))
        if not isinstance(env.get("env"), str):
            raise _no_export()
        yield env["env"], items


def _foreign(document: Any) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """QingLong's rows by name, in the file's order."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in _list(document):
        name, value, remarks = row.get("name"), row.get("value"), row.get("remarks") or ""
        _texts([name, value, remarks])
        enabled = row.get("status", 0) == 0
        given = _texts(row.get("labels") or [])
        item = {"value": value, "enabled": enabled, "remarks": remarks, "labels": tuple(given)}
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
