"""Tombstones as rows: what is still known of a log that retention deleted (ADR-0024 section 5).

Loaded by the first log that goes. A row is written after its file is gone, once; a crash between
leaves neither, and the next sweep finds the file absent.
"""

from __future__ import annotations

from qinglong_edge.core import ids
from qinglong_edge.core.errors import Refused
from qinglong_edge.core.fact import log_artifact_id
from qinglong_edge.core.tombstone import Tombstone, verified
from qinglong_edge.storage.connection import IDEMPOTENT, INSERTED, stored_id
from qinglong_edge.storage.runs import attempt_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qinglong_edge.core.commit import AttemptKey
    from qinglong_edge.storage.connection import Database

_TOMBSTONE = (
    "eligible_at_ms",
    "retired_at_ms",
    "disposition",
    "bytes",
    "truncated",
    "maximum_bytes",
    "observed_at_ms",
)
_INSERT_TOMBSTONE = f"""
INSERT INTO log_tombstone (key, {", ".join(_TOMBSTONE)}, digest)
SELECT key, ?, ?, ?, ?, ?, ?, ?, ? FROM attempt JOIN run ON run.number = attempt.run_number
WHERE key = ? AND run.id = ? AND attempt.id = ? AND attempt.finished_at_ms = ?
  AND run.finished_at_ms IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM receipt_journal AS journal WHERE journal.key = attempt.key)
ON CONFLICT (key) DO NOTHING
"""


class TombstoneStore:
    """The rows; writes run inside the caller's block."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, record: Tombstone) -> str:
        """Record that a log is gone: inserted, or idempotent because the first evidence stays.

        `Refused` (`tombstone_refused`) unless the very attempt and its run have ended, and no
        receipt is awaited.
        """
        cursor = self._database.execute(
            _INSERT_TOMBSTONE,
            (
                *(getattr(record, name) for name in _TOMBSTONE),
                record.digest(),
                attempt_key(record.key.run_number, record.key.attempt),
                ids.to_blob(record.run_id),
                ids.to_blob(record.attempt_id),
                record.finished_at_ms,
            ),
        )
        known = self.get(record.key)  # `Corrupt` if it tells of another log
        if known is None or any(
            getattr(known, name) != getattr(record, name)
            for name in ("run_id", "attempt_id", "finished_at_ms", "log_artifact_id")
        ):
            raise Refused("tombstone_refused", "The log belongs to no attempt that has ended.")
        return INSERTED if cursor.rowcount == 1 else IDEMPOTENT

    def get(self, key: AttemptKey) -> Tombstone | None:
        """What is known of a log that retention deleted; `Corrupt` if it is damaged."""
        row = self._database.row(
            f"""
            SELECT gone.digest, run.id, attempt.id, attempt.finished_at_ms, {", ".join(_TOMBSTONE)}
            FROM log_tombstone AS gone JOIN attempt USING (key)
            JOIN run ON run.number = attempt.run_number WHERE key = ?
            """,
            (attempt_key(key.run_number, key.attempt),),
        )
        if row is None:
            return None
        stored = dict(zip(_TOMBSTONE, row[4:], strict=True))
        if stored["truncated"] is not None:
            stored["truncated"] = bool(stored["truncated"])
        run_id, attempt_id = stored_id(row[1]), stored_id(row[2])
        return verified(
            row[0],
            key=key,
            run_id=run_id,
            attempt_id=attempt_id,
            log_artifact_id=log_artifact_id(run_id, attempt_id),
            finished_at_ms=row[3],
            **stored,
        )
