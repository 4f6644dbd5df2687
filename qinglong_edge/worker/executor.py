"""The POSIX executor: from a gated child to the proof of its end (ADR-0115, ADR-0069).

Owns the processes of this worker's offers. Promises:

* The barrier is durable before the gate opens: what a refused barrier, or a crash before it, leaves
  behind has never run. A start is `Started`, `Rejected` (proven never to have run), or raises: then
  nobody knows, nobody closes its log and nobody starts it again.
* Ownership of a log comes with the call of `start`; the in-process writer is closed and synced
  first, and the process gets a descriptor of the very same file.
* An end is told once, and the wrapper hears `ok` only after whoever was told has committed it.
* Nothing is signalled but by exact identity; a stop that cannot prove the end says so.
* No stop waits for the network: `guard` begins it and goes on with it from within a request. It
  asks of the system and signals, and no more: ends of stops are told from the loop, later.
"""

from __future__ import annotations

from qinglong_edge.core import inbox
from qinglong_edge.core import receipt as receipts
from qinglong_edge.core.errors import EdgeError, Refused, Unavailable
from qinglong_edge.core.evidence import ALIVE, GONE
from qinglong_edge.core.inbox import proves
from qinglong_edge.core.limits import LAUNCH_READY_MS
from qinglong_edge.core.receipt import Receipt, ReceiptInvalid
from qinglong_edge.core.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from qinglong_edge.core.evidence import Stopped, Target
    from qinglong_edge.core.inbox import Entry
    from qinglong_edge.core.plan import Identity, LaunchPlan
    from qinglong_edge.worker.ports import (
        ClockPort,
        ControllerPort,
        InspectorPort,
        LauncherPort,
        LaunchPort,
        LoopPort,
        PidPort,
        ReceiptsPort,
        SinkPort,
        SpoolPort,
        StopPort,
        TimerPort,
    )

_PID_POLL_MS = 1_000
_GUARD_MS = 200  # between two looks of `guard`: each reads all of /proc for each stop
_KILLED = 137  # what a shell says of a command that KILL has ended
_SIGKILL = 9
WHOLE, CUT = "whole", "cut"


class Started(Record):
    """The process runs, or has run: its identity is durable and its gate was opened."""

    identity: Identity
    started_at_ms: int


class Rejected(Record):
    """Proven: nothing of it has run."""

    code: str


class Draft:
    """A gated child on its way."""

    __slots__ = ("launch", "plan", "ready", "timeout")

    def __init__(self, plan: LaunchPlan, ready: Callable[[EdgeError | None], None]) -> None:
        self.plan = plan
        self.ready = ready
        self.launch: LaunchPort | None = None
        self.timeout: TimerPort | None = None


class End(Record):
    """What a process left as evidence of its end."""

    exit_code: int
    finished_at_ms: int
    evidence: str
    word: str  # of the capture: `whole`, `cut`, or nothing that proves either


class Process:
    """One process that has passed its gate."""

    __slots__ = (
        "channel_bytes",
        "end",
        "entry",
        "guarded",
        "launch",
        "pid_fd",
        "poll",
        "stop",
        "stopped",
        "target",
    )

    def __init__(self, entry: Entry, target: Target, launch: LaunchPort | None) -> None:
        self.entry = entry
        self.target = target
        self.launch = launch
        self.pid_fd: int | None = None
        self.poll: TimerPort | None = None
        self.stop: StopPort | None = None
        self.stopped: Stopped | None = None
        self.channel_bytes = b""
        self.end: End | None = None
        self.guarded = False  # its lease was outlived while a request was waited for


