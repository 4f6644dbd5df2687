"""Cron expressions: one parser for validation, preview and firing, and the next occurrence.

Owns the dialect. Nothing here looks at a clock: whether an expression is valid never depends on
today, and an occurrence depends only on the instant and the zone given.

Five fields, or six with the seconds first, separated by blanks and tabs. ``@yearly`` and its kin
are replaced by their five fields at once.

A field is a list of ``*``, ``a``, ``a-b``, ``*/n``, ``a/n`` and ``a-b/n``; besides these:

| field        | values           | also                                                          |
|--------------|------------------|---------------------------------------------------------------|
| second       | 0-59             |                                                               |
| minute       | 0-59             |                                                               |
| hour         | 0-23             |                                                               |
| day of month | 1-31             | ``?`` alone is ``*``; ``L`` is the last day                   |
| month        | 1-12, JAN-DEC    |                                                               |
| day of week  | 0-7, SUN-SAT     | ``?`` alone is ``*``; ``dL`` is the last such day of the      |
|              | 0 and 7 = Sunday | month, ``d#n`` its n-th (1-5); ``FRI-SUN``, ``5-7``           |

``a/n`` runs from a to the field's largest value (7 for the day of week). When both day fields are
restricted, a day needs to match only one of them; a field counts as restricted unless it is exactly
``*`` or ``?``.

Clock changes. When the hour field begins with ``*`` the schedule follows real time: it fires at
every instant whose local time matches, so a repeated hour fires twice and a skipped one not at all.
With fixed hours every matching local time fires once: one that the clock skips is read with the
offset before the gap (02:30 becomes 03:30), one that repeats fires in its first pass, and two that
land on the same instant are one occurrence.
"""

from __future__ import annotations

from qinglong_edge.core.characters import DIGITS, consists_of
from qinglong_edge.core.civil import DAY_S, civil_from_days, month_days, month_start, weekday
from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.limits import CRON_TEXT_CHARACTERS_MAX
from qinglong_edge.core.record import Record
from qinglong_edge.core.zone import TIME_MAX_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qinglong_edge.core.zone import Zone

_YEAR_MAX = 9999
_TWO_DAYS_S = 2 * DAY_S  # more than two offsets of one zone can differ
_MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_SUNDAY_AGAIN = 7
_WEEK = 0b111_1111
_EVERY_WEEK = 1 | 1 << 7 | 1 << 14 | 1 << 21 | 1 << 28


class _Field(Record):
    """The name and bounds of a field; `names` stand for `low`, `low + 1` and so on."""

    name: str
    low: int
    high: int
    size: int
    names: tuple[str, ...] = ()


_SECOND = _Field(name="second", low=0, high=59, size=60)
_MINUTE = _Field(name="minute", low=0, high=59, size=60)
_HOUR = _Field(name="hour", low=0, high=23, size=24)
_DAY = _Field(name="day_of_month", low=1, high=31, size=31)
_MONTH = _Field(name="month", low=1, high=12, size=12, names=_MONTHS)
_WEEKDAY = _Field(name="day_of_week", low=0, high=_SUNDAY_AGAIN, size=7, names=_WEEKDAYS)
_FIELDS = (_SECOND, _MINUTE, _HOUR, _DAY, _MONTH, _WEEKDAY)


