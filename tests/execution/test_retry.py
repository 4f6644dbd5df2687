"""Which ended attempt is followed by another, and when."""

from __future__ import annotations

from typing import Any

import pytest

from qinglong_edge.core.evidence import Exit
from qinglong_edge.core.task import Definition
from qinglong_edge.execution.retry import backoff_ms, delay_ms
from tests.execution.world import World


def _definition(**fields: object) -> Definition:
    return Definition(**{"argv": ("/bin/true",), **fields})  # type: ignore[arg-type]


def test_the_delay_doubles_up_to_a_day() -> None:
    assert [backoff_ms(1_000, attempt) for attempt in range(1, 8)] == [
        1_000,
        2_000,
        4_000,
        8_000,
        16_000,
        32_000,
        64_000,
    ]
    assert backoff_ms(10_000_000, 9) == 86_400_000
    assert backoff_ms(0, 5) == 0
    assert backoff_ms(1, 16) == 1 << 15


@pytest.mark.parametrize(
    ("fields", "attempt", "ending", "delay"),
    [
        ({}, 1, "failed", None),
        ({"retry": 2}, 1, "failed", 10_000),
        ({"retry": 2}, 2, "failed", 20_000),
        ({"retry": 2}, 3, "failed", None),
        ({"retry": 2}, 1, "lost", None),
        ({"retry": 2}, 1, "succeeded", None),
        ({"retry": 2}, 1, "cancelled", None),
        ({"retry": 2}, 1, "timed_out", None),
        ({"retry": 2, "retry_on": ("lost",), "repeatable": True}, 1, "lost", 10_000),
        ({"retry": 2, "retry_on": ("lost",), "repeatable": True}, 1, "failed", None),
        ({"retry": 2, "retry_on": ("failed", "lost"), "repeatable": True}, 1, "lost", 10_000),
    ],
)
def test_only_what_was_asked_for_is_repeated(
    fields: dict[str, object], attempt: int, ending: str, delay: int | None
) -> None:
    assert delay_ms(_definition(**fields), attempt, ending) == delay


def test_a_failed_run_is_tried_as_often_as_asked_at_the_right_moments(world: World) -> None:
    world.manual(world.task(retry=3, backoff_ms=1_000))
    begun = world.clock.boot
    for number, delay in enumerate((1_000, 2_000, 4_000), start=1):
        world.end(code=1)
        assert world.run().status == "retry_wait"
        assert world.run().retry_at_ms == world.clock.wall + delay
        world.run_for(delay - 1)
        assert world.run().status == "retry_wait"
        world.run_for(1)
        assert (world.run().status, world.attempt().attempt) == ("running", number + 1)
    assert world.clock.boot == begun + 7_000
    world.end(code=1)
    run = world.run()
    assert (run.status, run.error_code, run.retry_at_ms) == ("failed", "EXECUTION_FAILED", None)
    assert world.attempt().attempt == 4
    assert [each.exit_code for each in world.store.runs.attempts(1)] == [1, 1, 1, 1]


def test_each_attempt_is_registered_and_told_at_its_own_time(world: World) -> None:
    world.manual(world.task(retry=1, backoff_ms=3_600_000))
    world.end(code=1)
    world.run_for(3_600_000)
    assert world.run().started_at_ms != world.attempt().started_at_ms
    row = world.store.database.row("SELECT max(registered_at_ms) FROM receipt_journal")
    assert row == (world.attempt().started_at_ms,)
    moments = [at_ms for _sequence, at_ms, _actor, _event in world.store.runs.events(1)]
    assert moments == sorted(moments)


def test_a_retry_that_succeeds_leaves_no_error(world: World) -> None:
    world.manual(world.task(retry=1))
    world.end(code=3)
    world.run_for(10_000)
    world.end(code=0)
    run = world.run()
    assert (run.status, run.error_code) == ("succeeded", None)
    world.events()


def test_a_retry_waits_through_a_restart(world: World) -> None:
    world.manual(world.task(retry=1, backoff_ms=60_000))
    world.end(code=1)
    world.run_for(20_000)
    world.restart()
    world.run_for(39_999)
    assert world.run().status == "retry_wait"
    world.run_for(1)
    assert world.run().status == "running"


def test_a_retry_holds_its_task_but_not_the_queue_behind_it(world: World) -> None:
    task = world.task(retry=1, overlap="queue", backoff_ms=60_000)
    world.manual(task)
    world.manual(task)
    world.end(code=1)
    assert world.statuses() == ["retry_wait", "running"]
    world.run_for(60_000)
    assert world.statuses() == ["retry_wait", "running"]
    world.end(2)
    assert world.statuses() == ["running", "succeeded"]


def test_a_lost_run_is_repeated_only_if_that_is_safe(world: World) -> None:
    fields: dict[str, Any] = {"retry": 1, "retry_on": ("failed", "lost")}
    safe = world.manual(world.task("safe", repeatable=True, **fields))
    other = world.manual(world.task("other", retry=1))
    for run in (safe, other):
        world.process(run.number).die(Exit(code=None, signal=9))
    world.settle()
    assert world.statuses() == ["retry_wait", "lost"]
    assert world.events(safe.number)[-3:] == ["attempt.lost", "run.lost", "run.retry_wait"]
    world.run_for(10_000)
    assert world.statuses() == ["running", "lost"]


def test_a_stopped_run_is_not_repeated(world: World) -> None:
    world.manual(world.task(retry=3))
    world.stop()
    world.run_for(60_000)
    assert (world.run().status, world.attempt().attempt) == ("cancelled", 1)


def test_survivors_hold_the_retry_of_a_lost_run(world: World) -> None:
    world.manual(world.task(retry=1, retry_on=("lost",), repeatable=True))
    process = world.process()
    process.die(Exit(code=None, signal=9), leaving=frozenset({4242}))
    world.run_for(60_000)
    assert (world.run().status, world.hold()) == ("running", "escaped")
    process.pids.clear()
    world.run_for(30_000)
    assert world.run().status == "retry_wait"
