"""Run in a guest: a chip that gets full under a daemon, before one, and has room again.

    python3 -m tests.tools.router.full ZIPAPP FOLDER

Prints one line of JSON with what was seen on the way.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import sys
from typing import Any

from tests.tools.measure import Daemon, Product
from tests.tools.router import processes
from tests.tools.router.scenario import EXIT, LIMITS, until

_MEMORY = "/tmp/full"
_HELD = "echo begun; : >{0}.begun; while [ ! -e {0}.go ]; do sleep 0.05; done; echo done; exit {1}"
_TASKS = {
    "held": _HELD.format(f"{_MEMORY}/held", EXIT),
    "left": _HELD.format(f"{_MEMORY}/left", EXIT),
    "short": f"echo heard; exit {EXIT}",
}


def fill(folder: str) -> str:
    """Take every byte that is left; the file that holds them."""
    path = os.path.join(folder, "filler")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        for size in (65_536, 4_096, 64):
            with contextlib.suppress(OSError):
                while True:
                    os.write(descriptor, os.urandom(size))  # what flash cannot compress
                    os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return path


def _ended(daemon: Daemon, run: str) -> tuple[str, int | None, str | None]:
    document = daemon.call("run.wait", run=run)
    return document["status"], document["exit_code"], document["evidence"]


def _asked(daemon: Daemon, method: str, **params: object) -> str:
    """`done`, or the code of the refusal."""
    try:
        daemon.call(method, **params)
    except RuntimeError as error:
        return str(error).rpartition(" ")[2]
    return "done"


def _daemon(product: Product, state: str) -> Daemon:
    """With its socket in memory, as a router's init script has it."""
    words = ("--state", state, "--runtime", f"{_MEMORY}/run", "run")
    return Daemon(product.command(*words), _MEMORY, "daemon")


def full(product: Product, folder: str) -> dict[str, Any]:
    """The story."""
    state = os.path.join(folder, "state")
    shutil.rmtree(_MEMORY, ignore_errors=True)
    os.mkdir(_MEMORY)
    product.init(state)
    os.mkdir(os.path.join(state, "run"), 0o700)
    path = os.path.join(state, "config.json")
    with open(path, encoding="utf-8") as opened:
        config = json.load(opened) | {"limits": LIMITS}
    with open(path, "w", encoding="utf-8") as opened:
        json.dump(config, opened)
    found: dict[str, Any] = {}
    with _daemon(product, state) as daemon:
        for name, text in _TASKS.items():
            daemon.call("task.add", name=name, shell=text)
        held = _begun(daemon, "held")
        filler = fill(folder)
        found["free"] = shutil.disk_usage(folder).free
        found["degraded"] = daemon.call("status")["degraded"]
        found["definition"] = _asked(daemon, "task.add", name="late", shell="exit 0")
        found["start"] = _asked(daemon, "run.start", name="short")
        _let("held")
        os.unlink(filler)
        found["held"] = _ended(daemon, held)
        found["further"] = _ended(daemon, str(daemon.call("run.start", name="short")["number"]))
        left = _begun(daemon, "left")
        filler = fill(folder)
        daemon.kill()
    found["socket on it"] = _first(product, state)
    with _daemon(product, state) as daemon:
        found["started on it"] = daemon.call("status")["degraded"]
        os.unlink(filler)
        _let("left")
        found["left"] = _ended(daemon, left)
        until(lambda: not processes.busy(daemon))
        found["degraded after"] = daemon.call("status")["degraded"]
        found["runs"] = sorted(run["task"] for run in daemon.call("runs.list", limit=10)["runs"])
    found["integrity"] = _integrity(state)
    return found


def _begun(daemon: Daemon, name: str) -> str:
    """A run of a command that waits; it is at work."""
    run = str(daemon.call("run.start", name=name)["number"])
    until(lambda: os.path.exists(f"{_MEMORY}/{name}.begun"))
    return run


def _let(name: str) -> None:
    """The waiting command and its wrapper go on to their end."""
    with open(f"{_MEMORY}/{name}.go", "w", encoding="ascii"):
        pass
    until(lambda: not _at_work(f"{_MEMORY}/{name}.go"))


def _first(product: Product, state: str) -> str:
    """What a daemon says that is to have its socket on the full chip: `ready`, or a code."""
    try:
        with product.daemon(state):
            return "ready"
    except RuntimeError as error:
        return str(error).rpartition("qinglong-edge: ")[2].partition(":")[0]


def _at_work(word: str) -> bool:
    """Whether a process has it in its command line."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as opened:
            if word.encode() in opened.read():
                return True
    return False


def _integrity(state: str) -> str:
    copy = "/tmp/full.db"
    for suffix in ("", "-wal", "-journal"):
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(os.path.join(state, f"edge.db{suffix}"), f"{copy}{suffix}")
    connection = sqlite3.connect(copy)
    try:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])
    finally:
        connection.close()


def main(zipapp: str, folder: str) -> None:
    """Look and print."""
    print(json.dumps(full(Product(zipapp), folder)))


if __name__ == "__main__":
    main(*sys.argv[1:])
