"""The order of effects of a start, and the three outcomes that it can have."""

from __future__ import annotations

import pytest

from qinglong_edge.core import inbox
from qinglong_edge.core.errors import EdgeError, Refused, Unavailable
from qinglong_edge.core.exchange import Activation
from qinglong_edge.worker.executor import Started
from tests.unit import offers
from tests.worker import world as worlds
from tests.worker.world import World


def test_a_start_goes_through_every_state_and_hands_its_output_over_behind_the_barrier(
    world: World,
) -> None:
    """ADR-0115 verification 7: output is taken in durable `launching`, once."""
    world.accept()
    assert world.processor.process("offer-1") == "launching"
    assert world.plane.asked == [
        ("starting", "accepted"),
        ("starting", "starting_acknowledged"),
    ]
    assert world.executor.plans[0].token == "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc"
    assert world.logs.taken_in == []
    world.executor.ready()
    assert world.logs.taken_in == [inbox.LAUNCHING]
    assert world.state == inbox.STARTED
    assert world.entry.token_digest == worlds.TOKEN_DIGEST
    assert world.entry.callback_sequence == 1
    assert world.processor.process("offer-1") == "running"
    assert world.plane.asked[-1] == ("running", "started")
    assert world.state == inbox.RUNNING_ACKNOWLEDGED
    assert world.logs.sink.closed == 1  # by the executor; the release afterwards does nothing
    assert world.logs.released == 1


def test_a_start_asks_for_nothing_once_it_has_come_to_its_end(world: World) -> None:
    for state, answer in (
        (inbox.RUNNING_ACKNOWLEDGED, "already_running"),
        (inbox.COMPLETION_ACKNOWLEDGED, "already_completed"),
    ):
        entry = world.store.get("offer-1") or world.at(inbox.RUNNING_ACKNOWLEDGED)
        if state != entry.state:
            world.store.replace(entry, entry.moved(state, 3_000, completed_at_ms=3_000))
        assert world.processor.process("offer-1") == answer
    assert world.plane.asked == []
    with pytest.raises(Refused) as caught:
        world.processor.process("offer-2")
    assert caught.value.code == "offer_missing"


def test_an_output_of_another_id_never_spawns_and_is_closed(world: World) -> None:
    """ADR-0115 verification 7: a drifted id."""
    world.logs.sink = worlds.Sink("wlog-" + "2" * 30)
    world.accept()
    world.processor.process("offer-1")
    world.executor.ready()
    assert world.executor.starts == 0
    assert world.logs.sink.closed == 1
    assert world.state == inbox.START_FAILED


def test_a_prepared_log_of_another_id_never_reaches_the_barrier(world: World) -> None:
    """ADR-0115 verification 7"""
    world.logs.prepared_id = "wlog-" + "3" * 30
    world.accept()
    world.processor.process("offer-1")
    world.executor.ready()
    assert (world.executor.starts, world.logs.taken_in) == (0, [])
    assert world.logs.sink.closed == 1  # released, since nobody took it
    assert world.state == inbox.START_FAILED


def test_a_rejected_start_closes_its_log_and_is_told(world: World) -> None:
    """ADR-0115 verification 8: a tagged rejection is a proof that nothing ran."""
    world.executor.how = worlds.rejected
    world.accept()
    world.processor.process("offer-1")
    world.executor.ready()
    assert world.logs.sink.closed == 1
    assert world.state == inbox.START_FAILED
    assert world.processor.process("offer-1") == inbox.START_FAILED
    assert world.plane.asked[-1] == ("start-failure", "start_failed")
    assert world.state == inbox.START_FAILURE_ACKNOWLEDGED


def test_an_unknown_start_closes_nothing_tells_nothing_and_never_starts_again(
    world: World,
) -> None:
    """ADR-0115 verification 8: the only outlet of a running process may be its log."""
    world.executor.how = worlds.unknown
    world.accept()
    world.processor.process("offer-1")
    world.executor.ready()
    assert world.logs.sink.closed == 0
    assert world.state == inbox.RECOVERY_REQUIRED
    assert world.entry.recovery_reason == inbox.LAUNCH_OUTCOME_UNKNOWN
    asked = list(world.plane.asked)
    assert world.processor.process("offer-1") == inbox.RECOVERY_REQUIRED
    assert world.plane.asked == asked
    assert world.executor.starts == 1


def test_a_started_outcome_without_its_durable_record_is_unknown(world: World) -> None:
    """ADR-0115 verification 8"""
    world.executor.how = lambda draft, *_rest: Started(
        identity=worlds.IDENTITY, started_at_ms=draft.plan.started_at_ms
    )
    world.accept()
    world.processor.process("offer-1")
    world.executor.ready()
    assert world.state == inbox.RECOVERY_REQUIRED
    assert world.logs.sink.closed == 0


def test_the_barrier_lets_exactly_the_launching_record_through(world: World) -> None:
    entry = world.at(inbox.LAUNCHING)
    for changes in (
        {"log_id": "wlog-" + "2" * 30},
        {"token_digest": "c" * 64},
        {"started_at_ms": 101},
        {"callback_sequence": 2},
        {"revision": 9},
    ):
        with pytest.raises(EdgeError) as caught:
            world.processor._cross(entry.replace(**changes), worlds.IDENTITY)
        assert caught.value.code == "barrier_drifted"
    assert world.state == inbox.LAUNCHING
    assert world.processor._cross(entry, worlds.IDENTITY).state == inbox.STARTED


