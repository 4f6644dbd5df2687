"""A machine that a test turns by hand: clocks, a loop, processes, files that outlive an owner.

Nothing here sleeps. Time moves only in `Loop.run_for`; a process does what the test says.
"""

# ruff: noqa: ARG002 - a double takes what the real thing takes
from __future__ import annotations

import heapq
from collections.abc import Callable

from qinglong_edge.core.errors import EdgeError, Unavailable
from qinglong_edge.core.evidence import ALIVE, GONE, UNKNOWN, Exit, Target, Verdict
from qinglong_edge.core.handle import Handle
from qinglong_edge.core.limits import WAKE_CAP_MS
from qinglong_edge.core.plan import LaunchPlan
from qinglong_edge.core.receipt import Receipt, ReceiptInvalid
from qinglong_edge.core.recipe import Recipe
from qinglong_edge.core.record import Record

START_MS = 1_789_999_980_000  # 2026-09-21T14:13:00Z


class Clock:
    """Wall time and boottime in ms; `step` moves the wall alone."""

    def __init__(self) -> None:
        self.wall, self.boot = START_MS, 1_000_000
        self.stamps: dict[str, int] = {}

    def wall_ms(self) -> int:
        return self.wall

    def boot_ms(self) -> int:
        return self.boot

    def stamp_ms(self, path: str) -> int | None:
        return self.stamps.get(path)

    def step(self, ms: int) -> None:
        self.wall += ms

    def move(self, ms: int) -> None:
        self.wall += ms
        self.boot += ms


class Timer:
    """A pending call."""

    def __init__(self, due_ms: int, order: int, call: Callable[[], None]) -> None:
        self.due_ms, self.order, self.call = due_ms, order, call
        self.live = True

    def cancel(self) -> None:
        self.live = False

    def __lt__(self, other: Timer) -> bool:
        return (self.due_ms, self.order) < (other.due_ms, other.order)


