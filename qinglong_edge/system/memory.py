"""What stays in memory: files without a name, gone with their last descriptor; processes undumped.

Owns memfd. A sealed one can never be changed again, not even through the descriptor that made it.
Knows how much memory is left, and makes a C library give back what was freed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource

MEMINFO = "/proc/meminfo"
_END_BYTES, _ENDS = 1_000_000, 8
_NO_MEMFD = (errno.ENOSYS, errno.EPERM, errno.EACCES, errno.EINVAL)
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


def never_dump() -> None:
    """Leave no core dump of this process; one through a pipe heeds a limit of 1 only."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    limit = 1 if hard else 0
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))


def free_kib() -> int | None:
    """KiB that programs can still have, swap included; None where the kernel does not say."""
    try:
        with open(MEMINFO, "rb") as opened:
            known = dict(line.split()[:2] for line in opened)
        return int(known[b"MemAvailable:"]) + int(known.get(b"SwapFree:", 0))
    except (OSError, ValueError, KeyError):
        return None


def give_back() -> None:
    """Let glibc return freed memory at the end of its heap, which it keeps until that is large.

    Large is twice the largest block that was ever freed, so an inflation would keep 1.4 MiB for
    good. Blocks that nobody writes to cost nothing, with another library either.
    """
    try:
        ends = [bytes(_END_BYTES) for _ in range(_ENDS)]
    except MemoryError:
        return
    ends.reverse()  # the last one falls first, and the end of the heap at one blow


def memory_file(name: str) -> int | None:
    """An empty file, close-on-exec, or None where the kernel has no such thing."""
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except AttributeError:
        return None  # built for a C library without it
    except OSError as error:
        if error.errno in _NO_MEMFD:
            return None
        raise


def sealed(name: str, data: bytes) -> int | None:
    """A file that holds `data` for ever, or None where the kernel has no such thing."""
    fd = memory_file(name)
    if fd is None:
        return None
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd
