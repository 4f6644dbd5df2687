"""Cron: the dialect, every known answer, and what a change of the clock does."""

from __future__ import annotations

import json
import locale
from pathlib import Path

import pytest

from qinglong_edge.core.cron import parse
from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.limits import CRON_TEXT_CHARACTERS_MAX
from tests.unit import zones
from tests.unit.zones import iso, ms

VECTORS = json.loads(
    (Path(__file__).parents[1] / "vectors" / "cron.json").read_text(encoding="utf-8")
)
EXPRESSIONS = sorted({vector["expression"] for vector in VECTORS["next"] + VECTORS["accept"]})
NEW_YORK = "America/New_York"


def upcoming(expression: str, zone: str, after: str, count: int) -> list[str]:
    """The next occurrences as ISO times."""
    cron, at, found = parse(expression), ms(after), []
    for _ in range(count):
        at = cron.next_after(at, zones.zone(zone))
        found.append(iso(at))
    return found


def between(expression: str, zone: str, first: str, last: str) -> list[str]:
    """Every occurrence later than `first` and not later than `last`."""
    cron, at, end, found = parse(expression), ms(first), ms(last), []
    while (at := cron.next_after(at, zones.zone(zone))) <= end:
        found.append(iso(at))
    return found


def code_of(expression: str) -> str:
    """The code of the refusal."""
    with pytest.raises(Invalid) as caught:
        parse(expression)
    return caught.value.code


# Known answers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "vector", VECTORS["next"], ids=lambda v: f"{v['expression']} {v['zone']} {v['after']}"
)
def test_every_known_occurrence_is_found(vector: dict[str, object]) -> None:
    expected = vector["next"]
    assert isinstance(expected, list)
    arguments = (str(vector["expression"]), str(vector["zone"]), str(vector["after"]))
    assert upcoming(*arguments, len(expected)) == expected


@pytest.mark.parametrize("vector", VECTORS["reject"], ids=lambda v: ascii(v["expression"])[:40])
def test_every_wrong_expression_has_its_code(vector: dict[str, str]) -> None:
    assert code_of(vector["expression"]) == vector["code"]


@pytest.mark.parametrize("vector", VECTORS["accept"], ids=lambda v: v["expression"])
def test_every_right_expression_has_its_canonical_text(vector: dict[str, str]) -> None:
    cron = parse(vector["expression"])
    assert cron.text == vector["canonical"]
    assert parse(cron.text) == cron


@pytest.mark.parametrize(
    ("expression", "facts"),
    [
        ("60 * * * *", {"field": "minute"}),
        ("x * * * * *", {"field": "second"}),
        ("* 5- * * *", {"field": "hour"}),
        ("* * 32 * *", {"field": "day_of_month"}),
        ("* * * */12 *", {"field": "month"}),
        ("* * * * 5#6", {"field": "day_of_week"}),
        ("* * 15W * *", {"what": "W"}),
        ("H * * * *", {"what": "H"}),
        ("* * L-2 * *", {"what": "L-n"}),
        ("* * * * L", {"what": "L"}),
        ("~ * * * *", {"what": "~"}),
        ("* * * * *\n", {"what": "newline"}),
        ("* * * * * # x", {"what": "comment"}),
        ("CRON_TZ=UTC * * * * *", {"what": "CRON_TZ"}),
        ("* * *", {"count": 3}),
        ("* " * 600, {"maximum": CRON_TEXT_CHARACTERS_MAX}),
        ("@reboot", {}),
        ("", {}),
        ("0 0 30 2 *", {}),
    ],
)
def test_a_refusal_says_where_it_is_and_never_what_was_written(
    expression: str, facts: dict[str, str | int]
) -> None:
    with pytest.raises(Invalid) as caught:
        parse(expression)
    assert caught.value.facts == facts
    assert caught.value.exit_status == 2


def test_the_longest_text_is_taken_and_one_more_is_not() -> None:
    text = "* * * * " + "1," * 507
    longest = text + "1" * (CRON_TEXT_CHARACTERS_MAX - len(text) - 1)
    assert code_of(longest + "11") == "cron_too_long"
    padded = "* * * * *".ljust(CRON_TEXT_CHARACTERS_MAX)
    assert parse(padded).text == "* * * * *"
    assert code_of(padded + " ") == "cron_too_long"


@pytest.mark.parametrize(
    ("expression", "size"),
    [
        ("{} * * * * *", 60),
        ("{} * * * *", 60),
        ("0 {} * * *", 24),
        ("0 0 {} * *", 31),
        ("0 0 1 {} *", 12),
        ("0 0 * * {}", 7),
    ],
)
def test_a_step_is_one_to_the_size_of_its_field_less_one(expression: str, size: int) -> None:
    low = 1 if size in (12, 31) else 0
    for form in ("*/{}", f"{low}/{{}}", f"{low}-{low + 5}/{{}}"):
        for step in (1, size - 1):
            assert parse(expression.format(form.format(step)))
        for step in (0, size, size + 1, 10**20):
            assert code_of(expression.format(form.format(step))) == "cron_step"


