"""Stop, time-out, settle: intent, then signal, then proof, then the end."""

from __future__ import annotations

import pytest

from qinglong_edge.core.errors import EdgeError, Refused, Unavailable
from qinglong_edge.core.evidence import Exit
from tests.execution.world import NO_SPACE, Crash, World

MINUTE = 60_000


def _code(error: EdgeError | None) -> str | None:
    return None if error is None else error.code


def _stubborn(world: World) -> None:
    world.process().obeys = False


def test_a_stop_is_intended_before_it_is_signalled_and_proven_before_it_is_told(
    world: World,
) -> None:
    world.manual(world.task())
    world.order.clear()
    answers = world.stop()
    world.run_for(100)
    assert answers == [None]
    run = world.run()
    assert (run.status, run.cancel_reason, run.error_code) == (
        "cancelled",
        "user",
        "EXECUTION_CANCELLED",
    )
    assert (world.attempt().exit_code, world.attempt().signal) == (143, 15)
    assert world.attempt().evidence == "receipt"
    assert world.order[:2] == ["before commit", "commit"]
    assert world.events()[-3:] == ["run.cancel_requested", "attempt.cancelled", "run.cancelled"]
    assert world.machine.signals == [(world.attempt().pid, 15)]


def test_an_intent_that_cannot_be_stored_signals_nothing(world: World) -> None:
    world.manual(world.task())
    world.refuse = NO_SPACE
    with pytest.raises(Unavailable):
        world.stop()
    world.run_for(MINUTE)
    assert (world.machine.signals, world.run().cancel_reason) == ([], None)
    world.refuse = None
    world.stop()
    world.run_for(100)
    assert world.run().status == "cancelled"


def test_who_does_not_listen_is_killed_after_the_grace(world: World) -> None:
    world.manual(world.task(grace_ms=3_000))
    _stubborn(world)
    answers = world.stop()
    world.run_for(2_900)
    assert [number for _pid, number in world.machine.signals] == [15]
    world.run_for(1_000)
    assert [number for _pid, number in world.machine.signals] == [15, 9]
    assert (world.run().status, world.attempt().signal) == ("cancelled", 9)
    assert (world.attempt().evidence, answers) == ("identity", [None])


def test_a_second_stop_shortens_the_grace_and_both_are_answered(world: World) -> None:
    world.manual(world.task(grace_ms=60_000))
    _stubborn(world)
    first = world.stop()
    world.run_for(1_000)
    second = world.stop(grace_ms=500)
    world.run_for(1_000)
    assert (first, second) == ([None], [None])
    assert [number for _pid, number in world.machine.signals] == [15, 9]
    assert world.events().count("run.cancel_requested") == 1


def test_the_first_reason_stays(world: World) -> None:
    world.manual(world.task(timeout_ms=1_000, grace_ms=10_000))
    _stubborn(world)
    world.run_for(2_000)
    assert world.run().cancel_reason == "timeout"
    world.stop(grace_ms=0)
    world.run_for(1_000)
    assert (world.run().status, world.run().error_code) == ("timed_out", "EXECUTION_TIMED_OUT")


@pytest.mark.parametrize("code", [0, 1, 143])
def test_a_timed_out_run_is_timed_out_whatever_its_code(world: World, code: int) -> None:
    world.manual(world.task(timeout_ms=5_000))
    _stubborn(world)
    world.run_for(5_000)
    world.end(code=code)
    world.run_for(100)
    assert (world.run().status, world.attempt().exit_code) == ("timed_out", code)


@pytest.mark.parametrize(
    ("code", "status", "error"), [(0, "succeeded", None), (3, "failed", "EXECUTION_FAILED")]
)
def test_a_command_that_ended_in_time_is_not_timed_out_by_what_it_left_behind(
    world: World, code: int, status: str, error: str | None
) -> None:
    """What holds its output open holds its receipt for 2 s, over the deadline maybe."""
    world.manual(world.task(timeout_ms=1_000))
    process = world.process()
    process.obeys = False
    world.run_for(500)
    receipt = process.receipt(code)
    world.run_for(500)
    assert world.machine.signals == [(process.pid, 15)]
    process.say(b"late " + receipt.encode() + b"\n")
    world.machine.receipts[receipt.attempt_id] = receipt
    process.die(Exit(code=code, signal=None))
    world.run_for(100)
    run, attempt = world.run(), world.attempt()
    assert (run.status, run.error_code) == (status, error)
    assert (attempt.exit_code, attempt.signal, attempt.evidence) == (code, None, "receipt")


def test_a_deadline_runs_on_boottime(world: World) -> None:
    world.manual(world.task(timeout_ms=MINUTE))
    world.clock.step(365 * 86_400_000)
    world.run_for(MINUTE - 1)
    assert world.run().cancel_reason is None
    world.run_for(101)
    assert world.run().status == "timed_out"


def test_a_deadline_on_a_full_disk_is_tried_again(world: World) -> None:
    world.manual(world.task(timeout_ms=1_000))
    world.refuse = NO_SPACE
    world.run_for(2 * MINUTE)
    assert world.machine.signals == []
    world.refuse = None
    world.run_for(30_100)
    assert world.run().status == "timed_out"


