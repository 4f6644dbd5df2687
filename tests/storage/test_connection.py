"""The one connection: journal modes, the WAL's size, one owner, typed errors."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qinglong_edge.core.errors import Corrupt, EdgeError, Unavailable
from qinglong_edge.storage import connection, store
from qinglong_edge.storage.connection import TRUNCATE, WAL, Database, probe
from qinglong_edge.storage.store import Store
from tests.storage.building import LAYOUT, add_task, end, key, opened, put, running, state

# Opens the database as a foreign program would, and tells whether it was let in.
_INTRUDER = """
import sqlite3, sys
other = sqlite3.connect(sys.argv[1], timeout=0.05)
try:
    other.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    other.execute("CREATE TABLE intruder (x)")
    print("in")
except sqlite3.OperationalError as error:
    print(error)
"""


class Distrusted(sqlite3.Connection):
    """A connection on a file system that cannot hold a WAL."""

    def execute(self, statement: str, values: object = ()) -> sqlite3.Cursor:
        if statement == "PRAGMA journal_mode=wal":
            return super().execute("PRAGMA journal_mode=DELETE")
        return super().execute(statement, values)  # type: ignore[arg-type]


class Broken(Distrusted):
    """One where asking for a WAL is an I/O error, as on jffs2 with a shared memory index."""

    def execute(self, statement: str, values: object = ()) -> sqlite3.Cursor:
        if statement == "PRAGMA journal_mode=wal":
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(statement, values)


class Hopeless(sqlite3.Connection):
    """One where nothing can be written."""

    def execute(self, statement: str, values: object = ()) -> sqlite3.Cursor:
        if statement.startswith("PRAGMA journal_mode="):
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(statement, values)  # type: ignore[arg-type]


@pytest.fixture
def factory(monkeypatch: pytest.MonkeyPatch) -> Callable[[type[sqlite3.Connection]], None]:
    real = sqlite3.connect

    def use(kind: type[sqlite3.Connection]) -> None:
        def connect(path: str, **options: object) -> sqlite3.Connection:
            return real(path, factory=kind, **options)  # type: ignore[call-overload, no-any-return]

        monkeypatch.setattr("_sqlite3.connect", connect)

    return use


def files(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def intrude(folder: Path) -> str:
    command = [sys.executable, "-I", "-S", "-c", _INTRUDER, str(folder / store.NAME)]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.decode().strip()


def pragma(database: Database, name: str) -> object:
    row = database.row(f"PRAGMA {name}")
    return None if row is None else row[0]


def test_wal_is_chosen_on_an_ordinary_file_system(tmp_path: Path) -> None:
    assert probe(str(tmp_path), LAYOUT) == WAL
    assert files(tmp_path) == []


def test_wal_is_chosen_in_memory(folder: Path) -> None:
    assert probe(str(folder), LAYOUT) == WAL
    assert files(folder) == []


@pytest.mark.parametrize("kind", [Distrusted, Broken])
def test_where_a_wal_does_not_work_the_journal_is_truncated(
    folder: Path,
    factory: Callable[[type[sqlite3.Connection]], None],
    kind: type[sqlite3.Connection],
) -> None:
    factory(kind)
    assert store.create(str(folder), profile="edge", layout=LAYOUT, at_ms=1) == TRUNCATE
    made = opened(folder)
    assert made.database.mode == TRUNCATE
    assert made.setting("storage_mode") == TRUNCATE
    put(made, running(add_task(made), 1))
    assert files(folder) == ["edge.db", "edge.db-journal"]
    made.close()


def test_where_nothing_works_the_reason_is_told_and_nothing_stays(
    folder: Path, factory: Callable[[type[sqlite3.Connection]], None]
) -> None:
    factory(Hopeless)
    with pytest.raises(Unavailable) as error:
        store.create(str(folder), profile="edge", layout=LAYOUT, at_ms=1)
    assert error.value.code == "database_failed"
    assert files(folder) == []


def test_a_probe_that_a_crash_left_behind_is_cleared_away(folder: Path) -> None:
    for name in (".probe.db", ".probe.db-wal", ".probe.db-journal"):
        (folder / name).write_bytes(b"left behind")
    assert probe(str(folder), LAYOUT) == WAL
    assert files(folder) == []


def test_a_place_that_cannot_be_opened_is_a_typed_error(folder: Path) -> None:
    with pytest.raises(Unavailable) as error:
        probe(str(folder / "missing"), LAYOUT)
    assert error.value.code == "database_failed"


@pytest.mark.parametrize("mode", [WAL, TRUNCATE])
def test_the_mode_is_read_back_from_the_file_itself(folder: Path, mode: str) -> None:
    path = str(folder / store.NAME)
    made = Database(path, LAYOUT, mode=mode)
    made.execute("CREATE TABLE t (x)")
    made.close()
    again = Database(path, LAYOUT)
    assert again.mode == mode == pragma(again, "journal_mode")
    again.close()
    if mode == WAL:  # bytes 18 and 19 of the header: 2 is WAL
        assert (folder / store.NAME).read_bytes()[18:20] == b"\2\2"


@pytest.mark.parametrize("mode", [WAL, TRUNCATE])
def test_the_connection_is_exclusive_synchronous_and_bounded(folder: Path, mode: str) -> None:
    database = Database(str(folder / store.NAME), LAYOUT, mode=mode)
    told = {
        "locking_mode": "exclusive",
        "synchronous": 2,
        "foreign_keys": 1,
        "trusted_schema": 0,
        "page_size": LAYOUT.page_bytes,
        "cache_size": -LAYOUT.cache_kib,
        "wal_autocheckpoint": LAYOUT.wal_bytes // (LAYOUT.page_bytes + 24),
        "mmap_size": 0,
        "temp_store": 2,
    }
    found = {name: pragma(database, name) for name in told}
    database.close()
    # An interpreter without memory mapping answers nothing at all.
    assert found in (told, told | {"mmap_size": None})


def test_a_wal_smaller_than_a_page_is_copied_back_all_the_same(folder: Path) -> None:
    """`limits` of a box may say anything; without a bound the log would grow for ever."""
    tiny = LAYOUT.replace(wal_bytes=1)
    database = Database(str(folder / store.NAME), tiny, mode=WAL)
    for number in range(200):
        with database.write():
            database.execute("CREATE TABLE IF NOT EXISTS t (x BLOB)")
            database.execute("INSERT INTO t VALUES (zeroblob(2000 + ?))", (number % 2,))
            database.execute("DELETE FROM t")
    assert (folder / f"{store.NAME}-wal").stat().st_size < 65_536
    database.close()


def test_no_shared_memory_file_ever_exists(folder: Path, store: Store) -> None:
    put(store, running(add_task(store), 1))
    assert files(folder) == ["edge.db", "edge.db-wal"]
    store.close()
    assert files(folder) == ["edge.db"]
    assert (folder / "edge.db").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [WAL, TRUNCATE])
def test_a_second_process_is_refused_while_the_owner_lives(folder: Path, mode: str) -> None:
    database = Database(str(folder / store.NAME), LAYOUT, mode=mode)
    with database.write():
        database.execute("CREATE TABLE t (x)")
    assert intrude(folder) == "database is locked"
    assert database.row("SELECT count(*) FROM t") == (0,)
    database.close()
    assert intrude(folder) == "in"


def test_a_database_that_another_process_holds_is_busy(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with state(folder):
        pass
    holder = sqlite3.connect(folder / store.NAME, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr(
        connection, "_connect", lambda path: sqlite3.connect(path, isolation_level=None, timeout=0)
    )
    with pytest.raises(Unavailable) as error:
        opened(folder)
    assert error.value.code == "database_busy"
    holder.execute("ROLLBACK")
    holder.close()
    opened(folder).close()


def test_the_wal_is_grown_once_and_then_keeps_its_size(folder: Path, store: Store) -> None:
    """A commit that changes no file size is one flush."""
    store.database.grow_wal()
    wal = folder / "edge.db-wal"
    size = wal.stat().st_size
    assert 0.98 * LAYOUT.wal_bytes < size < 1.2 * LAYOUT.wal_bytes
    assert store.setting("") is None
    task = add_task(store)
    commits = store.database.commits
    for number in range(1, 101):
        put(store, running(task, number), journal=True)
        _finish(store, number)
    assert store.database.commits == commits + 200
    assert wal.stat().st_size == size
    assert pragma(store.database, "cache_size") == -LAYOUT.cache_kib


def _finish(target: Store, number: int) -> None:
    with target.database.write():
        target.runs.save(end(target, number), actor="test", at_ms=20)
        target.journal.resolve(key(number))


def test_growing_the_wal_changes_nothing_that_is_stored(folder: Path, store: Store) -> None:
    put(store, running(add_task(store), 1))
    before = list(store.runs.events(1))
    commits = store.database.commits
    store.database.grow_wal()
    store.database.grow_wal()
    assert (list(store.runs.events(1)), store.database.commits) == (before, commits)
    store.close()
    again = opened(folder)
    assert list(again.runs.events(1)) == before
    again.database.check()
    again.close()


def test_without_a_wal_there_is_nothing_to_grow(folder: Path) -> None:
    database = Database(str(folder / store.NAME), LAYOUT, mode=TRUNCATE)
    database.grow_wal()
    database.close()
    assert files(folder) in ([], ["edge.db"])


def test_only_blocks_that_became_durable_are_counted(store: Store) -> None:
    before = store.database.commits
    with store.database.write():
        store.put_setting("a", "1")
    with pytest.raises(Corrupt), store.database.write():
        store.database.execute("INSERT INTO setting (name, value) VALUES ('b', NULL)")
    assert store.setting("a") == "1"
    assert store.database.commits == before + 1


@pytest.mark.parametrize(
    ("code", "kind", "told"),
    [
        (sqlite3.SQLITE_CORRUPT, Corrupt, "database_corrupt"),
        (sqlite3.SQLITE_NOTADB, Corrupt, "database_corrupt"),
        (sqlite3.SQLITE_CORRUPT_VTAB, Corrupt, "database_corrupt"),
        (sqlite3.SQLITE_FULL, Unavailable, "no_space"),
        (sqlite3.SQLITE_READONLY, Unavailable, "state_read_only"),
        (sqlite3.SQLITE_BUSY, Unavailable, "database_busy"),
        (sqlite3.SQLITE_BUSY_RECOVERY, Unavailable, "database_busy"),
        (sqlite3.SQLITE_IOERR_FSYNC, Unavailable, "database_failed"),
        (None, Unavailable, "database_failed"),
    ],
)
def test_an_error_of_sqlite_gets_its_class_and_keeps_its_text_to_itself(
    code: int | None, kind: type[EdgeError], told: str
) -> None:
    error = sqlite3.OperationalError("near secret: syntax error")
    if code is not None:
        error.sqlite_errorcode = code
    found = connection.database_error(error)
    assert (type(found), found.code) == (kind, told)
    assert "secret" not in str(found.document())


def test_a_disk_that_makes_no_further_file_is_one_of_the_reasons_that_are_told() -> None:
    """A full jffs2 lets nobody make a write-ahead log, which SQLite calls a failure to open."""
    error = sqlite3.OperationalError("unable to open database file")
    error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
    found = connection.database_error(error)
    assert (type(found), found.code) == (Unavailable, "database_failed")
    assert "full disk" in found.message


def test_a_full_database_drops_the_block_and_says_so(store: Store) -> None:
    """The block that did not fit leaves nothing; a smaller one is taken again."""
    pages = pragma(store.database, "page_count")
    store.database.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(Unavailable) as error, store.database.write():
        store.put_setting("big", "x" * 100_000)
    assert error.value.code == "no_space"
    assert store.setting("big") is None
    with store.database.write():
        store.put_setting("small", "x")
    assert store.setting("small") == "x"
