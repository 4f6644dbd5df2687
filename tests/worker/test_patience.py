"""What is tried again, how soon, and what a plane that says no again and again costs."""

from __future__ import annotations

import pytest

from qinglong_edge.core import inbox
from qinglong_edge.core.errors import EdgeError, Refused, Unavailable
from qinglong_edge.core.evidence import Stopped
from qinglong_edge.core.exchange import Activation, Control
from qinglong_edge.worker.executor import End
from tests.worker.world import World

END = End(exit_code=0, finished_at_ms=2_500, evidence=inbox.RECEIPT, word="whole")
TICK_MS = 2_000


def asked(world: World, what: str) -> int:
    return [each for each, _state in world.plane.asked].count(what)


def ticks(world: World, seconds: int) -> None:
    """As many ticks as a worker-edge has in so many seconds."""
    for _ in range(seconds * 1_000 // TICK_MS):
        world.supervisor.step(world.entry)
        world.clock.turn(TICK_MS)


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("plane_unavailable", "503"),
        Unavailable("transport_unavailable", "too slow"),
        Refused("request_rejected", "413"),
        Refused("fenced", "409"),
    ],
)
@pytest.mark.parametrize("what", ["upload", "complete"])
def test_a_log_that_is_not_taken_is_sent_again_but_not_in_every_tick(
    world: World, what: str, error: EdgeError
) -> None:
    """Once more at once, then after pauses that grow to a minute; the lease is kept meanwhile."""
    entry = world.at(inbox.RUNNING_ACKNOWLEDGED)
    world.executor.end = END
    world.plane.answers[what] = error
    world.plane.answers["offers"] = entry.offer
    before = world.store.database.commits
    ticks(world, 240)
    assert 4 <= asked(world, "upload") <= 9
    assert asked(world, "control") >= 20
    assert world.store.database.commits - before < 60
    del world.plane.answers[what]
    ticks(world, 62)
    assert world.state == inbox.COMPLETION_ACKNOWLEDGED


def test_a_log_waits_for_a_plane_that_is_down_without_counting_it_as_a_try(world: World) -> None:
    world.at(inbox.RUNNING_ACKNOWLEDGED)
    world.executor.end = END
    world.plane.down = True
    for _ in range(8):
        world.supervisor.step(world.entry)
        world.clock.turn(TICK_MS)
    assert world.plane.asked == []
    assert world.entry.ended is not None
    world.plane.down = False
    world.supervisor.step(world.entry)
    assert world.state == inbox.COMPLETION_ACKNOWLEDGED


@pytest.mark.parametrize("code", ["plane_unavailable", "response_invalid", "fenced"])
def test_an_acknowledgement_that_fails_does_not_stand_in_the_way_of_a_renewal(
    world: World, code: str
) -> None:
    """A plane that cannot write down that it runs keeps its lease all the same."""
    world.at(inbox.STARTED)
    kind = Refused if code == "fenced" else Unavailable
    world.plane.answers["running"] = kind(code, "no")
    ticks(world, 60)
    assert world.executor.stops == []
    assert world.state == inbox.STARTED
    assert asked(world, "control") >= 5
    del world.plane.answers["running"]
    world.supervisor.step(world.entry)
    assert world.state == inbox.RUNNING_ACKNOWLEDGED


@pytest.mark.parametrize("code", ["credential_rejected", "plane_busy", "request_rejected"])
def test_a_renewal_that_is_refused_is_not_repeated_at_once(world: World, code: str) -> None:
    """A plane that counts attempts is not asked for each run in every tick of half a second."""
    world.at(inbox.RUNNING_ACKNOWLEDGED)
    world.plane.answers["control"] = Refused(code, "no")
    world.clock.turn(10_000)
    for _ in range(4):
        world.supervisor.step(world.entry)
        world.supervisor.keep(world.entry)
        world.clock.turn(499)
    assert asked(world, "control") == 1
    world.clock.turn(10)
    world.supervisor.step(world.entry)
    assert asked(world, "control") == 2


def test_a_stop_that_takes_its_time_costs_no_lease(world: World) -> None:
    """A task that may end in its own time is told as cancelled, and not as lost meanwhile."""
    world.at(inbox.RUNNING_ACKNOWLEDGED)
    world.executor.stop_result = None
    world.clock.turn(10_000)
    for _ in range(6):
        lease = world.entry.offer.lease
        newer = lease.replace(version=lease.version + 1, expires_at_ms=lease.expires_at_ms)
        world.plane.answers["control"] = Control(
            status="stop_requested", lease=newer, reason="user"
        )
        world.supervisor.step(world.entry)
        assert world.entry.offer.lease.version == lease.version + 1
        world.clock.turn(10_000)
    assert world.executor.stops == ["offer-1"]
    assert [event for event, _facts in world.said].count("stop_requested") == 1
    world.executor.end = END
    world.executor.under_way.pop("offer-1")(Stopped(conclusive=True, signal=15))
    world.supervisor.step(world.entry)
    assert world.state == inbox.COMPLETION_ACKNOWLEDGED


