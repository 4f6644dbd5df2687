"""The commands `notify`: where bad news goes. A channel's key comes from standard input.

Owns their mapping and text. `notify test` sends from this very command, and says how it went.
"""

from __future__ import annotations

from qinglong_edge.cli import render
from qinglong_edge.cli.secrets import MADE, read_value
from qinglong_edge.core import channel as channels
from qinglong_edge.core.errors import Invalid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from qinglong_edge.cli.context import Context

_HEADS = ("CHANNEL", "KIND", "ON", "TASKS", "QUIET", "LAST")


def _add(context: Context) -> int:
    from qinglong_edge.app import sealing, sending

    options = context.options
    if options.value:
        raise Invalid(
            "secret_on_command_line",
            "A key is read from standard input; arguments are seen by others.",
        )
    kind = options.kind or options.name
    if kind not in channels.KINDS:
        raise Invalid("usage", f"--kind is one of {', '.join(channels.KINDS)}.")
    channel = channels.Channel(
        name=options.name,
        kind=kind,
        url=options.url,
        sender=options.sender,
        to=options.to,
        on=tuple(options.on or channels.EVENTS),
        quiet=options.quiet,
        zone=context.zone() or "UTC",
    )
    sealing.guard()
    key = read_value().decode("utf-8", "replace").strip()
    sending.check(channel, key)
    with sealing.Sealer(context.where) as sealer:
        asked: dict[str, Any] = {
            "name": channel.name,
            "channel": channel.document(),
            "tasks": options.task,
            "replace": options.replace or None,
        }
        if key:
            found = sealer.call("notify.find", {"name": channel.name})
            asked.update(sealer.next(channels.SETTING + channel.name, key.encode(), found))
        answer = {**sealer.call("notify.save", asked), "keyring_created": sealer.keyring_made}
    told = f"{channel.name}: {kind}; try it: notify test {channel.name}\n"
    return context.show(answer, lambda: told + (MADE if answer["keyring_created"] else ""))


def _list(context: Context) -> int:
    answer = context.call("notify.list")

    def row(each: Mapping[str, Any]) -> tuple[object, ...]:
        last, quiet = each["last"], each["quiet"]
        told = "-" if last is None else f"{render.moment(last['at_ms'])} {last['code'] or 'sent'}"
        tasks = render.names(each["tasks"], "all")
        hours = "-" if quiet is None else f"{quiet} {each['zone']}"
        return each["channel"], each["kind"], ", ".join(each["on"]), tasks, hours, told

    return context.show(answer, lambda: render.table(_HEADS, map(row, answer["channels"])))


def _test(context: Context) -> int:
    from qinglong_edge.app import notices, sealing, sending

    name = context.options.name
    sealing.guard()
    with sealing.Sealer(context.where) as sealer:
        found = sealer.call("notify.find", {"name": name})
        if found["channel"] is None:
            raise notices.unknown()
        copies = found["envelopes"]
        key = sealer.unsealed(copies).decode("utf-8") if copies else ""
    channel = channels.from_document(name, found["channel"])
    sending.send(channel, key, sending.trial())
    return context.show({"channel": name, "sent": True}, lambda: f"{name}: the message was taken\n")


def _remove(context: Context) -> int:
    answer = context.call("notify.remove", name=context.options.name)
    return context.show(answer, lambda: f"{answer['channel']}: removed\n")


COMMANDS: Mapping[str, Callable[[Context], int]] = {
    "notify add": _add,
    "notify list": _list,
    "notify test": _test,
    "notify remove": _remove,
}