class Loop:
    """The loop of one owner, on the machine's clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._timers: list[Timer] = []
        self._order = 0
        self.watched: dict[int, Callable[[], None]] = {}
        self.ready: list[int] = []
        self.on_wake: Callable[[], None] | None = None
        self.dead = False

    def watch(self, fd: int, call: Callable[[], None]) -> None:
        self.watched[fd] = call

    def unwatch(self, fd: int) -> None:
        self.watched.pop(fd, None)

    def call_at(self, due_ms: int, call: Callable[[], None], *, slack_ms: int = 0) -> Timer:
        self._order += 1
        timer = Timer(due_ms, self._order, call)
        heapq.heappush(self._timers, timer)
        return timer

    def call_later(self, delay_ms: int, call: Callable[[], None], *, slack_ms: int = 0) -> Timer:
        return self.call_at(self._clock.boot + delay_ms, call)

    def next_due_ms(self) -> int | None:
        """When the earliest live timer is due."""
        while self._timers and not self._timers[0].live:
            heapq.heappop(self._timers)
        return self._timers[0].due_ms if self._timers else None

    def turn(self) -> None:
        """One wake-up: the clock is looked at, then descriptors, then what is due."""
        if self.on_wake is not None:
            self.on_wake()
        while self.ready:
            call = self.watched.get(self.ready.pop(0))
            if call is not None and not self.dead:
                call()
        now_ms = self._clock.boot
        due = []
        while (next_ms := self.next_due_ms()) is not None and next_ms <= now_ms:
            due.append(heapq.heappop(self._timers))
        for timer in due:
            if timer.live and not self.dead:
                timer.live = False
                timer.call()

    def run_for(self, ms: int) -> None:
        """Let time pass, waking exactly when the real loop would."""
        until_ms = self._clock.boot + ms
        self.settle()
        while not self.dead and self._clock.boot < until_ms:
            next_ms = self.next_due_ms()
            wake_ms = min(until_ms, self._clock.boot + WAKE_CAP_MS)
            if next_ms is not None:
                wake_ms = min(wake_ms, max(next_ms, self._clock.boot))
            self._clock.move(wake_ms - self._clock.boot)
            self.settle()

    def settle(self) -> None:
        """Turn until nothing is ready and nothing is due at this moment."""
        for _ in range(1_000):
            self.turn()
            next_ms = self.next_due_ms()
            if self.dead or (not self.ready and (next_ms is None or next_ms > self._clock.boot)):
                return
        raise AssertionError("the loop never comes to rest")


class Member(Record):
    """A living process of a session."""

    pid: int
    pgrp: int


class Process:
    """A wrapper and its session; `pids` are the living members, the leader among them."""

    def __init__(self, machine: Machine, pid: int, plan: LaunchPlan) -> None:
        self.machine, self.pid, self.plan = machine, pid, plan
        self.boot_id, self.ticks = machine.boot_id, machine.next_ticks()
        self.pids = {pid}
        self.begun = False  # the gate was opened: user code may run
        self.marked = True
        self.exit: Exit | None = None
        self.reaped = False
        self.channel = b""
        self.listens = False  # a living owner holds the other end
        self.acknowledged = False
        self.obeys = True  # ends at TERM
        self.unkillable = False

    @property
    def handle(self) -> str:
        return Handle(
            handle_id=self.plan.attempt_id,
            boot_id=self.boot_id,
            pid=self.pid,
            pgid=self.pid,
            start_ticks=self.ticks,
        ).encode()

    def receipt(self, code: int, **changes: object) -> Receipt:
        """The true receipt of this attempt, or one that lies about something."""
        plan, finished = self.plan, self.machine.clock.wall
        return Receipt(
            run_id=plan.run_id,
            attempt_id=plan.attempt_id,
            callback_sequence=plan.callback_sequence,
            token=plan.token,
            started_at_ms=plan.started_at_ms,
            finished_at_ms=max(finished, plan.started_at_ms),
            exit_code=code,
        ).replace(**changes)

    def end(self, code: int, *, word: str = "whole", publish: bool = True) -> None:
        """The command ends: the receipt to the owner, else to its file; then the exit."""
        receipt = self.receipt(code)
        self.say(f"{word} ".encode() + receipt.encode() + b"\n")
        if publish and not self.acknowledged:
            self.machine.receipts.setdefault(receipt.attempt_id, receipt)
        self.die(Exit(code=code, signal=None))

    def say(self, data: bytes) -> None:
        """Write to the channel, and give the owner its turn."""
        if self.listens:
            self.channel += data
            self.machine.wake(channel_fd(self.pid))

    def die(self, how: Exit, *, leaving: frozenset[int] = frozenset()) -> None:
        """The wrapper is gone, a zombie if its parent lives; `leaving` members live on."""
        self.exit = how
        self.pids = set(leaving)
        self.machine.wake(pid_fd(self.pid))

    def signalled(self, number: int) -> None:
        self.machine.signals.append((self.pid, number))
        if number == 9 and not self.unkillable:
            self.die(self.exit or Exit(code=None, signal=9))
        elif number == 15 and self.obeys and self.exit is None:
            self.end(143)


def gate_fd(pid: int) -> int:
    return pid * 10 + 1


def channel_fd(pid: int) -> int:
    return pid * 10 + 2


def pid_fd(pid: int) -> int:
    return pid * 10 + 3


class Machine:
    """Everything that outlives an owner; also the inspector and the process ports."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.boot_id = "boot-1"
        self.loop: Loop | None = None
        self.processes: dict[int, Process] = {}
        self.receipts: dict[str, Receipt | None] = {}  # None: bytes that nobody can believe
        self.quarantined: set[str] = set()
        self.logs: dict[tuple[str, str], int] = {}
        self.facts: dict[tuple[str, str], bool] = {}
        self.signals: list[tuple[int, int]] = []
        self.pidfds = True
        self.unknown: str | None = None  # why nothing can be told of any process
        self.blind = False  # /proc cannot be read for sessions
        self._signalling = False
        self._ticks = 100
        self._pid = 1_000

    def next_ticks(self) -> int:
        self._ticks += 1
        return self._ticks

    def spawn(self, plan: LaunchPlan) -> Process:
        self._pid += 1
        process = self.processes[self._pid] = Process(self, self._pid, plan)
        return process

    def wake(self, fd: int) -> None:
        """A descriptor became readable; a living owner takes its turn at once."""
        if self.loop is not None and fd in self.loop.watched:
            self.loop.ready.append(fd)
            if not self._signalling:
                self.loop.turn()

    def restart(self) -> None:
        """Power off and on: no process is left."""
        self.boot_id = f"boot-{int(self.boot_id[5:]) + 1}"
        self.clock.boot = 20_000
        self.processes.clear()

    # -- PidPort and what the controller asks ---------------------------------------------------

    def open_pid(self, pid: int) -> int | None:
        process = self.processes.get(pid)
        if not self.pidfds or process is None or (process.exit is not None and process.reaped):
            return None
        return pid_fd(pid)

    def close_pid(self, fd: int) -> None:
        return

    def signal_group(self, group: int, number: int) -> bool:
        process = self.processes.get(group)
        if process is None:
            return False
        self._signalling = True  # what a signal does is noticed later
        process.signalled(number)
        self._signalling = False
        return True

    # -- InspectorPort ----------------------------------------------------------------------------

    def inspect(self, target: Target) -> Verdict:
        if self.unknown is not None:
            return Verdict(state=UNKNOWN, reason=self.unknown)
        process = self._of(target)
        return Verdict(state=GONE if process is None or process.exit is not None else ALIVE)

    def survivors(self, target: Target) -> list[Member]:
        if self.blind:
            raise Unavailable("identity_unavailable", "Nobody can tell.")
        process = self._of(target)
        pids = set() if process is None else process.pids
        return [Member(pid=pid, pgrp=target.pid) for pid in sorted(pids)]

    def _of(self, target: Target) -> Process | None:
        process = self.processes.get(target.pid)
        if process is None or process.boot_id != self.boot_id:
            return None
        return process if process.handle == target.handle else None