@pytest.mark.parametrize("why", ["terminal", "fenced", "over"])
def test_a_stop_of_what_is_no_longer_ours_renews_nothing(world: World, why: str) -> None:
    world.at(inbox.RUNNING_ACKNOWLEDGED)
    world.executor.stop_result = None
    world.clock.turn(30_000 if why == "over" else 10_000)
    terminal = Control(status="terminal", lease=None, reason="lost")
    world.plane.answers["control"] = Refused("fenced", "no") if why == "fenced" else terminal
    world.plane.answers["offers"] = Refused("fenced", "no")
    world.supervisor.step(world.entry)
    assert world.executor.stops == ["offer-1"]
    count = len(world.plane.asked)
    ticks(world, 60)
    assert len(world.plane.asked) == count
    world.executor.under_way.pop("offer-1")(Stopped(conclusive=True, signal=15))
    assert not world.entry.holds_place
    assert [value for value in vars(world.supervisor).values() if value == {"offer-1"}] == []


def test_an_answer_that_is_about_no_offer_does_not_stop_a_run(world: World) -> None:
    """`idle` says what there is to do, not how a lease stands; its own end settles it."""
    world.at(inbox.RUNNING_ACKNOWLEDGED)
    world.plane.answers["control"] = Refused("fenced", "version")
    world.plane.answers["offers"] = None
    world.clock.turn(10_000)
    world.supervisor.step(world.entry)
    assert world.executor.stops == []
    world.clock.turn(20_000)
    world.supervisor.step(world.entry)
    assert world.executor.stops == ["offer-1"]
    assert not world.entry.holds_place


def test_a_start_that_a_crash_cut_short_is_told_once_and_asks_for_no_lease(world: World) -> None:
    """The record is final with the plane's answer; a lease that is due then is nobody's."""
    world.at(inbox.LAUNCHING)
    world.clock.turn(10_000)
    world.supervisor.step(world.entry)
    assert world.state == inbox.START_FAILURE_ACKNOWLEDGED
    assert [what for what, _state in world.plane.asked] == ["start-failure"]
    assert [event for event, _facts in world.said] == ["start_failed"]


@pytest.mark.parametrize("end", ["start_failed", "lost", "completed", "operator"])
def test_nothing_of_an_offer_stays_in_memory_once_it_is_over(world: World, end: str) -> None:
    """A task that fails every minute must not fill a router's memory within a year."""
    if end == "start_failed":
        world.accept()
        world.plane.answers["starting"] = [Unavailable("plane_unavailable", "503")]
        world.supervisor.step(world.entry)
        world.supervisor.step(world.entry)
        world.executor.ready(Refused("cwd_unavailable", "no"))
        world.supervisor.step(world.entry)
        assert world.state == inbox.START_FAILURE_ACKNOWLEDGED
    else:
        world.at(inbox.RUNNING_ACKNOWLEDGED)
        world.executor.end = END if end == "completed" else None
        world.executor.stop_result = Stopped(conclusive=False, reason="survivors")
        world.plane.answers["upload"] = [Unavailable("plane_unavailable", "503")]
        world.clock.turn(0 if end == "completed" else 30_000)
        world.supervisor.step(world.entry)
        world.supervisor.step(world.entry)
        if end == "operator":
            world.supervisor.settle_by_operator("offer-1", "seen")
        elif end == "lost":
            world.executor.is_gone = True
            world.clock.turn(5_000)
            world.supervisor.step(world.entry)
        assert not world.entry.holds_place
    kept = {
        name: value
        for part in (world.leases, world.supervisor, world.processor, world.completion)
        for name, value in vars(part).items()
        if isinstance(value, (dict, set)) and value
    }
    assert kept == {}


def test_a_taken_start_leaves_nothing_in_memory_either(world: World) -> None:
    world.accept()
    taken = Activation(status="already_terminal", callback_sequence=0, deadline_at_ms=None)
    usual = Activation(status="applied", callback_sequence=0, deadline_at_ms=None)
    world.plane.answers["starting"] = [usual, usual, taken]
    world.supervisor.step(world.entry)
    world.executor.ready(Unavailable("launch_timed_out", "once more"))
    world.clock.turn(2_000)
    world.supervisor.step(world.entry)
    world.supervisor.step(world.entry)
    assert not world.entry.holds_place
    assert vars(world.processor)["_tries"] == {}
