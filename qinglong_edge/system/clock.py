"""Clocks: wall time for records, boottime for deadlines.

Owns every reading of a clock. `boot_ms` counts suspended time too and never steps; `wall_ms` may
step at any moment, so nothing waits on it. After a crash nothing of this module is left behind.
"""

from __future__ import annotations

import os
import time

_MS = 1_000_000


class Clock:
    """The machine's clocks, as whole milliseconds."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC, as far as the machine knows."""
        return time.time_ns() // _MS

    def boot_ms(self) -> int:
        """Milliseconds since boot, suspended time included."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // _MS

    def uptime_cs(self) -> int:
        """/proc/uptime in centiseconds: the scale on which the wrapper measures elapsed time."""
        with open("/proc/uptime", "rb", buffering=0) as file:
            return int(file.read(64).split()[0].replace(b".", b""))

    def stamp_ms(self, path: str) -> int | None:
        """Modification time of a file that a time service touches, or None."""
        try:
            return os.stat(path).st_mtime_ns // _MS
        except OSError:
            return None
