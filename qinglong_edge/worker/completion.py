"""The end of an attempt: evidence, log, completion, receipt, in this order and never another.

Owns the four steps of one ended process:

| step | effect                                           | a crash after it leaves               |
|------|--------------------------------------------------|---------------------------------------|
| 1    | the authenticated end is recorded, with the size | the same end, the same bytes          |
| 2    | exactly these bytes are uploaded, acknowledged   | they are uploaded again, equal        |
| 3    | the completion is accepted, recorded             | it is sent again, equal               |
| 4    | the receipt file is removed                      | only that is done again               |

A completion never goes without an acknowledged upload of exactly the bytes in the log: their number
is fixed in step 1, once the capture has ended or its bounded drain is over (then nobody knows
whether output was cut), and they are durable before it is: after a power cut there are no fewer.
An answer that is about other bytes changes nothing here.

What is not taken is sent once more at once, then after pauses that grow to a minute: a whole log
goes with each try, and a plane that cannot take it must not cost a router its line.
"""

from __future__ import annotations

from qinglong_edge.core import canonical, exchange, inbox
from qinglong_edge.core.errors import EdgeError, Refused, Unavailable
from qinglong_edge.core.exchange import ALREADY_TERMINAL, Stored
from qinglong_edge.core.inbox import Ended, Entry
from qinglong_edge.worker.executor import CUT, WHOLE, End

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from qinglong_edge.worker.executor import Executor
    from qinglong_edge.worker.leases import Leases
    from qinglong_edge.worker.plane import Plane
    from qinglong_edge.worker.ports import (
        ArtifactsPort,
        ClockPort,
        InboxPort,
        LeasePort,
        ReceiptsPort,
        SayPort,
        SpoolPort,
    )
    from qinglong_edge.worker.session import Session

MISSING = "receipt_missing"
UNREADABLE = "receipt_unavailable"
COMPLETED = "completed"
ALREADY_COMPLETED = "already_completed"
DEFERRED = "deferred"
PLANE_TERMINAL = "control_plane_terminal"
_PAUSE_MS_MIN = 2_000
_PAUSE_MS_MAX = 60_000


