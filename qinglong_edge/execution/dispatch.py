"""Which run starts when: overlap per task, places per box, retries that have come due.

Owns the waiting line, an index of the queued and retry-waiting Runs in the database.

| overlap  | a place or a waiting run of the task exists | effect                                  |
|----------|---------------------------------------------|-----------------------------------------|
| skip     | yes                                         | nothing is admitted                     |
| queue    | yes                                         | waits its turn; at most 16 per task     |
| parallel | as many as allowed                          | nothing is admitted                     |
| replace  | yes                                         | the others are cancelled, then it runs  |

With a free place an admission is one commit (Run, Attempt, journal row, cursor) behind the closed
gate. A launch that fails for a passing reason leaves its claim and is tried again after 1 s to
5 min; after a crash the line is what the database says.
"""

from __future__ import annotations

from qinglong_edge.core.commit import Commit
from qinglong_edge.core.errors import EdgeError, Refused, Unavailable
from qinglong_edge.core.limits import (
    LAUNCH_BACKOFF_MS_MAX,
    LAUNCH_BACKOFF_MS_MIN,
    QUEUED_PER_TASK_MAX,
)
from qinglong_edge.core.run import (
    CANCELLED,
    CLAIMED,
    EXECUTION_CANCELLED,
    MANUAL,
    QUEUED,
    RETRY_WAIT,
    Attempt,
    Run,
    Story,
    at_or_after,
)
from qinglong_edge.core.task import PARALLEL, QUEUE, REPLACE, SKIP
from qinglong_edge.execution import endings
from qinglong_edge.execution.starts import Draft

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from qinglong_edge.core.commit import CursorMove
    from qinglong_edge.core.ids import IdSource
    from qinglong_edge.core.task import Definition, Revision, Task
    from qinglong_edge.execution.active import Active
    from qinglong_edge.execution.coordinator import Coordinator
    from qinglong_edge.execution.ports import ClockPort, LoopPort, StorePort, TimerPort
    from qinglong_edge.execution.starts import Starter

_PAGE = 256


class Request:
    """One intent to run a task; `done` gets the Run and Attempt, or why there are none."""

    __slots__ = (
        "actor",
        "cursors",
        "done",
        "kind",
        "recipe_number",
        "revision",
        "scheduled_ms",
        "task",
        "trigger_number",
    )

    def __init__(
        self,
        task: Task,
        revision: Revision,
        *,
        kind: str = MANUAL,
        actor: str,
        trigger_number: int | None = None,
        scheduled_ms: int | None = None,
        recipe_number: int | None = None,
        cursors: tuple[CursorMove, ...] = (),
        done: Callable[[Run | None, Attempt | None, EdgeError | None], None],
    ) -> None:
        self.task = task
        self.revision = revision
        self.kind = kind
        self.actor = actor
        self.trigger_number = trigger_number
        self.scheduled_ms = scheduled_ms
        self.recipe_number = recipe_number or revision.recipe_number
        self.cursors = cursors
        self.done = done


class Waiting:
    """A Run in the line; `not_before_ms` is boottime."""

    __slots__ = ("failures", "not_before_ms", "retry", "run_number", "starting", "task_number")

    def __init__(self, run: Run, not_before_ms: int, *, retry: bool) -> None:
        self.run_number = run.number
        self.task_number = run.task_number
        self.not_before_ms = not_before_ms
        self.retry = retry
        self.failures = 0
        self.starting = False


