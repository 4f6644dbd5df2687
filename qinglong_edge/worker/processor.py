"""From an accepted offer to a running process, exactly once (ADR-0115 section 3).

Owns the order of effects of one start:

| step | effect                                                      | a crash after it leaves  |
|------|-------------------------------------------------------------|--------------------------|
| 1    | `starting` acknowledged, recorded                           | may start for once       |
| 2    | token made, child forked, secrets fetched and checked there | a child that reads EOF   |
| 3    | log prepared                                                | an empty log, by its id  |
| 4    | record `launching`                                          | never ran                |
| 5    | output taken, once; handed to the executor                  | the same                 |
| 6    | record `started` with the handle, then the gate             | adopted, or proven gone  |
| 7    | `running` acknowledged, recorded                            | acknowledged again       |

A record that is found in `launching` has never run: it becomes `start_failed`, and the plane hears.
An outcome that nobody knows is `recovery_required`: its log is not closed, and it is never started
again. The token exists in memory until step 6; only its digest is kept.
"""

from __future__ import annotations

from qinglong_edge.core import canonical, inbox
from qinglong_edge.core.errors import Corrupt, EdgeError, Invalid, Refused, Unavailable
from qinglong_edge.core.exchange import ALREADY_RUNNING, ALREADY_TERMINAL
from qinglong_edge.core.ids import is_portable_id
from qinglong_edge.core.plan import LaunchPlan
from qinglong_edge.core.recipe import RESERVED_NAMES
from qinglong_edge.core.wire import INT31_MAX
from qinglong_edge.worker.executor import Draft, Started

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from qinglong_edge.core.inbox import Entry
    from qinglong_edge.core.plan import Identity
    from qinglong_edge.worker.executor import Executor
    from qinglong_edge.worker.leases import Leases
    from qinglong_edge.worker.plane import Plane
    from qinglong_edge.worker.ports import (
        ArtifactsPort,
        ClockPort,
        InboxPort,
        PreparationPort,
        SayPort,
        SinkPort,
        SpoolPort,
    )
    from qinglong_edge.worker.session import Session

TOKEN_BYTES = 32
_TRIES_MAX = 3  # of what may pass: no process to be had, a plane that is away for a moment
_RETRY_MS = 2_000
_CHILD_TIMEOUT_MS = 8_000  # of the secrets request: before the launch counts as not ready


class _Launch:
    """One start in memory."""

    __slots__ = ("digest", "draft", "sequence", "timeout_boot_ms")

    def __init__(self, sequence: int, digest: str, timeout_boot_ms: int | None) -> None:
        self.sequence = sequence
        self.digest = digest
        self.timeout_boot_ms = timeout_boot_ms
        self.draft: Draft | None = None


