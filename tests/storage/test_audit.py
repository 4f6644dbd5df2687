"""The audit: a line for each change in its own transaction, in pages, bounded."""

from __future__ import annotations

import pytest

from qinglong_edge.core.audit import Audit, is_target
from qinglong_edge.core.commit import Commit, CursorMove
from qinglong_edge.core.errors import Corrupt, EdgeError, Invalid, Refused
from qinglong_edge.core.limits import PAGE_MAX
from qinglong_edge.storage.store import Store


def line(number: int = 0, **changes: object) -> Audit:
    given = {
        "at_ms": number,
        "uid": 1000,
        "front_end": "cli",
        "mutation_id": f"m{number}",
        "action": "task.add",
        "target": "one",
        **changes,
    }
    return Audit(**given)  # type: ignore[arg-type]


def record(store: Store, *entries: Audit) -> None:
    with store.database.write():
        for entry in entries:
            store.audit.record(entry)


def numbers(
    store: Store, after: int | None = None, limit: int = 99
) -> tuple[list[int], int | None]:
    entries, following = store.audit.page(after, limit)
    return [entry.number for entry in entries], following


def test_a_line_is_read_as_it_was_written(store: Store) -> None:
    refused = line(2, outcome="refused", code="task_exists", version=3)
    record(store, line(1), refused)
    (newest, oldest), following = store.audit.page(None, 9)
    assert (newest, oldest) == (refused.replace(number=2), line(1).replace(number=1))
    assert following is None
    assert newest.document() == {
        "number": 2,
        "at_ms": 2,
        "uid": 1000,
        "front_end": "cli",
        "mutation_id": "m2",
        "action": "task.add",
        "target": "one",
        "version": 3,
        "outcome": "refused",
        "code": "task_exists",
    }


def test_lines_are_listed_newest_first_behind_a_cursor(store: Store) -> None:
    record(store, *map(line, range(5)))
    assert numbers(store) == ([5, 4, 3, 2, 1], None)
    assert numbers(store, limit=2) == ([5, 4], 4)
    record(store, line(9))
    assert numbers(store, after=4, limit=2) == ([3, 2], 2)
    assert numbers(store, after=2, limit=1) == ([1], None)
    assert numbers(store, after=1) == ([], None)
    assert numbers(store, limit=0) == ([6], 6)


def test_a_page_of_the_audit_is_bounded(store: Store) -> None:
    record(store, *map(line, range(PAGE_MAX + 1)))
    found, following = numbers(store, limit=10**6)
    assert (len(found), following) == (PAGE_MAX, 2)


def test_the_oldest_lines_go_and_no_number_is_given_again(store: Store) -> None:
    assert store.sweep(before_ms=0, limit=8, keep_audit=0) == 0
    record(store, *map(line, range(5)))
    assert store.sweep(before_ms=0, limit=8, keep_audit=5) == 0
    assert store.sweep(before_ms=0, limit=8, keep_audit=2) == 3
    assert numbers(store) == ([5, 4], None)
    with store.database.write():
        assert store.audit.prune(0) == 2
    record(store, line())
    assert numbers(store) == ([6], None)


def test_pruning_goes_page_by_page(store: Store) -> None:
    record(store, *map(line, range(PAGE_MAX + 3)))
    with store.database.write():
        assert store.audit.prune(1) == PAGE_MAX
    with store.database.write():
        assert store.audit.prune(1) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"outcome": "maybe"},
        {"target": "x" * 513},
        {"target": "é" * 257},
        {"action": "x" * 513},
        {"code": "x" * 513},
        {"target": "\udcff"},
    ],
)
def test_a_line_out_of_bounds_is_invalid(changes: dict[str, object]) -> None:
    with pytest.raises(Invalid) as error:
        line(**changes)  # type: ignore[arg-type]
    assert error.value.code == "audit_invalid"
    assert is_target("é" * 256)


def test_a_damaged_line_is_corrupt(store: Store) -> None:
    record(store, line())
    with store.database.write():
        store.database.execute("UPDATE audit SET target = ?", ("x" * 600,))
    with pytest.raises(Corrupt) as error:
        store.audit.page(None, 9)
    assert error.value.code == "row_corrupt"
    with pytest.raises(EdgeError), store.database.write():
        store.database.execute("UPDATE audit SET outcome = 'maybe'")


def test_a_line_rides_on_the_commit_of_its_change_or_is_not_there(store: Store) -> None:
    commit = Commit(at_ms=1, actor="a", settings=(("x", "1"),), audit=(line(),))
    store.commit(commit)
    assert numbers(store) == ([1], None)
    stale = CursorMove(trigger_number=9, expected_ms=None, next_at_ms=None)
    with pytest.raises(Refused):
        store.commit(commit.replace(cursors=(stale,)))
    assert numbers(store) == ([1], None)
