"""What is opened, and what is refused and kept: foreign, newer, damaged, empty, half."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from qinglong_edge.core.errors import Corrupt, EdgeError, Refused
from qinglong_edge.storage import migrations, schema, store
from qinglong_edge.storage.connection import TRUNCATE, Database
from qinglong_edge.storage.store import Store
from tests.storage.building import (
    LAYOUT,
    add_task,
    ended,
    opened,
    program_knows,
    put,
    running,
    state,
)

EXIT_CORRUPT = 5


@pytest.fixture
def made(folder: Path) -> Path:
    """A state that was closed cleanly, with some history."""
    with state(folder) as store:
        task = add_task(store)
        put(store, *(ended(task, number) for number in range(1, 20)), journal=True)
    return folder


def change(folder: Path, *statements: str) -> None:
    """Let another program write the database."""
    other = sqlite3.connect(folder / store.NAME, isolation_level=None)
    for statement in statements:
        other.execute(statement)
    other.close()


def refuse(folder: Path) -> EdgeError:
    """Open a state that must be refused; its files are the same before and after."""
    before = contents(folder)
    with pytest.raises(EdgeError) as error:
        opened(folder)
    assert contents(folder) == before
    return error.value


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in os.listdir(folder)}


def crashed(target: Store, folder: Path) -> Path:
    """The directory as a power cut at this moment leaves it."""
    copy = folder / "crashed"
    copy.mkdir()
    for name in ("edge.db", "edge.db-wal", "edge.db-journal"):
        if (folder / name).exists():
            shutil.copy(folder / name, copy / name)
    assert target.database.mode
    return copy


def damage(path: Path, page: int) -> None:
    """Flip the kind of one page, which no tree can have."""
    data = bytearray(path.read_bytes())
    data[(page - 1) * LAYOUT.page_bytes] ^= 0xFF
    path.write_bytes(data)


def test_the_schema_records_itself_with_its_checksum(store: Store) -> None:
    recorded = list(
        store.database.rows("SELECT number, name, sha256, applied_at_ms FROM migration")
    )
    assert recorded == [
        (number, name, migrations.checksum(script), 1) for number, name, script in schema.MIGRATIONS
    ]
    assert {number: sha256 for number, _, sha256, _ in recorded} == migrations.CHECKSUMS
    assert migrations.migrate(store.database, 2) == 0


def test_a_migration_whose_text_changed_is_refused_untouched(made: Path) -> None:
    change(made, f"UPDATE migration SET sha256 = '{'0' * 64}'")
    assert refuse(made).code == "schema_changed"


def test_a_newer_schema_is_refused_untouched(made: Path) -> None:
    newer = migrations.NEWEST + 1
    change(made, f"INSERT INTO migration VALUES ({newer}, 'later', '{'1' * 64}', 5)")
    error = refuse(made)
    assert (error.code, error.exit_status) == ("schema_too_new", EXIT_CORRUPT)
    assert error.facts == {"found": newer, "known": migrations.NEWEST}


@pytest.mark.parametrize(
    "statements",
    [
        ("CREATE TABLE t (x)",),
        ("PRAGMA journal_mode=WAL", "CREATE TABLE t (x)"),
        ("CREATE TABLE migration (version INTEGER)",),
        ("CREATE TABLE migration (number INTEGER, sha256 TEXT)",),
        ("CREATE VIEW v AS SELECT 1",),
    ],
)
def test_a_database_of_another_program_is_refused_untouched(
    folder: Path, statements: tuple[str, ...]
) -> None:
    change(folder, *statements)
    error = refuse(folder)
    assert (error.code, error.exit_status) == ("schema_foreign", EXIT_CORRUPT)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: data[:50],
        lambda data: data[:1000],
        lambda data: data[: len(data) // 2],
        lambda data: data[: 3 * LAYOUT.page_bytes],
        lambda data: b"garbage " * 4096,
        lambda data: b"\0" * len(data),
        lambda data: b"x" + data[1:],
    ],
)
def test_a_damaged_file_is_refused_and_kept_byte_for_byte(
    made: Path, spoil: Callable[[bytes], bytes]
) -> None:
    path = made / store.NAME
    path.write_bytes(spoil(path.read_bytes()))
    error = refuse(made)
    assert (error.code, error.exit_status) == ("database_corrupt", EXIT_CORRUPT)


def test_a_missing_database_is_never_made_by_opening(folder: Path) -> None:
    assert isinstance(refuse(folder), Refused)
    assert os.listdir(folder) == []


def test_a_database_behind_a_symbolic_link_is_refused(made: Path) -> None:
    (made / store.NAME).rename(made / "other")
    (made / store.NAME).symlink_to(made / "other")
    assert refuse(made).code == "file_unsafe"


def test_after_a_power_cut_every_commit_that_returned_is_there(folder: Path, store: Store) -> None:
    put(store, running(add_task(store), 1), journal=True)
    with opened_at(crashed(store, folder)) as again:
        assert list(again.runs.events(1)) == list(store.runs.events(1))


class opened_at:  # noqa: N801 - reads as a word of the test
    """`with opened_at(folder) as store:` closes it again."""

    def __init__(self, folder: Path) -> None:
        self.store = opened(folder)

    def __enter__(self) -> Store:
        return self.store

    def __exit__(self, *_exception: object) -> None:
        self.store.close()


def test_a_flipped_page_is_found_after_an_unclean_stop_and_found_again(made: Path) -> None:
    """Closing takes the WAL away; the next start must not take the file for a sound one."""
    store = opened(made)
    with store.database.write():
        store.put_setting("a", "1")
    copy = crashed(store, made)
    store.close()
    sound = (copy / "edge.db").read_bytes()
    pages = len(sound) // LAYOUT.page_bytes
    damage(copy / "edge.db", pages)
    for _start in range(3):
        with pytest.raises(Corrupt) as error:
            opened(copy)
        assert error.value.code == "database_corrupt"
        assert (copy / "edge.db").stat().st_size == len(sound)
    (copy / "edge.db").write_bytes(sound)  # the operator puts the good file back
    opened(copy).close()
    assert os.listdir(copy) == ["edge.db"]


def test_rows_that_contradict_each_other_are_found_after_an_unclean_stop(made: Path) -> None:
    change(made, "PRAGMA foreign_keys=OFF", "DELETE FROM task")
    store = opened(made)
    with store.database.write():
        store.put_setting("a", "1")
    copy = crashed(store, made)
    store.close()
    with pytest.raises(Corrupt) as error:
        opened(copy)
    assert error.value.code == "database_corrupt"


@pytest.mark.parametrize("mode", [None, TRUNCATE])
def test_after_a_clean_stop_nothing_is_read_but_what_is_needed(
    made: Path, monkeypatch: pytest.MonkeyPatch, mode: str | None
) -> None:
    if mode is not None:
        Database(str(made / store.NAME), LAYOUT, mode=mode).close()
        with opened_at(made) as first, first.database.write():
            first.put_setting("a", "1")
        assert (made / "edge.db-journal").exists()
    checks: list[object] = []
    monkeypatch.setattr(Database, "check", lambda self: checks.append(self))
    opened(made).close()
    assert checks == []


def test_making_a_state_again_goes_on_where_it_was_cut(folder: Path) -> None:
    for _time in range(2):
        assert store.create(str(folder), profile="edge", layout=LAYOUT, at_ms=1) == "wal"
    with opened_at(folder) as again:
        assert again.setting("profile") == "edge"
        assert again.tasks.count() == 0


def test_a_migration_is_applied_with_its_record_or_not_at_all(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = (3, "later", "CREATE TABLE later (x INTEGER) STRICT;\nCREATE INDEX i ON later (x);\n")
    bad = (4, "broken", "CREATE TABLE more (x INTEGER) STRICT;\nCREATE TABLE later (x);\n")
    old = schema.MIGRATIONS
    program_knows(monkeypatch, *old, good, bad)
    with pytest.raises(EdgeError):
        opened(made)
    program_knows(monkeypatch, *old, good)
    with opened_at(made) as again:
        assert sorted(migrations.applied(again.database)) == [1, 2, 3]
        assert again.database.row("SELECT count(*) FROM later") == (0,)
        assert again.database.row("SELECT 1 FROM sqlite_schema WHERE name = 'more'") is None
        assert again.runs.get(1) is not None
