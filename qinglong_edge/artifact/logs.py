"""The local log allocator: one bounded file an attempt, found by derivation (ADR-0024 section 4).

Owns the log root. The id follows from run and attempt, so a file that a crash left unnamed is found
again from the attempt's row; nothing lists a directory.

    <root>/<first two hex of id>/<id>.log           see `place` for the fact beside it
    <root>/<first two hex>/.starting.log            empty: a launch before its durable barrier

A log gets its own name only once a row names its attempt; a crash before that leaves the one empty
`.starting.log` of the shard, which the next launch there replaces. Capacity is proven before a
directory or file exists. A log never grows past its quota by a byte: the kernel enforces it (soft
RLIMIT_FSIZE of the capturing process). Retired is a log when its name is durably gone; the caller
writes the tombstone after that, so a crash between finds the log absent and says so.
"""

from __future__ import annotations

from qinglong_edge.artifact.place import Guard, LogPaths, read_fact
from qinglong_edge.core.errors import Corrupt, EdgeError, Invalid, Unavailable
from qinglong_edge.core.fact import log_artifact_id
from qinglong_edge.core.limits import (
    LOG_QUOTA_BYTES_MAX,
    LOG_QUOTA_BYTES_MIN,
    LOG_RANGE_BYTES_MAX,
)
from qinglong_edge.core.record import Record
from qinglong_edge.core.tombstone import ALREADY_ABSENT, DELETED
from qinglong_edge.system.files import storage_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qinglong_edge.system.files import Files


class LogFile(Record):
    """An open log, ready to be handed to its process; the caller closes `fd`."""

    fd: int
    size: int
    named: bool  # False: `adopt` gives it its own name, once the barrier is durable


class LogRange(Record):
    """A part of a log; `end` is the offset after the last byte given."""

    data: bytes
    offset: int
    end: int
    total: int


class Retired(Record):
    """What a log was when it was deleted; `bytes` is 0 if there was none."""

    disposition: str
    bytes: int = 0
    truncated: bool | None = None  # None: no fact said anything
    maximum_bytes: int | None = None
    observed_at_ms: int | None = None


