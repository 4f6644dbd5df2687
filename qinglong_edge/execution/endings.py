"""How an attempt's end is told: one story for each kind of evidence.

Owns the mapping from evidence to status. Pure: run, attempt and evidence in, a `Change` out.

| evidence      | proven by                                   | status                             |
|---------------|---------------------------------------------|------------------------------------|
| receipt       | the authenticated receipt                   | by exit code, or as was asked      |
| wait_status   | an own wrapper's normal exit, no receipt    | by exit code, or as was asked      |
| identity      | an empty session, no receipt                | as was asked, else lost            |
| operator      | a person's word on an unprovable run        | as the person says                 |
| none          | the command was never reached               | failed                             |

"As was asked": a run whose stop was requested ends cancelled, or timed_out if a deadline asked.
A run ends when its receipt says so; if nothing says it, when its end was seen.
"""

from __future__ import annotations

from qinglong_edge.core.record import Record
from qinglong_edge.core.run import (
    CANCELLED,
    CLAIMED,
    EXECUTION_CANCELLED,
    EXECUTION_TIMED_OUT,
    EXECUTOR_START_FAILED,
    FAILED,
    IDENTITY,
    LOST,
    NONE,
    OPERATOR,
    RECOVERY_PROCESS_NOT_RUNNING,
    RETRY_WAIT,
    TIMED_OUT,
    Attempt,
    Change,
    Run,
    Story,
    at_or_after,
    outcome,
)
from qinglong_edge.execution.retry import delay_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qinglong_edge.core.receipt import Receipt
    from qinglong_edge.core.task import Definition


class LogFacts(Record):
    """What is known of a log at its attempt's end; None = unknown."""

    bytes: int | None = None
    truncated: bool | None = None


class Ending(Record):
    """One attempt's end and the evidence for it."""

    status: str
    evidence: str
    exit_code: int | None = None
    signal: int | None = None
    error_code: str | None = None
    callback_sequence: int | None = None
    finished_at_ms: int | None = None


def by_code(
    exit_code: int, evidence: str, run: Run, *, stop_signal: int | None, receipt: Receipt | None
) -> Ending:
    """The end that an exit code proves; a signal only where our own stop explains the code."""
    status, error_code = outcome(exit_code, run.cancel_reason)
    explained = stop_signal is not None and exit_code == 128 + stop_signal
    return Ending(
        status=status,
        evidence=evidence,
        exit_code=exit_code,
        signal=stop_signal if explained else None,
        error_code=error_code,
        callback_sequence=None if receipt is None else receipt.callback_sequence,
        finished_at_ms=None if receipt is None else receipt.finished_at_ms,
    )


def by_absence(run: Run, *, stop_signal: int | None) -> Ending:
    """The end of a process that is proven gone and left no word."""
    if run.cancel_reason == "timeout":
        status, code = TIMED_OUT, EXECUTION_TIMED_OUT
    elif run.cancel_reason is not None:
        status, code = CANCELLED, EXECUTION_CANCELLED
    else:
        status, code = LOST, RECOVERY_PROCESS_NOT_RUNNING
    return Ending(status=status, evidence=IDENTITY, signal=stop_signal, error_code=code)


def by_no_start(run: Run, *, stop_signal: int | None) -> Ending:
    """The end of a process whose command was never reached."""
    if run.cancel_reason is not None:
        return by_absence(run, stop_signal=stop_signal)
    return Ending(status=FAILED, evidence=NONE, error_code=EXECUTOR_START_FAILED)


def tell(
    run: Run,
    attempt: Attempt,
    ending: Ending,
    *,
    definition: Definition | None,
    log: LogFacts,
    now_ms: int,
    facts: dict[str, str | int | None],
) -> Change:
    """The commit that ends an attempt, and its Run unless a retry follows.

    No retry follows an operator's word, or a definition that cannot be read.
    """
    finished_ms = now_ms if ending.finished_at_ms is None else ending.finished_at_ms
    at_ms = at_or_after(
        finished_ms,
        run.created_at_ms,
        run.started_at_ms,
        attempt.created_at_ms,
        attempt.started_at_ms,
    )
    story = Story(run, attempt, stored=True)
    facts = {**facts, "evidence": ending.evidence}
    if ending.exit_code is not None:
        facts["exit_code"] = ending.exit_code
    if ending.signal is not None:
        facts["signal"] = ending.signal
    story.move_attempt(
        ending.status,
        facts,
        callback_sequence=ending.callback_sequence or attempt.callback_sequence,
        finished_at_ms=at_ms,
        exit_code=ending.exit_code,
        signal=ending.signal,
        evidence=ending.evidence,
        error_code=ending.error_code,
        log_bytes=log.bytes,
        log_truncated=log.truncated,
    )
    delay = None
    if definition is not None and run.cancel_reason is None and ending.evidence != OPERATOR:
        delay = delay_ms(definition, attempt.attempt, ending.status)
    if delay is None:
        story.move_run(ending.status, finished_at_ms=at_ms, error_code=ending.error_code)
        return story.change()
    if ending.status == LOST:
        story.move_run(LOST, finished_at_ms=at_ms, error_code=ending.error_code)
    story.move_run(
        RETRY_WAIT,
        finished_at_ms=None,
        retry_at_ms=max(at_ms, now_ms) + delay,
        error_code=ending.error_code,
    )
    return story.change()


def cancel(story: Story, reason: str, *, now_ms: int) -> None:
    """The end of a Run that waits: nothing of it runs."""
    run, attempt, code = story.run, story.attempt, EXECUTION_CANCELLED
    created_ms = None if attempt is None else attempt.created_at_ms
    at_ms = at_or_after(now_ms, run.created_at_ms, run.started_at_ms, created_ms)
    story.ask_to_end(reason, at_ms)
    if attempt is not None and attempt.status == CLAIMED:
        story.move_attempt(CANCELLED, {}, finished_at_ms=at_ms, error_code=code)
    story.move_run(CANCELLED, finished_at_ms=at_ms, retry_at_ms=None, error_code=code)


def refuse(story: Story, code: str, *, now_ms: int) -> None:
    """A launch that was refused for good before anything ran: failed, without a journal row."""
    at_ms = at_or_after(
        now_ms,
        story.run.created_at_ms,
        story.run.started_at_ms,
        None if story.attempt is None else story.attempt.created_at_ms,
    )
    story.move_run("dispatching")
    story.move_attempt("starting", {})
    story.move_attempt(FAILED, {}, finished_at_ms=at_ms, error_code=code)
    story.move_run(FAILED, finished_at_ms=at_ms, error_code=code)
