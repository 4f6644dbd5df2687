"""From a claimed attempt to an open gate (ADR-0069 section 2).

Owns the order of effects of a start. Promise: no user code before Run, Attempt, journal row and
exact handle are durable: one commit, then the gate. A crash before the commit leaves a child that
exits at its gate; a crash after it leaves a row whose process is adopted or proven gone.
"""

from __future__ import annotations

from qinglong_edge.core import ids
from qinglong_edge.core.commit import AttemptKey, Commit
from qinglong_edge.core.errors import Corrupt, EdgeError, Refused, Unavailable
from qinglong_edge.core.limits import LAUNCH_READY_MS
from qinglong_edge.core.plan import LaunchPlan
from qinglong_edge.core.run import at_or_after
from qinglong_edge.execution.active import Active

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from qinglong_edge.core.commit import CursorMove
    from qinglong_edge.core.plan import Identity
    from qinglong_edge.core.recipe import Recipe
    from qinglong_edge.core.run import Attempt, Change, Run, Story
    from qinglong_edge.core.task import Revision
    from qinglong_edge.execution.coordinator import Coordinator
    from qinglong_edge.execution.ports import (
        ClockPort,
        LauncherPort,
        LaunchPort,
        LogsPort,
        LoopPort,
        SecretsPort,
        StorePort,
        TimerPort,
    )


class Draft:
    """An intended start: a Run and a claimed Attempt that may not be stored yet."""

    __slots__ = (
        "actor",
        "cursors",
        "done",
        "launch",
        "revision",
        "sealed",
        "story",
        "timeout",
        "token",
        "wanted",
    )

    def __init__(
        self,
        story: Story,
        *,
        actor: str,
        cursors: tuple[CursorMove, ...] = (),
        wanted: Callable[[], bool] | None = None,
        done: Callable[[Draft, EdgeError | None], None],
    ) -> None:
        self.story = story
        self.actor = actor
        self.cursors = cursors
        self.wanted = wanted  # asked once more just before the commit
        self.done = done  # called once: started (None), or why not
        self.launch: LaunchPort | None = None
        self.timeout: TimerPort | None = None
        self.revision: Revision | None = None
        self.sealed = False  # its child has secrets to open
        self.token = ""

    @property
    def run(self) -> Run:
        """The Run as the story has it so far."""
        return self.story.run

    @property
    def attempt(self) -> Attempt:
        """The claimed Attempt."""
        if self.story.attempt is None:
            raise Corrupt("attempt_missing", "A run to start has no attempt.", run=self.run.number)
        return self.story.attempt


