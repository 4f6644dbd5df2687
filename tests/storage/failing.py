"""Every statement of a deed fails once: nothing of it stays, and what a crash leaves opens."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.core.errors import Unavailable
from qinglong_edge.storage.connection import Database
from qinglong_edge.storage.store import Store
from tests.storage.building import opened

TABLES = (
    *("setting", "recipe", "task", "revision", "task_trigger", "cursor", "run", "attempt"),
    *("event", "receipt_journal", "secret", "secret_envelope", "audit", "log_tombstone"),
)


def rows(database: Database) -> dict[str, list[Any]]:
    """The whole content."""
    return {each: list(database.rows(f"SELECT * FROM {each} ORDER BY 1, 2")) for each in TABLES}


def after_a_crash(folder: Path) -> dict[str, list[Any]]:
    """What the next owner finds if the power goes now."""
    copy = folder / "crashed"
    copy.mkdir()
    for name in ("edge.db", "edge.db-wal"):
        shutil.copy(folder / name, copy / name)
    again = opened(copy)
    again.database.check()
    found = rows(again.database)
    again.close()
    shutil.rmtree(copy)
    return found


def every_statement_fails(folder: Path, store: Store, deed: Callable[[], object]) -> int:
    """Do a deed after each of its statements has failed once; how many there were."""
    before = rows(store.database)
    real, number, reached = store.database.execute, 0, 0

    def execute(statement: str, values: Sequence[object] = ()) -> Any:
        nonlocal reached
        if statement == "ROLLBACK":
            return real(statement, values)
        reached += 1
        if reached != number:
            return real(statement, values)
        assert after_a_crash(folder) == before
        raise Unavailable("no_space", "injected")

    store.database.execute = execute  # type: ignore[method-assign]
    while True:
        number, reached = number + 1, 0
        try:
            deed()
        except Unavailable:
            assert reached == number
            assert rows_of(store, real) == before
        else:
            break
    store.database.execute = real  # type: ignore[method-assign]
    after = rows(store.database)
    assert after != before
    assert after_a_crash(folder) == after
    return number - 1


def rows_of(store: Store, real: Callable[..., Any]) -> dict[str, list[Any]]:
    """The content, read past the failing door."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.database, "execute", real)
        return rows(store.database)
