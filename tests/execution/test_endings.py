"""From a running process to a true end, by the order of evidence."""

from __future__ import annotations

from typing import Any

import pytest

from qinglong_edge.core.evidence import Exit
from tests.execution.world import NO_SPACE, QUOTA, World


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        (0, "succeeded", None),
        (1, "failed", "EXECUTION_FAILED"),
        (126, "failed", "EXECUTION_FAILED"),
        (127, "failed", "EXECUTION_FAILED"),
        (137, "failed", "EXECUTION_FAILED"),
        (255, "failed", "EXECUTION_FAILED"),
    ],
)
def test_a_receipt_ends_a_run_by_its_code(
    world: World, code: int, status: str, error: str | None
) -> None:
    world.manual(world.task())
    world.run_for(1_500)
    world.end(code=code)
    run, attempt = world.run(), world.attempt()
    assert (run.status, run.error_code) == (status, error)
    assert (attempt.status, attempt.exit_code, attempt.signal) == (status, code, None)
    assert (attempt.evidence, attempt.callback_sequence) == ("receipt", 1)
    assert (run.finished_at_ms or 0) - (run.started_at_ms or 0) == 1_500
    assert world.events()[-2:] == [f"attempt.{status}", f"run.{status}"]
    assert world.settled == [run]
    assert len(world.coordinator.registry) == 0


def test_a_receipt_is_acknowledged_only_after_its_commit(world: World) -> None:
    """ADR-0069 verification 6: commit, then the file, then the journal row."""
    world.manual(world.task())
    world.order.clear()
    world.end()
    assert world.order == ["before commit", "commit", "acknowledged", "reaped", "receipt removed"]
    assert world.machine.receipts == {}
    assert world.journal() == [(1, "pending")]
    world.manual(world.task("next"))
    assert world.journal() == [(2, "pending")]


def test_the_last_row_goes_with_the_maintenance(world: World) -> None:
    world.manual(world.task())
    world.end()
    world.run_for(300_000)
    assert world.journal() == []
    world.commits.clear()
    world.run_for(3_600_000)
    assert world.commits == []


def test_a_receipt_that_cannot_be_stored_is_not_acknowledged(world: World) -> None:
    world.manual(world.task())
    world.refuse = NO_SPACE
    world.end(code=7)
    assert "acknowledged" not in world.order
    assert (world.run().status, world.hold()) == ("running", "storage")
    assert list(world.machine.receipts) == [world.attempt().id]
    assert "reaped" not in world.order
    world.run_for(60_000)
    world.refuse = None
    world.run_for(30_000)
    assert (world.run().status, world.attempt().exit_code) == ("failed", 7)
    assert (world.attempt().evidence, world.hold()) == ("receipt", None)
    assert world.machine.receipts == {}
    assert world.order[-1] == "receipt removed"


def test_a_file_that_stays_keeps_its_journal_row(world: World) -> None:
    world.manual(world.task())
    world.receipts.error = OSError(5, "device")
    world.end()
    world.manual(world.task("next"))
    assert world.run().status == "succeeded"
    assert world.journal() == [(1, "pending"), (2, "pending")]
    world.receipts.error = None
    world.run_for(300_000 + 86_400_000)
    assert world.journal() == [(2, "pending")]


@pytest.mark.parametrize(
    "lie",
    [
        {"token": "x" * 43},
        {"callback_sequence": 2},
        {"run_id": "019f7200-0000-7000-8000-0000000000ff"},
        {"attempt_id": "019f7200-0000-7000-8000-0000000000ff"},
        {"started_at_ms": 1},
    ],
)
def test_a_receipt_that_lies_ends_nothing_and_is_quarantined_intent_first(
    world: World, monkeypatch: pytest.MonkeyPatch, lie: dict[str, Any]
) -> None:
    """ADR-0069 verification 6: the intent is durable before the file is moved."""
    world.manual(world.task())
    rows: list[list[tuple[int, str]]] = []
    move = world.receipts.quarantine

    def look(attempt_id: str) -> bool:
        rows.append(world.journal())
        return move(attempt_id)

    monkeypatch.setattr(world.receipts, "quarantine", look)
    process = world.process()
    process.say(b"whole " + process.receipt(0, **lie).encode() + b"\n")
    assert world.run().status == "running"
    assert not process.listens
    assert "acknowledged" not in world.order
    world.machine.receipts[world.attempt().id] = process.receipt(0, **lie)
    process.die(Exit(code=5, signal=None))
    world.settle()
    assert (world.run().status, world.attempt().exit_code) == ("failed", 5)
    assert world.attempt().evidence == "wait_status"
    assert world.machine.quarantined == {world.attempt().id}
    assert rows == [[(1, "quarantined")]]
    world.run_for(300_000)  # its end has gone through the maintenance, what it left is not due yet
    assert world.machine.quarantined == {world.attempt().id}
    assert world.journal() == [(1, "quarantined")]
    world.run_for(3_600_000)
    assert (world.machine.quarantined, world.journal()) == (set(), [])


