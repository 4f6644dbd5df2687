"""The commands `env`: several values under one name, in order, joined for the tasks that bind them.

Owns their mapping and text. A value comes from standard input; no sealed one is printed here.
"""

from __future__ import annotations

from qinglong_edge.cli import render
from qinglong_edge.cli.secrets import MADE, noted, read_value
from qinglong_edge.core import secret
from qinglong_edge.core.errors import Invalid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from qinglong_edge.app.envedit import Draft
    from qinglong_edge.cli.context import Context

_HEADS = ("ENV", "PLACE", "ID", "ON", "KIND", "VALUE", "REMARKS", "LABELS", "BOUND BY")


def listed(context: Context, names: list[str]) -> list[dict[str, Any]]:
    """Sets as `env.list` tells them, all or those named; Refused `env_unknown`."""
    found: list[dict[str, Any]] = []
    with context.client() as client:
        page: dict[str, Any] = {"next": ""}
        while page["next"] is not None:
            page = client.call("env.list", {"after": page["next"]})
            found += page["envs"]
    if set(names) - {each["env"] for each in found}:
        raise secret.env_unknown()
    return [each for each in found if not names or each["env"] in names]


def _list(context: Context) -> int:
    options = context.options
    found = listed(context, [] if options.name is None else [options.name])
    return context.show(
        {"envs": found},
        lambda: render.table(_HEADS, [row for each in found for row in _rows(each)]),
    )


def _rows(env: Mapping[str, Any]) -> list[tuple[object, ...]]:
    bound = render.names(env["bound_by"], "-")
    rows: list[tuple[object, ...]] = []
    for place, each in enumerate(env["items"], 1):
        on, labels = "yes" if each["enabled"] else "no", ", ".join(each["labels"])
        shown = (each["kind"], each.get("value", "-"), each["remarks"] or "-", labels or "-")
        rows.append((env["env"], place, each["id"], on, *shown, bound))
    return rows or [(env["env"], "-", "-", "-", "-", "-", "-", "-", bound)]


def _set(context: Context) -> int:
    from qinglong_edge.app import envedit, sealing

    options = context.options
    if options.value or "=" in options.name:
        raise Invalid(
            "secret_on_command_line",
            "A value is read from standard input; arguments are seen by others.",
        )
    sealing.guard()
    value = None if options.keep else read_value()
    with sealing.Sealer(context.where) as sealer:
        draft = envedit.load(sealer, options.name, known=options.keep)
        number = envedit.chosen(draft, options.id, add=options.add)
        if value is not None:
            number = draft.put(value, number=number, public=_public(draft, number, options)).id
        place = draft.place(number)
        changes = {
            name: given
            for name, given in (
                ("enabled", options.enabled),
                ("remarks", options.remarks),
                ("labels", None if options.label is None else tuple(options.label)),
            )
            if given is not None
        }
        draft.items[place] = draft.items[place].replace(**changes)
        answer = {**draft.save(), "id": number, "keyring_created": sealer.keyring_made}
    accident = "" if value is None else noted(value)
    told = f"{render.inline(answer['env'])}: item {number} of {answer['items']} set{accident}\n"
    return context.show(answer, lambda: told + (MADE if answer["keyring_created"] else ""))


def _public(draft: Draft, number: int | None, options: Any) -> bool:
    """As asked; else as the item was; else secret."""
    if options.public is not None:
        return bool(options.public)
    return number is not None and draft.items[draft.place(number)].value is not None


def _change(verb: str) -> Callable[[Context], int]:
    """`enable`, `disable`, `remove`: the items that are named, or all of the set."""

    def command(context: Context) -> int:
        from qinglong_edge.app import envedit, sealing

        name, numbers = context.options.name, context.options.id
        if verb == "remove" and not numbers:
            answer = context.call("env.remove", name=name)
            return context.show(answer, lambda: f"{render.inline(name)}: removed\n")
        with sealing.Sealer(context.where) as sealer:
            draft = envedit.load(sealer, name, known=True)
            for number in numbers or [each.id for each in draft.items]:
                place = draft.place(number)
                if verb == "remove":
                    draft.drop(number)
                else:
                    draft.items[place] = draft.items[place].replace(enabled=verb == "enable")
            answer = draft.save()
        return context.show(answer, lambda: f"{render.inline(name)}: {verb.rstrip('e')}ed\n")

    return command


def _move(context: Context) -> int:
    from qinglong_edge.app import envedit, sealing

    options = context.options
    with sealing.Sealer(context.where) as sealer:
        draft = envedit.load(sealer, options.name, known=True)
        if not 1 <= options.place <= len(draft.items):
            raise Invalid("usage", "A place is a number from 1 to the number of items.")
        draft.items.insert(options.place - 1, draft.items.pop(draft.place(options.id)))
        answer = draft.save()
    told = f"{render.inline(options.name)}: item {options.id} is at place {options.place}\n"
    return context.show(answer, lambda: told)


COMMANDS: Mapping[str, Callable[[Context], int]] = {
    "env list": _list,
    "env set": _set,
    "env move": _move,
    **{f"env {verb}": _change(verb) for verb in ("enable", "disable", "remove")},
}
