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
    CLAIMED,
    MANUAL,
    QUEUED,
    RETRY_WAIT,
    WAITING,
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
_CANCELLED = "cancelled"


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
        "wanted",
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
        wanted: Callable[[], bool] | None = None,
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
        self.wanted = wanted
        self.done = done


class Waiting:
    """A Run in the line; `not_before_ms` is boottime."""

    __slots__ = (
        "failures",
        "not_before_ms",
        "reason",
        "retry",
        "run_number",
        "starting",
        "task_number",
    )

    def __init__(self, run: Run, not_before_ms: int) -> None:
        self.run_number = run.number
        self.task_number = run.task_number
        self.not_before_ms = not_before_ms
        self.retry = run.status == RETRY_WAIT
        self.failures = 0
        self.reason: str | None = None  # why its last launch failed
        self.starting = False

    def fail(self, now_ms: int, reason: str) -> None:
        """Be tried again after 1 s, 2 s, 4 s ... 5 min."""
        delay_ms = LAUNCH_BACKOFF_MS_MIN << min(self.failures, 9)
        self.failures += 1
        self.reason = reason
        self.not_before_ms = now_ms + min(LAUNCH_BACKOFF_MS_MAX, delay_ms)


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
        self._fence = 0  # runs up to this number are left to the daemon
        self._pumping = False
        self.replace: Callable[[Active], None] = lambda _active: None
        self.on_settled: Callable[[Run], None] = lambda _run: None
        coordinator.on_ended = self._ended

    @property
    def waiting(self) -> int:
        """How many Runs wait or are being launched."""
        return len(self._line.keys() | self._starter.launching.keys())

    @property
    def degraded(self) -> dict[int, str]:
        """Run number -> why it could not be launched yet."""
        line = self._line.values()
        return {each.run_number: each.reason for each in line if each.reason is not None}

    def holds(self, task_number: int) -> bool:
        """True while a Run of the task waits or is being launched."""
        return bool(self._queued(task_number) or self._launching(task_number))

    def open(self, *, others: bool = True) -> None:
        """Begin to start runs; without `others` only those that are admitted from now on."""
        self._open = True
        self._fence = 0 if others else max(self._line, default=0)
        self.pump()

    def close(self) -> None:
        """Start nothing any more; what was at its gate waits for the next owner."""
        self._open = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._starter.close()

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
        waiting = Waiting(run, self._clock.boot_ms() + delay_ms)
        self._line[run.number] = waiting
        return waiting

    # -- admission --------------------------------------------------------------------------------

    def admit(self, request: Request) -> None:
        """Start, queue or refuse a request; `request.done` is called now or from the loop.

        `Refused`: `overlap_skipped`, `queue_full`; otherwise what the launch or storage said.
        """
        definition = request.revision.definition
        refusal: EdgeError | None
        try:
            refusal = self.refusal(request.task, definition)
            if definition.overlap == REPLACE:
                self._make_way(request.task.number)
            run, attempt = self._claimed(request)
        except EdgeError as error:
            refusal = error
        if refusal is not None:
            request.done(None, None, refusal)
            return
        draft = Draft(
            _new_story(run, attempt),
            actor=request.actor,
            cursors=request.cursors,
            wanted=request.wanted,
            done=lambda draft, error: self._launched(request, (run, attempt), draft, error),
        )
        first = not self._queued(request.task.number)
        if self._open and first and self._may_start(request.task.number, definition):
            self._starter.begin(draft)
        else:
            self._enqueue(request, draft.story, None)
        self.pump()

    def refusal(self, task: Task, definition: Definition) -> EdgeError | None:
        """Why the overlap policy would refuse a run now; None if it would not."""
        active = self._coordinator.registry.of_task(task.number) + self._launching(task.number)
        queued = self._queued(task.number)
        if definition.overlap == SKIP and active + queued:
            word = "is running" if active else "has a run that waits"
            return Refused("overlap_skipped", f"The task {word} already.", active=active)
        if definition.overlap == PARALLEL and active + queued >= definition.parallel_max:
            return Refused("overlap_skipped", "The task runs as often as it may.", active=active)
        if definition.overlap == QUEUE and queued >= QUEUED_PER_TASK_MAX:
            return Refused(
                "queue_full", "The task has as many waiting runs as it may.", waiting=queued
            )
        return None

    def _queued(self, task_number: int) -> int:
        waiting = self._line.values()
        return sum(1 for each in waiting if each.task_number == task_number and not each.starting)

    def _make_way(self, task_number: int) -> None:
        before, self._pumping = self._pumping, True  # nothing of the line starts in between
        try:
            for waiting in list(self._line.values()):
                if waiting.task_number == task_number:
                    self.cancel_waiting(waiting.run_number, reason="replaced", actor="scheduler")
            for draft in list(self._starter.launching.values()):
                if draft.run.task_number == task_number:
                    self._starter.abandon(draft, _cancelled())
            for active in self._coordinator.registry.of(task_number):
                self.replace(active)
        finally:
            self._pumping = before

    def _launching(self, task_number: int) -> int:
        drafts = self._starter.launching.values()
        return sum(1 for draft in drafts if draft.run.task_number == task_number)

    def _place_free(self) -> bool:
        return self._coordinator.registry.busy + len(self._starter.launching) < self._places

    def _may_start(self, task_number: int, definition: Definition) -> bool:
        mine = self._coordinator.registry.of_task(task_number) + self._launching(task_number)
        most = definition.parallel_max if definition.overlap == PARALLEL else 1
        return mine < most and self._place_free()

    def _claimed(self, request: Request) -> tuple[Run, Attempt]:
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
        return run, self._claim(run, 1, log=request.revision.definition.log)

    def _claim(self, run: Run, number: int, *, log: bool) -> Attempt:
        return Attempt(
            run_number=run.number,
            attempt=number,
            id=self._ids.next(),
            status=CLAIMED,
            log_quota_bytes=self._log_quota_bytes if log else 0,
            created_at_ms=at_or_after(self._clock.wall_ms(), run.created_at_ms),
        )

    def _launched(
        self,
        request: Request,
        claimed: tuple[Run, Attempt],
        draft: Draft,
        error: EdgeError | None,
    ) -> None:
        """A first launch came to its end: running, refused for good, or to be tried again."""
        story = _new_story(*claimed)  # the launch has moved the draft's own
        if error is None:
            request.done(draft.run, draft.attempt, None)
        elif isinstance(error, Unavailable):
            self._enqueue(request, story, error)
        elif error.code in ("stale", "withdrawn"):
            request.done(None, None, error)
        else:
            if error.code == _CANCELLED:
                endings.cancel(story, "replaced", now_ms=self._clock.wall_ms())
            else:
                endings.refuse(story, error.code, now_ms=self._clock.wall_ms())
            run = self._store_new(request, story)
            if run is not None:
                self.on_settled(run)
        self.pump()

    def _enqueue(self, request: Request, story: Story, error: EdgeError | None) -> None:
        """A Run that waits; after a failed launch it is tried again later."""
        run = self._store_new(request, story)
        if run is not None:
            waiting = self._join(run)
            if error is not None:
                waiting.fail(self._clock.boot_ms(), error.code)

    def _store_new(self, request: Request, story: Story) -> Run | None:
        """Commit a new Run that does not run, with the cursor's move, and tell the requester."""
        change = story.change()
        try:
            self._coordinator.save(
                Commit(
                    at_ms=at_or_after(change.run.created_at_ms, change.run.finished_at_ms),
                    actor=request.actor,
                    changes=(change,),
                    cursors=request.cursors,
                )
            )
        except EdgeError as error:
            request.done(None, None, error)
            return None
        request.done(change.run, change.attempt, None)
        return change.run

    # -- the line ---------------------------------------------------------------------------------

    def pump(self) -> None:
        """Start every waiting run that may, in order; arm a timer for the next that is due."""
        if not self._open or self._pumping:
            return
        self._pumping = True
        try:
            self._start_due(self._clock.boot_ms())
        finally:
            self._pumping = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_ms = self._clock.boot_ms()
        later = [each.not_before_ms for each in self._line.values() if each.not_before_ms > now_ms]
        if later:
            self._timer = self._loop.call_at(min(later), self.pump)

    def _start_due(self, now_ms: int) -> None:
        """A task's own queue is in order; a retry's delay holds nobody else."""
        behind: set[int] = set()
        for waiting in list(self._line.values()):
            task_number = waiting.task_number
            if waiting.starting or waiting.run_number <= self._fence or task_number in behind:
                continue
            if not self._place_free():
                return
            if waiting.not_before_ms > now_ms:
                if not waiting.retry:
                    behind.add(task_number)
            elif not self._start_waiting(waiting):
                behind.add(task_number)

    def _start_waiting(self, waiting: Waiting) -> bool:
        """Launch a waiting run; False if its turn has not come, or it has to be tried again."""
        try:
            run = self._store.runs.get(waiting.run_number)
            if run is None or run.status not in WAITING:
                self._line.pop(waiting.run_number, None)
                return True
            definition = self._store.tasks.revision(run.task_number, run.revision).definition
            if not self._may_start(run.task_number, definition):
                return False
            story = self._resumed(run, log=definition.log)
        except EdgeError as error:
            self._failed(waiting, error)
            return False
        waiting.starting = True
        self._starter.begin(
            Draft(
                story,
                actor="executor",
                done=lambda _draft, error: self._resumed_done(waiting, error),
            )
        )
        return waiting.starting

    def _resumed(self, run: Run, *, log: bool) -> Story:
        """A waiting Run's story: its stored claim, or a further attempt after a retry's delay."""
        attempt = self._store.runs.latest_attempt(run.number)
        story = Story(run, attempt, stored=True)
        if run.status == QUEUED and attempt is not None and attempt.status == CLAIMED:
            return story
        if run.status == RETRY_WAIT:
            story.move_run(QUEUED, retry_at_ms=None, error_code=None)
        number = 1 if attempt is None else attempt.attempt + 1
        story.begin_attempt(self._claim(run, number, log=log))
        return story

    def _resumed_done(self, waiting: Waiting, error: EdgeError | None) -> None:
        waiting.starting = False
        if error is None:
            self._line.pop(waiting.run_number, None)
        elif error.code != _CANCELLED:
            self._failed(waiting, error)
        self.pump()

    def _failed(self, waiting: Waiting, error: EdgeError) -> None:
        """Tried again later, or failed for good with its code."""
        if isinstance(error, Unavailable) or error.code == "stale":
            waiting.fail(self._clock.boot_ms(), error.code)
            return
        try:
            run = self._store.runs.get(waiting.run_number)
            if run is not None and run.status in WAITING:
                story = self._resumed(run, log=False)
                endings.refuse(story, error.code, now_ms=self._clock.wall_ms())
                run = self._save(story, "executor")
        except EdgeError as failure:
            waiting.fail(self._clock.boot_ms(), failure.code)
            return
        self._line.pop(waiting.run_number, None)
        if run is not None:
            self.on_settled(run)

    def _save(self, story: Story, actor: str) -> Run:
        change = story.change()
        at_ms = change.run.finished_at_ms or 0
        self._coordinator.save(Commit(at_ms=at_ms, actor=actor, changes=(change,)))
        return change.run

    def _ended(self, run: Run) -> None:
        if run.status == RETRY_WAIT:
            self._join(run)
        self.on_settled(run)
        self.pump()

    def cancel_waiting(self, run_number: int, *, reason: str, actor: str) -> Run | None:
        """End a Run that waits or is being launched from the line; None if it does neither."""
        run = self._store.runs.get(run_number)
        if run is None or run.status not in WAITING:
            return None
        story = Story(run, self._store.runs.latest_attempt(run_number), stored=True)
        endings.cancel(story, reason, now_ms=self._clock.wall_ms())
        run = self._save(story, actor)
        self._line.pop(run_number, None)
        draft = self._starter.launching.get(run_number)
        if draft is not None:
            self._starter.abandon(draft, _cancelled())
        self.on_settled(run)
        self.pump()
        return run


def _new_story(run: Run, attempt: Attempt) -> Story:
    story = Story(run, attempt, stored=False)
    story.note("run.created")
    story.note("run.queued")
    return story


def _cancelled() -> Refused:
    return Refused(_CANCELLED, "The run was cancelled before it started.")
