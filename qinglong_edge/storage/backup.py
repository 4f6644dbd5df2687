"""A copy of the database on its way out, or in: what it carries beside the rows.

Owns the table `backup` of a copy. No state in use has one: it is added to a copy that nobody else
knows of yet, and dropped before a copy becomes a state.
"""

from __future__ import annotations

from qinglong_edge.core.errors import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from qinglong_edge.storage.connection import Database

_TABLE = "CREATE TABLE backup (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID"


def annotate(database: Database, notes: Mapping[str, str]) -> None:
    """Add the table."""
    with database.write():
        database.execute(_TABLE)
        for note in notes.items():
            database.execute("INSERT INTO backup (name, value) VALUES (?, ?)", note)


def notes(database: Database) -> dict[str, str]:
    """What the table says; Refused `not_a_backup` without one."""
    if database.row("SELECT 1 FROM sqlite_schema WHERE name = 'backup'") is None:
        raise Refused("not_a_backup", "The file is a database, but no backup.")
    return {str(row[0]): str(row[1]) for row in database.rows("SELECT name, value FROM backup")}


def settle(database: Database) -> None:
    """Make a checked copy a state: without the table, and with the mode of this very device."""
    with database.write():
        database.execute("DROP TABLE backup")
        database.execute(
            "UPDATE setting SET value = ? WHERE name = 'storage_mode'", (database.mode,)
        )
