"""Cron: the rules that hold for every expression, zone and instant, and the work they may cost."""

from __future__ import annotations

import functools
import itertools

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from qinglong_edge.core.civil import year_start
from qinglong_edge.core.cron import Cron, parse
from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.zone import Zone
from tests.support import cpu_s, unit_s
from tests.unit import cron_reference as reference
from tests.unit import zones
from tests.unit.test_cron import EXPRESSIONS, NEW_YORK
from tests.unit.zones import FUZZ, iso, ms

SLOW = settings(FUZZ, max_examples=FUZZ.max_examples // 2)
MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 86_400_000
Y2000, Y2038 = year_start(2000) * 86_400, year_start(2038) * 86_400
# Zones whose changes are unlike each other: an hour, daylight in winter, half an hour, two hours,
# at midnight, around Ramadan, a day skipped, before midnight, several a year, once, never.
DIVERSE = (
    NEW_YORK,
    "Europe/Dublin",
    "Australia/Lord_Howe",
    "Antarctica/Troll",
    "America/Sao_Paulo",
    "Africa/Casablanca",
    "Pacific/Apia",
    "America/Nuuk",
    "Asia/Gaza",
    "America/Caracas",
    "Asia/Kathmandu",
    "NZST-12NZDT,M9.5.0,M4.1.0/3",
    "UTC",
)
INSTANTS = st.integers(0, Y2038 * 1000)


@functools.cache
def changes(key: str) -> list[tuple[int, int]]:
    """Every change of offset from 2000 to 2037."""
    return zones.changes(zones.zone(key), Y2000, Y2038)


@st.composite
def moments(draw: st.DrawFn) -> tuple[str, int]:
    """A zone and an instant in it, mostly within two days of a change of its clock."""
    key = draw(st.sampled_from(DIVERSE))
    found = changes(key)
    if not found or draw(st.integers(0, 9)) == 0:
        return key, draw(INSTANTS)
    change = draw(st.sampled_from(found))[0]
    near = draw(st.sampled_from([2 * HOUR_MS, 2 * DAY_MS]))
    return key, change * 1000 + draw(st.integers(-near, near))


def crons(texts: st.SearchStrategy[str]) -> st.SearchStrategy[Cron]:
    """Parsed expressions; those that name impossible dates only are left out."""

    def try_parse(text: str) -> Cron | None:
        try:
            return parse(text)
        except Invalid as refused:
            if refused.code != "cron_never":
                raise
            return None

    return texts.map(try_parse).filter(bool).map(lambda cron: cron or parse("* * * * *"))


ANY = crons(reference.SCHEDULES.map(lambda schedule: schedule.text) | st.sampled_from(EXPRESSIONS))


@FUZZ
@given(ANY, moments())
def test_the_next_occurrence_is_always_later(cron: Cron, moment: tuple[str, int]) -> None:
    key, after_ms = moment
    assert cron.next_after(after_ms, zones.zone(key)) > after_ms


@FUZZ
@given(ANY, moments(), st.integers(0, 2 * DAY_MS))
def test_a_later_question_never_has_an_earlier_answer(
    cron: Cron, moment: tuple[str, int], later_ms: int
) -> None:
    key, after_ms = moment
    first = cron.next_after(after_ms, zones.zone(key))
    second = cron.next_after(after_ms + later_ms, zones.zone(key))
    assert first <= second
    assert second == first or first <= after_ms + later_ms


@FUZZ
@given(ANY, moments())
def test_between_now_and_the_next_occurrence_the_answer_stays(
    cron: Cron, moment: tuple[str, int]
) -> None:
    key, after_ms = moment
    found = cron.next_after(after_ms, zones.zone(key))
    assert cron.next_after((after_ms + found) // 2, zones.zone(key)) == found
    assert cron.next_after(found - 1, zones.zone(key)) == found


@SLOW
@given(reference.SCHEDULES, INSTANTS)
def test_the_answer_in_utc_is_that_of_a_search_day_by_day(
    schedule: reference.Schedule, after_ms: int
) -> None:
    expected = reference.next_in_utc(schedule, after_ms // 1000, 8 * 366)
    if expected is None:
        assume(code_or_none(schedule.text) is None)
        found = parse(schedule.text).next_after(after_ms, zones.zone("UTC"))
        assert found > after_ms + 8 * 365 * DAY_MS
    else:
        assert parse(schedule.text).next_after(after_ms, zones.zone("UTC")) == expected * 1000


def code_or_none(expression: str) -> str | None:
    """The code of the refusal, if it is refused."""
    try:
        parse(expression)
    except Invalid as refused:
        return refused.code
    return None


@SLOW
@given(reference.DENSE, moments())
def test_the_answer_in_a_zone_is_that_of_a_search_minute_by_minute(
    schedule: reference.Schedule, moment: tuple[str, int]
) -> None:
    key, after_ms = moment
    assume(code_or_none(schedule.text) is None)
    found = parse(schedule.text).next_after(after_ms, zones.zone(key))
    expected = reference.next_of(schedule, after_ms // 1000, zones.other(key), 6)
    if expected is None or found > after_ms + 6 * DAY_MS:
        assert found > after_ms + 6 * DAY_MS - HOUR_MS * 25
    else:
        assert iso(found) == iso(expected * 1000)


@FUZZ
@given(ANY)
def test_canonical_text_parses_to_an_equal_value(cron: Cron) -> None:
    again = parse(cron.text)
    assert again == cron
    assert again.text == cron.text
    assert len(cron.text.split(" ")) in (5, 6)


@settings(FUZZ, max_examples=FUZZ.max_examples * 2)
@given(
    st.text(max_size=30)
    | st.text(alphabet="*/,-?#LWH@0123456789 \tSUNMOJAFEB=~", max_size=30)
    | st.lists(
        st.text(alphabet="*/,-?#LW0123456789", min_size=1, max_size=5), min_size=5, max_size=6
    ).map(" ".join)
)
def test_any_text_is_an_expression_or_refused_with_a_code(text: str) -> None:
    code = code_or_none(text)
    assert code is None or code.startswith("cron_")


@FUZZ
@given(st.binary(max_size=40))
def test_any_bytes_are_an_expression_or_refused_with_a_code(data: bytes) -> None:
    code = code_or_none(data.decode("utf-8", "surrogateescape"))
    assert code is None or code.startswith("cron_")


# Every zone ------------------------------------------------------------------------------------


def fires(cron: Cron, zone: Zone, first_ms: int, last_ms: int) -> list[int]:
    """Occurrences from `first_ms` until before `last_ms`."""
    found, at = [], first_ms - 1
    while (at := cron.next_after(at, zone)) < last_ms:
        found.append(at)
    return found


@pytest.mark.parametrize("time_of_day", ["30 2", "0 0", "30 23", "0 12"])
def test_a_daily_time_fires_once_for_every_calendar_day(time_of_day: str) -> None:
    """Around every third change of a sample of zones; a skipped day has no own fire."""
    cron = parse(f"{time_of_day} * * *")
    minute, hour = map(int, time_of_day.split())
    count = 0
    for key in {*zones.sample(), *DIVERSE}:
        zone = zones.zone(key)
        for change, shift in changes(key)[::3]:
            # Labels of five days around the change, each read once, with the offset before it.
            before = zone.span_at(change - 1)[2]
            day = (change + before) // 86_400
            labels = [(day + at) * 86_400 + hour * 3600 + minute * 60 for at in range(-2, 3)]
            moved = [
                label - (before if label < change + max(before, before + shift) else before + shift)
                for label in labels
            ]
            if any(zone.span_at(at)[2] not in (before, before + shift) for at in moved):
                continue  # another change within two days
            expected = sorted({at * 1000 for at in moved})
            assert fires(cron, zone, expected[0], expected[-1] + 1) == expected, (key, change)
            assert len(expected) == 5 or abs(shift) >= 86_400
            count += 1
    assert count > 100


@pytest.mark.parametrize("step", [1, 5, 15, 20, 30])
def test_every_so_many_minutes_keeps_its_rhythm_across_every_change(step: int) -> None:
    cron = parse(f"*/{step} * * * *")
    for key in DIVERSE:
        zone = zones.zone(key)
        for change, shift in changes(key)[::5]:
            if shift % (step * 60) == 0:
                found = fires(cron, zone, (change - 7_200) * 1000, (change + 7_200) * 1000)
                gaps = {later - earlier for earlier, later in itertools.pairwise(found)}
                assert gaps == {step * MINUTE_MS}


# Work ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["UTC", NEW_YORK, "EST5EDT,M3.2.0,M11.1.0"])
def test_an_answer_costs_less_than_a_thousand_plain_steps(key: str) -> None:
    cron, zone, at = parse("* * * * *"), zones.zone(key), ms("2026-03-01T00:00:00Z")

    def ask() -> None:
        nonlocal at
        for _ in range(10_000):
            at = cron.next_after(at, zone)

    assert cpu_s(ask) < 100 * unit_s()
    assert at == ms("2026-03-01T00:00:00Z") + 10_000 * MINUTE_MS


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("0 0 29 2 *", "1896-03-01T00:00:00Z", "1904-02-29T00:00:00Z"),
        ("0 0 29 2 *", "2096-03-01T00:00:00Z", "2104-02-29T00:00:00Z"),
        ("0 0 * 2 5#5", "2092-03-01T00:00:00Z", "2104-02-29T00:00:00Z"),
        ("0 0 * FEB SUNL", "2096-03-01T00:00:00Z", "2097-02-24T00:00:00Z"),
    ],
)
def test_the_rarest_dates_are_found_across_a_missing_leap_day(
    expression: str, after: str, expected: str
) -> None:
    for key in ("UTC", "Etc/UTC", "<+00>0"):
        assert iso(parse(expression).next_after(ms(after), zones.zone(key))) == expected

    def ask() -> None:
        for key in DIVERSE:
            parse(expression).next_after(ms(after), zones.zone(key))

    assert cpu_s(ask) < len(DIVERSE) * unit_s()


@pytest.mark.parametrize("key", ["UTC", NEW_YORK, "Asia/Shanghai"])
@pytest.mark.parametrize("expression", ["0 0 29 2 *", "* * * * *", "0 0 1 1 1#1", "*/5 */2 L * *"])
def test_after_the_year_9999_the_search_ends(expression: str, key: str) -> None:
    last = year_start(10_000) * DAY_MS
    cron, zone = parse(expression), zones.zone(key)
    assert cron.next_after(last - 800 * 366 * DAY_MS, zone) < last
    for after in (last + 2 * DAY_MS, last * 1000, 10**30):
        with pytest.raises(Invalid) as caught:
            cron.next_after(after, zone)
        assert caught.value.code == "cron_horizon"


def test_time_before_1970_is_time_as_well() -> None:
    assert parse("30 4 * * *").next_after(-1, zones.zone("UTC")) == ms("1970-01-01T04:30:00Z")
    assert parse("* * * * *").next_after(-60_001, zones.zone("UTC")) == -60_000
    assert parse("* * * * *").next_after(-60_000, zones.zone("UTC")) == 0


def test_a_clock_that_skips_a_whole_day_every_year_ends_the_search() -> None:
    """A zone nobody has: hour-star on the day that is always skipped never matches."""
    zone = zones.zone("AAA12BBB-12,J60/0,J300/0")
    cron = parse("0 * 1 3 *")

    def ask() -> None:
        with pytest.raises(Invalid) as caught:
            cron.next_after(0, zone)
        assert caught.value.code == "cron_horizon"

    assert cpu_s(ask) < 1_000 * unit_s()
