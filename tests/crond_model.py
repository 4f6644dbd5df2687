"""What busybox's crond does with five fields, told step by step as its own code goes about it.

A second, slower telling of `core/crontab_schedule`: a cursor over the characters and a table of
marks, where the program under test works with whole items and sets. A system test holds this model
against a real crond, a unit test holds the program against this model.
"""

from __future__ import annotations

SIZES = (60, 24, 32, 12, 7)  # minutes, hours, days with an unused place 0, months, weekdays
NAMES = (
    (),
    (),
    (),
    ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    ("sun", "mon", "tue", "wed", "thu", "fri", "sat"),
)
_PATIENCE = 1024


class StrayWriteError(Exception):
    """Crond would write before the beginning of its table."""


def field(text: str, index: int) -> tuple[list[bool], bool]:
    """The marks of a field and whether crond logs a parse error for it."""
    size, names = SIZES[index], NAMES[index]
    shift = -1 if index == 3 else 0
    marks = [False] * size
    at = 0
    while True:
        begin, end, known = -1, -1, True
        while known:
            known = False
            if text[at : at + 1] == "*":
                begin, end, known, at = 0, size - 1, True, at + 1
            elif text[at : at + 1].isdigit():
                stop = at
                while text[stop : stop + 1].isdigit():
                    stop += 1
                value, at, known = int(text[at:stop]) + shift, stop, True
                begin, end = (value, end) if begin < 0 else (begin, value)
            elif text[at : at + 3].lower() in names:
                value, at, known = names.index(text[at : at + 3].lower()), at + 3, True
                begin, end = (value, end) if begin < 0 else (begin, value)
            if not known:
                return marks, True
            if text[at : at + 1] != "-" or end >= 0:
                break
            at += 1
        if begin < 0:
            raise StrayWriteError(text)
        if end < 0:
            end = begin
        step = 1
        if text[at : at + 1] == "/":
            stop = at + 1
            while text[stop : stop + 1].isdigit():
                stop += 1
            step, at = int(text[at + 1 : stop] or 0), stop
        place, until_mark = begin % size, 1
        for _ in range(_PATIENCE):
            until_mark -= 1
            if until_mark == 0:
                marks[place] = True
                until_mark = step
            if place == end:
                break
            place = (place + 1) % size
        if end >= size:
            return marks, True
        if text[at : at + 1] != ",":
            return marks, at < len(text)
        at += 1


def starts(marks: list[list[bool]], month: int, day: int, weekday: int) -> bool:
    """Whether jobs with these marks start on a date: month 1-12, weekday 0 = Sunday."""
    days, weekdays = list(marks[2]), list(marks[4])
    days_used, weekdays_used = not all(days), not all(weekdays)
    if weekdays_used and not days_used:
        days = [False] * len(days)
    if days_used and not weekdays_used:
        weekdays = [False] * len(weekdays)
    return marks[3][month - 1] and (days[day] or weekdays[weekday])
