"""What many tests need: the tree, waiting with a bound, the modules that a command loads."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

# Signals 32 to 34, which it keeps for itself; musl ignores the last once a process of several
# threads has changed its user or groups.
OF_THE_C_LIBRARY = 0b111 << 31

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Runs the program as a zipapp runs it, and tells at its end what has been imported.
_WATCH = """
import sys
import zipimport
zipapp, answer = sys.argv[1:3]
del sys.argv[1:3]
sys.path.insert(0, zipapp)
loader = zipimport.zipimporter(zipapp)
spec = loader.find_spec("__main__")
first = {"__name__": "__main__", "__spec__": spec, "__package__": ""}
try:
    exec(loader.get_code("__main__"), first)
finally:
    with open(answer, "w") as opened:
        opened.write("\\n".join(sys.modules))
"""


def read_zone() -> None:
    """Let the C library read TZ again, where this Python can ask for it (OpenWrt's cannot)."""
    if hasattr(time, "tzset"):
        time.tzset()


def until(ready: Callable[[], T], timeout: float = 10.0, *, what: str = "") -> T:
    """The first true answer of `ready`, asked every 5 ms; AssertionError after `timeout` s."""
    deadline = time.monotonic() + timeout
    while True:
        answer = ready()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {what or ready}")
        time.sleep(0.005)


def say_to(fifo: str | os.PathLike[str], text: str = "go\n") -> None:
    """Write a line to whoever reads a FIFO; AssertionError if nobody does within 10 s."""
    descriptor: int | None = None

    def read() -> bool:
        nonlocal descriptor
        try:
            descriptor = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        return descriptor is not None

    until(read, what=f"nobody reads {fifo}")
    with open(descriptor or 0, "w", encoding="utf-8") as opened:
        opened.write(text)


def loaded_modules(
    zipapp: str, arguments: Sequence[str], answer: str, *, ready: bytes | None = None
) -> frozenset[str]:
    """Modules that the program imports over a bare interpreter with the same flags (`-I -S`).

    `answer` is a file to use. With `ready` the program is a daemon: it gets TERM once a line of its
    stderr contains these bytes, and what its stop imports counts too.
    """
    command = [sys.executable, "-I", "-S", "-c", _WATCH, zipapp, answer, *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as started:
        lines = iter(started.stderr or ())
        if ready is not None and any(ready in line for line in lines):
            started.send_signal(signal.SIGTERM)
        for _ in lines:
            pass
    with open(answer, encoding="utf-8") as opened:
        return frozenset(opened.read().split()) - _bare_modules()


def _bare_modules() -> frozenset[str]:
    code = "import sys; print(*sys.modules)"
    bare = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], stdout=subprocess.PIPE, check=True
    )
    return frozenset(bare.stdout.decode().split())
