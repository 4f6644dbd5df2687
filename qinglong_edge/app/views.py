"""What front ends see: runs, tasks and triggers as JSON documents.

Owns the shapes that scripts and web pages rely on; more keys may be added, what is here keeps its
meaning. Times are epoch milliseconds or null.
"""

from __future__ import annotations

from qinglong_edge.core.errors import EdgeError
from qinglong_edge.core.run import BOOT, CRON, DISPATCHING, EVERY, NONE, RUNNING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qinglong_edge.app.runtime import Runtime
    from qinglong_edge.core.commit import Cursor
    from qinglong_edge.core.run import Attempt, Run
    from qinglong_edge.core.task import Task

Document = dict[str, object]


def run_document(runtime: Runtime, run: Run) -> Document:
    """RUN: one run with the facts of its newest attempt."""
    attempt = runtime.store.runs.latest_attempt(run.number)
    task = runtime.store.tasks.get(run.task_number)
    log_bytes, truncated = log_facts(runtime, run, attempt)
    started, finished = run.started_at_ms, run.finished_at_ms
    return {
        "run": run.id,
        "number": run.number,
        "task": None if task is None else task.name,
        "revision": run.revision,
        "status": RUNNING if run.status == DISPATCHING else run.status,
        "trigger": run.trigger_kind,
        "scheduled_for_ms": run.scheduled_for_ms,
        "created_at_ms": run.created_at_ms,
        "started_at_ms": started,
        "finished_at_ms": finished,
        "duration_ms": None if started is None or finished is None else finished - started,
        "exit_code": None if attempt is None else attempt.exit_code,
        "signal": None if attempt is None else attempt.signal,
        "error_code": run.error_code,
        "attempts": 0 if attempt is None else attempt.attempt,
        "evidence": NONE if attempt is None else attempt.evidence,
        "log_bytes": log_bytes,
        "log_truncated": truncated,
        "cancel_reason": run.cancel_reason,
        "retry_at_ms": run.retry_at_ms,
        "hold": _hold(runtime, run),
    }


def _hold(runtime: Runtime, run: Run) -> str | None:
    active = runtime.coordinator.registry.get(run.number)
    return None if active is None else active.hold


def log_facts(
    runtime: Runtime, run: Run, attempt: Attempt | None
) -> tuple[int | None, bool | str | None]:
    """(bytes, truncated) of an attempt's log: as recorded, else as the file says now."""
    if attempt is None or not attempt.log_quota_bytes:
        return None, None
    try:
        size = attempt.log_bytes
        if size is None:
            size = runtime.logs.size(run.id, attempt.id)
        truncated = attempt.log_truncated
        if truncated is None:
            truncated = runtime.logs.truncated(run.id, attempt.id)
    except OSError:
        return None, "unknown"
    if truncated is None:
        return size, "unknown"
    return size, truncated


def attempt_document(runtime: Runtime, run: Run, attempt: Attempt) -> Document:
    """One attempt of a run."""
    log_bytes, truncated = log_facts(runtime, run, attempt)
    started, finished = attempt.started_at_ms, attempt.finished_at_ms
    return {
        "attempt": attempt.attempt,
        "id": attempt.id,
        "status": attempt.status,
        "pid": attempt.pid,
        "created_at_ms": attempt.created_at_ms,
        "started_at_ms": started,
        "finished_at_ms": finished,
        "duration_ms": None if started is None or finished is None else finished - started,
        "deadline_at_ms": attempt.deadline_at_ms,
        "exit_code": attempt.exit_code,
        "signal": attempt.signal,
        "error_code": attempt.error_code,
        "evidence": attempt.evidence,
        "log_bytes": log_bytes,
        "log_truncated": truncated,
    }


def event_documents(runtime: Runtime, run: Run) -> list[Document]:
    """The history of a run, expanded: one document an event, in sequence."""
    documents: list[Document] = []
    run_status: str | None = None
    attempt_status: str | None = None
    for sequence, at_ms, actor, event in runtime.store.runs.events(run.number):
        payload: Document = {}
        family, _, word = event.type.partition(".")
        if event.type == "run.created":
            payload["status"] = run_status = "created"
        elif family == "run" and word != "cancel_requested":
            payload.update(from_status=run_status, to_status=word)
            run_status = word
        elif family == "attempt":
            payload.update(from_status=attempt_status, to_status=word)
            attempt_status = word
        documents.append(
            {
                "sequence": sequence,
                "type": event.type,
                "at_ms": at_ms,
                "actor": actor,
                "payload": {**payload, **event.facts, "version": sequence},
            }
        )
    return documents


def trigger_document(runtime: Runtime, cursor: Cursor) -> Document:
    """One trigger with the next moment it is due."""
    return {
        "trigger": cursor.trigger_number,
        "kind": cursor.kind,
        "expression": cursor.expression if cursor.kind != BOOT else None,
        "zone": cursor.zone if cursor.kind == CRON else None,
        "misfire": cursor.misfire,
        "next_at_ms": next_at_ms(runtime, cursor),
        "last_scheduled_ms": cursor.last_scheduled_ms,
        "skipped": cursor.skipped,
        "parked": cursor.parked,
    }


def next_at_ms(runtime: Runtime, cursor: Cursor) -> int | None:
    """The firing cursor itself; before the scheduler set it, what it would be from now."""
    if cursor.parked is not None or cursor.kind == BOOT or not cursor.enabled:
        return None
    clock, trust = runtime.parts.clock, runtime.trust
    if cursor.kind == EVERY:
        due = cursor.next_at_ms if cursor.boot_id == runtime.boot_id else None
        if due is None:
            due = runtime.scheduler.next_of(cursor, clock.boot_ms())
        return None if due is None else due + trust.offset_ms
    if cursor.next_at_ms is not None:
        return cursor.next_at_ms
    try:
        return runtime.scheduler.next_of(cursor, clock.wall_ms())
    except EdgeError:
        return None


def task_document(runtime: Runtime, task: Task, last: tuple[int, str] | None) -> Document:
    """One row of the task list."""
    cursors = runtime.store.tasks.task_cursors(task.number)
    return {
        "task": task.name,
        "revision": task.revision,
        "enabled": task.enabled,
        "triggers": [trigger_document(runtime, cursor) for cursor in cursors],
        "last_run": None if last is None else {"number": last[0], "status": last[1]},
        "active": runtime.coordinator.registry.of_task(task.number),
    }


def newest_document(runtime: Runtime, task: Task) -> Document:
    """The same of a single task, whose last run is looked up."""
    last = runtime.store.runs.newest_of(task.number)
    return task_document(runtime, task, None if last is None else (last.number, last.status))


def definition_document(runtime: Runtime, task: Task) -> Document:
    """A task's newest revision with its recipe: names, public values, secret references."""
    revision = runtime.store.tasks.revision(task.number, task.revision)
    recipe = runtime.store.tasks.recipe(revision.recipe_number)
    environment: list[Document] = []
    for binding in recipe.bindings:
        shown: Document = {"name": binding.name, "kind": binding.kind}
        if binding.is_secret:
            shown["secret_ref"] = binding.content
        else:
            shown["value"] = binding.content
        environment.append(shown)
    return {
        **newest_document(runtime, task),
        "context_ref": revision.context_ref,
        "created_at_ms": task.created_at_ms,
        **revision.definition.document(),
        "environment": environment,
    }