def test_a_deadline_of_a_run_that_ended_in_time_does_nothing(world: World) -> None:
    world.manual(world.task(timeout_ms=MINUTE))
    world.end()
    world.commits.clear()
    world.run_for(2 * MINUTE)
    assert (world.run().status, world.commits) == ("succeeded", [])


def test_a_queued_run_is_cancelled_at_once(world: World) -> None:
    task = world.task(overlap="queue")
    world.manual(task)
    world.manual(task)
    assert world.stop(2) == [None]
    assert (world.run(2).status, world.attempt(2).status) == ("cancelled", "cancelled")
    assert world.events(2)[-3:] == ["run.cancel_requested", "attempt.cancelled", "run.cancelled"]
    world.end(1)
    assert world.statuses() == ["succeeded", "cancelled"]


def test_a_run_that_waits_for_its_retry_is_cancelled_at_once(world: World) -> None:
    world.manual(world.task(retry=1))
    world.end(code=1)
    assert world.stop() == [None]
    assert (world.run().status, world.run().retry_at_ms) == ("cancelled", None)
    world.run_for(10 * MINUTE)
    assert (world.run().status, world.attempt().attempt) == ("cancelled", 1)


def test_a_run_at_its_gate_is_cancelled_and_never_begins(world: World) -> None:
    task = world.task(overlap="queue")
    world.manual(task)
    world.manual(task)
    world.launcher.ready = False
    world.end(1)
    assert list(world.starter.launching) == [2]
    assert world.stop(2) == [None]
    assert world.starter.launching == {}
    world.run_for(MINUTE)
    assert world.run(2).status == "cancelled"
    assert [process.begun for process in world.machine.processes.values()] == [True]
    assert world.dispatcher.waiting == 0


def test_a_stop_at_the_gate_that_cannot_be_stored_changes_nothing(world: World) -> None:
    task = world.task(overlap="queue")
    world.manual(task)
    world.manual(task)
    world.launcher.ready = False
    world.end(1)
    world.refuse = NO_SPACE
    with pytest.raises(Unavailable):
        world.stop(2)
    world.refuse = None
    world.launcher.ready = True
    world.machine.wake(world.launcher.launches[-1].gate_fd)
    world.settle()
    assert world.run(2).status == "running"


def test_an_adopted_run_is_stopped_by_its_identity(world: World) -> None:
    world.manual(world.task())
    world.restart()
    answers = world.stop()
    world.run_for(100)
    assert answers == [None]
    assert (world.run().status, world.attempt().exit_code) == ("cancelled", 143)


def test_survivors_of_an_adopted_run_are_named_and_never_signalled(world: World) -> None:
    """Who was asked to stop is not stopped while its session lives, whatever the receipt says."""
    world.manual(world.task())
    world.restart()
    process = world.process()
    process.obeys = False
    answers = world.stop()
    process.machine.receipts[world.attempt().id] = process.receipt(143)
    process.die(Exit(code=143, signal=None), leaving=frozenset({4242}))
    world.run_for(10_000)
    assert [_code(error) for error in answers] == ["stop_unproven"]
    assert (world.run().status, world.hold()) == ("running", "escaped")
    assert [number for _pid, number in world.machine.signals] == [15]
    world.restart()
    assert (world.run().status, world.hold()) == ("running", "escaped")
    process.pids.clear()
    world.run_for(30_000)
    assert (world.run().status, world.attempt().exit_code) == ("cancelled", 143)


def test_an_own_wrapper_that_ended_still_leads_its_group(world: World) -> None:
    world.manual(world.task(grace_ms=1_000))
    process = world.process()
    process.obeys = False
    answers = world.stop()
    process.die(Exit(code=0, signal=None), leaving=frozenset({4242}))
    world.run_for(5_000)
    assert [number for _pid, number in world.machine.signals] == [15, 9]
    assert (world.run().status, answers) == ("cancelled", [None])


def test_a_receipt_during_a_stop_waits_for_the_proof(world: World) -> None:
    world.manual(world.task())
    _stubborn(world)
    world.stop()
    process = world.process()
    process.say(b"whole " + process.receipt(0).encode() + b"\n")
    assert (world.run().status, process.acknowledged) == ("running", False)
    assert not process.listens  # so it leaves its file
    process.die(Exit(code=0, signal=None))
    world.run_for(200)
    assert (world.run().status, world.attempt().exit_code) == ("cancelled", 0)
    assert world.attempt().evidence == "receipt"


def test_everybody_who_waits_for_a_stop_that_fails_is_told(world: World) -> None:
    world.manual(world.task(grace_ms=100))
    process = world.process()
    process.obeys, process.unkillable = False, True
    first = world.stop()
    second = world.stop()
    world.run_for(10_000)
    assert [_code(error) for error in (*first, *second)] == ["stop_unproven"] * 2
    assert world.hold() == "survivors"
    process.unkillable = False
    third = world.stop(grace_ms=0)
    world.run_for(1_000)
    assert (third, world.run().status) == ([None], "cancelled")


