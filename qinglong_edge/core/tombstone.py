"""The tombstone of a log: what is still known of it once retention has deleted its file.

Owns the record and its digest, which covers everything told here, so that a damaged row is never
believed:

    SHA-256("qinglong/run-attempt-log-retirement@v1", NUL, canonical JSON of
            [schema, project, run, attempt, log, executor, finished, eligible, retired,
             disposition, bytes, true | false | "unknown", maximum | null, observed | null])

A tombstone is written after its file is gone, once: the first evidence stays.
"""

from __future__ import annotations

from qinglong_edge.core.canonical import encode, sha256_bytes
from qinglong_edge.core.errors import Corrupt, EdgeError, Invalid
from qinglong_edge.core.fact import is_log_artifact_id
from qinglong_edge.core.ids import is_portable_id
from qinglong_edge.core.limits import LOG_QUOTA_BYTES_MAX, SAFE_INTEGER_MAX
from qinglong_edge.core.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qinglong_edge.core.commit import AttemptKey

    Digest = bytes

_SCHEMA = "qinglong/run-attempt-log-retirement@v1"
DELETED, ALREADY_ABSENT = "deleted", "already_absent"


class Tombstone(Record):
    """One retired log; `bytes` is 0 if no file was found, `truncated` None where nothing says."""

    key: AttemptKey
    run_id: str
    attempt_id: str
    log_artifact_id: str
    finished_at_ms: int
    eligible_at_ms: int
    retired_at_ms: int
    disposition: str
    bytes: int
    truncated: bool | None = None
    maximum_bytes: int | None = None
    observed_at_ms: int | None = None
    project_id: str = "default"
    executor_type: str = "local_process"

    def _check(self) -> None:
        for name in ("project_id", "run_id", "attempt_id", "executor_type"):
            _require(name, is_portable_id(getattr(self, name)))
        _require("log_artifact_id", is_log_artifact_id(self.log_artifact_id))
        _require("finished_at_ms", _within(self.finished_at_ms, 0, SAFE_INTEGER_MAX))
        _require(
            "eligible_at_ms", _within(self.eligible_at_ms, self.finished_at_ms, SAFE_INTEGER_MAX)
        )
        _require(
            "retired_at_ms", _within(self.retired_at_ms, self.eligible_at_ms, SAFE_INTEGER_MAX)
        )
        highest = {DELETED: LOG_QUOTA_BYTES_MAX, ALREADY_ABSENT: 0}
        _require("disposition", self.disposition in highest)
        _require("bytes", _within(self.bytes, 0, highest[self.disposition]))
        _require("truncated", self.truncated is None or type(self.truncated) is bool)
        if self.truncated is None or self.maximum_bytes is None:
            _require("maximum_bytes", self.maximum_bytes is None)
            _require("observed_at_ms", self.observed_at_ms is None)
        else:
            _require("maximum_bytes", _within(self.maximum_bytes, 1, LOG_QUOTA_BYTES_MAX))
            _require("observed_at_ms", _within(self.observed_at_ms, 0, SAFE_INTEGER_MAX))

    def digest(self) -> Digest:
        """The 32 bytes that are stored beside it."""
        told = [
            *(_SCHEMA, self.project_id, self.run_id, self.attempt_id, self.log_artifact_id),
            *(self.executor_type, self.finished_at_ms, self.eligible_at_ms, self.retired_at_ms),
            *(self.disposition, self.bytes),
            "unknown" if self.truncated is None else self.truncated,
            *(self.maximum_bytes, self.observed_at_ms),
        ]
        return sha256_bytes(_SCHEMA.encode("ascii") + b"\0" + encode(told))


def verified(digest: object, **stored: object) -> Tombstone:
    """The tombstone of stored values; Corrupt `tombstone_corrupt` unless its digest is this one."""
    try:
        found = Tombstone(**stored)  # type: ignore[arg-type]
    except (EdgeError, TypeError):
        raise Corrupt("tombstone_corrupt", "A log's tombstone is damaged.") from None
    if found.digest() != digest:
        raise Corrupt("tombstone_corrupt", "A log's tombstone does not match its digest.")
    return found


def _within(number: object, lowest: int, highest: int) -> bool:
    return type(number) is int and lowest <= number <= highest


def _require(field: str, holds: bool) -> None:  # noqa: FBT001
    if not holds:
        raise Invalid("tombstone_invalid", "A tombstone's value is out of bounds.", field=field)
