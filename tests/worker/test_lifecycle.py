"""One tick of a worker with several runs: what goes first, and what nothing may wait for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from qinglong_edge.core import inbox
from qinglong_edge.core.errors import Unavailable
from qinglong_edge.core.inbox import Entry
from qinglong_edge.worker.executor import End
from qinglong_edge.worker.leases import Leases
from qinglong_edge.worker.lifecycle import Lifecycle
from tests.worker.world import World

END = End(exit_code=0, finished_at_ms=2_500, evidence=inbox.RECEIPT, word="whole")


class Rest:
    """Everything of a worker that a tick turns and that these tests do not ask about."""

    drain_wanted = False
    closed = False
    wake_boot_ms = 10_000_000
    current: object = None

    def __init__(self) -> None:
        self.later: list[tuple[int, Callable[[], None]]] = []
        self.goodbyes = 0
        self.adopted: list[str] = []

    def adopt(self, entry: Entry) -> None:
        """Whoever holds a place is watched."""
        self.adopted.append(entry.offer_id)

    def disconnect(self) -> None:
        """The plane is away."""
        self.goodbyes += 1
        raise Unavailable("transport_unavailable", "away")

    def step(self) -> None:
        """Nothing is due."""

    def pull(self) -> None:
        """Nothing is offered."""

    def new_tick(self) -> None:
        """Nothing was down."""

    def ended_processes(self) -> list[Any]:
        """None to reap."""
        return []

    def call_later(self, delay_ms: int, call: Callable[[], None], **_slack: int) -> Rest:
        """The test turns it itself."""
        self.later.append((delay_ms, call))
        return self

    def cancel(self) -> None:
        """Nothing waits."""


def lifecycle(world: World, rest: Any = None, *, cadence_ms: int = 2_000) -> Lifecycle:
    rest = rest or Rest()
    world.plane.new_tick = rest.new_tick  # type: ignore[attr-defined]
    return Lifecycle(
        store=world.store,
        plane=world.plane,  # type: ignore[arg-type]
        session=rest,
        supervisor=world.supervisor,
        completion=world.completion,
        executor=rest,
        puller=rest,
        places=rest,
        retention=rest,
        loop=rest,
        clock=world.clock,
        cadence_ms=cadence_ms,
        leases=world.leases,
        drain_timeout_ms=60_000,
        records_per_tick=4,
        supervision_per_tick=4,
        say=world.say,
    )


def test_a_lease_that_a_log_may_outlast_is_renewed_before_it_is_sent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trap 11: ten seconds old, fifteen for the log, two until the next tick: three would be left
    of thirty for everything else. Tries that follow at once renew nothing."""
    for offer_id in ("offer-1", "offer-2"):
        world.at(inbox.RUNNING_ACKNOWLEDGED, offer_id)
    monkeypatch.setattr(world.executor, "end_of", lambda _entry: None)
    turned = lifecycle(world)
    world.clock.turn(9_000)
    turned._turn()
    assert world.plane.about == []  # neither is due, and nothing takes long
    world.completion.end_told("offer-1", END)
    world.plane.answers["upload"] = Unavailable("plane_unavailable", "503")
    turned._turn()
    renewals, (upload,) = world.plane.about[:-1], world.plane.about[-1:]
    assert upload == ("upload", "offer-1")
    assert sorted(renewals) == [("control", "offer-1"), ("control", "offer-2")]
    world.clock.turn(2_000)
    turned._turn()
    assert world.plane.about[3:] == [("upload", "offer-1")]


def test_a_drained_worker_does_not_wait_for_a_plane_that_never_comes_back(world: World) -> None:
    """As long as its session lives it says goodbye; after that there is nobody to say it to."""
    rest = Rest()
    turned = lifecycle(world, rest)
    rest.current = "session"
    turned.begin_drain()
    rest.drain_wanted = True
    for _ in range(3):
        turned._tick()
    assert (rest.goodbyes, turned.drained) == (3, False)
    rest.current = None
    turned._tick()
    assert turned.drained


def test_a_drain_that_takes_long_says_so_and_goes_on(world: World) -> None:
    rest = Rest()
    turned = lifecycle(world, rest)
    world.at(inbox.RUNNING_ACKNOWLEDGED)
    turned.begin_drain()
    turned.begin_drain()
    (call,) = (call for delay_ms, call in rest.later if delay_ms == 60_000)
    call()
    assert world.said[-1] == ("drain_timed_out", {})
    assert not turned.drained


def test_a_tick_for_which_there_is_no_memory_is_said_and_tried_again(world: World) -> None:
    """It passes; a worker that ended by it would leave its runs without supervision."""
    rest = Rest()
    turned = lifecycle(world, rest)

    def short() -> None:
        raise MemoryError

    rest.step = short  # type: ignore[method-assign]
    turned._tick()
    assert world.said == [("tick_failed", {"code": "no_memory"})]
    assert rest.later[-1][0] == 2_000


def test_a_tick_comes_when_a_lease_ends(world: World) -> None:
    """Whatever runs under it is stopped then, and not up to a cadence later."""
    rest = Rest()
    turned = lifecycle(world, rest)
    world.at(inbox.RUNNING_ACKNOWLEDGED)
    world.plane.answers["control"] = Unavailable("plane_unavailable", "503")
    world.clock.turn(28_700)
    turned._tick()
    assert rest.later[-1][0] == 1_300
    world.clock.turn(1_300)
    turned._tick()
    assert world.executor.stops == ["offer-1"]
    assert rest.later[-1][0] == 2_000


def test_what_was_adopted_has_a_lease_before_the_first_request(world: World) -> None:
    world.at(inbox.RUNNING_ACKNOWLEDGED)
    world.leases = Leases(world.clock)
    rest = Rest()
    lifecycle(world, rest).start()
    assert rest.adopted == ["offer-1"]
    world.clock.turn(30_999)
    assert not world.leases.outlived("offer-1")
    assert not world.leases.outlived("offer-2")
    world.clock.turn(1)
    assert world.leases.outlived("offer-1")


def test_a_slow_cadence_costs_neither_a_lease_nor_the_session(world: World) -> None:
    """A minute between two ticks is allowed, and twice as long as a plane's lease."""
    rest = Rest()
    turned = lifecycle(world, rest, cadence_ms=60_000)
    turned._tick()
    assert rest.later[-1][0] == 60_000
    world.at(inbox.RUNNING_ACKNOWLEDGED)
    for _ in range(6):
        turned._tick()
        world.clock.turn(rest.later[-1][0])
        assert 2_000 <= rest.later[-1][0] <= 10_000
    assert world.entry.offer.lease.version >= 3
    rest.wake_boot_ms = world.clock.boot_ms() + 3_000
    turned._tick()
    assert rest.later[-1][0] == 3_000
    world.plane.down = True
    world.clock.turn(20_000)
    turned._tick()
    assert rest.later[-1][0] == 2_000
