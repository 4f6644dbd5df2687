"""From an open gate to a true end: receipt, exit, adoption (ADR-0069).

Owns what happens around one attempt's process once it may have run. Promises:

* A receipt is acknowledged only after the commit that records it; a failed commit is not answered,
  and the wrapper then leaves its file.
* The order of evidence: receipt, identity, wait status. Nothing is invented: what cannot be proven
  keeps its place and is named.
"""

from __future__ import annotations

from qinglong_edge.core import receipt as receipts
from qinglong_edge.core.commit import AttemptKey, Commit
from qinglong_edge.core.errors import Corrupt, Unavailable
from qinglong_edge.core.limits import ESCAPED_POLL_MS
from qinglong_edge.core.receipt import Receipt, ReceiptInvalid
from qinglong_edge.core.run import (
    EXECUTOR_START_FAILED,
    FAILED,
    NONE,
    RECEIPT,
    WAIT_STATUS,
)
from qinglong_edge.execution import endings
from qinglong_edge.execution.active import Active, Registry
from qinglong_edge.execution.endings import Ending, LogFacts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from qinglong_edge.core.run import Attempt, Change, Run
    from qinglong_edge.execution.ports import (
        ClockPort,
        InspectorPort,
        LogsPort,
        LoopPort,
        PidPort,
        ReceiptsPort,
        StorePort,
    )

_PID_POLL_MS = 1_000  # only where the kernel has no pidfd
_LINE_BYTES_MAX = 8_192


