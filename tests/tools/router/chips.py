"""Flash chips of a guest: files of this machine, in which each write of the guest stands at once.

A chip is memory that guest and host share, so it needs no cache to be honest: killing qemu leaves
in the file what had been written up to that instruction, torn where the guest stood.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

BLOCK = 65_536  # what is erased at a time
_ERASED = b"\xff"


def make(path: str, mib: int) -> str:
    """An erased chip of so many MiB, a power of two; its path."""
    with open(path, "wb") as opened:
        opened.writelines(_ERASED * 1_048_576 for _ in range(mib))
    return path


def words(paths: Sequence[str]) -> list[str]:
    """What qemu is told, so that the guest finds them in this order."""
    told = []
    for number, path in enumerate(paths):
        size = os.path.getsize(path)
        memory = f"memory-backend-file,id=chip{number},share=on,mem-path={path},size={size}"
        told += ["-object", memory, "-device", f"ivshmem-plain,memdev=chip{number}"]
    return told


def content(path: str) -> bytes:
    """All of a chip, as it is at this moment."""
    with open(path, "rb") as opened:
        return opened.read()


def put(path: str, data: bytes) -> None:
    """Make a chip another one, in place: the guest that has it sees it changed."""
    with open(path, "r+b") as opened:
        opened.write(data)
