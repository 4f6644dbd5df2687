"""Numbered migrations, each with its SHA-256.

A migration and the row that records it commit together, so a crash leaves the schema before it or
after it; a database whose newest migration is unknown, or whose recorded checksum differs, is
refused untouched.
"""

from __future__ import annotations

from qinglong_edge.core.canonical import sha256_hex
from qinglong_edge.core.errors import Corrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qinglong_edge.storage.connection import Database

CHECKSUMS = {
    1: "3d836a65807b43243ea6d541a0fc814ff932132dd0066d67678f024a402484ec",
    2: "c8d0ec86bb68fd9f86cad3f5a92f47e3f8849d5a14d406b05f7a7f89ea65a6b3",
}
NEWEST = max(CHECKSUMS)

_LEDGER = """
CREATE TABLE IF NOT EXISTS migration (
  number        INTEGER PRIMARY KEY,
  name          TEXT NOT NULL,
  sha256        TEXT NOT NULL CHECK (length(sha256) = 64),
  applied_at_ms INTEGER NOT NULL
) STRICT
"""


def checksum(script: str) -> str:
    """The recorded identity of a migration's text."""
    return sha256_hex(script.strip().encode("utf-8"))


def applied(database: Database) -> dict[int, str]:
    """Number -> checksum of what the file records; empty for a new file."""
    found: dict[int, str] = {}
    if database.row("SELECT 1 FROM pragma_table_info('migration') WHERE name = 'sha256'"):
        found = dict(database.rows("SELECT number, sha256 FROM migration ORDER BY number"))
    if not found and database.row("SELECT 1 FROM sqlite_schema") is not None:
        raise Corrupt("schema_foreign", "The database was not made by this program.")
    return found


def migrate(database: Database, at_ms: int) -> int:
    """Bring the file to the newest schema; returns how many migrations were applied.

    Raises `Corrupt` (`schema_too_new`, `schema_changed`, `schema_foreign`) before any change.
    """
    done = applied(database)
    if done and max(done) > NEWEST:
        raise Corrupt(
            "schema_too_new",
            "The database was written by a newer version of this program.",
            found=max(done),
            known=NEWEST,
        )
    for number, known in CHECKSUMS.items():
        if number in done and done[number] != known:
            raise Corrupt(
                "schema_changed", "A recorded migration differs from this program's.", found=number
            )
    if len(done) == len(CHECKSUMS):
        return 0
    from qinglong_edge.storage.schema import MIGRATIONS

    count = 0
    for number, name, script in MIGRATIONS:
        if number in done:
            continue
        database.define("sha256", sha256_hex)
        with database.write():
            database.execute(_LEDGER)
            for statement in script.split(";\n"):
                if statement.strip():
                    database.execute(statement)
            database.execute(
                "INSERT INTO migration (number, name, sha256, applied_at_ms) VALUES (?, ?, ?, ?)",
                (number, name, checksum(script), at_ms),
            )
        count += 1
    return count