class Receipts:
    """The receipt files; every removal is an effect."""

    def __init__(self, machine: Machine, effect: Callable[[str], None]) -> None:
        self._machine, self._effect = machine, effect
        self.error: OSError | None = None

    def read(self, attempt_id: str) -> Receipt | None:
        if self.error is not None:
            raise self.error
        if attempt_id not in self._machine.receipts:
            return None
        receipt = self._machine.receipts[attempt_id]
        if receipt is None or receipt.attempt_id != attempt_id:
            raise ReceiptInvalid("receipt_invalid", "No receipt.")
        return receipt

    def exists(self, attempt_id: str) -> bool:
        return attempt_id in self._machine.receipts

    def remove(self, attempt_id: str) -> bool:
        if self.error is not None:
            raise self.error
        self._effect("receipt removed")
        return self._machine.receipts.pop(attempt_id, attempt_id) != attempt_id

    def quarantine(self, attempt_id: str) -> bool:
        self._effect("receipt quarantined")
        if attempt_id in self._machine.receipts:
            del self._machine.receipts[attempt_id]
            self._machine.quarantined.add(attempt_id)
        return attempt_id in self._machine.quarantined

    def purge(self, attempt_id: str) -> bool:
        self._machine.quarantined.discard(attempt_id)
        return True

    def reference(self, attempt_id: str) -> str:
        return f".quarantine/{attempt_id[:2]}/{attempt_id}.json"


class LogFile(Record):
    """An open log."""

    fd: int


class Logs:
    """The log files: a size each."""

    def __init__(self, machine: Machine, effect: Callable[[str], None]) -> None:
        self._machine, self._effect = machine, effect
        self.refusal: Exception | None = None
        self.open = 0

    def prepare(self, run_id: str, attempt_id: str, quota_bytes: int) -> LogFile:
        if self.refusal is not None:
            raise self.refusal
        self._effect("log")
        self.open += 1
        return LogFile(fd=99)

    def release(self, log: LogFile) -> None:
        self.open -= 1

    def adopt(self, log: LogFile, run_id: str, attempt_id: str) -> None:
        self._effect("adopt")
        self._machine.logs.setdefault((run_id, attempt_id), 0)

    def fact_paths(self, run_id: str, attempt_id: str) -> tuple[str, str]:
        return f"/logs/{attempt_id}.tmp", f"/logs/{attempt_id}.json"

    def size(self, run_id: str, attempt_id: str) -> int | None:
        return self._machine.logs.get((run_id, attempt_id))

    def truncated(self, run_id: str, attempt_id: str) -> bool | None:
        return self._machine.facts.get((run_id, attempt_id))

    def remove(self, run_id: str, attempt_id: str) -> bool:
        self._effect("log removed")
        return self._machine.logs.pop((run_id, attempt_id), None) is not None


class Secrets:
    """Sealed values; `refusal` is what a recipe with secrets meets."""

    def __init__(self) -> None:
        self.refusal: EdgeError | None = None
        self.told: list[str | None] = []

    def resolver(self, recipe: Recipe) -> Callable[[], dict[str, str]]:
        if self.refusal is not None and recipe.secret_refs:
            raise self.refusal
        return dict

    def proved(self, code: str | None) -> None:
        self.told.append(code)


class Idle:
    """A retention that finds nothing."""

    failed = 0

    def sweep(self) -> int:
        return 0
