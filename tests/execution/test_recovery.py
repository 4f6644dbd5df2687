"""P2 and P5: what the next owner makes of what the last one left, and the maintenance."""

from __future__ import annotations

from pathlib import Path

import pytest

from qinglong_edge.core.evidence import Exit
from qinglong_edge.execution.recovery import Recovered
from tests.execution.world import NO_SPACE, Crash, World

MINUTE = 60_000


def test_nothing_to_recover_reads_nothing_and_writes_nothing(world: World) -> None:
    world.commits.clear()
    world.order.clear()
    assert world.restart() == Recovered()
    assert (world.commits, world.order) == ([], [])


def test_an_authentic_receipt_ends_a_run_before_any_process_is_asked(world: World) -> None:
    world.manual(world.task())
    world.run_for(2_000)
    world.crash()
    world.process_of_machine().end(3)
    world.clock.move(8 * 3_600_000)
    world.machine.unknown = "hidden_process"
    assert world.start() == Recovered(scanned=1, ended=1)
    run, attempt = world.run(), world.attempt()
    assert (run.status, attempt.exit_code, attempt.evidence) == ("failed", 3, "receipt")
    assert (run.finished_at_ms or 0) - (run.started_at_ms or 0) == 2_000
    assert (world.machine.receipts, world.journal()) == ({}, [])


def test_a_living_process_is_adopted_and_its_real_end_is_recorded(world: World) -> None:
    world.manual(world.task())
    for _ in range(3):
        assert world.restart() == Recovered(scanned=1, adopted=1)
    assert [process.begun for process in world.machine.processes.values()] == [True]
    world.end(code=9)
    attempt = world.attempt()
    assert (attempt.exit_code, attempt.evidence) == (9, "receipt")
    assert "acknowledged" not in world.order


def test_an_adopted_run_holds_its_place_and_its_task(tmp_path: Path) -> None:
    world = World(tmp_path, places=1)
    world.start()
    task = world.task(cron="* * * * *")
    world.run_for(MINUTE)
    world.restart()
    world.run_for(3 * MINUTE)
    assert world.statuses() == ["running"]
    assert world.manual(world.task("other")).status == "queued"
    world.end()
    world.run_for(MINUTE)
    assert "running" in world.statuses()
    assert world.cursor(task).skipped == 3
    world.close()


def test_an_adopted_run_keeps_its_deadline(world: World) -> None:
    world.manual(world.task(timeout_ms=10 * MINUTE))
    world.run_for(4 * MINUTE)
    world.restart()
    world.run_for(6 * MINUTE - 1)
    assert world.run().cancel_reason is None
    world.run_for(200)
    assert world.run().status == "timed_out"


def test_a_deadline_that_passed_while_nobody_was_there_comes_at_once(world: World) -> None:
    world.manual(world.task(timeout_ms=MINUTE))
    world.crash()
    world.clock.move(3_600_000)
    world.start()
    world.run_for(200)
    assert world.run().status == "timed_out"


@pytest.mark.parametrize("boot", [False, True])
def test_a_process_that_is_gone_without_a_word_is_lost(world: World, boot: bool) -> None:
    world.manual(world.task())
    world.crash()
    if boot:
        world.machine.restart()
    else:
        world.process_of_machine().die(Exit(code=None, signal=9))
    assert world.start() == Recovered(scanned=1, ended=1)
    run = world.run()
    assert (run.status, run.error_code) == ("lost", "RECOVERY_PROCESS_NOT_RUNNING")
    assert (run.finished_at_ms, world.attempt().evidence) == (world.clock.wall, "identity")


def test_a_reused_pid_is_neither_adopted_nor_signalled(world: World) -> None:
    world.manual(world.task())
    world.crash()
    process = world.process_of_machine()
    process.ticks += 1
    world.start()
    assert world.run().status == "lost"
    assert world.machine.signals == []


def test_survivors_without_their_leader_are_held_and_named(world: World) -> None:
    world.manual(world.task())
    world.crash()
    process = world.process_of_machine()
    process.die(Exit(code=None, signal=9), leaving=frozenset({4242}))
    assert world.start() == Recovered(scanned=1, held=1)
    assert world.hold() == "escaped"
    process.pids.clear()
    world.run_for(30_000)
    assert world.run().status == "lost"


