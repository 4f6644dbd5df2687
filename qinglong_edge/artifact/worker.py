"""The log allocator of a worker: one bounded file an offer (ADR-0115 sections 1 to 3).

Owns the spool root of one worker. The id follows from project, run, attempt and offer: a replayed
offer appends to its log, and a new offer, maybe of another worker, never shares a name with it:

    "wlog-" + the first 30 hexadecimal digits of SHA-256(
        "qinglong/worker-log-artifact@v1", NUL, project, NUL, run, NUL, attempt, NUL, offer)

Names and checks are those of `place`. Nothing exists before capacity is proven. One process at a
time owns the root; that is proven elsewhere, not here. Output is handed over once:

    prepared     `take_output` -> handed off: whoever took the writer closes it
    prepared     `release`     -> released: the writer is closed here, the file stays
"""

from __future__ import annotations

import os
import re
import stat

from qinglong_edge.artifact.place import Guard, LogPaths
from qinglong_edge.artifact.writer import LogWriter, OutputPlan
from qinglong_edge.core import canonical
from qinglong_edge.core.errors import Corrupt, EdgeError, Invalid, Refused, Unavailable
from qinglong_edge.core.limits import LOG_QUOTA_BYTES_MAX, LOG_WRITE_BYTES_MAX
from qinglong_edge.core.record import Record
from qinglong_edge.system.files import storage_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from qinglong_edge.system.files import Files

_DOMAIN = "qinglong/worker-log-artifact@v1"
_ID = re.compile(r"wlog-[0-9a-f]{30}")
_ID_DIGITS = 30
_UNITS_MAX = 128  # UTF-16 code units, as the control plane counts them
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_RESERVE_BYTES_MAX = 1 << 40
_FACT_BYTES_MAX = 4_096
_READ_BYTES_MAX = 65_536
_FACT_KEYS = {
    *("schemaVersion", "runId", "attemptId", "logArtifactId", "maximumBytes", "quotaReached"),
    "observedAtMs",
}


class Policy(Record):
    """What one worker allows a log; nothing is unlimited and nothing has a default."""

    maximum_attempt_bytes: int
    minimum_free_bytes: int
    maximum_write_chunk_bytes: int

    def _check(self) -> None:
        bounds = (1, LOG_QUOTA_BYTES_MAX), (0, _RESERVE_BYTES_MAX), (1, LOG_WRITE_BYTES_MAX)
        for field, (lowest, highest) in zip(self._fields, bounds, strict=True):
            number = getattr(self, field)
            if type(number) is not int or not lowest <= number <= highest:
                raise _misconfigured(field)


_POLICIES = {  # ADR-0115 section 2
    "edge": (4 << 20, 32 << 20, 1 << 20),
    "node": (64 << 20, 256 << 20, 1 << 20),
}


def policy(profile: str) -> Policy:
    """The policy of `edge` or `node`; Invalid `invalid_configuration` for another name."""
    if profile not in _POLICIES:
        raise _misconfigured("profile")
    return Policy(**dict(zip(Policy._fields, _POLICIES[profile], strict=True)))


def worker_log_id(project_id: str, run_id: str, attempt_id: str, offer_id: str) -> str:
    """The 35 characters that name an offer's log; Invalid `invalid_request`."""
    source = "\0".join((_DOMAIN, *map(_bounded, (project_id, run_id, attempt_id, offer_id))))
    return "wlog-" + canonical.sha256_hex(source.encode("utf-8"))[:_ID_DIGITS]


class Preparation:
    """A prepared log: its id, its output once, and the way to give it up."""

    __slots__ = ("_state", "_writer", "log_artifact_id")

    def __init__(self, writer: LogWriter) -> None:
        self.log_artifact_id = writer.log_artifact_id
        self._writer = writer
        self._state = "prepared"

    def take_output(self) -> LogWriter:
        """Hand the writer over, once; Refused `closed` after that or after `release`."""
        if self._state != "prepared":
            raise Refused("closed", "The output was taken or given up already.")
        self._state = "handed_off"
        return self._writer

    def release(self) -> None:
        """Close the writer if nobody took it; again, nothing. The file stays."""
        if self._state == "prepared":
            self._state = "released"
            self._writer.close()


