"""The session: registered once, kept through lost replies and restarts, fenced only by proof."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.core import inbox, offer
from qinglong_edge.core.errors import EdgeError, Refused, Unavailable
from qinglong_edge.core.session import Accepted
from qinglong_edge.storage.inbox import Inbox
from qinglong_edge.worker.leases import Leases
from qinglong_edge.worker.pull import Places, Puller
from qinglong_edge.worker.session import Session
from tests.unit import offers
from tests.worker.world import LAYOUT, Clock

LEASE, BEAT = 45_000, 10_000


class Plane:
    """Registers, counts versions, and fails when it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.fail: dict[str, list[EdgeError | None]] = {}
        self.known: dict[str, Accepted] = {}
        self.bodies: dict[str, Any] = {}
        self.lose = False  # the next step counts, and its reply does not arrive
        self.down = False
        self.offer: Any = None

    def _ask(self, what: str, session_id: str, body: Any) -> None:
        self.asked.append((what, session_id, body))
        failures = self.fail.get(what, [])
        failure = failures.pop(0) if failures else None
        if failure is not None:
            raise failure

    def register(self, session_id: str, body: Any) -> Accepted:
        self._ask("register", session_id, body)
        if session_id not in self.known:
            self.known[session_id] = Accepted(
                generation=len(self.known) + 1,
                version=0,
                status="online",
                lease_expires_at_ms=10_000_000,
            )
            self.bodies[session_id] = body
        elif self.bodies[session_id] != body:
            raise Refused("fenced", "another content")
        return self.known[session_id]

    def heartbeat(self, session_id: str, body: Any) -> Accepted:
        return self._step("heartbeat", session_id, body, "online")

    def transition(self, session_id: str, body: Any) -> Accepted:
        return self._step("transition", session_id, body, body["status"])

    def _step(self, what: str, session_id: str, body: Any, status: str) -> Accepted:
        self._ask(what, session_id, body)
        known = self.known[session_id]
        if body["expectedVersion"] != known.version:
            raise Refused("fenced", "version")
        self.known[session_id] = known.replace(version=known.version + 1, status=status)
        if self.lose:
            self.lose = False
            raise Unavailable("transport_unavailable", "lost")
        return self.known[session_id]

    def offers(self, claim: Any) -> Any:
        self._ask("offers", claim.worker.session_id, claim)
        return None if self.offer is None else self.offer(claim)


class Home:
    """A session on a real journal."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.clock = Clock()
        self.store = self._open()
        self.plane = Plane()
        self.said: list[str] = []
        self.slots = 2
        self.room = True
        self.numbers = iter(range(10_000))
        self.session = self.fresh()

    def _open(self) -> Inbox:
        return Inbox(self.folder, layout=LAYOUT, at_ms=1, entries_max=8)

    def fresh(self, *, runs_max: int = 2) -> Session:
        """The session of a worker that has just started."""
        self.store.close()
        self.store = self._open()
        ids = (f"id-{len(self.plane.known)}-{number}" for number in count())
        self.session = Session(
            store=self.store,
            plane=self.plane,  # type: ignore[arg-type]
            clock=self.clock,
            worker_id="router-1",
            capabilities="{}",
            runs_max=runs_max,
            lease_ms=LEASE,
            heartbeat_ms=BEAT,
            new_id=lambda: next(ids),
            slots=lambda: self.slots,
            say=lambda event, /, **_facts: self.said.append(event),
        )
        return self.session

    def steps(self, count: int = 3) -> None:
        """Some ticks in which no time passes."""
        for _ in range(count):
            self.session.step()

    def last(self) -> str:
        """What the plane was asked last."""
        return self.plane.asked[-1][0]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(str(tmp_path))
    yield made
    made.store.close()


def test_a_heartbeat_comes_when_it_is_due_and_says_how_much_is_free(home: Home) -> None:
    home.steps()
    assert [what for what, _id, _body in home.plane.asked] == ["register", "heartbeat"]
    home.clock.turn(BEAT - 1)
    home.steps()
    assert len(home.plane.asked) == 2
    home.clock.turn(1)
    home.slots = 1
    home.steps()
    what, _id, body = home.plane.asked[-1]
    assert (what, body["availableSlots"], body["expectedVersion"]) == ("heartbeat", 1, 1)


def test_a_session_is_as_able_after_each_heartbeat_and_after_each_failure_as_before(
    home: Home,
) -> None:
    """Trap 1: becoming able again is no error, and no failure takes the places for ever."""
    home.steps()
    for _ in range(20):
        home.clock.turn(BEAT)
        home.steps()
        assert home.session.takes_offers
        assert home.session.current is not None
    assert "session_failed" not in home.said
    for failure in (Refused("credential_rejected", "no"), Unavailable("plane_unavailable", "503")):
        home.clock.turn(BEAT)
        home.plane.fail = {"heartbeat": [failure], "register": [failure]}
        home.steps()
        home.clock.turn(2_000)
        home.steps()
        home.clock.turn(2_000)
        home.steps()
        assert home.session.current is not None
        what, _id, body = home.plane.asked[-1]
        assert (what, body["availableSlots"]) == ("heartbeat", 2)
    assert len(home.plane.known) == 1


def test_a_plane_that_is_away_is_told_of_once_and_not_at_every_try(home: Home) -> None:
    """A router's log holds 128 KiB, and a plane may be away for days."""
    for times in (1, 2):
        away = [Unavailable("plane_unavailable", "503")] * 9
        home.plane.fail = {"register": [*away], "heartbeat": [*away]}
        for _ in range(9):
            home.clock.turn(61_000)
            home.steps(1)
        assert home.said.count("session_failed") == times
        home.plane.fail = {}
        home.clock.turn(61_000)
        home.steps()
        assert home.session.current is not None
    made, _places = puller(home)
    for times in (1, 2):
        home.plane.fail = {"offers": [Unavailable("plane_unavailable", "503")] * 9}
        for _ in range(10):
            assert made.pull() is None
            home.clock.turn(1_000)
        assert home.said.count("pull_failed") == times


