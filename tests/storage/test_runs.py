"""Runs, attempts, events: compare-and-set, the table in the schema, history in pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from qinglong_edge.core import handle as handles
from qinglong_edge.core.commit import Commit
from qinglong_edge.core.errors import Corrupt, EdgeError, Refused
from qinglong_edge.core.handle import Handle
from qinglong_edge.core.limits import EVENT_PAYLOAD_BYTES_MAX, PAGE_MAX
from qinglong_edge.core.run import (
    ATTEMPT_NEXT,
    CANCEL_REASONS,
    CANCELLED,
    ENDED,
    EVIDENCE,
    FAILED,
    LOST,
    RUN_NEXT,
    RUNNING,
    SUCCEEDED,
    TRIGGER_KINDS,
    Story,
)
from qinglong_edge.storage.store import Store
from tests.storage.building import (
    HANDLE,
    TOKEN_HASH,
    add_task,
    end,
    ended,
    fields,
    identity,
    key,
    put,
    queued,
    running,
    state,
)

NO_STATUS = ("", "created", "waiting_approval", "RUNNING", "done")
ATTEMPT_STATUSES = tuple(ATTEMPT_NEXT)


def refused(store: Store, statement: str, *values: object) -> bool:
    try:
        with store.database.write():
            store.database.execute(statement, values)
    except Corrupt as error:
        return error.code == "constraint"
    return False


def test_a_run_and_its_attempt_are_read_as_they_were_written(store: Store) -> None:
    story = running(add_task(store), 1)
    put(store, story)
    assert store.runs.get(1) == story.run
    assert store.runs.find_id(identity(1)) == story.run
    assert store.runs.attempts(1) == [story.attempt]
    assert store.runs.attempt(key(1)) == store.runs.latest_attempt(1) == story.attempt
    assert store.runs.newest_id() == identity(1)
    for missing in (store.runs.get(2), store.runs.find_id(identity(2)), store.runs.attempt(key(2))):
        assert missing is None


def test_a_run_is_found_by_its_id_among_gaps(store: Store) -> None:
    task, stored = add_task(store), (2, 3, 7, 8, 20, 41)
    put(store, *(ended(task, number) for number in stored))
    for number in range(50):
        found = store.runs.find_id(identity(number))
        assert (found is not None and found.number == number) is (number in stored)


@pytest.mark.parametrize(
    ("owner", "group", "packed"), [(1001, 7, True), (1002, 7, False), (1001, 8, False)]
)
def test_a_handle_is_stored_without_what_its_row_says(
    store: Store, owner: int, group: int, packed: bool
) -> None:
    story = running(add_task(store), 1)
    handle = Handle(
        handle_id=identity(owner), boot_id="a1-b2", pid=7, pgid=group, start_ticks=99
    ).encode()
    assert story.attempt is not None
    story.attempt = story.attempt.replace(handle=handle)
    put(store, story)
    assert store.runs.attempt(key(1)) == story.attempt
    text = "a1-b2 99" if packed else handle
    assert store.database.row("SELECT handle FROM attempt") == (text,)


@pytest.mark.parametrize("text", ["a1-b2 x", "a1-b2 0", " 9", "a_b 9"])
def test_a_damaged_handle_names_no_process(store: Store, text: str) -> None:
    put(store, running(add_task(store), 1))
    with store.database.write():
        store.database.execute("UPDATE attempt SET handle = ?", (text,))
    found = store.runs.attempt(key(1))
    assert found is not None
    assert found.handle == text
    assert handles.decode(text) is None


def test_attempts_and_events_of_neighbouring_runs_stay_apart(store: Store) -> None:
    task = add_task(store)
    put(store, *(ended(task, number) for number in (1, 2, 3)))
    last = store.runs.attempt(key(2))
    assert last is not None
    last = last.replace(attempt=16)
    put(store, Story(queued(task, 9).run.replace(version=1), last, stored=False))
    store.prune([1, 3])
    assert [each.attempt for each in store.runs.attempts(2)] == [1, 16]
    assert store.runs.latest_attempt(2) == store.runs.attempt(key(2, 16)) == last
    assert len(list(store.runs.events(2))) == 8
    assert store.runs.attempts(1) == store.runs.attempts(3) == []
    assert store.database.row("SELECT count(*) FROM event") == (1,)
    store.prune([2])
    assert store.database.row("SELECT count(*) FROM event") == (0,)


def test_a_history_that_is_full_is_refused_and_changes_nothing(store: Store) -> None:
    story = queued(add_task(store), 1)
    for version, code in ((65_535, None), (65_536, "history_full")):
        store.prune([1])
        change = story.change().replace(run=story.run.replace(version=version))
        if code is None:
            store.commit(Commit(at_ms=10, actor="test", changes=(change,)))
            assert [each[0] for each in store.runs.events(1)] == [65_534, 65_535]
            continue
        with pytest.raises(Refused) as error:
            store.commit(Commit(at_ms=10, actor="test", changes=(change,)))
        assert error.value.code == code
        assert store.runs.get(1) is None


def test_forgetting_a_run_scans_nothing(store: Store) -> None:
    for table, column in (("event", "key"), ("attempt", "key"), ("run", "number")):
        statement = f"EXPLAIN QUERY PLAN DELETE FROM {table} WHERE {column} BETWEEN 1 AND 2"
        steps = [str(row[3]) for row in store.database.rows(statement)]
        assert steps
        assert all(step.startswith("SEARCH") for step in steps), steps


def test_a_run_moves_only_from_the_version_it_was_read_at(store: Store) -> None:
    put(store, running(add_task(store), 1))
    first, second = end(store, 1), end(store, 1, FAILED)
    store.commit(Commit(at_ms=20, actor="a", changes=(first,)))
    with pytest.raises(Refused) as error:
        store.commit(Commit(at_ms=21, actor="b", changes=(second,)))
    assert error.value.code == "stale"
    assert store.runs.get(1) == first.run
    assert store.runs.attempt(key(1)) == first.attempt


@pytest.mark.parametrize("field", ["status", "callback_sequence"])
def test_an_attempt_moves_only_from_its_status_and_sequence(store: Store, field: str) -> None:
    put(store, running(add_task(store), 1))
    change = end(store, 1)
    assert change.attempt_before is not None
    other = change.attempt_before.replace(
        **({"status": "starting"} if field == "status" else {"callback_sequence": 4})
    )
    with pytest.raises(Refused) as error:
        store.commit(Commit(at_ms=20, actor="a", changes=(change.replace(attempt_before=other),)))
    assert error.value.code == "stale"
    run = store.runs.get(1)
    assert run is not None
    assert run.status == RUNNING
    assert len(list(store.runs.events(1))) == run.version


@pytest.mark.parametrize("status", RUN_NEXT)
def test_every_run_status_of_the_table_can_be_stored(store: Store, status: str) -> None:
    run = queued(add_task(store), 1).run.replace(status=status, version=1, **fields(status))
    put(store, Story(run, None, stored=False))
    assert store.runs.get(1) == run


@pytest.mark.parametrize("status", ATTEMPT_STATUSES)
def test_every_attempt_status_of_the_table_can_be_stored(store: Store, status: str) -> None:
    story = running(add_task(store), 1)
    assert story.attempt is not None
    finished = 20 if status in ENDED else None
    story.attempt = story.attempt.replace(status=status, finished_at_ms=finished)
    put(store, story)
    assert store.runs.attempt(key(1)) == story.attempt


@pytest.mark.parametrize(
    ("table", "status"),
    [("run", each) for each in (*NO_STATUS, *(set(ATTEMPT_NEXT) - set(RUN_NEXT)))]
    + [("attempt", each) for each in (*NO_STATUS, *(set(RUN_NEXT) - set(ATTEMPT_NEXT)))],
)
def test_a_status_that_the_table_does_not_know_is_refused(
    store: Store, table: str, status: str
) -> None:
    put(store, running(add_task(store), 1))
    for finished in (None, 20):
        assert refused(
            store, f"UPDATE {table} SET status = ?, finished_at_ms = ?", status, finished
        )


@pytest.mark.parametrize("status", RUN_NEXT)
def test_an_ended_run_has_its_time_and_another_has_none(store: Store, status: str) -> None:
    put(store, running(add_task(store), 1))
    given = fields(status)
    statement = "UPDATE run SET status = ?, finished_at_ms = ?, retry_at_ms = ?"
    wrong_end = None if given["finished_at_ms"] else 20
    wrong_retry = None if given["retry_at_ms"] else 30
    assert refused(store, statement, status, wrong_end, given["retry_at_ms"])
    assert refused(store, statement, status, given["finished_at_ms"], wrong_retry)
    assert not refused(store, statement, status, *given.values())


@pytest.mark.parametrize("status", ATTEMPT_STATUSES)
def test_an_ended_attempt_has_its_time_and_another_has_none(store: Store, status: str) -> None:
    put(store, running(add_task(store), 1))
    statement = "UPDATE attempt SET status = ?, finished_at_ms = ?"
    right, wrong = (20, None) if status in ENDED else (None, 20)
    assert refused(store, statement, status, wrong)
    assert not refused(store, statement, status, right)


@pytest.mark.parametrize("column", ["handle", "pid", "token_hash"])
def test_a_running_attempt_without_its_exact_process_is_refused(store: Store, column: str) -> None:
    put(store, running(add_task(store), 1))
    assert refused(store, f"UPDATE attempt SET {column} = NULL")


@pytest.mark.parametrize(
    ("table", "column", "legal", "illegal"),
    [
        ("run", "cancel_reason", CANCEL_REASONS, ("", "policy")),
        ("run", "trigger_kind", TRIGGER_KINDS, ("", "webhook")),
        ("attempt", "evidence", EVIDENCE, ("", "guess")),
        ("attempt", "exit_code", (0, 255), (-1, 256)),
        ("attempt", "signal", (1, 127), (0, 128)),
        ("attempt", "pid", (1,), (0, -1)),
        ("run", "started_at_ms", (10,), (9,)),
        ("attempt", "started_at_ms", (10,), (9,)),
        ("run", "version", (1,), (0, "x")),
    ],
)
def test_a_value_outside_its_vocabulary_is_refused(
    store: Store,
    table: str,
    column: str,
    legal: tuple[object, ...],
    illegal: tuple[object, ...],
) -> None:
    put(store, running(add_task(store), 1))
    with store.database.write():
        store.database.execute("UPDATE run SET cancel_requested_at_ms = 5, cancel_reason = 'user'")
    for value in legal:
        assert not refused(store, f"UPDATE {table} SET {column} = ?", value)
    for value in illegal:
        assert refused(store, f"UPDATE {table} SET {column} = ?", value)


def test_a_cancel_request_and_its_reason_come_together(store: Store) -> None:
    put(store, running(add_task(store), 1))
    assert refused(store, "UPDATE run SET cancel_requested_at_ms = 5")
    assert refused(store, "UPDATE run SET cancel_reason = 'user'")


def test_one_row_a_commit_is_shown_as_its_events_in_sequence(store: Store) -> None:
    put(store, running(add_task(store), 1))
    store.commit(Commit(at_ms=20, actor="receipt", changes=(end(store, 1),)))
    found = list(store.runs.events(1))
    assert [sequence for sequence, *_rest in found] == list(range(1, 9))
    assert [event.type for *_rest, event in found] == [
        "run.created",
        "run.queued",
        "run.dispatching",
        "attempt.starting",
        "attempt.running",
        "run.running",
        "attempt.succeeded",
        "run.succeeded",
    ]
    assert found[4][3].facts == {"pid": 7}
    assert [(at_ms, actor) for _sequence, at_ms, actor, _event in found] == [(10, "test")] * 6 + [
        (20, "receipt")
    ] * 2
    assert store.database.row("SELECT count(*) FROM event") == (2,)
    run = store.runs.get(1)
    assert run is not None
    assert run.version == 8


def test_events_that_are_too_large_change_nothing(store: Store) -> None:
    story = queued(add_task(store), 1)
    story.note("run.noted", text="x" * EVENT_PAYLOAD_BYTES_MAX)
    with pytest.raises(Refused) as error:
        put(store, story)
    assert error.value.code == "event_too_large"
    assert store.runs.get(1) is None


@pytest.mark.parametrize("body", ["", "{", "[[]]", "[1]", '[["a"]', "3"])
def test_a_damaged_event_is_corrupt(store: Store, body: str) -> None:
    put(store, queued(add_task(store), 1))
    with store.database.write():
        store.database.execute("UPDATE event SET body = ?", (body,))
    with pytest.raises(Corrupt) as error:
        list(store.runs.events(1))
    assert error.value.code == "row_corrupt"


def test_a_run_without_an_id_is_corrupt(store: Store) -> None:
    put(store, queued(add_task(store), 1))
    with store.database.write():
        store.database.execute("UPDATE run SET id = zeroblob(16)")
    with pytest.raises(Corrupt):
        store.runs.get(1)


def test_history_is_listed_newest_first_behind_a_cursor(store: Store) -> None:
    one, two = add_task(store), add_task(store, "two")
    put(store, *(ended(one, number) for number in (1, 2, 3)), running(two, 4), queued(one, 5))

    def numbers(
        before: int | None = None,
        task: int | None = None,
        status: str | None = None,
        limit: int = 9,
    ) -> list[int]:
        found = store.runs.page(limit=limit, before=before, task_number=task, status=status)
        return [run.number for run in found]

    assert numbers() == [5, 4, 3, 2, 1]
    assert numbers(limit=2) == [5, 4]
    assert numbers(before=4, limit=2) == [3, 2]
    assert numbers(before=1) == []
    assert numbers(task=two.number) == [4]
    assert numbers(status=SUCCEEDED, before=3) == [2, 1]
    assert numbers(limit=0) == [5]
    assert store.runs.last_runs() == {one.number: (5, "queued"), two.number: (4, RUNNING)}
    newest = store.runs.newest_of(one.number)
    assert newest is not None
    assert newest.number == 5
    assert store.runs.newest_of(99) is None


def test_a_page_of_history_is_bounded(store: Store) -> None:
    task = add_task(store)
    for start in range(0, PAGE_MAX + 10, 170):
        put(store, *(queued(task, start + number) for number in range(1, 171)))
    found = store.runs.page(limit=10**6, before=None, task_number=None, status=None)
    assert len(found) == PAGE_MAX


def test_the_line_is_read_in_the_order_of_its_numbers(store: Store) -> None:
    task = add_task(store)
    put(store, queued(task, 1), running(task, 2), queued(task, 3), queued(task, 4))
    assert [run.number for run in store.runs.waiting(after=0, limit=2)] == [1, 3]
    assert [run.number for run in store.runs.waiting(after=3, limit=2)] == [4]


def test_numbers_go_on_from_the_newest_run_and_are_not_given_twice(folder: Path) -> None:
    with state(folder) as store:
        put(store, queued(add_task(store), 41))
    with state(folder) as again:
        assert [again.runs.next_number(), again.runs.next_number()] == [42, 43]


def prunable(store: Store, *, keep: int = 100, before_ms: int = 0, limit: int = 9) -> list[int]:
    return store.runs.prunable(keep=keep, finished_before_ms=before_ms, limit=limit)


def test_only_ended_runs_beyond_the_bounds_go_oldest_first(store: Store) -> None:
    task = add_task(store)
    put(store, *(ended(task, number, at_ms=number) for number in (1, 2)), running(task, 3))
    put(store, *(ended(task, n, at_ms=n * 100, finished_ms=n * 100 + 5) for n in (4, 5, 6)))
    assert prunable(store) == []
    assert prunable(store, keep=2) == [1, 2, 4]
    assert prunable(store, keep=2, limit=2) == [1, 2]
    assert prunable(store, before_ms=406) == [1, 2, 4]
    assert prunable(store, before_ms=405) == [1, 2]


def test_the_newest_run_stays_so_that_its_number_is_not_given_again(store: Store) -> None:
    task = add_task(store)
    put(store, *(ended(task, number) for number in (1, 2)))
    assert prunable(store, keep=0, before_ms=10**12) == [1]


def test_a_run_with_a_journal_row_is_not_pruned(store: Store) -> None:
    task = add_task(store)
    put(store, ended(task, 1, LOST), journal=True)
    put(store, ended(task, 2), ended(task, 3))
    assert prunable(store, keep=1) == [2]
    with pytest.raises(EdgeError):
        store.prune([1])
    assert store.runs.attempts(1) != []


def test_pruning_reads_no_further_than_the_first_run_within_the_bounds(store: Store) -> None:
    task = add_task(store)
    put(store, *(ended(task, number) for number in range(1, 150)))
    rows = store.database.rows
    seen: list[object] = []

    def counted(statement: str, values: Sequence[object] = ()) -> Iterator[tuple[object, ...]]:
        for row in rows(statement, values):
            seen.append(row)
            yield row

    store.database.rows = counted  # type: ignore[method-assign]
    assert prunable(store, keep=147) == [1, 2]
    assert len(seen) == 3


def test_pruning_takes_a_run_with_all_its_rows_and_no_other(store: Store) -> None:
    task = add_task(store)
    put(store, ended(task, 1), ended(task, 2, CANCELLED), ended(task, 3))
    commits = store.database.commits
    store.prune([1, 2])
    assert store.database.commits == commits + 1
    for table in ("run", "attempt", "event"):
        assert store.database.row(f"SELECT count(*) FROM {table}") == (1,)
    assert store.runs.get(3) is not None


def test_what_only_a_running_process_has_is_stored_with_the_attempt(store: Store) -> None:
    put(store, running(add_task(store), 1))
    attempt = store.runs.attempt(key(1))
    assert attempt is not None
    assert (attempt.handle, attempt.token_hash, attempt.log_truncated) == (HANDLE, TOKEN_HASH, None)
    change = end(store, 1)
    assert change.attempt is not None
    cut = change.attempt.replace(log_bytes=5, log_truncated=True)
    store.commit(Commit(at_ms=20, actor="a", changes=(change.replace(attempt=cut),)))
    assert store.runs.attempt(key(1)) == cut
