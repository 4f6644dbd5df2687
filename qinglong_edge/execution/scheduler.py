"""Triggers: which occurrence is due, and where its cursor goes.

Owns the decision per occurrence; the cursor and the Run commit together, so one occurrence becomes
at most one Run.

| found at the look             | misfire   | effect                                              |
|-------------------------------|-----------|-----------------------------------------------------|
| due, at most the grace late   | any       | admit, cursor to the next after now                 |
| due, later than that          | skip      | cursor to the next after now, counted as skipped    |
| due, later than that          | fire_once | admit the oldest, cursor to the next after now      |
| cannot be computed            | any       | parked with its reason; the others go on            |
| the same, but that may pass   | any       | and looked at again 5 minutes later                 |
| refused by the overlap policy | any       | cursor to the next after now, counted as skipped    |

`cron` cursors are wall time and wait for a believed clock; `every` cursors are boottime of one boot
and start over on the next; `boot` is due once per boot id. After a step back of less than three
hours cursors stay (no label runs twice); after a larger one they are computed anew.
"""

from __future__ import annotations

import _heapq as heapq  # without the same once more in Python

from qinglong_edge.core import cron
from qinglong_edge.core.commit import Commit, CursorMove
from qinglong_edge.core.errors import Corrupt, EdgeError, Refused, Unavailable
from qinglong_edge.core.limits import LAUNCH_BACKOFF_MS_MAX, LAUNCH_BACKOFF_MS_MIN
from qinglong_edge.core.run import BOOT, CRON, EVERY
from qinglong_edge.core.task import FIRE_ONCE
from qinglong_edge.core.trigger import parse_duration_ms
from qinglong_edge.execution.dispatch import Request
from qinglong_edge.execution.trust import REGAINED, RESET, STEADY

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
_ENTRIES_MIN = 64
_DECIDED_MAX = 16  # in one look: on a disk that takes a second for a commit others have a turn too
_STALE = "stale"


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
        self._entries_max = _ENTRIES_MIN  # the size at which those of edited triggers are dropped
        self._in_flight: set[int] = set()
        self._parked: set[int] = set()
        self._timer: TimerPort | None = None
        self._retry: TimerPort | None = None  # of what is parked for a passing reason
        self._failures = 0
        self._not_before_ms = 0  # boottime; later than now while the storage refuses
        self._todo: Callable[[], None] | None = None  # what the storage refused
        self._open = False
        self.paused = False

    # -- cursors ----------------------------------------------------------------------------------

    def load(self) -> None:
        """Read every cursor; compute the missing ones, and try the parked ones again."""
        self._guarded(self._load)

    def recompute(self) -> None:
        """Compute every cron cursor anew from now, after the clock went back by hours."""
        self._guarded(self._recompute)

    def _guarded(self, call: Callable[[], None]) -> None:
        """A disk that is full or fails ends nothing: what it refused is asked again later."""
        if self._todo != self._recompute:
            self._todo = call
        try:
            self._todo()
            self._todo = None
        except EdgeError:
            self._back_off()

    def _load(self) -> None:
        self._wall, self._boot = [], []
        self._parked.clear()
        self._place(self._store.tasks.cursors())
        self._entries_max = 2 * (len(self._wall) + len(self._boot)) + _ENTRIES_MIN

    def _recompute(self) -> None:
        now_ms = self._clock.wall_ms()
        self._save(
            [
                (cursor, self._moved(cursor, now_ms))
                for cursor in self._store.tasks.cursors()
                if cursor.kind == CRON and cursor.next_at_ms is not None
            ]
        )
        self._trust.recomputed()
        self._commit()  # carries the lower time
        self._load()

    def refresh(self, task_number: int) -> None:
        """Take up a task's triggers after an edit; entries of dropped ones go stale."""
        try:
            self._place(self._store.tasks.task_cursors(task_number))
        except Unavailable:
            self._todo = self._todo or self._load
            self._back_off()
        self._drop_stale()
        self._arm()

    def _drop_stale(self) -> None:
        """An entry that an edit left behind would stay until its moment, a year ahead perhaps."""
        if len(self._wall) + len(self._boot) > self._entries_max:
            self.load()

    def _place(self, cursors: Iterable[Cursor]) -> None:
        """Put cursors where they become due, and give a value to those that have none."""
        moves: list[tuple[Cursor, CursorMove]] = []
        for cursor in cursors:
            move = self._wanting(cursor)
            if move is None:
                self._push(cursor.kind, cursor.trigger_number, cursor.next_at_ms, cursor.boot_id)
            elif move.parked is None or move.parked != cursor.parked:
                moves.append((cursor, move))
            else:
                self._parked.add(cursor.trigger_number)
        self._save(moves)

    def _wanting(self, cursor: Cursor) -> CursorMove | None:
        """The move that gives a cursor its value; None if it has one, or cannot have one yet."""
        if cursor.kind == CRON and cursor.next_at_ms is None and self._trust.trusted:
            return self._moved(cursor, self._clock.wall_ms())
        foreign = cursor.next_at_ms is None or cursor.boot_id != self._boot_id
        if cursor.kind == EVERY and foreign:
            return self._moved(cursor, self._clock.boot_ms())
        return None

    def _push(self, kind: str, number: int, next_ms: int | None, boot_id: str | None) -> None:
        """The one way into the heaps: what the database says, after it says so."""
        if kind == BOOT:
            if boot_id != self._boot_id:
                heapq.heappush(self._boot, (0, number))
        elif next_ms is not None:
            heapq.heappush(self._wall if kind == CRON else self._boot, (next_ms, number))

    def _pushed(self, kind: str, move: CursorMove) -> None:
        if move.parked is not None:
            self._parked.add(move.trigger_number)
        else:
            self._push(kind, move.trigger_number, move.next_at_ms, move.boot_id)

    def _save(self, moves: list[tuple[Cursor, CursorMove]]) -> None:
        """Commit moves in batches, so that no transaction grows with the number of tasks."""
        for start in range(0, len(moves), _BATCH):
            batch = moves[start : start + _BATCH]
            self._commit(*(move for _cursor, move in batch))
            for cursor, move in batch:
                self._pushed(cursor.kind, move)

    def _commit(self, *moves: CursorMove) -> None:
        self._coordinator.save(
            Commit(at_ms=self._clock.wall_ms(), actor="scheduler", cursors=moves)
        )

    def _moved(
        self, cursor: Cursor, after_ms: int, *, scheduled_ms: int | None = None, skipped: int = 0
    ) -> CursorMove:
        """The move to the next due moment after `after_ms`, or aside if there is none to be had."""
        next_ms, parked = None, None
        try:
            next_ms = self.next_of(cursor, after_ms)
        except EdgeError as error:
            parked = error.code
            if isinstance(error, Unavailable):
                self._look_later()
        return CursorMove(
            trigger_number=cursor.trigger_number,
            expected_ms=cursor.next_at_ms,
            next_at_ms=next_ms,
            boot_id=None if cursor.kind == CRON else self._boot_id,
            scheduled_ms=scheduled_ms,
            skipped=skipped,
            parked=parked,
        )

    def _look_later(self) -> None:
        if self._retry is None:
            self._retry = self._loop.call_later(LAUNCH_BACKOFF_MS_MAX, self._look_again)

    def _look_again(self) -> None:
        self._retry = None
        self.load()
        self.look()

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
        for timer in (self._timer, self._retry):
            if timer is not None:
                timer.cancel()
        self._timer = self._retry = None

    def woken(self) -> None:
        """Every wake-up: has the wall clock moved, is something due?"""
        change = self._trust.observe()
        if change == RESET:
            self.recompute()
        elif change == REGAINED:
            self.load()
        if change != STEADY or self._due():
            self.look()

    def _due(self) -> bool:
        now_ms = self._clock.boot_ms()
        if not self._open or self.paused or now_ms < self._not_before_ms:
            return False
        if self._todo is not None or (self._boot and self._boot[0][0] <= now_ms):
            return True
        return bool(
            self._trust.trusted and self._wall and self._wall[0][0] <= self._clock.wall_ms()
        )

    def look(self) -> None:
        """Decide every occurrence that is due, then sleep until the next one."""
        for _ in range(_DECIDED_MAX):
            if not self._due():
                break
            if self._todo is not None:
                self._guarded(self._todo)
                continue
            heap = self._boot
            if not heap or heap[0][0] > self._clock.boot_ms():
                heap = self._wall
            due_ms, number = heapq.heappop(heap)
            try:
                self._decide(due_ms, number)
            except Unavailable:
                heapq.heappush(heap, (due_ms, number))
                self._back_off()
            except EdgeError:
                self._set_aside(number)
        self._arm()

    def _set_aside(self, number: int) -> None:
        """Named; the others go on. SQLite calls a read that failed once damage."""
        self._parked.add(number)
        self._look_later()

    def _arm(self) -> None:
        """A timer for the earliest due moment; the wall clock's distance is taken anew."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._open or self.paused:
            return
        dues = [self._boot[0][0]] if self._boot else []
        if self._todo is not None:
            dues.append(0)
        if self._wall and self._trust.trusted:
            ahead_ms = self._wall[0][0] - self._clock.wall_ms()
            dues.append(self._clock.boot_ms() + max(0, ahead_ms))
        if dues:
            self._timer = self._loop.call_at(max(min(dues), self._not_before_ms), self.look)

    def _back_off(self) -> None:
        """The storage refuses: nothing was admitted, and the same occurrences are tried again."""
        delay_ms = min(LAUNCH_BACKOFF_MS_MAX, LAUNCH_BACKOFF_MS_MIN << min(self._failures, 9))
        self._failures += 1
        self._not_before_ms = self._clock.boot_ms() + delay_ms

    def _decide(self, due_ms: int, number: int) -> None:
        cursor = self._store.tasks.cursor(number)
        if cursor is None or number in self._in_flight or not self._is_current(due_ms, cursor):
            return  # an older entry of this trigger
        if cursor.kind == BOOT:
            self._admit(cursor, None, self._clock.boot_ms())
            return
        now_ms = self._clock.wall_ms() if cursor.kind == CRON else self._clock.boot_ms()
        if now_ms - due_ms > self._grace_ms and cursor.misfire != FIRE_ONCE:
            self._move_on(cursor, self._moved(cursor, now_ms, skipped=1))
            return
        self._admit(cursor, due_ms, now_ms)

    def _move_on(self, cursor: Cursor, move: CursorMove) -> None:
        """Let an occurrence go; whoever moved the cursor meanwhile has placed it too."""
        try:
            self._commit(move)
        except EdgeError as error:
            if error.code != _STALE:
                raise
            return
        self._failures = 0
        self._pushed(cursor.kind, move)

    def _admit(self, cursor: Cursor, due_ms: int | None, now_ms: int) -> None:
        task = self._store.tasks.get(cursor.task_number)
        if task is None:
            return
        try:
            revision = self._store.tasks.revision(task.number, task.revision)
        except (Refused, Corrupt) as error:
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
                wanted=lambda: self._wanted(cursor.trigger_number),
                done=lambda run, _attempt, error: self._admitted(cursor, move, run, error),
            )
        )

    def _wanted(self, number: int) -> bool:
        """Asked at the barrier: nobody paused, disabled or stopped anything meanwhile."""
        cursor = self._store.tasks.cursor(number)
        return self._open and not self.paused and cursor is not None and cursor.enabled

    def _admitted(
        self, cursor: Cursor, move: CursorMove, run: Run | None, error: EdgeError | None
    ) -> None:
        """What became of an occurrence; until it is durable it is due as before."""
        number = cursor.trigger_number
        self._in_flight.discard(number)
        try:
            if run is not None or error is None:
                self._failures = 0
                self._pushed(cursor.kind, move)
            elif error.code in ("overlap_skipped", "queue_full"):
                self._move_on(cursor, move.replace(skipped=1, scheduled_ms=None))
            elif error.code in (_STALE, "withdrawn"):
                self._place(each for each in (self._store.tasks.cursor(number),) if each)
            elif isinstance(error, Unavailable):
                raise error
            else:
                self._park(cursor, error.code)
        except Unavailable:
            self._push(cursor.kind, number, cursor.next_at_ms, cursor.boot_id)
            self._back_off()
        except EdgeError:
            self._set_aside(number)
        self._arm()

    def _park(self, cursor: Cursor, reason: str) -> None:
        self._move_on(
            cursor,
            CursorMove(
                trigger_number=cursor.trigger_number,
                expected_ms=cursor.next_at_ms,
                next_at_ms=None,
                boot_id=cursor.boot_id,
                parked=reason,
            ),
        )

    # -- what people ask --------------------------------------------------------------------------

    @property
    def parked(self) -> int:
        """How many triggers stand aside; those that were edited or removed meanwhile do not."""
        found = [self._store.tasks.cursor(number) for number in self._parked]
        return sum(1 for each in found if each is not None)

    def enable(self, task_number: int) -> None:
        """A task was enabled: what was due meanwhile is not made up for."""
        cursors = self._store.tasks.task_cursors(task_number)
        try:
            self._save([(cursor, self._anew(cursor)) for cursor in cursors])
        except Unavailable:
            self._todo = self._todo or self._load
            self._back_off()
            raise
        finally:
            self._drop_stale()
            self._arm()

    def _anew(self, cursor: Cursor) -> CursorMove:
        """The move past everything until now; a cron cursor waits for a believed clock."""
        if cursor.kind != CRON:
            return self._moved(cursor, self._clock.boot_ms())
        if self._trust.trusted:
            return self._moved(cursor, self._clock.wall_ms())
        return CursorMove(
            trigger_number=cursor.trigger_number, expected_ms=cursor.next_at_ms, next_at_ms=None
        )

    def next_due(self) -> tuple[int, int] | None:
        """(wall ms, trigger) of the next occurrence, or None."""
        found = []
        for heap, offset_ms in ((self._boot, self._trust.offset_ms), (self._wall, 0)):
            while heap and not self._is_current(heap[0][0], self._store.tasks.cursor(heap[0][1])):
                heapq.heappop(heap)
            if heap and (heap is self._boot or self._trust.trusted):
                found.append((heap[0][0] + offset_ms, heap[0][1]))
        return min(found) if found else None

    def _is_current(self, due_ms: int, cursor: Cursor | None) -> bool:
        if cursor is None or not cursor.enabled:
            return False
        if cursor.kind == BOOT:
            return cursor.boot_id != self._boot_id
        return cursor.next_at_ms == due_ms

    def pause(self, *, paused: bool) -> None:
        """Stop or restore all admission by triggers; the caller has persisted it."""
        self.paused = paused
        self.look()