def test_a_record_that_a_crash_left_launching_has_never_run_and_is_told_so(world: World) -> None:
    """Trap 9: only what passed `started` can have run."""
    world.at(inbox.LAUNCHING)
    assert world.processor.process("offer-1") == inbox.START_FAILED
    assert world.plane.asked == [("start-failure", "start_failed")]
    assert world.state == inbox.START_FAILURE_ACKNOWLEDGED
    assert world.executor.drafts == []


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("already_running", inbox.PLANE_ALREADY_RUNNING),
        ("already_terminal", inbox.PLANE_TERMINAL),
    ],
)
def test_a_plane_that_knows_better_stops_the_start(world: World, status: str, reason: str) -> None:
    answer = Activation(status=status, callback_sequence=0, deadline_at_ms=None)
    world.plane.answers["starting"] = answer
    world.accept()
    assert world.processor.process("offer-1") == inbox.RECOVERY_REQUIRED
    assert world.entry.recovery_reason == reason
    assert world.executor.drafts == []


@pytest.mark.parametrize("name", ["IFS", "SHELLOPTS", "PWD"])
def test_a_variable_that_belongs_to_the_shell_makes_no_child(world: World, name: str) -> None:
    """ADR-0115 section 3: the environment is judged before a secret, a log or a process exists."""
    plan = offers.plan(environment=[{"name": name, "kind": "public", "value": "x"}])
    world.accept(executionRevision=plan)
    assert world.processor.process("offer-1") == inbox.START_FAILED
    assert (world.executor.drafts, world.logs.taken_in, world.logs.released) == ([], [], 0)
    assert world.processor.process("offer-1") == inbox.START_FAILED
    assert world.plane.asked[-1] == ("start-failure", "start_failed")


def test_an_offer_of_another_session_or_an_over_lease_is_not_touched(world: World) -> None:
    world.accept()
    world.session.current = None
    with pytest.raises(Refused) as caught:
        world.processor.process("offer-1")
    assert caught.value.code == "target_fenced"
    world.session.current = offers.WORKER
    world.clock.turn(30_000)
    with pytest.raises(Refused) as caught:
        world.processor.process("offer-1")
    assert caught.value.code == "offer_expired"
    assert (world.plane.asked, world.state) == ([], inbox.ACCEPTED)


def test_a_wrong_wall_clock_ends_no_lease(world: World) -> None:
    """Trap 12: leases are reckoned by their length, on a clock that never steps."""
    world.accept()
    world.clock.wall += 3_600_000
    assert world.processor.process("offer-1") == "launching"
    world.clock.wall = 0
    world.clock.boot += 29_000
    world.executor.ready()
    assert world.state == inbox.STARTED


def test_a_child_that_cannot_get_its_secrets_for_a_moment_is_tried_again(world: World) -> None:
    world.accept()
    world.processor.process("offer-1")
    world.executor.ready(Unavailable("launch_child_failed", "away"))
    assert world.state == inbox.STARTING_ACKNOWLEDGED
    assert world.processor.process("offer-1") == "waiting"
    world.clock.turn(2_000)
    assert world.processor.process("offer-1") == "launching"
    world.executor.ready(Refused("secret_unavailable", "gone"))
    assert world.state == inbox.START_FAILED


@pytest.mark.parametrize("error", [MemoryError(), OSError(24, "EMFILE")])
def test_a_machine_that_has_nothing_left_at_the_gate_ends_a_child_and_not_the_worker(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    world.accept()
    world.processor.process("offer-1")
    real = world.store.get

    def fail(_offer_id: str) -> None:
        monkeypatch.setattr(world.store, "get", real)
        raise error

    monkeypatch.setattr(world.store, "get", fail)
    world.executor.ready()
    assert world.said[-1][0] == "launch_failed"
    assert len(world.executor.refused) == 1
    world.clock.turn(2_000)
    assert world.processor.process("offer-1") == "launching"


def test_a_log_without_room_fails_the_start_before_the_barrier(world: World) -> None:
    """ADR-0115 verification 5: what the worker makes of it."""
    world.logs.refuse = Unavailable("capacity_unavailable", "full")
    world.accept()
    world.processor.process("offer-1")
    world.executor.ready()
    assert world.state == inbox.START_FAILED
    assert world.entry.log_id is None
    assert len(world.executor.refused) == 1


@pytest.mark.parametrize("said", [None, Unavailable("launch_child_failed", "away")])
def test_a_journal_that_cannot_be_read_costs_a_ready_child_and_not_the_worker(
    world: World, monkeypatch: pytest.MonkeyPatch, said: EdgeError | None
) -> None:
    """The child does nothing then; the offer is started again once the journal answers."""
    world.accept()
    world.processor.process("offer-1")

    def fail(_offer_id: str) -> None:
        raise Unavailable("database_failed", "EIO")

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "get", fail)
        world.executor.ready(said)
    assert (world.executor.starts, len(world.executor.refused)) == (0, 1)
    assert world.state == inbox.STARTING_ACKNOWLEDGED
    world.clock.turn(2_000)
    assert world.processor.process("offer-1") == "launching"
    world.executor.ready()
    assert world.state == inbox.STARTED
