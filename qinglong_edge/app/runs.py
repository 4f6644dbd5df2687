"""Methods about runs: `run.*`, `runs.list`, `log.read`.

Owns how a person's word for a run (id, short number, task name) finds it, and the answers that come
later: a start is answered once it is durable, a stop once it is proven, a wait once the run ended.
"""

from __future__ import annotations

import binascii

from qinglong_edge.app import views
from qinglong_edge.app.rpc import Pending
from qinglong_edge.app.tasks import require
from qinglong_edge.core import ids
from qinglong_edge.core.commit import AttemptKey
from qinglong_edge.core.errors import EdgeError, Invalid, Refused
from qinglong_edge.core.limits import (
    GRACE_MS_MAX,
    LOG_RANGE_BYTES_MAX,
    PAGE_MAX,
    REASON_CHARACTERS_MAX,
)
from qinglong_edge.core.run import STATUSES
from qinglong_edge.execution.control import SETTLED_STATUSES
from qinglong_edge.execution.dispatch import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qinglong_edge.app.params import Params
    from qinglong_edge.app.runtime import Runtime
    from qinglong_edge.app.views import Document
    from qinglong_edge.core.run import Attempt, Run

_PAGE = 50
_UUID_CHARACTERS = 36


def find(runtime: Runtime, text: str) -> Run:
    """A run by number, id, or the newest one of a task; `Refused` (`run_unknown`) otherwise."""
    runs = runtime.store.runs
    found: Run | None = None
    if text.isascii() and text.isdigit() and len(text) <= 15:
        found = runs.get(int(text))
    else:
        task = runtime.store.tasks.find(text)
        if task is not None:
            found = runs.newest_of(task.number)
        elif len(text) == _UUID_CHARACTERS:
            found = _by_id(runtime, text)
    if found is None:
        raise Refused("run_unknown", "There is no such run, or no run of such a task.")
    return found


def _by_id(runtime: Runtime, text: str) -> Run | None:
    try:
        return runtime.store.runs.find_id(ids.uuid7(text.lower(), "run"))
    except Invalid:
        return None


def _refuse_unread(runtime: Runtime, run: Run) -> None:
    """A one-shot owner judges nothing, so it may not talk over a receipt that is waiting."""
    active = runtime.coordinator.registry.get(run.number)
    if not runtime.daemon and active is not None and runtime.receipts.exists(active.attempt.id):
        raise Refused(
            "run_ended", "The run has ended; the next daemon records how.", run=run.number
        )


def start(runtime: Runtime, params: Params) -> Pending:
    """`run.start`: a manual run now; answered once it is durable."""
    task = require(runtime, params.text("name"))
    given = params.mapping("environment")
    params.end()
    revision = runtime.store.tasks.revision(task.number, task.revision)
    recipe_number = None
    refusal = runtime.dispatcher.refusal(task, revision.definition)
    if refusal is not None:
        raise refusal
    if given:
        from qinglong_edge.app.definitions import recipe_of

        merged = recipe_of(given, runtime.store.tasks.recipe(revision.recipe_number))
        with runtime.store.database.write():
            recipe_number, _outcome = runtime.store.tasks.insert_recipe(
                merged, runtime.parts.clock.wall_ms()
            )
    pending = Pending()

    def done(run: Run | None, attempt: Attempt | None, error: EdgeError | None) -> None:
        if run is None or attempt is None:
            pending.settle(error=error)
            return
        pending.settle(
            {
                "run": run.id,
                "number": run.number,
                "attempt": attempt.attempt,
                "status": run.status,
            }
        )

    runtime.dispatcher.admit(
        Request(task, revision, actor=params.peer.actor, recipe_number=recipe_number, done=done)
    )
    return pending


def wait(runtime: Runtime, params: Params) -> Pending:
    """`run.wait`: RUN, once it has ended for good."""
    run = find(runtime, params.text("run"))
    params.end()
    pending = Pending()
    if run.ended:
        pending.settle(views.run_document(runtime, run))
        return pending

    def settled(ended: Run) -> bool:
        mine = ended.number == run.number and ended.ended
        if mine:
            _answer(runtime, pending, ended)
        return mine

    runtime.settled.append(settled)
    pending.on_abandoned = lambda: _forget(runtime, settled)
    return pending


def _answer(runtime: Runtime, pending: Pending, run: Run) -> None:
    """RUN as the answer, or why it cannot be read; the run's end stands all the same."""
    try:
        pending.settle(views.run_document(runtime, run))
    except EdgeError as error:
        pending.settle(error=error)


def _forget(runtime: Runtime, listener: object) -> None:
    runtime.settled[:] = [each for each in runtime.settled if each is not listener]


