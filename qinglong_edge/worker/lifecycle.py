"""One worker's tick: session, supervision, starts, forgetting, and only then new work.

Owns the order and the drain. A tick does a bounded part of each; whoever is left waits for the
next one, in turn. Every failure is said once and tried again: nothing here ends the worker, and no
record that cannot be brought to an end keeps the others from theirs.

    start   adopt what lives -> ticks
    drain   no new offers -> what is held comes to its end -> offline, or the session over -> over
    stop    nothing held: offline; else everything is left as it is, for the next start
"""

from __future__ import annotations

from qinglong_edge.core import inbox
from qinglong_edge.core.errors import EdgeError
from qinglong_edge.worker.failing import Failing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qinglong_edge.core.inbox import Entry
    from qinglong_edge.worker.completion import Completion
    from qinglong_edge.worker.control import Supervisor
    from qinglong_edge.worker.executor import Executor
    from qinglong_edge.worker.leases import Leases
    from qinglong_edge.worker.plane import Plane
    from qinglong_edge.worker.ports import ClockPort, InboxPort, LoopPort, SayPort, TimerPort
    from qinglong_edge.worker.pull import Places, Puller
    from qinglong_edge.worker.retention import Retention
    from qinglong_edge.worker.session import Session

_PAUSE_MS_MIN = 2_000


class Lifecycle:
    """Turns the worker."""

    def __init__(
        self,
        *,
        store: InboxPort,
        plane: Plane,
        session: Session,
        leases: Leases,
        supervisor: Supervisor,
        completion: Completion,
        executor: Executor,
        puller: Puller,
        places: Places,
        retention: Retention,
        loop: LoopPort,
        clock: ClockPort,
        cadence_ms: int,
        drain_timeout_ms: int,
        records_per_tick: int,
        supervision_per_tick: int,
        say: SayPort,
    ) -> None:
        self._store = store
        self._plane = plane
        self._session = session
        self._leases = leases
        self._supervisor = supervisor
        self._completion = completion
        self._executor = executor
        self._puller = puller
        self._places = places
        self._retention = retention
        self._loop = loop
        self._clock = clock
        self._cadence_ms = cadence_ms
        self._drain_timeout_ms = drain_timeout_ms
        self._records_per_tick = records_per_tick
        self._supervision_per_tick = supervision_per_tick
        self._say = say
        self._timer: TimerPort | None = None
        self._timer_ms = 0
        self._changed: set[str] = set()
        self._turns: dict[bool, int] = {}
        self._failing = Failing(say, "tick_failed")
        self.drained = False

    def start(self) -> None:
        """Adopt what an earlier owner left running, then tick."""
        for entry in self._store.holding():
            self._leases.ends_boot_ms(entry)  # known before the first request is waited for
            self._executor.adopt(entry)
        self._schedule(0)

    def changed(self, offer_id: str) -> None:
        """Something of an offer's process has changed: look at it at once."""
        self._changed.add(offer_id)
        self._schedule(0)

    def begin_drain(self) -> None:
        """Take no more offers; `drained` becomes true once all that is held has ended."""
        if not self._places.closed:
            self._loop.call_later(self._drain_timeout_ms, lambda: self._say("drain_timed_out"))
        self._places.closed = True
        self._session.drain_wanted = True
        self._schedule(0)

    def _schedule(self, delay_ms: int) -> None:
        due_ms = self._clock.boot_ms() + delay_ms
        if self._timer is not None:
            if self._timer_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_ms = due_ms
        self._timer = self._loop.call_later(delay_ms, self._tick)

    def _tick(self) -> None:
        self._timer = None
        try:
            again = self._turn()
        except (EdgeError, OSError, MemoryError) as error:
            other = "no_memory" if isinstance(error, MemoryError) else "storage_unavailable"
            self._failing.failed(error.code if isinstance(error, EdgeError) else other)
            again = False
        else:
            self._failing.over()
        self._schedule(0 if again else self._pause_ms())

    def _pause_ms(self) -> int:
        """The cadence, or less if a lease ends, or it or the session has to be kept before."""
        now_ms = self._clock.boot_ms()
        dues = [self._session.wake_boot_ms, *self._leases.dues()]
        pause_ms = min(self._cadence_ms, max(_PAUSE_MS_MIN, min(dues) - now_ms))
        end_ms = self._leases.next_end()
        return pause_ms if end_ms is None else min(pause_ms, end_ms - now_ms)

    def _turn(self) -> bool:
        """One tick; True if the next one should come at once."""
        self._plane.new_tick()
        self._session.step()
        changed, self._changed = self._changed, set()
        self._supervise(changed)
        self._collect()
        self._retention.step()
        if self._session.drain_wanted and self._store.places_held() == 0:
            try:
                self._session.disconnect()
            except EdgeError:
                if self._session.current is not None:
                    raise
            self.drained = True
            return False
        offer_id = self._puller.pull()
        if offer_id is None:
            return bool(self._changed)
        entry = self._store.get(offer_id)
        if entry is not None:
            self._supervisor.step(entry)
        return True

    def _supervise(self, changed: set[str]) -> None:
        """What has changed, and of the others as many as a tick allows, in turn.

        A step may send a whole log, for as long as a request may take: before each one the session
        and every lease are kept, so that no log costs another run its lease.
        """
        held = self._store.holding()
        first = [entry for entry in held if entry.offer_id in changed]
        rest = [entry for entry in held if entry.offer_id not in changed]
        launched = [entry for entry in rest if entry.state in inbox.LAUNCHED]
        others = [entry for entry in rest if entry.state not in inbox.LAUNCHED]
        for entry in (
            *first,
            *self._take(launched, self._supervision_per_tick, launched=True),
            *self._take(others, self._records_per_tick, launched=False),
        ):
            self._keep(held, ahead=entry.ended is not None)
            self._supervisor.step(entry)

    def _keep(self, held: list[Entry], *, ahead: bool) -> None:
        for entry in held:
            if not self._plane.down:
                self._session.step()
            if entry.state in inbox.LAUNCHED:
                self._supervisor.keep(entry, ahead=ahead)

    def _take(self, entries: list[Entry], limit: int, *, launched: bool) -> list[Entry]:
        if len(entries) <= limit:
            return entries
        begin = self._turns.get(launched, 0) % len(entries)
        self._turns[launched] = begin + limit
        return [*entries[begin:], *entries[:begin]][:limit]

    def _collect(self) -> None:
        """Reap wrappers whose records have come to their end already."""
        for entry in self._executor.ended_processes():
            now = self._store.get(entry.offer_id)
            if now is None:
                self._executor.release(entry)
            elif not now.holds_place:
                self._completion.clean(now)

    def stop(self) -> None:
        """Stop ticking; with nothing held the plane is told, else the next start goes on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.drained or self._session.current is None:
            return
        try:
            if self._store.places_held() == 0:
                self._plane.new_tick()
                self._session.disconnect()
        except EdgeError as error:
            self._say("disconnect_failed", code=error.code)
