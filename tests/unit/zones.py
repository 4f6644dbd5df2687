"""Zone data of a pinned release, the interpreter's zones to compare with, readable times."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import io
import os
import struct
import time
import zoneinfo
from collections.abc import Iterator
from importlib import resources

import pytest
from hypothesis import settings

from qinglong_edge.core.zone import TIME_MAX_S, TIME_MIN_S, Zone, open_zone

UTC = dt.UTC
FUZZ_S = int(os.environ.get("EDGE_FUZZ_S", "0"))  # about how long each property may take
FUZZ = settings(
    max_examples=max(100, 500 * FUZZ_S), deadline=None, derandomize=not FUZZ_S, database=None
)


@functools.cache
def keys() -> tuple[str, ...]:
    """Every zone of the release."""
    return tuple((resources.files("tzdata") / "zones").read_text(encoding="ascii").split())


@functools.cache
def data(key: str) -> bytes:
    """The compiled zone."""
    return resources.files("tzdata").joinpath("zoneinfo", *key.split("/")).read_bytes()


@functools.cache
def distinct() -> tuple[str, ...]:
    """One name for each zone that differs from all the others."""
    return tuple({data(key): key for key in reversed(keys())}.values())


def sample() -> tuple[str, ...]:
    """A sixteenth of the zones that differ; all of them when there is time."""
    return distinct() if FUZZ_S else distinct()[::16]


@functools.cache
def zone(text: str) -> Zone:
    """Our zone of a key of the release or of a POSIX string."""
    return open_zone(text, data(text) if text in keys() else None)


@functools.cache
def other(text: str) -> dt.tzinfo:
    """The interpreter's zone of a key of the release or of a POSIX string."""
    found = data(text) if text in keys() else footer_only(text)
    return zoneinfo.ZoneInfo.from_file(io.BytesIO(found))


def footer_only(text: str) -> bytes:
    """Zone data that holds nothing but a POSIX TZ string for all time."""
    block = struct.pack(">5s15x6IibB4s", b"TZif2", 0, 0, 0, 0, 1, 4, 0, 0, 0, b"LMT")
    return block * 2 + f"\n{text}\n".encode("ascii")


@contextlib.contextmanager
def process_zone(text: str) -> Iterator[None]:
    """The zone of this process, as the C library reads TZ."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", text)
        time.tzset()
        yield
    time.tzset()


def changes(opened: Zone, first_s: int, last_s: int) -> list[tuple[int, int]]:
    """Every change of offset between two instants: (second, by how many seconds)."""
    found = []
    start, end, offset = opened.span_at(first_s)
    while end < last_s:
        before = offset
        start, end, offset = opened.span_at(end)
        if offset != before:
            found.append((start, offset - before))
    assert TIME_MIN_S < start < TIME_MAX_S or not found
    return found


def ms(text: str) -> int:
    """Epoch milliseconds of an ISO time in UTC."""
    moment = dt.datetime.fromisoformat(text).astimezone(UTC)
    return (moment - dt.datetime(1970, 1, 1, tzinfo=UTC)) // dt.timedelta(milliseconds=1)


def iso(at_ms: int) -> str:
    """The ISO time in UTC of whole seconds."""
    moment = dt.datetime(1970, 1, 1, tzinfo=UTC) + dt.timedelta(milliseconds=at_ms)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