class Executor:
    """Starts, adopts, watches and stops; tells of ends."""

    def __init__(
        self,
        *,
        launcher: LauncherPort,
        inspector: InspectorPort,
        controller: ControllerPort,
        receipt_store: ReceiptsPort,
        spool: SpoolPort,
        loop: LoopPort,
        pids: PidPort,
        clock: ClockPort,
        grace_ms: int,
    ) -> None:
        self._launcher = launcher
        self._inspector = inspector
        self._controller = controller
        self._receipts = receipt_store
        self._spool = spool
        self._loop = loop
        self._pids = pids
        self._clock = clock
        self._grace_ms = grace_ms
        self._guarded_ms = 0
        self._processes: dict[str, Process] = {}
        self._drafts: set[Draft] = set()
        # Commits the end that a live process's wrapper told; True = durable.
        self.on_end: Callable[[str, End], bool] = lambda _offer_id, _end: False
        # Something about an offer's process has changed: look at it soon.
        self.on_change: Callable[[str], None] = lambda _offer_id: None

    # -- starting ------------------------------------------------------------------------------

    def begin(
        self,
        plan: LaunchPlan,
        log_id: str,
        resolve: Callable[[], dict[str, str]],
        ready: Callable[[EdgeError | None], None],
    ) -> Draft:
        """Fork the gated child; `ready` is called once, from the loop: None, or why it is not."""
        draft = Draft(plan, ready)
        draft.launch = launch = self._launcher.begin(plan, self._spool.fact_paths(log_id), resolve)
        self._drafts.add(draft)
        draft.timeout = self._loop.call_later(
            LAUNCH_READY_MS,
            lambda: self._answer(
                draft, Unavailable("launch_timed_out", "A launch child was not ready in time.")
            ),
        )
        self._loop.watch(launch.gate_fd, lambda: self._heard(draft))
        return draft

    def _heard(self, draft: Draft) -> None:
        if draft.launch is None:
            return
        try:
            if not draft.launch.take_ready():
                return
        except EdgeError as error:
            self._answer(draft, error)
            return
        self._answer(draft, None)

    def _answer(self, draft: Draft, error: EdgeError | None) -> None:
        self._drafts.discard(draft)
        if draft.timeout is not None:
            draft.timeout.cancel()
        if draft.launch is not None:
            self._loop.unwatch(draft.launch.gate_fd)
        if error is not None:
            self.refuse(draft)
        draft.ready(error)

    def refuse(self, draft: Draft) -> None:
        """End a child that has done nothing; idempotent."""
        launch, draft.launch = draft.launch, None
        if launch is not None:
            self._loop.unwatch(launch.gate_fd)
            launch.refuse()

    def start(
        self, draft: Draft, entry: Entry, sink: SinkPort, barrier: Callable[[Identity], Entry]
    ) -> Started | Rejected:
        """Open the gate behind the barrier; the log is this method's from here on.

        `barrier` makes identity and `started` durable, or raises. An exception of this method means
        that nobody knows whether it runs.
        """
        log = -1
        try:
            if draft.launch is None:
                raise Refused("launch_gone", "The launch child is gone.")
            if sink.log_artifact_id != entry.log_id:
                raise Refused("log_id_drifted", "A log is not the one that was prepared.")
            log = self._spool.duplicate(sink)
            sink.close()
            self._launcher.prepare(entry.offer.attempt_id)
            identity = self._launcher.identify(draft.launch, entry.offer.attempt_id)
            after = barrier(identity)
        except (EdgeError, OSError, MemoryError) as error:
            _close(sink)
            if log >= 0:
                self._spool.close(log)
            self.refuse(draft)
            return Rejected(code=error.code if isinstance(error, EdgeError) else "launch_failed")
        launch, draft.launch = draft.launch, None
        try:
            launch.open_gate(log)
        except OSError:
            launch.refuse()
            raise
        finally:
            self._spool.close(log)
        self._take(after, launch)
        return Started(identity=identity, started_at_ms=draft.plan.started_at_ms)

    # -- watching ------------------------------------------------------------------------------

    def _take(self, entry: Entry, launch: LaunchPort | None) -> None:
        target = entry.target
        if target is None:
            return
        process = Process(entry, target, launch)
        self._processes[entry.offer_id] = process
        if launch is not None:
            self._loop.watch(launch.gate_fd, lambda: self._exec_reported(process))
            self._loop.watch(launch.channel_fd, lambda: self._channel_ready(process))
        process.pid_fd = self._pids.open_pid(target.pid)
        if process.pid_fd is not None:
            self._loop.watch(process.pid_fd, lambda: self._exited(process))
        else:
            self._poll(process)

    def adopt(self, entry: Entry) -> None:
        """Watch a process that an earlier owner started."""
        if entry.offer_id not in self._processes and self.alive(entry):
            self._take(entry, None)

    def _exec_reported(self, process: Process) -> None:
        launch = process.launch
        if launch is not None:
            fd = launch.gate_fd
            if launch.take_exec() is not None:
                self._loop.unwatch(fd)

    def _poll(self, process: Process) -> None:
        """Only where the kernel has no descriptors of processes."""

        def look() -> None:
            process.poll = None
            if self._runs(process):
                self._poll(process)
            else:
                self._exited(process)

        process.poll = self._loop.call_later(_PID_POLL_MS, look)

    def _runs(self, process: Process) -> bool:
        if process.launch is not None:
            return process.launch.peek_exit() is None
        return self._inspector.inspect(process.target).state == ALIVE

    def _channel_ready(self, process: Process) -> None:
        launch = process.launch
        if launch is None or launch.channel_fd < 0:
            return
        data = launch.read_channel()
        if data is None:
            return
        process.channel_bytes += data
        heard = receipts.heard(process.channel_bytes, over=not data)
        if heard is None:
            return
        word, receipt = heard
        if receipt is not None and proves(receipt, process.entry):
            process.end = End(
                exit_code=receipt.exit_code,
                finished_at_ms=receipt.finished_at_ms,
                evidence=inbox.RECEIPT,
                word=word,
            )
            if self.on_end(process.entry.offer_id, process.end) and process.launch is not None:
                process.launch.acknowledge()
        self._drop_channel(process)

    def _drop_channel(self, process: Process) -> None:
        """End-of-file makes a wrapper that heard no `ok` leave its file at once."""
        if process.launch is not None:
            self._loop.unwatch(process.launch.channel_fd)
            process.launch.close_channel()

    def _exited(self, process: Process) -> None:
        self._unwatch(process)
        if process.end is None:
            self._channel_ready(process)  # a receipt may still wait there
        if process.stop is not None:
            process.stop.advance()
        self.on_change(process.entry.offer_id)

    def _unwatch(self, process: Process) -> None:
        if process.poll is not None:
            process.poll.cancel()
            process.poll = None
        if process.pid_fd is not None:
            self._loop.unwatch(process.pid_fd)
            self._pids.close_pid(process.pid_fd)
            process.pid_fd = None

    # -- what is known -------------------------------------------------------------------------

    def end_of(self, entry: Entry) -> End | None:
        """The evidence of an end, in the order in which it counts: receipt, exit, own KILL.

        Raises OSError or an EdgeError if a receipt may be there and cannot be read.
        """
        process = self._processes.get(entry.offer_id)
        if process is not None and process.end is not None:
            return process.end
        receipt = self._read_receipt(entry)
        if receipt is not None:
            return End(
                exit_code=receipt.exit_code,
                finished_at_ms=receipt.finished_at_ms,
                evidence=inbox.RECEIPT,
                word="",
            )
        return None if process is None else self._own_evidence(process)

    def _read_receipt(self, entry: Entry) -> Receipt | None:
        """The authentic receipt; one that is none is evidence of nothing."""
        try:
            receipt = self._receipts.read(entry.offer.attempt_id)
        except ReceiptInvalid:
            return None
        return receipt if receipt is not None and proves(receipt, entry) else None

    def _own_evidence(self, process: Process) -> End | None:
        now_ms = self._clock.wall_ms()
        found = None if process.launch is None else process.launch.peek_exit()
        if found is not None and found.code is not None:
            return End(
                exit_code=found.code, finished_at_ms=now_ms, evidence=inbox.WAIT_STATUS, word=""
            )
        stopped = process.stopped
        if stopped is not None and stopped.conclusive and stopped.signal == _SIGKILL:
            return End(exit_code=_KILLED, finished_at_ms=now_ms, evidence=inbox.STOPPED, word="")
        return None

    def gone(self, entry: Entry) -> bool:
        """Proven: no process of the session is left. False is no proof of the opposite."""
        target = entry.target
        if target is None:
            return entry.offer_id not in self._processes
        process = self._processes.get(entry.offer_id)
        if process is not None and process.launch is not None:
            if process.launch.peek_exit() is None:
                return False
        elif self._inspector.inspect(target).state != GONE:
            return False
        try:
            return not self._inspector.survivors(target)
        except (OSError, EdgeError):
            return False

    def alive(self, entry: Entry) -> bool:
        """Proven: the very process runs."""
        target = entry.target
        return target is not None and self._inspector.inspect(target).state == ALIVE

    # -- stopping ------------------------------------------------------------------------------

    def stop(self, entry: Entry, done: Callable[[Stopped], None]) -> bool:
        """Stop by exact identity; False if a stop is under way already.

        `done` is called once, from the loop.
        """
        target = entry.target
        if target is None:
            return False
        process = self._processes.get(entry.offer_id)
        if process is None:
            process = Process(entry, target, None)
            self._processes[entry.offer_id] = process
        if process.stop is not None:
            return False
        process.stop = self._controller.stop(
            target,
            own=process.launch,
            grace_ms=self._grace_ms,
            # Not at once: whoever waits for a request may be in the middle of this very record.
            done=lambda result: self._later(lambda: self._stopped(process, result, done)),
        )
        return True

    def _later(self, call: Callable[[], None]) -> None:
        self._loop.call_later(0, call)

    def _stopped(self, process: Process, result: Stopped, done: Callable[[Stopped], None]) -> None:
        process.stop = None
        process.stopped = result
        done(result)
        self.on_change(process.entry.offer_id)

    def guard(self, outlived: Callable[[str], bool]) -> None:
        """What may not wait for the loop: called again and again while a request is waited for.

        Stops go on, and one begins, once, of each process whose lease is `outlived`.
        """
        now_ms = self._clock.boot_ms()
        if now_ms < self._guarded_ms + _GUARD_MS:
            return
        self._guarded_ms = now_ms
        for process in list(self._processes.values()):
            if process.stop is not None:
                process.stop.advance()
                continue
            proven = process.stopped is not None and process.stopped.conclusive
            if not proven and not process.guarded and outlived(process.entry.offer_id):
                process.guarded = True
                self.stop(process.entry, lambda _stopped: None)

    def stopping(self, offer_id: str) -> bool:
        """True while a stop is under way."""
        process = self._processes.get(offer_id)
        return process is not None and process.stop is not None

    # -- letting go ----------------------------------------------------------------------------

    def release(self, entry: Entry) -> None:
        """Reap and close what is left of an ended process; a running one is only let alone."""
        process = self._processes.get(entry.offer_id)
        if process is None:
            return
        if process.launch is not None and process.launch.peek_exit() is None:
            return
        self._forget(process)

    def _forget(self, process: Process) -> None:
        self._unwatch(process)
        self._processes.pop(process.entry.offer_id, None)
        launch = process.launch
        if launch is not None:
            for fd in (launch.gate_fd, launch.channel_fd):
                if fd >= 0:
                    self._loop.unwatch(fd)
            if launch.peek_exit() is not None:
                launch.finish()
            else:
                launch.close_channel()  # it then leaves its file

    def ended_processes(self) -> list[Entry]:
        """Entries whose own wrapper has ended and was not reaped."""
        return [
            each.entry
            for each in self._processes.values()
            if each.launch is None or each.launch.peek_exit() is not None
        ]

    def close(self) -> None:
        """Refuse who still waits at the gate; leave the others running for the next owner."""
        for draft in list(self._drafts):
            self._answer(draft, Unavailable("stopping", "The worker is stopping."))
        for process in list(self._processes.values()):
            self._forget(process)


def _close(sink: SinkPort) -> None:
    try:
        sink.close()
    except (OSError, EdgeError):
        return  # its descriptor is closed all the same
