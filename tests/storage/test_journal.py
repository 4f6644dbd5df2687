"""The receipt journal: four operations, exact, idempotent, in bounded pages."""

from __future__ import annotations

import pytest

from qinglong_edge.core.commit import Commit, JournalEntry
from qinglong_edge.core.errors import Corrupt, Invalid, Refused
from qinglong_edge.storage.store import Store
from tests.storage.building import add_task, end, ended, identity, key, put, queued, running

REFERENCE = ".quarantine/01/x.json"


def page(
    store: Store, *, at_ms: int = 0, after: tuple[int, int, int] | None = None, limit: int = 64
) -> list[JournalEntry]:
    return store.journal.page(observed_at_ms=at_ms, after=after, limit=limit)[0]


def mark(store: Store, number: int, *, at_ms: int, purge_ms: int, ref: str = REFERENCE) -> None:
    store.mark_quarantined(key(number), ref, updated_at_ms=at_ms, purge_after_ms=purge_ms)


def register(store: Store, number: int, at_ms: int) -> None:
    with store.database.write():
        store.journal.register(key(number), at_ms)


def test_registering_twice_alike_is_one_row_and_differently_is_refused(store: Store) -> None:
    """ADR-0069 verification 5: exact-idempotent; another time is a conflict, nothing changes."""
    put(store, running(add_task(store), 1))
    register(store, 1, 10)
    register(store, 1, 10)
    with pytest.raises(Refused) as error:
        register(store, 1, 11)
    assert error.value.code == "journal_conflict"
    assert page(store) == [
        JournalEntry(
            key=key(1),
            attempt_id=identity(1001),
            state="pending",
            quarantine_ref=None,
            purge_after_ms=None,
            registered_at_ms=10,
            updated_at_ms=10,
            attempt_status="running",
            finished_at_ms=None,
        )
    ]


@pytest.mark.parametrize(("number", "attempt"), [(1, 2), (2, 1)])
def test_an_attempt_that_is_not_stored_cannot_be_registered(
    store: Store, number: int, attempt: int
) -> None:
    """ADR-0069 verification 5: a missing attempt, and an attempt of another run, are refused."""
    put(store, queued(add_task(store), 1))
    with pytest.raises(Refused) as error, store.database.write():
        store.journal.register(key(number, attempt), 10)
    assert error.value.code == "journal_unknown_attempt"
    assert page(store) == []


def test_a_quarantined_attempt_is_not_registered_again(store: Store) -> None:
    put(store, running(add_task(store), 1), journal=True)
    mark(store, 1, at_ms=20, purge_ms=30)
    with pytest.raises(Refused) as error:
        register(store, 1, 10)
    assert error.value.code == "journal_conflict"


def test_a_repeated_quarantine_keeps_its_first_times(store: Store) -> None:
    put(store, running(add_task(store), 1), journal=True)
    mark(store, 1, at_ms=20, purge_ms=30)
    first = page(store, at_ms=30)
    mark(store, 1, at_ms=25, purge_ms=95)
    assert page(store, at_ms=30) == first
    assert (first[0].updated_at_ms, first[0].purge_after_ms) == (20, 30)
    assert first[0].quarantine_ref == REFERENCE


def test_a_clock_that_went_back_does_not_block_a_quarantine(store: Store) -> None:
    put(store, running(add_task(store), 1, at_ms=100), at_ms=100, journal=True)
    mark(store, 1, at_ms=50, purge_ms=60)
    (entry,) = page(store, at_ms=100)
    assert (entry.registered_at_ms, entry.updated_at_ms, entry.purge_after_ms) == (100, 100, 100)


def test_another_reference_or_an_unregistered_attempt_is_a_conflict(store: Store) -> None:
    task = add_task(store)
    put(store, running(task, 1), journal=True)
    put(store, running(task, 2))
    mark(store, 1, at_ms=20, purge_ms=30)
    for number, ref in ((1, ".quarantine/01/y.json"), (2, REFERENCE), (3, REFERENCE)):
        with pytest.raises(Refused) as error:
            mark(store, number, at_ms=20, purge_ms=30, ref=ref)
        assert error.value.code == "journal_conflict"


@pytest.mark.parametrize(
    "ref",
    [
        "",
        "x.json",
        "/.quarantine/x",
        ".quarantine/../x",
        ".quarantine/\0",
        ".quarantine/a\\b",
        ".quarantine/" + "x" * 244,
    ],
)
def test_a_reference_that_could_lead_elsewhere_is_invalid(store: Store, ref: str) -> None:
    put(store, running(add_task(store), 1), journal=True)
    with pytest.raises(Invalid):
        mark(store, 1, at_ms=20, purge_ms=30, ref=ref)
    assert page(store)[0].state == "pending"