def test_a_lost_heartbeat_reply_is_no_fence(home: Home) -> None:
    """Trap 7: the same registration tells which version the session has come to."""
    home.steps()
    home.clock.turn(BEAT)
    home.plane.lose = True
    home.session.step()
    home.clock.turn(2_000)
    home.steps()
    assert home.session.current is not None
    assert len(home.plane.known) == 1
    asked = [what for what, _id, _body in home.plane.asked]
    assert asked[2:] == ["heartbeat", "heartbeat", "register", "heartbeat"]


def test_a_restart_goes_on_with_the_same_session(home: Home) -> None:
    """Trap 2: what was offered to a session can be finished by its next process."""
    home.steps()
    before = home.session.current
    home.fresh()
    assert home.session.current is None
    home.steps()
    assert home.session.current == before
    assert len(home.plane.known) == 1


def test_a_registration_whose_reply_was_lost_is_made_once(home: Home) -> None:
    home.plane.fail["register"] = [Unavailable("transport_unavailable", "lost")]
    home.session.step()
    home.fresh()
    home.steps()
    ids = {session_id for what, session_id, _body in home.plane.asked if what == "register"}
    assert len(ids) == 1


def test_a_fenced_session_is_followed_by_a_new_one_at_once_after_a_start(home: Home) -> None:
    home.steps()
    home.plane.fail["register"] = [Refused("fenced", "gone")]
    home.fresh()
    home.steps()
    assert home.session.current is not None
    assert home.session.current.generation == 2
    assert "session_fenced" in home.said


def test_a_running_worker_that_is_fenced_waits_before_it_registers_anew(home: Home) -> None:
    """Two workers under one name must not chase each other."""
    home.steps()
    home.clock.turn(BEAT)
    home.plane.fail = {
        "heartbeat": [Refused("fenced", "other")],
        "register": [Refused("fenced", "other")],
    }
    home.steps()
    assert home.session.current is None
    asked = len(home.plane.asked)
    home.clock.turn(44_000)
    home.steps()
    assert len(home.plane.asked) == asked
    home.clock.turn(1_000)
    home.steps()
    assert home.session.current is not None


def test_a_plane_that_takes_no_registration_costs_no_flash_in_every_tick(home: Home) -> None:
    """The first refusal after a start may be about the session before; the next ones are not."""
    home.plane.fail["register"] = [Refused("fenced", "no")] * 10_000
    before = home.store.database.commits
    for _ in range(1_800):
        home.steps(1)
        home.clock.turn(2_000)
    assert len(home.plane.asked) <= 12
    assert home.store.database.commits - before <= 12
    home.plane.fail.clear()
    home.clock.turn(600_000)
    home.steps()
    assert home.session.current is not None


@pytest.mark.parametrize("code", ["credential_rejected", "plane_unavailable"])
def test_a_refused_credential_blocks_until_an_exchange_succeeds(home: Home, code: str) -> None:
    home.steps()
    home.clock.turn(BEAT)
    kind = Refused if code == "credential_rejected" else Unavailable
    home.plane.fail["heartbeat"] = [kind(code, "no")]
    home.session.step()
    blocked = home.session.current is None
    assert blocked == (code == "credential_rejected")
    home.clock.turn(2_000)
    home.steps()
    assert home.session.current is not None
    assert len(home.plane.known) == 1


def test_a_session_ends_with_its_lease_whatever_the_wall_clock_says(home: Home) -> None:
    """Trap 12"""
    home.steps()
    home.clock.wall -= 1_000_000
    home.plane.fail["heartbeat"] = [Unavailable("plane_unavailable", "503")] * 99
    home.plane.fail["register"] = [Unavailable("plane_unavailable", "503")] * 99
    home.clock.boot += LEASE - 1
    assert home.session.current is not None
    home.clock.boot += 1
    assert home.session.current is None


def test_a_clock_that_is_far_off_keeps_a_worker_from_registering(home: Home) -> None:
    """Trap 12: a router without a clock of its own has to be told the time first."""
    home.clock.wall = 20_000_000
    home.steps()
    assert home.session.current is None
    assert home.session.reason == "clock_skewed"


