"""Supervision: what each unsettled offer needs next, by evidence and under its lease.

Owns the judgement. In this order: an end that can be completed, a lease that is over, a renewal
that is due. The rules:

* The lease is the authority. Once it is over, by this worker's clock, the process is stopped by its
  exact identity and nothing is asked of the plane; what cannot be proven stopped is recorded as
  unverified, holds its place, and is looked at again until it is proven gone.
* A refused renewal may be a reply that was lost: the offer is asked for again under its own id and
  token, which tells the lease as it is, or that it is gone. An answer about no offer tells nothing.
* A stop that the plane asks for takes its time under the lease, which is kept meanwhile.
* Neither a completion nor an acknowledgement that fails stands in the way of a renewal.
* A process that is gone without any evidence is not renewed: its lease runs out at the plane, and
  the record is settled here, and told.
* A record that no plane can hear of any more is settled by evidence: nothing runs, nothing can.
"""

from __future__ import annotations

from qinglong_edge.core import inbox
from qinglong_edge.core.errors import EdgeError, Refused
from qinglong_edge.core.exchange import STOP_REQUESTED, TERMINAL
from qinglong_edge.core.inbox import Entry, Settled
from qinglong_edge.core.offer import Claim
from qinglong_edge.worker import completion as ends

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qinglong_edge.core.evidence import Stopped
    from qinglong_edge.worker.completion import Completion
    from qinglong_edge.worker.executor import Executor
    from qinglong_edge.worker.leases import Leases
    from qinglong_edge.worker.plane import Plane
    from qinglong_edge.worker.ports import ClockPort, InboxPort, SayPort
    from qinglong_edge.worker.processor import Processor
    from qinglong_edge.worker.session import Session

_SETTLED = "settled"
_RENEW_RETRY_MS = 2_000
_LOOK_AGAIN_MS = 5_000