def stop(runtime: Runtime, params: Params) -> Pending:
    """`run.stop`: TERM, bounded wait, KILL, proof; answered with RUN once it has ended."""
    run = find(runtime, params.text("run"))
    grace_ms = params.number("grace_ms", highest=GRACE_MS_MAX)
    params.end()
    if run.ended:
        raise Refused("run_ended", "The run has ended already.", run=run.number, status=run.status)
    _refuse_unread(runtime, run)
    pending = Pending()

    def done(error: EdgeError | None) -> None:
        try:
            found = None if error is not None else runtime.store.runs.get(run.number)
        except EdgeError as unread:
            found, error = None, unread
        if found is None:
            pending.settle(error=error)
        else:
            _answer(runtime, pending, found)

    pending.on_abandoned = lambda: runtime.control.forget(run, done)
    runtime.control.stop(run, actor=params.peer.actor, grace_ms=grace_ms, done=done)
    return pending


def settle(runtime: Runtime, params: Params) -> Document:
    """`run.settle`: the operator's word on a run that could not be proven."""
    run = find(runtime, params.text("run"))
    status, reason = params.text("as"), params.text("reason")
    params.end()
    if status not in SETTLED_STATUSES:
        raise Invalid(
            "choice_unknown", "A value is not one of lost, failed, cancelled.", field="as"
        )
    if not reason.strip() or len(reason) > REASON_CHARACTERS_MAX:
        raise Invalid("reason_invalid", "A reason is 1 to 256 characters.")
    _refuse_unread(runtime, run)
    ended = runtime.control.settle(
        run,
        status=status,
        reason=reason,
        actor=params.peer.actor,
        audit=(runtime.audited(params, str(run.number)),),
    )
    return views.run_document(runtime, ended)


def show(runtime: Runtime, params: Params) -> Document:
    """`run.show`: one run with its attempts and events."""
    run = find(runtime, params.text("run"))
    params.end()
    return {
        "run": views.run_document(runtime, run),
        "attempts": [
            views.attempt_document(runtime, run, attempt)
            for attempt in runtime.store.runs.attempts(run.number)
        ],
        "events": views.event_documents(runtime, run),
    }


def listing(runtime: Runtime, params: Params) -> Document:
    """`runs.list`: newest first; `next` continues below the last one given."""
    name, status = params.maybe_text("task"), params.maybe_text("status")
    limit = params.number("limit", lowest=1, highest=PAGE_MAX) or _PAGE
    after = params.number("after", lowest=1)
    params.end()
    if status is not None and status not in STATUSES:
        raise Invalid(
            "choice_unknown", f"A value is not one of {', '.join(STATUSES)}.", field="status"
        )
    task_number = None if name is None else require(runtime, name).number
    page = runtime.store.runs.page(
        limit=limit, before=after, task_number=task_number, status=status
    )
    return {
        "runs": [views.run_document(runtime, run) for run in page],
        "next": page[-1].number if len(page) == limit else None,
    }


def read_log(runtime: Runtime, params: Params) -> Document:
    """`log.read`: a range of a log as base64; `tail` counts bytes from the end.

    Of a log that retention deleted: when, and what is still known of it.
    """
    run = find(runtime, params.text("run"))
    number = params.number("attempt", lowest=1, highest=16)
    tail = params.number("tail", highest=LOG_RANGE_BYTES_MAX)
    offset = params.number("offset") or 0
    length = params.number("length", highest=LOG_RANGE_BYTES_MAX)
    params.end()
    newest = attempt = runtime.store.runs.latest_attempt(run.number)
    if number is not None:
        attempt = runtime.store.runs.attempt(AttemptKey(run_number=run.number, attempt=number))
    if attempt is None or newest is None:
        raise Refused("attempt_unknown", "The run has no such attempt.", run=run.number)
    if not attempt.log_quota_bytes:
        raise Refused("log_none", "The task keeps no log.", run=run.number)
    key = AttemptKey(run_number=run.number, attempt=attempt.attempt)
    retired = runtime.store.tombstones.get(key)
    if retired is not None:
        return {
            "retired_at_ms": retired.retired_at_ms,
            "bytes": retired.bytes,
            "truncated": "unknown" if retired.truncated is None else retired.truncated,
        }
    found = runtime.logs.read(
        run.id,
        attempt.id,
        offset=offset if tail is None else -tail if tail else 2**53,
        length=LOG_RANGE_BYTES_MAX if length is None else length,
    )
    _bytes, truncated = views.log_facts(runtime, run, attempt)
    return {
        "offset": 0 if found is None else found.offset,
        "end": 0 if found is None else found.end,
        "total": 0 if found is None else found.total,
        "truncated": truncated,
        "data": binascii.b2a_base64(b"" if found is None else found.data, newline=False).decode(),
        "attempt": attempt.attempt,
        "attempts": newest.attempt,
        "ended": run.ended or attempt.attempt < newest.attempt,
    }
