"""Clocks that move: born in 1970, set by years, an hour back, over a change of time, beyond 2038.

No storm, no lost occurrence, no negative duration, nothing by cron before the clock is believed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from qinglong_edge.app.runtime import Parts
from qinglong_edge.core.limits import CLOCK_STEADY_MS
from tests.e2e.kit import Kit
from tests.e2e.resident import Resident, Still, collect

MIB = 1_048_576
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
START_MS = 1_780_272_000_000  # 2026-06-01 00:00 UTC
KINDS = ("minutely", "hourly", "every")
BERLIN = "CET-1CEST,M3.5.0,M10.5.0/3"


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    yield
    collect()


class Hours:
    """A resident runtime whose minutes pass at the test's word."""

    def __init__(self, kit: Kit, wall_ms: int) -> None:
        parts = Parts()
        parts.clock = self.clock = Still(wall_ms)
        self.resident = Resident(kit.state, parts)

    def add(self, name: str, *, zone: str = "UTC", **params: object) -> None:
        """A task that ends at once."""
        self.resident.task(name, argv=["true"], log=False, zone=zone, **params)

    def minutes(self, count: int, *, step_ms: int = 10_000) -> None:
        """So many minutes pass, in steps shorter than the grace."""
        registry = self.resident.runtime.coordinator.registry
        launching = self.resident.runtime.starter.launching
        for _ in range(count * MINUTE_MS // step_ms):
            self.clock.pass_by(step_ms)
            self.resident.turn(0)
            self.resident.until(lambda: not registry.busy and not launching, what="runs end")

    def runs(self, name: str) -> list[Any]:
        """Every run of a task, oldest first."""
        return list(self.resident.call("runs.list", task=name, limit=500)["runs"])[::-1]

    def cursor(self, name: str) -> Any:
        """The state of a task's one trigger."""
        (trigger,) = self.resident.call("task.show", name=name)["triggers"]
        return trigger


@pytest.fixture
def hours(kit: Kit) -> Iterator[Hours]:
    """The runtime on the first of June, with a trigger of each kind."""
    hours = Hours(kit, START_MS)
    with hours.resident:
        hours.add("minutely", cron=["* * * * *"])
        hours.add("hourly", cron=["0 * * * *"], misfire="fire_once")
        hours.add("every", every=["1m"])
        hours.minutes(5)
        yield hours
        sane(hours)


def sane(hours: Hours) -> None:
    """Nothing took less than no time, no trigger stands aside."""
    for name in KINDS:
        for run in hours.runs(name):
            assert run["status"] == "succeeded", run
            assert run["duration_ms"] >= 0, run
        assert hours.cursor(name)["parked"] is None
    assert hours.resident.degraded() == []


def once(hours: Hours) -> None:
    """One occurrence became at most one run."""
    for name in ("minutely", "hourly"):
        labels = [run["scheduled_for_ms"] for run in hours.runs(name)]
        assert len(labels) == len(set(labels)), name


def mark(hours: Hours) -> int:
    """The number of the newest run."""
    return max(int(run["number"]) for name in KINDS for run in hours.runs(name)[-1:])


def passed(hours: Hours, mark: int) -> dict[str, int]:
    """How often each has run since; the history before may go, with a clock that moves on."""
    return {name: sum(1 for run in hours.runs(name) if run["number"] > mark) for name in KINDS}


def test_a_clock_of_1970_admits_no_cron_until_it_is_set(hours: Hours) -> None:
    before = mark(hours)
    right = hours.clock.wall_ms()
    hours.clock.set(0)
    hours.minutes(10)
    assert hours.resident.degraded() == ["clock_not_set"]
    told = passed(hours, before)
    assert (told["minutely"], told["hourly"]) == (0, 0)
    assert 9 <= told["every"] <= 10, "a period needs no calendar"
    hours.clock.set(right + 10 * MINUTE_MS)
    hours.minutes(3)
    told = passed(hours, before)
    assert told["minutely"] in (2, 3), "no backlog, and no cursor is lost"
    assert told["hourly"] == 0
    once(hours)


def test_a_jump_of_two_years_and_back_is_no_storm_and_loses_no_cursor(hours: Hours) -> None:
    before = mark(hours)
    right = hours.clock.wall_ms()
    hours.clock.set(right + 2 * 365 * DAY_MS)
    hours.minutes(5)
    told = passed(hours, before)
    assert told["minutely"] in (4, 5)
    assert told["hourly"] == 1, "fire_once: the missed hours are one run"
    assert 4 <= told["every"] <= 5
    before = mark(hours)
    hours.clock.set(right + 5 * MINUTE_MS)
    hours.minutes(10)
    assert hours.resident.degraded() == ["clock_stepped_back"]
    assert passed(hours, before)["minutely"] == 0
    hours.minutes(CLOCK_STEADY_MS // MINUTE_MS - 8)
    before = mark(hours)
    hours.minutes(60)
    told = passed(hours, before)
    assert 58 <= told["minutely"] <= 61
    assert told["hourly"] == 1
    assert hours.cursor("hourly")["next_at_ms"] - hours.clock.wall_ms() <= HOUR_MS


def test_an_hour_back_runs_no_occurrence_twice(hours: Hours) -> None:
    before = mark(hours)
    hours.clock.set(hours.clock.wall_ms() - HOUR_MS)
    hours.minutes(58)
    told = passed(hours, before)
    assert (told["minutely"], told["hourly"]) == (0, 0), "these labels have run already"
    assert 57 <= told["every"] <= 58
    hours.minutes(10)
    told = passed(hours, before)
    assert 7 <= told["minutely"] <= 9
    once(hours)


def test_the_operators_word_ends_the_wait_after_a_step_back(hours: Hours) -> None:
    hours.clock.set(hours.clock.wall_ms() - DAY_MS)
    hours.minutes(1)
    assert hours.resident.degraded() == ["clock_stepped_back"]
    before = mark(hours)
    assert hours.resident.call("clock.trust")["clock"]["trusted"]
    hours.minutes(5)
    assert passed(hours, before)["minutely"] in (4, 5)


def test_the_end_of_32_bits_is_a_minute_like_any_other(hours: Hours) -> None:
    hours.clock.set(2_147_483_647_000 - 5 * MINUTE_MS)
    hours.minutes(1)
    before = mark(hours)
    hours.minutes(10)
    told = passed(hours, before)
    assert 9 <= told["minutely"] <= 11
    assert hours.clock.wall_ms() > 2**31 * 1000
    once(hours)


@pytest.mark.parametrize(
    ("start_ms", "nightly", "minutely"),
    [
        (1_806_193_800_000, 1, 120),  # 2027-03-28 00:30 UTC, 01:30 CET: 02:00 becomes 03:00
        (1_824_942_600_000, 1, 120),  # 2027-10-31 00:30 UTC, 02:30 CEST: 03:00 becomes 02:00
    ],
    ids=["forward", "back"],
)
def test_a_night_with_a_change_of_time_runs_what_is_due_once(
    kit: Kit, start_ms: int, nightly: int, minutely: int
) -> None:
    hours = Hours(kit, start_ms)
    with hours.resident:
        hours.add("nightly", zone=BERLIN, cron=["45 2 * * *"])
        hours.add("minutely", zone=BERLIN, cron=["*/5 * * * *"])
        hours.add("every", every=["5m"])
        hours.minutes(120)
        assert len(hours.runs("nightly")) == nightly
        assert minutely // 5 - 1 <= len(hours.runs("minutely")) <= minutely // 5 + 1
        assert minutely // 5 - 1 <= len(hours.runs("every")) <= minutely // 5
        labels = [run["scheduled_for_ms"] for run in hours.runs("minutely")]
        assert labels == sorted(set(labels)), "hour-star follows real time"
        assert all(run["duration_ms"] >= 0 for run in hours.runs("minutely"))
