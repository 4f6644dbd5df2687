"""Definitions: append-only revisions, recipes by content address, triggers that survive an edit."""

from __future__ import annotations

import pytest

from qinglong_edge.core.commit import Commit, CursorMove
from qinglong_edge.core.errors import Corrupt, Refused
from qinglong_edge.core.task import Trigger
from qinglong_edge.storage.connection import IDEMPOTENT, INSERTED
from qinglong_edge.storage.store import Store
from tests.storage.building import (
    DEFINITION,
    add_task,
    append,
    ended,
    environment,
    put,
    queued,
)

HOURLY = Trigger(kind="cron", expression="0 * * * *", zone="UTC")
DAILY = Trigger(kind="cron", expression="0 3 * * *", zone="CST-8")
MINUTES = Trigger(kind="every", expression="5m", zone="UTC")
BOOT = Trigger(kind="boot", expression="", zone="UTC")


def move(store: Store, number: int, to_ms: int, *, expected_ms: int | None = None) -> None:
    cursor = CursorMove(trigger_number=number, expected_ms=expected_ms, next_at_ms=to_ms)
    store.commit(Commit(at_ms=1, actor="test", cursors=(cursor,)))


def test_a_task_is_found_by_its_name_and_by_its_number(store: Store) -> None:
    task = add_task(store)
    assert store.tasks.find("one") == store.tasks.get(task.number) == task
    assert store.tasks.find("other") is None
    assert store.tasks.get(99) is None
    add_task(store, "and")
    assert [each.name for each in store.tasks.all()] == ["and", "one"]
    assert store.tasks.count() == 2


def test_an_edit_appends_a_revision_and_leaves_the_old_one(store: Store) -> None:
    """ADR-0024 section 2: a revision is immutable."""
    task = add_task(store)
    first = store.tasks.revision(task.number, 1)
    with store.database.write():
        edited = append(store, task, definition=DEFINITION.replace(nice=5))
    assert edited.revision == 2
    assert store.tasks.get(task.number) == edited
    assert store.tasks.revision(task.number, 1) == first
    assert store.tasks.revision(task.number, 2).definition.nice == 5
    with pytest.raises(Refused) as error:
        store.tasks.revision(task.number, 3)
    assert error.value.code == "revision_unknown"


def test_the_same_content_again_appends_nothing(store: Store) -> None:
    task = add_task(store, triggers=(HOURLY, DAILY))
    for triggers in ((HOURLY, DAILY), (DAILY, HOURLY)):
        with store.database.write():
            assert append(store, task, triggers) == task
    assert store.database.row("SELECT count(*) FROM revision") == (1,)


def test_an_edit_back_and_forth_is_told_apart_from_no_edit(store: Store) -> None:
    task = add_task(store)
    for number, nice in ((2, 1), (3, 0), (3, 0)):
        with store.database.write():
            task = append(store, task, definition=DEFINITION.replace(nice=nice))
        assert task.revision == number


def test_a_task_edited_with_the_triggers_it_has_is_not_changed(store: Store) -> None:
    task = add_task(store, triggers=(DAILY, MINUTES))
    with store.database.write():
        task = append(store, task, (HOURLY, MINUTES))
        assert append(store, task, tuple(store.tasks.triggers(task.number))) == task
    assert task.revision == 2


def test_a_recipe_is_stored_once_under_its_content_address(store: Store) -> None:
    recipe = environment(A="1", B="2")
    with store.database.write():
        number, outcome = store.tasks.insert_recipe(recipe, 1)
        assert outcome == INSERTED
        assert store.tasks.insert_recipe(environment(B="2", A="1"), 9) == (number, IDEMPOTENT)
        other, outcome = store.tasks.insert_recipe(environment(A="1"), 9)
    assert (outcome, other != number) == (INSERTED, True)
    assert store.tasks.recipe(number) == recipe
    with pytest.raises(Refused):
        store.tasks.recipe(99)


@pytest.mark.parametrize("body", ["", "[]", "{}", '[{"name":"A","kind":"public","value":"2"}]'])
def test_a_recipe_that_is_not_the_text_of_its_address_fails_closed(store: Store, body: str) -> None:
    recipe = environment(A="1")
    with store.database.write():
        number, _outcome = store.tasks.insert_recipe(recipe, 1)
        store.database.execute("UPDATE recipe SET body = ? WHERE number = ?", (body, number))
    with pytest.raises(Corrupt):
        store.tasks.recipe(number)
    with pytest.raises(Corrupt), store.database.write():
        store.tasks.insert_recipe(recipe, 2)


def test_a_damaged_definition_fails_closed(store: Store) -> None:
    task = add_task(store)
    with store.database.write():
        store.database.execute("UPDATE revision SET definition = '{}'")
    with pytest.raises(Corrupt) as error:
        store.tasks.revision(task.number, 1)
    assert error.value.code == "definition_corrupt"


