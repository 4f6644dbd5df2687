"""The schedules of other crons in our own cron text: the same minutes, or a refusal.

Owns the meaning of five fields to Debian's cron and cronie (`vixie`) and to the crond of busybox,
and of the words after an at sign. What comes out is canonical text of `core.cron`; where that
cannot say exactly what the other cron does, the answer is Invalid. Pure.

|               | vixie                                 | busybox                              |
|---------------|---------------------------------------|--------------------------------------|
| day fields    | one begins with `*`: both must match, | one with every value does not count; |
|               | else either may                       | if both count, either may            |
| `*/2` in days | 1, 3, 5, ... 31                       | 2, 4, 6, ... 30 (counted from day 0) |
| `22-3`        | never                                 | 22, 23, 0, 1, 2, 3                   |
| `5/15`        | an error                              | 5                                    |
| `*/60`        | 0                                     | 0                                    |
| a value over  | an error                              | goes round the field until it gives  |
| the largest   |                                       | up, and marks what it comes by       |
"""

from __future__ import annotations

import re

from qinglong_edge.core import cron
from qinglong_edge.core.errors import Invalid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_MACROS = frozenset(
    ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")
)
_REBOOT = "@reboot"
_FIELDS = ("minute", "hour", "day of month", "month", "day of week")
_MINUTE, _HOUR, _DAY, _MONTH, _WEEKDAY = range(5)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_ITEM = re.compile(
    r"(?:(?P<star>\*)|(?P<first>[0-9]{1,9}|[A-Za-z]{3})(?:-(?P<last>[0-9]{1,9}|[A-Za-z]{3}))?)"
    r"(?:/(?P<step>[0-9]{1,9}))?"
)


def macro(word: str) -> str | None:
    """The canonical cron text of a macro; None for the boot trigger."""
    if word == _REBOOT:
        return None
    if word not in _MACROS:
        raise Invalid("unknown_macro", "Cron does not know this word after the at sign.")
    return cron.parse(word).text


def vixie(fields: list[str]) -> str:
    """The canonical cron text of five fields as Debian's cron and cronie read them.

    Both want both day fields to match as soon as one of them begins with a star, `*/2` too.
    """
    _check_count(fields)
    if any("~" in field for field in fields):
        raise Invalid("random_range", "A random range cannot be kept.")
    cron.parse(" ".join(fields))  # its codes first: the line is wrong in both dialects
    values = [_vixie_values(field, index) for index, field in enumerate(fields)]
    day, weekday = fields[_DAY], fields[_WEEKDAY]
    if (day[0] == "*" or weekday[0] == "*") and "*" not in (day, weekday):
        if len(values[_DAY]) == 31:
            day = "*"
        elif len(values[_WEEKDAY]) == 7:
            weekday = "*"
        else:
            raise Invalid("day_rule_differs", "Cron wants both day fields here, a task either.")
    return cron.parse(" ".join((*fields[:_DAY], day, fields[_MONTH], weekday))).text


def _vixie_values(field: str, index: int) -> frozenset[int]:
    """The values of a field that our own parser has taken; Invalid: `vixie_field`."""
    values: set[int] = set()
    low, high = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))[index]
    for item in field.split(","):
        found = _ITEM.fullmatch(item)
        if found is None or (found["step"] and not (found["star"] or found["last"])):
            raise _field_error("vixie_field", index)
        first, last = low, high
        if not found["star"]:
            first = _number(found["first"], index, "vixie_field")
            last = first if found["last"] is None else _number(found["last"], index, "vixie_field")
        step = int(found["step"] or 1)
        if first > last or not step:
            raise _field_error("vixie_field", index)
        values.update(range(first, last + 1, step))
    return frozenset(each % 7 for each in values) if index == _WEEKDAY else frozenset(values)


