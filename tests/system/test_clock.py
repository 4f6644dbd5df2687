"""The clocks, as whole milliseconds."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from qinglong_edge.system.clock import Clock


def test_the_wall_clock_is_in_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert abs(Clock().wall_ms() - time.time_ns() // 10**6) < 60_000  # it may be set meanwhile
    monkeypatch.setattr(time, "time_ns", lambda: 1_750_000_000_123_999_999)
    assert Clock().wall_ms() == 1_750_000_000_123


def test_boottime_counts_what_the_machine_slept_too() -> None:
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 10**6
    found = Clock().boot_ms()
    assert before <= found <= time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 10**6


def test_uptime_is_boottime_in_centiseconds() -> None:
    """The wrapper measures a run's length on this scale."""
    clock = Clock()
    before = clock.uptime_cs()
    now_ms = clock.boot_ms()
    assert before * 10 <= now_ms < (clock.uptime_cs() + 1) * 10


def test_a_stamp_is_the_moment_of_its_last_touch_or_nothing(tmp_path: Path) -> None:
    stamp = tmp_path / "ntp.stamp"
    assert Clock().stamp_ms(str(stamp)) is None
    stamp.touch()
    os.utime(stamp, ns=(1_750_000_000_123_456_789, 1_750_000_000_123_456_789))
    assert Clock().stamp_ms(str(stamp)) == 1_750_000_000_123
    assert Clock().stamp_ms(str(stamp / "below")) is None
