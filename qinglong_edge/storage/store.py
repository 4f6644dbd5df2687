"""The state of one owner: database, repositories, and the one place where a `Commit` happens.

Owns `edge.db` from creation to close. Promises:

* `create` makes the file with its schema and settings in one step; nothing else ever creates it.
* `commit` writes a whole `Commit` in one transaction: journal row, Run, Attempt, Events, cursor.
* A database of another profile, of a newer schema, or damaged is refused untouched.
"""

from __future__ import annotations

import os

from qinglong_edge.core.errors import Corrupt, Refused
from qinglong_edge.storage import migrations
from qinglong_edge.storage.connection import Database, Layout, probe
from qinglong_edge.storage.journal import ReceiptJournal
from qinglong_edge.storage.runs import RunStore
from qinglong_edge.storage.tasks import TaskStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qinglong_edge.core.commit import AttemptKey, Commit

NAME = "edge.db"


def create(directory: str, *, profile: str, layout: Layout, at_ms: int) -> str:
    """Make the database of a new state directory; returns the journal mode that was chosen."""
    mode = probe(directory, layout)
    database = Database(os.path.join(directory, NAME), layout, mode=mode)
    try:
        migrations.migrate(database, at_ms)
        with database.write():
            for name, value in (("profile", profile), ("storage_mode", mode)):
                database.execute(
                    "INSERT INTO setting (name, value) VALUES (?, ?) "
                    "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                    (name, value),
                )
    finally:
        database.close()
    return mode


class Store:
    """The open state; one owner, one thread."""

    def __init__(self, directory: str, *, layout: Layout, at_ms: int) -> None:
        path = os.path.join(directory, NAME)
        clean = not os.path.exists(f"{path}-wal") and not os.path.exists(f"{path}-journal")
        _check_present(path)
        self.database = Database(path, layout)
        try:
            migrations.migrate(self.database, at_ms)
            if not clean:
                self.database.check()
            self.tasks = TaskStore(self.database)
            self.runs = RunStore(self.database)
            self.journal = ReceiptJournal(self.database)
        except BaseException:
            self.database.close()
            raise

    def setting(self, name: str) -> str | None:
        """A stored setting, or None."""
        row = self.database.row("SELECT value FROM setting WHERE name = ?", (name,))
        return None if row is None else str(row[0])

    def put_setting(self, name: str, value: str) -> None:
        """Store a setting; inside the caller's block."""
        self.database.execute(
            "INSERT INTO setting (name, value) VALUES (?, ?) "
            "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (name, value),
        )

    def commit(self, commit: Commit) -> None:
        """Make a whole `Commit` durable, or nothing of it.

        Order inside: Run and Attempt first, because the journal's row refers to the attempt.
        """
        with self.database.write():
            for change in commit.changes:
                self.runs.save(change, actor=commit.actor, at_ms=commit.at_ms)
            for key in commit.register:
                self.journal.register(key, commit.at_ms)
            for key in commit.resolve:
                self.journal.resolve(key)
            for move in commit.cursors:
                self.tasks.move_cursor(move)
            for name, value in commit.settings:
                self.put_setting(name, value)

    def mark_quarantined(
        self, key: AttemptKey, reference: str, *, updated_at_ms: int, purge_after_ms: int
    ) -> None:
        """Commit the intent to quarantine a receipt."""
        with self.database.write():
            self.journal.mark_quarantined(
                key, reference, updated_at_ms=updated_at_ms, purge_after_ms=purge_after_ms
            )

    def prune(self, numbers: list[int]) -> None:
        """Delete ended Runs with their history, in one transaction."""
        with self.database.write():
            for number in numbers:
                self.runs.prune(number)

    def close(self) -> None:
        """Close for good; idempotent."""
        self.database.close()


def _check_present(path: str) -> None:
    """A look by path only: opening the file here would drop SQLite's locks on closing it."""
    if not os.path.exists(path):
        raise Refused("state_missing", "There is no database here; `init` makes one.")
    if os.path.getsize(path) == 0:
        raise Corrupt("database_corrupt", "The database file is empty; it was kept.")
