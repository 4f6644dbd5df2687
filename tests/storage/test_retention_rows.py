"""The rows behind retention: which logs may go, what stays known of them (ADR-0024 section 5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from qinglong_edge.core.commit import AttemptKey, Commit
from qinglong_edge.core.errors import Corrupt, Refused
from qinglong_edge.core.fact import log_artifact_id
from qinglong_edge.core.run import LOST, RETRY_WAIT, SUCCEEDED, Story
from qinglong_edge.core.tombstone import Tombstone
from qinglong_edge.storage.store import Store
from tests.storage.building import add_task, end, ended, identity, key, put, queued, running
from tests.storage.failing import every_statement_fails

FIRST = key(0)


def logged(story: Story) -> Story:
    """The same run, with a log."""
    assert story.attempt is not None
    story.attempt = story.attempt.replace(log_quota_bytes=65_536)
    return story


def retirable(
    store: Store, *, after: AttemptKey = FIRST, before_ms: int | None = None, limit: int = 99
) -> list[int]:
    found = store.runs.retirable(after, finished_before_ms=before_ms, limit=limit)
    return [attempt.run_number for attempt in found]


def tombstone(number: int, **changes: object) -> Tombstone:
    given = {
        "key": key(number),
        "run_id": identity(number),
        "attempt_id": identity(1000 + number),
        "log_artifact_id": log_artifact_id(identity(number), identity(1000 + number)),
        "finished_at_ms": 20,
        "eligible_at_ms": 30,
        "retired_at_ms": 40,
        "disposition": "deleted",
        "bytes": 5,
        "truncated": True,
        "maximum_bytes": 65_536,
        "observed_at_ms": 15,
        **changes,
    }
    return Tombstone(**given)  # type: ignore[arg-type]


def test_only_settled_logs_without_receipt_or_tombstone_may_go(store: Store) -> None:
    task = add_task(store)
    put(store, logged(queued(task, 1)), logged(running(task, 2)), ended(task, 3))
    put(store, logged(ended(task, 4)), logged(ended(task, 5, LOST)), logged(ended(task, 6)))
    put(store, logged(ended(task, 7)), journal=True)
    store.bury([tombstone(6)])
    assert retirable(store) == [4, 5]
    with store.database.write():
        store.journal.resolve(key(7))
    assert retirable(store) == [4, 5, 7]
    assert retirable(store, after=key(4)) == [5, 7]
    assert retirable(store, limit=1) == [4]


def test_an_attempt_of_a_run_that_goes_on_keeps_its_log(store: Store) -> None:
    """A lost attempt whose run will be tried again is not settled."""
    story = logged(ended(add_task(store), 1, LOST))
    put(store, story)
    assert retirable(store) == [1]
    again = Story(story.run, story.attempt, stored=True)
    again.move_run(RETRY_WAIT, finished_at_ms=None, retry_at_ms=50)
    store.commit(Commit(at_ms=30, actor="test", changes=(again.change(),)))
    assert retirable(store) == []


def test_age_counts_from_the_end_of_run_and_attempt(store: Store) -> None:
    task = add_task(store)
    put(store, *(logged(ended(task, n, at_ms=n, finished_ms=100 - n)) for n in (1, 2, 3)))
    assert retirable(store, before_ms=97) == []
    assert retirable(store, before_ms=98) == [3]
    assert retirable(store, before_ms=99) == [2, 3]
    with store.database.write():
        store.database.execute("UPDATE run SET finished_at_ms = 500 WHERE number = 2")
    assert retirable(store, before_ms=200) == [1, 3]
    assert retirable(store) == [1, 2, 3]


def test_reading_stops_at_the_first_attempt_behind_the_time(store: Store) -> None:
    task = add_task(store)
    put(store, *(logged(ended(task, n, at_ms=n, finished_ms=n)) for n in range(1, 150)))
    real, seen = store.database.rows, 0

    def counted(statement: str, values: Sequence[object] = ()) -> Iterator[tuple[object, ...]]:
        nonlocal seen
        for row in real(statement, values):
            seen += 1
            yield row

    store.database.rows = counted  # type: ignore[method-assign]
    assert retirable(store, before_ms=3) == [1, 2]
    assert seen == 3


def test_candidates_are_found_along_the_keys(store: Store) -> None:
    """No index is kept for it on the way of a run; nothing is sorted."""
    statements: list[str] = []
    real = store.database.rows

    def noted(statement: str, values: Sequence[object] = ()) -> Iterator[tuple[object, ...]]:
        statements.append(statement)
        return real(statement, values)

    store.database.rows = noted  # type: ignore[method-assign]
    retirable(store)
    plan = [str(row[3]) for row in real(f"EXPLAIN QUERY PLAN {statements[0]}", (1,))]
    assert plan[0].startswith("SEARCH attempt USING INTEGER PRIMARY KEY")
    assert not any("TEMP B-TREE" in step or step.startswith("SCAN run") for step in plan)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"truncated": False},
        {"truncated": None, "maximum_bytes": None, "observed_at_ms": None},
        {"disposition": "already_absent", "bytes": 0},
    ],
)
def test_a_tombstone_is_read_as_it_was_written(store: Store, changes: dict[str, object]) -> None:
    put(store, logged(ended(add_task(store), 1)))
    record = tombstone(1, **changes)
    assert store.tombstones.get(key(1)) is None
    store.bury([record])
    assert store.tombstones.get(key(1)) == record


def test_the_first_evidence_stays(store: Store) -> None:
    put(store, logged(ended(add_task(store), 1)))
    absent = tombstone(1, disposition="already_absent", bytes=0, retired_at_ms=99)
    outcomes = []
    for record in (tombstone(1), tombstone(1), absent):
        with store.database.write():
            outcomes.append(store.tombstones.record(record))
    assert outcomes == ["inserted", "idempotent", "idempotent"]
    assert store.tombstones.get(key(1)) == tombstone(1)


@pytest.mark.parametrize(
    "changes",
    [
        {"key": key(1, 2)},
        {"key": key(9)},
        {"run_id": identity(2)},
        {"attempt_id": identity(1002)},
        {"finished_at_ms": 21},
        {"key": key(2), "run_id": identity(2), "attempt_id": identity(1002)},
        {"key": key(3), "run_id": identity(3), "attempt_id": identity(1003)},
    ],
)
def test_a_tombstone_of_anything_but_a_settled_attempt_is_refused(
    store: Store, changes: dict[str, object]
) -> None:
    task = add_task(store)
    put(store, logged(ended(task, 1)), logged(running(task, 2)))
    put(store, logged(ended(task, 3)), journal=True)
    for records in ([tombstone(1, **changes)], [tombstone(1), tombstone(1, **changes)]):
        with pytest.raises(Refused) as error:
            store.bury(records)
        assert error.value.code == "tombstone_refused"
    assert store.database.row("SELECT count(*) FROM log_tombstone") == (0,)


def test_a_tombstone_of_another_log_is_not_kept(store: Store) -> None:
    put(store, logged(ended(add_task(store), 1)))
    other = tombstone(1, log_artifact_id=log_artifact_id("other", "one"))
    with pytest.raises(Corrupt):
        store.bury([other])
    assert store.tombstones.get(key(1)) is None
    store.bury([tombstone(1)])
    with pytest.raises(Refused):
        store.bury([other])


@pytest.mark.parametrize(
    "change",
    [
        "log_tombstone SET bytes = 6",
        "log_tombstone SET eligible_at_ms = 31",
        "log_tombstone SET retired_at_ms = 41",
        "log_tombstone SET truncated = 0",
        "log_tombstone SET truncated = NULL",
        "log_tombstone SET maximum_bytes = 65537",
        "log_tombstone SET observed_at_ms = 16",
        "log_tombstone SET disposition = 'already_absent', bytes = 0",
        "log_tombstone SET digest = zeroblob(32)",
        "attempt SET finished_at_ms = 21",
        "attempt SET id = zeroblob(16)",
        "run SET id = zeroblob(16)",
    ],
)
def test_a_damaged_tombstone_is_never_believed(store: Store, change: str) -> None:
    put(store, logged(ended(add_task(store), 1)))
    store.bury([tombstone(1)])
    with store.database.write():
        store.database.execute(f"UPDATE {change}")
    with pytest.raises(Corrupt):
        store.tombstones.get(key(1))


def test_a_tombstone_goes_with_its_run(store: Store) -> None:
    task = add_task(store)
    put(store, logged(ended(task, 1)), logged(ended(task, 2)))
    store.bury([tombstone(1), tombstone(2)])
    store.prune([1])
    assert store.tombstones.get(key(1)) is None
    assert store.tombstones.get(key(2)) is not None
    store.database.check()


def test_burying_that_fails_anywhere_buries_nothing(folder: Path, store: Store) -> None:
    """The files are gone by then: the next sweep finds them absent and says so."""
    task = add_task(store)
    put(store, logged(ended(task, 1)), logged(running(task, 2)))
    store.commit(Commit(at_ms=20, actor="test", changes=(end(store, 2, SUCCEEDED),)))
    deed = lambda: store.bury([tombstone(1), tombstone(2)])  # noqa: E731
    assert every_statement_fails(folder, store, deed) == 6
    assert retirable(store) == []


def test_reading_begins_where_the_first_log_is_left(store: Store) -> None:
    first = store.runs.oldest_log(key(0))
    found = store.runs.retirable(first, finished_before_ms=None, limit=9)
    assert found == store.runs.retirable(key(0), finished_before_ms=None, limit=9)
    store.bury([tombstone(each.run_number) for each in found])
    behind = store.runs.oldest_log(first)
    assert store.runs.oldest_log(behind) == behind
    assert store.runs.retirable(behind, finished_before_ms=None, limit=9) == []
