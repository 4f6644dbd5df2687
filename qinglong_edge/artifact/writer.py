"""The one bounded writer of a log whose bytes pass through this process (ADR-0115 section 2).

Owns one open log. Writes are accepted in the order of their calls, each with a copy of its bytes,
and happen one after the other, whichever thread makes them. Exactly the quota ends up in the file
and never a byte more; a write that fails takes nothing from those behind it.

    open      writes are accepted
    closing   from the first moment of `close`: late writes are refused, accepted ones are made
    closed    synced, the descriptor given back; the file stays as it is

It appends, so an attempt that is replayed goes on behind the bytes that are there. It serves local
and worker ids alike; what may stand in the file is proven by the allocator before.
"""

from __future__ import annotations

import errno
import os
from _thread import allocate_lock

from qinglong_edge.core.errors import EdgeError, Invalid, Refused
from qinglong_edge.core.limits import LOG_WRITE_BYTES_MAX, SAFE_INTEGER_MAX
from qinglong_edge.system.files import storage_error

_STREAMS = ("stdout", "stderr")


class OutputPlan:
    """How a process writes the log itself: for its launcher only, never told in any text.

    `fd` belongs to the writer; `fact_paths` are temporary and target of the truncation fact.
    """

    __slots__ = ("fact_paths", "fd", "log_artifact_id", "maximum_bytes")

    def __init__(
        self, log_artifact_id: str, *, fd: int, maximum_bytes: int, fact_paths: tuple[str, str]
    ) -> None:
        self.log_artifact_id = log_artifact_id
        self.fd = fd
        self.maximum_bytes = maximum_bytes
        self.fact_paths = fact_paths


class _Write:
    """One accepted write."""

    __slots__ = ("data", "error")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.error: EdgeError | None = None


class LogWriter:
    """Writes one log up to its quota; `close` is the only end."""

    __slots__ = (
        *("_accepted", "_chunk_bytes_max", "_closing", "_failure", "_fd", "_plan", "_remaining"),
        *("_turn", "log_artifact_id"),
    )

    def __init__(
        self,
        log_artifact_id: str,
        fd: int,
        *,
        remaining_bytes: int,
        chunk_bytes_max: int = LOG_WRITE_BYTES_MAX,
        plan: OutputPlan | None = None,
    ) -> None:
        """Takes over `fd`, open for appending; `remaining_bytes` is the quota without its size."""
        self.log_artifact_id = log_artifact_id
        self._fd = fd
        self._remaining = remaining_bytes
        self._chunk_bytes_max = chunk_bytes_max
        self._plan = plan
        self._accepted: list[_Write] = []
        self._turn = allocate_lock()
        self._closing = False
        self._failure: EdgeError | None = None

    def output_plan(self) -> OutputPlan | None:
        """The way past this process, if there is one; Refused `closed`."""
        if self._closing:
            raise _closed()
        return self._plan

    def write(
        self, stream: str, chunk: bytes | bytearray | memoryview, observed_at_ms: int
    ) -> None:
        """Append `chunk`; both streams share the file, in the order of the calls.

        Refused `closed`; Invalid `invalid_output` before anything is accepted (another stream or
        time, no bytes, more than one chunk may have); Refused `quota_exceeded` once the prefix
        that fits is written; Unavailable `no_space` or `storage_unavailable` from the disk.
        """
        if self._closing:
            raise _closed()
        good = (
            stream in _STREAMS
            and isinstance(chunk, (bytes, bytearray, memoryview))
            and memoryview(chunk).nbytes <= self._chunk_bytes_max
            and type(observed_at_ms) is int
            and 0 <= observed_at_ms <= SAFE_INTEGER_MAX
        )
        if not good:
            raise Invalid("invalid_output", "A piece of output is not one that a log takes.")
        mine = _Write(bytes(chunk))
        self._accepted.append(mine)
        with self._turn:
            self._make()
        if mine.error is not None:
            raise mine.error

    def close(self) -> None:
        """Make what was accepted, sync, give the descriptor back; again, the same answer.

        Deletes nothing. Unavailable if the disk did not take the bytes; the log is closed anyway.
        """
        self._closing = True
        with self._turn:
            if self._fd >= 0:
                self._make()
                fd, self._fd = self._fd, -1
                try:
                    os.fdatasync(fd)
                except OSError as error:
                    self._failure = storage_error(error, "log")
                finally:
                    os.close(fd)
        if self._failure is not None:
            raise self._failure

    def _make(self) -> None:
        """Every accepted write, in order; the caller has the turn."""
        while self._accepted:
            each = self._accepted.pop(0)
            try:
                self._append(each.data)
            except EdgeError as error:
                each.error = error
            except OSError as error:
                each.error = storage_error(error, "log")

    def _append(self, data: bytes) -> None:
        if self._fd < 0:
            raise _closed()
        fits = memoryview(data)[: self._remaining]
        cut = len(fits) < len(data)
        while fits:
            count = os.write(self._fd, fits)
            if count < 1:
                raise OSError(errno.EIO, "A write made no progress.")
            self._remaining -= count
            fits = fits[count:]
        if cut:
            raise Refused("quota_exceeded", "The log has reached its quota; the rest is dropped.")


def _closed() -> Refused:
    return Refused("closed", "The log is closed.")
