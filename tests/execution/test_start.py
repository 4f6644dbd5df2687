"""P1 and P6 at the barrier: what is durable before the gate opens, and what a failure leaves."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.core import ids
from qinglong_edge.core.errors import Corrupt, Refused, Unavailable
from qinglong_edge.storage.store import NAME
from tests.execution.world import NO_SPACE, QUOTA, Crash, World


def test_everything_is_durable_before_the_gate_opens(world: World) -> None:
    """ADR-0069 verification 1: the journal row too, in the same commit."""
    run = world.manual(world.task())
    assert world.order[-7:] == [
        *("fork", "log", "receipt shard", "before commit", "commit", "adopt", "gate")
    ]
    (change,) = world.commits[-1].changes
    assert change.run == run
    assert (run.status, world.journal()) == ("running", [(1, "pending")])
    attempt = world.attempt()
    assert (attempt.handle, attempt.pid) == (world.process().handle, world.process().pid)
    assert attempt.token_hash is not None
    assert attempt.log_quota_bytes == QUOTA
    assert world.events() == [
        "run.created",
        "run.queued",
        "run.dispatching",
        "attempt.starting",
        "attempt.running",
        "run.running",
    ]
    assert world.logs.open == 0


def on_disk(world: World, folder: Path) -> list[tuple[object, ...]]:
    """Each attempt with its run as a power cut would leave them, read from a copy."""
    shutil.copytree(world.path, folder)
    statement = """
        SELECT run.id, attempt.id, attempt.status, log_quota_bytes
        FROM attempt JOIN run ON run.number = run_number
    """
    with contextlib.closing(sqlite3.connect(folder / NAME)) as database:
        return database.execute(statement).fetchall()


def test_what_names_a_log_is_durable_before_anybody_can_write_to_it(
    world: World, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ADR-0024 verification 9: its id follows from run and attempt, which are on the disk."""
    found: list[tuple[object, ...]] = []
    adopt = world.logs.adopt

    def look(log: Any, run_id: str, attempt_id: str) -> None:
        assert "gate" not in world.order
        found.extend(on_disk(world, tmp_path_factory.mktemp("cut") / "state"))
        assert found[0][:2] == (ids.to_blob(run_id), ids.to_blob(attempt_id))
        adopt(log, run_id, attempt_id)

    monkeypatch.setattr(world.logs, "adopt", look)
    run = world.manual(world.task())
    assert found == [(ids.to_blob(run.id), ids.to_blob(world.attempt().id), "running", QUOTA)]


def test_an_attempt_whose_id_can_name_no_log_leaves_its_run_queued(tmp_path: Path) -> None:
    """ADR-0024 verification 9: no log, no process, and the queued run is not changed."""
    world = World(tmp_path, places=1)
    world.start()
    world.manual(world.task("first"))
    waiting = world.manual(world.task("second"))
    with world.store.database.write():
        world.store.database.execute("UPDATE attempt SET id = zeroblob(16) WHERE run_number = 2")
    world.order.clear()
    world.end(1)
    world.run_for(600_000)
    assert world.run(waiting.number) == waiting
    assert world.dispatcher.degraded == {waiting.number: "row_corrupt"}
    assert not {"fork", "log", "receipt shard", "gate"} & set(world.order)
    world.close()


