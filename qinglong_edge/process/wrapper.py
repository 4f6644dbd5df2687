"""The wrapper script: installed once, verified at every launch, run from sealed bytes.

Owns the digest of ``wrapper.sh``, the one file of the product that a shell executes, and the way
from the package to a descriptor that a shell can read (ADR-0069 section 2, step 2):

    package --install--> <runtime>/wrapper.sh 0500 --open_verified--> sealed memfd --exec--> sh

Hashing an open file does not stop a later rewrite of the same inode, so what runs is a copy, made
of exactly the bytes that were hashed and sealed against every change. A file that is missing or has
drifted never runs; `install` puts the packaged bytes back. A crash leaves at most a temporary
``wrapper.sh.new`` behind, which the next `install` replaces.

Under dash and ash a command's environment is its recipe, byte for byte. A bash that serves as sh
rewrites or drops names of its own on the way (PS1 PS2 PS4 LINENO RANDOM SRANDOM OPTERR HISTCMD BASH
BASHPID BASH_ARGV0 BASH_COMMAND BASH_SUBSHELL BASH_VERSINFO BASH_VERSION EPOCHSECONDS EPOCHREALTIME
POSIXLY_CORRECT).
"""

from __future__ import annotations

import errno
import os
import stat

from qinglong_edge.core.canonical import sha256_hex
from qinglong_edge.core.errors import Corrupt, Unavailable
from qinglong_edge.core.limits import WRAPPER_BYTES_MAX
from qinglong_edge.system.memory import memory_file, sealed
from qinglong_edge.system.process import Processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal  # without the enums of `signal`: 0.2 MiB, and time in every launch


WRAPPER_SHA256 = "b55d02c8be531bd04d5e0b89a49e5bb5392ebc435f2ff647564ea1bb4764efd5"
WRAPPER_FILE_MODE = 0o500

_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO never blocks us
_SYNC_TOOLS = ("fsync", "sync")
_ABSENT = "/nonexistent"
_SYNC_MS = 5_000


def install(path: str) -> None:
    """Put the packaged wrapper at `path` (mode 0500), unless exactly that is there already.

    Corrupt `wrapper_drift` if the package itself is damaged; Unavailable `wrapper_not_installed`
    if the place cannot be written.
    """
    data = _packaged()
    if sha256_hex(data) != WRAPPER_SHA256:
        raise Corrupt("wrapper_drift", "The packaged wrapper is not the reviewed one.")
    try:
        if not _stands(path, data):
            _replace(path, data)
    except OSError as error:
        raise Unavailable(
            "wrapper_not_installed", "The wrapper cannot be written.", errno=_name(error)
        ) from None


def open_verified(path: str) -> int:
    """A descriptor of the reviewed bytes, close-on-exec, for one launch; the caller closes it.

    The descriptor is a sealed memory file, or the verified file itself where the kernel has none.
    Corrupt `wrapper_unsafe` (a link, another kind of file, another owner, a wrong size),
    `wrapper_drift` (other bytes); Unavailable `wrapper_missing` (`install` it again),
    `wrapper_unreadable`.
    """
    try:
        fd = os.open(path, _OPEN_FLAGS)
        try:
            data = _read_checked(fd)
            if sha256_hex(data) != WRAPPER_SHA256:
                raise Corrupt("wrapper_drift", "The wrapper is not the reviewed one.")
            copy = sealed("ql3-wrapper", data)
        except BaseException:
            os.close(fd)
            raise
    except FileNotFoundError:
        raise Unavailable("wrapper_missing", "The wrapper is not installed.") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Corrupt("wrapper_unsafe", "The wrapper is a symbolic link.") from None
        raise Unavailable(
            "wrapper_unreadable", "The wrapper cannot be read.", errno=_name(error)
        ) from None
    if copy is None:
        return fd
    os.close(fd)
    return copy


