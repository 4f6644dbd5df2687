"""The receipt cleanup scanner: one bounded page, journal-driven (ADR-0069 section 4).

Owns the decision for each journal row; the rows are the only source of names.

| row                                              | action                        | counted as |
|--------------------------------------------------|-------------------------------|------------|
| quarantined and due                              | finish move, purge, resolve   | purged     |
| quarantined, attempt not ended                   | keep                          | remaining  |
| pending, attempt not ended                       | keep, file untouched          | remaining  |
| pending, ended, file removed                     | resolve                       | removed    |
| pending, ended, no file, retention over          | resolve                       | expired    |
| pending, ended, no file, retention not over      | keep                          | remaining  |
| any failure                                      | keep                          | failed     |
"""

from __future__ import annotations

from qinglong_edge.core.errors import EdgeError
from qinglong_edge.core.record import Record
from qinglong_edge.core.run import ENDED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from qinglong_edge.core.commit import AttemptKey, JournalEntry
    from qinglong_edge.process.receipts import ReceiptStore

    class JournalPort(Protocol):
        """Reads one page of the journal."""

        def page(
            self, *, observed_at_ms: int, after: tuple[int, int, int] | None, limit: int
        ) -> tuple[list[JournalEntry], bool]: ...


class Summary(Record):
    """What one page came to; the counts add up to `scanned`."""

    scanned: int = 0
    removed: int = 0
    expired: int = 0
    purged: int = 0
    remaining: int = 0
    failed: int = 0
    truncated: bool = False


class CleanupScanner:
    """Reads a page, deletes files one by one, then resolves their rows in one transaction."""

    def __init__(
        self,
        journal: JournalPort,
        receipts: ReceiptStore,
        resolve: Callable[[tuple[AttemptKey, ...]], None],
        *,
        page: int,
        retention_ms: int,
    ) -> None:
        self._journal = journal
        self._receipts = receipts
        self._resolve = resolve
        self._page = page
        self._retention_ms = retention_ms
        self._after: tuple[int, int, int] | None = None

    def scan(self, now_ms: int) -> Summary:
        """Clean one page; the next call goes on after it, or starts over after the last page."""
        entries, truncated = self._journal.page(
            observed_at_ms=now_ms, after=self._after, limit=self._page
        )
        counts = dict.fromkeys(("removed", "expired", "purged", "remaining", "failed"), 0)
        gone: list[AttemptKey] = []
        for entry in entries:
            outcome = self._clean(entry, now_ms)
            counts[outcome] += 1
            if outcome in ("removed", "expired", "purged"):
                gone.append(entry.key)
        if gone:
            self._resolve(tuple(gone))
        last = entries[-1] if truncated else None
        self._after = (
            None if last is None else (last.updated_at_ms, last.key.run_number, last.key.attempt)
        )
        return Summary(scanned=len(entries), truncated=truncated, **counts)

    def _clean(self, entry: JournalEntry, now_ms: int) -> str:
        if entry.attempt_status not in ENDED:
            return "remaining"
        try:
            if entry.state == "quarantined":
                self._receipts.quarantine(entry.attempt_id)
                self._receipts.purge(entry.attempt_id)
                return "failed" if self._receipts.exists(entry.attempt_id) else "purged"
            if self._receipts.remove(entry.attempt_id):
                return "removed"
        except (OSError, EdgeError):
            return "failed"
        finished_ms = entry.finished_at_ms
        if finished_ms is not None and finished_ms + self._retention_ms <= now_ms:
            return "expired"
        return "remaining"