class Dispatcher:
    """Admits requests and starts waiting runs as places become free."""

    def __init__(
        self,
        *,
        store: StorePort,
        coordinator: Coordinator,
        starter: Starter,
        loop: LoopPort,
        clock: ClockPort,
        id_source: IdSource,
        places: int,
        log_quota_bytes: int,
    ) -> None:
        self._store = store
        self._coordinator = coordinator
        self._starter = starter
        self._loop = loop
        self._clock = clock
        self._ids = id_source
        self._places = places
        self._log_quota_bytes = log_quota_bytes
        self._line: dict[int, Waiting] = {}
        self._timer: TimerPort | None = None
        self._open = False
        self.replace: Callable[[Active], None] = lambda _active: None
        self.on_settled: Callable[[Run], None] = lambda _run: None
        self.degraded: dict[str, str] = {}
        coordinator.on_ended = self._ended

    @property
    def waiting(self) -> int:
        """How many Runs wait."""
        return len(self._line)

    def holds(self, task_number: int) -> bool:
        """True while a Run of the task waits or is being launched."""
        return bool(self._queued(task_number) or self._launching(task_number))

    def open(self, *, others: bool = True) -> None:
        """Begin to start runs; without `others` only those that are admitted from now on."""
        self._open = True
        if not others:
            for waiting in self._line.values():
                waiting.starting = True
        self.pump()

    def close(self) -> None:
        """Start nothing any more."""
        self._open = False
        if self._timer is not None:
            self._timer.cancel()

    def load(self) -> None:
        """Fill the line from the database, in pages."""
        after = 0
        while True:
            page = self._store.runs.waiting(after=after, limit=_PAGE)
            for run in page:
                after = run.number
                self._join(run)
            if len(page) < _PAGE:
                return

    def _join(self, run: Run) -> Waiting:
        """Put a stored Run into the line; a stored wall time becomes a delay of at most a day."""
        delay_ms = 0
        if run.status == RETRY_WAIT and run.retry_at_ms is not None:
            delay_ms = min(max(0, run.retry_at_ms - self._clock.wall_ms()), 86_400_000)
        waiting = Waiting(run, self._clock.boot_ms() + delay_ms, retry=run.status == RETRY_WAIT)
        self._line[run.number] = waiting
        return waiting

    # -- admission --------------------------------------------------------------------------------

    def admit(self, request: Request) -> None:
        """Start, queue or refuse a request; `request.done` is called now or from the loop.

        `Refused`: `overlap_skipped`, `queue_full`; otherwise what the launch or storage said.
        """
        definition = request.revision.definition
        refusal = self._overlap(request.task, definition)
        if refusal is not None:
            request.done(None, None, refusal)
            return
        draft = Draft(
            self._story(request), actor=request.actor, cursors=request.cursors, done=_none
        )
        draft.done = lambda draft, error: self._launched(request, draft, error)
        first = not self._queued(request.task.number)
        if self._open and first and self._may_start(request.task.number, definition):
            self._starter.begin(draft)
        else:
            self._enqueue(request, draft)

    def _overlap(self, task: Task, definition: Definition) -> Refused | None:
        active = self._coordinator.registry.of_task(task.number) + self._launching(task.number)
        queued = self._queued(task.number)
        if definition.overlap == SKIP and active + queued:
            return Refused("overlap_skipped", "The task is running already.", active=active)
        if definition.overlap == PARALLEL and active + queued >= definition.parallel_max:
            return Refused("overlap_skipped", "The task runs as often as it may.", active=active)
        if definition.overlap == QUEUE and queued >= QUEUED_PER_TASK_MAX:
            return Refused(
                "queue_full", "The task has as many waiting runs as it may.", waiting=queued
            )
        if definition.overlap == REPLACE and active + queued:
            self._make_way(task.number)
        return None

    def _queued(self, task_number: int) -> int:
        return sum(1 for each in self._line.values() if each.task_number == task_number)

    def _make_way(self, task_number: int) -> None:
        for waiting in [each for each in self._line.values() if each.task_number == task_number]:
            if not waiting.starting:
                self.cancel_waiting(waiting.run_number, reason="replaced", actor="scheduler")
        for draft in self._starter.launching.values():
            if draft.run.task_number == task_number:
                draft.cancelled = True
        for active in self._coordinator.registry.of(task_number):
            self.replace(active)

    def _launching(self, task_number: int) -> int:
        drafts = self._starter.launching.values()
        return sum(1 for draft in drafts if draft.run.task_number == task_number)

    def _may_start(self, task_number: int, definition: Definition) -> bool:
        registry = self._coordinator.registry
        if len(registry) + len(self._starter.launching) >= self._places:
            return False
        mine = registry.of_task(task_number) + self._launching(task_number)
        return mine < (definition.parallel_max if definition.overlap == PARALLEL else 1)

    def _story(self, request: Request) -> Story:
        now_ms = self._clock.wall_ms()
        run = Run(
            number=self._store.runs.next_number(),
            id=self._ids.next(),
            task_number=request.task.number,
            revision=request.revision.revision,
            status=QUEUED,
            version=0,
            trigger_kind=request.kind,
            trigger_number=request.trigger_number,
            recipe_number=request.recipe_number,
            scheduled_for_ms=request.scheduled_ms,
            created_at_ms=now_ms,
        )
        story = Story(run, self._claim(run, 1, request.revision.definition, now_ms), stored=False)
        story.note("run.created")
        story.note("run.queued")
        return story

    def _claim(self, run: Run, number: int, definition: Definition, now_ms: int) -> Attempt:
        return Attempt(
            run_number=run.number,
            attempt=number,
            id=self._ids.next(),
            status=CLAIMED,
            log_quota_bytes=self._log_quota_bytes if definition.log else 0,
            created_at_ms=at_or_after(now_ms, run.created_at_ms),
        )

    def _enqueue(self, request: Request, draft: Draft, *, delay_ms: int = 0) -> None:
        """Commit a Run that waits, with its claimed Attempt and the cursor's move."""
        change = draft.story.change()
        try:
            self._coordinator.save(
                Commit(
                    at_ms=change.run.created_at_ms,
                    actor=request.actor,
                    changes=(change,),
                    cursors=request.cursors,
                )
            )
        except EdgeError as error:
            request.done(None, None, error)
            return
        waiting = self._join(change.run)
        waiting.not_before_ms += delay_ms
        waiting.failures = 1 if delay_ms else 0
        request.done(change.run, change.attempt, None)
        self.pump()

    def _launched(self, request: Request, draft: Draft, error: EdgeError | None) -> None:
        """A first launch came to its end: running, refused for good, or to be tried again."""
        if error is None:
            self.degraded.pop("launch", None)
            request.done(draft.run, draft.attempt, None)
            return
        if error.code == "cancelled" or error.code == "stale":
            request.done(None, None, error)
            return
        request_fresh = self._rewound(draft)
        if isinstance(error, Unavailable):
            self.degraded["launch"] = error.code
            self._enqueue(request, request_fresh, delay_ms=LAUNCH_BACKOFF_MS_MIN)
            return
        self._refuse(request_fresh, error, request)

    def _rewound(self, draft: Draft) -> Draft:
        """The draft as it was before the launch moved its story."""
        run = draft.run.replace(status=QUEUED, version=0, started_at_ms=None)
        attempt = Attempt(
            run_number=run.number,
            attempt=1,
            id=draft.attempt.id,
            status=CLAIMED,
            log_quota_bytes=draft.attempt.log_quota_bytes,
            created_at_ms=draft.attempt.created_at_ms,
        )
        story = Story(run, attempt, stored=False)
        story.note("run.created")
        story.note("run.queued")
        return Draft(story, actor=draft.actor, cursors=draft.cursors, done=_none)

    def _refuse(self, draft: Draft, error: EdgeError, request: Request) -> None:
        """A permanent refusal is a failed Run with its code, without journal row or log."""
        story = draft.story
        endings.refuse(story, error.code, now_ms=self._clock.wall_ms())
        change = story.change()
        try:
            self._coordinator.save(
                Commit(
                    at_ms=change.run.finished_at_ms or 0,
                    actor=draft.actor,
                    changes=(change,),
                    cursors=request.cursors,
                )
            )
        except EdgeError as failure:
            request.done(None, None, failure)
            return
        request.done(change.run, change.attempt, None)
        self.on_settled(change.run)

    # -- the line ---------------------------------------------------------------------------------

    def pump(self) -> None:
        """Start every waiting run that may, in order; arm a timer for the next that is due."""
        if not self._open:
            return
        now_ms = self._clock.boot_ms()
        next_ms: int | None = None
        for waiting in list(self._line.values()):
            if waiting.starting:
                continue
            if waiting.not_before_ms > now_ms:
                next_ms = min(next_ms or waiting.not_before_ms, waiting.not_before_ms)
            elif len(self._coordinator.registry) + len(self._starter.launching) < self._places:
                self._start_waiting(waiting)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if next_ms is not None:
            self._timer = self._loop.call_at(next_ms, self.pump)

    def _start_waiting(self, waiting: Waiting) -> None:
        run = self._store.runs.get(waiting.run_number)
        if run is None or run.status not in (QUEUED, RETRY_WAIT):
            self._line.pop(waiting.run_number, None)
            return
        try:
            revision = self._store.tasks.revision(run.task_number, run.revision)
        except EdgeError as error:
            self._retry_later(waiting, error)
            return
        if not self._may_start(run.task_number, revision.definition):
            return
        story = self._resumed(run, revision.definition)
        waiting.starting = True
        self._starter.begin(
            Draft(
                story,
                actor="executor",
                done=lambda draft, error: self._resumed_done(waiting, draft, error),
            )
        )

    def _resumed(self, run: Run, definition: Definition) -> Story:
        """A waiting Run's story: its stored claim, or a further attempt after a retry's delay."""
        attempt = self._store.runs.latest_attempt(run.number)
        if run.status == QUEUED and attempt is not None and attempt.status == CLAIMED:
            return Story(run, attempt, stored=True)
        story = Story(run, attempt, stored=True)
        if run.status == RETRY_WAIT:
            story.move_run(QUEUED, retry_at_ms=None, error_code=None)
        number = 1 if attempt is None else attempt.attempt + 1
        story.begin_attempt(self._claim(run, number, definition, self._clock.wall_ms()))
        return story

    def _resumed_done(self, waiting: Waiting, draft: Draft, error: EdgeError | None) -> None:
        waiting.starting = False
        if error is None:
            self.degraded.pop("launch", None)
            self._line.pop(waiting.run_number, None)
            return
        if error.code == "cancelled":
            return
        if isinstance(error, Unavailable) or error.code == "stale":
            self._retry_later(waiting, error)
            return
        run = self._store.runs.get(waiting.run_number)
        if run is None:
            self._line.pop(waiting.run_number, None)
            return
        try:
            story = self._resumed(run, self._definition_of(draft))
            endings.refuse(story, error.code, now_ms=self._clock.wall_ms())
            change = story.change()
            self._coordinator.save(
                Commit(at_ms=change.run.finished_at_ms or 0, actor="executor", changes=(change,))
            )
        except EdgeError as failure:
            self._retry_later(waiting, failure)
            return
        self._line.pop(waiting.run_number, None)
        self.on_settled(change.run)

    def _definition_of(self, draft: Draft) -> Definition:
        return self._store.tasks.revision(draft.run.task_number, draft.run.revision).definition

    def _retry_later(self, waiting: Waiting, error: EdgeError) -> None:
        waiting.failures += 1
        self.degraded["launch"] = error.code
        delay_ms = min(LAUNCH_BACKOFF_MS_MAX, LAUNCH_BACKOFF_MS_MIN << min(waiting.failures - 1, 9))
        waiting.not_before_ms = self._clock.boot_ms() + delay_ms
        self.pump()

    def _ended(self, run: Run) -> None:
        if run.status == RETRY_WAIT:
            self._join(run)
        self.on_settled(run)
        self.pump()

    def cancel_waiting(self, run_number: int, *, reason: str, actor: str) -> Run | None:
        """End a Run that waits; None if it does not wait (any more)."""
        waiting = self._line.get(run_number)
        run = self._store.runs.get(run_number)
        if run is None or run.status not in (QUEUED, RETRY_WAIT):
            return None
        if waiting is not None and waiting.starting:
            draft = self._starter.launching.get(run_number)
            if draft is not None:
                draft.cancelled = True
        attempt = self._store.runs.latest_attempt(run_number)
        at_ms = at_or_after(self._clock.wall_ms(), run.created_at_ms, run.started_at_ms)
        story = Story(run, attempt, stored=True)
        story.run = story.run.replace(cancel_requested_at_ms=at_ms, cancel_reason=reason)
        story.note("run.cancel_requested", reason=reason)
        if attempt is not None and attempt.status == CLAIMED:
            story.move_attempt(CANCELLED, {}, finished_at_ms=at_ms, error_code=EXECUTION_CANCELLED)
        story.move_run(
            CANCELLED, finished_at_ms=at_ms, retry_at_ms=None, error_code=EXECUTION_CANCELLED
        )
        change = story.change()
        self._coordinator.save(Commit(at_ms=at_ms, actor=actor, changes=(change,)))
        self._line.pop(run_number, None)
        self.on_settled(change.run)
        return change.run


def _none(_draft: Draft, _error: EdgeError | None) -> None:
    """Replaced before it is ever called."""