class Supervisor:
    """One step for one offer at a time."""

    def __init__(
        self,
        *,
        store: InboxPort,
        plane: Plane,
        session: Session,
        leases: Leases,
        executor: Executor,
        processor: Processor,
        completion: Completion,
        clock: ClockPort,
        say: SayPort,
    ) -> None:
        self._store = store
        self._plane = plane
        self._session = session
        self._leases = leases
        self._executor = executor
        self._processor = processor
        self._completion = completion
        self._clock = clock
        self._say = say
        self._looked: dict[str, int] = {}
        self._told: dict[str, str] = {}
        self._ending: set[str] = set()  # what is being stopped, and not because its plane asks

    def step(self, entry: Entry) -> str:
        """What the moment allows; one word. Failures of requests are said, not raised."""
        try:
            word = self._step(entry)
        except EdgeError as error:
            self._tell(entry, error.code)
            return error.code
        if word in _OVER:
            self._forget(entry.offer_id)
        return word

    def _forget(self, offer_id: str) -> None:
        self._told.pop(offer_id, None)
        self._looked.pop(offer_id, None)
        self._ending.discard(offer_id)

    def _tell(self, entry: Entry, code: str) -> None:
        """A reason that lasts is said once."""
        if self._told.get(entry.offer_id) != code:
            self._told[entry.offer_id] = code
            self._say("offer_waits", offer=entry.offer_id, code=code)

    def _step(self, entry: Entry) -> str:
        if entry.state == inbox.RECOVERY_REQUIRED:
            return self._recovering(entry)
        if self._executor.stopping(entry.offer_id):
            self.keep(entry)
            return "stopping"
        if entry.state in inbox.LAUNCHED or entry.state == inbox.LAUNCHING:
            return self._launched(entry)
        if self._lease_over(entry):
            return self._settle(entry, inbox.LEASE_LOST_STOPPED, "lease_over_before_start")
        return self._processor.process(entry.offer_id)

    def _lease_over(self, entry: Entry) -> bool:
        return self._leases.expired(entry) or not self._session.may_still_act_on(entry)

    # -- what may run --------------------------------------------------------------------------

    def _launched(self, entry: Entry) -> str:
        done = self._complete(entry)
        if done in (ends.COMPLETED, ends.ALREADY_COMPLETED):
            return done
        if done == ends.PLANE_TERMINAL:
            return self._end(entry, inbox.PLANE_TERMINAL, inbox.PLANE_TERMINAL)
        entry = self._store.get(entry.offer_id) or entry
        if not entry.holds_place:
            return _SETTLED
        if self._leases.expired(entry):
            return self._end(entry, inbox.LEASE_LOST_STOPPED, inbox.LEASE_LOST_UNVERIFIED)
        if entry.state in inbox.LAUNCHED and done == ends.MISSING and self._executor.gone(entry):
            if self._complete(entry) == ends.MISSING:  # nor has it left a word just now
                self._say("process_vanished", offer=entry.offer_id)
                return self._recover(entry, inbox.LAUNCH_OUTCOME_UNKNOWN)
            return "ended"
        if not self._session.may_act_on(entry):
            return "session_unavailable"
        if entry.state == inbox.LAUNCHING or (entry.state == inbox.STARTED and not entry.ended):
            self._acknowledge(entry)
            entry = self._store.get(entry.offer_id) or entry
            if entry.state not in inbox.LAUNCHED:
                return entry.state
        if self._clock.boot_ms() < self._leases.due_boot_ms(entry) or self._plane.down:
            return "running"
        return self._renew(entry)

    def _acknowledge(self, entry: Entry) -> None:
        try:
            self._processor.process(entry.offer_id)
        except EdgeError as error:
            self._tell(entry, error.code)

    def _complete(self, entry: Entry) -> str:
        """A completion that fails never stands in the way of a renewal."""
        try:
            return self._completion.recover(entry.offer_id)
        except Refused as error:
            self._tell(entry, error.code)
            if error.code == "fenced":
                self._refresh(entry)
            return ends.DEFERRED
        except EdgeError as error:
            self._tell(entry, error.code)
            return ends.DEFERRED

    # -- the lease -----------------------------------------------------------------------------

    def keep(self, entry: Entry, *, ahead: bool = False) -> None:
        """Renew what is due of a launched offer, before another one's step that may take long.

        With `ahead` already from a ninth of its length on: a log may take most of what is left.
        What `step` would judge first, a lease that is over or a process that vanished, is left to
        it; so is everything once a plane has been silent in this tick.
        """
        early_ms = entry.offer.lease.duration_ms * 2 // 9 if ahead else 0
        if self._plane.down or self._clock.boot_ms() < self._leases.due_boot_ms(entry) - early_ms:
            return
        try:
            now = self._store.get(entry.offer_id)
            if now is not None and self._may_keep(now):
                self._renew(now)
        except EdgeError as error:
            self._tell(entry, error.code)

    def _may_keep(self, entry: Entry) -> bool:
        told = entry.state == inbox.RUNNING_ACKNOWLEDGED
        if not told and not (entry.state == inbox.STARTED and entry.ended):
            return False
        if entry.offer_id in self._ending or self._leases.expired(entry):
            return False
        if not self._session.may_act_on(entry):
            return False
        return entry.ended is not None or not self._executor.gone(entry)

    def _renew(self, entry: Entry) -> str:
        sent_ms = self._clock.boot_ms()
        try:
            control = self._plane.control(entry)
        except EdgeError as error:
            self._leases.delay(entry.offer_id, sent_ms + _RENEW_RETRY_MS)
            if error.code != "fenced":
                raise
            return self._refresh(entry)
        if control.status == TERMINAL or control.lease is None:
            self._say("plane_terminal", offer=entry.offer_id, end=control.reason)
            if entry.ended is not None:  # perhaps by this very completion, whose reply was lost
                self._leases.delay(entry.offer_id, sent_ms + _RENEW_RETRY_MS)
                return ends.DEFERRED
            return self._end(entry, inbox.PLANE_TERMINAL, inbox.PLANE_TERMINAL)
        after = entry.renewed(control.lease, self._clock.wall_ms())
        self._store.replace(entry, after)
        self._leases.learned(after, sent_ms)
        self._told.pop(entry.offer_id, None)
        if control.status != STOP_REQUESTED:
            return control.status
        if self._executor.stop(after, lambda stopped: self._stopped(after, stopped)):
            self._say("stop_requested", offer=entry.offer_id, reason=control.reason)
        return control.status

    def _stopped(self, entry: Entry, stopped: Stopped) -> None:
        """The plane's stop is over; the evidence of the end completes the record."""
        if not stopped.conclusive:
            self._say("stop_unverified", offer=entry.offer_id, reason=stopped.reason)

    def _refresh(self, entry: Entry) -> str:
        """Refused: the lease as the plane has it, or proof that this worker has it no longer."""
        claim = Claim(
            offer_id=entry.offer_id,
            lease_token=entry.offer.lease_token,
            worker=entry.offer.worker,
            created_at_ms=entry.accepted_at_ms,
        )
        sent_ms = self._clock.boot_ms()
        try:
            offered = self._plane.offers(claim)
        except Refused as error:
            if error.code != "fenced":
                raise
            self._say("lease_lost", offer=entry.offer_id)
            self._leases.delay(entry.offer_id, sent_ms + _LOOK_AGAIN_MS)
            entry = self._store.get(entry.offer_id) or entry
            return self._end(entry, inbox.LEASE_LOST_STOPPED, inbox.LEASE_LOST_UNVERIFIED)
        if offered is None:
            return "lease_unknown"
        _outcome, known = self._store.accept(offered, None, self._clock.wall_ms())
        self._leases.learned(known, sent_ms, known_before=True)
        return "lease_recovered"

    # -- ends without a completion -------------------------------------------------------------

    def _end(self, entry: Entry, stopped_reason: str, unverified_reason: str) -> str:
        """Nothing more may be done for the plane: stop what runs, and record what was proven."""

        def done(stopped: Stopped) -> None:
            self._ending.discard(entry.offer_id)
            try:
                now = self._store.get(entry.offer_id)
                if now is None or not now.holds_place or now.state == inbox.RECOVERY_REQUIRED:
                    return
                if stopped.conclusive:
                    self._settle(now, stopped_reason, "stopped")
                else:
                    self._recover(now, unverified_reason)
            except EdgeError as error:
                self._say("offer_waits", offer=entry.offer_id, code=error.code)

        if entry.target is None or self._executor.gone(entry):
            return self._settle(entry, stopped_reason, "gone")
        self._ending.add(entry.offer_id)
        self._executor.stop(entry, done)
        return "stopping"

    def _recover(self, entry: Entry, reason: str) -> str:
        after = entry.moved(inbox.RECOVERY_REQUIRED, self._clock.wall_ms(), recovery_reason=reason)
        self._store.replace(entry, after)
        self._say("recovery_required", offer=entry.offer_id, reason=reason)
        return inbox.RECOVERY_REQUIRED

    def _settle(self, entry: Entry, reason: str, why: str, by: str = inbox.BY_EVIDENCE) -> str:
        """The record holds its place no longer: nothing of it runs, and nothing more is owed."""
        self._processor.forget(entry.offer_id)
        now_ms = self._clock.wall_ms()
        settled = Settled(at_ms=now_ms, by=by, reason=why)
        after = entry.moved(
            inbox.RECOVERY_REQUIRED,
            now_ms,
            recovery_reason=entry.recovery_reason or reason,
            settled=settled,
        )
        self._store.replace(entry, after)
        self._leases.forget(entry.offer_id)
        self._completion.forget(entry.offer_id)
        self._forget(entry.offer_id)
        self._executor.release(entry)
        self._say("settled", offer=entry.offer_id, reason=after.recovery_reason, by=by, why=why)
        return _SETTLED

    def _recovering(self, entry: Entry) -> str:
        """A late receipt completes; else the lease's end and an empty session settle."""
        now_ms = self._clock.boot_ms()
        if now_ms < self._looked.get(entry.offer_id, 0):
            return inbox.RECOVERY_REQUIRED
        self._looked[entry.offer_id] = now_ms + _LOOK_AGAIN_MS
        if entry.recovery_reason == inbox.LAUNCH_OUTCOME_UNKNOWN:
            done = self._complete(entry)
            if done in (ends.COMPLETED, ends.ALREADY_COMPLETED):
                return done
            entry = self._store.get(entry.offer_id) or entry
            if not entry.holds_place:
                return _SETTLED
            if not self._lease_over(entry) and done != ends.PLANE_TERMINAL:
                return inbox.RECOVERY_REQUIRED
        if self._executor.gone(entry):
            return self._settle(entry, entry.recovery_reason or "", "gone")
        if not self._executor.stopping(entry.offer_id) and self._lease_over(entry):
            self._executor.stop(entry, lambda _stopped: None)
        return inbox.RECOVERY_REQUIRED

    def settle_by_operator(self, offer_id: str, reason: str) -> Entry:
        """The way out for what cannot be proven; Refused while its process is alive."""
        entry = self._store.get(offer_id)
        if entry is None:
            raise Refused("offer_missing", "There is no such offer in the journal.")
        if not entry.holds_place:
            return entry
        if self._executor.alive(entry):
            raise Refused("process_alive", "The offer's process is alive; stop it first.")
        self._settle(entry, inbox.LEASE_LOST_UNVERIFIED, reason, inbox.BY_OPERATOR)
        return self._store.get(offer_id) or entry


_OVER = frozenset({_SETTLED, ends.COMPLETED, ends.ALREADY_COMPLETED, inbox.START_FAILED})
