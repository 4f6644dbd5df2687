"""The one connection to `edge.db`.

Owns opening, the journal mode, transactions and the close fence. Promises:

* One owner: `locking_mode=EXCLUSIVE` before the first access, so that WAL needs no shared memory
  (jffs2 has none) and a commit is one fsync. The mode is chosen once by a probe with a real write
  in the same directory, WAL first and TRUNCATE where that fails, and recorded in the database.
* `synchronous=FULL`: a commit that returned survives a power cut.
* The WAL is grown once at start by a rolled-back spill and never truncated while running: a commit
  then changes no file size.
* A block is `BEGIN IMMEDIATE` ... `COMMIT` with nothing but SQL inside; after `close` every call
  raises `storage_closed`.
* Nobody but SQLite opens `edge.db` or its WAL by path: closing any descriptor of them would drop
  this process's locks.
* After an unclean stop the file is checked before it is used; a damaged one is named and kept.
"""

from __future__ import annotations

import os

from qinglong_edge.core import ids
from qinglong_edge.core.errors import Corrupt, Invalid, Refused, Unavailable
from qinglong_edge.core.record import Record
from qinglong_edge.system.interpreter import LentCache

with LentCache():
    import _sqlite3 as sqlite3  # without `datetime`, which nothing here needs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType
    from typing import Any, Self

    Row = tuple[Any, ...]

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_FRAME_HEADER_BYTES = 24
_SPILL = """
WITH RECURSIVE row (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM row WHERE n < ?)
INSERT INTO setting (name, value) SELECT '+' || n, hex(zeroblob(2048)) FROM row
"""
SQLITE_VERSION = sqlite3.sqlite_version
WAL, TRUNCATE = "wal", "truncate"
EXCLUSIVE, NORMAL = "EXCLUSIVE", "NORMAL"
INSERTED, IDEMPOTENT = "inserted", "idempotent"  # what came of writing an immutable row


class Layout(Record):
    """The numbers of a profile that shape the file."""

    page_bytes: int
    cache_kib: int
    wal_bytes: int


def database_error(error: Exception) -> Corrupt | Unavailable:
    """The typed error of a failed statement; its text stays out of it."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    name = str(getattr(error, "sqlite_errorname", "SQLITE_ERROR"))
    if code in _DAMAGED:
        return Corrupt("database_corrupt", "The database is damaged; it was kept.", sqlite=name)
    if code == sqlite3.SQLITE_FULL:
        return Unavailable("no_space", "There is no room to write the database.", sqlite=name)
    if code == sqlite3.SQLITE_READONLY:
        return Unavailable("state_read_only", "The database cannot be written.", sqlite=name)
    if code == sqlite3.SQLITE_CANTOPEN:  # a full jffs2 makes no write-ahead log
        message = "A file of the database cannot be opened or made; a full disk makes none."
        return Unavailable("database_failed", message, sqlite=name)
    if code in _BUSY:
        return Unavailable("database_busy", "Another process uses the database.", sqlite=name)
    return Unavailable("database_failed", "The database refused a statement.", sqlite=name)


def stored_id(value: object) -> str:
    """The UUID of a stored column; `Corrupt` if it is none."""
    try:
        return ids.from_blob(value if isinstance(value, bytes) else b"")
    except Invalid:
        raise Corrupt("row_corrupt", "A stored row holds no id where one must be.") from None


def _configure(
    connection: sqlite3.Connection, layout: Layout, mode: str | None, locking: str = EXCLUSIVE
) -> str:
    """Set the pragmas in the order that matters; returns the mode, which SQLite really took.

    Without a mode the file's own header decides: WAL stays WAL, anything else is TRUNCATE.
    """
    for name in ("ENABLE_FKEY", "DEFENSIVE", "TRUSTED_SCHEMA", "DQS_DML", "DQS_DDL"):
        option = getattr(sqlite3, f"SQLITE_DBCONFIG_{name}", None)
        if option is not None and hasattr(connection, "setconfig"):
            connection.setconfig(option, name in ("ENABLE_FKEY", "DEFENSIVE"))
    connection.execute(f"PRAGMA page_size={layout.page_bytes:d}")
    connection.execute(f"PRAGMA locking_mode={locking}")
    if mode is None:
        header = str(connection.execute("PRAGMA journal_mode").fetchone()[0]).lower()
        mode = WAL if header == WAL else TRUNCATE
    taken = str(connection.execute(f"PRAGMA journal_mode={mode}").fetchone()[0]).lower()
    if taken != mode:
        raise sqlite3.OperationalError("another journal mode was taken")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA trusted_schema=OFF")
    connection.execute("PRAGMA temp_store=MEMORY")
    connection.execute("PRAGMA mmap_size=0")
    connection.execute("PRAGMA journal_size_limit=-1")
    # At least one: with 0 nothing would ever be copied back, and the log grow for ever.
    frames = max(1, layout.wal_bytes // (layout.page_bytes + _FRAME_HEADER_BYTES))
    connection.execute(f"PRAGMA wal_autocheckpoint={frames:d}")
    connection.execute(f"PRAGMA cache_size=-{layout.cache_kib:d}")
    return mode


def _connect(path: str) -> sqlite3.Connection:
    """Open or create; SQLite itself reads nothing before the first statement."""
    try:
        return sqlite3.connect(path, isolation_level=None, timeout=2.0, cached_statements=24)
    except sqlite3.Error as error:
        raise database_error(error) from None


def _remove(path: str) -> None:
    """Remove a database file and what stands beside it."""
    for suffix in ("", "-wal", "-journal", "-shm"):
        try:
            os.unlink(path + suffix)
        except FileNotFoundError:
            continue


def probe(directory: str, layout: Layout) -> str:
    """The journal mode that really works here: a write, a checkpoint and a second read of it.

    Raises `Unavailable` when neither does.
    """
    path = os.path.join(directory, ".probe.db")
    last: sqlite3.Error | None = None
    for mode in (WAL, TRUNCATE):
        _remove(path)
        connection = _connect(path)
        try:
            _configure(connection, layout, mode)
            connection.execute("CREATE TABLE probe (value BLOB NOT NULL) STRICT")
            connection.execute("INSERT INTO probe VALUES (zeroblob(4096))")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            if connection.execute("SELECT count(*) FROM probe").fetchone()[0] == 1:
                return mode
        except sqlite3.Error as error:
            last = error
        finally:
            connection.close()
            _remove(path)
    if last is not None:
        raise database_error(last) from None
    raise Unavailable("database_failed", "No journal mode of SQLite works in this directory.")


class Transaction:
    """`with database.write():` - commits at the end, rolls back on any exception."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def __enter__(self) -> Self:
        self._database.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._database.commit()
        else:
            self._database.rollback()


