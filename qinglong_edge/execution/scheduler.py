"""Triggers: which occurrence is due, and where its cursor goes.

Owns the decision per occurrence; the cursor and the Run commit together, so one occurrence becomes
at most one Run.

| found at the look             | misfire   | effect                                              |
|-------------------------------|-----------|-----------------------------------------------------|
| due, at most the grace late   | any       | admit, cursor to the next after now                 |
| due, later than that          | skip      | cursor to the next after now, counted as skipped    |
| due, later than that          | fire_once | admit the oldest, cursor to the next after now      |
| cannot be computed            | any       | parked with its reason; the others go on            |
| refused by the overlap policy | any       | cursor to the next after now, counted as skipped    |

`cron` cursors are wall time and wait for a believed clock; `every` cursors are boottime of one boot
and start over on the next; `boot` is due once per boot id. After a step back of less than three
hours cursors stay (no label runs twice); after a larger one they are computed anew.
"""

from __future__ import annotations

import heapq

from qinglong_edge.core import cron
from qinglong_edge.core.commit import Commit, CursorMove
from qinglong_edge.core.errors import EdgeError, Unavailable
from qinglong_edge.core.limits import LAUNCH_BACKOFF_MS_MAX, LAUNCH_BACKOFF_MS_MIN
from qinglong_edge.core.run import BOOT, CRON, EVERY
from qinglong_edge.core.task import FIRE_ONCE
from qinglong_edge.core.trigger import parse_duration_ms
from qinglong_edge.execution.dispatch import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from qinglong_edge.core.commit import Cursor
    from qinglong_edge.core.run import Run
    from qinglong_edge.core.zone import Zone
    from qinglong_edge.execution.coordinator import Coordinator
    from qinglong_edge.execution.dispatch import Dispatcher
    from qinglong_edge.execution.ports import ClockPort, LoopPort, StorePort, TimerPort
    from qinglong_edge.execution.trust import ClockTrust

_BATCH = 256
_STALE = ("stale",)


