"""The worker's session: registered once, kept by heartbeats, gone on with after a restart.

Owns the session id and what is known of it. Promises:

* The id and the exact registration are durable before they are sent. The same registration again
  changes nothing at a plane and tells how the session stands: so a restart, and a heartbeat whose
  reply was lost, go on with the session, and with every offer that was made to it.
* A session that is refused by that is fenced for good. A new one begins at once after a start; a
  running worker, and one whose new session is refused too, waits first, longer each time: two with
  one name must not chase each other.
* The session ends on a clock that never steps, `leaseDurationMs` after the last accepted request
  was sent.

    none --register--> online --drain--> draining --nothing held--> offline
                         ^ |
                         +-+ heartbeat
"""

from __future__ import annotations

from qinglong_edge.core import canonical
from qinglong_edge.core import session as documents
from qinglong_edge.core.errors import EdgeError, Refused
from qinglong_edge.core.offer import Worker
from qinglong_edge.core.session import DRAINING, OFFLINE, ONLINE
from qinglong_edge.worker.failing import Failing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from qinglong_edge.core.inbox import Entry
    from qinglong_edge.core.session import Accepted
    from qinglong_edge.worker.plane import Plane
    from qinglong_edge.worker.ports import ClockPort, InboxPort, SayPort

SETTING = "session"
_FENCED = "session_fenced"
_STORED_BYTES_MAX = 65_536
_FENCED_MS_MIN = 45_000
_FENCED_MS_MAX = 600_000


