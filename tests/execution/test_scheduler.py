"""P6 and P11: which occurrence is admitted, and where the cursor goes."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from qinglong_edge.core.errors import Corrupt, Unavailable
from qinglong_edge.core.zone import Zone
from tests.execution.world import GRACE_MS, NO_SPACE, World

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def _quick(world: World) -> None:
    """Every command ends at once."""
    for active in list(world.coordinator.registry):
        world.end(active.run.number)


def _utc_ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def _scheduled(world: World) -> list[int | None]:
    return [run.scheduled_for_ms for run in world.runs()]


def test_a_due_occurrence_runs_once_and_the_cursor_goes_on(world: World) -> None:
    task = world.task(cron="* * * * *")
    due_ms = world.cursor(task).next_at_ms or 0
    assert due_ms == world.clock.wall + MINUTE
    world.run_for(MINUTE)
    assert _scheduled(world) == [due_ms]
    cursor = world.cursor(task)
    assert (cursor.next_at_ms, cursor.last_scheduled_ms) == (due_ms + MINUTE, due_ms)


def test_a_whole_hour_has_sixty_runs(world: World) -> None:
    task = world.task(cron="* * * * *")
    first = world.cursor(task).next_at_ms or 0
    for _ in range(60):
        world.run_for(MINUTE)
        _quick(world)
    assert _scheduled(world) == [first + MINUTE * each for each in range(60)]


@pytest.mark.parametrize(("late_ms", "runs"), [(GRACE_MS, 1), (GRACE_MS + 1, 0)])
def test_as_late_as_the_grace_is_on_time_and_a_millisecond_more_is_not(
    world: World, late_ms: int, runs: int
) -> None:
    task = world.task(cron="0 * * * *")
    due_ms = world.cursor(task).next_at_ms or 0
    world.crash()
    world.clock.move(due_ms - world.clock.wall + late_ms)
    world.start()
    assert len(world.runs()) == runs
    cursor = world.cursor(task)
    assert (cursor.next_at_ms, cursor.skipped) == (due_ms + HOUR, 1 - runs)


@pytest.mark.parametrize(("misfire", "runs"), [("skip", 0), ("fire_once", 1)])
def test_a_gap_never_replays_its_backlog(world: World, misfire: str, runs: int) -> None:
    task = world.task(cron="*/5 * * * *", misfire=misfire)
    due_ms = world.cursor(task).next_at_ms
    world.crash()
    world.clock.move(3 * DAY + 2 * MINUTE)
    world.start()
    assert _scheduled(world) == [due_ms] * runs
    next_ms = world.cursor(task).next_at_ms or 0
    assert world.clock.wall < next_ms <= world.clock.wall + 5 * MINUTE


def test_a_refused_overlap_moves_the_cursor_and_is_counted(world: World) -> None:
    task = world.task(cron="* * * * *")
    for _ in range(3):
        world.run_for(MINUTE)
    assert len(world.runs()) == 1
    assert world.cursor(task).skipped == 2


def test_a_trigger_that_cannot_be_computed_starves_nobody(world: World) -> None:
    bad, good = world.task("bad", cron="* * * * *"), world.task("good", cron="* * * * *")
    with world.store.database.write():
        world.store.database.execute(
            "UPDATE task_trigger SET zone = 'Mars/Olympus' WHERE task_number = ?", (bad.number,)
        )
    for _ in range(3):
        world.run_for(MINUTE)
        _quick(world)
    assert world.cursor(bad).parked == "zone_unknown"
    assert [run.task_number for run in world.runs()].count(good.number) == 3
    assert world.scheduler.parked == 1
    world.task("bad", cron="* * * * *", zone="Mars/Olympus", timeout_ms=1_000)
    assert world.scheduler.parked == 1
    world.task("bad", every="1h")
    assert (world.cursor(bad).parked, world.scheduler.parked) == (None, 0)


def test_a_parked_trigger_is_tried_again_at_the_next_start(world: World) -> None:
    task = world.task(cron="* * * * *")
    for zone, parked in (("Mars/Olympus", 1), ("UTC", 0)):
        with world.store.database.write():
            world.store.database.execute("UPDATE task_trigger SET zone = ?", (zone,))
        world.run_for(MINUTE)
        world.restart()
        assert world.scheduler.parked == parked
    assert world.cursor(task).next_at_ms == world.clock.wall + MINUTE


def test_what_cannot_be_computed_just_now_is_computed_again_minutes_later(world: World) -> None:
    bad = world.task("bad", cron="* * * * *", zone="Europe/Berlin")
    good = world.task("good", cron="* * * * *")
    open_zone = world.scheduler._open_zone

    def unreadable(text: str) -> Zone:
        if text == "UTC":
            return open_zone(text)
        raise Unavailable("zone_unreadable", "No descriptor is left.")

    world.scheduler._open_zone = unreadable
    for _ in range(7):
        world.run_for(MINUTE)
        _quick(world)
    assert [run.task_number for run in world.runs()].count(bad.number) == 1
    assert world.cursor(bad).parked == "zone_unreadable"
    assert world.scheduler.parked == 1, "the second look found it as it was"
    world.scheduler._open_zone = open_zone
    for _ in range(5):
        world.run_for(MINUTE)
        _quick(world)
    assert (world.cursor(bad).parked, world.scheduler.parked) == (None, 0)
    world.run_for(MINUTE)
    _quick(world)
    assert [run.task_number for run in world.runs()].count(bad.number) > 1
    assert [run.task_number for run in world.runs()].count(good.number) == 13, "nobody else waited"


@pytest.mark.parametrize("edit", ["enable", "change"])
def test_edits_leave_no_growing_heap_behind(world: World, edit: str) -> None:
    """A year's worth of switching a yearly task off and on is not kept in memory."""
    task = world.task(cron="0 0 1 1 *")
    for number in range(300):
        if edit == "enable":
            world.enable(task, enabled=False)
            world.enable(task, enabled=True)
        else:
            world.task("t", cron=f"{number % 60} 0 1 1 *")
    scheduler = world.scheduler
    assert len(scheduler._wall) + len(scheduler._boot) < 100
    found = world.cursor(task)
    assert scheduler.next_due() == (found.next_at_ms, found.trigger_number)


