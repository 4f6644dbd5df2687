"""When a cron expression is due: the parser's own answer, without any state.

Owns the one computation behind `cron next` and the method of the same name.
"""

from __future__ import annotations

import time

from qinglong_edge.core import civil, cron
from qinglong_edge.core import zone as zones
from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.limits import CRON_NEXT_COUNT_MAX
from qinglong_edge.system import zonefile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from qinglong_edge.core.zone import Zone


class Zones:
    """Zones by their stored text; each is opened once."""

    def __init__(self) -> None:
        self._open: dict[str, Zone] = {}

    def open(self, text: str) -> Zone:
        """A zone; `Invalid` if it is neither known nor a POSIX rule."""
        if text not in self._open:
            key = zones.zone_key(text)
            tzif = None if key is None else zonefile.read_tzif(key)
            self._open[text] = zones.open_zone(text, tzif)
        return self._open[text]

    def own(self) -> str:
        """The machine's own zone, captured into a trigger and shown."""
        return self.open(machine_zone(None)).text


def machine_zone(environment_tz: str | None) -> str:
    """The machine's own zone; `environment_tz` is what a command's environment says."""
    return zonefile.router_zone(environment_tz=environment_tz)


def cron_next(text: str, *, zone: str, after_ms: int | None, count: int) -> dict[str, Any]:
    """The next `count` moments after a moment (now, if None) in a zone.

    `shifted_at_ms` are those among them whose own local time the clock skips that day; with
    `either_day` a day needs to match only one of the two day fields.
    """
    if not 1 <= count <= CRON_NEXT_COUNT_MAX:
        raise Invalid("count_invalid", "A count is 1 to 1000.", maximum=CRON_NEXT_COUNT_MAX)
    parsed, opened = cron.parse(text), Zones().open(zone)
    moment_ms = time.time_ns() // 1_000_000 if after_ms is None else after_ms
    found = []
    for _ in range(count):
        moment_ms = parsed.next_after(moment_ms, opened)
        found.append(moment_ms)
    return {
        "expression": parsed.text,
        "zone": opened.text,
        "next_at_ms": found,
        "shifted_at_ms": [
            ms for ms in found if not parsed.says((ms + opened.offset_ms_at(ms)) // 1000)
        ],
        "either_day": not (parsed.any_day or parsed.any_weekday),
    }


def local_text(ms: int, zone: str) -> str:
    """A moment as its zone's local time with offset."""
    return _written(ms, Zones().open(zone))


def _written(ms: int, zone: Zone) -> str:
    return civil.written(ms // 1000, zone.offset_ms_at(ms) // 1000)


def local_lines(answer: dict[str, Any]) -> str:
    """The moments as their zone's local times with offset, a line each, and what is odd."""
    zone, shifted, lines = Zones().open(answer["zone"]), set(answer["shifted_at_ms"]), []
    for ms in answer["next_at_ms"]:
        odd = "  (the clock skips its own time)" if ms in shifted else ""
        lines.append(_written(ms, zone) + odd)
    if answer["either_day"]:
        lines.append("note: day of month OR day of week; one of the two suffices")
    return "".join(f"{line}\n" for line in lines)
