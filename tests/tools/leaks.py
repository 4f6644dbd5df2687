"""What a test that starts processes must not leave behind: children, survivors, descriptors.

A survivor is a process of anybody's that still works in the test's own folder: its directory, its
command line or an open file lies there. So a task that outlived its scheduler is found although it
is no child of the test any more.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from dataclasses import dataclass

_DYING_S = 10.0  # a process that was told to end may still be at its last lines, emulated or not


@dataclass(frozen=True)
class Snapshot:
    """Descriptors as (number, target) and children as pids."""

    descriptors: frozenset[tuple[int, str]]
    children: frozenset[int]


def snapshot() -> Snapshot:
    """The state of this process now."""
    return Snapshot(frozenset(_descriptors()), frozenset(_children()))


def leaks(before: Snapshot, folder: str) -> list[str]:
    """One sentence for everything that is there now, was not before, and does not go by itself."""
    gc.collect()  # a file in a reference cycle is closed by its finalizer, which warns
    deadline = time.monotonic() + _DYING_S
    while (found := _found(before, folder)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def _found(before: Snapshot, folder: str) -> list[str]:
    now = snapshot()
    found = [
        f"descriptor {number} is open: {target}"
        for number, target in sorted(now.descriptors - before.descriptors)
    ]
    pids = (now.children - before.children) | frozenset(survivors(folder))
    found += [f"process {pid} is there: {_command(pid)}" for pid in sorted(pids)]
    return found


def survivors(folder: str) -> list[int]:
    """Processes that work in `folder`, this one and zombies left out."""
    mark = folder.rstrip("/") + "/"
    return [
        pid
        for pid in _pids()
        if pid != os.getpid() and any(mark in f"{place}/" for place in _places(pid))
    ]


def end(before: Snapshot, folder: str) -> None:
    """KILL and reap what `leaks` found, so that one test's leak is not the next one's."""
    for pid in frozenset(survivors(folder)) | (snapshot().children - before.children):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    for pid in snapshot().children - before.children:
        try:
            os.waitpid(pid, 0)
        except ChildProcessError:
            continue


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _descriptors() -> list[tuple[int, str]]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append((int(name), os.readlink(f"/proc/self/fd/{name}")))
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return found


def _children() -> list[int]:
    own = str(os.getpid())
    found = []
    for pid in _pids():
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as opened:
                after_name = opened.read().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if after_name[1] == own:
            found.append(pid)
    return found


def _places(pid: int) -> list[str]:
    try:
        places = [os.readlink(f"/proc/{pid}/cwd"), *_command(pid).split()]
        folder = f"/proc/{pid}/fd"
        places += [os.readlink(os.path.join(folder, name)) for name in os.listdir(folder)]
    except OSError:  # gone, or not ours to look at
        return []
    return places


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as opened:
            words = opened.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        words = ""
    return words or "(no command line)"
