"""Runs, Attempts and their Events as rows.

Owns the only SQL of the aggregate. A write is a compare-and-set: a Run moves only from the version
that the change was made from, an Attempt only from its status and callback sequence; anything else
is `stale` and the whole transaction is dropped.

    event.body       [["run.queued"], ["attempt.running", {"pid": 123}], ...]   one row a commit;
                     the row's `sequence` is the first element's, the next ones count up
    attempt.handle   "BOOT-ID START-TICKS" where the rest of the handle is the row's id and pid,
                     else the handle itself: a third of the row's bytes
"""

from __future__ import annotations

from qinglong_edge.core import handle as handles
from qinglong_edge.core import ids
from qinglong_edge.core.canonical import decode, encode
from qinglong_edge.core.commit import AttemptKey
from qinglong_edge.core.errors import Corrupt, Invalid, Refused
from qinglong_edge.core.limits import EVENT_PAYLOAD_BYTES_MAX, PAGE_MAX
from qinglong_edge.core.run import ENDED, Attempt, Change, Event, Run
from qinglong_edge.storage.connection import stored_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from qinglong_edge.storage.connection import Database, Row

_RUN_COLUMNS = ", ".join(Run._fields)
_ATTEMPT_COLUMNS = ", ".join(Attempt._fields)
_SEQUENCE_BITS = 16
_SEQUENCE_MAX = (1 << _SEQUENCE_BITS) - 1

_INSERT_RUN = f"""
INSERT INTO run ({_RUN_COLUMNS})
VALUES ({", ".join("?" * len(Run._fields))})
"""
_UPDATE_RUN = """
UPDATE run
SET status = ?, version = ?, started_at_ms = ?, finished_at_ms = ?, cancel_requested_at_ms = ?,
    cancel_reason = ?, retry_at_ms = ?, error_code = ?
WHERE number = ? AND version = ?
"""
_INSERT_ATTEMPT = f"""
INSERT INTO attempt (key, {", ".join(Attempt._fields[2:])})
VALUES ({", ".join("?" * (len(Attempt._fields) - 1))})
"""
_UPDATED = (
    "status",
    "callback_sequence",
    "token_hash",
    "handle",
    "pid",
    "pid_namespace",
    "deadline_boot_ms",
    "deadline_at_ms",
    "started_at_ms",
    "finished_at_ms",
    "exit_code",
    "signal",
    "evidence",
    "error_code",
    "log_bytes",
    "log_truncated",
)
_UPDATE_ATTEMPT = f"""
UPDATE attempt SET {", ".join(f"{name} = ?" for name in _UPDATED)}
WHERE key = ? AND status = ? AND callback_sequence = ?
"""
_INSERT_EVENT = "INSERT INTO event (key, at_ms, actor, body) VALUES (?, ?, ?, ?)"


def attempt_key(run_number: int, attempt: int) -> int:
    """The stored key of an attempt, 1 to 16; those of a Run stand side by side."""
    return run_number * 16 + attempt - 1


