"""From an open gate to a true end: receipt, exit, adoption (ADR-0069).

Owns what happens around one attempt's process once it may have run. Promises:

* A receipt is acknowledged only after the commit that records it; a failed commit is not answered,
  and the wrapper then leaves its file.
* The order of evidence: receipt, identity, wait status. Nothing is invented: what cannot be proven
  is named and holds its task.
* Who was asked to stop ends only once nothing of the session lives.
"""

from __future__ import annotations

from qinglong_edge.core import receipt as receipts
from qinglong_edge.core.commit import AttemptKey, Commit
from qinglong_edge.core.errors import Corrupt, EdgeError, Refused, Unavailable
from qinglong_edge.core.evidence import ALIVE, GONE
from qinglong_edge.core.limits import ESCAPED_POLL_MS
from qinglong_edge.core.receipt import Receipt, ReceiptInvalid
from qinglong_edge.core.run import RECEIPT, WAIT_STATUS, at_or_after
from qinglong_edge.execution import endings
from qinglong_edge.execution.active import Active, Registry
from qinglong_edge.execution.endings import Ending, LogFacts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from qinglong_edge.core.audit import Audit
    from qinglong_edge.core.run import Attempt, Change, Run
    from qinglong_edge.core.task import Definition
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
_WRAPPER_TICK_MS = 10


