"""What nothing cites goes, page by page; what anything cites stays (ADR-0024 section 2)."""

from __future__ import annotations

from pathlib import Path

import pytest

from qinglong_edge.core.audit import Audit
from qinglong_edge.core.recipe import Recipe
from qinglong_edge.core.task import Definition, Task, Trigger
from qinglong_edge.storage.store import Store
from tests.storage.building import add_task, append, ended, environment, put, queued
from tests.storage.failing import every_statement_fails

LATER_MS = 10**9
HOURLY = Trigger(kind="cron", expression="0 * * * *", zone="UTC")


def sweep(store: Store, *, before_ms: int = LATER_MS, limit: int = 99) -> int:
    return store.sweep(before_ms=before_ms, limit=limit, keep_audit=100)


def edit(store: Store, task: Task, nice: int, recipe: Recipe | None = None) -> Task:
    with store.database.write():
        definition = Definition(argv=("/bin/true",), nice=nice)
        return append(store, task, definition=definition, recipe=recipe)


def remove(store: Store, task: Task, at_ms: int = 1) -> None:
    with store.database.write():
        store.tasks.remove(task, at_ms)


def revisions(store: Store) -> list[tuple[int, int]]:
    return list(store.database.rows("SELECT task_number, revision FROM revision"))


def recipes(store: Store) -> list[int]:
    return [number for (number,) in store.database.rows("SELECT number FROM recipe")]


def tasks(store: Store) -> list[int]:
    return [number for (number,) in store.database.rows("SELECT number FROM task")]


def test_nothing_that_is_cited_goes_and_finding_nothing_writes_nothing(store: Store) -> None:
    task = add_task(store, triggers=(HOURLY,))
    put(store, ended(task, 1))
    edit(store, task, 1, environment(B="2"))
    commits = store.database.commits
    assert sweep(store) == 0
    assert store.database.commits == commits
    assert (revisions(store), recipes(store)) == ([(1, 1), (1, 2)], [1, 2])


def test_an_old_revision_goes_with_its_last_run_and_its_recipe_with_it(store: Store) -> None:
    task = add_task(store)
    put(store, ended(task, 1), ended(task, 2))
    task = edit(store, task, 1, environment(B="2"))
    put(store, queued(task, 3))
    store.prune([1])
    assert sweep(store) == 0
    store.prune([2])
    with store.database.write():  # the run of the fixture pins recipe 1, whatever its revision says
        store.database.execute("UPDATE run SET recipe_number = 2")
    assert sweep(store) == 2
    assert (revisions(store), recipes(store)) == ([(1, 2)], [2])
    assert store.tasks.revision(1, 2).definition.nice == 1
    assert edit(store, task, 2).revision == 3


def test_a_recipe_that_only_a_run_pins_stays(store: Store) -> None:
    """`start --env` makes a recipe that no revision cites."""
    task = add_task(store)
    with store.database.write():
        number, _outcome = store.tasks.insert_recipe(environment(X="1"), 1)
        other, _outcome = store.tasks.insert_recipe(environment(X="2"), 1)
    story = ended(task, 1)
    story.run = story.run.replace(recipe_number=number)
    put(store, story)
    assert sweep(store) == 1
    assert recipes(store) == [1, number]
    assert other not in recipes(store)


def test_what_is_younger_than_the_window_stays(store: Store) -> None:
    """A state that is restored from a backup of the window still finds all it names."""
    with store.database.write():
        store.tasks.insert_recipe(environment(X="1"), 50)
    task = add_task(store)
    remove(store, edit(store, task, 1), at_ms=50)
    add_task(store, "two")
    assert sweep(store, before_ms=50) == 0
    assert sweep(store, before_ms=51) == 4
    assert (revisions(store), tasks(store)) == ([(2, 1)], [2])


def test_an_orphan_goes_page_by_page(store: Store) -> None:
    with store.database.write():
        for number in range(5):
            store.tasks.insert_recipe(environment(X=str(number)), 1)
    assert [sweep(store, limit=2) for _time in range(4)] == [2, 2, 1, 0]


def test_a_removed_task_goes_after_its_last_run_and_not_before(store: Store) -> None:
    task = add_task(store, triggers=(HOURLY,))
    put(store, ended(task, 1))
    other = add_task(store, "two")
    put(store, queued(other, 2))
    assert sweep(store) == 0
    remove(store, task)
    assert sweep(store) == 0
    store.prune([1])
    assert sweep(store) == 2
    assert (tasks(store), revisions(store)) == ([2], [(2, 1)])
    assert store.tasks.get(task.number) is None


def test_the_newest_task_stays_so_that_its_number_is_not_given_again(store: Store) -> None:
    task = add_task(store)
    remove(store, task)
    assert sweep(store) == 2
    assert (tasks(store), revisions(store), recipes(store)) == ([task.number], [], [])
    assert sweep(store) == 0
    assert add_task(store).number == task.number + 1
    assert sweep(store) == 1
    assert tasks(store) == [task.number + 1]


def test_the_newest_revision_of_a_living_task_stays_whatever_runs_say(store: Store) -> None:
    task = add_task(store)
    for nice in range(1, 6):
        task = edit(store, task, nice)
    assert sweep(store) == 5
    assert revisions(store) == [(1, 6)]
    assert store.tasks.find("one") == task


def test_old_lines_of_the_audit_go_in_the_same_tick(store: Store) -> None:
    entry = Audit(at_ms=1, uid=0, front_end="cli", mutation_id="m", action="a", target="t")
    with store.database.write():
        for _line in range(103):
            store.audit.record(entry)
    assert (sweep(store), sweep(store)) == (3, 0)


@pytest.mark.parametrize("cited", [True, False])
def test_a_sweep_that_fails_anywhere_takes_nothing(folder: Path, store: Store, cited: bool) -> None:
    remove(store, edit(store, add_task(store), 1, environment(B="2")))
    add_task(store, "two", recipe=environment(B="2") if cited else environment(C="3"))
    assert every_statement_fails(folder, store, lambda: sweep(store)) >= 6
    assert (tasks(store), revisions(store)) == ([2], [(2, 1)])
    store.database.check()