class Completion:
    """Completes attempts; every step can be repeated."""

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
        receipt_store: ReceiptsPort,
        clock: ClockPort,
        say: SayPort,
    ) -> None:
        self._store = store
        self._plane = plane
        self._session = session
        self._leases = leases
        self._executor = executor
        self._artifacts = artifacts
        self._spool = spool
        self._receipts = receipt_store
        self._clock = clock
        self._say = say
        self._tries: dict[str, tuple[int, int]] = {}  # how often, and not again before

    def end_told(self, offer_id: str, end: End) -> bool:
        """A live process's wrapper has told its end: record it; False if that cannot be done."""
        try:
            entry = self._store.get(offer_id)
            return entry is not None and self._record(entry, end) is not None
        except EdgeError as error:
            self._say("end_unrecorded", offer=offer_id, code=error.code)
            return False

    def recover(self, offer_id: str) -> str:
        """Do what is left of an ended attempt; one word. Raises as requests and storage do."""
        entry = self._store.get(offer_id)
        if entry is None:
            return "not_found"
        if entry.state == inbox.COMPLETION_ACKNOWLEDGED:
            self.clean(entry)
            return ALREADY_COMPLETED
        if entry.state not in _OPEN and entry.recovery_reason != inbox.LAUNCH_OUTCOME_UNKNOWN:
            return DEFERRED
        if entry.ended is None:
            found = self._find_end(entry)
            if isinstance(found, str):
                return found
            entry = found
        if not self._session.may_act_on(entry) or self._leases.expired(entry):
            return DEFERRED
        tries, again_ms = self._tries.get(offer_id, (0, 0))
        if self._plane.down or self._clock.boot_ms() < again_ms:
            return DEFERRED
        try:
            return self._complete(entry)
        except EdgeError:
            pause_ms = min(_PAUSE_MS_MIN * ((1 << min(tries, 8)) - 1), _PAUSE_MS_MAX)
            self._tries[offer_id] = (tries + 1, self._clock.boot_ms() + pause_ms)
            raise

    def forget(self, offer_id: str) -> None:
        """The offer is over; drop what waits in memory."""
        self._tries.pop(offer_id, None)

    def _find_end(self, entry: Entry) -> Entry | str:
        try:
            end = self._executor.end_of(entry)
        except (OSError, EdgeError):
            return UNREADABLE
        if end is None:
            return MISSING
        recorded = self._record(entry, end)
        return MISSING if recorded is None else recorded

    def _record(self, entry: Entry, end: End) -> Entry | None:
        """Step 1: what the end is, and how many bytes of the log belong to it."""
        if entry.ended is not None:
            return entry
        if entry.log_id is None or entry.state in inbox.FINAL:
            return None
        size = self._size(entry.log_id)
        truncated = {WHOLE: False, CUT: True}.get(end.word, self._truncated(entry))
        ended = Ended(
            exit_code=end.exit_code,
            finished_at_ms=end.finished_at_ms,
            evidence=end.evidence,
            truncated=None if size is None else truncated,
            log_bytes=size or 0,
        )
        after = entry.moved(entry.state, self._clock.wall_ms(), ended=ended)
        return self._store.replace(entry, after)

    def _size(self, log_id: str) -> int | None:
        try:
            return self._spool.settle(log_id)
        except OSError as error:
            raise Unavailable(
                "log_unreadable", "A log cannot be read.", errno=error.errno
            ) from None

    def _truncated(self, entry: Entry) -> bool | None:
        """What the fact beside the log says; nothing is inferred."""
        try:
            lease = self._open(entry)
        except (OSError, EdgeError):
            return None
        if lease is None:
            return None
        try:
            return lease.truncated
        finally:
            lease.close()

    def _open(self, entry: Entry) -> LeasePort | None:
        lease: LeasePort | None = self._artifacts.open(
            entry.offer.run_id, entry.offer.attempt_id, entry.log_id or ""
        )
        return lease

    def _complete(self, entry: Entry) -> str:
        ended = entry.ended
        if ended is None:
            return MISSING
        stored = self._upload(entry, ended)
        status = self._plane.complete(entry, ended, stored)
        if status == ALREADY_TERMINAL:
            return PLANE_TERMINAL
        now_ms = max(self._clock.wall_ms(), entry.updated_at_ms)
        after = entry.moved(inbox.COMPLETION_ACKNOWLEDGED, now_ms, completed_at_ms=now_ms)
        try:
            entry = self._store.replace(entry, after)
        except Refused:
            found = self._store.get(entry.offer_id)
            if found is None or found.state != inbox.COMPLETION_ACKNOWLEDGED:
                raise
            entry = found
        self._leases.forget(entry.offer_id)
        self.forget(entry.offer_id)
        self._say("completed", offer=entry.offer_id, exit=ended.exit_code)
        self.clean(entry)
        return COMPLETED

    def clean(self, entry: Entry) -> bool:
        """Step 4; False if the receipt could not be removed yet."""
        self._executor.release(entry)
        try:
            self._receipts.remove(entry.offer.attempt_id)
        except (OSError, EdgeError):
            return False
        return True

    def _upload(self, entry: Entry, ended: Ended) -> Stored:
        """Step 2: of a log that is gone, or that a power cut shortened, none knows what was cut."""
        lease = self._open(entry)
        if lease is None:
            self._say("log_missing", offer=entry.offer_id)
            return self._send(entry, 0, iter(()), truncated=None)
        try:
            length, truncated = ended.log_bytes, ended.truncated
            if lease.byte_length < length:
                self._say("log_shrunk", offer=entry.offer_id)
                length, truncated = lease.byte_length, None
            return self._send(entry, length, lease.chunks(), truncated=truncated)
        finally:
            lease.close()

    def _send(
        self, entry: Entry, length: int, chunks: Iterator[bytes], *, truncated: bool | None
    ) -> Stored:
        header = exchange.upload_header(entry, byte_length=length, truncated=truncated)
        running = canonical.new_sha256()
        counted = 0

        def pieces() -> Iterator[bytes]:
            nonlocal counted
            yield header
            while counted < length and (piece := next(chunks, b"")):
                piece = piece[: length - counted]
                counted += len(piece)
                running.update(piece)
                yield piece

        def sent() -> Stored:
            return Stored(byte_length=counted, sha256=running.hexdigest(), truncated=truncated)

        return self._plane.upload(entry, sent, len(header) + length, pieces())


_OPEN = frozenset({inbox.LAUNCHING, inbox.STARTED, inbox.RUNNING_ACKNOWLEDGED})
