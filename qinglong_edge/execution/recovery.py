"""The start pass: every run whose process may still be there comes to a true state.

Owns the order receipt -> identity -> absence, in bounded pages driven by the journal.

| receipt file | identity      | session   | result                                                |
|--------------|---------------|-----------|-------------------------------------------------------|
| authentic    | (not asked)   | *         | ended by its exit code, evidence `receipt`            |
| unbelievable | as below      |           | quarantined, intent first; then as if there were none |
| none         | alive         |           | adopted; a stop that had begun goes on                |
| none         | gone          | empty     | receipt again, then cancelled / timed out / lost      |
| none         | gone          | survivors | held as `escaped`; looked at again every 30 s         |
| none         | unknown       |           | held and named; looked at again with the maintenance  |

(* Only if a stop was asked for: then survivors hold it too, whatever the receipt says.)

Nothing is signalled here but the stops that were already intended; nothing is started twice; a run
that cannot converge is named in `status` and is never a reason not to start.
"""

from __future__ import annotations

from qinglong_edge.core.commit import AttemptKey
from qinglong_edge.core.errors import EdgeError
from qinglong_edge.core.evidence import ALIVE, UNKNOWN
from qinglong_edge.core.record import Record
from qinglong_edge.execution.active import Active

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qinglong_edge.execution.control import Control
    from qinglong_edge.execution.coordinator import Coordinator
    from qinglong_edge.execution.ports import InspectorPort, StorePort

_PAGE = 64


class Recovered(Record):
    """What the start pass came to."""

    scanned: int = 0
    ended: int = 0
    adopted: int = 0
    held: int = 0


class Recovery:
    """Loads the registry from the database and judges every entry once."""

    def __init__(
        self,
        *,
        store: StorePort,
        coordinator: Coordinator,
        control: Control,
        inspector: InspectorPort,
    ) -> None:
        self._store = store
        self._coordinator = coordinator
        self._control = control
        self._inspector = inspector

    def load(self) -> list[Active]:
        """Give every journalled, not ended attempt its place, without judging it."""
        found: list[Active] = []
        after = AttemptKey(run_number=-1, attempt=-1)
        while True:
            page = self._store.runs.launched(after=after, limit=_PAGE)
            for key in page:
                after = key
                if self._coordinator.registry.get(key.run_number) is not None:
                    continue
                run = self._store.runs.get(key.run_number)
                attempt = self._store.runs.attempt(key)
                if run is not None and attempt is not None:
                    active = Active(run, attempt, None)
                    self._coordinator.registry.add(active)
                    found.append(active)
            if len(page) < _PAGE:
                return found

    def recover(self) -> Recovered:
        """The whole pass; one run's failure leaves it held and the rest goes on."""
        found = self.load()
        counts = {"ended": 0, "adopted": 0, "held": 0}
        for active in found:
            counts[self.judge(active)] += 1
        return Recovered(scanned=len(found), **counts)

    def judge(self, active: Active) -> str:
        """Bring one attempt to its state: ended, adopted or held."""
        try:
            if self._coordinator.end_by_file(active):
                return "ended"
            verdict = self._inspector.inspect(active.target)
            if verdict.state == UNKNOWN:
                active.hold = verdict.reason or "unknown"
                return "held"
            active.hold = None
            if verdict.state == ALIVE and self._coordinator.adopt(active):
                self._control.resume(active)
                return "ended" if active.ended else "adopted"
            self._coordinator.exited(active)
        except (OSError, EdgeError) as error:
            active.hold = error.code if isinstance(error, EdgeError) else "provider_unavailable"
            return "held"
        return "ended" if active.ended else "held"

    def look_again(self) -> None:
        """Judge the held ones once more, go on with stops; part of the maintenance tick."""
        for active in self._coordinator.registry:
            if active.hold is None or active.stop is not None:
                continue
            if active.pid_fd is None and active.watch is None:
                self.judge(active)
            else:
                self._control.resume(active)
