"""One transaction's content, as a value.

Owns the vocabulary in which policies tell the storage what must become durable together. A policy
never opens a transaction; it hands over a `Commit`, which happens whole or not at all.
"""

from __future__ import annotations

from qinglong_edge.core.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qinglong_edge.core.audit import Audit
    from qinglong_edge.core.run import Change


class AttemptKey(Record):
    """An attempt by its stored key."""

    run_number: int
    attempt: int


class CursorMove(Record):
    """A trigger's cursor goes from one due moment to the next (compare-and-set).

    `next_at_ms` is wall time for `cron` and boottime of `boot_id` for `every`; None = to compute.
    """

    trigger_number: int
    expected_ms: int | None
    next_at_ms: int | None
    boot_id: str | None = None
    scheduled_ms: int | None = None
    skipped: int = 0
    parked: str | None = None


class Commit(Record):
    """What becomes durable together; `settings` maps a name to its new value.

    `resolve` are journal rows whose files are gone, `released` those that go unless in quarantine.
    """

    at_ms: int
    actor: str
    changes: tuple[Change, ...] = ()
    register: tuple[AttemptKey, ...] = ()
    resolve: tuple[AttemptKey, ...] = ()
    released: tuple[AttemptKey, ...] = ()
    cursors: tuple[CursorMove, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    audit: tuple[Audit, ...] = ()


class JournalEntry(Record):
    """One row of the receipt journal with what its attempt says (ADR-0069 section 3)."""

    key: AttemptKey
    attempt_id: str
    state: str
    quarantine_ref: str | None
    purge_after_ms: int | None
    registered_at_ms: int
    updated_at_ms: int
    attempt_status: str
    finished_at_ms: int | None


class Cursor(Record):
    """A trigger with its due moment and the task it belongs to."""

    trigger_number: int
    task_number: int
    kind: str
    expression: str
    zone: str
    misfire: str
    enabled: bool
    next_at_ms: int | None
    boot_id: str | None
    last_scheduled_ms: int | None
    skipped: int
    parked: str | None
