"""Stopping real tasks: shells, groups, sessions and signals as they are."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.core import handle as handles
from qinglong_edge.core.evidence import ALIVE, GONE, Exit, Stopped, Target, Verdict
from qinglong_edge.process.launcher import Launch
from tests.process.launches import World, ended
from tests.support import until

TERM, KILL = signal.SIGTERM, signal.SIGKILL


class Scene:
    """One real task and its stop."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.outcomes: list[Stopped] = []
        self.controller, self.loop = world.stopping()
        self.launch: Launch | None = None

    def start(self, text: str, **changes: Any) -> Target:
        """A task that runs; it is past its command's exec."""
        self.launch, target = self.world.start(text, **changes)
        self.launch.close_channel()
        until(self.launch.started)
        return target

    def stop(self, target: Target, *, own: bool, grace_ms: int = 5_000) -> Stopped:
        """Stop it to the end."""
        self.controller.stop(
            target,
            own=self.launch if own else None,
            grace_ms=grace_ms,
            done=self.outcomes.append,
        )
        deadline = time.monotonic() + 60
        while not self.outcomes and time.monotonic() < deadline:
            self.loop.run_once(100)
        return self.outcomes[0]

    def close(self) -> None:
        """Nothing of the task is left; its wrapper was ours all the time."""
        self.loop.close()
        if self.launch is not None:
            self.world.processes.signal_group(self.launch.pid, KILL)
            self.launch.finish()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    found = Scene(World(tmp_path))
    yield found
    found.close()


def pid_in(path: Path) -> int:
    """The pid that a task wrote into a file."""
    return int(until(lambda: path.exists() and path.read_text().strip()) or 0)


def dead(scene: Scene, pid: int) -> bool:
    """Whether a process is gone, or a zombie that nobody has collected yet."""
    stat = scene.world.inspector.stat(pid)
    return stat is None or stat.state in "ZX"


def test_a_real_task_ends_by_one_term_and_its_handler_is_heard(
    scene: Scene, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    text = (
        f"trap 'echo term >>{told}; exit 23' TERM; echo up >>{told}; while :; do sleep 0.05; done"
    )
    target = scene.start(text)
    until(told.exists)
    assert scene.stop(target, own=True) == Stopped(conclusive=True, signal=TERM)
    assert told.read_text() == "up\nterm\n"
    assert scene.launch is not None
    assert ended(scene.launch) == Exit(code=23, signal=None)


@pytest.mark.parametrize("own", [True, False])
def test_a_real_task_that_ignores_its_term_is_killed_with_its_children(
    scene: Scene, tmp_path: Path, own: bool
) -> None:
    told = tmp_path / "told"
    target = scene.start(f"trap '' TERM; sleep 30 & echo $! >{told}; wait; sleep 30; sleep 30")
    child = pid_in(told)
    assert scene.stop(target, own=own, grace_ms=50) == Stopped(conclusive=True, signal=KILL)
    assert dead(scene, child)


def test_a_survivor_of_an_own_wrapper_that_ended_is_killed(scene: Scene, tmp_path: Path) -> None:
    told = tmp_path / "told"
    target = scene.start(f"trap '' TERM; sleep 30 >/dev/null 2>&1 & echo $! >{told}; exit 3")
    child = pid_in(told)
    assert scene.launch is not None
    ended(scene.launch)
    assert scene.world.inspector.inspect(target) == Verdict(state=GONE)
    assert scene.stop(target, own=True, grace_ms=50) == Stopped(conclusive=True, signal=KILL)
    assert dead(scene, child)


def test_a_job_in_a_group_of_its_own_dies_at_the_kill(scene: Scene, tmp_path: Path) -> None:
    told = tmp_path / "told"
    text = f"set -m; trap '' TERM; sleep 30 & echo $! >{told}; wait"
    target = scene.start("", argv=("/bin/bash", "-c", text))
    job = pid_in(told)
    assert os.getpgid(job) == job
    assert os.getsid(job) == target.pid
    assert scene.stop(target, own=True, grace_ms=50) == Stopped(conclusive=True, signal=KILL)
    assert dead(scene, job)


def test_a_process_that_made_a_session_of_its_own_is_left_alone(
    scene: Scene, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    text = f"setsid sh -c 'echo $$ >{told}; exec sleep 30' >/dev/null 2>&1 & wait; sleep 30"
    target = scene.start(text)
    daemon = pid_in(told)
    try:
        assert scene.stop(target, own=True) == Stopped(conclusive=True, signal=TERM)
        assert os.getsid(daemon) == daemon
    finally:
        os.kill(daemon, KILL)
    until(lambda: dead(scene, daemon))


def test_another_process_under_the_stored_pid_is_never_signalled(scene: Scene) -> None:
    target = scene.start("sleep 30")
    inspector = scene.world.inspector
    handle = handles.decode(target.handle)
    assert handle is not None
    other = target.replace(handle=handle.replace(start_ticks=handle.start_ticks - 1).encode())
    assert inspector.inspect(other) == Verdict(state=GONE, reason="pid_reused")
    assert scene.stop(other, own=False) == Stopped(conclusive=True)
    assert inspector.inspect(target) == Verdict(state=ALIVE)


def test_a_stop_right_behind_the_gate_loses_no_term(scene: Scene) -> None:
    for _ in range(8):
        scene.outcomes.clear()
        launch, target = scene.world.start("sleep 30")
        launch.close_channel()
        scene.launch = launch
        assert scene.stop(target, own=True) == Stopped(conclusive=True, signal=TERM)
        launch.finish()
        scene.launch = None
