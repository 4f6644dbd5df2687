"""A state of an older schema is brought to the newest, whole or not at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from qinglong_edge.core.errors import EdgeError, Unavailable
from qinglong_edge.core.task import digest, record_digest
from qinglong_edge.storage import migrations, schema, store
from qinglong_edge.storage.connection import Database
from tests.storage.building import (
    DEFINITION,
    LAYOUT,
    append,
    environment,
    opened,
    program_knows,
    state,
)
from tests.storage.test_opening import change, opened_at


def tables(database: Database) -> list[object]:
    return list(database.rows("SELECT sql FROM sqlite_schema ORDER BY name"))


def downgraded(folder: Path) -> dict[str, object]:
    """Make a state of the first schema from its text, with a task and its history."""
    store_path = folder / store.NAME
    with pytest.MonkeyPatch.context() as patch:
        program_knows(patch, *schema.MIGRATIONS[:1])
        store.create(str(folder), profile="edge", layout=LAYOUT, at_ms=1)
    recipe, text = environment(PATH="/bin", B="é"), DEFINITION.encode()
    content = digest(DEFINITION, (), recipe.context_ref)
    old = Database(str(store_path), LAYOUT)
    for statement, values in (
        ("INSERT INTO task VALUES (1, 'one', 2, 1, 1, NULL)", ()),
        (
            "INSERT INTO recipe VALUES (1, ?, ?, 1)",
            (recipe.context_ref, recipe.canonical().decode()),
        ),
        ("INSERT INTO revision VALUES (1, 1, 1, ?, ?, 1)", (text, content)),
        ("INSERT INTO revision VALUES (1, 2, 1, ?, ?, 1)", (text, content)),
    ):
        with old.write():
            old.execute(statement, values)
    found: dict[str, object] = {
        each: list(old.rows(f"SELECT * FROM {each}")) for each in ("task", "recipe", "revision")
    }
    old.close()
    return found


def test_a_state_of_the_first_schema_is_brought_to_this_one(folder: Path) -> None:
    downgraded(folder)
    with opened_at(folder) as again:
        assert sorted(migrations.applied(again.database)) == [1, 2]
        assert again.tasks.recipe(1) == environment(PATH="/bin", B="é")
        assert again.tasks.revision(1, 1).definition == DEFINITION
        task = again.tasks.find("one")
        assert task is not None
        with again.database.write():
            assert append(again, task, recipe=environment(PATH="/bin", B="é")) == task
        assert again.secrets.listing() == []
        again.database.check()
    (folder / "new").mkdir()
    with state(folder / "new") as new:
        made = tables(new.database)
    with opened_at(folder) as again:
        assert tables(again.database) == made


def test_damage_of_the_first_schema_is_still_found_after_it(folder: Path) -> None:
    """What was damaged before gets digests like anything else, and is not believed for them."""
    downgraded(folder)
    change(
        folder,
        "UPDATE recipe SET body = body || ' '",
        "UPDATE revision SET definition = '{}' WHERE revision = 1",
        "UPDATE revision SET definition = CAST(x'ff00' AS TEXT) WHERE revision = 2",
    )
    with opened_at(folder) as again:
        for deed in (
            lambda: again.tasks.recipe(1),
            lambda: again.tasks.revision(1, 1),
            lambda: again.tasks.revision(1, 2),
        ):
            with pytest.raises(EdgeError):
                deed()


def test_a_migration_that_fails_anywhere_leaves_the_first_schema(folder: Path) -> None:
    found = downgraded(folder)
    real, number, reached, kept = Database.execute, 0, 0, 0

    def execute(self: Database, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        nonlocal reached
        reached += statement != "ROLLBACK"
        if reached != number:
            return real(self, statement, values)
        reached += 1
        raise Unavailable("no_space", "injected")

    done = False
    while not done:
        number, reached = number + 1, 0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Database, "execute", execute)
            try:
                opened(folder).close()
                done = True
            except Unavailable:
                pass
        old = Database(str(folder / store.NAME), LAYOUT)
        if len(migrations.applied(old)) == 1:
            kept += 1
            assert {each: list(old.rows(f"SELECT * FROM {each}")) for each in found} == found
        old.close()
    assert kept > len(schema.MIGRATIONS[1][2].split(";\n"))


def test_the_digest_of_a_revision_is_fixed() -> None:
    """Rows of a state that exists were digested so."""
    context_ref = "localctx:sha256:" + "0" * 64
    told = record_digest(1, 2, context_ref=context_ref, content="1" * 64, definition="{}")
    assert told == "74f9637f51b5bb3073abd6a1c26c8a0ef058799d81f84af4bc0feb0fd6639c9e"