class Processor:
    """Takes offers through the barrier; one start of an offer at a time."""

    def __init__(
        self,
        *,
        store: InboxPort,
        plane: Plane,
        session: Session,
        leases: Leases,
        executor: Executor,
        artifacts: ArtifactsPort,
        spool: SpoolPort,
        clock: ClockPort,
        random: Callable[[int], bytes],
        log_quota_bytes: int,
        say: SayPort,
    ) -> None:
        self._store = store
        self._plane = plane
        self._session = session
        self._leases = leases
        self._executor = executor
        self._artifacts = artifacts
        self._spool = spool
        self._clock = clock
        self._random = random
        self._log_quota_bytes = log_quota_bytes
        self._say = say
        self._launches: dict[str, _Launch] = {}
        self._tries: dict[str, tuple[int, int]] = {}  # how often, and not again before
        self.on_change: Callable[[str], None] = lambda _offer_id: None

    @property
    def launching(self) -> int:
        """How many children wait for their secrets."""
        return len(self._launches)

    def process(self, offer_id: str) -> str:
        """Do the next step of an offer; what came of it, as one word. Raises as requests do.

        A record that has come to its end, or needs recovery, is answered without any effect.
        """
        entry = self._store.get(offer_id)
        if entry is None:
            raise Refused("offer_missing", "There is no such offer in the journal.")
        settled = _ANSWERS.get(entry.state)
        if settled is not None:
            return settled
        if offer_id in self._launches:
            return "launching"
        if entry.state == inbox.LAUNCHING:  # its gate never opened: that needs `started`
            entry = self._move(entry, inbox.START_FAILED)
        self._check_target(entry)
        if entry.state == inbox.ACCEPTED:
            return self._accepted(entry)
        if entry.state == inbox.STARTING_ACKNOWLEDGED:
            return self._starting(entry)
        if entry.state == inbox.STARTED:
            return self._started(entry)
        return self._start_failed(entry)

    def _check_target(self, entry: Entry) -> None:
        if not self._session.may_act_on(entry):
            raise Refused("target_fenced", "The offer was made to another session.")
        if self._leases.expired(entry):
            raise Refused("offer_expired", "The lease of the offer is over.")

    def _move(self, entry: Entry, state: str, **changes: object) -> Entry:
        after = entry.moved(state, self._clock.wall_ms(), **changes)
        return self._store.replace(entry, after)

    def _recover(self, entry: Entry, reason: str) -> None:
        self._move(entry, inbox.RECOVERY_REQUIRED, recovery_reason=reason)
        self._say("recovery_required", offer=entry.offer_id, reason=reason)

    # -- acknowledgements ----------------------------------------------------------------------

    def _accepted(self, entry: Entry) -> str:
        reply = self._plane.starting(entry)
        if reply.status in _TAKEN:
            self._recover(entry, _TAKEN[reply.status])
            return inbox.RECOVERY_REQUIRED
        self._move(entry, inbox.STARTING_ACKNOWLEDGED)
        return self.process(entry.offer_id)

    def _started(self, entry: Entry) -> str:
        reply = self._plane.running(entry)
        if reply.status == ALREADY_TERMINAL:
            self._recover(entry, inbox.PLANE_TERMINAL)
            return inbox.RECOVERY_REQUIRED
        self._move(entry, inbox.RUNNING_ACKNOWLEDGED)
        return "running"

    def _start_failed(self, entry: Entry) -> str:
        reply = self._plane.start_failure(entry)
        if reply.status == ALREADY_RUNNING:
            self._recover(entry, inbox.PLANE_ALREADY_RUNNING)
            return inbox.RECOVERY_REQUIRED
        self._move(entry, inbox.START_FAILURE_ACKNOWLEDGED)
        self._tries.pop(entry.offer_id, None)
        self._leases.forget(entry.offer_id)
        self._say("start_failed", offer=entry.offer_id)
        return inbox.START_FAILED

    # -- the start -----------------------------------------------------------------------------

    def _starting(self, entry: Entry) -> str:
        tries, again_ms = self._tries.get(entry.offer_id, (0, 0))
        if self._clock.boot_ms() < again_ms:
            return "waiting"
        reply = self._plane.starting(entry)
        if reply.status in _TAKEN:
            self._recover(entry, _TAKEN[reply.status])
            return inbox.RECOVERY_REQUIRED
        self._tries[entry.offer_id] = (tries + 1, self._clock.boot_ms() + _RETRY_MS)
        timeout_ms = entry.offer.revision.timeout_ms
        ends_ms = None if timeout_ms is None else self._clock.boot_ms() + timeout_ms
        try:
            self._fork(entry, reply.callback_sequence + 1, ends_ms)
        except EdgeError as error:
            return self._not_started(entry, error)
        return "launching"

    def _fork(self, entry: Entry, sequence: int, timeout_boot_ms: int | None) -> None:
        offer = entry.offer
        if sequence > INT31_MAX or not (
            is_portable_id(offer.run_id) and is_portable_id(offer.attempt_id)
        ):
            raise Invalid("attempt_unusable", "An attempt's id or sequence cannot be used here.")
        names = {each.name for each in offer.revision.bindings}
        if names & RESERVED_NAMES:
            raise Invalid("binding_name_refused", "A variable's name belongs to the shell.")
        token = bytearray(self._random(TOKEN_BYTES))
        launch = _Launch(sequence, canonical.sha256_hex(bytes(token)), timeout_boot_ms)
        log_id = self._spool.log_id(entry)
        plan = LaunchPlan(
            run_id=offer.run_id,
            attempt_id=offer.attempt_id,
            callback_sequence=sequence,
            token=canonical.base64url(bytes(token)),
            started_at_ms=max(self._clock.wall_ms(), entry.accepted_at_ms),
            argv=offer.revision.argv,
            environment={
                each.name: each.value for each in offer.revision.bindings if each.value is not None
            },
            cwd=offer.revision.cwd or "/",
            nice=0,
            log_quota_bytes=self._log_quota_bytes,
            log_artifact_id=log_id,
        )
        try:
            launch.draft = self._executor.begin(
                plan,
                log_id,
                self._plane.resolver(entry, _CHILD_TIMEOUT_MS),
                lambda error: self._ready(entry.offer_id, error),
            )
        finally:
            token[:] = bytes(TOKEN_BYTES)
        self._launches[entry.offer_id] = launch

    def _ready(self, offer_id: str, error: EdgeError | None) -> None:
        """From the loop: the child has its secrets and waits, or it will not run."""
        launch = self._launches.pop(offer_id, None)
        if launch is None or launch.draft is None:
            return
        try:
            entry = self._store.get(offer_id)
            if entry is None:
                return
            if error is None:
                self._check_target(entry)
                self._launch(entry, launch, launch.draft)
            else:
                self._not_started(entry, error)
        except (EdgeError, OSError, MemoryError) as failure:
            self._say("launch_failed", offer=offer_id, code=_code(failure))
        finally:
            self._executor.refuse(launch.draft)  # nothing to do once its gate is open
            self.on_change(offer_id)

    def _not_started(self, entry: Entry, error: EdgeError) -> str:
        """Nothing has run: once more if that may help, else the plane is told."""
        tries, _again = self._tries.get(entry.offer_id, (0, 0))
        self._say("launch_refused", offer=entry.offer_id, code=error.code)
        if isinstance(error, Unavailable) and tries < _TRIES_MAX and error.code != "stopping":
            return "waiting"
        if error.code != "stopping":
            self._move(entry, inbox.START_FAILED)
        return inbox.START_FAILED

    def _launch(self, entry: Entry, launch: _Launch, draft: Draft) -> None:
        offer = entry.offer
        try:
            preparation = self._artifacts.prepare(
                offer.project_id, offer.run_id, offer.attempt_id, offer.offer_id
            )
        except (EdgeError, OSError) as error:
            self._say("log_refused", offer=offer.offer_id, code=_code(error))
            self._move(entry, inbox.START_FAILED)
            return
        try:
            if preparation.log_artifact_id != draft.plan.log_artifact_id:
                self._move(entry, inbox.START_FAILED)
                return
            after = self._move(
                entry,
                inbox.LAUNCHING,
                started_at_ms=draft.plan.started_at_ms,
                log_id=preparation.log_artifact_id,
                callback_sequence=launch.sequence,
                token_digest=launch.digest,
            )
            self._hand_over(after, launch, draft, preparation)
        finally:
            preparation.release()  # does nothing to what was taken

    def _hand_over(
        self, entry: Entry, launch: _Launch, draft: Draft, preparation: PreparationPort
    ) -> None:
        """The output goes to the executor, once, behind the durable barrier."""
        try:
            sink = preparation.take_output()
        except EdgeError:
            self._move(entry, inbox.START_FAILED)
            return
        if sink.log_artifact_id != entry.log_id:
            _close(sink)
            self._move(entry, inbox.START_FAILED)
            return
        try:
            outcome = self._executor.start(
                draft, entry, sink, lambda identity: self._cross(entry, identity)
            )
        except (EdgeError, OSError, MemoryError):
            self._unknown(entry)
            return
        if not isinstance(outcome, Started):
            _close(sink)
            self._say("launch_refused", offer=entry.offer_id, code=outcome.code)
            self._move(self._store.get(entry.offer_id) or entry, inbox.START_FAILED)
            return
        self._running(entry, launch, outcome)

    def _running(self, entry: Entry, launch: _Launch, outcome: Started) -> None:
        now = self._store.get(entry.offer_id)
        if (
            now is None
            or now.state != inbox.STARTED
            or (
                outcome.started_at_ms != entry.started_at_ms
                or now.handle != outcome.identity.handle
            )
        ):
            self._unknown(entry)
            return
        self._tries.pop(entry.offer_id, None)
        if launch.timeout_boot_ms is not None:
            self._leases.hasten(entry.offer_id, launch.timeout_boot_ms)
        self._say("started", offer=entry.offer_id)

    def _unknown(self, entry: Entry) -> None:
        """Nobody knows whether it runs; its log stays open, and nothing starts it again."""
        now = self._store.get(entry.offer_id)
        if now is not None and now.state in (inbox.LAUNCHING, inbox.STARTED):
            self._recover(now, inbox.LAUNCH_OUTCOME_UNKNOWN)

    def _cross(self, entry: Entry, identity: Identity) -> Entry:
        """The barrier: exactly the record that is about to run becomes `started`, durably."""
        now = self._store.get(entry.offer_id)
        if (
            now is None
            or now.replace(offer=entry.offer, updated_at_ms=entry.updated_at_ms) != entry
        ):
            raise Corrupt("barrier_drifted", "A record changed before its process started.")
        return self._move(
            now,
            inbox.STARTED,
            handle=identity.handle,
            pid=identity.pid,
            pid_namespace=identity.pid_namespace,
        )

    def forget(self, offer_id: str) -> None:
        """The offer is settled; drop what waits in memory."""
        self._tries.pop(offer_id, None)
        launch = self._launches.pop(offer_id, None)
        if launch is not None and launch.draft is not None:
            self._executor.refuse(launch.draft)


_TAKEN = {ALREADY_RUNNING: inbox.PLANE_ALREADY_RUNNING, ALREADY_TERMINAL: inbox.PLANE_TERMINAL}
_ANSWERS = {
    inbox.COMPLETION_ACKNOWLEDGED: "already_completed",
    inbox.RUNNING_ACKNOWLEDGED: "already_running",
    inbox.START_FAILURE_ACKNOWLEDGED: "already_failed",
    inbox.RECOVERY_REQUIRED: inbox.RECOVERY_REQUIRED,
}


def _code(error: EdgeError | OSError | MemoryError) -> str:
    return error.code if isinstance(error, EdgeError) else "storage_unavailable"


def _close(sink: SinkPort) -> None:
    try:
        sink.close()
    except (OSError, EdgeError):
        return  # its descriptor is closed all the same
