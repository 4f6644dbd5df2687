"""Places, order, overlap and back-off: which run starts when."""

from __future__ import annotations

from pathlib import Path

import pytest

from qinglong_edge.core.errors import Refused, Unavailable
from qinglong_edge.core.limits import QUEUED_PER_TASK_MAX
from tests.execution.world import NO_SPACE, World

MINUTE = 60_000


def test_a_box_runs_as_many_as_it_has_places_and_the_rest_in_order(tmp_path: Path) -> None:
    world = World(tmp_path, places=2)
    world.start()
    for name in "abcde":
        world.manual(world.task(name))
    assert world.statuses() == ["running", "running", "queued", "queued", "queued"]
    for number in range(1, 6):
        world.end(number)
        assert world.statuses().count("running") == min(2, 5 - number)
    started = [run.started_at_ms for run in world.runs()]
    assert started == sorted(started, key=lambda moment: moment or 0)
    world.close()


def test_an_overlap_of_skip_refuses(world: World) -> None:
    task = world.task()
    world.manual(task)
    assert world.refused(task) == "overlap_skipped"
    world.end()
    assert world.manual(task).status == "running"


def test_a_queue_holds_sixteen_and_keeps_its_order(world: World) -> None:
    task = world.task(overlap="queue")
    for _ in range(QUEUED_PER_TASK_MAX + 1):
        world.manual(task)
    assert world.refused(task) == "queue_full"
    for number in range(1, QUEUED_PER_TASK_MAX + 2):
        running = [run.number for run in world.runs() if run.status == "running"]
        assert running == [number]
        world.end(number)
    assert set(world.statuses()) == {"succeeded"}


def test_parallel_runs_as_many_as_allowed(world: World) -> None:
    task = world.task(overlap="parallel", parallel_max=3)
    for _ in range(3):
        world.manual(task)
    assert world.statuses() == ["running"] * 3
    assert world.refused(task) == "overlap_skipped"


def test_a_parallel_task_may_fill_what_is_left_of_its_own_number(tmp_path: Path) -> None:
    """A run that is being launched from the line counts once."""
    world = World(tmp_path, places=1)
    world.start()
    task = world.task(overlap="parallel", parallel_max=2)
    first, _second = world.manual(task), world.manual(task)
    world.launcher.ready = False
    world.end(first.number)
    assert world.manual(task).status == "queued"
    world.close()


def test_replace_ends_the_others_and_then_runs(world: World) -> None:
    task = world.task(overlap="replace")
    world.manual(task)
    world.process().obeys = False
    second = world.manual(task)
    assert second.status == "queued"
    assert world.run().cancel_reason == "replaced"
    third = world.manual(task)
    assert world.run(second.number).status == "cancelled"
    world.run_for(6_000)
    assert world.statuses() == ["cancelled", "cancelled", "running"]
    assert third.number == 3


def test_replace_ends_what_is_only_being_launched(world: World) -> None:
    world.launcher.ready = False
    task = world.task(overlap="replace")
    world.ask(task)
    world.settle()
    world.launcher.ready = True
    second = world.manual(task)
    assert world.statuses() == ["cancelled", "running"]
    assert (second.number, world.run().cancel_reason) == (2, "replaced")
    assert len(world.machine.processes) == 1


def test_a_replaced_occurrence_does_not_come_back(world: World) -> None:
    world.launcher.ready = False
    task = world.task(cron="0 * * * *", overlap="replace")
    due_ms = world.cursor(task).next_at_ms or 0
    world.run_for(due_ms - world.clock.wall)
    world.launcher.ready = True
    manual = world.manual(task)
    world.run_for(10 * MINUTE)
    assert world.statuses() == ["cancelled", "running"]
    assert world.run(manual.number).cancel_reason is None
    assert world.runs()[0].scheduled_for_ms == due_ms


def test_a_run_that_is_being_launched_waits_once(world: World) -> None:
    task = world.task(overlap="queue")
    world.launcher.ready = False
    world.ask(task)
    assert (len(world.starter.launching), world.dispatcher.waiting) == (1, 1)
    world.ask(task)
    assert world.dispatcher.waiting == 2
    assert world.loop is not None
    world.loop.ready.append(world.launcher.launches[0].gate_fd)
    world.settle()
    assert (world.starter.launching, world.dispatcher.waiting) == ({}, 1)
    world.end(1)
    assert (len(world.starter.launching), world.dispatcher.waiting) == (1, 1)


def test_replace_ends_what_is_being_launched_from_the_line(tmp_path: Path) -> None:
    world = World(tmp_path, places=1)
    world.start()
    world.manual(world.task("other"))
    task = world.task(overlap="replace")
    waiting = world.manual(task)
    world.launcher.ready = False
    world.end(1)
    assert world.starter.launching
    world.launcher.ready = True
    newest = world.manual(task)
    world.run_for(MINUTE)
    assert world.run(waiting.number).status == "cancelled"
    assert world.run(newest.number).status == "running"
    world.close()


def test_a_replacement_that_cannot_be_stored_is_due_as_before(world: World) -> None:
    task = world.task(cron="* * * * *", overlap="replace", misfire="fire_once")
    world.run_for(MINUTE)
    world.refuse = NO_SPACE
    world.run_for(MINUTE)
    assert world.statuses() == ["running"]
    world.refuse = None
    world.run_for(MINUTE)
    assert world.statuses()[0] == "cancelled"
    assert "running" in world.statuses()
    assert world.cursor(task).skipped == 0


