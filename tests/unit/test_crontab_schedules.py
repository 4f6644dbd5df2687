"""The schedules of both dialects against models of those crons."""

from __future__ import annotations

import random
import re
from datetime import date, timedelta

import pytest

from qinglong_edge.core import cron, crontab_schedule
from qinglong_edge.core.zone import open_zone
from tests import crond_model
from tests.unit.crontabs import busybox, codes, only, refusal, vixie

UTC = open_zone("UTC")
DAY_MS = 86_400_000
EPOCH = date(1970, 1, 1)
# Two years with a 29 February, and every date on several weekdays.
DATES = [date(2027, 1, 1) + timedelta(days=day) for day in range(731)]
BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


# vixie: schedules ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ("*/60 * * * *", "cron_step"),
        ("60 * * * *", "cron_range"),
        ("0 22-3 * * *", "cron_range"),
        ("5/15 * * * *", "vixie_field"),
        ("0 0 ? * *", "vixie_field"),
        ("0 0 L * *", "vixie_field"),
        ("0 0 * * 5#1", "vixie_field"),
        ("0 0 * * 5L", "vixie_field"),
        ("0 0 * * fri-sun", "vixie_field"),
        ("0 0 15W * *", "cron_unsupported"),
        ("0~30 * * * *", "random_range"),
        ("-0 * * * *", "log_prefix"),
        ("0 0 8 * * *", "six_fields"),
        ("0 0 */2 * 1", "day_rule_differs"),
        ("0 0 1 * */2", "day_rule_differs"),
        ("0 0 *,5 * 1-3/2,*/6", None),
        ("0 0 1-31/2 * 1", None),
    ],
)
def test_a_schedule_that_cannot_be_kept_is_refused(fields: str, code: str | None) -> None:
    plan = vixie(f"{fields} x\n")
    assert [note["code"] for note in plan.refused] == ([] if code is None else [code])


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ("0 7 */1 * 1", "0 7 * * 1"),
        ("0 7 1 * */1", "0 7 1 * *"),
        ("0 7 *,1 * 1-5", "0 7 * * 1-5"),
        ("0 7 */2 * *", "0 7 */2 * *"),
        ("0 7 * * */2", "0 7 * * */2"),
        ("0 7 1 * 1", "0 7 1 * 1"),
        ("0 7 1-31 * 1", "0 7 1-31 * 1"),
        ("0 7 * JAN sun", "0 7 * 1 0"),
        ("07 08 * * 7", "7 8 * * 0"),
    ],
)
def test_a_schedule_keeps_its_meaning(fields: str, kept: str) -> None:
    assert only(vixie(f"{fields} x\n")).expression == cron.parse(kept).text


def vixie_places(text: str, index: int) -> set[int] | None:
    """The values of a field as the manual of Debian's cron has them; None: an error, or none."""
    names = crond_model.NAMES[index]
    low, high = BOUNDS[index]
    places: set[int] = set()

    def place(word: str) -> int:
        if word.lower() in names:
            return names.index(word.lower()) + (1 if index == 3 else 0)
        value = int(word)
        if not low <= value <= high:
            raise ValueError(word)
        return value

    for part in text.split(","):
        span, slash, step = part.partition("/")
        first, dash, last = span.partition("-")
        try:
            ends = (low, high) if span == "*" else (place(first), place(last if dash else first))
            if slash and not dash and span != "*":
                return None
            inside = range(ends[0], ends[1] + 1, int(step) if slash else 1)
        except ValueError:
            return None
        if not inside:
            return None
        places.update(inside)
    return {each % 7 for each in places} if index == 4 else places


def dates_of(expression: str) -> set[date]:
    """The dates of DATES on which an expression fires."""
    parsed = cron.parse(expression)
    after = (DATES[0] - EPOCH).days * DAY_MS - 1
    end = ((DATES[-1] - EPOCH).days + 1) * DAY_MS
    found: set[date] = set()
    while True:
        after = parsed.next_after(after, UTC)
        if after >= end:
            return found
        day = after // DAY_MS
        found.add(EPOCH + timedelta(days=day))
        after = (day + 1) * DAY_MS - 1