def test_what_cannot_be_told_is_held_and_judged_again(world: World) -> None:
    world.manual(world.task())
    world.machine.unknown = "other_namespace"
    assert world.restart() == Recovered(scanned=1, held=1)
    assert (world.run().status, world.hold()) == ("running", "other_namespace")
    world.machine.unknown = None
    world.run_for(5 * MINUTE)
    assert (world.run().status, world.hold()) == ("running", None)
    world.end()
    assert world.run().status == "succeeded"


def test_a_receipt_nobody_can_believe_is_quarantined_and_the_rest_decides(world: World) -> None:
    world.manual(world.task())
    attempt_id = world.attempt().id
    world.crash()
    world.machine.receipts[attempt_id] = None
    world.start()
    assert (world.run().status, world.journal()) == ("running", [(1, "quarantined")])
    assert world.machine.quarantined == {attempt_id}
    world.process().die(Exit(code=None, signal=9))
    world.settle()
    assert world.run().status == "lost"


def test_an_interrupted_quarantine_is_finished_and_blocks_no_start(world: World) -> None:
    world.manual(world.task())
    attempt_id = world.attempt().id
    world.crash()
    world.machine.receipts[attempt_id] = None
    world.crash_at = world.effects + 1  # the intent is stored, the move is the first effect
    with pytest.raises(Crash):
        world.start()
    world.machine.receipts[attempt_id] = None
    world.machine.quarantined.clear()
    world.clock.move(MINUTE)
    world.restart()
    assert (world.run().status, world.machine.quarantined) == ("running", {attempt_id})


@pytest.mark.parametrize(("reason", "status"), [("user", "cancelled"), ("timeout", "timed_out")])
def test_a_stop_that_was_asked_for_and_a_process_that_is_gone_agree(
    world: World, reason: str, status: str
) -> None:
    world.manual(world.task())
    world.process().obeys = False
    active = world.coordinator.registry.get(1)
    assert active is not None
    world.control.stop_active(active, reason=reason, actor="user:0", grace_ms=None, done=None)
    world.crash()
    world.machine.restart()
    world.start()
    assert world.run().status == status


def test_a_stop_goes_on_in_the_next_owner(world: World) -> None:
    world.manual(world.task(grace_ms=1_000))
    world.process().obeys = False
    world.stop()
    world.restart()
    world.run_for(2_000)
    assert (world.run().status, world.attempt().signal) == ("cancelled", 9)


def test_recovering_twice_is_recovering_once(world: World) -> None:
    task = world.task()
    world.manual(task)
    world.restart()
    commits = len(world.commits)
    assert world.recovery.recover() == Recovered()
    assert (len(world.commits), len(world.coordinator.registry)) == (commits, 1)
    world.end()
    assert world.manual(task).status == "running"


def test_one_that_fails_is_held_and_the_rest_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        world.manual(world.task(name))
    world.crash()
    for process in list(world.machine.processes.values()):
        process.die(Exit(code=None, signal=9))
    inspect, bad = world.machine.inspect, min(world.machine.processes)

    def broken(target: object) -> object:
        if getattr(target, "pid", None) == bad:
            raise OSError(5, "device")
        return inspect(target)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(world.machine, "inspect", broken)
        assert world.start() == Recovered(scanned=3, ended=2, held=1)
    assert world.statuses() == ["running", "lost", "lost"]
    world.run_for(5 * MINUTE)
    assert world.statuses() == ["lost"] * 3


def test_a_full_disk_holds_what_it_cannot_record_and_starts(world: World) -> None:
    world.manual(world.task())
    world.crash()
    world.machine.restart()
    world.refuse = NO_SPACE
    assert world.start() == Recovered(scanned=1, held=1)
    assert world.hold() == "storage"
    world.refuse = None
    world.run_for(30_000)
    assert world.run().status == "lost"


def test_more_runs_than_a_page_are_all_recovered(tmp_path: Path) -> None:
    world = World(tmp_path, places=150)
    world.start()
    task = world.task(overlap="parallel", parallel_max=64)
    other = world.task("other", overlap="parallel", parallel_max=64)
    for _ in range(64):
        world.manual(task)
        world.manual(other)
    world.crash()
    world.machine.restart()
    assert world.start() == Recovered(scanned=128, ended=128)
    world.close()


def test_a_one_shot_owner_knows_who_holds_a_place_and_judges_nobody(world: World) -> None:
    task = world.task()
    world.manual(task)
    world.crash()
    world.machine.restart()
    world._open()
    world.recovery.load()
    world.dispatcher.load()
    assert (world.run().status, world.refused(task)) == ("running", "overlap_skipped")


