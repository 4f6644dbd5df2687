"""P11: while the wall clock cannot be believed no cron occurrence is admitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from qinglong_edge.execution.trust import SETTING
from tests.execution.world import NO_SPACE, Crash, World

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def _quick(world: World) -> None:
    """Every command ends at once."""
    for active in list(world.coordinator.registry):
        world.end(active.run.number)


def _scheduled(world: World) -> list[int | None]:
    return [run.scheduled_for_ms for run in world.runs()]


def test_a_clock_of_1970_admits_no_cron_and_its_correction_makes_no_storm(tmp_path: Path) -> None:
    world = World(tmp_path)
    wall = world.clock.wall
    world.clock.wall = 10_000
    world.start()
    crons = [world.task(str(n) + "t", cron="*/5 * * * *", misfire="fire_once") for n in range(3)]
    world.run_for(HOUR)
    assert (world.runs(), world.trust.reason) == ([], "clock_not_set")
    assert world.cursor(crons[0]).next_at_ms is None
    world.clock.wall = wall
    world.run_for(29_000)
    assert world.runs() == []
    world.run_for(5 * MINUTE)
    assert len(world.runs()) == 3
    world.close()


def test_a_forward_step_of_years_is_one_occurrence(world: World) -> None:
    skip, once = (
        world.task("skip", cron="* * * * *"),
        world.task("once", cron="* * * * *", misfire="fire_once"),
    )
    due_ms = world.cursor(once).next_at_ms
    world.clock.step(2 * 365 * DAY)
    world.run_for(30_000)
    assert [(run.task_number, run.scheduled_for_ms) for run in world.runs()] == [
        (once.number, due_ms)
    ]
    assert world.cursor(skip).skipped == 1
    assert world.cursor(once).next_at_ms == world.clock.wall + 30_000


def test_a_step_over_the_due_minute_is_noticed_within_half_a_minute(world: World) -> None:
    task = world.task(cron="0 * * * *")
    due_ms = world.cursor(task).next_at_ms or 0
    world.clock.step(due_ms - world.clock.wall)
    world.run_for(30_000)
    assert _scheduled(world) == [due_ms]


def test_a_step_back_of_half_a_minute_is_believed_and_runs_nothing_twice(world: World) -> None:
    world.task(cron="* * * * *")
    world.run_for(MINUTE)
    _quick(world)
    world.clock.step(-30_000)
    world.run_for(MINUTE)
    assert world.doubted() is None
    assert len(world.runs()) == 1
    world.run_for(30_000)
    assert len(_scheduled(world)) == len(set(_scheduled(world))) == 2


def test_a_step_back_of_an_hour_waits_for_faith_and_repeats_no_label(world: World) -> None:
    task = world.task(cron="*/10 * * * *")
    world.run_for(10 * MINUTE)
    _quick(world)
    next_ms = world.cursor(task).next_at_ms
    world.clock.step(-HOUR)
    world.run_for(14 * MINUTE)
    assert world.trust.reason == "clock_stepped_back"
    world.run_for(2 * MINUTE)
    assert world.doubted() is None
    assert world.cursor(task).next_at_ms == next_ms
    world.run_for(HOUR)
    assert len(_scheduled(world)) == len(set(_scheduled(world))) >= 2


def test_a_step_back_of_a_month_computes_every_cursor_anew(world: World) -> None:
    tasks = [world.task(f"t{n}", cron="0 4 * * *") for n in range(5)]
    world.clock.step(-30 * DAY)
    world.run_for(16 * MINUTE)
    for task in tasks:
        next_ms = world.cursor(task).next_at_ms or 0
        assert world.clock.wall < next_ms <= world.clock.wall + DAY


@pytest.mark.parametrize(("delay_ms", "believed"), [(-1, False), (0, True), (20_000, True)])
def test_a_time_service_newer_than_the_step_ends_the_doubt(
    world: World, delay_ms: int, believed: bool
) -> None:
    world.task(cron="* * * * *")
    world.run_for(15_000)
    world.clock.step(-30 * DAY)
    stepped_ms = world.clock.wall
    world.clock.move(10_000)  # nobody looked yet
    if delay_ms < 0:
        world.clock.stamps["/ntp"] = stepped_ms + 29 * DAY  # of the old time
    world.run_for(MINUTE)
    if delay_ms >= 0:
        world.clock.stamps["/ntp"] = stepped_ms + delay_ms
    world.run_for(MINUTE)
    assert world.trust.trusted is believed


def test_the_year_2098_is_left_for_good(world: World) -> None:
    task = world.task(cron="*/5 * * * *")
    years = 72 * 365 * DAY
    world.clock.step(years)
    world.run_for(6 * MINUTE)
    assert len(world.runs()) == 1
    _quick(world)
    world.clock.step(-years)
    world.run_for(MINUTE)
    assert world.doubted()
    world.restart()
    assert world.doubted()
    world.run_for(16 * MINUTE)
    next_ms = world.cursor(task).next_at_ms or 0
    assert world.clock.wall < next_ms <= world.clock.wall + 5 * MINUTE
    world.restart()
    assert world.doubted() is None


def test_a_crash_while_cursors_are_computed_anew_is_made_good(world: World) -> None:
    """The lower time becomes durable only after the last cursor."""
    tasks = [world.task(f"t{n:03d}", cron="0 4 * * *") for n in range(300)]
    world.clock.step(72 * 365 * DAY)
    world.run_for(DAY)
    world.clock.step(-72 * 365 * DAY)
    world.run_for(14 * MINUTE)
    commits = len(world.commits)
    world.crash_at = world.effects + 2  # the first batch is stored, the second is not
    with pytest.raises(Crash):
        world.run_for(2 * MINUTE)
    assert len(world.commits) == commits + 1
    world.restart()
    world.run_for(16 * MINUTE)
    for task in tasks:
        assert (world.cursor(task).next_at_ms or 0) <= world.clock.wall + DAY


def test_the_word_of_the_operator_ends_the_doubt(world: World) -> None:
    task = world.task(cron="0 4 * * *")
    world.clock.step(-30 * DAY)
    world.run_for(30_000)
    assert world.doubted()
    assert world.trust.believe() == "reset"
    world.scheduler.recompute()
    world.scheduler.look()
    assert world.doubted() is None
    assert (world.cursor(task).next_at_ms or 0) <= world.clock.wall + DAY


def test_the_highest_time_is_stored_every_ten_minutes_and_only_with_other_commits(
    world: World,
) -> None:
    world.run_for(HOUR)
    assert world.commits == []
    world.task(cron="* * * * *")
    world.commits.clear()
    for _ in range(30):
        world.run_for(MINUTE)
        _quick(world)
    carried = [commit for commit in world.commits if dict(commit.settings).get(SETTING)]
    assert 3 <= len(carried) <= 4


def test_a_time_that_a_refused_commit_carried_rides_again(world: World) -> None:
    world.task(cron="* * * * *")
    world.run_for(HOUR)
    _quick(world)
    stored = world.store.setting(SETTING)
    world.run_for(15 * MINUTE - 1_000)
    world.refuse = NO_SPACE
    world.run_for(MINUTE)
    world.refuse = None
    world.run_for(MINUTE)
    assert world.store.setting(SETTING) != stored