class Cron(Record):
    """A parsed expression. Bit v of a mask stands for the value v.

    `text` is what is stored: macros expanded, names as numbers, `?` as `*`, single blanks;
    it parses to an equal Cron. Bit 0 of `days` is the month's last day. `weekdays` holds six weeks
    of seven bits: bit 7 * (n - 1) + d is the n-th d of a month, the sixth week its last seven days.
    """

    text: str
    seconds: int
    minutes: int
    hours: int
    days: int
    months: int
    weekdays: int
    any_day: bool
    any_weekday: bool
    real_time: bool

    def _check(self) -> None:
        if not self.any_weekday or self.days & 1:
            return
        for month in range(1, 13):
            # 2000 was a leap year: 29 February exists, if not every year.
            if _has(self.months, month) and _next_bit(self.days, 1) <= month_days(2000, month):
                return
        raise Invalid("cron_never", "The expression names only dates that do not exist.")

    def next_after(self, after_ms: int, zone: Zone) -> int:
        """The first occurrence strictly later than `after_ms`, both epoch milliseconds.

        Bounded work: a few dozen steps, at most one per month of the years between two
        occurrences. Invalid cron_horizon when there is none before the year 10000.
        """
        second = after_ms // 1000 + 1
        _start, end, offset = zone.span_at(second)
        label = self._label(second + offset)
        # With fixed hours the two days after a change may also get what the change moved.
        settled = self.real_time or zone.span_at(second - _TWO_DAYS_S)[2] == offset
        if settled and label is not None and label - offset < end:
            return (label - offset) * 1000
        found = self._by_instant(second, zone) if self.real_time else self._by_label(second, zone)
        if found is None:
            raise Invalid("cron_horizon", "There is no occurrence before the year 10000.")
        return found * 1000

    def says(self, local_s: int) -> bool:
        """True if a local time, in seconds, is one of the expression's own."""
        return self._label(local_s) == local_s

    def _by_instant(self, second: int, zone: Zone) -> int | None:
        """The first instant from `second` on whose local time matches."""
        while True:
            _start, end, offset = zone.span_at(second)
            label = self._label(second + offset)
            if label is None:
                return None
            instant = label - offset
            if instant < end:
                return instant
            second = _look_on(second, end, instant)

    def _by_label(self, second: int, zone: Zone) -> int | None:
        """The first instant from `second` on that some matching local time stands for.

        Each span owns the local times from the later reading of its start (old or new offset) up
        to the later reading of its end: a gap belongs to the span before it, a repeated hour to
        the span of its first pass. So the spans share out all local times, each once.
        """
        best: int | None = None
        at = second - _TWO_DAYS_S
        while True:
            start, end, offset = zone.span_at(at)
            if best is not None and best <= start:
                return best
            before, after = zone.span_at(start - 1)[2], zone.span_at(end)[2]
            label = self._label(max(second + offset, start + max(before, offset)))
            if label is None:
                return best
            instant = label - offset
            if label < end + max(offset, after):
                best = instant if best is None else min(best, instant)
                if end == TIME_MAX_S:
                    return best
            at = end if best is not None else _look_on(second, end, instant)

    def _label(self, label: int) -> int | None:
        """The first matching local time from `label` on, both seconds; None after the year 9999."""
        day, clock = divmod(label, DAY_S)
        match = self._day(day)
        if match == day:
            of_day = self._clock(clock)
            if of_day is not None:
                return day * DAY_S + of_day
            match = self._day(day + 1)
        if match is None:
            return None
        first = _next_bit(self.hours, 0) * 3600 + _next_bit(self.minutes, 0) * 60
        return match * DAY_S + first + _next_bit(self.seconds, 0)

    def _clock(self, clock: int) -> int | None:
        """The first matching time of day from `clock` on, seconds; None when the day is over."""
        hour, rest = divmod(clock, 3600)
        minute, second = divmod(rest, 60)
        if _has(self.hours, hour):
            if _has(self.minutes, minute):
                found = _next_bit(self.seconds, second)
                if found >= 0:
                    return hour * 3600 + minute * 60 + found
            found = _next_bit(self.minutes, minute + 1)
            if found >= 0:
                return hour * 3600 + found * 60 + _next_bit(self.seconds, 0)
        found = _next_bit(self.hours, hour + 1)
        if found < 0:
            return None
        return found * 3600 + _next_bit(self.minutes, 0) * 60 + _next_bit(self.seconds, 0)

    def _day(self, day: int) -> int | None:
        """The first matching day number from `day` on; None after the year 9999."""
        year, month, of_month = civil_from_days(day)
        while year <= _YEAR_MAX:
            if _has(self.months, month):
                found = _next_bit(self._days_of(year, month), of_month)
                if found >= 0:
                    return month_start(year, month) + found - 1
            month = _next_bit(self.months, month + 1)
            if month < 0:
                year, month = year + 1, _next_bit(self.months, 1)
            of_month = 1
        return None

    def _days_of(self, year: int, month: int) -> int:
        """The matching days of a month as a mask."""
        length = month_days(year, month)
        whole = (1 << length + 1) - 2
        by_date = self.days & whole
        if self.days & 1:
            by_date |= 1 << length
        if self.any_weekday:
            return by_date
        by_week = self._weekdays_of(weekday(month_start(year, month)), length) & whole
        return by_week if self.any_day else by_date | by_week

    def _weekdays_of(self, first: int, length: int) -> int:
        """The days that the day-of-week field picks in a month that begins on weekday `first`."""
        chosen = 0
        for week in range(0, 35, 7):
            chosen |= _from_weekday(self.weekdays >> week & _WEEK, first) << week + 1
        last_week = _from_weekday(self.weekdays >> 35 & _WEEK, (first + length) % 7)
        return chosen | last_week << length - 6


