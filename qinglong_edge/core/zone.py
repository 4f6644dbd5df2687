"""A time zone: which offset holds at an instant, and around it.

Owns the reading of both forms: TZif bytes (RFC 8536) that the caller read, and a POSIX TZ string
such as ``CST-8``, for OpenWrt has no zone data; the footer of TZif bytes is such a string too. The
standard library's ``zoneinfo`` reads some rules otherwise than the C library, and takes 0.5 MiB for
good of a daemon that once used a zone. Damaged data, leap seconds and rules with dates
around New Year are refused.

Nothing depends on the zone or the locale of this process. Instants and offsets are whole seconds
unless named.
"""

from __future__ import annotations

import struct

from qinglong_edge.core.characters import ALPHANUMERIC, DIGITS, LETTERS, consists_of, is_number
from qinglong_edge.core.civil import (
    DAY_S,
    civil_from_days,
    is_leap,
    month_days,
    month_start,
    weekday,
    year_start,
)
from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.limits import TZIF_BYTES_MAX, ZONE_TEXT_CHARACTERS_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Offset = Callable[[int], int]  # of an instant
    Span = tuple[int, int, int]  # start, end (exclusive), offset

TIME_MIN_S = -(2**62)
TIME_MAX_S = 2**62

_WINDOW_S = 3 * DAY_S  # no zone ever changed twice within three days
_FIRST_S = -239_720 * _WINDOW_S  # within the years 1 to 9999
_LAST_S = 977_631 * _WINDOW_S
_WINDOWS_MAX = 16
_UTC_TEXTS = frozenset(
    ("UTC", "UTC0", "Etc/UTC", "UCT", "Etc/UCT", "GMT", "GMT0", "Etc/GMT", "Zulu", "Etc/Zulu")
)
_HEADER = struct.Struct(">5s15x6I")
_DEFAULT_DATES = ",M3.2.0,M11.1.0"  # what a daylight name without rules means to glibc
_DEFAULT_CLOCK = "2"
_KEY = ALPHANUMERIC + "_+-"
_QUOTED_NAME = ALPHANUMERIC + "+-"
_OFFSET = DIGITS + "+-:"
_NAME_CHARACTERS_MIN = 3