def test_a_step_from_a_weekday_runs_through_sunday() -> None:
    assert upcoming("0 0 * * 1/2", "UTC", "2026-01-04T00:00:00Z", 4) == [
        "2026-01-05T00:00:00Z",
        "2026-01-07T00:00:00Z",
        "2026-01-09T00:00:00Z",
        "2026-01-11T00:00:00Z",
    ]


def test_both_day_fields_restricted_are_a_union() -> None:
    """`0 12 1-7 * MON` is not the first Monday: it is days 1 to 7 and every Monday."""
    found = between("0 12 1-7 * MON", "UTC", "2026-06-01T00:00:00Z", "2026-06-30T23:59:00Z")
    assert [int(text[8:10]) for text in found] == [1, 2, 3, 4, 5, 6, 7, 8, 15, 22, 29]


@pytest.mark.parametrize(
    ("expression", "days"),
    [
        ("0 0 */2 * 6", 18),  # 16 odd days, and the even Saturdays 10 and 24
        ("0 0 1 * 0-6", 31),  # seven weekdays written out are a restriction
        ("0 0 1 * *", 1),
        ("0 0 1 * ?", 1),
        ("0 0 * * 6", 5),
        ("0 0 ? * 6", 5),
        ("0 0 */1 * 6", 31),
        ("0 0 *,5 * 6", 31),
    ],
)
def test_a_day_field_is_free_only_as_one_star_or_question_mark(expression: str, days: int) -> None:
    found = between(expression, "UTC", "2025-12-31T23:00:00Z", "2026-01-31T23:00:00Z")
    assert len(found) == days


def test_last_and_numbered_weekdays_join_a_list() -> None:
    found = between("0 0 * * 1#2,5L,0", "UTC", "2026-01-31T23:00:00Z", "2026-02-28T23:00:00Z")
    assert [int(text[8:10]) for text in found] == [1, 8, 9, 15, 22, 27]
    found = between("0 0 L,15 * *", "UTC", "2027-12-31T23:00:00Z", "2028-03-31T23:00:00Z")
    assert [text[5:10] for text in found] == ["01-15", "01-31", "02-15", "02-29", "03-15", "03-31"]


@pytest.mark.parametrize(
    "clock", ["2025-01-31T23:59:59Z", "2024-02-29T12:00:00Z", "2025-04-30T00:00:00Z"]
)
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_no_expression_fails_at_the_end_of_a_month(expression: str, clock: str) -> None:
    for key in ("UTC", NEW_YORK, "Asia/Shanghai", "Pacific/Apia"):
        assert parse(expression).next_after(ms(clock), zones.zone(key)) > ms(clock)


def test_a_day_of_the_current_month_can_be_named() -> None:
    assert upcoming("0 12 15 5 *", "UTC", "2026-05-14T10:00:00Z", 1) == ["2026-05-15T12:00:00Z"]


def test_answers_do_not_depend_on_the_process() -> None:
    cases = [
        (vector["expression"], vector["zone"], vector["after"], vector["next"])
        for vector in VECTORS["next"]
    ]
    for name in ("Australia/Lord_Howe", "EST5EDT,M3.2.0,M11.1.0"):
        with zones.process_zone(name):
            for expression, zone, after, expected in cases:
                assert upcoming(expression, zone, after, len(expected)) == expected
    before = locale.setlocale(locale.LC_ALL)
    try:
        locale.setlocale(locale.LC_ALL, "C.UTF-8")
        assert parse("0 0 * JAN SUN").text == "0 0 * 1 0"
    finally:
        locale.setlocale(locale.LC_ALL, before)


# Clock changes ---------------------------------------------------------------------------------


def test_an_every_minute_schedule_goes_through_a_change_minute_by_minute() -> None:
    cron, opened = parse("* * * * *"), zones.zone("America/Los_Angeles")
    assert iso(cron.next_after(ms("2025-11-02T09:00:00Z"), opened)) == "2025-11-02T09:01:00Z"
    found = between("* * * * *", NEW_YORK, "2014-11-02T05:00:00Z", "2014-11-02T07:00:00Z")
    assert len(found) == 120
    found = between("* * * * *", NEW_YORK, "2025-03-09T06:00:00Z", "2025-03-09T08:00:00Z")
    assert len(found) == 120


def test_an_every_second_schedule_has_no_hole_in_the_repeated_hour() -> None:
    found = between("* * * * * *", "Europe/Vienna", "2025-10-25T23:59:00Z", "2025-10-26T01:02:00Z")
    assert len(found) == 63 * 60


