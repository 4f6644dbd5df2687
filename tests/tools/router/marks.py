"""Run in a guest: says things to the host in the order of the disk's writes.

A mark is one direct write to a small disk of its own, answered before the next thing happens. So
whatever a mark acknowledges was done before it, and a command that marks its effect does so before
it goes on.
"""

from __future__ import annotations

import json
import mmap
import os

BYTES = 1_024
COUNT = 512
DEVICE = "/dev/vdc"
_LARGE = 131_072  # of one large mark
# The small ones, the page of an effect, which is written whole, and a free one: of two writes that
# touch each other the kernel may make one.
_BEHIND = (COUNT + 8) * BYTES


class Marks:
    """The disk of marks, written from its beginning."""

    def __init__(self, device: str = DEVICE) -> None:
        self._descriptor = os.open(device, os.O_WRONLY | os.O_DIRECT)
        self._buffer = mmap.mmap(-1, 4_096)  # a page of its own, as a direct write asks
        self._said = 0

    def say(self, **what: object) -> None:
        """One mark; it has been heard when this returns."""
        text = json.dumps(what).encode()
        if len(text) > BYTES:
            raise ValueError(f"a mark has {len(text)} bytes")
        self._buffer[:BYTES] = text.ljust(BYTES, b"\0")
        os.pwritev(self._descriptor, [memoryview(self._buffer)[:BYTES]], self._said % COUNT * BYTES)
        self._said += 1


class Snapshots:
    """One place behind the marks for a large one, written over each time."""

    def __init__(self, device: str = DEVICE) -> None:
        self._descriptor = os.open(device, os.O_WRONLY | os.O_DIRECT)
        self._buffer = mmap.mmap(-1, _LARGE)

    def say(self, **what: object) -> None:
        """One mark; it has been heard when this returns."""
        text = json.dumps(what).encode()
        length = -(-len(text) // BYTES) * BYTES
        if length > _LARGE:
            raise ValueError(f"a snapshot has {len(text)} bytes")
        self._buffer[:length] = text.ljust(length, b"\0")
        written = os.pwritev(self._descriptor, [memoryview(self._buffer)[:length]], _BEHIND)
        if written != length:
            raise OSError(f"{written} of {length} bytes were written")


def effect(name: str) -> str:
    """Shell text that marks an effect; it does not go on before that has been heard."""
    text = json.dumps({"effect": name})
    where = f"bs={BYTES} conv=sync,fsync seek={COUNT}"
    return f"echo '{text}' | dd of={DEVICE} {where} 2>/dev/null"