def test_a_passing_failure_is_tried_again_after_one_second_to_five_minutes(world: World) -> None:
    world.launcher.refusal = Unavailable("no_memory", "No.")
    world.ask(world.task())
    world.settle()
    assert (world.run().status, world.dispatcher.degraded) == ("queued", {1: "no_memory"})
    tries: list[int] = []

    def begin(*_given: object) -> object:
        tries.append(world.clock.boot)
        raise Unavailable("no_memory", "No.")

    world.launcher.begin = begin  # type: ignore[method-assign,assignment]
    begun = world.clock.boot
    world.run_for(30 * MINUTE)
    steps = [late - early for early, late in zip([begun, *tries], tries, strict=False)]
    assert steps[:9] == [1000 << n for n in range(9)]
    assert set(steps[9:]) == {300_000}


def test_many_waiting_runs_fail_together_without_a_deep_stack(tmp_path: Path) -> None:
    world = World(tmp_path, places=1)
    world.start()
    world.manual(world.task("first"))
    for number in range(400):
        world.ask(world.task(f"task{number}"))
    world.launcher.refusal = Unavailable("no_memory", "No.")
    world.end(1)
    assert world.statuses().count("queued") == 400
    world.launcher.refusal = None
    world.run_for(2_000)
    assert world.statuses().count("running") == 1
    world.close()


def test_a_failing_head_of_a_queue_is_not_overtaken_by_its_own_task(world: World) -> None:
    task = world.task(overlap="queue")
    world.launcher.refusal = Unavailable("no_memory", "No.")
    for _ in range(3):
        world.ask(task)
    world.settle()
    world.run_for(3_500)
    world.launcher.refusal = None
    world.manual(world.task("other"))
    assert world.run().status == "queued"
    world.run_for(10_000)
    assert world.statuses() == ["running", "queued", "queued", "running"]


def test_a_launch_that_fails_for_good_gives_its_place_away(tmp_path: Path) -> None:
    world = World(tmp_path, places=1)
    world.start()
    world.launcher.ready = False
    world.ask(world.task("bad"))
    world.settle()
    (launch,) = world.launcher.launches
    launch.refusal = Refused("cwd_unavailable", "No.")
    world.launcher.ready = True
    world.ask(world.task("good"))
    world.settle()
    assert world.statuses() == ["queued"]
    world.machine.wake(launch.gate_fd)
    world.settle()
    assert sorted(world.statuses()) == ["failed", "running"]
    world.close()


def test_a_waiting_run_that_is_refused_for_good_fails_with_its_code(tmp_path: Path) -> None:
    world = World(tmp_path, places=1)
    world.start()
    world.manual(world.task("first"))
    waiting = world.manual(world.task("second"))
    world.launcher.refusal = Refused("wrapper_changed", "No.")
    world.end(1)
    run = world.run(waiting.number)
    assert (run.status, run.error_code) == ("failed", "wrapper_changed")
    assert (world.dispatcher.waiting, world.dispatcher.degraded) == (0, {})
    assert world.settled[-1] == run
    world.close()


def test_a_damaged_definition_does_not_hold_the_line(tmp_path: Path) -> None:
    world = World(tmp_path, places=1)
    world.start()
    world.manual(world.task("first"))
    task = world.task("second")
    waiting = world.manual(task)
    with world.store.database.write():
        world.store.database.execute(
            "UPDATE revision SET definition = '{}' WHERE task_number = ?", (task.number,)
        )
    world.end(1)
    assert world.run(waiting.number).error_code == "definition_corrupt"
    world.close()


def test_the_line_survives_an_owner(tmp_path: Path) -> None:
    world = World(tmp_path, places=1)
    world.start()
    task = world.task(overlap="queue")
    for _ in range(3):
        world.manual(task)
    world.restart()
    assert world.statuses() == ["running", "queued", "queued"]
    world.end(1)
    assert world.statuses() == ["succeeded", "running", "queued"]
    world.close()


def test_a_one_shot_owner_starts_only_what_it_was_asked_for(world: World) -> None:
    world.dispatcher.close()
    old = world.manual(world.task("old"))
    assert old.status == "queued"
    world.dispatcher.open(others=False)
    assert world.manual(world.task("new")).status == "running"
    world.end(2)
    assert world.statuses() == ["queued", "succeeded"]


def test_what_is_held_for_want_of_proof_holds_its_task_and_nobody_else(tmp_path: Path) -> None:
    world = World(tmp_path, places=1)
    world.start()
    task = world.task()
    world.manual(task)
    world.machine.unknown = "other_namespace"
    world.restart()
    assert world.hold() == "other_namespace"
    assert world.refused(task) == "overlap_skipped"
    assert world.manual(world.task("other")).status == "running"
    world.close()


@pytest.mark.parametrize("answer", ["run", "attempt"])
def test_a_start_is_answered_with_what_is_durable(world: World, answer: str) -> None:
    run = world.manual(world.task())
    told_run, told_attempt, error = world.answers[-1]
    assert error is None
    assert (told_run, told_attempt) == (run, world.attempt())