def test_an_hourly_schedule_fires_once_an_hour_across_the_gap() -> None:
    los_angeles = "America/Los_Angeles"
    found = between("0 * * * *", los_angeles, "2021-03-14T08:30:00Z", "2021-03-14T12:30:00Z")
    assert found == [f"2021-03-14T{hour:02}:00:00Z" for hour in (9, 10, 11, 12)]
    found = between("0 2 * * *", los_angeles, "2025-03-09T00:00:00Z", "2025-03-10T08:00:00Z")
    assert found == ["2025-03-09T10:00:00Z"]


@pytest.mark.parametrize("minute", [1, 30, 59])
def test_a_fixed_time_in_the_gap_fires_once_that_day(minute: int) -> None:
    found = between(f"{minute} 2 * * *", NEW_YORK, "2025-03-09T05:00:00Z", "2025-03-10T05:00:00Z")
    assert found == [f"2025-03-09T07:{minute:02}:00Z"]


@pytest.mark.parametrize("minute", [0, 30, 59])
def test_a_fixed_time_in_the_repeated_hour_fires_in_the_first_pass_only(minute: int) -> None:
    found = between(f"{minute} 1 * * *", NEW_YORK, "2025-11-02T04:00:00Z", "2025-11-03T05:00:00Z")
    assert found == [f"2025-11-02T05:{minute:02}:00Z"]


def test_a_list_of_fixed_hours_keeps_order_where_the_gap_pushes_one_past_the_next() -> None:
    """02:45 becomes 03:45 and so comes after 03:00, which is not lost for it."""
    found = between("0,45 2,3 * * *", NEW_YORK, "2025-03-09T05:00:00Z", "2025-03-10T04:00:00Z")
    assert found == ["2025-03-09T07:00:00Z", "2025-03-09T07:45:00Z"]
    found = between("50 1-2 * * *", NEW_YORK, "2025-03-09T05:00:00Z", "2025-03-10T04:00:00Z")
    assert found == ["2025-03-09T06:50:00Z", "2025-03-09T07:50:00Z"]


def test_a_shifted_time_comes_after_a_real_one_that_it_passes() -> None:
    """A gap of half an hour from 02:00: 02:15 becomes 02:45, after the real 02:35."""
    found = between(
        "15,35 2 * * *", "Australia/Lord_Howe", "2025-10-04T14:00:00Z", "2025-10-05T12:00:00Z"
    )
    assert found == ["2025-10-04T15:35:00Z", "2025-10-04T15:45:00Z"]


def test_a_shifted_time_is_found_from_within_the_hour_after_the_gap() -> None:
    assert upcoming("30 2 * * *", NEW_YORK, "2025-03-09T07:10:00Z", 1) == ["2025-03-09T07:30:00Z"]
    assert upcoming("30 2 9 3 *", NEW_YORK, "2025-03-09T07:30:00Z", 1) == ["2026-03-09T06:30:00Z"]


def test_a_date_in_the_repeated_hour_is_found_from_months_away() -> None:
    assert upcoming("30 1 2 11 *", NEW_YORK, "2025-01-15T00:00:00Z", 1) == ["2025-11-02T05:30:00Z"]


def test_a_date_soon_after_a_change_is_found_in_the_second_before_it() -> None:
    """Read with the offset before the change, the date was already over."""
    found = upcoming("0 0 1 11 *", "Antarctica/Troll", "2005-10-31T23:59:59.999Z", 2)
    assert found == ["2005-11-01T00:00:00Z", "2006-11-01T00:00:00Z"]


def test_the_second_pass_is_found_though_the_next_match_is_a_year_away() -> None:
    """Sao Paulo put its clock back from midnight to 23:00; `*/23` is a star of hours 0 and 23."""
    found = between(
        "30 */23 17 2 *", "America/Sao_Paulo", "2018-02-18T01:00:00Z", "2019-02-17T02:00:00Z"
    )
    assert found == ["2018-02-18T01:30:00Z", "2018-02-18T02:30:00Z"]


def test_the_zone_of_the_trigger_decides_and_not_the_zone_of_the_host() -> None:
    with zones.process_zone("Europe/London"):
        found = upcoming("30 1 * * *", "UTC", "2022-10-30T00:00:00Z", 2)
    assert found == ["2022-10-30T01:30:00Z", "2022-10-31T01:30:00Z"]


def test_a_day_that_the_calendar_skipped_is_not_run_twice() -> None:
    """Samoa had no 30 December 2011: noon of that day and of the next are one instant."""
    found = between("0 12 * * *", "Pacific/Apia", "2011-12-28T12:00:00Z", "2011-12-31T23:00:00Z")
    noons = ["2011-12-28T22", "2011-12-29T22", "2011-12-30T22", "2011-12-31T22"]
    assert found == [f"{noon}:00:00Z" for noon in noons]
