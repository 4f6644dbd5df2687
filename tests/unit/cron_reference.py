"""The meaning of a cron expression, written a second time: slow, plain, and by another road.

Schedules are drawn as sets of numbers together with a text that means them, so that nothing here
parses; occurrences are found by trying every minute or every day with the interpreter's dates.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass

from hypothesis import strategies as st

MINUTE = dt.timedelta(minutes=1)
DAY = dt.timedelta(days=1)
EPOCH = dt.datetime(1970, 1, 1)


@dataclass(frozen=True)
class Part:
    """One field: its text and the numbers it means."""

    text: str
    values: frozenset[int]

    def __repr__(self) -> str:
        return repr(self.text)


@dataclass(frozen=True)
class Schedule:
    """Five fields; `matches_day` is the rule of the two day fields."""

    minute: Part
    hour: Part
    day: Part
    month: Part
    weekday: Part

    @property
    def text(self) -> str:
        """The expression."""
        parts = (self.minute, self.hour, self.day, self.month, self.weekday)
        return " ".join(part.text for part in parts)

    def matches_day(self, date: dt.date) -> bool:
        """Whether the date is one of the schedule's."""
        if date.month not in self.month.values:
            return False
        by_date = date.day in self.day.values
        by_week = date.isoweekday() % 7 in self.weekday.values
        if "*" in (self.day.text, self.weekday.text):
            return by_date and by_week
        return by_date or by_week

    def matches(self, local: dt.datetime) -> bool:
        """Whether the local minute is one of the schedule's."""
        return (
            local.minute in self.minute.values
            and local.hour in self.hour.values
            and self.matches_day(local.date())
        )

    def labels(self, first: dt.date, days: int) -> Iterator[dt.datetime]:
        """Every matching local minute of some days, in order."""
        for date in (first + DAY * count for count in range(days)):
            if self.matches_day(date):
                for hour in sorted(self.hour.values):
                    for minute in sorted(self.minute.values):
                        yield dt.datetime.combine(date, dt.time(hour, minute))


def next_of(schedule: Schedule, after_s: int, zone: dt.tzinfo, days: int) -> int | None:
    """The first occurrence after an instant, both seconds, if it comes within some days."""
    local = dt.datetime.fromtimestamp(after_s, zone)
    if schedule.hour.text.startswith("*"):
        first = after_s // 60 * 60 + 60
        for second in range(first, first + days * 86_400, 60):
            if schedule.matches(dt.datetime.fromtimestamp(second, zone)):
                return second
        return None
    best: int | None = None
    for label in schedule.labels(local.date() - 2 * DAY, days + 4):
        if best is not None and (label - EPOCH).total_seconds() > best + 3 * 86_400:
            break
        second = int(label.replace(tzinfo=zone, fold=0).timestamp())
        if second > after_s and (best is None or second < best):
            best = second
    return best


def next_in_utc(schedule: Schedule, after_s: int, days: int) -> int | None:
    """The same in UTC, day by day, so that it can look years ahead."""
    start = (EPOCH + dt.timedelta(seconds=after_s)).date()
    for count in range(days):
        for label in schedule.labels(start + DAY * count, 1):
            second = int((label - EPOCH).total_seconds())
            if second > after_s:
                return second
    return None


@st.composite
def parts(draw: st.DrawFn, low: int, high: int, step_max: int) -> Part:
    """A field over `low` to `high`; half of the time a single star."""
    if draw(st.booleans()):
        return Part("*", frozenset(range(low, high + 1)))
    items = draw(st.lists(_items(low, high, step_max), min_size=1, max_size=3))
    return Part(
        ",".join(item.text for item in items), frozenset().union(*(item.values for item in items))
    )


@st.composite
def _items(draw: st.DrawFn, low: int, high: int, step_max: int) -> Part:
    first = draw(st.integers(low, high))
    last = draw(st.integers(first, high))
    step = draw(st.integers(1, step_max))
    return draw(
        st.sampled_from(
            [
                Part(str(first), frozenset({first})),
                Part(f"{first}-{last}", frozenset(range(first, last + 1))),
                Part(f"{first}-{last}/{step}", frozenset(range(first, last + 1, step))),
                Part(f"{first}/{step}", frozenset(range(first, high + 1, step))),
                Part(f"*/{step}", frozenset(range(low, high + 1, step))),
            ]
        )
    )


def _as_weekday(part: Part) -> Part:
    return Part(part.text, frozenset(value % 7 for value in part.values))


MINUTES, HOURS = parts(0, 59, 59), parts(0, 23, 23)
DAYS, MONTHS = parts(1, 31, 30), parts(1, 12, 11)
WEEKDAYS = parts(0, 7, 6).map(_as_weekday) | st.sampled_from(
    [
        Part("5-7", frozenset({5, 6, 0})),
        Part("FRI-SUN", frozenset({5, 6, 0})),
        Part("sun-mon", frozenset({0, 1})),
        Part("7", frozenset({0})),
        Part("MON,thu", frozenset({1, 4})),
    ]
)
SCHEDULES = st.builds(Schedule, MINUTES, HOURS, DAYS, MONTHS, WEEKDAYS)
# Clocks change at night.
NIGHT = st.sampled_from(
    [
        Part("2", frozenset({2})),
        Part("1,3", frozenset({1, 3})),
        Part("0-3", frozenset({0, 1, 2, 3})),
        Part("*/23", frozenset({0, 23})),
    ]
)
# In every month, and on any day half of the time: an occurrence comes soon.
DENSE = st.builds(
    Schedule,
    MINUTES,
    HOURS | NIGHT,
    st.just(Part("*", frozenset(range(1, 32)))) | DAYS,
    st.just(Part("*", frozenset(range(1, 13)))),
    WEEKDAYS,
)
