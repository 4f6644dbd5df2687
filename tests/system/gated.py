"""Gated children with a small script of the test's own in the wrapper's place."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qinglong_edge.system.child import Child, ChildPlan, Spawner
from qinglong_edge.system.process import Processes
from tests.support import until


def script(text: str) -> int:
    """A descriptor of a shell script."""
    fd = os.memfd_create("script")
    os.write(fd, text.encode())
    return fd


def plan(text: str = "exit 0", **changes: Any) -> ChildPlan:
    """A plan that runs `text`."""
    given: dict[str, Any] = {
        "program": "/bin/sh",
        "arguments": ("sh", "/proc/self/fd/3"),
        "environment": {"PATH": "/usr/bin:/bin"},
        "cwd": "/",
        "nice": 0,
        "oom_score_adj": 0,
        "script": -1,
        "log_quota_bytes": 0,
        "kept": (),
    }
    given.update(changes)
    if given["script"] < 0:
        given["script"] = script(text)
    return ChildPlan(**given)


def fork(text: str = "exit 0", **changes: Any) -> Child:
    """A child that waits at its gate."""
    child = Spawner().fork(plan(text, **changes), dict)
    assert word(child) == b"R"
    return child


def word(child: Child) -> bytes:
    """What the child says next; b"" is its end."""
    said: list[bytes] = []

    def read() -> bool:
        heard = child.read_gate()
        if heard is not None:
            said.append(heard)
        return bool(said)

    until(read)
    return said[0]


def collect(child: Child) -> int:
    """Wait for the child's end; its exit status, negative for a signal."""
    until(lambda: Processes().peek_exit(child.pid), what="the child's end")
    child.close()
    return os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])


def apart(call: Callable[[], object]) -> Any:
    """Run `call` in a forked copy of this process, whose limits and descriptors may change."""
    answer_r, answer_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            told: object = call()
        except BaseException as error:  # noqa: BLE001 - everything is told to the parent
            told = f"{type(error).__name__}: {error}"
        os.write(answer_w, json.dumps(told).encode())
        os._exit(0)
    os.close(answer_w)
    with open(answer_r, "rb") as opened:
        text = opened.read()
    os.waitpid(pid, 0)
    return json.loads(text)


def descriptors(pid: int | str = "self") -> dict[int, str]:
    """The open descriptors of a process and where they lead."""
    folder = f"/proc/{pid}/fd"
    found = {}
    for name in os.listdir(folder):
        try:
            found[int(name)] = os.readlink(f"{folder}/{name}")
        except FileNotFoundError:  # the listing's own
            continue
    return found


def status(pid: int) -> dict[str, str]:
    """The lines of /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