@pytest.mark.parametrize(
    "data",
    [b"\n", b"whole\n", b"whole {}\n", b"{}\n", b"\xff\xfe\n", b"x" * 9_000],
)
def test_what_is_no_receipt_closes_the_channel_and_nothing_else(world: World, data: bytes) -> None:
    world.manual(world.task())
    process = world.process()
    process.say(data)
    assert (world.run().status, process.listens) == ("running", False)
    world.end()
    assert world.attempt().evidence == "receipt"


def test_a_receipt_in_two_parts_is_one(world: World) -> None:
    world.manual(world.task())
    process = world.process()
    line = b"whole " + process.receipt(0).encode() + b"\n"
    process.say(line[:50])
    assert world.run().status == "running"
    process.say(line[50:])
    assert (world.run().status, process.acknowledged) == ("succeeded", True)


def test_a_receipt_that_waits_in_a_dead_wrappers_channel_counts(world: World) -> None:
    world.manual(world.task())
    process = world.process()
    process.channel = b"whole " + process.receipt(3).encode() + b"\n"
    process.die(Exit(code=3, signal=None))
    world.settle()
    assert (world.attempt().evidence, world.attempt().exit_code) == ("receipt", 3)
    assert "acknowledged" not in world.order
    assert (world.order.count("reaped"), world.order.count("receipt removed")) == (1, 1)


def test_a_late_file_of_an_ended_run_is_removed_with_its_wrapper(world: World) -> None:
    world.manual(world.task())
    process = world.process()
    process.say(b"whole " + process.receipt(0).encode() + b"\n")
    assert world.run().status == "succeeded"
    world.machine.receipts[world.attempt().id] = process.receipt(0)  # published in the same moment
    process.die(Exit(code=0, signal=None))
    world.settle()
    assert world.machine.receipts == {}


def test_an_exit_without_a_receipt_is_its_wait_status(world: World) -> None:
    """A full disk: the wrapper could not publish, but its parent saw the code."""
    world.manual(world.task())
    world.process().die(Exit(code=4, signal=None))
    world.settle()
    attempt = world.attempt()
    assert (attempt.status, attempt.exit_code, attempt.evidence) == ("failed", 4, "wait_status")


def test_a_wait_status_that_cannot_be_stored_is_not_forgotten(world: World) -> None:
    world.manual(world.task())
    world.refuse = NO_SPACE
    world.process().die(Exit(code=4, signal=None))
    world.run_for(60_000)
    world.refuse = None
    world.run_for(30_000)
    assert (world.run().status, world.attempt().evidence) == ("failed", "wait_status")


@pytest.mark.parametrize("code", [0, 125, 126])
def test_a_command_that_was_never_reached_is_a_failed_start(world: World, code: int) -> None:
    world.manual(world.task())
    world.process().marked = False
    world.process().die(Exit(code=code, signal=None))
    world.settle()
    assert (world.run().status, world.run().error_code) == ("failed", "EXECUTOR_START_FAILED")
    assert (world.attempt().evidence, world.attempt().exit_code) == ("none", None)


def test_a_wrapper_that_was_killed_alone_is_held_while_its_session_lives(world: World) -> None:
    task = world.task()
    world.manual(task)
    process = world.process()
    process.die(Exit(code=None, signal=9), leaving=frozenset({4242}))
    world.settle()
    assert (world.run().status, world.hold()) == ("running", "escaped")
    assert "reaped" not in world.order
    assert world.refused(task) == "overlap_skipped"
    process.pids.clear()
    world.run_for(30_000)
    assert (world.run().status, world.attempt().evidence) == ("lost", "identity")
    assert world.run().error_code == "RECOVERY_PROCESS_NOT_RUNNING"


def test_a_wrapper_killed_before_its_command_waits_for_the_session_too(world: World) -> None:
    world.manual(world.task())
    process = world.process()
    process.marked = False
    process.die(Exit(code=None, signal=9), leaving=frozenset({4242}))
    world.settle()
    assert world.hold() == "escaped"
    process.pids.clear()
    world.run_for(30_000)
    assert world.run().error_code == "EXECUTOR_START_FAILED"


