"""A time zone as offsets between exact instants.

Owns the reading of compiled zone data (TZif, RFC 8536) and of POSIX TZ strings, and answers the two
questions cron has: which offset holds at an instant, and from when until when. Everything is whole
seconds; nothing depends on the zone or the locale of this process, and neither ``datetime`` nor
``zoneinfo`` is loaded, so that a box whose triggers have a zone costs what a box in UTC costs.

A router seldom has zone data, so a zone is one of:

| text                  | evaluated from                                                       |
|-----------------------|----------------------------------------------------------------------|
| ``UTC``, ``GMT0``     | nothing                                                              |
| ``Asia/Shanghai``     | the TZif bytes that the caller read                                  |
| ``CST-8``             | a TZif file made in memory, whose footer is that string              |

TZif, big-endian; a file of version 2 or later carries the same block twice, first with 4-byte and
then with 8-byte instants, and ends in ``\\n`` + a POSIX TZ string + ``\\n`` for all later time::

    "TZif" version[1] zero[15] isutcnt isstdcnt leapcnt timecnt typecnt charcnt   (6 x u32)
    instant[timecnt] type_index[timecnt]u8 (offset i32, dst u8, name u8)[typecnt] names[charcnt]
    (leap instant, correction i32)[leapcnt] isstd[isstdcnt]u8 isut[isutcnt]u8
"""

from __future__ import annotations

import re
import struct

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
from qinglong_edge.core.record import Record

TIME_MIN_S = -(2**62)  # before and after everything that a zone file can hold
TIME_MAX_S = 2**62
OFFSET_S_MAX = DAY_S - 1  # so two offsets differ by less than two days

