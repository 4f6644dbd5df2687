"""A commit happens whole or not at all, and nothing happens after a close."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from qinglong_edge.core.commit import Commit, CursorMove
from qinglong_edge.core.errors import Corrupt, EdgeError, Refused, Unavailable
from qinglong_edge.core.run import Story
from qinglong_edge.core.task import Trigger
from qinglong_edge.storage.store import Store
from tests.storage.building import add_task, end, key, opened, put, queued, running

HOURLY = Trigger(kind="cron", expression="0 * * * *", zone="UTC")
TABLES = ("run", "attempt", "event", "receipt_journal", "cursor", "setting", "recipe", "revision")


def rows(store: Store) -> dict[str, list[object]]:
    return {each: list(store.database.rows(f"SELECT * FROM {each}")) for each in TABLES}


def test_run_attempt_events_journal_cursor_and_settings_become_durable_together(
    folder: Path, store: Store
) -> None:
    """One transaction is the barrier that a launch stands behind."""
    task = add_task(store, triggers=(HOURLY,))
    trigger = store.tasks.triggers(task.number)[0].number
    story = running(task, 1)
    commits = store.database.commits
    store.commit(
        Commit(
            at_ms=10,
            actor="scheduler",
            changes=(story.change(),),
            register=(key(1),),
            cursors=(CursorMove(trigger_number=trigger, expected_ms=None, next_at_ms=99),),
            settings=(("high", "10"),),
        )
    )
    assert store.database.commits == commits + 1
    store.close()
    again = opened(folder)
    assert again.runs.get(1) == story.run
    assert again.runs.attempt(key(1)) == story.attempt
    assert again.runs.launched(after=key(0, 0), limit=9) == [key(1)]
    assert [cursor.next_at_ms for cursor in again.tasks.cursors()] == [99]
    assert again.setting("high") == "10"
    again.close()


def _stale_cursor(commit: Commit) -> Commit:
    return commit.replace(
        cursors=(CursorMove(trigger_number=1, expected_ms=5, next_at_ms=6),),
    )


def _unknown_attempt(commit: Commit) -> Commit:
    return commit.replace(register=(*commit.register, key(9)))


def _broken_rule(commit: Commit) -> Commit:
    good = commit.changes[0]
    bad = good.run.replace(number=2, status="succeeded")
    return commit.replace(changes=(good, Story(bad, None, stored=False).change()))


def _stale_run(commit: Commit) -> Commit:
    good = commit.changes[0]
    return commit.replace(changes=(good, good.replace(before=good.run.replace(version=1))))


def _untyped_setting(commit: Commit) -> Commit:
    return commit.replace(settings=(("a", "1"), ("b", None)))


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (_stale_cursor, Refused),
        (_unknown_attempt, Refused),
        (_broken_rule, Corrupt),
        (_stale_run, Refused),
        (_untyped_setting, Corrupt),
    ],
)
def test_a_later_part_that_fails_leaves_nothing(
    store: Store, spoil: Callable[[Commit], Commit], kind: type[EdgeError]
) -> None:
    task = add_task(store, triggers=(HOURLY,))
    good = Commit(
        at_ms=10,
        actor="test",
        changes=(running(task, 1).change(),),
        register=(key(1),),
        cursors=(CursorMove(trigger_number=1, expected_ms=None, next_at_ms=6),),
        settings=(("high", "10"),),
    )
    before, commits = rows(store), store.database.commits
    with pytest.raises(kind):
        store.commit(spoil(good))
    assert (rows(store), store.database.commits) == (before, commits)
    store.commit(good)
    assert store.runs.get(1) is not None


def _fail_late(store: Store) -> None:
    store.put_setting("a", "1")
    raise ZeroDivisionError


def test_a_bug_in_a_block_leaves_nothing_and_the_next_block_works(store: Store) -> None:
    with pytest.raises(ZeroDivisionError), store.database.write():
        _fail_late(store)
    assert store.setting("a") is None
    with store.database.write():
        store.put_setting("a", "2")
    assert store.setting("a") == "2"


def test_a_block_inside_a_block_is_refused_and_drops_both(store: Store) -> None:
    def nested() -> None:
        with store.database.write():
            store.put_setting("a", "1")
            store.prune([])

    with pytest.raises(Unavailable):
        nested()
    assert store.setting("a") is None


def test_resolving_rides_on_the_commit_that_ends_the_run(store: Store) -> None:
    put(store, running(add_task(store), 1), journal=True)
    change = end(store, 1)
    store.commit(Commit(at_ms=20, actor="test", changes=(change,), resolve=(key(1), key(7))))
    assert store.runs.launched(after=key(0, 0), limit=9) == []
    assert store.database.row("SELECT count(*) FROM receipt_journal") == (0,)


def test_after_close_every_call_says_that_the_storage_is_closed(store: Store) -> None:
    task = add_task(store)
    put(store, queued(task, 1))
    change = queued(task, 2).change()
    rows_of = store.runs.events(1)
    assert next(rows_of)
    store.close()
    store.close()
    calls: list[Callable[[], object]] = [
        lambda: store.setting("a"),
        lambda: store.commit(Commit(at_ms=1, actor="a", changes=(change,))),
        lambda: store.commit(Commit(at_ms=1, actor="a")),
        lambda: store.prune([1]),
        lambda: store.mark_quarantined(key(1), ".quarantine/x", updated_at_ms=1, purge_after_ms=2),
        lambda: store.journal.page(observed_at_ms=0, after=None, limit=1),
        lambda: store.runs.get(1),
        lambda: list(store.runs.events(1)),
        lambda: list(store.tasks.all()),
        lambda: store.tasks.find("one"),
        store.database.check,
        store.database.begin,
        store.database.commit,
    ]
    for call in calls:
        with pytest.raises(Unavailable) as error:
            call()
        assert error.value.code == "storage_closed"
    store.database.rollback()
    store.database.grow_wal()
