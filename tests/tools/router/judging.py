"""In a guest: one cut disk after the other is mounted, judged and taken away again.

Owns the disk that the host cuts, and what is the same whoever judges it: a line of JSON with the
marks of a disk comes in, a line with its broken promises goes out.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from tests.tools.router.flash import PLACE

Marks = list[dict[str, Any]]

DEVICE = "/dev/vdb"
_WITHIN_S = 60.0


class Mountable(Protocol):
    """A disk or a chip; another content each time it is mounted."""

    def mount(self) -> None:
        """RuntimeError when it cannot be."""

    def unmount(self) -> None:
        """Nothing of it stays in memory."""


class Disk:
    """An ext4 of the host; another one each time it is mounted."""

    def mount(self) -> None:
        """RuntimeError when it cannot be."""
        words = ["mount", "-t", "ext4", "-o", "noatime", DEVICE, PLACE]
        mounted = subprocess.run(words, capture_output=True, text=True)
        if mounted.returncode != 0:
            raise RuntimeError(mounted.stderr)

    def unmount(self) -> None:
        """Nothing of the disk stays in memory: the next one is another one."""
        deadline = time.monotonic() + _WITHIN_S
        while subprocess.run(["umount", PLACE], capture_output=True).returncode != 0:
            if time.monotonic() > deadline:
                raise RuntimeError("the disk is held")
            time.sleep(0.05)
        subprocess.run(["blockdev", "--flushbufs", DEVICE], check=True)


class Judge:
    """One cut disk, looked at by a program that starts on it."""

    def __init__(self, disk: Mountable, marks: Marks) -> None:
        self._disk = disk
        self._marks = marks
        self.broken: list[str] = []

    def give(self) -> None:
        """Fill `broken`; the disk is unmounted at the end whatever happens."""
        try:
            self._disk.mount()
        except RuntimeError as error:
            self.broken.append(f"the disk cannot be mounted: {error}")
            return
        try:
            self._give()
        except (
            *(AssertionError, OSError, RuntimeError),
            *(sqlite3.Error, subprocess.SubprocessError),
        ) as error:
            self.broken.append(f"it does not go on: {error}{self._said()}")
        finally:
            self._end()
            self._disk.unmount()

    def _give(self) -> None:
        """Start on the mounted disk and look at everything."""
        raise NotImplementedError

    def _said(self) -> str:
        """What the program had said, for whoever asks why it does not go on."""
        return ""

    def _end(self) -> None:
        """Nothing that was started holds the disk."""


def judge(look: Callable[[Marks], Judge]) -> None:
    """One disk after the other, until an empty line."""
    print("ready", flush=True)
    while line := sys.stdin.readline().strip():
        begun = time.monotonic()
        looked = look(json.loads(line))
        looked.give()
        took = round(time.monotonic() - begun, 2)
        print(json.dumps({"broken": looked.broken, "seconds": took}), flush=True)
