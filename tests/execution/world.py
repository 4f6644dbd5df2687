"""The policies on a real database, with a machine that a test turns by hand.

`World` is the machine; `start` gives it an owner, `crash` takes the owner away at that very moment
and `start` gives it the next one on the same database. `order` records the effects of all owners.
"""

# ruff: noqa: ARG002 - a double takes what the real thing takes
from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qinglong_edge.core import recipe as recipes
from qinglong_edge.core import zone as zones
from qinglong_edge.core.commit import Commit, Cursor
from qinglong_edge.core.errors import EdgeError, Unavailable
from qinglong_edge.core.evidence import Exit
from qinglong_edge.core.ids import IdSource
from qinglong_edge.core.plan import Identity, LaunchPlan
from qinglong_edge.core.run import BOOT, CRON, EVERY, Attempt, Run
from qinglong_edge.core.task import Definition, Task, Trigger
from qinglong_edge.execution.control import Control
from qinglong_edge.execution.coordinator import Coordinator
from qinglong_edge.execution.dispatch import Dispatcher, Request
from qinglong_edge.execution.recovery import Recovered, Recovery
from qinglong_edge.execution.scheduler import Scheduler
from qinglong_edge.execution.starts import Starter
from qinglong_edge.execution.sweep import Sweep
from qinglong_edge.execution.trust import SETTING, ClockTrust
from qinglong_edge.process.cleanup import CleanupScanner
from qinglong_edge.process.controller import Controller
from qinglong_edge.storage import store as storage
from qinglong_edge.storage.connection import Layout
from qinglong_edge.system.zonefile import read_tzif
from tests.execution.machine import (
    START_MS,
    Idle,
    Logs,
    Loop,
    Machine,
    Process,
    Receipts,
    Secrets,
    channel_fd,
    gate_fd,
)

_LAYOUT = Layout(page_bytes=1024, cache_kib=256, wal_bytes=65_536)
QUOTA = 65_536
GRACE_MS = 30_000
_HISTORY = {"keep_runs": 2_000, "keep_ms": 2_592_000_000, "keep_audit": 2_000}
NO_SPACE = Unavailable("no_space", "There is no room.")


class Crash(BaseException):
    """The owner dies at an effect."""


class Store(storage.Store):
    """The real store; its commits are effects and may be refused."""

    world: World

    def commit(self, commit: Commit) -> None:
        self.world.effect("before commit")
        if self.world.refuse is not None:
            raise self.world.refuse
        super().commit(commit)
        self.world.commits.append(commit)
        self.world.effect("commit")


class Launch:
    """One gated child of the owner that forked it."""

    def __init__(self, world: World, process: Process) -> None:
        self._world, self.process = world, process
        self.pid = process.pid
        self.refusal: EdgeError | None = None
        self.gate = self.channel = True

    @property
    def gate_fd(self) -> int:
        return gate_fd(self.pid) if self.gate else -1

    @property
    def channel_fd(self) -> int:
        return channel_fd(self.pid) if self.channel else -1

    def take_ready(self) -> bool:
        if self.refusal is not None:
            raise self.refusal
        return True

    def take_exec(self) -> int | None:
        self.gate = False
        return 0

    def open_gate(self, log: int | None) -> None:
        if self._world.gate_fails:
            raise BrokenPipeError
        self._world.effect("gate")
        self.process.begun = self.process.listens = True

    def refuse(self) -> None:
        self.gate = self.channel = False
        self._world.machine.processes.pop(self.pid, None)

    def started(self) -> bool:
        return self.process.marked

    def read_channel(self) -> bytes | None:
        data, self.process.channel = self.process.channel, b""
        return data or (b"" if self.process.exit is not None else None)

    def acknowledge(self) -> bool:
        self._world.effect("acknowledged")
        self.process.acknowledged = self.process.exit is None
        return self.process.acknowledged

    def peek_exit(self) -> Exit | None:
        if self.process.reaped:
            raise ChildProcessError
        return self.process.exit

    def close_channel(self) -> None:
        self.channel = self.process.listens = False

    def finish(self) -> None:
        self._world.effect("reaped")
        self.process.reaped = True
        self.gate = self.channel = False


