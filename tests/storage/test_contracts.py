"""The contracts of recipes, revisions and secrets, kept by SQLite with ordinary locking."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.storage import store
from qinglong_edge.storage.connection import NORMAL, Database, Transaction
from qinglong_edge.storage.secrets import SecretStore
from qinglong_edge.storage.tasks import TaskStore
from tests.storage.building import LAYOUT
from tests.storage.contract_recipe import RecipeContract
from tests.storage.contract_revision import RevisionContract
from tests.storage.contract_secret import SecretContract
from tests.storage.subject import Connect

_TABLES = {"envelope": "secret_envelope"}
_COLUMNS = {
    "recipe.address": "recipe.context_ref",
    "recipe.digest": "recipe.record_digest",
    "revision.content": "revision.digest",
    "revision.digest": "revision.record_digest",
    "envelope.project": "secret.project",
    "envelope.name": "secret.name",
}


class Sqlite:
    """One connection that lets others in."""

    def __init__(self, folder: Path) -> None:
        self._database = Database(str(folder / store.NAME), LAYOUT, locking=NORMAL)
        self._database.execute("PRAGMA ignore_check_constraints=ON")
        self.definitions = TaskStore(self._database)
        self.secrets = SecretStore(self._database)

    def write(self) -> Transaction:
        return self._database.write()

    def count(self, kind: str) -> int:
        (count,) = self._database.row(f"SELECT count(*) FROM {_TABLES.get(kind, kind)}") or (0,)
        return int(count)

    def alter(self, field: str, change: Callable[[Any], Any]) -> None:
        kind, _, column = _COLUMNS.get(field, field).partition(".")
        table = _TABLES.get(kind, kind)
        with self._database.write():
            found = list(self._database.rows(f"SELECT {column} FROM {table}"))
            assert found
            for (value,) in found:
                self._database.execute(
                    f"UPDATE {table} SET {column} = ? WHERE {column} = ?", (change(value), value)
                )

    def close(self) -> None:
        self._database.close()


@pytest.fixture
def connect(folder: Path) -> Iterator[Connect]:
    """Each call is one more connection to the same new state."""
    store.create(str(folder), profile="edge", layout=LAYOUT, at_ms=1)
    made: list[Sqlite] = []

    def another() -> Sqlite:
        made.append(Sqlite(folder))
        return made[-1]

    yield another
    for each in made:
        each.close()


class TestRecipesOnSqlite(RecipeContract):
    """ADR-0024 sections 1 and 6."""


class TestRevisionsOnSqlite(RevisionContract):
    """ADR-0024 sections 2 and 6."""


class TestSecretsOnSqlite(SecretContract):
    """ADR-0024 sections 3 and 6."""
