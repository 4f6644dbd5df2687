"""Maintenance: one tick, one bounded page of each kind, nothing at rest.

Owns the one timer of the lifecycles: journal rows waiting for a ride, receipt cleanup (ADR-0069
section 5), runs of unknown fate, logs past their time (ADR-0024 section 5), history beyond its
bounds (log first, rows last), definitions that nothing cites. A tick that finds nothing writes
nothing.
"""

from __future__ import annotations

from qinglong_edge.core.errors import EdgeError
from qinglong_edge.execution.retention import of_boot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from qinglong_edge.core.run import Attempt
    from qinglong_edge.execution.coordinator import Coordinator
    from qinglong_edge.execution.ports import ClockPort, LogsPort, LoopPort, TimerPort
    from qinglong_edge.execution.recovery import Recovery

    class SummaryPort(Protocol):
        """What one page of receipt cleanup came to."""

        @property
        def failed(self) -> int: ...

    class ScannerPort(Protocol):
        """One page of receipt cleanup."""

        def scan(self, now_ms: int) -> SummaryPort: ...

    class HistoryRunsPort(Protocol):
        """What pruning reads."""

        def prunable(self, *, keep: int, finished_before_ms: int, limit: int) -> list[int]: ...
        def attempts(self, run_number: int) -> list[Attempt]: ...
        def get(self, number: int) -> object | None: ...

    class HistoryPort(Protocol):
        """The state, as pruning sees it."""

        @property
        def runs(self) -> HistoryRunsPort: ...
        def prune(self, numbers: list[int]) -> None: ...
        def sweep(self, *, before_ms: int, limit: int, keep_audit: int) -> int: ...

    class RetentionPort(Protocol):
        """One bounded look at the logs; `failed` counts those that would not go."""

        failed: int

        def sweep(self) -> int: ...


_SLACK_MS = 30_000
_DAY_MS = 86_400_000


class Sweep:
    """The maintenance lifecycle; start and stop are explicit and idempotent."""

    def __init__(
        self,
        *,
        store: HistoryPort,
        coordinator: Coordinator,
        recovery: Recovery,
        scanner: ScannerPort,
        retention: RetentionPort,
        logs: LogsPort,
        loop: LoopPort,
        clock: ClockPort,
        trusted: Callable[[], bool],
        boot_id: str,
        interval_ms: int,
        keep_runs: int,
        keep_ms: int,
        keep_audit: int,
        page: int,
    ) -> None:
        self._store = store
        self._coordinator = coordinator
        self._recovery = recovery
        self._scanner = scanner
        self._retention = retention
        self._keep_audit = keep_audit
        self._definitions_due_ms = 0
        self._logs = logs
        self._loop = loop
        self._clock = clock
        self._trusted = trusted
        self._boot_id = boot_id
        self._interval_ms = interval_ms
        self._keep_runs = keep_runs
        self._keep_ms = keep_ms
        self._page = page
        self._timer: TimerPort | None = None
        self.failed: str | None = None

    def start(self) -> None:
        """Arm the timer."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._interval_ms, self._tick, slack_ms=_SLACK_MS)

    def stop(self) -> None:
        """Disarm it; no tick is ever in flight outside the loop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        self.run_once()
        self.start()

    def run_once(self) -> None:
        """One page of everything; a failure is named in `failed` and tried again next time."""
        self.failed = None
        for step in (
            self._coordinator.flush,
            self._clean_receipts,
            self._recovery.look_again,
            self._retire_logs,
            self._prune,
            self._sweep_definitions,
        ):
            try:
                step()
            except (OSError, EdgeError) as error:
                self.failed = error.code if isinstance(error, EdgeError) else "storage_unavailable"

    def _clean_receipts(self) -> None:
        if self._scanner.scan(self._clock.wall_ms()).failed:
            self.failed = "receipts_unclean"

    def _retire_logs(self) -> None:
        self._retention.sweep()
        if self._retention.failed:
            self.failed = "logs_unretired"

    def _sweep_definitions(self) -> None:
        """What no task, trigger or run cites goes, once it is older than the history's window.

        To find nothing costs a look at every definition, so the next look is a day later.
        """
        now_ms = self._clock.boot_ms()
        if now_ms < self._definitions_due_ms or not self._trusted():
            return
        before_ms = self._clock.wall_ms() - self._keep_ms
        if not self._store.sweep(
            before_ms=before_ms, limit=self._page, keep_audit=self._keep_audit
        ):
            self._definitions_due_ms = now_ms + _DAY_MS

    def _prune(self) -> None:
        """Delete the oldest ended runs beyond the bounds; by age only with a believed clock.

        What this boot launched is no older than this boot, whatever the wall clock read then.
        """
        numbers = self._prunable(self._clock.wall_ms() - self._keep_ms if self._trusted() else 0)
        if numbers and self._clock.boot_ms() < self._keep_ms:
            too_many = self._prunable(0)
            numbers = [n for n in numbers if n in too_many or not self._is_of_boot(n)]
        for number in numbers:
            run = self._store.runs.get(number)
            run_id = str(getattr(run, "id", ""))
            for attempt in self._store.runs.attempts(number):
                if attempt.log_quota_bytes:
                    self._logs.remove(run_id, attempt.id)
        if numbers:
            self._store.prune(numbers)

    def _prunable(self, finished_before_ms: int) -> list[int]:
        return self._store.runs.prunable(
            keep=self._keep_runs, finished_before_ms=finished_before_ms, limit=self._page
        )

    def _is_of_boot(self, number: int) -> bool:
        return any(of_boot(each, self._boot_id) for each in self._store.runs.attempts(number))
