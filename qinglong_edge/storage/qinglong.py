"""A QingLong 2.x database, read through a consistent copy of it.

Owns the only SQL about somebody else's file. The source is opened read-only and held for as long as
SQLite's backup takes; a panel that runs meanwhile goes on. The copy is in memory, or a file without
a name where it is large: it holds cookies in clear, and after a crash nothing of it is left. What
an import has to remember row by row stands in a table of the copy, so memory stays bounded.
"""

from __future__ import annotations

import _sqlite3 as sqlite3
import os

from qinglong_edge.core.errors import Invalid, Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_MEMORY_BYTES_MAX = 8_388_608
_BUSY_MS = 10_000
_PAGES = 256  # copied in one go
_OURS = """
CREATE TABLE qle_name (name TEXT PRIMARY KEY, id INTEGER) WITHOUT ROWID;
CREATE TABLE qle_told (kind TEXT, id INTEGER, told TEXT NOT NULL, PRIMARY KEY (kind, id));
"""
_WHERE = "it is data/db/database.sqlite of a panel, and of its unpacked backup"


class Source:
    """The copy of one database."""

    def __init__(self, path: str, temporary: str) -> None:
        """Copy the file at `path`; `temporary` is a name for a large copy, taken and dropped.

        Invalid: `qinglong_unreadable`, `qinglong_foreign` (no database, or none of QingLong's).
        Unavailable: `qinglong_busy`, `no_space`.
        """
        if not os.path.isfile(path):
            raise Invalid("qinglong_unreadable", f"There is no such file; {_WHERE}.")
        size = os.path.getsize(path)
        try:
            self._copy = _copied(path, None if size <= _MEMORY_BYTES_MAX else temporary)
            self._copy.executescript(_OURS)
        except sqlite3.Error as error:
            raise _typed(error) from None
        self._copy.text_factory = bytes

    def columns(self, table: str) -> tuple[str, ...]:
        """The names of a table's columns; nothing if there is no such table."""
        rows = self._copy.execute("SELECT name FROM pragma_table_info(?)", (table,))
        return tuple(bytes(name).decode("utf-8", "replace") for (name,) in rows)

    def count(self, table: str) -> int:
        """Rows of a table, 0 if there is none."""
        if not self.columns(table):
            return 0
        return int(self._copy.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0])

    def rows(
        self, table: str, columns: Sequence[str], required: Sequence[str], order: str = "id"
    ) -> Iterator[Mapping[str, object]]:
        """Rows by their columns; a column that this version has not is null everywhere.

        Invalid: `qinglong_foreign` if a required one is missing.
        """
        there = self.columns(table)
        if not set(required) <= set(there):
            raise Invalid("qinglong_foreign", "The database is not one of QingLong 2.x.")
        listed = ", ".join(f'"{name}"' if name in there else "NULL" for name in columns)
        try:
            for row in self._copy.execute(f'SELECT {listed} FROM "{table}" ORDER BY {order}'):
                yield dict(zip(columns, row, strict=True))
        except sqlite3.Error as error:
            raise _typed(error) from None

    def claim(self, name: str, row: int) -> bool:
        """True for the first row that asks for a name."""
        statement = "INSERT OR IGNORE INTO qle_name (name, id) VALUES (?, ?)"
        return self._copy.execute(statement, (name, row)).rowcount == 1

    def tell(self, kind: str, row: int, told: str) -> None:
        """Keep what became of a row of that kind, by its place."""
        self._copy.execute("INSERT OR REPLACE INTO qle_told VALUES (?, ?, ?)", (kind, row, told))

    def told(self, kind: str) -> Iterator[str]:
        """What became of the rows of a kind, in their order."""
        statement = "SELECT told FROM qle_told WHERE kind = ? ORDER BY id"
        for (text,) in self._copy.execute(statement, (kind,)):
            yield bytes(text).decode("utf-8")

    def close(self) -> None:
        """Drop the copy."""
        self._copy.close()


def _copied(path: str, temporary: str | None) -> sqlite3.Connection:
    uri = "file:" + "".join(
        chr(byte) if chr(byte).isalnum() or byte in b"/_.-" else f"%{byte:02x}"
        for byte in os.fsencode(os.path.abspath(path))
    )
    source = sqlite3.connect(f"{uri}?mode=ro", uri=True, isolation_level=None)
    try:
        source.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
        source.execute("PRAGMA trusted_schema = OFF")
        source.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        copy = _blank(temporary)
        try:
            source.backup(copy, pages=_PAGES)
        except BaseException:
            copy.close()
            raise
    finally:
        source.close()
    return copy


def _blank(temporary: str | None) -> sqlite3.Connection:
    if temporary is None:
        return sqlite3.connect(":memory:", isolation_level=None)
    os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        copy = sqlite3.connect(temporary, isolation_level=None)
        copy.execute("PRAGMA journal_mode = OFF")
        copy.execute("PRAGMA synchronous = OFF")
        copy.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    finally:
        os.unlink(temporary)
    return copy


def _typed(error: sqlite3.Error) -> Invalid | Unavailable:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Unavailable("qinglong_busy", "The panel is writing; try again.")
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        return Unavailable("no_space", "There is no room for a copy of the database.")
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY):
        return Invalid("qinglong_unreadable", "The database cannot be read.")
    message = f"The file is damaged, or no database of QingLong 2.x; {_WHERE}."
    return Invalid("qinglong_foreign", message)
