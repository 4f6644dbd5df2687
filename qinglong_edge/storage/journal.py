"""The receipt journal: what a process may still publish (ADR-0069 section 3).

    (no row) --register--> pending --mark_quarantined--> quarantined
                              |                              |
                              +---------- resolve -----------+--> (no row)

`register` stands in the transaction that starts the attempt, so a process never exists without its
row; `resolve` comes only after the file is gone. Rows are found by this table alone: nothing lists
the receipt directory.
"""

from __future__ import annotations

from qinglong_edge.core.commit import AttemptKey, JournalEntry
from qinglong_edge.core.errors import Invalid, Refused
from qinglong_edge.core.limits import JOURNAL_PAGE_MAX, SAFE_INTEGER_MAX
from qinglong_edge.storage.connection import stored_id
from qinglong_edge.storage.runs import attempt_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qinglong_edge.storage.connection import Database, Row

_COLUMNS = """
attempt.run_number, attempt.attempt, attempt.id, journal.state, journal.quarantine_ref,
journal.purge_after_ms, journal.registered_at_ms, journal.updated_at_ms, attempt.status,
attempt.finished_at_ms
"""


class ReceiptJournal:
    """The four operations of the port; writes run inside the caller's block."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def register(self, key: AttemptKey, registered_at_ms: int) -> None:
        """Announce an attempt's process; the same call again is idempotent.

        `Refused` if the attempt is unknown, or registered at another time or already quarantined.
        """
        _check_ms(registered_at_ms)
        stored = _stored(key)
        if self._database.row("SELECT 1 FROM attempt WHERE key = ?", (stored,)) is None:
            raise Refused("journal_unknown_attempt", "The journal names no stored attempt.")
        self._database.execute(
            """
            INSERT INTO receipt_journal (key, state, registered_at_ms, updated_at_ms)
            VALUES (?, 'pending', ?, ?) ON CONFLICT (key) DO NOTHING
            """,
            (stored, registered_at_ms, registered_at_ms),
        )
        same = self._database.row(
            """
            SELECT 1 FROM receipt_journal
            WHERE key = ? AND state = 'pending' AND registered_at_ms = ?
            """,
            (stored, registered_at_ms),
        )
        if same is None:
            raise Refused("journal_conflict", "The attempt is registered differently already.")

    def mark_quarantined(
        self, key: AttemptKey, reference: str, *, updated_at_ms: int, purge_after_ms: int
    ) -> None:
        """State the intent to move an invalid receipt away, before it is moved.

        A replay keeps the first times, so that an interrupted move is finished and not refused.
        """
        _check_ms(updated_at_ms)
        _check_ms(purge_after_ms)
        unsafe = any(part in reference for part in ("..", "\\", "\0"))
        if not reference.startswith(".quarantine/") or unsafe or len(reference) > 255:
            raise Invalid("quarantine_ref_invalid", "A quarantine reference is malformed.")
        cursor = self._database.execute(
            """
            UPDATE receipt_journal
            SET state = 'quarantined', quarantine_ref = ?, updated_at_ms = max(updated_at_ms, ?),
                purge_after_ms = max(updated_at_ms, ?)
            WHERE key = ? AND state = 'pending'
            """,
            (reference, updated_at_ms, max(updated_at_ms, purge_after_ms), _stored(key)),
        )
        if cursor.rowcount == 1:
            return
        same = self._database.row(
            """
            SELECT 1 FROM receipt_journal
            WHERE key = ? AND state = 'quarantined' AND quarantine_ref = ?
            """,
            (_stored(key), reference),
        )
        if same is None:
            raise Refused("journal_conflict", "The attempt is not registered for quarantine.")

    def resolve(self, key: AttemptKey, *, purged: bool = True) -> bool:
        """Forget an attempt whose file is gone; False if there was no such row.

        Without `purged` a row in quarantine stays: it is all that names the file there.
        """
        statement = "DELETE FROM receipt_journal WHERE key = ?"
        if not purged:
            statement += " AND state = 'pending'"
        cursor = self._database.execute(statement, (_stored(key),))
        return cursor.rowcount == 1

    def page(
        self, *, observed_at_ms: int, after: tuple[int, int, int] | None, limit: int
    ) -> tuple[list[JournalEntry], bool]:
        """One page ordered by (updated, run, attempt), and whether more follow.

        Quarantined rows appear once their purge time has come (`observed_at_ms`).
        """
        if not 1 <= limit <= JOURNAL_PAGE_MAX:
            raise Invalid("page_invalid", "A journal page has 1 to 64 rows.", limit=limit)
        statement = f"""
            SELECT {_COLUMNS}
            FROM receipt_journal AS journal JOIN attempt USING (key)
            WHERE (journal.state = 'pending' OR journal.purge_after_ms <= ?)
              AND (journal.updated_at_ms, key) > (?, ?)
            ORDER BY journal.updated_at_ms, key LIMIT ?
        """
        start = (-1, -1) if after is None else (after[0], attempt_key(after[1], after[2]))
        rows = list(self._database.rows(statement, (observed_at_ms, *start, limit + 1)))
        return [_entry(row) for row in rows[:limit]], len(rows) > limit


def _stored(key: AttemptKey) -> int:
    return attempt_key(key.run_number, key.attempt)


def _entry(row: Row) -> JournalEntry:
    (number, attempt, blob, state, reference, purge, registered, updated, status, finished) = row
    return JournalEntry(
        key=AttemptKey(run_number=number, attempt=attempt),
        attempt_id=stored_id(blob),
        state=state,
        quarantine_ref=reference,
        purge_after_ms=purge,
        registered_at_ms=registered,
        updated_at_ms=updated,
        attempt_status=status,
        finished_at_ms=finished,
    )


def _check_ms(moment: int) -> None:
    if type(moment) is not int or not 0 <= moment <= SAFE_INTEGER_MAX:
        raise Invalid("time_invalid", "A time is not a whole number of milliseconds.")
