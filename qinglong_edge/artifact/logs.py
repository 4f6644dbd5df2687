"""The local log allocator: one bounded file an attempt, found by derivation (ADR-0024 section 4).

Owns the log root. The id follows from run and attempt, so a file that a crash left unnamed is found
again from the attempt's row; nothing lists a directory.

    <root>/<first two hex of id>/<id>.log
    <root>/<first two hex>/.<id>.log.truncated.json     the truncation fact, only for a cut log
    <root>/<first two hex>/.<id>.log.truncated.tmp      while the fact is written
    <root>/<first two hex>/.starting.log                empty: a launch before its durable barrier

A log gets its own name only once a row names its attempt; a crash before that leaves the one empty
`.starting.log` of the shard, which the next launch there replaces. Capacity is proven before a
directory or file exists. A log never grows past its quota by a byte: the kernel enforces it (soft
RLIMIT_FSIZE of the capturing process).
"""

from __future__ import annotations

import os

from qinglong_edge.core import fact as facts
from qinglong_edge.core.errors import Corrupt, EdgeError, Invalid, Unavailable
from qinglong_edge.core.limits import (
    FACT_BYTES_MAX,
    LOG_QUOTA_BYTES_MAX,
    LOG_QUOTA_BYTES_MIN,
    LOG_RANGE_BYTES_MAX,
)
from qinglong_edge.core.record import Record
from qinglong_edge.system.files import storage_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qinglong_edge.system.files import Files


class LogPaths:
    """Where one attempt's log and its fact stand."""

    def __init__(self, root: str, run_id: str, attempt_id: str) -> None:
        self.id = facts.log_artifact_id(run_id, attempt_id)
        self.shard = os.path.join(root, facts.log_shard(self.id))
        self.file = os.path.join(self.shard, f"{self.id}.log")
        self.starting = os.path.join(self.shard, ".starting.log")
        self.fact = os.path.join(self.shard, f".{self.id}.log.truncated.json")
        self.fact_temporary = os.path.join(self.shard, f".{self.id}.log.truncated.tmp")


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


class LogStore:
    """The log root of one state directory."""

    def __init__(self, root: str, files: Files, *, reserve_bytes: int) -> None:
        self._root = root
        self._files = files
        self._reserve_bytes = reserve_bytes

    def paths(self, run_id: str, attempt_id: str) -> LogPaths:
        """Every path of one attempt; nothing is touched."""
        return LogPaths(self._root, run_id, attempt_id)

    def prepare(self, run_id: str, attempt_id: str, quota_bytes: int) -> LogFile:
        """Prove capacity, then make the shard and open the log for appending.

        A log that is there is appended to; a new one waits as the shard's `.starting.log`.
        Raises `Unavailable` (`log_capacity`, `no_space`), `Corrupt` for an unsafe place; a log
        that is already beyond its quota is `Corrupt` too. Nothing exists after a refusal that did
        not exist before.
        """
        if not LOG_QUOTA_BYTES_MIN <= quota_bytes <= LOG_QUOTA_BYTES_MAX:
            raise Invalid("log_quota_invalid", "A log quota is not 64 KiB to 1 GiB.")
        paths = self.paths(run_id, attempt_id)
        try:
            self.prove_capacity(quota_bytes)
            self._files.make_private_directory(paths.shard)
            named = self._files.exists(paths.file)
            if not named:
                self._files.remove(paths.starting)  # a power cut may have kept bytes in it
            fd = self._files.open_append(paths.file if named else paths.starting)
            try:
                size = self._files.descriptor_size(fd)
                if size > quota_bytes:
                    raise Corrupt("log_over_quota", "A log is larger than its quota.", bytes=size)
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
        space = self._files.space(self._root)
        if space.bytes < self._reserve_bytes + quota_bytes or space.inodes == 0:
            raise Unavailable(
                "log_capacity",
                "The disk has less room than the reserve and one log need.",
                free_bytes=space.bytes,
                needed_bytes=self._reserve_bytes + quota_bytes,
            )

    def release(self, log: LogFile) -> None:
        """Give the descriptor back; the bytes stay."""
        self._files.close(log.fd)

    def fact_paths(self, run_id: str, attempt_id: str) -> tuple[str, str]:
        """Temporary and target of the truncation fact."""
        paths = self.paths(run_id, attempt_id)
        return paths.fact_temporary, paths.fact

    def remove(self, run_id: str, attempt_id: str) -> bool:
        """Delete a settled attempt's log and fact; False if there was no log."""
        paths = self.paths(run_id, attempt_id)
        self._files.remove(paths.fact_temporary)
        self._files.remove(paths.fact)
        return self._files.remove(paths.file)

    def size(self, run_id: str, attempt_id: str) -> int | None:
        """The log's bytes so far, or None if there is no file."""
        return self._files.size(self.paths(run_id, attempt_id).file)

    def truncated(self, run_id: str, attempt_id: str) -> bool | None:
        """True if a believable fact says that output was cut; None if nothing says anything."""
        paths = self.paths(run_id, attempt_id)
        try:
            data = self._files.read_private(paths.fact, FACT_BYTES_MAX)
            if data is None:
                return None
            fact = facts.decode(data)
        except (OSError, EdgeError):
            return None
        if (fact.run_id, fact.attempt_id, fact.log_artifact_id) != (run_id, attempt_id, paths.id):
            return None
        return True if fact.quota_reached else None

    def read(self, run_id: str, attempt_id: str, *, offset: int, length: int) -> LogRange | None:
        """A range of at most 256 KiB; a negative offset counts from the end. None without a log."""
        path = self.paths(run_id, attempt_id).file
        total = self._files.size(path)
        if total is None:
            return None
        start = max(0, total + offset) if offset < 0 else min(offset, total)
        found = self._files.read_range(path, start, min(length, LOG_RANGE_BYTES_MAX))
        if found is None:
            return None
        data, size = found
        return LogRange(data=data, offset=start, end=start + len(data), total=max(size, total))