def parse(text: str) -> Cron:
    """The expression of a text of at most CRON_TEXT_CHARACTERS_MAX characters.

    Invalid: cron_empty, cron_too_long, cron_macro, cron_fields (fact count), cron_unsupported (fact
    what), cron_field, cron_range and cron_step (fact field), cron_never.
    """
    if len(text) > CRON_TEXT_CHARACTERS_MAX:
        raise Invalid(
            "cron_too_long", "The expression is too long.", maximum=CRON_TEXT_CHARACTERS_MAX
        )
    words = _words(text)
    masks = [1] if len(words) == 5 else []  # without a seconds field: second 0
    normal: list[str] = []
    for field, word in zip(_FIELDS[-len(words) :], words, strict=True):
        mask, canonical = _parse_field(field, word)
        masks.append(mask)
        normal.append(canonical)
    seconds, minutes, hours, days, months, weekdays = masks
    return Cron(
        text=" ".join(normal),
        seconds=seconds,
        minutes=minutes,
        hours=hours,
        days=days,
        months=months,
        weekdays=weekdays,
        any_day=normal[-3] == "*",
        any_weekday=normal[-1] == "*",
        real_time=normal[-4].startswith("*"),
    )


def _words(text: str) -> list[str]:
    """The five or six field texts."""
    if "\n" in text or "\r" in text:
        raise _unsupported("newline")
    words = [word for word in text.replace("\t", " ").split(" ") if word]
    if not words:
        raise Invalid("cron_empty", "The expression is empty.")
    if words[0].startswith("@"):
        macro = _MACROS.get(text.strip(" \t").lower())
        if macro is None:
            raise Invalid("cron_macro", "Only @hourly to @yearly are times; see --boot, --every.")
        return macro.split(" ")
    if "=" in words[0]:
        raise _unsupported("CRON_TZ")
    if any(word.startswith("#") for word in words):
        raise _unsupported("comment")
    if len(words) not in (5, 6):
        raise Invalid("cron_fields", "The expression needs five fields, or six.", count=len(words))
    return words


def _parse_field(field: _Field, word: str) -> tuple[int, str]:
    """The mask of a field and its canonical text."""
    if not word.isascii():  # before upper(), which makes ASCII letters of some others
        raise _malformed(field)
    if word == "?" and field in (_DAY, _WEEKDAY):
        word = "*"
    mask = 0
    normal = []
    for item in word.upper().split(","):
        values, canonical = _parse_item(field, item)
        mask |= values
        normal.append(canonical)
    return mask, ",".join(normal)