class LogLease:
    """A log that is being read, as long as it was when it was opened."""

    __slots__ = ("_chunk_bytes", "_fd", "_used", "byte_length", "log_artifact_id", "truncated")

    def __init__(
        self, log_artifact_id: str, fd: int, *, size: int, truncated: bool | None, chunk_bytes: int
    ) -> None:
        self.log_artifact_id = log_artifact_id
        self.byte_length = size
        self.truncated = truncated  # None: unknown
        self._fd = fd
        self._chunk_bytes = chunk_bytes
        self._used = False

    def chunks(self) -> Iterator[bytes]:
        """The bytes in pieces of at most 64 KiB, once; closes the lease at the end or before it.

        Refused `closed` the second time; Corrupt `invalid_output` if the file became shorter.
        """
        if self._used or self._fd < 0:
            raise Refused("closed", "The log was read or closed already.")
        self._used = True
        return self._pieces()

    def _pieces(self) -> Iterator[bytes]:
        offset = 0
        try:
            while offset < self.byte_length:
                try:
                    piece = os.pread(
                        self._fd, min(self._chunk_bytes, self.byte_length - offset), offset
                    )
                except OSError as error:
                    raise storage_error(error, "log") from None
                if not piece:
                    raise _unreadable("A log became shorter while it was read.")
                offset += len(piece)
                yield piece
        finally:
            self.close()

    def close(self) -> None:
        """Give the descriptor back; idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class WorkerLogAllocator:
    """The spool of one worker."""

    def __init__(
        self,
        root: str,
        files: Files,
        limits: Policy,
        *,
        available_bytes: Callable[[str], object] | None = None,
    ) -> None:
        """`root` is absolute; `available_bytes` tells its free room, as statfs does by default."""
        if not isinstance(root, str) or not root.startswith("/") or "\0" in root:
            raise _misconfigured("root")
        self._root = os.path.normpath(root)
        self._files = files
        self._limits = limits
        self._available_bytes = available_bytes or self._free_bytes

    def prepare(self, project_id: str, run_id: str, attempt_id: str, offer_id: str) -> Preparation:
        """Prove capacity, then open the log of an offer; what it has is kept and appended to.

        Invalid `invalid_request`, Unavailable `capacity_unavailable`, Corrupt `unsafe_path`,
        Refused `quota_exceeded` (it is larger than the policy allows); others come from the disk.
        """
        paths = LogPaths(self._root, worker_log_id(project_id, run_id, attempt_id, offer_id))
        guard = Guard(self._files, paths)
        try:
            self._make_root()
            guard.check_root()
            self._prove_capacity()
            guard.check_root()
            guard.make_shard()
            fd = self._files.open_append(paths.file)
            try:
                size = self._files.descriptor_size(fd)
                if size > self._limits.maximum_attempt_bytes:
                    raise Refused("quota_exceeded", "The log is larger than its quota.")
                guard.check()
            except BaseException:
                self._files.close(fd)
                raise
        except Corrupt:
            raise _unsafe() from None
        except OSError as error:
            raise storage_error(error, "log") from None
        return Preparation(self._writer(paths, fd, size))

    def has_room(self) -> bool:
        """Whether a log could be begun now; the root is made, and nothing in it."""
        try:
            if not os.path.lexists(self._root):
                self._make_root()
            self._prove_capacity()
        except (OSError, EdgeError):
            return False
        return True

    def _make_root(self) -> None:
        try:
            os.makedirs(self._root, 0o700, exist_ok=True)
        except FileExistsError:
            pass  # whatever has the name is judged next

    def _writer(self, paths: LogPaths, fd: int, size: int) -> LogWriter:
        maximum = self._limits.maximum_attempt_bytes
        told = paths.fact_temporary, paths.fact
        return LogWriter(
            paths.id,
            fd,
            remaining_bytes=maximum - size,
            chunk_bytes_max=self._limits.maximum_write_chunk_bytes,
            plan=OutputPlan(paths.id, fd=fd, maximum_bytes=maximum, fact_paths=told),
        )

    def _free_bytes(self, root: str) -> int:
        space = self._files.space(root)
        return 0 if space.inodes == 0 else space.bytes

    def _prove_capacity(self) -> None:
        needed = self._limits.minimum_free_bytes + self._limits.maximum_attempt_bytes
        try:
            found = self._available_bytes(self._root)
        except (OSError, EdgeError):
            found = None
        if type(found) is not int or found < needed:
            raise Unavailable(
                "capacity_unavailable", "The disk has no room for a log.", needed_bytes=needed
            )

    def open(self, run_id: str, attempt_id: str, log_artifact_id: str) -> LogLease | None:
        """A log to read, with what its fact says; None without a log, and nothing is made.

        Invalid `invalid_request`, Corrupt `unsafe_path` or `invalid_output`.
        """
        for text in (run_id, attempt_id):
            _bounded(text)
        paths = self._paths(log_artifact_id)
        guard = Guard(self._files, paths)
        fd = None
        try:
            if not guard.find():
                return None
            fd = self._opened(paths.file, bytes_max=self._limits.maximum_attempt_bytes)
            if fd is None:
                return None
            size = self._files.descriptor_size(fd)
            truncated = self._truncated(paths, run_id, attempt_id)
            guard.check()
        except BaseException as error:
            if fd is not None:
                self._files.close(fd)
            if isinstance(error, OSError):
                raise storage_error(error, "log") from None
            if isinstance(error, Corrupt) and error.code != "invalid_output":
                raise _unsafe() from None
            raise
        chunk_bytes = min(self._limits.maximum_write_chunk_bytes, _READ_BYTES_MAX)
        return LogLease(paths.id, fd, size=size, truncated=truncated, chunk_bytes=chunk_bytes)

    def remove(self, log_artifact_id: str) -> bool:
        """Delete a log whose upload was acknowledged, then its fact, durably; False without one."""
        paths = self._paths(log_artifact_id)
        try:
            names = paths.file, paths.fact, paths.fact_temporary
            found = sum(self._files.remove(name) for name in names) > 0
            if found:
                self._files.sync_directory(paths.shard)
        except OSError as error:
            raise storage_error(error, "log") from None
        return found

    def _paths(self, log_artifact_id: str) -> LogPaths:
        if not isinstance(log_artifact_id, str) or not _ID.fullmatch(log_artifact_id):
            raise _not_requested()
        return LogPaths(self._root, log_artifact_id)

    def _opened(self, path: str, *, bytes_max: int, twin: str = "") -> int | None:
        """Open what is ours alone; its size and its mode, exactly 0600, are proven."""
        try:
            fd = self._files.open_own(path, twin=twin)
        except Corrupt as error:
            if error.code == "file_exposed":
                raise _unreadable("A log or its fact is open to others.") from None
            raise
        if fd is not None:
            found = os.fstat(fd)
            if found.st_size > bytes_max or stat.S_IMODE(found.st_mode) != 0o600:
                self._files.close(fd)
                raise _unreadable("A log or its fact has another size or mode.")
        return fd

    def _truncated(self, paths: LogPaths, run_id: str, attempt_id: str) -> bool | None:
        fd = self._opened(paths.fact, bytes_max=_FACT_BYTES_MAX, twin=paths.fact_temporary)
        if fd is None:
            return None
        try:
            data = os.pread(fd, _FACT_BYTES_MAX, 0)
        finally:
            self._files.close(fd)
        try:
            fact = canonical.decode(data, bytes_max=_FACT_BYTES_MAX, depth_max=1)
        except Invalid:
            fact = None
        if not isinstance(fact, dict) or fact.keys() != _FACT_KEYS:
            raise _unreadable("A truncation fact is damaged.")
        wanted = {
            "schemaVersion": 1,
            "runId": run_id,
            "attemptId": attempt_id,
            "logArtifactId": paths.id,
            "maximumBytes": self._limits.maximum_attempt_bytes,
        }
        seen, reached = fact["observedAtMs"], fact["quotaReached"]
        good = all(
            type(fact[key]) is type(value) and fact[key] == value for key, value in wanted.items()
        )
        if not good or type(reached) is not bool or type(seen) is not int or seen < 0:
            raise _unreadable("A truncation fact tells of another log.")
        return reached


def _bounded(text: object) -> str:
    if isinstance(text, str) and text and not _CONTROL.search(text):
        try:
            if len(text.encode("utf-16-le")) <= 2 * _UNITS_MAX:
                return text
        except UnicodeEncodeError:
            pass  # a lone surrogate has no bytes to derive an id from
    raise _not_requested()


def _not_requested() -> Invalid:
    return Invalid("invalid_request", "A log is asked for by an id that is none.")


def _misconfigured(field: str) -> Invalid:
    return Invalid("invalid_configuration", "A log policy is out of its bounds.", field=field)


def _unsafe() -> Corrupt:
    return Corrupt("unsafe_path", "A log's directory or file is not this worker's alone.")


def _unreadable(message: str) -> Corrupt:
    return Corrupt("invalid_output", message)
