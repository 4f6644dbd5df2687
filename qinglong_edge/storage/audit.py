"""The audit as rows: written in the transaction of the change it tells, pruned oldest first.

A crash therefore leaves both or neither. A number is never given twice, so a page goes on behind
its last line whatever came in between.
"""

from __future__ import annotations

from qinglong_edge.core.audit import Audit
from qinglong_edge.core.errors import Corrupt, EdgeError
from qinglong_edge.core.limits import PAGE_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qinglong_edge.storage.connection import Database, Row

_COLUMNS = ", ".join(Audit._fields[1:])
_INSERT = f"INSERT INTO audit ({_COLUMNS}) VALUES ({', '.join('?' * len(Audit._fields[1:]))})"


class AuditStore:
    """The lines; writes run inside the caller's block."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, entry: Audit) -> None:
        """Append a line."""
        self._database.execute(_INSERT, [getattr(entry, name) for name in Audit._fields[1:]])

    def page(self, after: int | None, limit: int) -> tuple[list[Audit], int | None]:
        """Lines, newest first, older than the number `after`; where to go on, None at the end."""
        statement = f"""
            SELECT number, {_COLUMNS} FROM audit WHERE number < coalesce(?, 9223372036854775807)
            ORDER BY number DESC LIMIT ?
        """
        limit = max(1, min(limit, PAGE_MAX))
        found = list(map(_entry, self._database.rows(statement, (after, limit + 1))))
        return found[:limit], found[limit - 1].number if len(found) > limit else None

    def prune(self, keep: int) -> int:
        """Delete a page of the oldest lines beyond the newest `keep`; returns how many went."""
        return self._database.execute(
            """
            DELETE FROM audit WHERE number IN (
              SELECT number FROM audit WHERE number <= (SELECT max(number) FROM audit) - ?
              ORDER BY number LIMIT ?)
            """,
            (keep, PAGE_MAX),
        ).rowcount


def _entry(row: Row) -> Audit:
    try:
        return Audit(**dict(zip(Audit._fields, row, strict=True)))
    except EdgeError:
        raise Corrupt("row_corrupt", "A stored line of the audit is damaged.") from None