@pytest.mark.parametrize("what", ["identity", "session", "receipt"])
def test_unknown_is_never_read_as_dead(world: World, what: str) -> None:
    world.manual(world.task())
    if what == "identity":
        world.machine.unknown = "hidden_process"
    elif what == "session":
        world.machine.blind = True
    else:
        world.receipts.error = OSError(24, "files")
    world.process().die(Exit(code=None, signal=9))
    world.run_for(300_000)
    assert world.run().status == "running"
    assert world.hold() in ("hidden_process", "provider_unavailable", "receipt_unreadable")
    world.machine.unknown, world.machine.blind, world.receipts.error = None, False, None
    world.run_for(30_000)
    assert world.run().status == "lost"


def test_an_invalid_file_whose_intent_cannot_be_stored_waits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.manual(world.task())
    world.machine.receipts[world.attempt().id] = None

    def refuse(*_given: object, **_named: object) -> None:
        raise NO_SPACE

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "mark_quarantined", refuse)
        world.process().die(Exit(code=None, signal=9))
        world.settle()
        assert (world.run().status, world.hold()) == ("running", "no_space")
        assert world.machine.quarantined == set()
    world.run_for(30_000)
    assert world.run().status == "lost"
    assert world.machine.quarantined == {world.attempt().id}


def test_a_daemonised_grandchild_does_not_hold_a_run_that_ended(world: World) -> None:
    world.manual(world.task())
    process = world.process()
    process.say(b"late " + process.receipt(0).encode() + b"\n")
    process.die(Exit(code=0, signal=None), leaving=frozenset({4242}))
    world.settle()
    assert world.run().status == "succeeded"
    assert world.machine.signals == []


@pytest.mark.parametrize(
    ("word", "size", "fact", "told"),
    [
        ("whole", 100, None, (100, False)),
        ("whole", QUOTA, None, (QUOTA, None)),
        ("whole", QUOTA, True, (QUOTA, True)),
        ("cut", QUOTA, True, (QUOTA, True)),
        ("cut", QUOTA, None, (QUOTA, True)),
        ("late", 100, None, (None, None)),
        ("late", QUOTA, True, (None, True)),
    ],
)
def test_what_is_known_of_a_log_at_its_end(
    world: World, word: str, size: int, fact: bool | None, told: tuple[int | None, bool | None]
) -> None:
    world.manual(world.task())
    key = (world.run().id, world.attempt().id)
    world.machine.logs[key] = size
    if fact is not None:
        world.machine.facts[key] = fact
    world.end(word=word)
    assert (world.attempt().log_bytes, world.attempt().log_truncated) == told


def test_a_file_receipt_alone_does_not_tell_whether_a_log_is_whole(world: World) -> None:
    world.manual(world.task())
    world.crash()
    world.process_of_machine().end(0)
    world.start()
    assert (world.attempt().log_bytes, world.attempt().log_truncated) == (0, None)


def test_a_task_without_a_log_has_none(world: World) -> None:
    world.manual(world.task(log=False))
    world.end()
    assert (world.attempt().log_quota_bytes, world.attempt().log_bytes) == (0, None)
    assert world.machine.logs == {}


def test_an_unreadable_definition_does_not_keep_a_run_from_its_end(world: World) -> None:
    world.manual(world.task(retry=3))
    with world.store.database.write():
        world.store.database.execute("UPDATE revision SET definition = '{}'")
    world.end(code=1)
    assert world.run().status == "failed"


@pytest.mark.parametrize("adopted", [False, True])
def test_a_kernel_without_process_descriptors_is_asked_every_second(
    world: World, adopted: bool
) -> None:
    world.machine.pidfds = False
    world.manual(world.task())
    if adopted:
        world.restart()
    world.run_for(100_000)
    assert (world.run().status, world.hold()) == ("running", None)
    world.process().end(6)
    world.run_for(1_000)
    assert (world.run().status, world.attempt().exit_code) == ("failed", 6)
    assert world.attempt().evidence == "receipt"
    assert world.process().acknowledged is not adopted
    assert world.order.count("reaped") == (0 if adopted else 1)


def test_a_clock_that_steps_back_during_a_run_breaks_no_rule(world: World) -> None:
    world.manual(world.task())
    world.clock.step(-3_600_000)
    world.run_for(5_000)
    world.end()
    run = world.run()
    assert run.status == "succeeded"
    assert (run.finished_at_ms or 0) >= (run.started_at_ms or 0) >= run.created_at_ms