def test_a_child_that_cannot_be_identified_is_ended_and_no_row_names_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ADR-0069 verification 3: no process, no handle, no bare pid; it is tried again."""

    def fail(*_given: object) -> None:
        raise Unavailable("identity_unavailable", "No.")

    with monkeypatch.context() as patch:
        patch.setattr(world.launcher, "identify", fail)
        world.ask(world.task())
        world.settle()
    attempt = world.attempt()
    assert (world.run().status, attempt.status) == ("queued", "claimed")
    assert (attempt.handle, attempt.pid, world.journal()) == (None, None, [])
    assert (world.machine.processes, world.logs.open) == ({}, 0)
    assert "gate" not in world.order
    world.run_for(1_000)
    assert world.run().status == "running"


def test_a_refused_commit_opens_no_gate_and_leaves_neither_run_nor_cursor(world: World) -> None:
    """ADR-0069 verification 1: what could not be registered has run nothing."""
    task = world.task(cron="* * * * *", misfire="fire_once")
    before = world.cursor(task)
    world.refuse = NO_SPACE
    world.run_for(200_000)
    assert "gate" not in world.order
    assert (world.runs(), world.cursor(task), world.machine.processes) == ([], before, {})
    assert (world.machine.logs, world.logs.open) == ({}, 0)
    world.refuse = None
    world.run_for(300_000)
    assert world.runs()[0].scheduled_for_ms == before.next_at_ms


@pytest.mark.parametrize("places", [0, 4])
def test_an_occurrence_becomes_one_run_whatever_the_owner_dies_of(
    tmp_path: Path, places: int
) -> None:
    """Die after the first effect, after the second, ... until nothing is left to die of."""
    for moment in range(1, 60):
        (tmp_path / str(moment)).mkdir()
        world = World(tmp_path / str(moment), places=places)
        world.start()
        task = world.task(cron="* * * * *", misfire="fire_once")
        due_ms = world.cursor(task).next_at_ms
        world.effects, world.crash_at, world.order = 0, moment, []
        try:
            world.run_for(60_000)
            finished = world.crash_at is not None
        except Crash:
            finished = False
            world.places = 4
            world.crash_at = None
            world.restart()
        world.crash_at = None
        runs = [run for run in world.runs() if run.scheduled_for_ms == due_ms]
        assert len(runs) == 1, world.order
        begun = [each for each in world.machine.processes.values() if each.begun]
        if runs[0].status == "lost":
            assert not begun, "a run that is lost at a start has not begun"
        else:
            assert len(begun) == (1 if finished is False or places else 0)
        assert (world.cursor(task).next_at_ms or 0) > (due_ms or 0)
        world.close()
        if finished:
            return
    raise AssertionError("the scenario has more effects than were tried")


def test_a_crash_between_commit_and_gate_is_a_run_whose_command_never_began(world: World) -> None:
    task = world.task()
    world.crash_at = world.effects + 5  # fork, log, shard, before commit, commit
    with pytest.raises(Crash):
        world.manual(task)
    assert world.restart().ended == 1
    assert world.run().status == "lost"
    assert world.run().error_code == "RECOVERY_PROCESS_NOT_RUNNING"


def test_a_child_that_is_gone_at_the_gate_is_a_failed_start(world: World) -> None:
    world.gate_fails = True
    run = world.manual(world.task())
    assert (run.status, run.error_code) == ("failed", "EXECUTOR_START_FAILED")
    assert world.attempt().evidence == "none"
    assert len(world.coordinator.registry) == 0
    assert world.machine.processes == {}


@pytest.mark.parametrize(
    "refusal",
    [
        Refused("cwd_unavailable", "No."),
        Corrupt("wrapper_changed", "No."),
    ],
)
def test_a_permanent_refusal_is_a_failed_run_with_its_code(
    world: World, refusal: Refused | Corrupt
) -> None:
    world.launcher.refusal = refusal
    run = world.manual(world.task(retry=2))
    assert (run.status, run.error_code) == ("failed", refusal.code)
    assert (world.journal(), world.machine.logs) == ([], {})
    assert world.events()[-4:] == [
        "run.dispatching",
        "attempt.starting",
        "attempt.failed",
        "run.failed",
    ]
    assert world.settled == [run]


def test_a_child_that_refuses_is_a_failed_run_and_moves_the_cursor(world: World) -> None:
    """ADR-0024 verification 5: a secret that does not open is told like this, before any log."""
    task = world.task(cron="* * * * *")
    due_ms = world.cursor(task).next_at_ms
    world.launcher.child_refusal = Refused("nice_refused", "No.")
    world.run_for(60_000)
    assert (world.run().status, world.run().error_code) == ("failed", "nice_refused")
    assert not {"log", "receipt shard"} & set(world.order)
    assert world.cursor(task).last_scheduled_ms == due_ms
    assert world.machine.processes == {}


def test_a_child_that_is_never_ready_is_given_up_and_tried_again(world: World) -> None:
    world.launcher.ready = False
    task = world.task()
    world.ask(task)
    world.run_for(10_000)
    assert world.run().status == "queued"
    assert world.dispatcher.degraded == {1: "launch_timed_out"}
    assert world.machine.processes == {}
    world.launcher.ready = True
    world.run_for(1_000)
    assert world.run().status == "running"
    assert world.dispatcher.degraded == {}


@pytest.mark.parametrize("error", [OSError(24, "files"), Unavailable("log_capacity", "No.")])
def test_what_passes_leaves_the_claim(world: World, error: Exception) -> None:
    world.logs.refusal = error
    task = world.task()
    world.ask(task)
    world.settle()
    assert (world.run().status, world.attempt().status) == ("queued", "claimed")
    assert (world.journal(), world.machine.processes) == ([], {})
    world.logs.refusal = None
    world.run_for(1_000)
    assert world.run().status == "running"
    assert world.attempt().attempt == 1


def test_an_edit_in_flight_leaves_the_run_its_own_revision(world: World) -> None:
    world.launcher.ready = False
    task = world.task(cron="* * * * *")
    world.run_for(60_000)
    edited = world.task(cron="* * * * *", timeout_ms=5_000)
    assert edited.revision == task.revision + 1
    (launch,) = world.launcher.launches
    world.machine.wake(launch.gate_fd)
    world.settle()
    assert (world.run().status, world.run().revision) == ("running", task.revision)


@pytest.mark.parametrize("how", ["disabled", "paused", "dropped"])
def test_an_occurrence_in_flight_is_not_admitted_any_more(world: World, how: str) -> None:
    world.launcher.ready = False
    task = world.task(cron="* * * * *")
    world.run_for(60_000)
    if how == "disabled":
        world.enable(task, enabled=False)
    elif how == "paused":
        world.pause(paused=True)
    else:
        world.task(every="1h")
    (launch,) = world.launcher.launches
    world.machine.wake(launch.gate_fd)
    world.settle()
    assert (world.runs(), world.machine.processes) == ([], {})
    world.run_for(300_000)
    assert world.runs() == []


def test_a_resumed_occurrence_is_a_misfire_like_any_other(world: World) -> None:
    world.launcher.ready = False
    task = world.task(cron="* * * * *")
    due_ms = world.cursor(task).next_at_ms
    world.run_for(60_000)
    world.pause(paused=True)
    world.machine.wake(world.launcher.launches[0].gate_fd)
    world.launcher.ready = True
    world.run_for(10_000)
    world.pause(paused=False)
    assert world.runs()[0].scheduled_for_ms == due_ms


def test_an_owner_that_stops_leaves_what_was_at_its_gate_to_the_next(world: World) -> None:
    world.launcher.ready = False
    world.ask(world.task())
    world.settle()
    world.dispatcher.close()
    assert (world.run().status, world.machine.processes) == ("queued", {})
    world.restart()
    assert world.run().status == "running"
