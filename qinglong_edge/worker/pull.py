"""Asking for work: one claim at a time, durable before it is sent.

Owns claims and the count of free places. Promises:

* Id and token are stored before the first request that carries them, and sent again, the same,
  until a plane has answered: a lost reply brings the same offer once more, never a second one.
* An answer of `idle` spends nothing: the same claim asks next time, so that an idle worker writes
  nothing. It is replaced in the transaction that stores its offer.
* A claim of a session that is gone, or that a plane refuses for good, is retired for a new one. No
  number of failures ends asking; only the pauses grow, to a minute.
* Places are counted from the journal, never taken from a setting: every record that holds one, and
  a claim whose answer is not known. Without room for a log there is none: an offer could only fail.
"""

from __future__ import annotations

from qinglong_edge.core import canonical
from qinglong_edge.core.errors import EdgeError
from qinglong_edge.core.offer import Claim, Worker
from qinglong_edge.worker.failing import Failing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from qinglong_edge.core.offer import Offer
    from qinglong_edge.worker.leases import Leases
    from qinglong_edge.worker.plane import Plane
    from qinglong_edge.worker.ports import ClockPort, InboxPort, SayPort
    from qinglong_edge.worker.session import Session

_TOKEN_BYTES = 32


class Places:
    """How many more offers this worker can take."""

    def __init__(
        self, store: InboxPort, *, runs_max: int, entries_max: int, room: Callable[[], bool]
    ) -> None:
        self._store = store
        self.room = room
        self._runs_max = runs_max
        self._entries_max = entries_max
        self.unanswered = False  # a claim may have become an offer that nobody here knows of
        self.closed = False  # the worker is still finding out how things stand, or it drains

    def free(self) -> int:
        """Places that a new offer could take."""
        if self.closed or not self.room():
            return 0
        held, kept = self._store.places_held(), self._store.count()
        return max(0, min(self._runs_max - held, self._entries_max - kept))

    def told(self) -> int:
        """What a plane is told: an unanswered claim counts as taken."""
        return max(0, self.free() - self.unanswered)


class Puller:
    """Asks for one offer at a time."""

    def __init__(
        self,
        *,
        store: InboxPort,
        plane: Plane,
        session: Session,
        leases: Leases,
        places: Places,
        clock: ClockPort,
        random: Callable[[int], bytes],
        say: SayPort,
    ) -> None:
        self._store = store
        self._plane = plane
        self._session = session
        self._leases = leases
        self._places = places
        self._clock = clock
        self._random = random
        self._say = say
        self._failing = Failing(say, "pull_failed")
        self._not_before_ms = 0
        places.unanswered = store.claim() is not None

    def pull(self) -> str | None:
        """Ask once if there is room and it is time; the id of an offer that has come, or None."""
        worker = self._session.current
        if worker is None or not self._session.takes_offers:
            return None
        if self._clock.boot_ms() < self._not_before_ms or self._plane.down:
            return None
        if self._places.free() <= 0:
            return None
        claim = self._claim(worker)
        sent_ms = self._clock.boot_ms()
        try:
            offered = self._ask(claim)
            return None if offered is None else self._accept(offered, worker, sent_ms)
        except EdgeError as error:
            self._failed(claim, error)
            return None

    def _claim(self, worker: Worker) -> Claim:
        claim = self._store.claim()
        if claim is not None and claim.worker == worker:
            return claim
        if claim is not None:
            self._say("claim_retired", offer=claim.offer_id)
        claim = self._new(worker)
        self._store.put_claim(claim)
        return claim

    def _new(self, worker: Worker) -> Claim:
        return Claim(
            offer_id=_uuid4(self._random(16)),
            lease_token=canonical.base64url(self._random(_TOKEN_BYTES)),
            worker=worker,
            created_at_ms=self._clock.wall_ms(),
        )

    def _ask(self, claim: Claim) -> Offer | None:
        self._places.unanswered = True
        offered = self._plane.offers(claim)
        self._failing.over()
        if offered is None:
            self._places.unanswered = False
        return offered

    def _accept(self, offered: Offer, worker: Worker, sent_ms: int) -> str | None:
        if self._session.current != worker:
            return None  # it is asked for again, or fenced
        outcome, entry = self._store.accept(offered, self._new(worker), self._clock.wall_ms())
        self._places.unanswered = False
        replayed = offered.delivery_kind != "new_claim"
        self._leases.learned(entry, sent_ms, known_before=replayed)
        self._say("offer_accepted", offer=entry.offer_id, how=outcome)
        return entry.offer_id

    def _failed(self, claim: Claim, error: EdgeError) -> None:
        if error.code == "fenced":  # it can become nothing any more, under this session at least
            self._store.put_claim(self._new(claim.worker))
            self._places.unanswered = False
        chance = int.from_bytes(self._random(2), "big")
        pause_ms = self._failing.failed(error.code) * chance >> 16
        self._not_before_ms = self._clock.boot_ms() + pause_ms


def _uuid4(data: bytes) -> str:
    number = int.from_bytes(data, "big") & ~(0xF << 76) & ~(0x3 << 62) | 4 << 76 | 2 << 62
    digits = f"{number:032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
