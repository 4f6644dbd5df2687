"""Moments as people write them, by the calendar of cron."""

from __future__ import annotations

import datetime as dt

from hypothesis import given
from hypothesis import strategies as st

from qinglong_edge.core import civil
from tests.unit.zones import FUZZ


@FUZZ
@given(st.integers(-(10**10), 2 * 10**11), st.integers(-50_000, 50_000))
def test_a_moment_is_written_as_the_calendar_writes_it(second: int, offset_s: int) -> None:
    local = dt.datetime(1970, 1, 1) + dt.timedelta(seconds=second + offset_s)
    minutes = abs(offset_s) // 60
    offset = f"{'-' if offset_s < 0 else '+'}{minutes // 60:02d}{minutes % 60:02d}"
    assert civil.written(second, offset_s) == f"{local.isoformat(' ')}{offset}"