def probe_sync(tools: str) -> str:
    """The name of the tool on the PATH `tools` that the wrapper syncs one path with.

    ``fsync`` where it exists, else ``sync`` if it cares for its operand, which shows in its failing
    on a path that is not there: a busybox without FEATURE_SYNC_FANCY succeeds, it syncs everything.
    Such a ``sync`` is the answer only when there is nothing better: Linux returns from it once all
    is written, so a receipt is as durable, but dearer, and an error of the device stays unseen.
    Unavailable `sync_tool_missing` if nothing syncs. Asked once, before the first launch; takes as
    long as a sync, but 5 s at most each time: a disk that hangs does not hold the loop for ever.
    """
    everything = ""
    memory = memory_file("ql3-probe")
    try:
        for name in _SYNC_TOOLS:
            program = _found(name, tools)
            if not program:
                continue
            if memory is not None and not _succeeds(program, f"/proc/{os.getpid()}/fd/{memory}"):
                continue  # it refuses every operand
            if not _succeeds(program, _ABSENT):
                return name
            everything = everything or name
    finally:
        if memory is not None:
            os.close(memory)
    if everything:
        return everything
    raise Unavailable("sync_tool_missing", "No tool of this system writes a file to its device.")


def _packaged() -> bytes:
    """The script inside the package, from a zipapp too."""
    loader = __spec__.loader if __spec__ else None
    if loader is None or not hasattr(loader, "get_data"):
        raise Corrupt("wrapper_drift", "The package cannot tell its own wrapper.")
    data: bytes = loader.get_data(os.path.join(os.path.dirname(__file__), "wrapper.sh"))
    return data


def _stands(path: str, data: bytes) -> bool:
    """Whether `path` is already the file that `install` would write."""
    try:
        fd = os.open(path, _OPEN_FLAGS)
    except OSError:
        return False  # missing, a link, unreadable: all are replaced
    try:
        return stat.S_IMODE(os.fstat(fd).st_mode) == WRAPPER_FILE_MODE and _read_checked(fd) == data
    except Corrupt:
        return False
    finally:
        os.close(fd)


def _replace(path: str, data: bytes) -> None:
    temporary = f"{path}.new"
    try:
        os.unlink(temporary)
    except FileNotFoundError:
        pass
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, WRAPPER_FILE_MODE)
    try:
        try:
            os.fchmod(fd, WRAPPER_FILE_MODE)  # whatever the umask said
            _write(fd, data)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def _read_checked(fd: int) -> bytes:
    """All bytes of an open wrapper; Corrupt `wrapper_unsafe` unless it is a plain file of ours."""
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise Corrupt("wrapper_unsafe", "The wrapper is not a regular file of this user.")
    if not 1 <= found.st_size <= WRAPPER_BYTES_MAX:
        raise Corrupt("wrapper_unsafe", "The wrapper has no possible size.", bytes=found.st_size)
    data = bytearray()
    while len(data) <= found.st_size and (piece := os.read(fd, WRAPPER_BYTES_MAX + 1)):
        data += piece
    if len(data) != found.st_size:
        raise Corrupt("wrapper_unsafe", "The wrapper changes its size while it is read.")
    return bytes(data)


def _write(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def _found(name: str, tools: str) -> str:
    """The executable that the PATH `tools` leads to, or the empty string."""
    for folder in tools.split(":"):
        program = os.path.join(folder, name)
        if folder and os.access(program, os.X_OK) and not os.path.isdir(program):
            return program
    return ""


def _succeeds(program: str, operand: str) -> bool:
    """Whether ``program operand`` exits 0, in silence and with an empty environment.

    One that is still at it after 5 s is ended and counts as one that works: only a sync takes long.
    """
    null = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ]
    try:
        pid = os.posix_spawn(
            program, [os.path.basename(program), operand], {}, file_actions=null, setsigmask=[]
        )
    except OSError:
        return False
    processes = Processes()
    if not processes.ends_within(pid, _SYNC_MS):
        processes.signal_pid(pid, signal.SIGKILL)
        processes.reap(pid)
        return True
    return os.waitpid(pid, 0)[1] == 0


def _name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, "EIO")
