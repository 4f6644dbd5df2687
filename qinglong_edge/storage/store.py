"""The state of one owner: database, repositories, and the one place where a `Commit` happens.

Owns `edge.db` from creation to close. Promises:

* `create` makes the file with its schema and settings in one step; nothing else ever creates it.
* `commit` writes a whole `Commit` in one transaction: journal row, Run, Attempt, Events, cursor.
* A database of a newer schema, of another program, or damaged is refused and kept. Closing it
  takes its WAL away, so damage leaves `edge.db-damaged`: the next owner looks again.
"""

from __future__ import annotations

import os

from qinglong_edge.core.errors import Corrupt, Refused
from qinglong_edge.storage import migrations
from qinglong_edge.storage.audit import AuditStore
from qinglong_edge.storage.connection import Database, Layout, probe
from qinglong_edge.storage.journal import ReceiptJournal
from qinglong_edge.storage.runs import RunStore
from qinglong_edge.storage.tasks import TaskStore
from qinglong_edge.storage.tombstones import TombstoneStore
from qinglong_edge.system.files import Files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from qinglong_edge.core.commit import AttemptKey, Commit
    from qinglong_edge.core.tombstone import Tombstone
    from qinglong_edge.storage.secrets import SecretStore

NAME = "edge.db"
_DAMAGED = "-damaged"
_PUT_SETTING = """
INSERT INTO setting (name, value) VALUES (?, ?)
ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""


def create(directory: str, *, profile: str, layout: Layout, at_ms: int) -> str:
    """Make the database of a new state directory; returns the journal mode that was chosen."""
    mode = probe(directory, layout)
    path = os.path.join(directory, NAME)
    database = Database(path, layout, mode=mode)
    try:
        os.chmod(path, 0o600)  # SQLite gives its WAL and journal the same
        migrations.migrate(database, at_ms)
        with database.write():
            for name, value in (("profile", profile), ("storage_mode", mode)):
                database.execute(_PUT_SETTING, (name, value))
    finally:
        database.close()
    return mode


class Store:
    """The open state; one owner, one thread."""

    def __init__(self, directory: str, *, layout: Layout, at_ms: int) -> None:
        path = os.path.join(directory, NAME)
        _check_present(path)
        clean = not _left_open(path)
        self.database = Database(path, layout)
        self._secrets: SecretStore | None = None
        try:
            if not clean:
                self._check(f"{path}{_DAMAGED}")
            migrations.migrate(self.database, at_ms)
            self.tasks = TaskStore(self.database)
            self.runs = RunStore(self.database)
            self.journal = ReceiptJournal(self.database)
            self.audit = AuditStore(self.database)
            self.tombstones = TombstoneStore(self.database)
        except BaseException:
            self.database.close()
            raise

    def _check(self, mark: str) -> None:
        files = Files()
        try:
            self.database.check()
        except Corrupt:
            try:
                files.replace(mark, b"edge.db is damaged\n")
            except OSError:
                pass  # a read-only disk keeps the WAL too
            raise
        try:
            files.remove(mark)
        except OSError:
            pass  # the next start checks once more

    @property
    def secrets(self) -> SecretStore:
        """The repository of secrets; loaded once there is something to do with one."""
        if self._secrets is None:
            from qinglong_edge.storage.secrets import SecretStore

            self._secrets = SecretStore(self.database)
        return self._secrets

    def has_secrets(self) -> bool:
        """Whether there is a ciphertext: no key may be made anew then."""
        return self.database.row("SELECT 1 FROM secret_envelope") is not None

    def setting(self, name: str) -> str | None:
        """A stored setting, or None."""
        row = self.database.row("SELECT value FROM setting WHERE name = ?", (name,))
        return None if row is None else str(row[0])

    def put_setting(self, name: str, value: str) -> None:
        """Store a setting; inside the caller's block."""
        self.database.execute(_PUT_SETTING, (name, value))

    def settings(self, prefix: str, after: str = "") -> Iterator[tuple[str, str]]:
        """Stored settings whose names begin so, by name, behind one of them."""
        rows = self.database.rows(
            "SELECT name, value FROM setting WHERE name > ? AND name < ? ORDER BY name",
            (prefix + after, prefix + "\x7f"),
        )
        for name, value in rows:
            yield name.removeprefix(prefix), value

    def drop_setting(self, name: str) -> None:
        """Forget a setting; inside the caller's block."""
        self.database.execute("DELETE FROM setting WHERE name = ?", (name,))

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
            for key in commit.released:
                self.journal.resolve(key, purged=False)
            for move in commit.cursors:
                self.tasks.move_cursor(move)
            for name, value in commit.settings:
                self.put_setting(name, value)
            for entry in commit.audit:
                self.audit.record(entry)

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

    def sweep(self, *, before_ms: int, limit: int, keep_audit: int) -> int:
        """Delete a page of each kind of definition that nothing cites, and old lines of the audit.

        `before_ms` is the window within which everything stays; finding nothing writes nothing.
        """
        span = self.database.row("SELECT max(number) - min(number) >= ? FROM audit", (keep_audit,))
        if not (self.tasks.orphaned(before_ms) or (span is not None and span[0])):
            return 0
        with self.database.write():
            return self.tasks.sweep(before_ms, limit) + self.audit.prune(keep_audit)

    def bury(self, records: list[Tombstone]) -> None:
        """Make durable that logs are gone, once their files are."""
        with self.database.write():
            for record in records:
                self.tombstones.record(record)

    def close(self) -> None:
        """Close for good; idempotent."""
        self.database.close()


def _check_present(path: str) -> None:
    """A look by path only: opening the file here would drop SQLite's locks on closing it."""
    if not os.path.lexists(path):
        raise Refused("state_missing", "There is no database here; `init` makes one.")
    if os.path.islink(path) or not os.path.isfile(path):
        raise Corrupt("file_unsafe", "The database is not a regular file.")
    if os.path.getsize(path) == 0:
        raise Corrupt("database_corrupt", "The database file is empty; it was kept.")


def _left_open(path: str) -> bool:
    """True after an unclean stop; an empty journal is what TRUNCATE leaves behind a clean one."""
    for suffix in ("-wal", "-journal", _DAMAGED):
        if os.path.exists(path + suffix) and os.path.getsize(path + suffix) > 0:
            return True
    return False