class Coordinator:
    """Launches attempts and brings them to a true end."""

    def __init__(
        self,
        *,
        store: StorePort,
        logs: LogsPort,
        receipt_store: ReceiptsPort,
        inspector: InspectorPort,
        pids: PidPort,
        loop: LoopPort,
        clock: ClockPort,
        quarantine_ms: int,
    ) -> None:
        self._quarantine_ms = quarantine_ms
        self._store = store
        self._logs = logs
        self._receipts = receipt_store
        self._inspector = inspector
        self._pids = pids
        self._loop = loop
        self._clock = clock
        self._riders: list[AttemptKey] = []
        self.registry = Registry()
        self.extra_settings: Callable[[], tuple[tuple[str, str], ...]] = tuple
        self.on_ended: Callable[[Run], None] = lambda _run: None
        self.on_deadline: Callable[[Active], None] = lambda _active: None
        self.on_started: Callable[[Active], None] = lambda _active: None

    def take(self, active: Active) -> None:
        """Register an attempt that has passed its gate, and watch its process."""
        self.registry.add(active)
        launch = active.launch
        if launch is not None:
            self._loop.watch(launch.gate_fd, lambda: self._exec_reported(active))
            self._loop.watch(launch.channel_fd, lambda: self._channel_ready(active))
        self._watch_exit(active)
        self.on_started(active)

    def _exec_reported(self, active: Active) -> None:
        launch = active.launch
        if launch is None:
            return
        fd = launch.gate_fd
        number = launch.take_exec()
        if number is None:
            return
        self._loop.unwatch(fd)
        if number:
            active.hold = "exec_failed"  # the exit that follows is judged with it

    def _watch_exit(self, active: Active) -> None:
        if active.attempt.deadline_boot_ms is not None:
            active.deadline = self._loop.call_at(
                active.attempt.deadline_boot_ms, lambda: self.on_deadline(active)
            )
        pid = active.attempt.pid or 0
        active.pid_fd = self._pids.open_pid(pid)
        if active.pid_fd is None:
            self._poll_exit(active, _PID_POLL_MS)
        else:
            self._loop.watch(active.pid_fd, lambda: self.exited(active))

    def _poll_exit(self, active: Active, delay_ms: int) -> None:
        """Look again later; used without pidfd, and while survivors of a session remain."""

        def look() -> None:
            if active.launch is not None and active.launch.peek_exit() is None:
                self._poll_exit(active, delay_ms)
            else:
                self.exited(active)

        active.watch = self._loop.call_later(delay_ms, look)

    def adopt(self, active: Active) -> bool:
        """Watch a process that an earlier owner started; False if it ended at this very moment."""
        self._watch_exit(active)
        return self._inspector.inspect(active.target).state == "alive"

    def _channel_ready(self, active: Active) -> None:
        launch = active.launch
        if launch is None or launch.channel_fd < 0:
            return
        data = launch.read_channel()
        if data is None:
            return
        active.channel_bytes += data
        line, newline, _rest = active.channel_bytes.partition(b"\n")
        if newline:
            self._receipt_said(active, line)
        elif not data or len(active.channel_bytes) > _LINE_BYTES_MAX:
            self._drop_channel(active)

    def _drop_channel(self, active: Active) -> None:
        """End-of-file makes the wrapper leave its file at once."""
        if active.launch is not None:
            self._loop.unwatch(active.launch.channel_fd)
            active.launch.close_channel()

    def _receipt_said(self, active: Active, line: bytes) -> None:
        word, _, text = line.partition(b" ")
        active.channel_bytes = b""
        try:
            receipt = receipts.decode(text)
        except ReceiptInvalid:
            self._drop_channel(active)
            return
        if not _authentic(receipt, active.run, active.attempt):
            self._drop_channel(active)
            return
        active.receipt = receipt
        active.seen = word.decode("ascii", "replace")
        if active.stop is not None:
            self._drop_channel(active)  # the end waits for the proof that the session is empty
            return
        if self._end_by_receipt(active, receipt):
            if active.launch is not None:
                active.launch.acknowledge()
            self._drop_channel(active)

    def exited(self, active: Active) -> None:
        """The watched process has ended: take the last word, judge, give everything back."""
        self._unwatch(active)
        if not active.ended:
            self._take_last_word(active)
        if active.stop is not None and not active.ended:
            active.stop.advance()
            return
        if not active.ended:
            self.judge(active)
        if active.ended:
            self._release(active)

    def _take_last_word(self, active: Active) -> None:
        """A receipt may still wait in the channel of a wrapper that has ended."""
        if active.launch is not None and active.launch.channel_fd >= 0:
            self._channel_ready(active)

    def judge(self, active: Active) -> None:
        """Bring an attempt whose process has ended to its end, by the order of evidence."""
        try:
            receipt = self._read_receipt(active) or active.receipt
        except OSError:
            receipt = active.receipt
        if receipt is not None:
            self._end_by_receipt(active, receipt)
            return
        if self._end_by_wait_status(active):
            return
        if self._inspector.survivors(active.target):
            active.hold = "escaped"
            self._poll_exit(active, ESCAPED_POLL_MS)
            return
        self.end(active, endings.by_absence(active.run, stop_signal=active.stop_signal))

    def _read_receipt(self, active: Active) -> Receipt | None:
        """The authentic receipt file, or None; an unbelievable one is quarantined, intent first."""
        attempt_id = active.attempt.id
        try:
            receipt = self._receipts.read(attempt_id)
            if receipt is None or _authentic(receipt, active.run, active.attempt):
                return receipt
        except ReceiptInvalid:
            pass
        now_ms = self._clock.wall_ms()
        self._store.mark_quarantined(
            active.key,
            self._receipts.reference(attempt_id),
            updated_at_ms=now_ms,
            purge_after_ms=now_ms + self._quarantine_ms,
        )
        self._receipts.quarantine(attempt_id)
        return None

    def _end_by_receipt(self, active: Active, receipt: Receipt) -> bool:
        ending = endings.by_code(
            receipt.exit_code,
            RECEIPT,
            active.run,
            stop_signal=active.stop_signal,
            receipt=receipt,
        )
        return self.end(active, ending)

    def _end_by_wait_status(self, active: Active) -> bool:
        """An own wrapper's normal exit; a signalled wrapper proves nothing about its child."""
        if active.launch is None:
            return False
        found = active.launch.peek_exit()
        if found is None or found.code is None:
            return False
        if not active.launch.started():
            failed = Ending(status=FAILED, evidence=NONE, error_code=EXECUTOR_START_FAILED)
            return self.end(active, failed)
        ending = endings.by_code(
            found.code, WAIT_STATUS, active.run, stop_signal=active.stop_signal, receipt=None
        )
        return self.end(active, ending)

    def end_by_file(self, active: Active) -> bool:
        """End an attempt by its receipt file, before anything else is asked."""
        receipt = self._read_receipt(active)
        return receipt is not None and self._end_by_receipt(active, receipt)

    def end(
        self,
        active: Active,
        ending: Ending,
        *,
        actor: str = "executor",
        facts: dict[str, str | int | None] | None = None,
    ) -> bool:
        """Commit an attempt's end; False (and a named hold) if the storage refuses it now."""
        now_ms = self._clock.wall_ms()
        try:
            revision = self._store.tasks.revision(active.run.task_number, active.run.revision)
            change = endings.tell(
                active.run,
                active.attempt,
                ending,
                definition=revision.definition,
                log=self._log_facts(active),
                now_ms=now_ms,
                facts=facts or {},
            )
            at_ms = change.run.finished_at_ms or now_ms
            self.save(Commit(at_ms=at_ms, actor=actor, changes=(change,)))
        except (Unavailable, Corrupt):
            active.hold = "storage"
            if active.pid_fd is None:
                self._poll_exit(active, ESCAPED_POLL_MS)
            return False
        active.run, active.attempt = change.run, _attempt(change)
        active.ended = True
        active.hold = None
        self._settle(active)
        return True

    def _settle(self, active: Active) -> None:
        """Free the place and tell the others; the process's own remains are given back later."""
        if active.deadline is not None:
            active.deadline.cancel()
        self.registry.remove(active)
        waiting, active.stopped = active.stopped, []
        self.on_ended(active.run)
        for call in waiting:
            call()
        if active.launch is None or active.pid_fd is None:
            self._release(active)

    def _release(self, active: Active) -> None:
        """Reap, close, and let the journal row go once no receipt file is left."""
        self._unwatch(active)
        if active.launch is not None:
            for fd in (active.launch.gate_fd, active.launch.channel_fd):
                if fd >= 0:
                    self._loop.unwatch(fd)
            active.launch.finish()
            active.launch = None
        try:
            self._receipts.remove(active.attempt.id)
        except OSError:
            return  # the cleanup scanner comes back to it
        self._riders.append(active.key)

    def again(self, active: Active, call: Callable[[], None]) -> None:
        """Try something once more, when the storage may have room."""
        active.watch = self._loop.call_later(ESCAPED_POLL_MS, call)

    def _unwatch(self, active: Active) -> None:
        if active.watch is not None:
            active.watch.cancel()
            active.watch = None
        if active.pid_fd is not None:
            self._loop.unwatch(active.pid_fd)
            self._pids.close_pid(active.pid_fd)
            active.pid_fd = None

    def _log_facts(self, active: Active) -> LogFacts:
        """Size and truncation: cut or whole as the capture said, else what the fact file says."""
        attempt = active.attempt
        if not attempt.log_quota_bytes:
            return LogFacts()
        try:
            size = self._logs.size(active.run.id, attempt.id)
            truncated = self._logs.truncated(active.run.id, attempt.id)
        except OSError:
            return LogFacts()
        if active.seen == "cut":
            truncated = True
        elif active.seen == "whole" and truncated is None:
            truncated = False
        return LogFacts(bytes=None if active.seen == "late" else size, truncated=truncated)

    def save(self, commit: Commit) -> None:
        """Commit, with the journal rows and the clock reading that were waiting for a ride."""
        riders = tuple(self._riders)
        settings = commit.settings + self.extra_settings()
        self._store.commit(commit.replace(resolve=commit.resolve + riders, settings=settings))
        del self._riders[: len(riders)]

    def resolve(self, keys: tuple[AttemptKey, ...]) -> None:
        """Let journal rows go whose files are gone."""
        self.save(Commit(at_ms=self._clock.wall_ms(), actor="reconciler", resolve=keys))

    def flush(self) -> None:
        """Commit what waits for a ride, if anything does."""
        if self._riders:
            self.save(Commit(at_ms=self._clock.wall_ms(), actor="reconciler"))

    def close(self, *, drop: bool = True) -> None:
        """Give descriptors back at a stop; running wrappers then leave their files."""
        for active in self.registry:
            self._unwatch(active)
            if drop and active.launch is not None:
                self._drop_channel(active)


def _attempt(change: Change) -> Attempt:
    if change.attempt is None:
        raise Corrupt("attempt_missing", "A change of an attempt has none.", run=change.run.number)
    return change.attempt


def _authentic(receipt: Receipt, run: Run, attempt: Attempt) -> bool:
    """Ids, sequence, times and token of a receipt against what the database knows."""
    return (
        (receipt.run_id, receipt.attempt_id) == (run.id, attempt.id)
        and receipt.callback_sequence == attempt.callback_sequence + 1
        and receipt.started_at_ms >= attempt.created_at_ms
        and attempt.token_hash is not None
        and receipts.token_matches(receipt, attempt.token_hash)
    )