def minutes_of(expression: str, day: date) -> set[tuple[int, int]]:
    """Hour and minute of each start of an expression on a day."""
    parsed = cron.parse(expression)
    begin = (day - EPOCH).days * DAY_MS
    found: set[tuple[int, int]] = set()
    after = parsed.next_after(begin - 1, UTC)
    while after < begin + DAY_MS:
        assert after % 60_000 == 0
        found.add(divmod((after - begin) // 60_000, 60))
        after = parsed.next_after(after, UTC)
    return found


def random_fields(chance: random.Random, *, wild: bool) -> list[str]:
    """Five fields; `wild` ones go over their bounds, wrap, and step from single values."""

    def value(index: int) -> str:
        low, high = BOUNDS[index]
        names = crond_model.NAMES[index]
        if names and chance.random() < 0.2:
            return chance.choice([chance.choice(names), chance.choice(names).upper()])
        return str(chance.randint(low, high + 3 if wild and chance.random() < 0.2 else high))

    def item(index: int) -> str:
        kind = chance.random()
        text = "*" if kind < 0.25 else value(index)
        if kind > 0.6:
            text += f"-{value(index)}"
        if chance.random() < 0.3 and (wild or text == "*" or "-" in text):
            text += f"/{chance.randint(0 if wild else 1, 8)}"
        return text

    return [
        "*"
        if chance.random() < 0.35
        else ",".join(item(at) for _ in range(chance.choice((1, 1, 2))))
        for at in range(5)
    ]


def test_vixie_schedules_fire_when_the_model_of_vixie_cron_does() -> None:
    chance = random.Random(11)
    kept = 0
    for _ in range(600):
        fields = random_fields(chance, wild=False)
        places = [vixie_places(field, index) for index, field in enumerate(fields)]
        both = fields[2].startswith("*") or fields[4].startswith("*")
        plan = vixie(" ".join(fields) + " x\n")
        if None in places:
            assert not plan.tasks, fields
            continue
        minutes, hours, days, months, weekdays = (each or set() for each in places)
        wanted = {
            day
            for day in DATES
            if day.month in months
            and (all if both else any)((day.day in days, day.isoweekday() % 7 in weekdays))
        }
        if not plan.tasks:
            allowed = {"cron_step", "cron_never", "day_rule_differs"}
            assert refusal(plan) in allowed, fields
            assert (refusal(plan) == "cron_never") <= (not wanted), fields
            continue
        kept += 1
        expression = only(plan).expression or ""
        assert dates_of(expression) == wanted, fields
        if wanted:
            day = chance.choice(sorted(wanted))
            assert minutes_of(expression, day) == {(h, m) for h in hours for m in minutes}, fields
    assert kept > 150


# busybox: schedules -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ("0 0 */2 * *", "0 0 2,4,6,8,10,12,14,16,18,20,22,24,26,28,30 * *"),
        ("0 0 */5 * *", "0 0 5,10,15,20,25,30 * *"),
        ("5/15 * * * *", "5 * * * *"),
        ("0 22-3 * * *", "0 0-3,22,23 * * *"),
        ("50-10/10 * * * *", "0,10,50 * * * *"),
        ("0 0 1 * 0-6", "0 0 1 * *"),
        ("0 0 0-31 * 1", "0 0 * * 1"),
        ("0 0 1-31 * 1", "0 0 * * *"),
        ("0 0 1,15 * fri", "0 0 1,15 * 5"),
        ("0 0 0 * 1", "0 0 * * 1"),
        ("0 0 * * fri-mon", "0 0 * * 0,1,5,6"),
        ("0 0 * nov-FEB *", "0 0 * 1,2,11,12 *"),
        ("*/7 */6 * * *", "*/7 */6 * * *"),
        ("*/60 * * * *", "0 * * * *"),
        ("*/0 * * * *", "0 * * * *"),
        ("0-59 0-23 * 1-12 *", "* * * * *"),
        ("1,2,3,5 * * * *", "1-3,5 * * * *"),
    ],
)
def test_a_field_is_written_out_with_the_values_crond_marks(fields: str, kept: str) -> None:
    plan = busybox(f"{fields} x\n")
    assert only(plan).expression == cron.parse(kept).text
    assert not plan.warnings