class Session:
    """One worker's session with its plane."""

    def __init__(
        self,
        *,
        store: InboxPort,
        plane: Plane,
        clock: ClockPort,
        worker_id: str,
        capabilities: str,
        runs_max: int,
        lease_ms: int,
        heartbeat_ms: int,
        new_id: Callable[[], str],
        slots: Callable[[], int],
        say: SayPort,
    ) -> None:
        self._store = store
        self._plane = plane
        self._clock = clock
        self._worker_id = worker_id
        self._wanted = documents.register(
            capabilities, runs_max=runs_max, slots=runs_max, lease_ms=lease_ms
        )
        self._lease_ms = lease_ms
        self._heartbeat_ms = heartbeat_ms
        self._new_id = new_id
        self._slots = slots
        self._say = say
        self._id, self._body = self._stored()
        self._status = ""
        self._generation = 0
        self._version = 0
        self._until_ms = 0
        self._beat_ms = 0
        self._again_ms = 0
        self._failing = Failing(say, "session_failed")
        self._fenced = 0
        self._told_slots = -1
        self._retire = False  # finish what was offered to it, then make a new one
        self.drain_wanted = False
        self.reason: str | None = "not_registered"

    def _stored(self) -> tuple[str, dict[str, Any]]:
        text = self._store.setting(SETTING)
        if text is None:
            return "", {}
        found = canonical.decode(text.encode("utf-8"), bytes_max=_STORED_BYTES_MAX)
        if not isinstance(found, dict):
            return "", {}
        return str(found.get("sessionId", "")), dict(found.get("register", {}))

    # -- what others ask -----------------------------------------------------------------------

    @property
    def current(self) -> Worker | None:
        """The session that may act now, or None."""
        if self._status not in (ONLINE, DRAINING) or self.reason is not None:
            return None
        if self._clock.boot_ms() >= self._until_ms:
            return None
        return Worker(worker_id=self._worker_id, session_id=self._id, generation=self._generation)

    @property
    def status(self) -> str:
        """`online`, `draining`, `offline`, or nothing before the first registration."""
        return self._status

    @property
    def trouble(self) -> str | None:
        """Why it may not act, or why its last request failed while it still may."""
        return self.reason or self._failing.code

    @property
    def takes_offers(self) -> bool:
        """True while new offers are wanted."""
        return self._status == ONLINE and not self.drain_wanted and not self._retire

    def may_act_on(self, entry: Entry) -> bool:
        """True if the offer was made to this session, and this session may act now."""
        return self.current == entry.offer.worker

    def may_still_act_on(self, entry: Entry) -> bool:
        """False once the offer's session can never act again."""
        return self._id == entry.offer.worker.session_id

    @property
    def wake_boot_ms(self) -> int:
        """When `step` has something to do next."""
        return self._again_ms if self.current is None else self._beat_ms

    # -- what a tick does ----------------------------------------------------------------------

    def step(self) -> None:
        """Register or beat, when that is due."""
        now_ms = self._clock.boot_ms()
        if now_ms < self._again_ms or self._status == OFFLINE:
            return
        if not self._status or self.reason is not None or now_ms >= self._until_ms:
            self._try(self._register)
        elif self._retire and self._store.places_held() == 0:
            self._try(self._replace)
        elif self.drain_wanted and self._status == ONLINE:
            self._try(lambda: self._transition(DRAINING))
        elif now_ms >= self._beat_ms or self._freed():
            self._try(self._beat)

    def _freed(self) -> bool:
        """True if a plane believes that there is no slot, and there is one."""
        return self._told_slots == 0 and self.takes_offers and self._slots() > 0

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except EdgeError as error:
            self._failed(error)

    def _failed(self, error: EdgeError) -> None:
        self._again_ms = self._clock.boot_ms() + self._failing.failed(error.code)
        if error.code == "credential_rejected":
            self._block(error.code)
        elif error.code == "fenced" and self.reason is None:
            self._block("session_uncertain")  # the same registration tells whether it really is
            self._again_ms = 0
        elif not self._status:
            self.reason = error.code

    def _block(self, reason: str) -> None:
        self.reason = reason

    def _register(self) -> None:
        if not self._id or (self._body != self._wanted and self._store.places_held() == 0):
            self._begin()
        sent_ms = self._clock.boot_ms()
        try:
            accepted = self._plane.register(self._id, self._body)
        except Refused as error:
            if error.code != "fenced":
                raise
            self._lost()
            return
        if accepted.lease_expires_at_ms <= self._clock.wall_ms():
            # A plane whose lease is over by this clock: one of the two clocks is wrong, or it is.
            raise Refused("clock_skewed", "The session is over by this machine's clock.")
        self._accept(accepted, sent_ms)
        self._retire = self._body != self._wanted or accepted.status == DRAINING
        self._beat_ms = 0  # how many slots there really are
        self._say("session_online", generation=accepted.generation)

    def _begin(self) -> None:
        self._id, self._body = self._new_id(), self._wanted
        document = {"sessionId": self._id, "register": self._body}
        self._store.put_setting(SETTING, canonical.encode(document).decode("utf-8"))

    def _lost(self) -> None:
        """The plane has another session of this worker, or none that goes on."""
        waits = bool(self._status) or self.reason == _FENCED
        self._status = ""
        self._begin()
        self._block(_FENCED)
        self._again_ms = 0
        if waits:
            wait_ms = min(_FENCED_MS_MIN << min(self._fenced, 4), _FENCED_MS_MAX)
            self._fenced += 1
            self._again_ms = self._clock.boot_ms() + wait_ms
        self._say(_FENCED)

    def _accept(self, accepted: Accepted, sent_ms: int) -> None:
        self._generation = accepted.generation
        self._version = accepted.version
        self._status = accepted.status
        self._until_ms = sent_ms + self._lease_ms
        self._beat_ms = sent_ms + self._heartbeat_ms
        self._failing.over()
        self._again_ms = 0
        self.reason = None

    def _beat(self) -> None:
        slots = self._slots() if self.takes_offers else 0
        sent_ms = self._clock.boot_ms()
        body = documents.heartbeat(
            self._generation, self._version, slots=slots, lease_ms=self._lease_ms
        )
        self._next(self._plane.heartbeat(self._id, body), sent_ms)
        self._told_slots = slots

    def _transition(self, status: str) -> None:
        sent_ms = self._clock.boot_ms()
        body = documents.transition(self._generation, self._version, status)
        self._next(self._plane.transition(self._id, body), sent_ms)

    def _next(self, accepted: Accepted, sent_ms: int) -> None:
        if accepted.version != self._version + 1 or accepted.generation != self._generation:
            raise Refused("fenced", "The session has moved on without this worker.")
        self._accept(accepted, sent_ms)

    def _replace(self) -> None:
        """End a session that only had to finish; the next step registers a new one."""
        if self._status == ONLINE:
            self._transition(DRAINING)
        self._transition(OFFLINE)
        self._status = ""
        self._id = ""

    def disconnect(self) -> None:
        """Say goodbye; only with nothing left that a plane waits for. Raises as requests do."""
        if self._store.places_held():
            raise Refused("offers_unsettled", "Offers are not settled yet.")
        if self._status == ONLINE:
            self._transition(DRAINING)
        if self._status == DRAINING:
            self._transition(OFFLINE)
        self._store.put_setting(SETTING, "{}")  # the next start begins a new one
