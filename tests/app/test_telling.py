"""Event lines: nobody has to listen, and a reader that stands still stops nothing."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support import ROOT

_TELLS = "from qinglong_edge.app import telling; telling.announce(); telling.say('event', a=1)"
_BOUND_S = 60


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)


def tell(stream: int) -> int:
    """Both kinds of lines into a stream; the exit status."""
    command = [sys.executable, "-S", "-c", _TELLS]
    done = subprocess.run(command, stdout=stream, stderr=stream, cwd=ROOT, timeout=_BOUND_S)
    return done.returncode


def test_a_line_is_written_whole(pipe: tuple[int, int]) -> None:
    assert tell(pipe[1]) == 0
    ready, line, rest = os.read(pipe[0], 4_096).split(b"\n")
    assert (ready, rest) == (b"ready", b"")
    assert line.endswith(b" event a=1")


def test_a_full_stream_that_nobody_reads_is_not_waited_for(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[1], False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe[1], b"x" * 4_096)
    os.set_blocking(pipe[1], True)
    assert tell(pipe[1]) == 0


def test_a_stream_whose_reader_has_gone_is_no_failure() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        assert tell(write) == 0
    finally:
        os.close(write)
