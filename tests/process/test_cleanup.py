"""The cleanup scanner: what happens to each journal row, and what a page comes to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qinglong_edge.core.commit import AttemptKey, JournalEntry
from qinglong_edge.core.errors import Unavailable
from qinglong_edge.core.receipt import Receipt
from qinglong_edge.core.run import ENDED
from qinglong_edge.process.cleanup import CleanupScanner, Summary
from qinglong_edge.process.receipts import ReceiptStore
from qinglong_edge.system.files import Files

_ACTIVE = ("claimed", "starting", "running")
_NOW_MS = 100
_RETENTION_MS = 10


def entry(number: int, status: str = "succeeded", **changes: object) -> JournalEntry:
    """A journal row, its attempt's id included."""
    plain = JournalEntry(
        key=AttemptKey(run_number=number, attempt=1),
        attempt_id=f"attempt-{number}",
        state="pending",
        quarantine_ref=None,
        purge_after_ms=None,
        registered_at_ms=1,
        updated_at_ms=number,
        attempt_status=status,
        finished_at_ms=None if status in _ACTIVE else 5,
    )
    return plain.replace(**changes)


def quarantined(number: int, status: str = "failed") -> JournalEntry:
    """A row whose intent to move is stored, due."""
    reference = f".quarantine/at/attempt-{number}.json"
    return entry(
        number, status, state="quarantined", quarantine_ref=reference, purge_after_ms=_NOW_MS
    )


class Journal:
    """The rows, in order; what is resolved goes."""

    def __init__(self, *rows: JournalEntry) -> None:
        self.rows = list(rows)
        self.asked: list[tuple[int, tuple[int, int, int] | None, int]] = []
        self.failing: Exception | None = None
        self.resolved: list[tuple[AttemptKey, ...]] = []

    def page(
        self, *, observed_at_ms: int, after: tuple[int, int, int] | None, limit: int
    ) -> tuple[list[JournalEntry], bool]:
        self.asked.append((observed_at_ms, after, limit))
        rest = [row for row in self.rows if after is None or _position(row) > after]
        return rest[:limit], len(rest) > limit

    def resolve(self, keys: tuple[AttemptKey, ...]) -> None:
        if self.failing is not None:
            raise self.failing
        self.resolved.append(keys)
        self.rows = [row for row in self.rows if row.key not in keys]


def _position(row: JournalEntry) -> tuple[int, int, int]:
    return row.updated_at_ms, row.key.run_number, row.key.attempt


class Desk:
    """A scanner over a table of rows and real files."""

    def __init__(self, folder: Path, *rows: JournalEntry, page: int = 8) -> None:
        root = folder / "receipts"
        root.mkdir(mode=0o700, exist_ok=True)
        self.store = ReceiptStore(str(root), Files())
        self.journal = Journal(*rows)
        self.scanner = CleanupScanner(
            self.journal, self.store, self.journal.resolve, page=page, retention_ms=_RETENTION_MS
        )

    def publish(self, *numbers: int) -> None:
        """Receipt files of these rows."""
        for number in numbers:
            receipt = Receipt(
                run_id="run-1",
                attempt_id=f"attempt-{number}",
                callback_sequence=1,
                token="A" * 32,
                started_at_ms=1,
                finished_at_ms=2,
                exit_code=0,
            )
            self.store.publish(receipt, "0" * 32)

    def scan(self, now_ms: int = _NOW_MS) -> Summary:
        """One page; its counts add up."""
        found = self.scanner.scan(now_ms)
        counts = (found.removed, found.expired, found.purged, found.remaining, found.failed)
        assert sum(counts) == found.scanned
        return found

    def has(self, number: int) -> bool:
        return self.store.exists(f"attempt-{number}")


# -- the table ------------------------------------------------------------------------------------


def test_each_row_of_a_page_is_judged_by_itself(tmp_path: Path) -> None:
    """ADR-0069 verification 7: exact terminal candidates go, what is active stays."""
    desk = Desk(tmp_path, entry(1, "running"), entry(2), entry(3, "failed"))
    desk.publish(1, 2)
    assert desk.scan() == Summary(scanned=3, removed=1, expired=1, remaining=1)
    assert desk.has(1)
    assert not desk.has(2)
    assert desk.journal.resolved == [(entry(2).key, entry(3).key)]


@pytest.mark.parametrize("status", _ACTIVE)
def test_the_file_of_an_active_attempt_is_not_touched(tmp_path: Path, status: str) -> None:
    """ADR-0069 verification 7: active attempts are kept."""
    desk = Desk(tmp_path, entry(1, status), quarantined(2, status))
    desk.publish(1, 2)
    assert desk.scan() == Summary(scanned=2, remaining=2)
    assert desk.has(1)
    assert desk.has(2)
    assert desk.journal.resolved == []