class Coordinator:
    """Watches attempts behind their gates and brings them to a true end."""

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
        self.on_saved: Callable[[tuple[tuple[str, str], ...]], None] = lambda _settings: None
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
        """The gate has said its last: the shell runs, or the exit that follows tells the rest."""
        launch = active.launch
        if launch is not None:
            fd = launch.gate_fd
            if launch.take_exec() is not None:
                self._loop.unwatch(fd)

    def refused(self, active: Active) -> None:
        """The gate of a durable attempt could not be opened: nothing of it has run."""
        self.registry.add(active)
        self.end(active, endings.by_no_start(active.run, stop_signal=None))

    def _watch_exit(self, active: Active) -> None:
        due_ms = active.attempt.deadline_boot_ms
        if due_ms is not None and active.deadline is None:
            active.deadline = self._loop.call_at(due_ms, lambda: self.on_deadline(active))
        active.pid_fd = self._pids.open_pid(active.attempt.pid or 0)
        if active.pid_fd is None:
            self._poll_exit(active, _PID_POLL_MS)
        else:
            self._loop.watch(active.pid_fd, lambda: self.exited(active))

    def _poll_exit(self, active: Active, delay_ms: int) -> None:
        """Look again later: without pidfd, or at what could not be brought to an end yet."""

        def look() -> None:
            active.watch = None
            if self._runs(active):
                self._poll_exit(active, _PID_POLL_MS)
            else:
                self.exited(active)

        if active.watch is not None:
            active.watch.cancel()
        active.watch = self._loop.call_later(delay_ms, look)

    def _runs(self, active: Active) -> bool:
        if active.launch is not None:
            return active.launch.peek_exit() is None
        return self._inspector.inspect(active.target).state == ALIVE

    def keep_watch(self, active: Active) -> None:
        """Whatever else fails, an attempt that has not ended is looked at again."""
        if active.pid_fd is None and active.watch is None:
            self._poll_exit(active, ESCAPED_POLL_MS)

    def adopt(self, active: Active) -> bool:
        """Watch a process that an earlier owner started; False if it ended at this very moment."""
        self._watch_exit(active)
        return self._inspector.inspect(active.target).state == ALIVE

    def _channel_ready(self, active: Active) -> None:
        launch = active.launch
        if launch is None or launch.channel_fd < 0:
            return
        data = launch.read_channel()
        if data is None:
            return
        active.channel_bytes += data
        heard = receipts.heard(active.channel_bytes, over=not data)
        if heard is None:
            return
        word, receipt = heard
        if receipt is not None and _authentic(receipt, active.run, active.attempt):
            active.receipt, active.seen = receipt, word
            # Who was asked to stop has ended only when the session is proven empty.
            ended = active.run.cancel_reason is None and self._end_by_receipt(active, receipt)
            if ended and active.launch is not None:
                active.launch.acknowledge()
        self._drop_channel(active)

    def _drop_channel(self, active: Active) -> None:
        """End-of-file makes the wrapper leave its file at once."""
        if active.launch is not None:
            self._loop.unwatch(active.launch.channel_fd)
            active.launch.close_channel()

    def exited(self, active: Active) -> None:
        """The watched process has ended: take the last word, judge, give everything back."""
        self._unwatch(active)
        if not active.ended and active.launch is not None and active.launch.channel_fd >= 0:
            self._channel_ready(active)  # a receipt may still wait there
        if active.ended:
            self._release(active)
        elif active.stop is not None:
            active.stop.advance()
        else:
            self.judge(active)

    def judge(self, active: Active) -> None:
        """Bring an attempt whose process has ended to its end, by the order of evidence."""
        unread = None
        receipt = active.receipt
        try:
            receipt = self._read_receipt(active) or receipt
        except (OSError, EdgeError) as error:
            unread = error.code if isinstance(error, EdgeError) else "receipt_unreadable"
        if receipt is not None:
            ending: Ending | None = _by_receipt(active, receipt)
        else:
            ending = self._by_wait_status(active)
        why = self._unproven(active) if ending is not None else unread or self._presence(active)
        if why is None:
            self.end(active, ending or self._by_absence(active))
        else:
            active.hold = why
            self._poll_exit(active, ESCAPED_POLL_MS)

    def _presence(self, active: Active) -> str | None:
        """Why a process cannot be called gone; None if it is."""
        verdict = self._inspector.inspect(active.target)
        if verdict.state != GONE:
            return verdict.reason or verdict.state
        return self._session(active)

    def _unproven(self, active: Active) -> str | None:
        """Who was asked to stop is not stopped while members of the session live."""
        return None if active.run.cancel_reason is None else self._session(active)

    def _session(self, active: Active) -> str | None:
        """Why a session cannot be called empty; None if it is."""
        try:
            return "escaped" if self._inspector.survivors(active.target) else None
        except (OSError, EdgeError):
            return "provider_unavailable"

    def _definition(self, run: Run) -> Definition | None:
        """What the run was started with; an unreadable one is no reason never to end."""
        try:
            return self._store.tasks.revision(run.task_number, run.revision).definition
        except (Refused, Corrupt):
            return None

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
        return self.end(active, _by_receipt(active, receipt))

    def _by_wait_status(self, active: Active) -> Ending | None:
        """An own wrapper's normal exit; a signalled wrapper proves nothing about its child."""
        found = None if active.launch is None else active.launch.peek_exit()
        if active.launch is None or found is None or found.code is None:
            return None
        signal = active.stop_signal
        if not active.launch.started():
            return endings.by_no_start(active.run, stop_signal=signal)
        return endings.by_code(
            found.code, WAIT_STATUS, active.run, stop_signal=signal, receipt=None
        )

    def _by_absence(self, active: Active) -> Ending:
        """The session is empty and nobody left a word."""
        if active.launch is not None and not active.launch.started():
            return endings.by_no_start(active.run, stop_signal=active.stop_signal)
        return endings.by_absence(active.run, stop_signal=active.stop_signal)

    def end_by_file(self, active: Active) -> bool:
        """End an attempt by its receipt file, before anything else is asked."""
        receipt = self._read_receipt(active)
        if receipt is None or self._unproven(active) is not None:
            return False
        return self._end_by_receipt(active, receipt)

    def end(
        self,
        active: Active,
        ending: Ending,
        *,
        actor: str = "executor",
        facts: dict[str, str | int | None] | None = None,
        audit: tuple[Audit, ...] = (),
    ) -> bool:
        """Commit an attempt's end; False (and a named hold) if the storage refuses it now."""
        now_ms = self._clock.wall_ms()
        try:
            change = endings.tell(
                active.run,
                active.attempt,
                ending,
                definition=self._definition(active.run),
                log=self._log_facts(active),
                now_ms=now_ms,
                facts=facts or {},
            )
            at_ms = at_or_after(now_ms, change.run.started_at_ms, change.run.finished_at_ms)
            self.save(Commit(at_ms=at_ms, actor=actor, changes=(change,), audit=audit))
        except EdgeError as error:
            active.hold = "storage" if isinstance(error, Unavailable) else error.code
            self.keep_watch(active)
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
        if active.launch is None or active.launch.peek_exit() is not None:
            self._release(active)
        self.on_ended(active.run)
        active.answer(None)

    def _release(self, active: Active) -> None:
        """Reap, close, and let the journal row go once no receipt file is left."""
        self._unwatch(active)
        if active.released:
            return
        active.released = True
        if active.launch is not None:
            for fd in (active.launch.gate_fd, active.launch.channel_fd):
                if fd >= 0:
                    self._loop.unwatch(fd)
            active.launch.finish()
            active.launch = None
        try:
            self._receipts.remove(active.attempt.id)
        except (OSError, EdgeError):
            return  # the cleanup scanner comes back to it
        self._riders.append(active.key)

    def again(self, active: Active, call: Callable[[], None]) -> None:
        """Try a deadline once more, when the storage may have room."""
        active.deadline = self._loop.call_later(ESCAPED_POLL_MS, call)

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
        elif active.seen == "whole" and truncated is None and size is not None:
            truncated = False if size < attempt.log_quota_bytes else None
        return LogFacts(bytes=None if active.seen == "late" else size, truncated=truncated)

    def save(self, commit: Commit) -> None:
        """Commit, with the journal rows and the clock reading that were waiting for a ride."""
        riders = tuple(self._riders)
        extra = self.extra_settings()
        settings = commit.settings + extra
        self._store.commit(commit.replace(released=riders, settings=settings))
        self.on_saved(extra)
        del self._riders[: len(riders)]

    def resolve(self, keys: tuple[AttemptKey, ...]) -> None:
        """Let journal rows go whose files are gone."""
        self.save(Commit(at_ms=self._clock.wall_ms(), actor="reconciler", resolve=keys))

    def flush(self) -> None:
        """Commit what waits for a ride, if anything does."""
        if self._riders:
            self.save(Commit(at_ms=self._clock.wall_ms(), actor="reconciler"))

    def close(self) -> None:
        """Give descriptors back at a stop; running wrappers then leave their files."""
        for active in self.registry:
            self._unwatch(active)
            self._drop_channel(active)