def busybox(fields: list[str]) -> tuple[str, list[str]]:
    """The canonical cron text of what crond makes of five fields, and those out of range.

    A day field that has all its values, day 0 included, does not count; if both count, either may
    match. Ours says the same once each field is written out and one without effect is a star.
    """
    _check_count(fields)
    read = [_busybox_values(field, index) for index, field in enumerate(fields)]
    values = [each for each, _ in read]
    days, weekdays = values[_DAY] - {0}, values[_WEEKDAY]
    day_counts, weekday_counts = len(values[_DAY]) < 32, len(weekdays) < 7
    if not day_counts or (weekday_counts and not days):
        days = frozenset(range(1, 32))
    elif not weekday_counts and not days:
        raise Invalid("never_runs", "Day 0 never comes: crond never runs this line.")
    elif len(days) == 31:
        weekdays = frozenset(range(7))
    texts = (
        _field_text(values[_MINUTE], 0, 59, fields[_MINUTE]),
        _field_text(values[_HOUR], 0, 23, fields[_HOUR]),
        _field_text(days, 1, 31),
        _field_text(values[_MONTH], 1, 12),
        _field_text(weekdays, 0, 6),
    )
    wrong = [_FIELDS[index] for index, (_, out_of_range) in enumerate(read) if out_of_range]
    return cron.parse(" ".join(texts)).text, wrong


def _busybox_values(field: str, index: int) -> tuple[frozenset[int], bool]:
    """The values that crond marks for a field, and whether it names one out of range.

    An item walks round the ring of the field's values, from its first to its last, and marks each
    `step`-th place it comes by; step 0 marks the first only. A last value that is not on the ring
    is never met: the walk ends after 1,024 places, and the items after it are not read. Days are a
    ring of 32, from 0; months begin at 1, and crond writes outside its table for month 0.
    """
    size = (60, 24, 32, 12, 7)[index]
    values: set[int] = set()
    out_of_range = False
    for item in field.split(","):
        found = _ITEM.fullmatch(item)
        if found is None:
            raise _field_error("busybox_field", index)
        base = 1 if index == _MONTH else 0
        first, last = base, base + size - 1
        if not found["star"]:
            first = _number(found["first"], index, "busybox_field")
            last = (
                first if found["last"] is None else _number(found["last"], index, "busybox_field")
            )
        if min(first, last) < base:
            raise _field_error("out_of_range", index)
        given_up = last - base >= size
        places = 1024 if given_up else (last - first) % size + 1
        step = int(found["step"] or 1) or places
        values.update((first - base + place) % size + base for place in range(0, places, step))
        out_of_range = out_of_range or given_up or first - base >= size
        if given_up:
            break
    return frozenset(values), out_of_range


def _field_text(values: Iterable[int], low: int, high: int, written: str = "") -> str:
    """`values` as a cron field: a star, the step that was `written`, or a list of ranges."""
    places = sorted(values)
    if len(places) == high - low + 1:
        return "*"
    step = re.fullmatch(r"\*/0*([1-9][0-9]?)", written)
    if step and places == list(range(low, high + 1, int(step[1]))) and len(places) > 1:
        return f"*/{step[1]}"
    runs: list[list[int]] = []
    for place in places:
        if runs and runs[-1][-1] == place - 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    texts = (f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)
    return ",".join(texts)


def _number(text: str, index: int, code: str) -> int:
    """The value of a number or, in the last two fields, of a name; Invalid `code`."""
    if text.isdigit():
        return int(text)
    names = {_MONTH: _MONTHS, _WEEKDAY: _WEEKDAYS}.get(index, ())
    if text.lower() not in names:
        raise _field_error(code, index)
    return names.index(text.lower()) + (1 if index == _MONTH else 0)


def _check_count(fields: list[str]) -> None:
    if len(fields) != len(_FIELDS):
        raise Invalid("cron_fields", "A crontab's schedule has five fields.", count=len(fields))


def _field_error(code: str, index: int) -> Invalid:
    messages = {
        "vixie_field": "Cron does not read the {} like this.",
        "busybox_field": "Crond logs a parse error for the {}.",
        "out_of_range": "Crond has no meaning for a value of the {}.",
    }
    return Invalid(code, messages[code].format(_FIELDS[index]), field=_FIELDS[index])