_UTC_TEXTS = frozenset(
    ("UTC", "UTC0", "Etc/UTC", "UCT", "Etc/UCT", "GMT", "GMT0", "Etc/GMT", "Zulu", "Etc/Zulu")
)
_DEFAULT_RULES = ",M3.2.0,M11.1.0"  # what a daylight name without rules means to libc
_HEADER = struct.Struct(">4sc15x6I")
_KEY = re.compile(r"[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+)*")
_POSIX_START = re.compile(r"<|[A-Za-z]{3,}[+-]?[0-9]")
_NAME = r"([A-Za-z]{3,}|<[A-Za-z0-9+-]{3,}>)"
_OFFSET = r"([+-]?)([0-9]{1,2})(?::([0-9]{2}))?(?::([0-9]{2}))?"
_POSIX = re.compile(rf"{_NAME}{_OFFSET}(?:{_NAME}(?:{_OFFSET})?(?:,([^,]+),([^,]+))?)?")
_RULE = re.compile(
    r"(?:M([0-9]{1,2})\.([1-5])\.([0-6])|(J?)([0-9]{1,3}))"
    r"(?:/([+-]?)([0-9]{1,3})(?::([0-9]{2}))?(?::([0-9]{2}))?)?"
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    Span = tuple[int, int, int]  # start, end (exclusive), offset: seconds


class _Change(Record):
    """One yearly change: a date form of POSIX and the wall time of that day."""

    form: str  # M month.week.weekday, J day 1-365 without 29 February, N day 0-365
    month: int
    week: int
    day: int
    time_s: int

    def label_s(self, year: int) -> int:
        """The wall clock of the change, in seconds since 1970 as if the wall were UTC."""
        if self.form == "M":
            first = month_start(year, self.month)
            day = first + (self.day - weekday(first)) % 7 + 7 * (self.week - 1)
            if day >= first + month_days(year, self.month):
                day -= 7  # week 5 means the last one
        elif self.form == "J":
            day = year_start(year) + self.day - 1 + (self.day > 59 and is_leap(year))
        else:
            day = year_start(year) + self.day
        return day * DAY_S + self.time_s


class _Rule(Record):
    """A POSIX TZ string, parsed; `changes` is empty or (daylight begins, daylight ends)."""

    text: str
    standard_s: int
    daylight_s: int
    changes: tuple[_Change, ...]

    def span_at(self, second: int) -> Span:
        """From, until, offset around an instant, as if the rule held for ever."""
        if not self.changes:
            return TIME_MIN_S, TIME_MAX_S, self.standard_s
        begin, finish = self.changes
        year = civil_from_days((second + self.standard_s) // DAY_S)[0]
        events = []
        # A change may stand a week outside its year. The sort keeps the order of equal instants:
        # an end at the very instant of the next begin is daylight all the year.
        for near in range(year - 2, year + 3):
            events.append((begin.label_s(near) - self.standard_s, self.daylight_s))
            events.append((finish.label_s(near) - self.daylight_s, self.standard_s))
        events.sort(key=lambda event: event[0])
        index = max(at for at, event in enumerate(events) if event[0] <= second)
        return events[index][0], events[index + 1][0], events[index][1]


class Zone:
    """An opened zone; `text` is what is stored and shown. Instants are seconds unless named."""

    __slots__ = ("_instants", "_offsets", "_rule", "_span", "text")

    def __init__(
        self, text: str, *, instants: tuple[int, ...], offsets: tuple[int, ...], rule: _Rule | None
    ) -> None:
        self.text = text
        self._instants = instants
        self._offsets = offsets  # one more than instants: offsets[i] holds before instants[i]
        self._rule = rule
        self._span: Span = (0, 0, 0)  # the last answer; empty at first

    def offset_ms_at(self, utc_ms: int) -> int:
        """Local time minus UTC at an instant, milliseconds."""
        return self.span_at(utc_ms // 1000)[2] * 1000

    def span_at(self, second: int) -> Span:
        """`(start, end, offset)`: one offset holds from `start` until before `end`, all seconds.

        Two neighbours may have the same offset. Unbounded sides are TIME_MIN_S and TIME_MAX_S.
        """
        if not self._span[0] <= second < self._span[1]:
            self._span = self._find(second)
        return self._span

    def _find(self, second: int) -> Span:
        instants = self._instants
        low, high = 0, len(instants)
        while low < high:
            middle = (low + high) // 2
            if instants[middle] <= second:
                low = middle + 1
            else:
                high = middle
        start = instants[low - 1] if low else TIME_MIN_S
        if low < len(instants):
            return start, instants[low], self._offsets[low]
        if self._rule is None:
            return start, TIME_MAX_S, self._offsets[low]
        since, until, offset = self._rule.span_at(second)
        return max(start, since), until, offset


def zone_key(text: str) -> str | None:
    """The zone key a text spells, or None; a router's "America/Los Angeles" gets its underscore."""
    key = text.replace(" ", "_")
    if len(key) <= ZONE_TEXT_CHARACTERS_MAX and _KEY.fullmatch(key):
        return key
    return None


def open_zone(text: str, tzif: bytes | None = None) -> Zone:
    """The zone named by a text; `tzif` is the zone data for it, if the caller found any.

    Without data the text is UTC or a POSIX TZ string. Invalid: zone_unknown (a key without data),
    zone_invalid (malformed text or data).
    """
    key = zone_key(text)
    if text in _UTC_TEXTS:
        return Zone(text, instants=(), offsets=(0,), rule=None)
    if tzif is not None:
        if key is None:
            raise Invalid("zone_invalid", "The zone name is not well formed.")
        return _decode(key, tzif)
    if key is None or _POSIX_START.match(text):
        return _decode(text, parse_posix(text))
    raise Invalid(
        "zone_unknown",
        "There is no data for this time zone here; install it, or give the zone as a POSIX TZ "
        "string such as CST-8.",
        zone=key,
    )


def parse_posix(text: str) -> bytes:
    """A TZif file whose footer is the POSIX TZ string; Invalid zone_invalid when malformed.

    Offsets stay below 24 h, rule times within 167 h (RFC 8536 section 3.3.1). A daylight name
    without rules gets the rules libc gives it.
    """
    rule = _parse_rule(text)
    block = struct.pack(">iBB", rule.standard_s, 0, 0) + b"\0"
    header = _HEADER.pack(b"TZif", b"3", 0, 0, 0, 0, 1, 1)
    return header + block + header + block + b"\n" + rule.text.encode("ascii") + b"\n"


def _parse_rule(text: str) -> _Rule:
    match = _POSIX.fullmatch(text) if len(text) <= ZONE_TEXT_CHARACTERS_MAX else None
    if match is None:
        raise Invalid("zone_invalid", "The time zone is neither a zone name nor a POSIX TZ string.")
    groups = match.groups()
    standard_s = daylight_s = -_clock_s(groups[1:5], hours_max=24)
    changes: tuple[_Change, ...] = ()
    if groups[5] is not None:
        daylight_s = standard_s + 3600
        if groups[7] is not None:
            daylight_s = -_clock_s(groups[6:10], hours_max=24)
        if groups[10] is None:
            text += _DEFAULT_RULES
        begin, finish = text.rsplit(",", 2)[1:]
        changes = (_parse_change(begin), _parse_change(finish))
    if max(abs(standard_s), abs(daylight_s)) > OFFSET_S_MAX:
        raise Invalid("zone_invalid", "A time zone is less than 24 hours away from UTC.")
    return _Rule(text=text, standard_s=standard_s, daylight_s=daylight_s, changes=changes)


def _parse_change(text: str) -> _Change:
    match = _RULE.fullmatch(text)
    if match is None:
        raise Invalid("zone_invalid", "A daylight rule of the time zone is not well formed.")
    month, week, day_of_week, form, day, *clock = match.groups()
    time_s = 7_200 if clock[1] is None else _clock_s(clock, hours_max=167)
    if month is not None:
        change = _Change(
            form="M", month=int(month), week=int(week), day=int(day_of_week), time_s=time_s
        )
        valid = 1 <= change.month <= 12
    else:
        change = _Change(form=form or "N", month=0, week=0, day=int(day), time_s=time_s)
        valid = (form == "J") <= change.day <= 365
    if not valid:
        raise Invalid("zone_invalid", "A daylight rule of the time zone names no day of the year.")
    return change


def _clock_s(parts: Sequence[str | None], *, hours_max: int) -> int:
    sign, hours, minutes, seconds = parts
    whole = (int(hours or 0), int(minutes or 0), int(seconds or 0))
    if whole[0] > hours_max or max(whole[1:]) > 59:
        raise Invalid("zone_invalid", "A clock time of the time zone is out of range.")
    total = whole[0] * 3600 + whole[1] * 60 + whole[2]
    return -total if sign == "-" else total


def _decode(text: str, data: bytes) -> Zone:
    """A zone from TZif bytes of any version; every count is checked before it is used."""
    try:
        version, counts = _read_header(data, 0)
        start, width = _HEADER.size, 4
        if version != b"\0":
            start += _block_bytes(counts, width=4)
            counts = _read_header(data, start)[1]
            start, width = start + _HEADER.size, 8
        instants, offsets = _read_block(data, start, counts=counts, width=width)
    except (struct.error, IndexError):
        raise Invalid("zone_invalid", "The zone data is cut short or damaged.") from None
    rule = None
    if width == 8:
        # What a later version of the format may add stands behind the second newline.
        lines = data[start + _block_bytes(counts, width=8) :].split(b"\n", 2)
        if len(lines) < 3 or lines[0] or not lines[1].isascii():
            raise Invalid("zone_invalid", "The zone data has no proper end.")
        rule = _parse_rule(lines[1].decode("ascii")) if lines[1] else None
    return Zone(text, instants=instants, offsets=offsets, rule=rule)


def _read_header(data: bytes, start: int) -> tuple[bytes, tuple[int, ...]]:
    magic, version, *counts = _HEADER.unpack_from(data, start)
    if magic != b"TZif" or len(data) > TZIF_BYTES_MAX:
        raise Invalid("zone_invalid", "The zone data is not a compiled time zone.")
    return version, tuple(counts)


def _block_bytes(counts: tuple[int, ...], *, width: int) -> int:
    ut, standard, leaps, times, types, characters = counts
    return times * (width + 1) + types * 6 + characters + leaps * (width + 4) + standard + ut


def _read_block(
    data: bytes, start: int, *, counts: tuple[int, ...], width: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    leaps, times, types = counts[2:5]
    if leaps or not types or start + _block_bytes(counts, width=width) > len(data):
        # Leap seconds would put every answer half a minute off the clock of the system.
        raise Invalid("zone_invalid", "The zone data is cut short or counts leap seconds.")
    instants = struct.unpack_from(f">{times}{'q' if width == 8 else 'i'}", data, start)
    indexes = data[start + times * width : start + times * (width + 1)]
    table = struct.unpack_from(">" + "i2x" * types, data, start + times * (width + 1))
    offsets = (table[0], *(table[index] for index in indexes))
    if max(map(abs, offsets)) > OFFSET_S_MAX or sorted(set(instants)) != list(instants):
        raise Invalid("zone_invalid", "The zone data is out of order or out of range.")
    return instants, offsets
