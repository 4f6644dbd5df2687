"""Run and Attempt: their values and the one table of legal transitions (ADR-0069, ADR-0001).

A Run is one intent to execute a task; an Attempt is one try at it. Each change of either is an
Event, and each Event consumes one version of the Run, so a Run's version is also the sequence
number of its newest Event.

    Run          queued       dispatching cancelled timed_out
                 dispatching  running retry_wait failed cancelled timed_out lost
                 running      retry_wait succeeded failed cancelled timed_out lost
                 retry_wait   queued cancelled timed_out
                 lost         retry_wait
    Attempt      claimed      starting cancelled lost
                 starting     running failed cancelled timed_out lost
                 running      succeeded failed cancelled timed_out lost

What stands in no line leads nowhere. `dispatching` and `starting` never rest on disk: one
transaction passes through them. `lost` is an end of a Run; only a due retry goes on from it.
"""

from __future__ import annotations

from qinglong_edge.core.errors import Refused
from qinglong_edge.core.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

QUEUED = "queued"
DISPATCHING = "dispatching"
RUNNING = "running"
RETRY_WAIT = "retry_wait"
SUCCEEDED = "succeeded"
FAILED = "failed"
CANCELLED = "cancelled"
TIMED_OUT = "timed_out"
LOST = "lost"
CLAIMED = "claimed"
STARTING = "starting"

RUN_NEXT: Mapping[str, frozenset[str]] = {
    QUEUED: frozenset({DISPATCHING, CANCELLED, TIMED_OUT}),
    DISPATCHING: frozenset({RUNNING, RETRY_WAIT, FAILED, CANCELLED, TIMED_OUT, LOST}),
    RUNNING: frozenset({RETRY_WAIT, SUCCEEDED, FAILED, CANCELLED, TIMED_OUT, LOST}),
    RETRY_WAIT: frozenset({QUEUED, CANCELLED, TIMED_OUT}),
    LOST: frozenset({RETRY_WAIT}),
    SUCCEEDED: frozenset(),
    FAILED: frozenset(),
    CANCELLED: frozenset(),
    TIMED_OUT: frozenset(),
}
ATTEMPT_NEXT: Mapping[str, frozenset[str]] = {
    CLAIMED: frozenset({STARTING, CANCELLED, LOST}),
    STARTING: frozenset({RUNNING, FAILED, CANCELLED, TIMED_OUT, LOST}),
    RUNNING: frozenset({SUCCEEDED, FAILED, CANCELLED, TIMED_OUT, LOST}),
    SUCCEEDED: frozenset(),
    FAILED: frozenset(),
    CANCELLED: frozenset(),
    TIMED_OUT: frozenset(),
    LOST: frozenset(),
}
ENDED = frozenset({SUCCEEDED, FAILED, CANCELLED, TIMED_OUT, LOST})
WAITING = frozenset({QUEUED, RETRY_WAIT})
STATUSES = (QUEUED, RUNNING, RETRY_WAIT, SUCCEEDED, FAILED, CANCELLED, TIMED_OUT, LOST)

MANUAL, CRON, EVERY, BOOT = "manual", "cron", "every", "boot"
TRIGGER_KINDS = (MANUAL, CRON, EVERY, BOOT)

CANCEL_REASONS = ("user", "timeout", "shutdown", "replaced")

RECEIPT, WAIT_STATUS, IDENTITY, OPERATOR, NONE = (
    "receipt",
    "wait_status",
    "identity",
    "operator",
    "none",
)
EVIDENCE = (RECEIPT, WAIT_STATUS, IDENTITY, OPERATOR, NONE)

EXECUTION_FAILED = "EXECUTION_FAILED"
EXECUTION_CANCELLED = "EXECUTION_CANCELLED"
EXECUTION_TIMED_OUT = "EXECUTION_TIMED_OUT"
EXECUTOR_START_FAILED = "EXECUTOR_START_FAILED"
RECOVERY_PROCESS_NOT_RUNNING = "RECOVERY_PROCESS_NOT_RUNNING"
SETTLED_BY_OPERATOR = "SETTLED_BY_OPERATOR"


class Run(Record):
    """One intent to execute a task; `version` is also the sequence of its newest Event."""

    number: int
    id: str
    task_number: int
    revision: int
    status: str
    version: int
    trigger_kind: str
    trigger_number: int | None = None
    recipe_number: int
    scheduled_for_ms: int | None = None
    created_at_ms: int
    started_at_ms: int | None = None
    finished_at_ms: int | None = None
    cancel_requested_at_ms: int | None = None
    cancel_reason: str | None = None
    retry_at_ms: int | None = None
    error_code: str | None = None

    @property
    def ended(self) -> bool:
        """True once nothing but a due retry can happen to it."""
        return self.status in ENDED


