"""Durations as a person writes them, among them the period of an `every` trigger.

Owns the duration grammar: `1d`, `2h`, `5m`, `30s`, `500ms`, or several of these from the longest to
the shortest, each once (`1h30m`). A bare number has no unit and is refused, so that nobody has to
know whether it means seconds; only `0` stands for itself.
"""

from __future__ import annotations

import re

from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.limits import EVERY_MS_MAX, EVERY_MS_MIN, SAFE_INTEGER_MAX

_UNITS_MS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))
_DURATION = re.compile("".join(f"(?:([0-9]{{1,16}}){unit})?" for unit, _length in _UNITS_MS))


def parse_duration_ms(text: str, *, minimum: int = 0, maximum: int = SAFE_INTEGER_MAX) -> int:
    """Milliseconds of a duration; both bounds are milliseconds and inclusive.

    Invalid: duration_invalid, duration_range (facts minimum_ms and maximum_ms).
    """
    match = _DURATION.fullmatch("0s" if text == "0" else text)
    if match is None or not match[0]:
        raise Invalid("duration_invalid", "A duration is a number with a unit, such as 1h30m.")
    total_ms = sum(
        int(count or 0) * length
        for count, (_unit, length) in zip(match.groups(), _UNITS_MS, strict=True)
    )
    if not minimum <= total_ms <= maximum:
        raise Invalid(
            "duration_range",
            "The duration is out of range.",
            minimum_ms=minimum,
            maximum_ms=maximum,
        )
    return total_ms


def parse_every_ms(text: str) -> int:
    """The period of an `every` trigger, EVERY_MS_MIN to EVERY_MS_MAX; Invalid as above."""
    return parse_duration_ms(text, minimum=EVERY_MS_MIN, maximum=EVERY_MS_MAX)


def format_duration(ms: int) -> str:
    """The shortest text that parses to `ms` again: 5_400_000 is `1h30m`, 0 is `0`."""
    if ms < 0:
        raise Invalid("duration_range", "A duration is never negative.", minimum_ms=0)
    parts = []
    for unit, length in _UNITS_MS:
        count, ms = divmod(ms, length)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0"
