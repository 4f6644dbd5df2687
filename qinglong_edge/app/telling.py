"""What a resident process tells whoever started it: one line per event, and that it is ready.

Owns the form of the lines. Nobody has to listen: a closed or full stream is no failure.
"""

from __future__ import annotations

import os
import sys
import time

from qinglong_edge.system import lines


def prepare_process(*, anew: bool) -> None:
    """Give a missing standard stream its number back: a database must never become stderr.

    With `anew` the program starts once more in a legacy locale: everything that is read and handed
    to tasks is UTF-8 all the same.
    """
    if anew and sys.getfilesystemencoding() != "utf-8" and sys.executable:
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one


def say(event: str, /, **facts: object) -> None:
    """One line on stderr: local time with offset, the event, its facts."""
    moment = time.time()
    offset = time.strftime("%z", time.localtime(moment))
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(moment)) + offset
    told = " ".join(f"{name}={value}" for name, value in facts.items())
    lines.offer(2, f"{stamp} {event} {told}".rstrip().encode("utf-8", "replace") + b"\n")


def announce() -> None:
    """`ready` on stdout, for whoever waits for it; a closed stdout is fine."""
    lines.offer(1, b"ready\n")


def bug(error: BaseException) -> None:
    """Name an unexpected exception by kind and place; its text may hold anything."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "?"
    if trace is not None:
        where = f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
    say("bug", kind=type(error).__name__, at=where)
