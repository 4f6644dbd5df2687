"""One state directory and its owners, one after the other, on a clock that a test can turn on.

A `Stage` does what the daemon does, without socket and signals: it opens the owner in the daemon's
order, turns its loop, closes it in the daemon's order. Waiting for a process is real; waiting for a
timer is a jump of the clock, which all owners of a stage share.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from qinglong_edge.app import making, methods, rpc, state
from qinglong_edge.app.runtime import Parts, Runtime
from qinglong_edge.core.errors import EdgeError
from qinglong_edge.core.run import Run
from qinglong_edge.execution.dispatch import Request
from qinglong_edge.system.clock import Clock
from qinglong_edge.system.process import Processes
from tests.crash.seam import Plan

HOUR = 3_600_000
LOG_QUOTA = 65_536
_REAL_S = 8.0  # while a fault lasts, a run may be at work for ever
HEALED_S = 60.0  # afterwards nothing may, however busy this machine is
_COLLECT_S = 20.0
_PEER = rpc.Peer(os.geteuid(), "command")


class StoppedError(Exception):
    """The owner did not come up, as an owner may; the next one tries again."""


class Shift:
    """How far the clock was turned on, in ms; shared with forked owners."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 8)

    def get(self) -> int:
        """The sum of all jumps."""
        return int.from_bytes(self._shared[:8], "little")

    def add(self, ms: int) -> None:
        """One jump."""
        self._shared[:8] = (self.get() + max(0, ms)).to_bytes(8, "little")


class _TurnedClock(Clock):
    def __init__(self, shift: Shift) -> None:
        self._shift = shift

    def wall_ms(self) -> int:
        return super().wall_ms() + self._shift.get()

    def boot_ms(self) -> int:
        return super().boot_ms() + self._shift.get()


class _OtherBoot(Processes):
    def boot_id(self) -> str | None:
        return "00000000-0000-4000-8000-000000000000"


@dataclass(frozen=True)
class Slot:
    """Where a case plays; every case of a slot finds the same paths, since tasks hold them."""

    folder: str

    @property
    def state(self) -> str:
        """The state directory."""
        return os.path.join(self.folder, "state")

    @property
    def marker(self) -> str:
        """One line for each time that a command did its work."""
        return os.path.join(self.folder, "marker")

    @property
    def go(self) -> str:
        """A held command goes on once this file is there."""
        return os.path.join(self.folder, "go")

    @property
    def deaf(self) -> str:
        """There once a command ignores TERM."""
        return os.path.join(self.folder, "deaf")

    @property
    def noise(self) -> str:
        """What the noisy command prints, more than its log may hold."""
        return os.path.join(self.folder, "noise")

    @property
    def tools(self) -> str:
        """Tools that write down what they do."""
        return os.path.join(self.folder, "tools")

    @property
    def trace(self) -> str:
        """What they wrote down."""
        return os.path.join(self.folder, "trace")

    def effects(self) -> int:
        """How often commands did their work."""
        try:
            with open(self.marker, encoding="ascii") as opened:
                return len(opened.readlines())
        except FileNotFoundError:
            return 0

    def tasks(self) -> dict[str, dict[str, object]]:
        """Every task that scenarios use."""
        work = f"echo x >> {self.marker}; exit 7"
        wait = f"while [ ! -e {self.go} ]; do sleep 0.01; done"
        plain: dict[str, object] = {"log": False, "cwd": "/"}
        return {
            "plain": {"shell": work, **plain},
            "noisy": {"shell": f"cat {self.noise}; {work}", "cwd": "/", "log": True},
            "held": {"shell": f"{wait}; {work}", **plain},
            "deaf": {"shell": f"trap '' TERM; : > {self.deaf}; {wait}", **plain},
            "nowhere": {"shell": work, "log": False, "cwd": f"{self.folder}/nowhere"},
            "again": {"shell": work, "retry": 1, "retry_on": ["failed"], **plain},
            "hourly": {"shell": work, "cron": ["0 * * * *"], "zone": "UTC", **plain},
            "period": {"shell": work, "every": ["1h"], **plain},
        }


