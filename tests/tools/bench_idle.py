"""The rows of a daemon at rest: what it holds, what it loads, how it starts, what it does idle."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass

from tests.tools import measure
from tests.tools.measure import Daemon, Product

_LISTED = ("3.11", "3.12", "3.13")  # the lists were taken under these

TASKS = 100
ZONE = "CST-8"


@dataclass(frozen=True)
class Footprint:
    """KiB over a bare interpreter with the same flags."""

    private_dirty: float
    rss_with_zone: float


def footprint(product: Product, home: str, *, rounds: int) -> Footprint:
    """Interleaved starts of the daemon and of a bare interpreter: the median of what is dirty, the
    least of what is resident, to which the files' pages of other processes only add."""
    state = os.path.join(home, "state")
    product.populated(state, TASKS)
    dirty: list[float] = []
    rss: list[float] = []
    for number in range(rounds):
        with measure.bare_interpreter(product.python) as (pid, _start):
            bare = measure.memory(pid)
        with product.daemon(state) as daemon:
            dirty.append(measure.memory(daemon.pid).private_dirty - bare.private_dirty)
        # A stored cursor needs no zone until it is due; a new trigger needs it at the next start.
        product.command_with(
            state,
            "task",
            "add",
            f"zoned {number}",
            "--cron",
            "0 5 * * *",
            "--zone",
            ZONE,
            "--shell",
            "true",
        )
        with product.daemon(state) as daemon:
            rss.append(measure.memory(daemon.pid).rss - bare.rss)
    return Footprint(measure.median(dirty), min(rss))


def footprint_with_secrets(product: Product, home: str, *, secrets: int, runs: int) -> Footprint:
    """The same of a daemon that keeps secrets and has launched a task with all of them."""
    state, values = os.path.join(home, "state"), os.path.join(home, "values.env")
    product.populated(state, TASKS)
    with open(values, "w", encoding="utf-8") as opened:
        opened.writelines(f"SECRET_{number}=value {number}\n" for number in range(secrets))
    product.command_with(state, "secret", "set", "--env-file", values)
    bound = [f"--secret=S{number}=SECRET_{number}" for number in range(secrets)]
    zoned = ["--cron", "0 5 * * *", "--zone", ZONE]
    product.command_with(state, "task", "add", "sealed", *bound, *zoned, "--shell", "true")
    with measure.bare_interpreter(product.python) as (pid, _start):
        bare = measure.memory(pid)
    with product.daemon(state) as daemon:
        for _ in range(runs):
            ended = daemon.run("sealed")
            if ended["status"] != "succeeded":
                raise RuntimeError(f"a run with secrets ended {ended['status']}")
        daemon.hang_up()
        measure.rest(daemon.pid)
        found = measure.memory(daemon.pid)
    return Footprint(found.private_dirty - bare.private_dirty, found.rss - bare.rss)


def start_ratio(product: Product, home: str, *, rounds: int) -> float:
    """CPU from the start to `ready` over a bare interpreter's to its first line; state on tmpfs."""
    state = os.path.join(home, "state")
    product.populated(state, TASKS)
    ours: list[float] = []
    bare: list[float] = []
    for _ in range(rounds):
        with measure.bare_interpreter(product.python) as (_pid, start_ns):
            bare.append(start_ns)
        with product.daemon(state) as daemon:
            ours.append(daemon.start_ns)
    return measure.median(ours) / measure.median(bare)


def exercise(daemon: Daemon) -> None:
    """What every daemon does sooner or later."""
    define(daemon)
    use(daemon)


def define(daemon: Daemon) -> None:
    """A task to use."""
    daemon.call("task.add", name="used", shell="echo used", cron=["0 0 1 1 *"], zone=ZONE)


def use(daemon: Daemon) -> None:
    """A run with a log, and the common questions."""
    number = str(daemon.run("used")["number"])
    daemon.call("status")
    daemon.call("task.list")
    daemon.call("run.show", run=number)
    daemon.call("log.read", run=number)


def modules(product: Product, home: str) -> list[str]:
    """Everything the resident process has imported after it was used."""
    state = os.path.join(home, "state")
    product.init(state)
    return product.modules(state, exercise)


def golden(path: str, python: str) -> frozenset[str]:
    """The committed list for one minor version: `name`, or `name 3.11 3.12` for those only."""
    found = set()
    with open(path, encoding="utf-8") as opened:
        for line in opened:
            name, *versions = line.partition("#")[0].split() or [""]
            if name and (not versions or python in versions):
                found.add(name)
    return frozenset(found)


def unlike_golden(loaded: frozenset[str], path: str) -> tuple[list[str], list[str]]:
    """(loaded and not on the committed list, on it and not loaded) under the running Python."""
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    listed = golden(path, minor)
    ours = "" if minor in _LISTED else "qinglong_edge"  # elsewhere its own imports may differ
    more, fewer = (
        sorted(name for name in each if name.startswith(ours))
        for each in (loaded - listed, listed - loaded)
    )
    return more, fewer


@dataclass(frozen=True)
class Rest:
    """What an idle daemon did: bytes in all, wake-ups a minute."""

    written: int
    wakes_per_minute: float


def idle(daemons: list[Daemon], *, seconds: float) -> list[Rest]:
    """Watch daemons that nobody asks anything, all in the same span of time."""
    for daemon in daemons:
        daemon.hang_up()
    for daemon in daemons:
        measure.rest(daemon.pid)
    before = [(measure.written_bytes(each.pid), measure.wakes(each.pid)) for each in daemons]
    time.sleep(seconds)
    found = []
    for daemon, (written, wakes) in zip(daemons, before, strict=True):
        more = measure.wakes(daemon.pid) - wakes
        found.append(Rest(measure.written_bytes(daemon.pid) - written, more * 60 / seconds))
    return found