@pytest.mark.parametrize("moment", range(1, 12))
def test_an_owner_that_dies_at_any_effect_of_an_end_invents_and_loses_nothing(
    world: World, moment: int
) -> None:
    world.manual(world.task())
    process = world.process()
    world.crash_at = world.effects + moment
    try:
        world.end(code=5)
    except Crash:
        world.crash_at = None
        if not process.acknowledged:
            world.machine.receipts.setdefault(process.plan.attempt_id, process.receipt(5))
        process.exit = Exit(code=5, signal=None)
        process.pids.clear()
        world.restart()
    world.crash_at = None
    world.run_for(5 * MINUTE + 86_400_000)
    assert (world.run().status, world.attempt().exit_code) == ("failed", 5)
    assert world.attempt().evidence == "receipt"
    assert (world.machine.receipts, world.journal()) == ({}, [])


def test_the_maintenance_is_one_timer_that_starts_and_stops_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ADR-0069 verification 7: explicit, without overlap, idempotent."""
    world.sweep.stop()
    world.sweep.stop()
    world.manual(world.task())
    world.end()
    world.run_for(10 * MINUTE)
    assert world.journal() == [(1, "pending")]
    ticks: list[int] = []

    def tick() -> int:
        ticks.append(world.clock.boot)
        return 0

    monkeypatch.setattr(world.retention, "sweep", tick)
    world.sweep.start()
    world.sweep.start()
    begun = world.clock.boot
    world.run_for(11 * MINUTE)
    assert world.journal() == []
    assert [tick - begun for tick in ticks] == [5 * MINUTE, 10 * MINUTE]


def test_the_cleanup_takes_ended_attempts_and_leaves_active_ones(world: World) -> None:
    """ADR-0069 verification 7: only the exact file of an ended attempt."""
    world.manual(world.task("active"))
    active = world.attempt(1).id
    world.machine.receipts[active] = world.process(1).receipt(0)
    world.manual(world.task("ended"))
    world.receipts.error = OSError(5, "device")
    world.process(2).end(0, publish=True)
    world.settle()
    ended = world.attempt(2).id
    world.machine.receipts.setdefault(ended, None)
    world.receipts.error = None
    world.run_for(5 * MINUTE)
    assert list(world.machine.receipts) == [active]
    assert world.journal() == [(1, "pending")]


def three_ended(world: World) -> None:
    """Three runs that are over."""
    task = world.task()
    for _ in range(3):
        world.manual(task)
        world.end(world.runs()[-1].number)


def test_history_beyond_its_bounds_goes_log_first(world: World) -> None:
    three_ended(world)
    world.run_for(MINUTE)
    world.coordinator.flush()
    world.sweep.stop()
    world.clock.move(31 * 86_400_000)
    world.order.clear()
    world.sweep.run_once()
    assert [run.number for run in world.runs()] == [3]
    assert world.order == ["log removed", "log removed"]
    assert len(world.machine.logs) == 1


def test_an_untrusted_clock_prunes_nothing_by_age(world: World) -> None:
    three_ended(world)
    world.coordinator.flush()
    world.clock.step(-40 * 86_400_000)
    world.run_for(30_000)
    assert world.doubted()
    world.sweep.run_once()
    assert len(world.runs()) == 3


def test_a_step_from_a_clock_that_was_months_behind_ages_no_run_of_this_boot(world: World) -> None:
    three_ended(world)
    world.coordinator.flush()
    world.clock.step(90 * 86_400_000)
    world.sweep.run_once()
    assert len(world.runs()) == 3
    world.clock.move(31 * 86_400_000)
    world.sweep.run_once()
    assert [run.number for run in world.runs()] == [3]


def test_the_number_of_runs_is_bounded_whenever_they_were_made(world: World) -> None:
    three_ended(world)
    world.coordinator.flush()
    world.sweep._keep_runs = 2
    world.clock.step(90 * 86_400_000)
    world.sweep.run_once()
    assert [run.number for run in world.runs()] == [2, 3]


def test_a_maintenance_that_fails_is_named_and_done_next_time(world: World) -> None:
    world.manual(world.task())
    world.end()
    world.refuse = NO_SPACE
    world.run_for(5 * MINUTE)
    assert world.degraded() == "no_space"
    world.refuse = None
    world.run_for(5 * MINUTE)
    assert world.journal() == []
    assert world.degraded() is None