class Stage:
    """The owners of one slot; `plan` decides what becomes of their effects."""

    def __init__(self, slot: Slot, plan: Plan, shift: Shift, *, other_boot: bool = False) -> None:
        self.slot = slot
        self.plan = plan
        self.shift = shift
        self.where = state.place(slot.state, None)
        self.runtime: Runtime | None = None
        self.other_boot = other_boot
        self.tools_path: str | None = None
        self.shell: str | None = None
        self.tokens: list[bytes] = []

    # -- an owner's life --------------------------------------------------------------------------

    def parts(self) -> Parts:
        """The machine, with the turned clock."""
        parts = Parts()
        parts.clock = _TurnedClock(self.shift)
        if self.other_boot:
            parts.processes = _OtherBoot()
        parts.tools_path = self.tools_path or parts.tools_path
        parts.shell = self.shell or parts.shell

        def random(count: int) -> bytes:
            self.tokens.append(os.urandom(count))
            return self.tokens[-1]

        parts.random = random
        return parts

    def found(self) -> None:
        """Make the state directory, as `init` does."""
        parts = self.parts()
        try:
            making.initialise(self.where, "edge", at_ms=parts.clock.wall_ms(), files=parts.files)
        except EdgeError as error:
            raise StoppedError(error.code) from None

    def define(self, *names: str) -> None:
        """Add tasks that are not there yet; the owner is open."""
        for name in names:
            fields = self.slot.tasks()[name]
            try:
                if self.live.store.tasks.find(name) is None:
                    methods.call(self.live, "task.add", {"name": name, **fields}, _PEER)
            except EdgeError:
                return  # the person who asked is told

    def open(self, *, admit: bool = True) -> None:
        """The daemon's start order; without `admit` up to the point where it admits."""
        parts = self.parts()
        try:
            config = state.read_config(self.where, parts.files)
            self.runtime = runtime = Runtime(self.where, config, parts, daemon=True)
            runtime.dispatcher._log_quota_bytes = LOG_QUOTA
            runtime.prepare_launching()
            runtime.recover()
        except EdgeError as error:
            self.close()
            raise StoppedError(error.code) from None
        if not admit:
            return
        runtime.loop.on_wake = runtime.scheduler.woken
        runtime.sweep.start()
        runtime.dispatcher.open()
        runtime.scheduler.open()

    def close(self) -> None:
        """The daemon's stop order."""
        runtime, self.runtime = self.runtime, None
        if runtime is None:
            return
        runtime.loop.on_wake = None
        runtime.scheduler.close()
        runtime.dispatcher.close()
        runtime.sweep.stop()
        with contextlib.suppress(EdgeError):
            runtime.coordinator.flush()
        runtime.starter.close()
        runtime.coordinator.close()
        runtime.close()

    def collect(self) -> None:
        """Turn until every wrapper that has left the registry is reaped; give the others' marks
        back, as the end of the owner's process does."""
        deadline = time.monotonic() + _COLLECT_S
        while time.monotonic() < deadline:
            at_work = {each.attempt.pid for each in self.live.coordinator.registry}
            if not set(self.plan.forked) & set(children()) - at_work:
                break
            self.live.loop.run_once(5)
        for active in self.live.coordinator.registry:
            if active.launch is not None:
                self.live.loop.unwatch(active.launch.gate_fd)
                self.live.loop.unwatch(active.launch.channel_fd)
                active.launch._child.close()  # type: ignore[attr-defined]
                self.plan.forked.remove(active.attempt.pid or 0)

    @property
    def live(self) -> Runtime:
        """The owner."""
        if self.runtime is None:
            raise AssertionError("nobody owns the state")
        return self.runtime

    @contextlib.contextmanager
    def owned(self) -> Iterator[Runtime]:
        """An owner for the time of a block."""
        self.open()
        try:
            yield self.live
            self.collect()
        finally:
            self.close()

    def killed_owner(self, life: Callable[[], None]) -> None:
        """An owner in a process of its own, which is gone after `life` as if it had been killed."""
        pid = os.fork()
        if pid == 0:
            try:
                self.open()
                life()
            finally:
                os._exit(9)
        os.waitpid(pid, 0)

    # -- what people and processes do -------------------------------------------------------------

    def start(self, name: str) -> None:
        """A manual start; a refusal is told to whoever asked."""
        runtime = self.live
        try:
            task = runtime.store.tasks.find(name)
            if task is None:
                return
            revision = runtime.store.tasks.revision(task.number, task.revision)
        except EdgeError:
            return
        runtime.dispatcher.admit(
            Request(task, revision, actor="user:0", done=lambda _run, _attempt, _error: None)
        )

    def runs(self) -> list[Run]:
        """Every run, newest first; the counting stands still meanwhile."""
        armed, self.plan.armed = self.plan.armed, False
        try:
            return self.live.store.runs.page(limit=50, before=None, task_number=None, status=None)
        finally:
            self.plan.armed = armed

    def release(self) -> None:
        """Let held commands go on."""
        with open(self.slot.go, "w", encoding="ascii"):
            pass

    def ended(self) -> bool:
        """True once some run is there and each has ended."""
        runs = self.runs()
        return bool(runs) and all(run.ended for run in runs)

    def begun(self) -> bool:
        """True once every attempt at work has its command at the exec."""
        registry = list(self.live.coordinator.registry)
        launches = [each.launch for each in registry if each.launch is not None]
        return bool(launches) and all(launch.started() for launch in launches)

    # -- turning ----------------------------------------------------------------------------------

    def busy(self) -> bool:
        """True while a process of ours lives, so that real time has to pass."""
        runtime = self.live
        if runtime.starter.launching:
            return True
        return any(alive(active.attempt.pid or 0) for active in runtime.coordinator.registry)

    def next_due_ms(self) -> int | None:
        """The boottime of the next timer, or None."""
        timers = [timer.due_ms for timer in self.live.loop._timers if timer.call is not None]
        return min(timers, default=None)

    def drive(self, done: Callable[[], bool], *, jumps: int = 3, within_s: float = _REAL_S) -> bool:
        """Turn the loop until `done`; at most so many jumps to the next timer."""
        deadline = time.monotonic() + within_s
        while not done():
            if time.monotonic() > deadline:
                return False
            if self.busy():
                self.live.loop.run_once(20)
                continue
            self.live.loop.run_once(0)
            if done() or self.busy():
                continue
            due_ms = self.next_due_ms()
            if jumps <= 0 or due_ms is None:
                return False
            jumps -= 1
            self.jump(due_ms - self.live.parts.clock.boot_ms())
            self.live.loop.run_once(0)
        return True

    def jump(self, ms: int) -> None:
        """Turn the clock on."""
        self.shift.add(ms)

    def wait_for_processes(self) -> None:
        """Until nothing of this slot runs any more; nobody owns the state."""
        deadline = time.monotonic() + HEALED_S
        while any(map(alive, children())) and time.monotonic() < deadline:
            time.sleep(0.002)

    def idle(self) -> bool:
        """True if nothing is at work, waits, or is held."""
        runtime = self.live
        return not (
            len(runtime.coordinator.registry)
            or runtime.dispatcher.waiting
            or runtime.starter.launching
        )


def alive(pid: int) -> bool:
    """True unless a process is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as opened:
            return opened.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def children() -> list[int]:
    """Children of this process, those that it was made the reaper of included."""
    with open(f"/proc/self/task/{os.getpid()}/children", "rb") as opened:
        return [int(word) for word in opened.read().split()]