class Starter:
    """Takes drafts through the launch barrier; who got through is the coordinator's."""

    def __init__(
        self,
        *,
        store: StorePort,
        launcher: LauncherPort,
        logs: LogsPort,
        secrets: SecretsPort,
        make_room: Callable[[int], bool],
        coordinator: Coordinator,
        loop: LoopPort,
        clock: ClockPort,
        random: Callable[[int], bytes],
    ) -> None:
        self._store = store
        self._launcher = launcher
        self._logs = logs
        self._secrets = secrets
        self._make_room = make_room
        self._coordinator = coordinator
        self._loop = loop
        self._clock = clock
        self._random = random
        self.launching: dict[int, Draft] = {}

    def begin(self, draft: Draft) -> None:
        """Fork the gated child of a draft; `draft.done` is called when it has started or not."""
        run, attempt = draft.run, draft.attempt
        try:
            draft.revision = self._store.tasks.revision(run.task_number, run.revision)
            recipe = self._store.tasks.recipe(run.recipe_number)
            draft.sealed = bool(recipe.secret_refs)
            resolve = self._secrets.resolver(recipe)
            launch = self._launcher.begin(
                self._plan(draft, draft.revision, recipe), self._fact_paths(run, attempt), resolve
            )
        except (EdgeError, OSError, MemoryError) as error:
            draft.done(draft, _typed(error))
            return
        draft.launch = launch
        self.launching[run.number] = draft
        draft.timeout = self._loop.call_later(
            LAUNCH_READY_MS, lambda: self.abandon(draft, _not_ready())
        )
        self._loop.watch(launch.gate_fd, lambda: self._ready(draft, launch))

    def _ready(self, draft: Draft, launch: LaunchPort) -> None:
        """Log, identity, ONE commit, gate: nothing before the commit has run, all after it may."""
        attempt, log = draft.attempt, None
        try:
            if not launch.take_ready():
                return
            if draft.sealed:
                self._secrets.proved(None)
            if draft.wanted is not None and not draft.wanted():
                raise Refused("withdrawn", "The trigger may not admit this run any more.")
            if attempt.log_quota_bytes:
                log = self._prepare_log(draft)
            self._cross(draft, launch)
        except (EdgeError, OSError, MemoryError) as error:
            if log is not None:
                self._logs.release(log)
            self.abandon(draft, _typed(error))
            return
        self._open(draft, launch, log)
        if log is not None:
            self._logs.release(log)
        draft.done(draft, None)

    def _prepare_log(self, draft: Draft) -> Any:
        """The open log; old ones of settled runs make room for it before it is refused."""
        wanted = (draft.run.id, draft.attempt.id, draft.attempt.log_quota_bytes)
        try:
            return self._logs.prepare(*wanted)
        except Unavailable as error:
            needed_bytes = error.facts.get("needed_bytes")
            if type(needed_bytes) is not int:
                raise
            self._coordinator.flush()  # a run whose receipt's row waits for a ride is not settled
            if not self._make_room(needed_bytes):
                raise
        return self._logs.prepare(*wanted)

    def _plan(self, draft: Draft, revision: Revision, recipe: Recipe) -> LaunchPlan:
        definition = revision.definition
        draft.token = ids.new_token(self._random)
        return LaunchPlan(
            run_id=draft.run.id,
            attempt_id=draft.attempt.id,
            callback_sequence=draft.attempt.callback_sequence + 1,
            token=draft.token,
            started_at_ms=at_or_after(self._clock.wall_ms(), draft.attempt.created_at_ms),
            argv=definition.argv,
            environment={each.name: each.content for each in recipe.bindings if not each.is_secret},
            cwd=definition.cwd,
            nice=definition.nice,
            log_quota_bytes=draft.attempt.log_quota_bytes,
        )

    def _fact_paths(self, run: Run, attempt: Attempt) -> tuple[str, str] | None:
        if not attempt.log_quota_bytes:
            return None
        return self._logs.fact_paths(run.id, attempt.id)

    def abandon(self, draft: Draft, error: EdgeError) -> None:
        """Close the gate of a child that has done nothing, and say why."""
        self._forget(draft)
        if draft.sealed:
            self._secrets.proved(error.code)
        if draft.launch is not None:
            draft.launch.refuse()
        draft.done(draft, error)

    def _cross(self, draft: Draft, launch: LaunchPort) -> None:
        """The durable barrier."""
        self._launcher.prepare(draft.attempt.id)
        change = self._started(draft, self._launcher.identify(launch, draft.attempt.id))
        attempt = draft.attempt
        self._coordinator.save(
            Commit(
                at_ms=attempt.started_at_ms or 0,
                actor=draft.actor,
                changes=(change,),
                register=(AttemptKey(run_number=attempt.run_number, attempt=attempt.attempt),),
                cursors=draft.cursors,
            )
        )

    def _started(self, draft: Draft, identity: Identity) -> Change:
        if draft.revision is None:
            raise Corrupt("revision_missing", "A run to start has no revision.")
        definition, story = draft.revision.definition, draft.story
        at_ms = at_or_after(
            self._clock.wall_ms(), draft.run.created_at_ms, draft.attempt.created_at_ms
        )
        timeout_ms = definition.timeout_ms
        deadline_boot_ms = None if timeout_ms is None else self._clock.boot_ms() + timeout_ms
        story.move_run("dispatching")
        story.move_attempt("starting", {}, token_hash=ids.token_hash(draft.token))
        story.move_attempt(
            "running",
            {"pid": identity.pid},
            handle=identity.handle,
            pid=identity.pid,
            pid_namespace=identity.pid_namespace,
            started_at_ms=at_ms,
            deadline_boot_ms=deadline_boot_ms,
            deadline_at_ms=None if timeout_ms is None else at_ms + timeout_ms,
        )
        story.move_run("running", started_at_ms=draft.run.started_at_ms or at_ms)
        return story.change()

    def _open(self, draft: Draft, launch: LaunchPort, log: Any) -> None:
        self._forget(draft)
        try:
            if log is not None:
                self._logs.adopt(log, draft.run.id, draft.attempt.id)
            launch.open_gate(None if log is None else log.fd)
        except OSError:
            launch.refuse()
            self._coordinator.refused(Active(draft.run, draft.attempt, None))
            return
        self._coordinator.take(Active(draft.run, draft.attempt, launch))

    def _forget(self, draft: Draft) -> None:
        self.launching.pop(draft.run.number, None)
        if draft.timeout is not None:
            draft.timeout.cancel()
        if draft.launch is not None:
            self._loop.unwatch(draft.launch.gate_fd)

    def close(self) -> None:
        """End every child that still waits at its gate; nothing of it has run."""
        for draft in list(self.launching.values()):
            self.abandon(draft, Unavailable("stopping", "The owner of the state is stopping."))


def _not_ready() -> Unavailable:
    return Unavailable("launch_timed_out", "A launch child was not ready in time.")


def _typed(error: EdgeError | OSError | MemoryError) -> EdgeError:
    if isinstance(error, EdgeError):
        return error
    number = error.errno if isinstance(error, OSError) else None
    return Unavailable("launch_failed", "The system refused a launch.", errno=number)