class Scheduler:
    """Looks when something is due, never on a cadence."""

    def __init__(
        self,
        *,
        store: StorePort,
        dispatcher: Dispatcher,
        coordinator: Coordinator,
        trust: ClockTrust,
        loop: LoopPort,
        clock: ClockPort,
        open_zone: Callable[[str], Zone],
        boot_id: str,
        grace_ms: int,
    ) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._coordinator = coordinator
        self._trust = trust
        self._loop = loop
        self._clock = clock
        self._open_zone = open_zone
        self._boot_id = boot_id
        self._grace_ms = grace_ms
        self._wall: list[tuple[int, int]] = []  # (due wall ms, trigger)
        self._boot: list[tuple[int, int]] = []  # (due boottime ms, trigger)
        self._in_flight: set[int] = set()
        self._timer: TimerPort | None = None
        self._failures = 0
        self._open = False
        self.paused = False
        self.parked = 0

    # -- cursors ----------------------------------------------------------------------------------

    def load(self) -> None:
        """Read every cursor; compute the missing ones in batches."""
        self._wall, self._boot, self.parked = [], [], 0
        self._place(self._store.tasks.cursors())

    def refresh(self, task_number: int) -> None:
        """Take up a task's triggers after an edit; entries of dropped ones go stale."""
        self._place(self._store.tasks.task_cursors(task_number))
        self._arm()

    def _place(self, cursors: Iterable[Cursor]) -> None:
        moves: list[CursorMove] = []
        for cursor in cursors:
            if cursor.parked is not None:
                self.parked += 1
                continue
            move = self._placed(cursor)
            if move is not None:
                moves.append(move)
        self._save(moves)

    def _save(self, moves: list[CursorMove]) -> None:
        """Commit moves in batches, so that no transaction grows with the number of tasks."""
        for start in range(0, len(moves), _BATCH):
            batch = tuple(moves[start : start + _BATCH])
            now_ms = self._clock.wall_ms()
            self._coordinator.save(Commit(at_ms=now_ms, actor="scheduler", cursors=batch))

    def _placed(self, cursor: Cursor) -> CursorMove | None:
        """Put a cursor into its heap; returns the move that gives it a value first, if needed."""
        number = cursor.trigger_number
        if cursor.kind == BOOT:
            if cursor.boot_id != self._boot_id:
                heapq.heappush(self._boot, (0, number))
            return None
        if cursor.kind == EVERY:
            if cursor.next_at_ms is not None and cursor.boot_id == self._boot_id:
                heapq.heappush(self._boot, (cursor.next_at_ms, number))
                return None
            return self._moved(cursor, self._clock.boot_ms())
        if cursor.next_at_ms is not None:
            heapq.heappush(self._wall, (cursor.next_at_ms, number))
            return None
        return self._moved(cursor, self._clock.wall_ms()) if self._trust.trusted else None

    def _moved(
        self, cursor: Cursor, after_ms: int, *, scheduled_ms: int | None = None, skipped: int = 0
    ) -> CursorMove:
        """The move to the next due moment after `after_ms`, which is also put into its heap."""
        next_ms, boot_id, parked = None, None, None
        try:
            next_ms = self.next_of(cursor, after_ms)
            boot_id = None if cursor.kind == CRON else self._boot_id
        except EdgeError as error:
            parked = error.code
            self.parked += 1
        if next_ms is not None and cursor.kind != BOOT:
            heap = self._wall if cursor.kind == CRON else self._boot
            heapq.heappush(heap, (next_ms, cursor.trigger_number))
        return CursorMove(
            trigger_number=cursor.trigger_number,
            expected_ms=cursor.next_at_ms,
            next_at_ms=next_ms,
            boot_id=boot_id,
            scheduled_ms=scheduled_ms,
            skipped=skipped,
            parked=parked,
        )

    def next_of(self, cursor: Cursor, after_ms: int) -> int | None:
        """The first due moment after `after_ms` (boottime for `every`); None for `boot`."""
        if cursor.kind == BOOT:
            return None
        if cursor.kind == CRON:
            zone = self._open_zone(cursor.zone)
            return cron.parse(cursor.expression).next_after(after_ms, zone)
        period_ms = parse_duration_ms(cursor.expression)
        if cursor.next_at_ms is None or cursor.boot_id != self._boot_id:
            return after_ms + period_ms
        missed = max(0, after_ms - cursor.next_at_ms) // period_ms
        return cursor.next_at_ms + (missed + 1) * period_ms

    # -- looking ----------------------------------------------------------------------------------

    def open(self) -> None:
        """Begin to admit."""
        self._open = True
        self.look()

    def close(self) -> None:
        """Admit nothing any more."""
        self._open = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def woken(self) -> None:
        """Every wake-up: has the wall clock moved, is something due?"""
        change = self._trust.observe()
        if change == "steady" and not self._due():
            return
        if change == "reset":
            self.recompute()
        elif change == "regained":
            self.load()
        self.look()

    def recompute(self) -> None:
        """Compute every cron cursor anew from now, after the clock went back by hours."""
        now_ms = self._clock.wall_ms()
        self._save(
            [
                self._moved(cursor, now_ms)
                for cursor in self._store.tasks.cursors()
                if cursor.kind == CRON and cursor.next_at_ms is not None
            ]
        )
        self.load()

    def _due(self) -> bool:
        if not self._open or self.paused:
            return False
        if self._boot and self._boot[0][0] <= self._clock.boot_ms():
            return True
        return bool(
            self._trust.trusted and self._wall and self._wall[0][0] <= self._clock.wall_ms()
        )

    def look(self) -> None:
        """Decide every occurrence that is due, then sleep until the next one."""
        while self._due():
            heap = self._boot
            if not heap or heap[0][0] > self._clock.boot_ms():
                heap = self._wall
            due_ms, number = heapq.heappop(heap)
            try:
                self._decide(due_ms, number)
            except Unavailable:
                heapq.heappush(heap, (due_ms, number))
                self._back_off()
                return
        self._failures = 0
        self._arm()

    def _arm(self) -> None:
        """A timer for the earliest due moment; the wall clock's distance is taken anew."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._open or self.paused:
            return
        dues = [self._boot[0][0]] if self._boot else []
        if self._wall and self._trust.trusted:
            ahead_ms = self._wall[0][0] - self._clock.wall_ms()
            dues.append(self._clock.boot_ms() + max(0, ahead_ms))
        if dues:
            self._timer = self._loop.call_at(min(dues), self.look)

    def _back_off(self) -> None:
        """The storage refuses: nothing was admitted, and the same occurrences are tried again."""
        self._failures += 1
        delay_ms = min(LAUNCH_BACKOFF_MS_MAX, LAUNCH_BACKOFF_MS_MIN << min(self._failures, 9))
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_ms, self.look)

    def _decide(self, due_ms: int, number: int) -> None:
        cursor = self._store.tasks.cursor(number)
        if cursor is None or not cursor.enabled or number in self._in_flight:
            return
        if cursor.kind == BOOT:
            if cursor.boot_id != self._boot_id:
                self._admit(cursor, None, self._clock.boot_ms())
            return
        if cursor.next_at_ms != due_ms:
            return  # an older entry of this trigger
        now_ms = self._clock.wall_ms() if cursor.kind == CRON else self._clock.boot_ms()
        if now_ms - due_ms > self._grace_ms and cursor.misfire != FIRE_ONCE:
            self._skip(cursor, now_ms)
            return
        self._admit(cursor, due_ms, now_ms)

    def _skip(self, cursor: Cursor, now_ms: int) -> None:
        self._commit_move(self._moved(cursor, now_ms, skipped=1))

    def _commit_move(self, move: CursorMove) -> None:
        try:
            self._coordinator.save(
                Commit(at_ms=self._clock.wall_ms(), actor="scheduler", cursors=(move,))
            )
        except EdgeError as error:
            if error.code not in _STALE:
                raise

    def _admit(self, cursor: Cursor, due_ms: int | None, now_ms: int) -> None:
        task = self._store.tasks.get(cursor.task_number)
        if task is None:
            return
        try:
            revision = self._store.tasks.revision(task.number, task.revision)
        except Unavailable:
            raise
        except EdgeError as error:
            self._park(cursor, error.code)
            return
        scheduled_ms = due_ms
        if due_ms is not None and cursor.kind == EVERY:
            scheduled_ms = max(0, due_ms + self._trust.offset_ms)
        move = self._moved(cursor, now_ms, scheduled_ms=scheduled_ms)
        self._in_flight.add(cursor.trigger_number)
        self._dispatcher.admit(
            Request(
                task,
                revision,
                kind=cursor.kind,
                actor="scheduler",
                trigger_number=cursor.trigger_number,
                scheduled_ms=scheduled_ms,
                cursors=(move,),
                done=lambda run, _attempt, error: self._admitted(cursor, move, run, error),
            )
        )

    def _admitted(
        self, cursor: Cursor, move: CursorMove, run: Run | None, error: EdgeError | None
    ) -> None:
        self._in_flight.discard(cursor.trigger_number)
        if run is not None or error is None:
            return
        if error.code in ("overlap_skipped", "queue_full"):
            skipped = move.replace(skipped=1, scheduled_ms=None)
            try:
                self._commit_move(skipped)
            except EdgeError:
                self._again(cursor)
            return
        if error.code not in _STALE:
            self._again(cursor)

    def _again(self, cursor: Cursor) -> None:
        """Nothing became durable: the occurrence is due as before, after a pause."""
        due_ms = cursor.next_at_ms or 0
        heap = self._wall if cursor.kind == CRON else self._boot
        heapq.heappush(heap, (due_ms, cursor.trigger_number))
        self._back_off()

    def _park(self, cursor: Cursor, reason: str) -> None:
        self.parked += 1
        self._commit_move(
            CursorMove(
                trigger_number=cursor.trigger_number,
                expected_ms=cursor.next_at_ms,
                next_at_ms=None,
                boot_id=cursor.boot_id,
                parked=reason,
            )
        )

    # -- what people ask --------------------------------------------------------------------------

    def enable(self, task_number: int) -> None:
        """A task was enabled: what was due meanwhile is not made up for."""
        moves = []
        for cursor in self._store.tasks.task_cursors(task_number):
            if cursor.kind == CRON and self._trust.trusted:
                moves.append(self._moved(cursor, self._clock.wall_ms()))
            elif cursor.kind == EVERY:
                moves.append(self._moved(cursor, self._clock.boot_ms()))
        self._save(moves)
        self._arm()

    def next_due(self) -> tuple[int, int] | None:
        """(wall ms, trigger) of the next occurrence, or None."""
        found = []
        if self._boot:
            found.append((self._boot[0][0] + self._trust.offset_ms, self._boot[0][1]))
        if self._wall and self._trust.trusted:
            found.append(self._wall[0])
        return min(found) if found else None

    def pause(self, *, paused: bool) -> None:
        """Stop or restore all admission by triggers; the caller has persisted it."""
        self.paused = paused
        self.look()