def test_a_trigger_keeps_its_row_and_its_cursor_over_an_edit(store: Store) -> None:
    """An edit loses no occurrence of a trigger that means the same before and after."""
    task = add_task(store, triggers=(HOURLY, DAILY))
    hourly, daily = store.tasks.triggers(task.number)
    move(store, hourly.number, 1000)
    move(store, daily.number, 2000)
    with store.database.write():
        append(store, task, (MINUTES, HOURLY))
    kept, new = store.tasks.task_cursors(task.number)
    assert (kept.trigger_number, kept.expression, kept.next_at_ms) == (
        hourly.number,
        HOURLY.expression,
        1000,
    )
    assert (new.kind, new.next_at_ms) == ("every", None)
    assert store.tasks.cursor(daily.number) is None
    assert store.database.row("SELECT count(*) FROM cursor") == (2,)


@pytest.mark.parametrize(
    "other",
    [HOURLY.replace(zone="CST-8"), HOURLY.replace(misfire="fire_once"), MINUTES],
)
def test_a_trigger_that_means_something_else_starts_anew(store: Store, other: Trigger) -> None:
    task = add_task(store, triggers=(HOURLY,))
    (before,) = store.tasks.triggers(task.number)
    move(store, before.number, 1000)
    with store.database.write():
        append(store, task, (other,))
    (after,) = store.tasks.task_cursors(task.number)
    assert after.next_at_ms is None


def test_two_equal_triggers_are_two_rows(store: Store) -> None:
    task = add_task(store, triggers=(HOURLY, HOURLY))
    first, _second = store.tasks.triggers(task.number)
    with store.database.write():
        append(store, task, (HOURLY,))
    assert len(store.tasks.triggers(task.number)) == 1
    with store.database.write():
        append(store, store.tasks.get(task.number) or task, (HOURLY, HOURLY))
    assert store.tasks.triggers(task.number)[0] == first


def test_a_new_boot_trigger_waits_for_the_next_boot(store: Store) -> None:
    task = add_task(store, triggers=(BOOT, MINUTES), boot_id="boot-7")
    assert [cursor.boot_id for cursor in store.tasks.task_cursors(task.number)] == ["boot-7", None]
    with store.database.write():
        append(store, task, (BOOT,), boot_id="boot-8")
    (kept,) = store.tasks.task_cursors(task.number)
    assert kept.boot_id == "boot-7"


def test_a_cursor_moves_only_from_where_it_was_seen(store: Store) -> None:
    task = add_task(store, triggers=(HOURLY,))
    number = store.tasks.triggers(task.number)[0].number
    move(store, number, 1000)
    for expected in (None, 999):
        with pytest.raises(Refused) as error:
            move(store, number, 2000, expected_ms=expected)
        assert error.value.code == "stale"
    move(store, number, 2000, expected_ms=1000)
    with pytest.raises(Refused):
        move(store, 99, 2000)
    cursor = store.tasks.cursor(number)
    assert cursor is not None
    assert cursor.next_at_ms == 2000


def test_a_cursor_remembers_its_last_occurrence_and_adds_up_what_was_skipped(store: Store) -> None:
    task = add_task(store, triggers=(HOURLY,))
    number = store.tasks.triggers(task.number)[0].number
    steps = [
        CursorMove(
            trigger_number=number, expected_ms=None, next_at_ms=20, scheduled_ms=10, skipped=3
        ),
        CursorMove(trigger_number=number, expected_ms=20, next_at_ms=30, skipped=1),
        CursorMove(trigger_number=number, expected_ms=30, next_at_ms=None, parked="zone_unknown"),
    ]
    store.commit(Commit(at_ms=1, actor="test", cursors=tuple(steps)))
    (cursor,) = store.tasks.cursors()
    assert (cursor.last_scheduled_ms, cursor.skipped, cursor.parked) == (10, 4, "zone_unknown")
    assert (cursor.next_at_ms, cursor.enabled) == (None, True)


def test_a_task_keeps_its_number_under_another_name(store: Store) -> None:
    task = add_task(store)
    with store.database.write():
        store.tasks.rename(task, "new")
    assert store.tasks.find("one") is None
    assert store.tasks.find("new") == task.replace(name="new")


def test_a_name_is_not_given_to_two_tasks(store: Store) -> None:
    add_task(store)
    other = add_task(store, "other")
    with pytest.raises(Corrupt) as error, store.database.write():
        store.tasks.rename(other, "one")
    assert error.value.code == "constraint"
    assert store.tasks.find("other") == other


def test_a_disabled_task_keeps_its_cursors_and_says_so(store: Store) -> None:
    task = add_task(store, triggers=(HOURLY,))
    with store.database.write():
        store.tasks.set_enabled(task, enabled=False)
    assert store.tasks.find("one") == task.replace(enabled=False)
    assert [cursor.enabled for cursor in store.tasks.cursors()] == [False]


def test_a_removed_task_leaves_its_history_and_its_name(store: Store) -> None:
    task = add_task(store, triggers=(HOURLY,))
    put(store, ended(task, 1), queued(task, 2))
    with store.database.write():
        store.tasks.remove(task, 77)
    assert store.tasks.find("one") is None
    assert store.tasks.get(task.number) == task.replace(removed_at_ms=77, enabled=False)
    assert (store.tasks.count(), list(store.tasks.cursors())) == (0, [])
    assert store.tasks.revision(task.number, 1).definition == DEFINITION
    assert store.runs.get(1) is not None
    again = add_task(store)
    assert again.number != task.number
