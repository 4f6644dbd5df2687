"""Which logs go: by age, by pressure, below the reserve whatever their age (ADR-0024 section 5).

Owns the policy. Candidates come from the database in pages, oldest first: attempts that have ended,
of runs that have ended, whose receipt is settled and whose log has no tombstone. Each goes log
first, tombstone last, so that a crash between finds the log absent and says so the next time.

    free room                       a settled log goes
    enough                          `retention_ms` after its attempt's end
    below `pressure_bytes`          `pressure_ms` after it
    below `needed_bytes`            at once, page after page, until there is room

Age counts only with a believed clock, and what this boot launched is no older than this boot: a
step from a clock that was months behind ages nothing. A log that cannot be retired is counted and
passed over; it is tried again when the cursor, which lives in memory only, comes round.
"""

from __future__ import annotations

from qinglong_edge.core import handle as handles
from qinglong_edge.core.commit import AttemptKey
from qinglong_edge.core.errors import EdgeError, Refused
from qinglong_edge.core.fact import log_artifact_id
from qinglong_edge.core.run import at_or_after
from qinglong_edge.core.tombstone import Tombstone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from qinglong_edge.core.run import Attempt, Run
    from qinglong_edge.execution.ports import ClockPort

    class RetirablePort(Protocol):
        """What retention reads of the aggregate."""

        def oldest_log(self, after: AttemptKey) -> AttemptKey: ...
        def retirable(
            self, after: AttemptKey, *, finished_before_ms: int | None, limit: int
        ) -> list[Attempt]: ...
        def get(self, number: int) -> Run | None: ...

    class RetiredPort(Protocol):
        """What a log was when it was deleted."""

        @property
        def disposition(self) -> str: ...
        @property
        def bytes(self) -> int: ...
        @property
        def truncated(self) -> bool | None: ...
        @property
        def maximum_bytes(self) -> int | None: ...
        @property
        def observed_at_ms(self) -> int | None: ...

    class RetiringPort(Protocol):
        """The log files, as retention sees them."""

        def free_bytes(self) -> int: ...
        def retire(self, run_id: str, attempt_id: str) -> RetiredPort: ...


LOG_PRESSURE = "log_pressure"
_FIRST = AttemptKey(run_number=0, attempt=1)
_PAGES_MAX = 8  # of one call below the reserve: the loop waits for it


class Retention:
    """The policy over one log root; `sweep` belongs into a tick, `make_room` before a refusal."""

    def __init__(
        self,
        *,
        runs: RetirablePort,
        logs: RetiringPort,
        record: Callable[[Tombstone], object],
        clock: ClockPort,
        trusted: Callable[[], bool],
        boot_id: str,
        retention_ms: int,
        pressure_ms: int,
        pressure_bytes: int,
        needed_bytes: int,
        page: int,
        deletions: int,
    ) -> None:
        """`record` makes a tombstone durable; `needed_bytes` is reserve and one quota.

        `page` candidates are read and at most `deletions` logs deleted a sweep.
        """
        self._runs = runs
        self._logs = logs
        self._record = record
        self._clock = clock
        self._trusted = trusted
        self._boot_id = boot_id
        self._retention_ms = retention_ms
        self._pressure_ms = pressure_ms
        self._pressure_bytes = pressure_bytes
        self._needed_bytes = needed_bytes
        self._page_rows = page
        self._deletions = deletions
        self._after = _FIRST
        self._oldest = _FIRST  # every log before it is gone: reading begins there
        self.reason: str | None = None
        self.failed = 0  # logs that the last call could not retire

    def sweep(self) -> int:
        """One look at clock and room, one bounded page; how many logs went.

        OSError if the room cannot be seen, EdgeError of the database; what has gone by then is
        found absent the next time.
        """
        self.failed = 0
        if self.look() < self._needed_bytes:
            return self._make_room(self._needed_bytes)
        if not self._trusted():
            return 0
        keep_ms = self._retention_ms if self.reason is None else self._pressure_ms
        now_ms = self._clock.wall_ms()
        found = self._page(self._after, now_ms - keep_ms + 1)
        due = found[: self._deletions]
        young = self._clock.boot_ms() < keep_ms
        gone = sum(
            self._retire(each, now_ms, keep_ms) is not None
            for each in due
            if not (young and of_boot(each, self._boot_id))
        )
        rest = len(due) < len(found) or len(found) == self._page_rows
        self._after = _key(due[-1]) if rest else _FIRST
        return gone

    def make_room(self, needed_bytes: int) -> bool:
        """Delete settled logs, oldest first, until so many bytes are free; True if one has gone.

        Bounded; errors as of `sweep`.
        """
        self.failed = 0
        return self._make_room(needed_bytes) > 0

    def look(self) -> int:
        """The free room, and with it `reason`; OSError."""
        free_bytes = self._logs.free_bytes()
        low = free_bytes < max(self._pressure_bytes, self._needed_bytes)
        self.reason = LOG_PRESSURE if low else None
        return free_bytes

    def _make_room(self, needed_bytes: int) -> int:
        gone, after = 0, _FIRST
        for _ in range(_PAGES_MAX):
            short_bytes = needed_bytes - self.look()
            found = self._page(after, None) if short_bytes > 0 else []
            for attempt in found:
                if short_bytes > 0:
                    freed_bytes = self._retire(attempt, self._clock.wall_ms(), 0)
                    after = _key(attempt)
                    gone += freed_bytes is not None
                    short_bytes -= freed_bytes or 0
            if len(found) < self._page_rows:
                break
        return gone

    def _page(self, after: AttemptKey, finished_before_ms: int | None) -> list[Attempt]:
        self._oldest = self._runs.oldest_log(self._oldest)
        begin = max(after, self._oldest, key=lambda key: (key.run_number, key.attempt))
        return self._runs.retirable(
            begin, finished_before_ms=finished_before_ms, limit=self._page_rows
        )

    def _retire(self, attempt: Attempt, now_ms: int, keep_ms: int) -> int | None:
        """Log first, tombstone last; the bytes of the log, None if either failed."""
        run = self._runs.get(attempt.run_number)
        finished_ms = attempt.finished_at_ms or 0
        try:
            if run is None or not run.ended:
                raise Refused("run_not_settled", "A log of a run that goes on is kept.")
            retired = self._logs.retire(run.id, attempt.id)
            told = attempt.log_truncated if retired.truncated is None else retired.truncated
            self._record(
                Tombstone(
                    key=_key(attempt),
                    run_id=run.id,
                    attempt_id=attempt.id,
                    log_artifact_id=log_artifact_id(run.id, attempt.id),
                    finished_at_ms=finished_ms,
                    eligible_at_ms=finished_ms + keep_ms,
                    retired_at_ms=at_or_after(now_ms, finished_ms + keep_ms),
                    disposition=retired.disposition,
                    bytes=retired.bytes,
                    truncated=told,
                    maximum_bytes=retired.maximum_bytes,
                    observed_at_ms=retired.observed_at_ms,
                )
            )
        except (OSError, EdgeError):
            self.failed += 1
            return None
        return retired.bytes


def of_boot(attempt: Attempt, boot_id: str) -> bool:
    """True if its process was launched in that boot, as its handle says."""
    found = None if attempt.handle is None else handles.decode(attempt.handle)
    return found is not None and found.boot_id == boot_id


def _key(attempt: Attempt) -> AttemptKey:
    return AttemptKey(run_number=attempt.run_number, attempt=attempt.attempt)
