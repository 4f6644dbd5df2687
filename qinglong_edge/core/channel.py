"""Where bad news goes: a channel's public half, stored as a setting.

Owns its value and form. The key of a channel is the secret of the setting's name:

    setting  notify:NAME -> {"kind":K,"url":U,"sender":S,"to":T,"tasks":[N],"on":[E],"quiet":Q,...}
    secret   notify:NAME -> the words that `core.notice` tells for the kind

No task listed means every task. Within its quiet hours a channel holds back what it has to tell.
"""

from __future__ import annotations

import re

from qinglong_edge.core import canonical
from qinglong_edge.core.errors import Corrupt, Invalid
from qinglong_edge.core.limits import NOTIFY_SETTING
from qinglong_edge.core.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SETTING = NOTIFY_SETTING
KINDS = (
    *("webhook", "ntfy", "bark", "telegram", "serverchan"),
    *("pushplus", "dingtalk", "wecom", "feishu", "smtp"),
)
FAILED, RECOVERED, LOST, EXHAUSTED = "failed", "recovered", "lost", "exhausted"
EVENTS = (FAILED, RECOVERED, LOST, EXHAUSTED)
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_QUIET = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")
_TEXT_MAX = 1_024
_BYTES_MAX = 65_536
_TASKS_MAX = 500
_DAY = 1_440


class Channel(Record):
    """One channel; times of `quiet` are those of `zone`. Invalid: `notify_invalid`."""

    name: str
    kind: str
    url: str | None = None
    sender: str | None = None
    to: str | None = None
    tasks: tuple[int, ...] = ()
    on: tuple[str, ...] = EVENTS
    quiet: str | None = None
    zone: str = "UTC"

    def _check(self) -> None:
        texts = (self.url, self.sender, self.to, self.zone)
        well = isinstance(self.name, str) and _NAME.fullmatch(self.name) is not None
        well = well and self.kind in KINDS and len(self.tasks) <= _TASKS_MAX
        well = well and all(each is None or _is_text(each) for each in texts)
        well = well and all(type(each) is int for each in self.tasks)
        well = well and 0 < len(self.on) <= len(EVENTS) and set(self.on) <= set(EVENTS)
        well = well and (self.quiet is None or _minutes(self.quiet) is not None)
        if not well:
            raise _invalid()

    def wants(self, task: int, event: str) -> bool:
        """Whether it is told of this event of the task of that number."""
        return event in self.on and (not self.tasks or task in self.tasks)

    def quiet_for(self, minute: int) -> int:
        """Minutes for which it holds back, from a minute of its zone's day."""
        found = None if self.quiet is None else _minutes(self.quiet)
        if found is None:
            return 0
        begin, end = found
        inside = begin <= minute < end if begin <= end else minute >= begin or minute < end
        return (end - minute) % _DAY if inside else 0

    def document(self) -> dict[str, Any]:
        """The setting, and what front ends see."""
        found = {name: getattr(self, name) for name in self._fields[1:]}
        return {**found, "tasks": list(self.tasks), "on": list(self.on)}


def from_document(name: str, document: object) -> Channel:
    """The channel that a JSON object carries, exact keys only; Invalid `notify_invalid`."""
    if not isinstance(document, dict) or set(document) != set(Channel._fields[1:]):
        raise _invalid()
    try:
        lists = {each: tuple(document[each]) for each in ("tasks", "on")}
        return Channel(name=name, **{**document, **lists})
    except TypeError:
        raise _invalid() from None


def _invalid() -> Invalid:
    return Invalid("notify_invalid", "A channel is out of bounds, or has not its exact fields.")


def decode(name: str, text: str) -> Channel:
    """The stored channel; Corrupt `notify_corrupt`."""
    try:
        found = canonical.decode(text.encode("utf-8"), bytes_max=_BYTES_MAX, depth_max=2)
        return from_document(name, found)
    except (Invalid, UnicodeError):
        raise Corrupt("notify_corrupt", "A stored channel is damaged.") from None


def encode(channel: Channel) -> str:
    """The stored form."""
    return canonical.encode(channel.document()).decode("utf-8")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _TEXT_MAX and value.isascii()


def _minutes(text: object) -> tuple[int, int] | None:
    found = _QUIET.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    one, two, three, four = map(int, found.groups())
    return one * 60 + two, three * 60 + four