@pytest.mark.parametrize("moment", [-1, True, 2**53, 1.0])
def test_a_time_that_is_none_is_invalid(store: Store, moment: int) -> None:
    put(store, running(add_task(store), 1))
    with pytest.raises(Invalid):
        register(store, 1, moment)
    with pytest.raises(Invalid):
        mark(store, 1, at_ms=20, purge_ms=moment)


def test_resolving_tells_whether_there_was_a_row(store: Store) -> None:
    put(store, running(add_task(store), 1), journal=True)
    with store.database.write():
        assert store.journal.resolve(key(1)) is True
        assert store.journal.resolve(key(1)) is False
    assert page(store) == []


def test_pages_go_by_update_then_run_then_attempt(store: Store) -> None:
    """ADR-0069 verification 5: the order is stable; a cursor goes on behind its row."""
    task = add_task(store)
    put(store, *(running(task, number) for number in (1, 2, 3, 4)))
    for number, at_ms in ((1, 12), (2, 11), (4, 11), (3, 10)):
        register(store, number, at_ms)
    order = [3, 2, 4, 1]
    assert [each.key.run_number for each in page(store)] == order
    seen, after, more = [], None, True
    while more:
        entries, more = store.journal.page(observed_at_ms=0, after=after, limit=1)
        seen += [each.key.run_number for each in entries]
        after = (entries[-1].updated_at_ms, entries[-1].key.run_number, entries[-1].key.attempt)
    assert seen == order
    assert store.journal.page(observed_at_ms=0, after=after, limit=1) == ([], False)
    assert store.journal.page(observed_at_ms=0, after=None, limit=4)[1] is False
    assert store.journal.page(observed_at_ms=0, after=None, limit=3)[1] is True


def test_a_quarantined_row_comes_up_when_its_time_has_come(store: Store) -> None:
    """ADR-0069 verification 5: due quarantines, by their purge time and not before."""
    task = add_task(store)
    put(store, ended(task, 1, "failed"), journal=True)
    put(store, running(task, 2), at_ms=11, journal=True)
    mark(store, 1, at_ms=20, purge_ms=30)
    assert store.journal.page(observed_at_ms=29, after=None, limit=1)[1] is False
    assert [each.key.run_number for each in page(store, at_ms=29)] == [2]
    entries, more = store.journal.page(observed_at_ms=30, after=None, limit=1)
    assert ([each.key.run_number for each in entries], more) == ([2], True)
    (due,) = page(store, at_ms=30, after=(11, 2, 1))
    assert (due.key, due.state, due.attempt_status) == (key(1), "quarantined", "failed")


@pytest.mark.parametrize("limit", [0, 65, -1])
def test_a_page_beyond_its_bounds_is_invalid(store: Store, limit: int) -> None:
    with pytest.raises(Invalid) as error:
        page(store, limit=limit)
    assert error.value.code == "page_invalid"


@pytest.mark.parametrize("limit", [1, 64])
def test_a_page_holds_what_its_bound_says(store: Store, limit: int) -> None:
    task = add_task(store)
    put(store, *(running(task, number) for number in range(1, 67)), journal=True)
    entries, more = store.journal.page(observed_at_ms=0, after=None, limit=limit)
    assert (len(entries), more) == (limit, True)


def test_only_living_attempts_with_a_row_count_as_launched(store: Store) -> None:
    task = add_task(store)
    put(store, running(task, 1), running(task, 2), ended(task, 3), journal=True)
    put(store, queued(task, 4))
    assert store.runs.launched(after=key(0, 0), limit=9) == [key(1), key(2)]
    assert store.runs.launched(after=key(1), limit=9) == [key(2)]
    store.commit(Commit(at_ms=20, actor="test", changes=(end(store, 2),), resolve=(key(2),)))
    assert store.runs.launched(after=key(0, 0), limit=9) == [key(1)]


def test_a_row_whose_attempt_has_no_id_is_corrupt(store: Store) -> None:
    put(store, running(add_task(store), 1), journal=True)
    with store.database.write():
        store.database.execute("UPDATE attempt SET id = zeroblob(16)")
    with pytest.raises(Corrupt) as error:
        page(store)
    assert error.value.code == "row_corrupt"
