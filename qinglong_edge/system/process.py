"""Processes: identity from /proc, signals, exits.

Owns the signals to other processes, the waits for children and what /proc says of a process.
Judging what they mean is the process room's work. Nothing of this module survives a crash.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import time

from qinglong_edge.core.evidence import Exit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


_REAP_TRIES = 50
_REAP_PAUSE_S = 0.002


class Processes:
    """The process effects of the machine; tests replace or count its methods."""

    def __init__(self) -> None:
        self._ending: set[int] = set()

    def boot_id(self) -> str | None:
        """This boot's identity, or None where /proc does not tell."""
        text = self._read("/proc/sys/kernel/random/boot_id")
        return None if text is None else text.decode("ascii", "replace").strip()

    def pid_namespace(self) -> int | None:
        """The inode of this process's pid namespace: pids of another one mean nothing here."""
        try:
            return os.stat("/proc/self/ns/pid").st_ino
        except OSError:
            return None

    def stat_text(self, pid: int) -> bytes | None:
        """/proc/PID/stat, or None if there is no such process (to this user's eyes)."""
        return self._read(f"/proc/{pid}/stat")

    def exists(self, pid: int) -> bool:
        """True unless the kernel says ESRCH: a hidden /proc entry is not a dead process."""
        try:
            os.kill(pid, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:
            return True
        return True

    def pids(self) -> Iterator[int]:
        """Every pid that /proc shows; asked only when a session's end has to be proven."""
        for name in os.listdir("/proc"):
            if name.isdigit():
                yield int(name)

    def session_of(self, pid: int) -> int | None:
        """The session of a process, None if it is gone; a closed /proc entry does not matter."""
        try:
            return os.getsid(pid)
        except ProcessLookupError:
            return None

    def hides(self, pgid: int) -> bool:
        """True if only others' processes are left in a group: hidepid keeps them out of /proc."""
        try:
            os.killpg(pgid, 0)
        except PermissionError:
            return True
        except (ProcessLookupError, OverflowError):
            return False
        return False

    def has_threads(self, pid: int) -> bool:
        """True if a process has more than its first thread."""
        try:
            return len(os.listdir(f"/proc/{pid}/task")) > 1
        except (FileNotFoundError, ProcessLookupError):
            return False

    def signal_group(self, pgid: int, number: int) -> bool:
        """Signal a process group; False if it has no member left. Group 1 would be everybody."""
        if pgid <= 1:
            return False
        try:
            os.killpg(pgid, number)
        except ProcessLookupError:
            return False
        return True

    def signal_pid(self, pid: int, number: int) -> bool:
        """Signal one process; False if it is gone. 0 and below would be groups."""
        if pid <= 1:
            return False
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    def open_pid(self, pid: int) -> int | None:
        """A descriptor that becomes readable when the process ends; None without kernel support."""
        if not hasattr(os, "pidfd_open"):
            return None
        try:
            return os.pidfd_open(pid)
        except (OSError, OverflowError):
            return None

    def ends_within(self, pid: int, bound_ms: int) -> bool:
        """Wait for an own child, which is left to be collected; True without kernel support."""
        fd = self.open_pid(pid)
        if fd is None:
            return True
        try:
            end = select.poll()
            end.register(fd, select.POLLIN)
            return bool(end.poll(bound_ms))
        finally:
            self.close_pid(fd)

    def close_pid(self, fd: int) -> None:
        """Give a process descriptor back."""
        os.close(fd)

    def peek_exit(self, pid: int) -> Exit | None:
        """How an own child ended, leaving it a zombie; None while it lives, or once collected."""
        try:
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        if found is None:
            return None
        if found.si_code == os.CLD_EXITED:
            return Exit(code=found.si_status, signal=None)
        return Exit(code=None, signal=found.si_status)

    def reap(self, pid: int) -> None:
        """Collect an own child that has ended or was killed, within 0.1 s.

        One that cannot die yet (it waits for a dead disk) is collected by a later call.
        """
        self._ending.add(pid)
        for _ in range(_REAP_TRIES):
            self._ending = {each for each in self._ending if not _collect(each)}
            if pid not in self._ending:
                return
            time.sleep(_REAP_PAUSE_S)

    def file_size_limit(self) -> int | None:
        """The soft RLIMIT_FSIZE in bytes, None = unlimited."""
        soft, _hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        return None if soft == resource.RLIM_INFINITY else soft

    def resident_bytes(self) -> int:
        """This process's resident set, as /proc/self/statm tells it; 0 if it does not."""
        try:
            text = self._read("/proc/self/statm") or b"0 0"
        except OSError:  # no descriptor is left, and that is for `status` to say
            return 0
        return int(text.split()[1]) * resource.getpagesize()

    def _read(self, path: str) -> bytes | None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESRCH):
                return None
            raise
        try:
            return os.read(fd, 4096)
        except ProcessLookupError:
            return None
        finally:
            os.close(fd)


def _collect(pid: int) -> bool:
    """Collect an ended child; False while it lives."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True
