"""A line for whoever listens at a stream, without waiting for him.

Owns one write. A resident process must not stand still because the reader of its events has: a
line is dropped where it would have to wait, and a closed or full stream is no failure.
"""

from __future__ import annotations

import os
import select


def offer(fd: int, line: bytes) -> None:
    """Write a line of at most 4 KiB, which a pipe that is ready takes whole."""
    ready = select.poll()
    ready.register(fd, select.POLLOUT)
    try:
        if ready.poll(0):
            os.write(fd, line)
    except OSError:
        return
