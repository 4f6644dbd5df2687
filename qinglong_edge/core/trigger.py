"""Durations as a person writes them, among them the period of an `every` trigger.

Owns the duration grammar: `1d`, `2h`, `5m`, `30s`, `500ms`, or several of these from the longest to
the shortest, each once (`1h30m`). A bare number has no unit and is refused, so that nobody has to
know whether it means seconds; only `0` stands for itself.
"""

from __future__ import annotations

from qinglong_edge.core.characters import DIGITS
from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.limits import EVERY_MS_MAX, EVERY_MS_MIN, SAFE_INTEGER_MAX

_UNITS_MS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))
_COUNT_DIGITS_MAX = 16


def parse_duration_ms(text: str, *, minimum: int = 0, maximum: int = SAFE_INTEGER_MAX) -> int:
    """Milliseconds of a duration; both bounds are milliseconds and inclusive.

    Invalid: duration_invalid, duration_range (facts minimum_ms and maximum_ms).
    """
    total_ms = 0
    rest = "0s" if text == "0" else text or "no duration"
    for unit, length in reversed(_UNITS_MS):  # from the end, where `5ms` is not `5m` and an s
        if rest.endswith(unit):
            before = rest.removesuffix(unit)
            rest = before.rstrip(DIGITS)
            count = before[len(rest) :]
            if not 1 <= len(count) <= _COUNT_DIGITS_MAX:
                raise _malformed()
            total_ms += int(count) * length
    if rest:
        raise _malformed()
    if not minimum <= total_ms <= maximum:
        raise Invalid(
            "duration_range",
            "The duration is out of range.",
            minimum_ms=minimum,
            maximum_ms=maximum,
        )
    return total_ms


def _malformed() -> Invalid:
    return Invalid("duration_invalid", "A duration is a number with a unit, such as 1h30m.")


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