class Database:
    """The connection of a state's owner; one thread, one block at a time."""

    def __init__(
        self, path: str, layout: Layout, *, mode: str | None = None, locking: str = EXCLUSIVE
    ) -> None:
        """Open or create the file; `locking` NORMAL lets other connections in."""
        self._layout = layout
        self.commits = 0
        self._connection: sqlite3.Connection | None = _connect(path)
        try:
            self.mode = _configure(self._connection, layout, mode, locking)
            self._connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        except sqlite3.Error as error:
            self.close()
            raise database_error(error) from None

    def execute(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Run one statement; its errors become ours."""
        if self._connection is None:
            raise Unavailable("storage_closed", "The storage is closed.")
        try:
            return self._connection.execute(statement, values)
        except sqlite3.IntegrityError as error:
            name = str(getattr(error, "sqlite_errorname", "SQLITE_CONSTRAINT"))
            raise Corrupt("constraint", "A stored rule refused the change.", sqlite=name) from None
        except (sqlite3.Error, MemoryError) as error:  # the latter is SQLITE_NOMEM
            raise database_error(error) from None

    def rows(self, statement: str, values: Sequence[object] = ()) -> Iterator[Row]:
        """The rows of a query, one at a time."""
        cursor = self.execute(statement, values)
        try:
            # `yield from` would close the cursor at its end, which a closed connection refuses.
            for row in cursor:  # noqa: UP028
                yield row
        except (sqlite3.Error, MemoryError) as error:
            raise database_error(error) from None

    def row(self, statement: str, values: Sequence[object] = ()) -> Row | None:
        """The first row of a query, or None."""
        for row in self.rows(statement, values):
            return row
        return None

    def define(self, name: str, function: Callable[[bytes], str]) -> None:
        """Let statements call `name` with one value."""
        if self._connection is not None:
            self._connection.create_function(name, 1, function)

    def write(self) -> Transaction:
        """A block of changes: all of them or none."""
        return Transaction(self)

    def begin(self) -> None:
        """Open a block."""
        self.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Make the block durable, or roll it back and raise."""
        try:
            self.execute("COMMIT")
        except BaseException:
            self.rollback()
            raise
        self.commits += 1

    def rollback(self) -> None:
        """Drop the block; SQLite may already have done so."""
        if self._connection is not None and self._connection.in_transaction:
            self.execute("ROLLBACK")

    def grow_wal(self) -> None:
        """Give the WAL its size once, by a spill that is rolled back; best effort."""
        if self._connection is None or self.mode != WAL:
            return
        try:
            self._connection.execute("PRAGMA wal_checkpoint(RESTART)")
            self._connection.execute("PRAGMA cache_size=10")
            self._connection.execute("BEGIN IMMEDIATE")
            # Many small rows: one large value would stay in this process's memory for life.
            self._connection.execute(_SPILL, (self._layout.wal_bytes // 4096,))
        except sqlite3.Error:
            pass  # a full disk: commits then grow the file as they need
        finally:
            self.rollback()
            self._connection.execute(f"PRAGMA cache_size=-{self._layout.cache_kib:d}")

    def check(self, pragma: str = "quick_check") -> None:
        """Read the whole file's structure; damage is `Corrupt`, and nothing is changed.

        With `integrity_check` its indexes too, which takes longer.
        """
        found = self.row(f"PRAGMA {pragma}(1)")
        if found is None or found[0] != "ok":
            raise Corrupt("database_corrupt", "The database is damaged; it was kept.")
        if self.row("PRAGMA foreign_key_check") is not None:
            raise Corrupt("database_corrupt", "Rows of the database contradict each other.")

    def copy_to(self, path: str) -> None:
        """Make the file `path` and copy the whole database as it is now; its device may lag.

        Refused `file_exists` for a name that is taken; a copy that failed is removed.
        """
        if self._connection is None:
            raise Unavailable("storage_closed", "The storage is closed.")
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            raise Refused("file_exists", "There is a file of that name already.") from None
        target = _connect(path)
        try:
            target.execute("PRAGMA synchronous=OFF")
            self._connection.backup(target)
        except (sqlite3.Error, MemoryError) as error:
            target.close()
            _remove(path)
            raise database_error(error) from None
        target.close()

    def close(self) -> None:
        """Close for good; idempotent. Later calls raise `storage_closed`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
