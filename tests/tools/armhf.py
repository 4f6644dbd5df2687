"""Userlands of 32-bit ARM boxes: Debian's Python with BusyBox for its shell and every tool.

In one release the C library's times have 32 bits like `long` and end in 2038; in the later one they
have 64, as in musl, and other numbers and sizes are what the kernel is asked with. The trees lie
under `.cache/pythons`; each of their programs is run by qemu, and the processes are this machine's.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass

from tests.tools import debian, pythons

CACHE = os.path.join(".cache", "pythons")
ARCHITECTURE = "armhf"
# By the width of a time in bits: Debian's name for the release, its Python's minor version.
RELEASES = {32: ("bookworm", 11), 64: ("trixie", 13)}
_PACKAGES = ("busybox", "libc-bin", "python3", "python3-cryptography")
_EMULATOR = "qemu-arm"
_SETTINGS = f"/usr/lib/binfmt.d/{_EMULATOR}.conf"


@dataclass(frozen=True)
class Tree:
    """The root folder, the tree of the repository that keeps its path in it, its Python."""

    folder: str
    root: str
    minor: int

    def entering(self, *binds: str) -> tuple[str, ...]:
        """The words before a command that make this its root."""
        return pythons.entering(self.folder, self.root, emulator=_EMULATOR, binds=binds)


def made(root: str, bits: int) -> Tree:
    """The tree with times of so many bits, made when it is not there.

    UnobtainableError says why it cannot be.
    """
    suite, minor = RELEASES[bits]
    if os.geteuid() != 0:
        raise debian.UnobtainableError("a userland of another machine is entered by root alone")
    if not os.path.exists(_SETTINGS):
        raise debian.UnobtainableError(f"qemu-user-static is not here, with {_SETTINGS}")
    name = f"tree-{ARCHITECTURE}-{zlib.crc32(' '.join((suite, *_PACKAGES)).encode()):08x}"
    folder = os.path.join(root, CACHE, name)
    if not os.path.isdir(folder):
        with debian.folder(folder) as files:
            debian.tree(files, suite, _PACKAGES, architecture=ARCHITECTURE, updates=False)
            pythons.folders(files)
            pythons.applets(files, _EMULATOR)
    return Tree(folder, root, minor)