class Zone:
    """An opened zone; `text` is what is stored and shown."""

    __slots__ = ("_offset", "_windows", "text")

    def __init__(self, text: str, offset: Offset | None) -> None:
        self.text = text
        self._offset = offset
        self._windows: dict[int, Span] = {}  # its change (or end), the offsets before and after

    def offset_ms_at(self, utc_ms: int) -> int:
        """Local time minus UTC at an instant, milliseconds."""
        return self.span_at(utc_ms // 1000)[2] * 1000

    def span_at(self, second: int) -> Span:
        """`(start, end, offset)`: one offset holds from `start` until before `end`.

        Two neighbours may have the same offset. Unbounded sides are TIME_MIN_S and TIME_MAX_S.
        """
        if self._offset is None:
            return TIME_MIN_S, TIME_MAX_S, 0
        if second < _FIRST_S:
            return TIME_MIN_S, _FIRST_S, self._offset(_FIRST_S)
        if second >= _LAST_S:
            return _LAST_S, TIME_MAX_S, self._offset(_LAST_S)
        start = second - second % _WINDOW_S
        window = self._windows.get(start)
        if window is None:
            if len(self._windows) == _WINDOWS_MAX:
                self._windows.clear()
            window = self._windows[start] = _window(self._offset, start)
        change, before, after = window
        if second < change:
            return start, change, before
        return change, start + _WINDOW_S, after


def zone_key(text: str) -> str | None:
    """The zone key a text spells, or None; a router's "America/Los Angeles" gets its underscore."""
    key = text.replace(" ", "_")
    parts = key.split("/") if len(key) <= ZONE_TEXT_CHARACTERS_MAX else [""]
    return key if all(part and consists_of(part, _KEY) for part in parts) else None


def open_zone(text: str, tzif: bytes | None = None) -> Zone:
    """The zone named by a text; `tzif` is the zone data for it, if the caller found any.

    Without data the text is UTC or a POSIX TZ string. Invalid: zone_unknown (a key without data),
    zone_invalid (malformed text or data).
    """
    key = zone_key(text)
    if text in _UTC_TEXTS:
        return Zone(text, None)
    if tzif is not None:
        if key is None:
            raise Invalid("zone_invalid", "The zone name is not well formed.")
        return Zone(key, _decode(tzif))
    if key is None or _starts_like_posix(text):
        return Zone(text, _named(text))
    raise Invalid(
        "zone_unknown",
        "There is no data for this time zone here; install it, or give the zone as a POSIX TZ "
        "string such as CST-8.",
        zone=key,
    )


def _named(text: str) -> Offset:
    """The offset at an instant by a POSIX TZ string; Invalid zone_invalid."""
    found = _posix(text) or _posix(text + _DEFAULT_DATES)
    if found is None:
        message = "The time zone is neither a zone name nor a POSIX TZ string."
        if "," in text:
            message = "The dates of a daylight rule are Mm.w.d or Jn, away from New Year."
        raise Invalid("zone_invalid", message)
    return found


def _starts_like_posix(text: str) -> bool:
    """Whether a text begins as a POSIX TZ string does: a quoted name, or a name and an offset."""
    name, rest = _name(text)
    if rest[:1] in ("+", "-"):
        rest = rest[1:]
    return text.startswith("<") or (name != "" and is_number(rest[:1]))


def _posix(text: str) -> Offset | None:
    """The offset at an instant by a POSIX TZ string; None if it is none that is taken.

    Offsets stay below 24 h, rule times within 100 h. A year's dates are applied to that year in
    UTC, so they stay away from New Year; and from each other, further than any window.
    """
    if len(text) > ZONE_TEXT_CHARACTERS_MAX:
        return None
    names, *dates = text.split(",")
    name, rest = _name(names)
    offset, rest = _offset(rest)
    daylight, rest = _name(rest)
    daylight_offset, rest = _offset(rest)
    if (
        not (name and _is_clock(offset, hours_max=23))
        or (daylight_offset and not _is_clock(daylight_offset, hours_max=23))
        or (daylight and not daylight_offset and offset.startswith("-23"))  # an hour more: a day
        or rest
    ):
        return None
    standard = -_seconds(offset)
    if not daylight:
        return None if dates else lambda _second: standard
    if len(dates) != 2 or not all(map(_is_date, dates)):
        return None
    first, last = sorted(map(_day_of_year, dates))
    if first < 8 or last > 355 or not 25 <= last - first <= 340:
        return None
    summer = -_seconds(daylight_offset) if daylight_offset else standard + 3_600
    return _rule(standard, summer, *dates)


def _rule(standard: int, summer: int, begins: str, ends: str) -> Offset:
    """The offset at an instant where daylight time lasts from one date of each year to another."""
    begin_of, end_of = _change(begins), _change(ends)
    known = (-1, 0, 0)  # the year that was asked for last, and its two instants

    def offset(second: int) -> int:
        nonlocal known
        year, _month, _day = civil_from_days(second // DAY_S)
        if known[0] != year:
            known = (year, begin_of(year) - standard, end_of(year) - summer)
        _year, begin, end = known
        within = begin <= second < end if begin < end else not end <= second < begin
        return summer if within else standard

    return offset


def _change(date: str) -> Callable[[int], int]:
    """The local time of a rule's date by year, as the clocks go until then."""
    text, _timed, clock = date.partition("/")
    at_s = _seconds(clock or _DEFAULT_CLOCK)

    def counted(year: int) -> int:
        day = year_start(year) + number - (number < 60 or not is_leap(year))
        return day * DAY_S + at_s

    def weekly(year: int) -> int:
        first = month_start(year, month)
        day = first + (of_week - weekday(first)) % 7 + 7 * (week - 1)
        if day >= first + month_days(year, month):
            day -= 7  # the fifth is the last
        return day * DAY_S + at_s

    if text.startswith("J"):
        number = int(text[1:])  # 29 February is never counted
        return counted
    month, week, of_week = map(int, text[1:].split("."))
    return weekly


def _seconds(clock: str) -> int:
    """The seconds of a signed `h`, `h:mm` or `h:mm:ss`."""
    total = 0
    for part in (clock.lstrip("+-") + ":0:0").split(":")[:3]:
        total = total * 60 + int(part)
    return -total if clock.startswith("-") else total


def _name(text: str) -> tuple[str, str]:
    """The zone name that a POSIX TZ string begins with, empty if there is none, and the rest."""
    if text.startswith("<"):
        name, closed, rest = text[1:].partition(">")
        whole = closed and consists_of(name, _QUOTED_NAME)
    else:
        rest = text.lstrip(LETTERS)
        name, whole = text[: len(text) - len(rest)], True
    return (name, rest) if whole and len(name) >= _NAME_CHARACTERS_MIN else ("", text)


def _offset(text: str) -> tuple[str, str]:
    """What may be the offset that a text begins with, and the rest, from a name on."""
    rest = text.lstrip(_OFFSET)
    return text[: len(text) - len(rest)], rest


def _is_date(text: str) -> bool:
    """Whether `text` is `Mm.w.d` or `Jn`, alone or with `/` and a time within 100 hours."""
    day, timed, clock = text.partition("/")
    if timed and not _is_clock(clock, hours_max=99):
        return False
    if day.startswith("J"):
        return len(day) <= 4 and is_number(day[1:])
    month, *rest = day[1:].split(".")
    return (
        day.startswith("M")
        and _is_within(month, 1, 12)
        and list(map(len, rest)) == [1, 1]
        and _is_within(rest[0], 1, 5)
        and _is_within(rest[1], 0, 6)
    )


def _is_clock(text: str, *, hours_max: int) -> bool:
    """Whether `text` is `h`, `h:mm` or `h:mm:ss`, with a sign or without."""
    hours, *rest = (text[1:] if text[:1] in ("+", "-") else text).split(":")
    return (
        _is_within(hours, 0, hours_max)
        and len(rest) <= 2
        and all(len(each) == 2 and _is_within(each, 0, 59) for each in rest)
    )


def _is_within(text: str, lowest: int, highest: int) -> bool:
    """Whether `text` is one or two digits, of a number within these bounds."""
    return len(text) <= 2 and is_number(text) and lowest <= int(text) <= highest


def _day_of_year(date: str) -> int:
    """The day of a rule's date; a few days off for Mm.w.d."""
    day = date.partition("/")[0][1:].split(".")
    return int(day[0]) if len(day) == 1 else (int(day[0]) - 1) * 61 // 2 + int(day[1]) * 7 - 3


def _decode(tzif: bytes) -> Offset:
    """The offset at an instant by TZif bytes; Invalid zone_invalid."""
    try:
        return _read(tzif)
    except (ValueError, struct.error):
        raise Invalid("zone_invalid", "The zone data is damaged or foreign.") from None


def _read(tzif: bytes) -> Offset:
    """The same; ValueError for leap seconds and damage.

    Every count, index and offset is checked, and the order of the changes; daylight flags and names
    are not read.
    """
    version, end = tzif[4:5], 0
    if not (version == b"\0" or b"2" <= version <= b"9"):
        raise ValueError
    for width in (4,) if version == b"\0" else (4, 8):
        mark, ut, standard, leaps, times, types, characters = _HEADER.unpack_from(tzif, end)
        start = end + _HEADER.size
        types_at = start + times * (width + 1)
        end = types_at + types * 6 + characters + leaps * (width + 4) + standard + ut
        if mark != b"TZif" + version or leaps or end > len(tzif):
            raise ValueError
    instants = struct.unpack_from(f">{times}{'q' if width == 8 else 'i'}", tzif, start)
    indexes = tzif[types_at - times : types_at]
    offsets = struct.unpack_from(">" + "i2x" * types, tzif, types_at)
    last = max(instants, default=0)
    if (
        len(tzif) > TZIF_BYTES_MAX
        or max(indexes, default=0) >= types
        or max(map(abs, offsets)) >= DAY_S
        or any(instants[at] - instants[at - 1] < _WINDOW_S for at in range(1, times))
        or not _FIRST_S < last < _LAST_S - _WINDOW_S
    ):
        raise ValueError
    rule = None
    if version != b"\0":
        before, text, _later = tzif[end:].split(b"\n", 2)
        rule = _posix(text.decode("ascii"))
        if before or (text and rule is None):
            raise ValueError
    listed = _listed(instants, [offsets[index] for index in indexes], offsets[0])
    if rule is None:
        return listed
    if not times:
        return rule
    if not listed(last) == rule(last + 1) == rule(last + _WINDOW_S):
        raise ValueError  # the rule contradicts the last change
    return lambda second: rule(second) if second > last else listed(second)


def _listed(instants: tuple[int, ...], offsets: list[int], before: int) -> Offset:
    """The offset at an instant: that of the last change until then, else the one `before` all."""

    def offset(second: int) -> int:
        for at in range(len(instants) - 1, -1, -1):
            if instants[at] <= second:
                return offsets[at]
        return before

    return offset


def _window(offset: Offset, start: int) -> Span:
    """Where the offset changes in a window (its end, if nowhere), and the offsets around that."""
    low, high = start, start + _WINDOW_S - 1
    before, after = offset(low), offset(high)
    if before == after:
        return start + _WINDOW_S, before, before
    while high - low > 1:
        middle = (low + high) // 2
        if offset(middle) == before:
            low = middle
        else:
            high = middle
    return high, before, after
