"""Cancel, time-out, settle: ending a run from outside.

Owns the order intent -> signal -> proof -> end. The intent is committed before anything is
signalled, so that a crash in between is finished by the next owner; the run is called cancelled or
timed out only after its session is proven empty (or a receipt says so).
"""

from __future__ import annotations

from qinglong_edge.core.commit import Commit
from qinglong_edge.core.errors import EdgeError, Refused, Unavailable
from qinglong_edge.core.run import (
    CANCELLED,
    FAILED,
    LOST,
    OPERATOR,
    SETTLED_BY_OPERATOR,
    WAITING,
    Story,
    at_or_after,
)
from qinglong_edge.execution.endings import Ending

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from qinglong_edge.core.audit import Audit
    from qinglong_edge.core.evidence import Stopped
    from qinglong_edge.core.run import Run
    from qinglong_edge.execution.active import Active
    from qinglong_edge.execution.coordinator import Coordinator
    from qinglong_edge.execution.dispatch import Dispatcher
    from qinglong_edge.execution.ports import ClockPort, ControllerPort, InspectorPort, StorePort

SETTLED_STATUSES = (LOST, FAILED, CANCELLED)


class Control:
    """Stops and settles runs."""

    def __init__(
        self,
        *,
        store: StorePort,
        coordinator: Coordinator,
        dispatcher: Dispatcher,
        controller: ControllerPort,
        inspector: InspectorPort,
        clock: ClockPort,
        grace_ms: int,
    ) -> None:
        self._store = store
        self._coordinator = coordinator
        self._dispatcher = dispatcher
        self._controller = controller
        self._inspector = inspector
        self._clock = clock
        self._grace_ms = grace_ms
        coordinator.on_deadline = self._deadline
        dispatcher.replace = lambda active: self.stop_active(
            active, reason="replaced", actor="scheduler", grace_ms=None, done=None
        )

    def stop(
        self,
        run: Run,
        *,
        actor: str,
        grace_ms: int | None,
        done: Callable[[EdgeError | None], None],
    ) -> None:
        """Cancel a run; `done` is called once it has ended, or with the reason why it has not.

        `Refused` (`run_ended`) if there is nothing to stop.
        """
        if run.status in WAITING:
            self._dispatcher.cancel_waiting(run.number, reason="user", actor=actor)
            done(None)
            return
        active = self._coordinator.registry.get(run.number)
        if active is None:
            raise Refused("run_ended", "The run has ended already.", run=run.number)
        self.stop_active(active, reason="user", actor=actor, grace_ms=grace_ms, done=done)

    def stop_active(
        self,
        active: Active,
        *,
        reason: str,
        actor: str,
        grace_ms: int | None,
        done: Callable[[EdgeError | None], None] | None,
    ) -> None:
        """Commit the intent (the first reason stays), then stop the process."""
        if active.run.cancel_reason is None:
            self._intend(active, reason, actor)
        if done is not None:
            active.stopped.append(done)
        if active.stop is None:
            self._signal(active, grace_ms)
        elif grace_ms is not None:
            active.stop.hurry(grace_ms)

    def forget(self, run: Run, done: Callable[[EdgeError | None], None]) -> None:
        """Who waited for a stop has gone; the stop goes on."""
        active = self._coordinator.registry.get(run.number)
        if active is not None and done in active.stopped:
            active.stopped.remove(done)

    def resume(self, active: Active) -> None:
        """Go on with a stop that began earlier and was not proven."""
        if active.run.cancel_reason is not None and active.stop is None:
            self._signal(active, None)

    def _intend(self, active: Active, reason: str, actor: str) -> None:
        run = active.run
        at_ms = at_or_after(self._clock.wall_ms(), run.created_at_ms, run.started_at_ms)
        story = Story(run, active.attempt, stored=True)
        story.ask_to_end(reason, at_ms)
        self._coordinator.save(Commit(at_ms=at_ms, actor=actor, changes=(story.change(),)))
        active.run = story.run

    def _signal(self, active: Active, grace_ms: int | None) -> None:
        finished: list[Stopped] = []

        def stopped(outcome: Stopped) -> None:
            finished.append(outcome)
            active.stop = None
            self._stopped(active, outcome)

        stop = self._controller.stop(
            active.target,
            own=active.launch,
            grace_ms=self._grace_of(active) if grace_ms is None else grace_ms,
            done=stopped,
        )
        if not finished:
            active.stop = stop

    def _grace_of(self, active: Active) -> int:
        try:
            revision = self._store.tasks.revision(active.run.task_number, active.run.revision)
        except EdgeError:
            return self._grace_ms
        own = revision.definition.grace_ms
        return self._grace_ms if own is None else own

    def _stopped(self, active: Active, outcome: Stopped) -> None:
        active.stop_signal = outcome.signal or active.stop_signal
        if outcome.conclusive:
            active.hold = None
            self._coordinator.exited(active)
        else:
            active.hold = outcome.reason or "unknown"
            self._coordinator.keep_watch(active)
        if not active.ended:
            active.answer(
                Unavailable(
                    "stop_unproven",
                    "The run could not be proven to have stopped, or its end not be stored.",
                    run=active.run.number,
                    reason=active.hold,
                    survivors=outcome.survivors,
                )
            )

    def _deadline(self, active: Active) -> None:
        """The time-out of a running attempt has come."""
        if active.ended:
            return
        try:
            self.stop_active(active, reason="timeout", actor="reconciler", grace_ms=None, done=None)
        except EdgeError:
            self._coordinator.again(active, lambda: self._deadline(active))

    def settle(
        self, run: Run, *, status: str, reason: str, actor: str, audit: tuple[Audit, ...] = ()
    ) -> Run:
        """The operator's word on a run that recovery could not prove, with its audit event.

        `Refused`: `run_not_held`, `run_stopping`, `identity_alive` (stop it instead).
        """
        active = self._coordinator.registry.get(run.number)
        if active is None:
            raise Refused("run_not_held", "The run has ended, or has not started.", run=run.number)
        if active.stop is not None:
            raise Refused("run_stopping", "The run is just being stopped.", run=run.number)
        if self._inspector.inspect(active.target).state == "alive":
            raise Refused(
                "identity_alive", "The run's process is alive; stop it instead.", run=run.number
            )
        code = SETTLED_BY_OPERATOR
        ending = Ending(status=status, evidence=OPERATOR, error_code=code)
        facts: dict[str, str | int | None] = {"reason": reason}
        if not self._coordinator.end(active, ending, actor=actor, facts=facts, audit=audit):
            raise Unavailable("no_space", "The storage refused the change.")
        return active.run

    def stop_all(self, *, reason: str, grace_ms: int, done: Callable[[], None]) -> None:
        """Cancel every running attempt; `done` is called when none is left in a stop."""
        left = {active.run.number for active in self._coordinator.registry}
        if not left:
            done()
            return

        def one(number: int) -> Callable[[EdgeError | None], None]:
            def over(_error: EdgeError | None) -> None:
                left.discard(number)
                if not left:
                    done()

            return over

        for active in self._coordinator.registry:
            over = one(active.run.number)
            try:
                self.stop_active(
                    active, reason=reason, actor="reconciler", grace_ms=grace_ms, done=over
                )
            except EdgeError as error:
                over(error)