@pytest.mark.parametrize(
    ("fields", "kept", "warnings"),
    [
        ("0 5 * * 7", "0 5 * * *", 1),
        ("* * * * 8", "* * * * *", 1),
        ("99 * * * *", "* * * * *", 1),
        ("99 24 * * *", "* * * * *", 2),
        ("65-5 * * * *", "5 * * * *", 1),
        ("0 0 * 13 *", "0 0 * * *", 1),
        ("0 0 32 * 1", "0 0 * * 1", 1),
        ("61/5,3 * * * *", "1,6,11,16,21,26,31,36,41,46,51,56 * * * *", 1),
    ],
)
def test_a_value_out_of_range_is_kept_as_crond_runs_it(
    fields: str, kept: str, warnings: int
) -> None:
    plan = busybox(f"{fields} x\n")
    assert only(plan).expression == cron.parse(kept).text
    assert codes(plan.warnings) == [(1, "out_of_range")] * warnings


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ("0 0 ? * *", "busybox_field"),
        ("0 0 * * monday", "busybox_field"),
        ("5- * * * *", "busybox_field"),
        ("*/ * * * *", "busybox_field"),
        ("*/-5 * * * *", "busybox_field"),
        ("1-2-3 * * * *", "busybox_field"),
        ("1,,2 * * * *", "busybox_field"),
        ("jan * * * *", "busybox_field"),
        ("0 0 * mon *", "busybox_field"),
        ("１ * * * *", "busybox_field"),
        ("12345678901 * * * *", "busybox_field"),
        ("0 0 * 0 *", "out_of_range"),
        ("0 0 * 0-5 *", "out_of_range"),
        ("0 0 0 * *", "never_runs"),
        ("0 0 30 2 *", "cron_never"),
    ],
)
def test_a_field_without_a_certain_meaning_is_refused(fields: str, code: str) -> None:
    assert refusal(busybox(f"{fields} x\n")) == code


def test_busybox_schedules_fire_when_the_model_of_crond_does() -> None:
    chance = random.Random(12)
    kept = 0
    for _ in range(600):
        fields = random_fields(chance, wild=True)
        plan = busybox(" ".join(fields) + " x\n")
        if plan.refused:
            assert refused_with_reason(fields, refusal(plan)), fields
            continue
        marks = [crond_model.field(field, index)[0] for index, field in enumerate(fields)]
        wanted = {
            day
            for day in DATES
            if crond_model.starts(marks, day.month, day.day, day.isoweekday() % 7)
        }
        expression = only(plan).expression or ""
        assert dates_of(expression) == wanted, fields
        kept += 1
        if wanted:
            day = chance.choice(sorted(wanted))
            times = {(h, m) for h in range(24) for m in range(60) if marks[1][h] and marks[0][m]}
            assert minutes_of(expression, day) == times, fields
    assert kept > 400


def refused_with_reason(fields: list[str], code: int | str) -> bool:
    """Whether the model of crond has the reason for a refusal."""
    if code == "out_of_range":
        return any(re.search(r"(?:^|-)0(?:-|/|$)", part) for part in fields[3].split(","))
    marks = [crond_model.field(field, index)[0] for index, field in enumerate(fields)]
    return code in {"never_runs", "cron_never"} and not any(
        crond_model.starts(marks, day.month, day.day, day.isoweekday() % 7) for day in DATES
    )


def test_a_plain_schedule_means_the_same_in_both_dialects() -> None:
    for fields in ("*/5 * * * *", "0 3 * * *", "30 4 1,15 * 5", "0 0 1 1 *", "15 */6 * * 1-5"):
        assert only(vixie(f"{fields} x\n")).expression == only(busybox(f"{fields} x\n")).expression


def test_schedules_are_usable_without_a_crontab() -> None:
    assert crontab_schedule.vixie(["0", "8", "*", "*", "*"]) == cron.parse("0 8 * * *").text
    assert crontab_schedule.busybox(["0", "25", "*", "*", "*"])[1] == ["hour"]
    assert crontab_schedule.macro("@reboot") is None
