"""What many tests need: the tree, waiting with a bound, the modules that a command loads."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

# Signals 32 to 34, which it keeps for itself; musl ignores the last once a process of several
# threads has changed its user or groups.
OF_THE_C_LIBRARY = 0b111 << 31

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# The program leaves a killed child that does not die within 0.1 s to its next look; a test ends.
REAP_TRIES = 10_000

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


def until(ready: Callable[[], T], timeout: float = 30.0, *, what: str = "") -> T:
    """The first true answer of `ready`, asked every 5 ms; AssertionError after `timeout` s.

    The last question is asked behind the deadline: this process may have stood still till then.
    """
    deadline = time.monotonic() + timeout
    while True:
        late = time.monotonic() > deadline
        answer = ready()
        if answer:
            return answer
        if late:
            raise AssertionError(f"not within {timeout} s: {what or ready}")
        time.sleep(0.005)


def cpu_s(call: Callable[[], object]) -> float:
    """CPU seconds of a call; collecting what other tests have left is no part of it."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        begun = time.process_time()
        call()
        return time.process_time() - begun
    finally:
        if collecting:
            gc.enable()


def unit_s() -> float:
    """CPU seconds of a hundred thousand plain steps, here and now: 5 ms on a desktop.

    A bound in such units holds in an emulator, and where a neighbour takes half of the core.
    """

    def steps() -> None:
        sum(number & 7 for number in range(100_000))

    return min(cpu_s(steps) for _ in range(3))


def say_to(fifo: str | os.PathLike[str], text: str = "go\n") -> None:
    """Write a line to whoever reads a FIFO; AssertionError if nobody does in `until`'s time."""
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


@contextlib.contextmanager
def nearby(path: Path) -> Iterator[str]:
    """A short name of a path for a socket, which takes 107 bytes; its folder is there."""
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


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