class RunStore:
    """The aggregate's repository; every write method runs inside the caller's block."""

    def __init__(self, database: Database) -> None:
        self._database = database
        row = database.row("SELECT max(number) FROM run")
        self._number = row[0] if row is not None and row[0] is not None else 0

    def next_number(self) -> int:
        """A number for a new Run; one that is never stored is not given again by this owner."""
        self._number += 1
        return self._number

    def newest_id(self) -> str | None:
        """The id of the newest Run, so that ids go on from it."""
        row = self._database.row("SELECT id FROM run ORDER BY number DESC LIMIT 1")
        return None if row is None else stored_id(row[0])

    def save(self, change: Change, *, actor: str, at_ms: int) -> None:
        """Write one change; `Refused` (`stale`) if the rows have moved on."""
        if change.before is None:
            self._database.execute(_INSERT_RUN, _run_values(change.run))
        else:
            self._update_run(change.before, change.run)
        if change.attempt is not None and change.attempt is not change.attempt_before:
            if change.attempt_before is None:
                self._insert_attempt(change.attempt)
            else:
                self._update_attempt(change.attempt_before, change.attempt)
        if change.events:
            first = change.run.version - len(change.events) + 1
            body = encode([_event_entry(event) for event in change.events])
            if len(body) > EVENT_PAYLOAD_BYTES_MAX:
                raise Refused("event_too_large", "An event's facts are too large.")
            text = body.decode("utf-8")
            if change.run.version > _SEQUENCE_MAX:
                raise Refused("history_full", "The run's history holds no further event.")
            event = (change.run.number << _SEQUENCE_BITS) + first
            self._database.execute(_INSERT_EVENT, (event, at_ms, actor, text))

    def _update_run(self, before: Run, run: Run) -> None:
        cursor = self._database.execute(
            _UPDATE_RUN,
            (
                run.status,
                run.version,
                run.started_at_ms,
                run.finished_at_ms,
                run.cancel_requested_at_ms,
                run.cancel_reason,
                run.retry_at_ms,
                run.error_code,
                before.number,
                before.version,
            ),
        )
        if cursor.rowcount != 1:
            raise Refused("stale", "The run has changed in the meantime.", run=before.number)

    def _insert_attempt(self, attempt: Attempt) -> None:
        stored = attempt_key(attempt.run_number, attempt.attempt)
        # A list: Python 3.11 keeps each tuple of twenty that it frees and never takes one again.
        self._database.execute(_INSERT_ATTEMPT, [stored, *_attempt_values(attempt)[2:]])

    def _update_attempt(self, before: Attempt, attempt: Attempt) -> None:
        values = dict(zip(Attempt._fields, _attempt_values(attempt), strict=True))
        ordered = [values[name] for name in _UPDATED]
        stored = attempt_key(before.run_number, before.attempt)
        key = (stored, before.status, before.callback_sequence)
        if self._database.execute(_UPDATE_ATTEMPT, (*ordered, *key)).rowcount != 1:
            raise Refused("stale", "The attempt has changed.", run=before.run_number)

    def get(self, number: int) -> Run | None:
        """A Run by its number."""
        row = self._database.row(f"SELECT {_RUN_COLUMNS} FROM run WHERE number = ?", (number,))
        return None if row is None else _run(row)

    def find_id(self, run_id: str) -> Run | None:
        """A Run by its UUID: ids ascend with the numbers, so halving finds it without an index."""
        blob, low = ids.to_blob(run_id), 0
        (high,) = self._database.row("SELECT coalesce(max(number), 0) FROM run") or (0,)
        statement = "SELECT number, id FROM run WHERE number > ? ORDER BY number LIMIT 1"
        while low < high:  # the first Run behind `low` is not older than the one that is sought
            middle = (low + high) // 2
            row = self._database.row(statement, (middle,))
            if row is not None and row[1] < blob:
                low = row[0]
            else:
                high = middle
        statement = f"SELECT {_RUN_COLUMNS} FROM run WHERE number > ? ORDER BY number LIMIT 1"
        row = self._database.row(statement, (low,))
        return None if row is None or row[1] != blob else _run(row)

    def newest_of(self, task_number: int) -> Run | None:
        """The newest Run of a task."""
        row = self._database.row(
            f"SELECT {_RUN_COLUMNS} FROM run WHERE task_number = ? ORDER BY number DESC LIMIT 1",
            (task_number,),
        )
        return None if row is None else _run(row)

    def page(
        self, *, limit: int, before: int | None, task_number: int | None, status: str | None
    ) -> list[Run]:
        """Runs, newest first, below the number `before`."""
        statement = f"""
            SELECT {_RUN_COLUMNS} FROM run
            WHERE number < coalesce(?, 9223372036854775807)
              AND task_number = coalesce(?, task_number) AND status = coalesce(?, status)
            ORDER BY number DESC LIMIT ?
        """
        values = (before, task_number, status, max(1, min(limit, PAGE_MAX)))
        return [_run(row) for row in self._database.rows(statement, values)]

    def last_runs(self) -> dict[int, tuple[int, str]]:
        """Task number -> (number, status) of its newest Run; one pass over the history."""
        statement = """
            SELECT task_number, max(number), status FROM run GROUP BY task_number
        """
        return {
            task: (number, str(status)) for task, number, status in self._database.rows(statement)
        }

    def waiting(self, *, after: int, limit: int) -> list[Run]:
        """Queued and retry-waiting Runs in the order of their numbers."""
        statement = f"""
            SELECT {_RUN_COLUMNS} FROM run
            WHERE status IN ('queued', 'retry_wait') AND number > ? ORDER BY number LIMIT ?
        """
        return [_run(row) for row in self._database.rows(statement, (after, limit))]

    def launched(self, *, after: AttemptKey, limit: int) -> list[AttemptKey]:
        """Attempts whose process may still be there: journalled and not ended, in key order."""
        statement = """
            SELECT attempt.run_number, attempt.attempt
            FROM receipt_journal JOIN attempt USING (key)
            WHERE attempt.status IN ('claimed', 'starting', 'running') AND key > ?
            ORDER BY key LIMIT ?
        """
        behind = attempt_key(after.run_number, after.attempt)
        rows = self._database.rows(statement, (behind, limit))
        return [AttemptKey(run_number=number, attempt=attempt) for number, attempt in rows]

    def attempts(self, run_number: int) -> list[Attempt]:
        """Every Attempt of a Run, in order."""
        statement = f"SELECT {_ATTEMPT_COLUMNS} FROM attempt WHERE key BETWEEN ? AND ? ORDER BY key"
        return [_attempt(row) for row in self._database.rows(statement, _attempt_keys(run_number))]

    def attempt(self, key: AttemptKey) -> Attempt | None:
        """One Attempt."""
        row = self._database.row(
            f"SELECT {_ATTEMPT_COLUMNS} FROM attempt WHERE key = ?",
            (attempt_key(key.run_number, key.attempt),),
        )
        return None if row is None else _attempt(row)

    def latest_attempt(self, run_number: int) -> Attempt | None:
        """The newest Attempt of a Run."""
        row = self._database.row(
            f"SELECT {_ATTEMPT_COLUMNS} FROM attempt WHERE key BETWEEN ? AND ? "
            "ORDER BY key DESC LIMIT 1",
            _attempt_keys(run_number),
        )
        return None if row is None else _attempt(row)

    def events(self, run_number: int) -> Iterator[tuple[int, int, str, Event]]:
        """(sequence, at ms, actor, event) of a Run, in order."""
        statement = (
            "SELECT sequence, at_ms, actor, body FROM event WHERE key BETWEEN ? AND ? ORDER BY key"
        )
        rows = self._database.rows(statement, _event_keys(run_number))
        for sequence, at_ms, actor, body in rows:
            for offset, event in enumerate(_events(body)):
                yield sequence + offset, at_ms, str(actor), event

    def oldest_log(self, after: AttemptKey) -> AttemptKey:
        """The place behind `after` before which no attempt has a log without a tombstone."""
        row = self._database.row(
            """
            SELECT coalesce(
              (SELECT key - 1 FROM attempt WHERE key > ? AND log_quota_bytes > 0
                 AND NOT EXISTS (SELECT 1 FROM log_tombstone AS gone WHERE gone.key = attempt.key)
               ORDER BY key LIMIT 1),
              (SELECT max(key) FROM attempt), 0)
            """,
            (attempt_key(after.run_number, after.attempt),),
        )
        key = 0 if row is None else int(row[0])
        return AttemptKey(run_number=key >> 4, attempt=(key & 15) + 1)

    def retirable(
        self, after: AttemptKey, *, finished_before_ms: int | None, limit: int
    ) -> list[Attempt]:
        """Attempts whose logs may go, in key order behind `after`.

        Run and attempt have ended, lost ones too; neither a receipt nor a tombstone is known. With
        a time both ended before it, and reading stops at the first attempt that was made after it.
        """
        statement = f"""
            SELECT max(run.finished_at_ms, attempt.finished_at_ms),
                   {", ".join(f"attempt.{name}" for name in Attempt._fields)}
            FROM attempt CROSS JOIN run ON run.number = attempt.run_number
            WHERE key > ? AND attempt.log_quota_bytes > 0
              AND attempt.finished_at_ms IS NOT NULL AND run.finished_at_ms IS NOT NULL
              AND key NOT IN (SELECT key FROM receipt_journal)
              AND NOT EXISTS (SELECT 1 FROM log_tombstone AS gone WHERE gone.key = attempt.key)
            ORDER BY key
        """
        found: list[Attempt] = []
        behind = attempt_key(after.run_number, after.attempt)
        for finished_ms, *row in self._database.rows(statement, (behind,)):
            attempt, before_ms = _attempt(tuple(row)), finished_before_ms
            if len(found) == limit or (
                before_ms is not None and attempt.created_at_ms >= before_ms
            ):
                break
            if before_ms is None or finished_ms < before_ms:
                found.append(attempt)
        return found

    def prunable(self, *, keep: int, finished_before_ms: int, limit: int) -> list[int]:
        """The oldest ended Runs beyond the bounds that no journal row needs, at most `limit`.

        The newest Run stays, so that no number is given twice. Reading stops at the first Run
        within both bounds: the cost does not grow with the history.
        """
        statement = """
            SELECT number, status, created_at_ms, finished_at_ms,
                   EXISTS (SELECT 1 FROM receipt_journal
                           WHERE key BETWEEN run.number * 16 AND run.number * 16 + 15),
                   (SELECT max(number) FROM run)
            FROM run ORDER BY number
        """
        found: list[int] = []
        for number, status, created, finished, journalled, newest in self._database.rows(statement):
            beyond = number <= newest - max(keep, 1)
            young = not beyond and created >= finished_before_ms
            if young or number == newest or len(found) == limit:
                break
            if status in ENDED and not journalled and (beyond or finished < finished_before_ms):
                found.append(number)
        return found

    def prune(self, number: int) -> None:
        """Delete a Run with its history; inside the caller's block."""
        for table, keys in (("event", _event_keys(number)), ("attempt", _attempt_keys(number))):
            self._database.execute(f"DELETE FROM {table} WHERE key BETWEEN ? AND ?", keys)
        self._database.execute("DELETE FROM run WHERE number = ?", (number,))


