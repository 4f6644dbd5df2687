"""The program's first lines: `python3 -m qinglong_edge` in a checkout, the root of the zipapp.

Owns one promise: what a started zipapp imports later (a launch, an adoption, a stop) comes from the
very file that it was started from, after that file was replaced or deleted by an upgrade as well.
So the zipapp opens itself and imports everything of ours through that descriptor; where the system
does not allow it (no /proc, few descriptors) the plain path stays. Nothing of ours may be imported
above that point.
"""

from __future__ import annotations

import fcntl
import os
import sys

_DESCRIPTOR_MIN = 64  # a launch child lays out a task's descriptors below this number


def _hold(archive: str) -> str:
    """`archive` by way of an own close-on-exec descriptor; itself where that cannot be had."""
    try:
        opened = os.open(archive, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return archive
    try:
        held = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, _DESCRIPTOR_MIN)
    except OSError:
        return archive
    finally:
        os.close(opened)
    path = f"/proc/self/fd/{held}"
    try:
        if os.path.samestat(os.stat(path), os.fstat(held)):
            return path
    except OSError:
        pass
    os.close(held)
    return archive


def _start() -> int:
    loader = None if __spec__ is None else __spec__.loader
    archive = getattr(loader, "archive", None)
    if not __package__ and archive in sys.path:
        sys.path[sys.path.index(archive)] = _hold(archive)
    from qinglong_edge.cli.main import main

    return main()


if __name__ == "__main__":
    sys.exit(_start())