def test_another_configuration_finishes_the_old_session_first(home: Home) -> None:
    home.steps()
    home.store.accept(offers.made(), None, 10)
    home.fresh(runs_max=1)
    home.steps()
    assert home.session.current is not None
    assert home.session.current.generation == 1
    assert not home.session.takes_offers
    entry = home.store.get("offer-1")
    assert entry is not None
    failed = entry.moved(inbox.STARTING_ACKNOWLEDGED, 11)
    home.store.replace(entry, failed)
    gone = failed.moved(inbox.START_FAILED, 12)
    home.store.replace(failed, gone)
    home.store.replace(gone, gone.moved(inbox.START_FAILURE_ACKNOWLEDGED, 13))
    home.steps(4)
    assert home.session.current.generation == 2
    assert home.session.takes_offers


def test_a_drain_takes_no_offers_and_says_goodbye_only_with_nothing_held(home: Home) -> None:
    home.steps()
    home.session.drain_wanted = True
    home.steps()
    assert (home.last(), home.session.status) == ("transition", "draining")
    assert not home.session.takes_offers
    home.store.accept(offers.made(), None, 10)
    with pytest.raises(Refused):
        home.session.disconnect()
    home.fresh()
    home.steps()
    assert home.session.current is not None  # what is held can still be finished
    assert not home.session.takes_offers


# -- asking for work ------------------------------------------------------------------------------


def puller(home: Home, *, runs_max: int = 1) -> tuple[Puller, Places]:
    places = Places(home.store, runs_max=runs_max, entries_max=8, room=lambda: home.room)
    made = Puller(
        store=home.store,
        plane=home.plane,  # type: ignore[arg-type]
        session=home.session,
        leases=Leases(home.clock),
        places=places,
        clock=home.clock,
        random=lambda count: next(home.numbers).to_bytes(count, "big"),
        say=lambda event, /, **_facts: home.said.append(event),
    )
    return made, places


def claims(home: Home) -> list[Any]:
    return [body for what, _id, body in home.plane.asked if what == "offers"]


def test_a_claim_is_durable_before_it_is_sent_and_kept_through_idleness(home: Home) -> None:
    home.steps()
    made, _places = puller(home)
    sent: list[Any] = []

    def look(claim: Any) -> None:
        sent.append(home.store.claim())

    home.plane.offer = look
    for _ in range(3):
        made.pull()
    before = home.store.database.commits
    made.pull()
    assert home.store.database.commits == before
    assert sent == claims(home)
    assert len(set(sent)) == 1


def test_a_lost_offer_is_asked_for_under_the_same_name_by_the_next_process(home: Home) -> None:
    home.steps()
    home.plane.fail["offers"] = [Unavailable("transport_unavailable", "lost")]
    made, places = puller(home)
    assert made.pull() is None
    assert places.told() == 0  # it may have become an offer
    assert places.free() == 1
    home.fresh()
    home.steps()
    home.plane.offer = _delivered
    made, places = puller(home)
    assert places.told() == 0
    found = made.pull() or ""
    first, second = claims(home)
    assert first == second
    assert found == first.offer_id
    entry = home.store.get(found)
    assert entry is not None
    assert entry.offer.lease_token == first.lease_token
    assert home.store.claim() != first
    assert (places.told(), places.free()) == (0, 0)
    assert made.pull() is None


def _delivered(claim: Any) -> Any:
    worker = {
        "workerId": claim.worker.worker_id,
        "sessionId": claim.worker.session_id,
        "generation": claim.worker.generation,
    }
    return offer.decode(offers.delivered(claim.offer_id, worker=worker), claim)


def test_a_claim_of_a_session_that_is_gone_is_retired(home: Home) -> None:
    """Trap 4: it neither blocks asking nor holds the only place."""
    home.steps()
    home.plane.fail["offers"] = [Unavailable("transport_unavailable", "lost")]
    made, _places = puller(home)
    made.pull()
    home.plane.fail["register"] = [Refused("fenced", "gone")]
    home.fresh()
    home.steps()
    made, places = puller(home)
    made.pull()
    first, second = claims(home)
    assert first != second
    assert second.worker.generation == 2
    assert places.told() == 1
    assert "claim_retired" in home.said


def test_no_number_of_failures_ends_asking(home: Home) -> None:
    """Trap 3: pauses grow to a minute; sixteen failures are no end."""
    home.steps()
    made, _places = puller(home)
    home.plane.fail["offers"] = [Unavailable("plane_unavailable", "503")] * 40
    for _ in range(40):
        made.pull()
        home.clock.turn(60_000)
        home.steps()
    assert len(claims(home)) == 40
    home.plane.offer = _delivered
    assert made.pull() is not None


def test_a_worker_without_room_for_a_log_takes_no_offer(home: Home) -> None:
    """Each would fail to start, one in every tick; the plane hears that there is no slot."""
    home.steps()
    made, places = puller(home)
    home.plane.offer = _delivered
    home.room = False
    assert made.pull() is None
    assert (claims(home), places.told()) == ([], 0)
    home.room = True
    assert places.told() == 1
    assert made.pull() is not None