def test_a_damaged_definition_parks_its_trigger(world: World) -> None:
    task, good = world.task("bad", cron="* * * * *"), world.task("good", cron="* * * * *")
    with world.store.database.write():
        world.store.database.execute(
            "UPDATE revision SET definition = '{}' WHERE task_number = ?", (task.number,)
        )
    world.run_for(MINUTE)
    assert world.cursor(task).parked == "definition_corrupt"
    assert [run.task_number for run in world.runs()] == [good.number]


def test_an_unexpected_refusal_is_named_and_the_others_go_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = world.task("bad", cron="* * * * *"), world.task("good", cron="* * * * *")
    number, read = world.cursor(bad).trigger_number, world.store.tasks.cursor

    def cursor(trigger: int) -> object:
        if trigger == number:
            raise Corrupt("row_corrupt", "No.")
        return read(trigger)

    with monkeypatch.context() as patch:
        patch.setattr(world.store.tasks, "cursor", cursor)
        world.run_for(MINUTE)
    assert [run.task_number for run in world.runs()] == [good.number]
    assert world.scheduler.parked == 1


def test_a_database_that_cannot_be_read_for_minutes_loses_no_trigger(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite says of a read that failed that the database is damaged."""
    task = world.task(cron="* * * * *")

    def unread(*_wanted: object) -> None:
        raise Corrupt("database_corrupt", "The database is damaged; it was kept.")

    with monkeypatch.context() as patch:
        for name in ("cursor", "cursors"):
            patch.setattr(world.store.tasks, name, unread)
        for _ in range(7):
            world.run_for(MINUTE)
    assert world.runs() == []
    for _ in range(6):
        world.run_for(MINUTE)
        _quick(world)
    assert world.scheduler.parked == 0
    assert world.runs()[-1].scheduled_for_ms == world.clock.wall
    assert world.cursor(task).next_at_ms == world.clock.wall + MINUTE


def test_what_was_due_while_a_task_was_disabled_is_not_made_up_for(world: World) -> None:
    task = world.task(cron="* * * * *", misfire="fire_once")
    world.enable(task, enabled=False)
    world.run_for(10 * MINUTE)
    assert world.scheduler.next_due() is None
    world.enable(task, enabled=True)
    assert (world.runs(), world.cursor(task).skipped) == ([], 0)
    world.run_for(MINUTE)
    assert len(world.runs()) == 1


def test_a_boot_task_that_is_enabled_later_waits_for_the_next_boot(world: World) -> None:
    task = world.task(boot=True)
    world.enable(task, enabled=False)
    _quick(world)
    world.crash()
    world.machine.restart()
    world.start()
    before = len(world.runs())
    world.enable(task, enabled=True)
    world.restart()
    assert len(world.runs()) == before
    world.crash()
    world.machine.restart()
    world.start()
    assert len(world.runs()) == before + 1


def test_enabling_on_a_full_disk_enables_nothing_and_loses_no_later_occurrence(
    world: World,
) -> None:
    """Cursors move first: whatever comes between, nothing that was due meanwhile is made up for."""
    task = world.task(cron="* * * * *", misfire="fire_once")
    world.enable(task, enabled=False)
    world.run_for(5 * MINUTE)
    world.refuse = NO_SPACE
    with pytest.raises(type(NO_SPACE)):
        world.enable(task, enabled=True)
    world.refuse = None
    world.run_for(5 * MINUTE)
    assert world.runs() == []
    world.enable(task, enabled=True)
    world.run_for(MINUTE)
    assert _scheduled(world) == [world.clock.wall]


def test_every_keeps_its_phase_and_a_new_boot_begins_a_new_one(world: World) -> None:
    task = world.task(every="10m")
    first = world.cursor(task).next_at_ms or 0
    assert first == world.clock.boot + 10 * MINUTE
    for _ in range(3):
        world.run_for(10 * MINUTE)
        _quick(world)
    assert len(world.runs()) == 3
    world.crash()
    world.clock.move(25 * MINUTE)  # two were missed and a half
    world.start()
    assert len(world.runs()) == 3
    assert world.cursor(task).next_at_ms == first + 50 * MINUTE
    world.crash()
    world.machine.restart()
    world.start()
    assert world.cursor(task).next_at_ms == world.clock.boot + 10 * MINUTE


def test_every_does_not_mind_the_wall_clock(world: World) -> None:
    world.task(every="10m")
    world.clock.step(-40 * 365 * DAY)
    world.run_for(10 * MINUTE)
    assert [run.trigger_kind for run in world.runs()] == ["every"]


def test_boot_is_admitted_once_a_boot_id(world: World) -> None:
    world.task(boot=True)
    assert len(world.runs()) == 1
    _quick(world)
    world.restart()
    assert len(world.runs()) == 1
    world.crash()
    world.machine.restart()
    world.start()
    assert [run.trigger_kind for run in world.runs()] == ["boot", "boot"]
    assert world.scheduler.next_due() is None


def test_pause_holds_every_trigger_and_outlives_the_owner(world: World) -> None:
    task = world.task(cron="* * * * *")
    every = world.task("other", every="1m")
    world.pause(paused=True)
    world.restart()
    world.run_for(10 * MINUTE)
    assert world.runs() == []
    world.pause(paused=False)
    assert world.runs() == []
    assert world.cursor(task).skipped == 1
    assert world.cursor(every).skipped == 1
    world.run_for(MINUTE)
    assert {run.trigger_kind for run in world.runs()} == {"cron", "every"}


@pytest.mark.parametrize(
    ("expression", "start", "dues"),
    [
        # 2026-03-08 in Los Angeles: 02:30 is not there, and is read as 03:30
        ("30 2 * * *", "2026-03-08T00:00Z", ["2026-03-08T10:30Z", "2026-03-09T09:30Z"]),
        # 2026-11-01: 01:30 comes twice, the first one runs
        ("30 1 * * *", "2026-11-01T00:00Z", ["2026-11-01T08:30Z", "2026-11-02T09:30Z"]),
    ],
)
def test_a_change_of_the_clock_in_a_real_zone_loses_and_doubles_nothing(
    tmp_path: Path, expression: str, start: str, dues: list[str]
) -> None:
    world = World(tmp_path)
    world.clock.wall = _utc_ms(start)
    world.start()
    world.task(cron=expression, zone="America/Los_Angeles")
    for _ in range(2 * 24 * 2):
        world.run_for(HOUR // 2)
        _quick(world)
    assert _scheduled(world) == [_utc_ms(due) for due in dues]
    world.close()


def test_a_storage_that_refuses_is_asked_less_and_less_for_the_same_occurrence(
    world: World,
) -> None:
    task = world.task(cron="0 * * * *", misfire="fire_once")
    due_ms = world.cursor(task).next_at_ms or 0
    world.run_for(due_ms - world.clock.wall - 1)
    world.refuse = NO_SPACE
    world.order.clear()
    world.run_for(HOUR // 2)
    tries = world.order.count("fork")
    assert 8 <= tries <= 16
    world.refuse = None
    world.run_for(300_000)
    assert _scheduled(world) == [due_ms]


def test_a_full_box_on_a_full_disk_does_not_spin(tmp_path: Path) -> None:
    world = World(tmp_path, places=0)
    world.start()
    world.task(cron="* * * * *")
    world.refuse = NO_SPACE
    world.run_for(5 * MINUTE)
    assert world.order.count("before commit") < 40
    world.close()


def test_a_full_disk_does_not_keep_the_owner_from_starting(world: World) -> None:
    task = world.task(every="10m")
    world.crash()
    world.machine.restart()
    world.refuse = NO_SPACE
    world.start()
    world.run_for(MINUTE)
    world.refuse = None
    world.run_for(5 * MINUTE)
    assert world.cursor(task).boot_id == world.machine.boot_id
    world.run_for(10 * MINUTE)
    assert len(world.runs()) == 1


def test_a_clock_regained_while_a_launch_is_in_flight_loses_no_trigger(world: World) -> None:
    task = world.task(cron="* * * * *")
    world.launcher.ready = False
    world.run_for(MINUTE)
    world.scheduler.load()
    world.settle()
    world.launcher.ready = True
    world.machine.wake(world.launcher.launches[0].gate_fd)
    world.settle()
    assert len(world.runs()) == 1
    _quick(world)
    world.run_for(MINUTE)
    assert len(world.runs()) == 2
    assert len(set(_scheduled(world))) == 2
    assert world.cursor(task).skipped == 0


def test_what_is_shown_as_next_is_what_will_be_admitted(world: World) -> None:
    early, late = world.task("early", cron="* * * * *"), world.task("late", cron="0 * * * *")
    assert world.scheduler.next_due() == (
        world.cursor(early).next_at_ms,
        world.cursor(early).trigger_number,
    )
    world.enable(early, enabled=False)
    assert world.scheduler.next_due() == (
        world.cursor(late).next_at_ms,
        world.cursor(late).trigger_number,
    )


def test_nothing_due_is_nothing_written(world: World) -> None:
    world.task(cron="0 0 1 1 *")
    world.commits.clear()
    world.run_for(DAY)
    assert world.commits == []
