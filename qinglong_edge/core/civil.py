"""Civil dates as whole numbers: days since 1970-01-01 in the proleptic Gregorian calendar.

Owns the arithmetic of cron, and of writing a moment. No clock, no zone, no limits: any whole number
is a day, and the year 10000 needs no exception. Weekdays count from Sunday = 0, as cron does.
"""

from __future__ import annotations

DAY_S = 86_400
_EPOCH_DAYS = 719_162  # 0001-01-01 to 1970-01-01
_CYCLE_YEARS = 400
_CYCLE_DAYS = 146_097
_DAYS_BEFORE_MONTH = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365)


def is_leap(year: int) -> bool:
    """Whether the year has a 29 February."""
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def year_start(year: int) -> int:
    """The day number of 1 January."""
    past = year - 1
    return past * 365 + past // 4 - past // 100 + past // 400 - _EPOCH_DAYS


def month_start(year: int, month: int) -> int:
    """The day number of the first day of a month (1-12)."""
    return year_start(year) + _DAYS_BEFORE_MONTH[month - 1] + (month > 2 and is_leap(year))


def month_days(year: int, month: int) -> int:
    """The number of days of a month (1-12)."""
    length = _DAYS_BEFORE_MONTH[month] - _DAYS_BEFORE_MONTH[month - 1]
    return length + (month == 2 and is_leap(year))


def civil_from_days(days: int) -> tuple[int, int, int]:
    """Year, month (1-12) and day (1-31) of a day number."""
    year = 1970 + days * _CYCLE_YEARS // _CYCLE_DAYS  # off by one at most
    if days < year_start(year):
        year -= 1
    elif days >= year_start(year + 1):
        year += 1
    of_year = days - year_start(year)
    month = min(of_year // 29, 11) + 1  # never too early
    while days < month_start(year, month):
        month -= 1
    return year, month, days - month_start(year, month) + 1


def weekday(days: int) -> int:
    """0 for Sunday to 6 for Saturday; 1970-01-01 was a Thursday."""
    return (days + 4) % 7


def written(second: int, offset_s: int) -> str:
    """Seconds since 1970-01-01 UTC as people write them in a zone with that offset.

    The C library's own are refused from 2038 on where its times have 32 bits.
    """
    days, clock = divmod(second + offset_s, DAY_S)
    year, month, day = civil_from_days(days)
    hours, minutes = divmod(abs(offset_s) // 60, 60)
    return (
        f"{year:04d}-{month:02d}-{day:02d} {clock // 3600:02d}:{clock // 60 % 60:02d}:"
        f"{clock % 60:02d}{'-' if offset_s < 0 else '+'}{hours:02d}{minutes:02d}"
    )
