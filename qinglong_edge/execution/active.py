"""The attempts that hold a place: launching, running, or of unknown fate.

Owns the in-memory registry, which is only an index of what the database says; a new owner fills it
again from there. One `Active` is one attempt whose process may exist.
"""

from __future__ import annotations

from qinglong_edge.core.commit import AttemptKey
from qinglong_edge.core.evidence import Target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from qinglong_edge.core.errors import EdgeError
    from qinglong_edge.core.receipt import Receipt
    from qinglong_edge.core.run import Attempt, Run
    from qinglong_edge.execution.ports import LaunchPort, StopPort, TimerPort


class Active:
    """One attempt in the daemon's hands."""

    __slots__ = (
        "attempt",
        "channel_bytes",
        "deadline",
        "ended",
        "hold",
        "launch",
        "pid_fd",
        "receipt",
        "released",
        "run",
        "seen",
        "stop",
        "stop_signal",
        "stopped",
        "watch",
    )

    def __init__(self, run: Run, attempt: Attempt, launch: LaunchPort | None) -> None:
        self.run = run
        self.attempt = attempt
        self.launch = launch  # None = adopted: not our child
        self.pid_fd: int | None = None
        self.channel_bytes = b""
        self.receipt: Receipt | None = None  # authenticated, not yet committed
        self.seen: str | None = None  # what the capture said of the log: whole, cut, late
        self.deadline: TimerPort | None = None
        self.watch: TimerPort | None = None
        self.stop: StopPort | None = None
        self.stop_signal: int | None = None
        self.stopped: list[Callable[[EdgeError | None], None]] = []
        self.hold: str | None = None  # why it cannot converge: escaped, unknown, storage
        self.ended = False
        self.released = False

    def answer(self, error: EdgeError | None) -> None:
        """Tell everybody who waits for this attempt's stop, once."""
        waiting, self.stopped = self.stopped, []
        for call in waiting:
            call(error)

    @property
    def key(self) -> AttemptKey:
        """The attempt's stored key."""
        return AttemptKey(run_number=self.run.number, attempt=self.attempt.attempt)

    @property
    def target(self) -> Target:
        """The process by its durable handle."""
        return Target(
            handle=self.attempt.handle or "",
            pid=self.attempt.pid or 0,
            pid_namespace=self.attempt.pid_namespace,
        )


class Registry:
    """Who holds a place, by run and by task."""

    def __init__(self) -> None:
        self._by_run: dict[int, Active] = {}
        self._by_task: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._by_run)

    def __iter__(self) -> Iterator[Active]:
        return iter(list(self._by_run.values()))

    def add(self, active: Active) -> None:
        """Give an attempt its place."""
        self._by_run[active.run.number] = active
        task = active.run.task_number
        self._by_task[task] = self._by_task.get(task, 0) + 1

    def remove(self, active: Active) -> None:
        """Free the place; idempotent."""
        if self._by_run.pop(active.run.number, None) is None:
            return
        task = active.run.task_number
        self._by_task[task] -= 1
        if not self._by_task[task]:
            del self._by_task[task]

    def get(self, run_number: int) -> Active | None:
        """The place a Run holds, if any."""
        return self._by_run.get(run_number)

    @property
    def busy(self) -> int:
        """How many are at work; one that is held for want of proof stops nobody else."""
        return sum(1 for each in self._by_run.values() if each.hold is None)

    def of_task(self, task_number: int) -> int:
        """How many places a task holds."""
        return self._by_task.get(task_number, 0)

    def of(self, task_number: int) -> list[Active]:
        """The places a task holds."""
        if not self.of_task(task_number):
            return []
        return [each for each in self if each.run.task_number == task_number]