def _attempt_keys(run_number: int) -> tuple[int, int]:
    return attempt_key(run_number, 1), attempt_key(run_number, 16)


def _event_keys(run_number: int) -> tuple[int, int]:
    return run_number << _SEQUENCE_BITS, (run_number << _SEQUENCE_BITS) + _SEQUENCE_MAX


def _event_entry(event: Event) -> list[object]:
    return [event.type, event.facts] if event.facts else [event.type]


def _events(body: object) -> list[Event]:
    try:
        entries: Any = decode(str(body).encode("utf-8"), bytes_max=EVENT_PAYLOAD_BYTES_MAX)
        return [Event(type=entry[0], facts=entry[1] if len(entry) > 1 else {}) for entry in entries]
    except (Invalid, ValueError, TypeError, LookupError):
        raise Corrupt("row_corrupt", "A stored event is damaged.") from None


def _run_values(run: Run) -> list[object]:
    values = [getattr(run, name) for name in Run._fields]
    values[1] = ids.to_blob(run.id)
    return values


def _attempt_values(attempt: Attempt) -> list[object]:
    values: list[object] = []
    for name in Attempt._fields:
        value = getattr(attempt, name)
        if name == "id":
            value = ids.to_blob(value)
        elif name == "token_hash" and value is not None:
            value = bytes.fromhex(value)
        elif name == "handle" and value is not None:
            value = _packed(attempt, value)
        elif name == "log_truncated" and value is not None:
            value = int(value)
        values.append(value)
    return values


