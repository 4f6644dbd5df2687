"""What keeps failing: said once for each reason, tried again after pauses that grow.

Owns the memory of the last reason; a crash loses it, and it is said once more.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qinglong_edge.worker.ports import SayPort

_PAUSE_MS_MIN = 1_000
_PAUSE_MS_MAX = 60_000


class Failing:
    """One thing that may fail for days."""

    def __init__(self, say: SayPort, event: str) -> None:
        self._say = say
        self._event = event
        self._times = 0
        self.code: str | None = None  # why it failed last, unless it works again

    def failed(self, code: str) -> int:
        """Say it if that is news; the pause before another try in ms, 1 s, 2 s, ... a minute."""
        if code != self.code:
            self._say(self._event, code=code)
        self.code = code
        self._times = min(self._times + 1, 7)
        return min(_PAUSE_MS_MAX, _PAUSE_MS_MIN << self._times - 1)

    def over(self) -> None:
        """It works."""
        self.code = None
        self._times = 0