class Attempt(Record):
    """One try; `log_quota_bytes` is 0 for a task without a log."""

    run_number: int
    attempt: int
    id: str
    status: str
    callback_sequence: int = 0
    token_hash: str | None = None
    handle: str | None = None
    pid: int | None = None
    pid_namespace: int | None = None
    log_quota_bytes: int = 0
    deadline_boot_ms: int | None = None
    deadline_at_ms: int | None = None
    created_at_ms: int
    started_at_ms: int | None = None
    finished_at_ms: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    evidence: str = NONE
    error_code: str | None = None
    log_bytes: int | None = None
    log_truncated: bool | None = None


class Event(Record):
    """One fact of a Run's history; from/to statuses follow from the type and its predecessor."""

    type: str
    facts: dict[str, str | int | None]


class Change(Record):
    """What one commit does to a Run, its Attempt and its history; built by `Story`."""

    before: Run | None
    run: Run
    attempt_before: Attempt | None
    attempt: Attempt | None
    events: tuple[Event, ...]


def at_or_after(at_ms: int, *moments: int | None) -> int:
    """The observed time, never before a durable one: the clock may have stepped back."""
    return max(at_ms, *(moment for moment in moments if moment is not None), 0)


class Story:
    """Collects legal transitions of one Run and one Attempt into one `Change`."""

    def __init__(self, run: Run, attempt: Attempt | None, *, stored: bool) -> None:
        self.run = run
        self.attempt = attempt
        self._before = run if stored else None
        self._attempt_before = attempt if stored else None
        self._events: list[Event] = []

    def note(self, kind: str, **facts: str | int | None) -> None:
        """Append an Event that moves neither status."""
        self._events.append(Event(type=kind, facts=facts))
        self.run = self.run.replace(version=self.run.version + 1)

    def ask_to_end(self, reason: str, at_ms: int) -> None:
        """Note that somebody wants the Run to end; the first reason stays."""
        if self.run.cancel_reason is None:
            self.run = self.run.replace(cancel_requested_at_ms=at_ms, cancel_reason=reason)
            self.note("run.cancel_requested", reason=reason)

    def move_run(self, to: str, **fields: object) -> None:
        """Move the Run along the table, or raise `Refused`."""
        if to not in RUN_NEXT[self.run.status]:
            raise Refused(
                "illegal_transition",
                "The run cannot go from its status to the other.",
                status=self.run.status,
                target=to,
            )
        code = fields.get("error_code")
        self.run = self.run.replace(status=to, **fields)
        self.note(f"run.{to}", **_shown(code))

    def move_attempt(self, to: str, facts: dict[str, str | int | None], **fields: object) -> None:
        """Move the Attempt along the table, or raise `Refused`."""
        attempt = self.attempt
        if attempt is None or to not in ATTEMPT_NEXT[attempt.status]:
            raise Refused(
                "illegal_transition",
                "The attempt cannot go from its status to the other.",
                status=attempt.status if attempt is not None else None,
                target=to,
            )
        self.attempt = attempt.replace(status=to, **fields)
        self.note(f"attempt.{to}", **facts, **_shown(fields.get("error_code")))

    def begin_attempt(self, attempt: Attempt) -> None:
        """A further Attempt of a waiting Run."""
        self.attempt = attempt
        self._attempt_before = None
        self.note("attempt.claimed", attempt=attempt.attempt)

    def change(self) -> Change:
        """The commit that tells this story."""
        return Change(
            before=self._before,
            run=self.run,
            attempt_before=self._attempt_before,
            attempt=self.attempt,
            events=tuple(self._events),
        )


def _shown(code: object) -> dict[str, str | int | None]:
    return {"error_code": str(code)} if code else {}


def outcome(exit_code: int, cancel_reason: str | None) -> tuple[str, str | None]:
    """The end that a proven exit code means: (status, error code)."""
    if cancel_reason == "timeout":
        return TIMED_OUT, EXECUTION_TIMED_OUT
    if cancel_reason is not None:
        return CANCELLED, EXECUTION_CANCELLED
    if exit_code == 0:
        return SUCCEEDED, None
    return FAILED, EXECUTION_FAILED