def _run(row: Row) -> Run:
    given = dict(zip(Run._fields, row, strict=True))
    given["id"] = stored_id(given["id"])
    return Run(**given)


def _packed(attempt: Attempt, text: str) -> str:
    """A handle without what its row says anyway; any other text as it is."""
    found = handles.decode(text)
    if found is None or (found.handle_id, found.pid) != (attempt.id, attempt.pid):
        return text
    return f"{found.boot_id} {found.start_ticks}" if found.pgid == found.pid else text


def _unpacked(text: str, attempt_id: str, pid: int) -> str:
    boot_id, space, ticks = text.partition(" ")
    if not space:
        return text
    try:
        return handles.Handle(
            handle_id=attempt_id, boot_id=boot_id, pid=pid, pgid=pid, start_ticks=int(ticks)
        ).encode()
    except (ValueError, Invalid):
        return text  # damaged, so it names no process


def _attempt(row: Row) -> Attempt:
    given = dict(zip(Attempt._fields, row, strict=True))
    given["id"] = stored_id(given["id"])
    if given["token_hash"] is not None:
        given["token_hash"] = given["token_hash"].hex()
    if given["handle"] is not None:
        given["handle"] = _unpacked(given["handle"], given["id"], given["pid"])
    if given["log_truncated"] is not None:
        given["log_truncated"] = bool(given["log_truncated"])
    return Attempt(**given)