class Launcher:
    """Forks gated children; `ready` decides whether they say so at once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.refusal: Exception | None = None
        self.child_refusal: EdgeError | None = None
        self.ready = True
        self.launches: list[Launch] = []

    def begin(
        self,
        plan: LaunchPlan,
        fact_paths: tuple[str, str] | None,
        resolve: Callable[[], dict[str, str]],
    ) -> Launch:
        if self.refusal is not None:
            raise self.refusal
        self._world.effect("fork")
        launch = Launch(self._world, self._world.machine.spawn(plan))
        launch.refusal = self.child_refusal
        self.launches.append(launch)
        if self.ready and self._world.loop is not None:
            self._world.loop.ready.append(launch.gate_fd)
        return launch

    def prepare(self, attempt_id: str) -> None:
        self._world.effect("receipt shard")

    def identify(self, launch: Launch, handle_id: str) -> Identity:
        return Identity(handle=launch.process.handle, pid=launch.pid, pid_namespace=7)


@functools.cache
def _new_database() -> bytes:
    """What `create` makes; made once and copied."""
    with tempfile.TemporaryDirectory() as folder:
        storage.create(folder, profile="edge", layout=_LAYOUT, at_ms=START_MS)
        return Path(folder, storage.NAME).read_bytes()


class World:
    """One machine with a state directory, and its owner of the moment."""

    def __init__(self, path: Path, *, places: int = 4) -> None:
        self.path, self.places = str(path), places
        self.machine = Machine()
        self.clock = self.machine.clock
        self.order: list[str] = []
        self.commits: list[Commit] = []
        self.crash_at: int | None = None
        self.refuse: EdgeError | None = None
        self.gate_fails = False
        self.effects = 0
        self.loop: Loop | None = None
        self.answers: list[tuple[Run | None, Attempt | None, EdgeError | None]] = []
        self.settled: list[Run] = []
        self._random = 0
        Path(path, storage.NAME).write_bytes(_new_database())
        self._open()

    def effect(self, name: str) -> None:
        """Record an effect; die after it if the test says so."""
        self.order.append(name)
        self.effects += 1
        if self.crash_at is not None and self.effects >= self.crash_at:
            self.crash_at = None
            raise Crash

    def random(self, count: int) -> bytes:
        self._random += 1
        return self._random.to_bytes(8, "big").rjust(count, b"\x5a")[-count:]

    def _open(self) -> None:
        Store.world = self
        self.store = Store(self.path, layout=_LAYOUT, at_ms=self.clock.wall)
        self.store.database.execute("PRAGMA synchronous=OFF")  # no power is cut here
        self.loop = self.machine.loop = Loop(self.clock)
        self.trust = ClockTrust(
            self.clock, stored_high_ms=int(self.store.setting(SETTING) or 0), stamps=("/ntp",)
        )
        self.receipts = Receipts(self.machine, self.effect)
        self.logs = Logs(self.machine, self.effect)
        self.launcher = Launcher(self)
        self.secrets = Secrets()
        self.retention = Idle()
        source = IdSource(self.clock.wall_ms, self.random)
        newest = self.store.runs.newest_id()
        if newest is not None:
            source.resume_after(newest)
        common: dict[str, Any] = {"store": self.store, "loop": self.loop, "clock": self.clock}
        self.coordinator = Coordinator(
            **common,
            logs=self.logs,
            receipt_store=self.receipts,
            inspector=self.machine,
            pids=self.machine,
            quarantine_ms=3_600_000,
        )
        self.coordinator.extra_settings = self.trust.to_save
        self.coordinator.on_saved = self.trust.saved
        self.starter = Starter(
            **common,
            launcher=self.launcher,
            logs=self.logs,
            secrets=self.secrets,
            make_room=lambda _bytes: False,
            coordinator=self.coordinator,
            random=self.random,
        )
        self.dispatcher = Dispatcher(
            **common,
            coordinator=self.coordinator,
            starter=self.starter,
            id_source=source,
            places=self.places,
            log_quota_bytes=QUOTA,
        )
        self.dispatcher.on_settled = self.settled.append
        self._assemble_policies(self.loop)

    def _assemble_policies(self, loop: Loop) -> None:
        machine: Any = self.machine
        processes: Any = loop
        self.control = Control(
            store=self.store,
            coordinator=self.coordinator,
            dispatcher=self.dispatcher,
            controller=Controller(machine, machine, processes, machine.clock),
            inspector=machine,
            clock=self.clock,
            grace_ms=5_000,
        )
        self.recovery = Recovery(
            store=self.store,
            coordinator=self.coordinator,
            control=self.control,
            inspector=machine,
        )
        self.scheduler = Scheduler(
            store=self.store,
            dispatcher=self.dispatcher,
            coordinator=self.coordinator,
            trust=self.trust,
            loop=loop,
            clock=self.clock,
            open_zone=lambda text: zones.open_zone(text, read_tzif(text)),
            boot_id=machine.boot_id,
            grace_ms=GRACE_MS,
        )
        self.scheduler.paused = self.store.setting("paused") == "true"
        files: Any = self.receipts
        self.sweep = Sweep(
            store=self.store,
            retention=self.retention,
            coordinator=self.coordinator,
            recovery=self.recovery,
            scanner=CleanupScanner(
                self.store.journal, files, self.coordinator.resolve, page=8, retention_ms=86_400_000
            ),
            logs=self.logs,
            loop=loop,
            clock=self.clock,
            trusted=lambda: self.trust.trusted,
            boot_id=machine.boot_id,
            interval_ms=300_000,
            page=8,
            **_HISTORY,
        )

    # -- owners -----------------------------------------------------------------------------------

    def start(self) -> Recovered:
        """The daemon's start order; a world that has no owner gets its next one."""
        if self.loop is None:
            self._open()
        recovered = self.recovery.recover()
        self.sweep.run_once()
        self.dispatcher.load()
        self.scheduler.load()
        if self.loop is not None:
            self.loop.on_wake = self.scheduler.woken
        self.sweep.start()
        self.dispatcher.open()
        self.scheduler.open()
        self.settle()
        return recovered

    def crash(self) -> None:
        """The owner is gone: what waited at a gate exits, what ran runs on and hears nobody."""
        if self.loop is not None:
            self.loop.dead = True
        self.loop = self.machine.loop = None
        for pid, process in list(self.machine.processes.items()):
            process.listens, process.reaped = False, True
            if not process.begun:
                del self.machine.processes[pid]
        self.store.close()

    def restart(self) -> Recovered:
        """A crash and the next owner."""
        self.crash()
        return self.start()

    def run_for(self, ms: int) -> None:
        """Let time pass."""
        if self.loop is not None:
            self.loop.run_for(ms)

    def settle(self) -> None:
        """Let happen what is ready or due now."""
        if self.loop is not None:
            self.loop.settle()

    # -- tasks and runs ---------------------------------------------------------------------------

    def task(
        self,
        name: str = "task",
        *,
        cron: str | None = None,
        every: str | None = None,
        boot: bool = False,
        zone: str = "UTC",
        misfire: str = "skip",
        **fields: Any,
    ) -> Task:
        """A task, or its next revision."""
        triggers = []
        if cron is not None:
            triggers.append(Trigger(kind=CRON, expression=cron, zone=zone, misfire=misfire))
        if every is not None:
            triggers.append(Trigger(kind=EVERY, expression=every, zone="", misfire=misfire))
        if boot:
            triggers.append(Trigger(kind=BOOT, expression="", zone="", misfire=misfire))
        definition = Definition(**{"argv": ("/bin/true",), **fields})
        tasks = self.store.tasks
        with self.store.database.write():
            found = tasks.find(name) or tasks.insert(name, self.clock.wall)
            task = tasks.append(
                found,
                definition,
                tuple(triggers),
                recipes.from_bindings([recipes.public("PATH", "/bin")]),
                at_ms=self.clock.wall,
                boot_id=None if boot else self.machine.boot_id,
            )
        self.scheduler.refresh(task.number)
        self.settle()
        return task

    def enable(self, task: Task, *, enabled: bool) -> None:
        """As the front end does it."""
        if enabled:
            self.scheduler.enable(task.number)
        with self.store.database.write():
            self.store.tasks.set_enabled(task, enabled=enabled)
        self.settle()

    def pause(self, *, paused: bool) -> None:
        """As the front end does it."""
        with self.store.database.write():
            self.store.put_setting("paused", "true" if paused else "false")
        self.scheduler.pause(paused=paused)
        self.settle()

    def cursor(self, task: Task) -> Cursor:
        """The one trigger of a task."""
        (cursor,) = self.store.tasks.task_cursors(task.number)
        return cursor

    def ask(self, task: Task) -> None:
        """A manual start, not waited for."""
        revision = self.store.tasks.revision(task.number, task.revision)
        self.dispatcher.admit(
            Request(task, revision, actor="user:0", done=lambda *told: self.answers.append(told))
        )

    def manual(self, task: Task) -> Run:
        """A manual start that is admitted."""
        self.ask(task)
        self.settle()
        run, _attempt, error = self.answers[-1]
        assert run is not None, error
        return self.run(run.number)

    def refused(self, task: Task) -> str:
        """The code of a manual start that is not admitted."""
        self.ask(task)
        self.settle()
        error = self.answers[-1][2]
        assert error is not None
        return error.code

    def run(self, number: int = 1) -> Run:
        """A stored run."""
        run = self.store.runs.get(number)
        assert run is not None
        return run

    def attempt(self, number: int = 1) -> Attempt:
        """The newest stored attempt of a run."""
        attempt = self.store.runs.latest_attempt(number)
        assert attempt is not None
        return attempt

    def runs(self) -> list[Run]:
        """Every stored run, oldest first."""
        return self.store.runs.page(limit=500, before=None, task_number=None, status=None)[::-1]

    def statuses(self) -> list[str]:
        """The status of every run, oldest first."""
        return [run.status for run in self.runs()]

    def process(self, number: int = 1) -> Process:
        """The process of a run's newest attempt."""
        return self.machine.processes[self.attempt(number).pid or 0]

    def process_of_machine(self) -> Process:
        """The one process there is, while nobody owns the state."""
        (process,) = self.machine.processes.values()
        return process

    def end(self, number: int = 1, code: int = 0, **how: Any) -> None:
        """A run's command ends."""
        self.process(number).end(code, **how)
        self.settle()

    def hold(self, number: int = 1) -> str | None:
        """Why a run cannot converge."""
        active = self.coordinator.registry.get(number)
        return None if active is None else active.hold

    def journal(self) -> list[tuple[int, str]]:
        """(run, state) of every row of the receipt journal."""
        rows = self.store.database.rows("SELECT run_number, state FROM receipt_journal ORDER BY 1")
        return [(number, str(state)) for number, state in rows]

    def events(self, number: int = 1) -> list[str]:
        """The types of a run's events in sequence; versions and sequences agree."""
        found = list(self.store.runs.events(number))
        assert [each[0] for each in found] == list(range(1, self.run(number).version + 1))
        return [each[3].type for each in found]

    def stop(self, number: int = 1, **how: Any) -> list[EdgeError | None]:
        """A person's stop; the answers come into the list."""
        answers: list[EdgeError | None] = []
        how = {"actor": "user:0", "grace_ms": None, **how}
        self.control.stop(self.run(number), done=answers.append, **how)
        self.settle()
        return answers

    def degraded(self) -> str | None:
        """What the last maintenance failed of."""
        return self.sweep.failed

    def doubted(self) -> str | None:
        """Why the clock is not believed."""
        return self.trust.reason

    def close(self) -> None:
        """End of the test."""
        self.store.close()