def _attempt(change: Change) -> Attempt:
    if change.attempt is None:
        raise Corrupt("attempt_missing", "A change of an attempt has none.", run=change.run.number)
    return change.attempt


def _by_receipt(active: Active, receipt: Receipt) -> Ending:
    run, stop_signal = active.run, active.stop_signal
    if run.cancel_reason == "timeout" and _in_time(active.attempt, receipt):
        run, stop_signal = run.replace(cancel_reason=None), None
    return endings.by_code(
        receipt.exit_code, RECEIPT, run, stop_signal=stop_signal, receipt=receipt
    )


def _in_time(attempt: Attempt, receipt: Receipt) -> bool:
    """Whether the command had ended before its time-out, which then met what it had left behind."""
    if attempt.deadline_at_ms is None or attempt.started_at_ms is None:
        return False
    took_ms = receipt.finished_at_ms - receipt.started_at_ms  # by the wrapper's clock of 10 ms
    return took_ms + _WRAPPER_TICK_MS <= attempt.deadline_at_ms - attempt.started_at_ms


def _authentic(receipt: Receipt, run: Run, attempt: Attempt) -> bool:
    """Ids, sequence, times and token of a receipt against what the database knows."""
    return (
        (receipt.run_id, receipt.attempt_id) == (run.id, attempt.id)
        and receipt.callback_sequence == attempt.callback_sequence + 1
        and receipt.started_at_ms >= attempt.created_at_ms
        and attempt.token_hash is not None
        and receipts.token_matches(receipt, attempt.token_hash)
    )
