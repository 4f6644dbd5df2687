"""The daemon's runtime inside the test: its effects, its clocks and its turns are the test's.

What `app.daemon` does around the loop, without signals and socket. A method is answered by the same
handlers; one that is answered later turns the loop until it is.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

from qinglong_edge.app import methods, rpc, state
from qinglong_edge.app.daemon import Daemon
from qinglong_edge.app.runtime import Parts, Runtime
from qinglong_edge.core.errors import EdgeError
from qinglong_edge.core.run import Run
from qinglong_edge.execution.active import Active
from qinglong_edge.system.clock import Clock
from tests.e2e.kit import WITHIN_S
from tests.support import until

T = TypeVar("T")
_TURN_MS = 5
_LEFT: list[int] = []  # wrappers that a stopped runtime left running


def collect() -> None:
    """Reap the wrappers that ended as nobody's: in a daemon's life init does it."""
    while _LEFT:
        pid = _LEFT.pop()
        until(functools.partial(_reaped, pid), what=f"wrapper {pid} ends")


def _reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


class Moved(Clock):
    """The machine's clocks, which go on by themselves, moved by the test."""

    def __init__(self, wall_ms: int | None = None) -> None:
        self._boot_ms = 0
        self._wall_ms = 0
        if wall_ms is not None:
            self.set(wall_ms)

    def boot_ms(self) -> int:
        return super().boot_ms() + self._boot_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self._boot_ms + self._wall_ms

    def pass_by(self, duration_ms: int) -> None:
        """Time passes, on both clocks."""
        self._boot_ms += duration_ms

    def set(self, wall_ms: int) -> None:
        """Somebody sets the wall clock."""
        self._wall_ms += wall_ms - self.wall_ms()


class Still(Moved):
    """Clocks that stand still but for what the test moves: real time changes no count."""

    def __init__(self, wall_ms: int) -> None:
        self._boot_ms, self._wall_ms = Clock().boot_ms(), 0
        self.set(wall_ms)

    def boot_ms(self) -> int:
        return self._boot_ms

    def wall_ms(self) -> int:
        return self._boot_ms + self._wall_ms


class Resident:
    """One owner that recovered, schedules and admits; `with` stops it as a daemon stops."""

    def __init__(
        self, place: Path, parts: Parts | None = None, *, places: int | None = None
    ) -> None:
        where = state.place(str(place), None)
        parts = Parts() if parts is None else parts
        config = state.read_config(where, parts.files)
        self.runtime = runtime = Runtime(where, config, parts, daemon=True)
        self.started: list[Active] = []
        self.ended: list[Run] = []
        self.on_started: Callable[[Active], None] = lambda _active: None
        self._daemon = Daemon(runtime, on_stop="leave")
        try:
            if places is not None:
                runtime.dispatcher._places = places
            runtime.prepare_launching()
            runtime.coordinator.on_started = self._started
            runtime.settled.append(self.ended.append)
            runtime.recover()
            runtime.loop.on_wake = runtime.scheduler.woken
            runtime.sweep.start()
            runtime.dispatcher.open()
            runtime.scheduler.open()
        except BaseException:
            self._close()
            raise

    def _started(self, active: Active) -> None:
        self.started.append(active)
        self.on_started(active)

    def _close(self) -> None:
        """Also what the end of a process does: its descriptors go, its children lose it."""
        self._daemon._close(None)
        for active in self.started:
            if active.launch is not None:
                getattr(active.launch, "_child").close()  # noqa: B009 - nobody else may
                _LEFT.append(active.launch.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_exception: object) -> None:
        try:
            if kind is None:
                self.until(
                    lambda: all(each.released for each in self.started if each.ended),
                    what="ended wrappers are reaped",
                )
        finally:
            self._close()

    def turn(self, bound_ms: int = _TURN_MS) -> None:
        """One turn of the loop."""
        self.runtime.loop.run_once(bound_ms)

    def until(self, ready: Callable[[], T], timeout: float = WITHIN_S, *, what: str = "") -> T:
        """Turn the loop until `ready` answers with something true."""

        def look() -> T:
            answer = ready()
            if not answer:
                self.turn()
            return answer

        return until(look, timeout, what=what)

    def begin(self, method: str, **params: object) -> Any:
        """Ask, without waiting for an answer that comes later."""
        return methods.call(self.runtime, method, params, rpc.Peer(os.geteuid(), "socket"))

    def call(self, method: str, **params: object) -> Any:
        """Ask, and turn the loop until the answer is there; a refusal is raised."""
        answer = self.begin(method, **params)
        if not isinstance(answer, rpc.Pending):
            return answer
        told: list[tuple[Any, BaseException | None]] = []
        answer.listen(lambda result, error: told.append((result, error)))
        self.until(lambda: told, what=f"{method} is answered")
        result, error = told[0]
        if error is not None:
            raise error
        return result

    def answer(self, method: str, **params: object) -> str | None:
        """The code of the refusal, None if there was none."""
        try:
            self.call(method, **params)
        except EdgeError as error:
            return error.code
        return None

    def refused(self, method: str, **params: object) -> str:
        """The code of the refusal that this must get."""
        code = self.answer(method, **params)
        assert code is not None, f"{method} was not refused"
        return code

    def task(self, name: str, **params: object) -> None:
        """A new task; a shell text or an argv."""
        self.call("task.add", name=name, **params)

    def start(self, name: str, **params: object) -> int:
        """Start a task's run; its number."""
        return int(self.call("run.start", name=name, **params)["number"])

    def run(self, number: int) -> Any:
        """RUN as it is now."""
        return self.call("run.show", run=str(number))["run"]

    def end(self, number: int, timeout: float = WITHIN_S) -> Any:
        """RUN once it has ended."""
        return self.until(
            lambda: run if (run := self.run(number))["finished_at_ms"] is not None else None,
            timeout,
            what=f"run {number} ends",
        )

    def active(self, number: int) -> Active:
        """The attempt that holds the run's place, once it does."""
        registry = self.runtime.coordinator.registry
        self.until(lambda: registry.get(number), what=f"run {number} has a place")
        (active,) = [each for each in registry if each.run.number == number]
        return active

    def hold(self, number: int) -> str | None:
        """Why the run cannot converge."""
        active = self.runtime.coordinator.registry.get(number)
        return None if active is None else active.hold

    def degraded(self) -> list[str]:
        """What `status` says is not well."""
        return list(self.call("status")["degraded"])