class LogStore:
    """The log root of one state directory."""

    def __init__(self, root: str, files: Files, *, reserve_bytes: int) -> None:
        self._root = root
        self._files = files
        self._reserve_bytes = reserve_bytes

    def paths(self, run_id: str, attempt_id: str) -> LogPaths:
        """Every path of one attempt; nothing is touched."""
        return LogPaths(self._root, log_artifact_id(run_id, attempt_id))

    def prepare(self, run_id: str, attempt_id: str, quota_bytes: int) -> LogFile:
        """Prove capacity, then make the shard and open the log for appending.

        A log that is there is appended to; a new one waits as the shard's `.starting.log`.
        Raises `Unavailable` (`log_capacity`, `no_space`), `Corrupt` for an unsafe place; a log
        that is already beyond its quota is `Corrupt` too. A missing root is not made: its disk may
        be unplugged. Nothing exists after a refusal for lack of room that did not exist before.
        """
        if not LOG_QUOTA_BYTES_MIN <= quota_bytes <= LOG_QUOTA_BYTES_MAX:
            raise Invalid("log_quota_invalid", "A log quota is not 64 KiB to 1 GiB.")
        paths = self.paths(run_id, attempt_id)
        guard = Guard(self._files, paths)
        try:
            guard.check_root()
            self.prove_capacity(quota_bytes)
            guard.make_shard()
            named = self._files.exists(paths.file)
            if not named:
                self._files.remove(paths.starting)  # a power cut may have kept bytes in it
            fd = self._files.open_append(paths.file if named else paths.starting)
            try:
                size = self._files.descriptor_size(fd)
                if size > quota_bytes:
                    raise Corrupt("log_over_quota", "A log is larger than its quota.", bytes=size)
                guard.check()
            except BaseException:
                self._files.close(fd)
                raise
        except OSError as error:
            raise storage_error(error, "log") from None
        return LogFile(fd=fd, size=size, named=named)

    def adopt(self, log: LogFile, run_id: str, attempt_id: str) -> None:
        """Give a new log the name that its attempt's row implies; OSError if that fails."""
        if not log.named:
            paths = self.paths(run_id, attempt_id)
            self._files.rename(paths.starting, paths.file)

    def prove_capacity(self, quota_bytes: int) -> None:
        """`Unavailable` unless the reserve stays free with this log at its full size.

        A file system that does not count inodes (jffs2, ubifs) is not read as out of them.
        """
        free_bytes = self.free_bytes()
        needed_bytes = self._reserve_bytes + quota_bytes
        if free_bytes < needed_bytes:
            raise Unavailable(
                "log_capacity",
                "The disk has less room than the reserve and one log need.",
                free_bytes=free_bytes,
                needed_bytes=needed_bytes,
            )

    def free_bytes(self) -> int:
        """Free room of the log root's file system; 0 if it is out of inodes; OSError."""
        space = self._files.space(self._root)
        return 0 if space.inodes == 0 else space.bytes

    def release(self, log: LogFile) -> None:
        """Give the descriptor back; the bytes stay."""
        self._files.close(log.fd)

    def fact_paths(self, run_id: str, attempt_id: str) -> tuple[str, str]:
        """Temporary and target of the truncation fact."""
        paths = self.paths(run_id, attempt_id)
        return paths.fact_temporary, paths.fact

    def retire(self, run_id: str, attempt_id: str) -> Retired:
        """Delete a settled attempt's log, then its fact, durably (ADR-0024 section 5).

        `Corrupt`, `Invalid` or `Unavailable`, and nothing is deleted, if anything about root,
        shard, log or fact is not as this program makes it. Again, it finds the log absent.
        """
        paths = self.paths(run_id, attempt_id)
        guard = Guard(self._files, paths)
        try:
            if not guard.find():
                return Retired(disposition=ALREADY_ABSENT)
            fact = read_fact(self._files, paths, run_id, attempt_id)
            size = self._own_size(paths.file)
            self._own_size(paths.fact_temporary, twin=paths.fact)
            guard.check()
            self._delete(paths)
            # What a crash left absent, a power cut may bring back.
            self._files.sync_directory(paths.shard)
        except OSError as error:
            raise storage_error(error, "log") from None
        return Retired(
            disposition=ALREADY_ABSENT if size is None else DELETED,
            bytes=size or 0,
            truncated=None if fact is None else fact.quota_reached,
            maximum_bytes=None if fact is None else fact.maximum_bytes,
            observed_at_ms=None if fact is None else fact.observed_at_ms,
        )

    def remove(self, run_id: str, attempt_id: str) -> bool:
        """Delete whatever has the names of an attempt that is forgotten; False if nothing has.

        OSError where the root is missing: its disk may be unplugged, and the log would stay on it.
        """
        paths = self.paths(run_id, attempt_id)
        Guard(self._files, paths).check_root()
        found = self._delete(paths)
        if found:
            self._files.sync_directory(paths.shard)
        return found

    def _delete(self, paths: LogPaths) -> bool:
        names = paths.file, paths.fact, paths.fact_temporary
        return sum(self._files.remove(name) for name in names) > 0

    def _own_size(self, path: str, *, twin: str = "") -> int | None:
        fd = self._files.open_own(path, twin=twin)
        if fd is None:
            return None
        try:
            size = self._files.descriptor_size(fd)
        finally:
            self._files.close(fd)
        if size > LOG_QUOTA_BYTES_MAX:
            raise Corrupt("log_over_quota", "A log is larger than any quota.", bytes=size)
        return size

    def size(self, run_id: str, attempt_id: str) -> int | None:
        """The log's bytes so far, or None if there is no file."""
        return self._files.size(self.paths(run_id, attempt_id).file)

    def truncated(self, run_id: str, attempt_id: str) -> bool | None:
        """What a believable fact says; None if nothing says anything."""
        try:
            fact = read_fact(self._files, self.paths(run_id, attempt_id), run_id, attempt_id)
        except (OSError, EdgeError):
            return None
        return None if fact is None else fact.quota_reached

    def read(self, run_id: str, attempt_id: str, *, offset: int, length: int) -> LogRange | None:
        """A range of at most 256 KiB; a negative offset counts from the end. None without a log.

        An offset beyond the end gives nothing at the end. `Corrupt` for an unsafe place or file.
        """
        paths = self.paths(run_id, attempt_id)
        guard = Guard(self._files, paths)
        if not guard.find():
            return None
        found = self._files.read_range(paths.file, offset, min(length, LOG_RANGE_BYTES_MAX))
        guard.check()
        if found is None:
            return None
        data, start, total = found
        return LogRange(data=data, offset=start, end=start + len(data), total=total)