def _parse_item(field: _Field, item: str) -> tuple[int, str]:
    """The mask of one member of a list, ASCII in capitals, and its canonical text."""
    values, stepped, step = item.partition("/")
    first, ranged, last = values.partition("-")
    if (
        (stepped and not step.isdigit())
        or (ranged and not _names_value(last))
        or (values != "*" and not _names_value(first))
    ):
        return _parse_special(field, item)
    low, high, canonical = field.low, field.high, "*"
    if values != "*":
        low = _value(field, first)
        canonical = str(low % 7 if field is _WEEKDAY and not stepped else low)
        if ranged:
            high = _SUNDAY_AGAIN if last == "SUN" and low > 0 else _value(field, last)
            canonical = f"{low}-{high}"
        elif not stepped:
            high = low
    if high < low:
        raise Invalid("cron_range", "A range of the expression runs backwards.", field=field.name)
    every = 1
    if stepped:
        every = int(step)
        canonical = f"{canonical}/{every}"
        if not 1 <= every < field.size:
            raise Invalid(
                "cron_step", "A step of the expression is out of range.", field=field.name
            )
    mask = sum(1 << value for value in range(low, high + 1, every))
    if field is _WEEKDAY:
        mask = ((mask | mask >> 7) & _WEEK) * _EVERY_WEEK
    return mask, canonical


def _parse_special(field: _Field, item: str) -> tuple[int, str]:
    """`L` of the day of month, `d#n` and `dL` of the day of week; anything else is refused."""
    if field is _DAY and item == "L":
        return 1, item
    if field is _WEEKDAY:
        if item.endswith("L") and _names_value(item[:-1]):
            day = _value(field, item[:-1]) % 7
            return 1 << 35 + day, f"{day}L"
        name, _mark, number = item.partition("#")
        if _names_value(name) and number.isdigit():
            day, nth = _value(field, name) % 7, int(number)
            if not 1 <= nth <= 5:
                raise _out_of_range(field)
            return 1 << 7 * (nth - 1) + day, f"{day}#{nth}"
    foreign = _foreign(item)
    raise _malformed(field) if foreign is None else _unsupported(foreign)


def _foreign(item: str) -> str | None:
    """The mark of what only other dialects have: `15W`, `LW`, `H(0-5)/2`, `L-3`, `L`, `0~59/5`."""
    if item.endswith("W") and consists_of(item[:-1].removesuffix("L"), DIGITS):
        return "W"
    if item == "L":
        return "L"
    if item.startswith("L-") and item[2:].isdigit():
        return "L-n"
    values, stepped, step = item.partition("/")
    if stepped and not step.isdigit():
        return None
    hashed = values.startswith("H(") and values.endswith(")")
    if values == "H" or (hashed and consists_of(values[2:-1], DIGITS + "-")):
        return "H"
    low, chosen, high = values.partition("~")
    return "~" if chosen and consists_of(low + high, DIGITS) else None


def _names_value(text: str) -> bool:
    """Whether a text, ASCII in capitals, has the form of a number or of a name."""
    return text.isdigit() or (len(text) == 3 and text.isalpha())


def _value(field: _Field, text: str) -> int:
    if text in field.names:
        return field.low + field.names.index(text)
    if not text.isdigit():
        raise _malformed(field)
    value = int(text)
    if not field.low <= value <= field.high:
        raise _out_of_range(field)
    return value


def _malformed(field: _Field) -> Invalid:
    return Invalid("cron_field", "A field of the expression is not well formed.", field=field.name)


def _out_of_range(field: _Field) -> Invalid:
    return Invalid("cron_range", "A value of the expression is out of range.", field=field.name)


def _unsupported(what: str) -> Invalid:
    return Invalid("cron_unsupported", "The expression uses what is not supported.", what=what)


def _look_on(second: int, end: int, instant: int) -> int:
    """Where the search goes on, when its span ends before the match it found, `instant`.

    No local time between the search's start and the match matches. A change within two days of
    `second` may put the clock to a local time before that start, so the next span is looked at.
    After any later change, nothing up to two days before the match can match.
    """
    return end if end - second <= _TWO_DAYS_S else max(end, instant - _TWO_DAYS_S)


def _next_bit(mask: int, low: int) -> int:
    """The lowest value >= `low` in a mask, or -1."""
    rest = mask >> low
    return low + (rest & -rest).bit_length() - 1 if rest else -1


def _has(mask: int, value: int) -> bool:
    return bool(mask >> value & 1)


def _from_weekday(mask: int, first: int) -> int:
    """A week's mask turned so that bit 0 is the weekday `first`."""
    return (mask << 7 | mask) >> first & _WEEK