def test_what_a_stop_left_behind_is_looked_at_every_half_minute(world: World) -> None:
    world.manual(world.task(grace_ms=100))
    process = world.process()
    process.obeys, process.unkillable = False, True
    world.stop()
    world.run_for(200)
    process.die(Exit(code=None, signal=9), leaving=frozenset({4242}))
    world.run_for(10_000)
    assert world.hold() == "survivors"
    world.machine.unknown = "provider_unavailable"
    world.stop()  # signals nothing, and the signal of the first one is not forgotten
    world.machine.unknown = None
    process.pids.clear()
    world.run_for(30_000)
    assert (world.run().status, world.attempt().signal) == ("cancelled", 9)


def test_a_stop_whose_end_cannot_be_stored_is_told_so_and_ends_later(world: World) -> None:
    world.manual(world.task())
    world.process().obeys = False
    answers = world.stop()
    world.refuse = NO_SPACE
    world.end(code=143)
    world.run_for(1_000)
    assert [_code(error) for error in answers] == ["stop_unproven"]
    assert world.hold() == "storage"
    world.refuse = None
    world.run_for(30_000)
    assert world.run().status == "cancelled"


def test_a_stop_that_nobody_could_prove_goes_on_with_the_maintenance(world: World) -> None:
    world.manual(world.task(timeout_ms=1_000))
    world.machine.unknown = "provider_unavailable"
    world.run_for(2_000)
    assert (world.machine.signals, world.hold()) == ([], "provider_unavailable")
    world.machine.unknown = None
    world.run_for(301_000)
    assert world.run().status == "timed_out"


def test_an_ended_run_cannot_be_stopped(world: World) -> None:
    world.manual(world.task())
    world.end()
    with pytest.raises(Refused) as caught:
        world.stop()
    assert caught.value.code == "run_ended"


def _settle(world: World, status: str = "failed") -> str | None:
    try:
        world.control.settle(world.run(), status=status, reason="gone", actor="user:0")
    except EdgeError as error:
        return error.code
    return None


@pytest.mark.parametrize("status", ["lost", "failed", "cancelled"])
def test_an_operator_settles_what_cannot_be_proven(world: World, status: str) -> None:
    world.manual(world.task(retry=3, retry_on=("failed", "lost"), repeatable=True))
    world.machine.unknown = "other_namespace"
    world.restart()
    assert _settle(world, status) is None
    run = world.run()
    assert (run.status, run.error_code, world.hold()) == (status, "SETTLED_BY_OPERATOR", None)
    assert world.attempt().evidence == "operator"
    event = list(world.store.runs.events(1))[-2]
    assert (event[2], event[3].facts["reason"]) == ("user:0", "gone")
    world.run_for(10 * MINUTE)
    assert world.run().status == status


def test_what_is_alive_waits_or_is_being_stopped_is_not_settled(world: World) -> None:
    task = world.task(overlap="queue")
    world.manual(task)
    assert _settle(world) == "identity_alive"
    _stubborn(world)
    world.stop()
    assert _settle(world) == "run_stopping"
    world.manual(task)
    with pytest.raises(Refused) as caught:
        world.control.settle(world.run(2), status="lost", reason="x", actor="user:0")
    assert caught.value.code == "run_not_held"


def test_a_settlement_that_cannot_be_stored_is_refused(world: World) -> None:
    world.manual(world.task())
    world.machine.unknown = "other_namespace"
    world.restart()
    world.refuse = NO_SPACE
    assert _settle(world) == "no_space"
    world.refuse = None
    assert _settle(world) is None


def test_a_stop_of_everything_ends_within_its_bound(world: World) -> None:
    for name in "abc":
        world.manual(world.task(name, grace_ms=MINUTE))
    world.process(2).obeys = False
    done: list[bool] = []
    world.scheduler.close()
    world.dispatcher.close()
    world.control.stop_all(reason="shutdown", grace_ms=1_000, done=lambda: done.append(True))
    world.run_for(2_000)
    assert done == [True]
    assert {run.cancel_reason for run in world.runs()} == {"shutdown"}
    assert world.statuses() == ["cancelled"] * 3


def test_a_stop_of_nothing_is_over_at_once(world: World) -> None:
    done: list[bool] = []
    world.control.stop_all(reason="shutdown", grace_ms=0, done=lambda: done.append(True))
    assert done == [True]


def test_a_stop_of_everything_on_a_full_disk_is_over_too(world: World) -> None:
    world.manual(world.task())
    world.refuse = NO_SPACE
    done: list[bool] = []
    world.control.stop_all(reason="shutdown", grace_ms=0, done=lambda: done.append(True))
    assert (done, world.machine.signals) == ([True], [])


def test_a_stop_that_an_owner_did_not_finish_is_finished_by_the_next(world: World) -> None:
    world.manual(world.task())
    world.crash_at = world.effects + 2  # the intent is stored, nothing was signalled
    with pytest.raises(Crash):
        world.stop()
    assert world.machine.signals == []
    world.restart()
    world.run_for(200)
    assert (world.run().status, world.run().cancel_reason) == ("cancelled", "user")
