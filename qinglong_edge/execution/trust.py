"""Whether the wall clock may be believed.

Owns the judgement. A router without a clock battery boots in the past and is set by NTP minutes
later; while the clock is not believed no cron occurrence is admitted.

    believed   wall >= the product's own floor date, and >= the highest wall time seen in trust
    step back  by more than a minute: not believed until a time service's stamp is newer than the
               step, 15 minutes of steady boottime have passed, or the operator says so

The highest time rides on other commits; this module writes nothing by itself.
"""

from __future__ import annotations

from qinglong_edge.core.errors import Refused
from qinglong_edge.core.limits import (
    CLOCK_BACKWARD_TOLERANCE_MS,
    CLOCK_FLOOR_MS,
    CLOCK_RESET_STEP_MS,
    CLOCK_STEADY_MS,
    CLOCK_STEP_TOLERANCE_MS,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class ClockPort(Protocol):
        """Readings of the machine's clocks."""

        def wall_ms(self) -> int: ...
        def boot_ms(self) -> int: ...
        def stamp_ms(self, path: str) -> int | None: ...


_SAVE_EVERY_MS = 600_000
SETTING = "clock_high_ms"
STEADY, STEPPED, REGAINED, RESET = "steady", "stepped", "regained", "reset"


class ClockTrust:
    """Watches the difference between wall time and boottime."""

    def __init__(self, clock: ClockPort, *, stored_high_ms: int, stamps: tuple[str, ...]) -> None:
        self._clock = clock
        self._stamps = stamps
        self._stored_ms = stored_high_ms
        self._high_ms = stored_high_ms
        wall_ms, boot_ms = clock.wall_ms(), clock.boot_ms()
        self._offset_ms = wall_ms - boot_ms
        self._seen_boot_ms = boot_ms
        self._since_boot_ms = boot_ms
        self._since_wall_ms = wall_ms
        self._resetting = False
        self.reason: str | None = None
        self._judge(wall_ms)

    @property
    def trusted(self) -> bool:
        """True while cron occurrences may be admitted."""
        return self.reason is None

    @property
    def offset_ms(self) -> int:
        """Wall time minus boottime, as last observed."""
        return self._offset_ms

    def _judge(self, wall_ms: int) -> None:
        if wall_ms < CLOCK_FLOOR_MS:
            self.reason = "clock_not_set"
        elif wall_ms < self._high_ms - CLOCK_BACKWARD_TOLERANCE_MS:
            self.reason = "clock_stepped_back"
        else:
            self.reason = None

    def observe(self) -> str:
        """Look at the clocks; tells what changed.

        `stepped`: the wall clock moved and is believed; `regained`: it is believed again;
        `reset`: the same after a step back of hours, so that cursors must be computed anew.
        """
        wall_ms, boot_ms = self._clock.wall_ms(), self._clock.boot_ms()
        offset_ms = wall_ms - boot_ms
        moved = abs(offset_ms - self._offset_ms) > CLOCK_STEP_TOLERANCE_MS
        self._offset_ms = offset_ms
        before = self.reason
        seen_boot_ms, self._seen_boot_ms = self._seen_boot_ms, boot_ms
        if moved:  # at some moment since the last look
            self._since_boot_ms, self._since_wall_ms = boot_ms, seen_boot_ms + offset_ms
            self._judge(wall_ms)
        elif before is not None:
            self._judge(wall_ms)
            if self.reason == "clock_stepped_back" and self._confirmed(wall_ms, boot_ms):
                return self._accept(wall_ms)
        if self.reason is not None:
            return STEADY
        self._high_ms = max(self._high_ms, wall_ms)
        if before is not None:
            return REGAINED
        return STEPPED if moved else STEADY

    def _confirmed(self, wall_ms: int, boot_ms: int) -> bool:
        if boot_ms - self._since_boot_ms >= CLOCK_STEADY_MS:
            return True
        for path in self._stamps:
            stamp_ms = self._clock.stamp_ms(path)
            if stamp_ms is not None and self._since_wall_ms <= stamp_ms <= wall_ms:
                return True
        return False

    def _accept(self, wall_ms: int) -> str:
        back_ms = self._high_ms - wall_ms
        self._high_ms = wall_ms
        self.reason = None
        self._stored_ms = 0  # the lower value must be written with the next commit
        self._resetting = back_ms > CLOCK_RESET_STEP_MS
        return RESET if self._resetting else REGAINED

    def recomputed(self) -> None:
        """Every cursor was computed anew; only now may the lower time become durable.

        A crash before that finds the higher one again, and the same is done once more.
        """
        self._resetting = False

    def believe(self) -> str:
        """The operator's word; `Refused` for a date before the product existed."""
        self.observe()
        wall_ms = self._clock.wall_ms()
        if wall_ms < CLOCK_FLOOR_MS:
            raise Refused("clock_not_set", "The clock shows a date before this program existed.")
        return STEADY if self.trusted else self._accept(wall_ms)

    def to_save(self) -> tuple[tuple[str, str], ...]:
        """The setting that should ride on the next commit; often nothing."""
        near = abs(self._high_ms - self._stored_ms) < _SAVE_EVERY_MS
        if near or self._resetting or not self.trusted:
            return ()
        return ((SETTING, str(self._high_ms)),)

    def saved(self, settings: tuple[tuple[str, str], ...]) -> None:
        """What rode on a commit is durable."""
        self._stored_ms = int(dict(settings).get(SETTING, self._stored_ms))