@pytest.mark.parametrize("status", sorted(ENDED))
def test_the_file_of_every_ended_attempt_goes_and_then_its_row(tmp_path: Path, status: str) -> None:
    """ADR-0069 verification 6: a row goes only after its file."""
    desk = Desk(tmp_path, entry(1, status))
    desk.publish(1)
    gone_first: list[bool] = []
    resolve = desk.journal.resolve

    def watch(keys: tuple[AttemptKey, ...]) -> None:
        gone_first.append(not desk.has(1))
        resolve(keys)

    scanner = CleanupScanner(desk.journal, desk.store, watch, page=8, retention_ms=_RETENTION_MS)
    assert scanner.scan(_NOW_MS) == Summary(scanned=1, removed=1)
    assert gone_first == [True]


def test_a_missing_file_keeps_its_row_until_the_retention_is_over(tmp_path: Path) -> None:
    desk = Desk(tmp_path, entry(1, finished_at_ms=_NOW_MS - _RETENTION_MS + 1))
    assert desk.scan() == Summary(scanned=1, remaining=1)
    assert desk.scan(_NOW_MS + 1) == Summary(scanned=1, expired=1)
    assert desk.scan(_NOW_MS + 1) == Summary()


def test_an_end_without_a_time_never_expires(tmp_path: Path) -> None:
    desk = Desk(tmp_path, entry(1, finished_at_ms=None))
    assert desk.scan(10**15) == Summary(scanned=1, remaining=1)


def test_a_quarantined_receipt_that_is_due_is_moved_purged_and_forgotten(tmp_path: Path) -> None:
    """ADR-0069 verification 6: the intent stands before the move, which may still be to do."""
    desk = Desk(tmp_path, quarantined(1), quarantined(2), quarantined(3))
    desk.publish(1, 2)
    desk.store.quarantine("attempt-2")
    assert desk.scan() == Summary(scanned=3, purged=3)
    folder = tmp_path / "receipts"
    assert [path for path in folder.rglob("*") if path.is_file()] == []
    assert desk.journal.rows == []


def test_one_row_that_fails_stops_no_other_and_keeps_its_place(tmp_path: Path) -> None:
    """ADR-0069 verification 7: a failing row is a count, not an end."""
    desk = Desk(tmp_path, entry(1), entry(2), quarantined(3), entry(4))
    desk.publish(2, 4)
    for number in (1, 3):
        Path(desk.store.prepare(f"attempt-{number}").target).mkdir()
    assert desk.scan() == Summary(scanned=4, removed=2, failed=2)
    assert [row.key.run_number for row in desk.journal.rows] == [1, 3]
    for number in (1, 3):
        Path(desk.store.paths(f"attempt-{number}").target).rmdir()
    assert desk.scan() == Summary(scanned=2, expired=1, purged=1)


def test_an_unreadable_shard_is_a_failure_of_its_row_only(tmp_path: Path) -> None:
    other = entry(2, attempt_id="zz-2")
    desk = Desk(tmp_path, entry(1), other)
    (tmp_path / "receipts" / "zz").touch()
    desk.publish(1)
    assert desk.scan() == Summary(scanned=2, removed=1, failed=1)


# -- pages ----------------------------------------------------------------------------------------


def test_an_empty_journal_costs_one_page_and_touches_no_file(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    assert desk.scan() == Summary()
    assert desk.journal.asked == [(_NOW_MS, None, 8)]
    assert os.listdir(tmp_path / "receipts") == []


def test_a_cut_page_is_continued_and_a_whole_one_begins_anew(tmp_path: Path) -> None:
    rows = [entry(number, "running") for number in range(1, 6)]
    desk = Desk(tmp_path, *rows, page=2)
    assert [desk.scan().truncated for _ in range(4)] == [True, True, False, True]
    assert [after for _now, after, _limit in desk.journal.asked] == [
        None,
        (2, 2, 1),
        (4, 4, 1),
        None,
    ]


def test_ended_rows_behind_many_active_ones_are_reached(tmp_path: Path) -> None:
    rows = [entry(number, "running") for number in range(1, 9)]
    desk = Desk(tmp_path, *rows, entry(9), page=3)
    desk.publish(9)
    assert [desk.scan().removed for _ in range(3)] == [0, 0, 1]


def test_a_storage_that_refuses_leaves_the_page_to_be_scanned_again(tmp_path: Path) -> None:
    rows = [entry(1), quarantined(2), entry(3)]
    desk = Desk(tmp_path, *rows, page=2)
    desk.publish(1, 2, 3)
    desk.journal.failing = Unavailable("busy", "The storage is busy.")
    with pytest.raises(Unavailable):
        desk.scanner.scan(_NOW_MS)
    assert len(desk.journal.rows) == 3
    desk.journal.failing = None
    assert desk.scan() == Summary(scanned=2, expired=1, purged=1, truncated=True)
    assert desk.scan() == Summary(scanned=1, removed=1)
    assert desk.journal.rows == []
