"""The rows of one run: CPU, bytes and flushes on the device, the way from due to its command."""

from __future__ import annotations

import os
import select
import time
from contextlib import ExitStack
from dataclasses import dataclass

from tests.tools import measure
from tests.tools.measure import BareSpawner, Daemon, Disk, Product

_ECHO = "echo hi"
_AT_ONCE = 4  # as many as the edge profile lets run
_SECONDS_MAX = 3.0  # a command that is not there this long after its due moment never comes


def _one_line_task(daemon: Daemon) -> None:
    daemon.call("task.add", name="one line", shell=_ECHO)


def _batch_ns(daemon: Daemon, runs: int, known: frozenset[int]) -> float:
    """CPU of one run: the daemon, what it reaped, and what outlived its parent."""
    measure.reap_orphans(known)
    before = measure.cpu_ns(daemon.pid) + measure.reaped_ns(daemon.pid)
    orphans = 0
    for _ in range(runs):
        daemon.run("one line")
        orphans += measure.reap_orphans(known)
    measure.rest(daemon.pid)
    orphans += measure.reap_orphans(known)
    return (measure.cpu_ns(daemon.pid) + measure.reaped_ns(daemon.pid) - before + orphans) / runs


def cpu_ratio(
    product: Product, home: str, *, rounds: int, runs: int, ash: tuple[str, str] | None = None
) -> float:
    """CPU of one run end to end over a bare fork and exec of `sh -c echo`, the same shell.

    `ash` = (busybox, directory of its applets) for busybox's shell and tools. The median of
    interleaved rounds; each round's children are counted in ticks of 10 ms.
    """
    state = os.path.join(home, "state")
    product.init(state)
    shell = "/bin/sh" if ash is None else ash[0]
    ratios: list[float] = []
    with ExitStack() as stack:
        stack.enter_context(measure.subreaper())
        if ash is None:
            daemon = stack.enter_context(product.daemon(state))
        else:
            daemon = stack.enter_context(product.daemon_with(state, shell=shell, tools=ash[1]))
        if ash is None:
            _one_line_task(daemon)
        else:
            daemon.call("task.add", name="one line", argv=[f"{ash[1]}/sh", "-c", _ECHO])
        bare = stack.enter_context(BareSpawner(product.python))
        known = frozenset({daemon.pid, bare.pid})
        _batch_ns(daemon, 3, known)
        bare.spawn(shell, "sh", "-c", _ECHO)
        for _ in range(rounds):
            spawned = [bare.spawn(shell, "sh", "-c", _ECHO)[1] for _ in range(runs)]
            ratios.append(_batch_ns(daemon, runs, known) * runs / sum(spawned))
    return measure.median(ratios)


@dataclass(frozen=True)
class Device:
    """Of one run on an ext4: bytes and flushes at the device, commits of the database."""

    bytes: float
    flushes: float | None
    commits: float


def device(product: Product, disk: Disk, *, runs: int, apart: bool) -> Device:
    """Runs with a one-line log, back to back or with a syncfs after each, in steady state.

    Steady: the 256 shards of logs and of receipts are there, as after the first weeks.
    """
    state = os.path.join(disk.path, "apart" if apart else "burst")
    product.init(state)
    for root in ("logs", "receipts"):
        for number in range(256):
            os.mkdir(os.path.join(state, root, f"{number:02x}"), 0o700)
    with product.daemon(state) as daemon:
        _one_line_task(daemon)
        for _ in range(12):
            daemon.run("one line")
        disk.sync()
        bytes_before, flushes_before = disk.written()
        commits_before = daemon.call("status")["counters"]["commits"]
        for _ in range(runs):
            daemon.run("one line")
            if apart:
                disk.sync()
        disk.sync()
        bytes_after, flushes_after = disk.written()
        commits = daemon.call("status")["counters"]["commits"] - commits_before
    flushes = None
    if flushes_before is not None and flushes_after is not None:
        flushes = (flushes_after - flushes_before) / runs
    return Device((bytes_after - bytes_before) / runs, flushes, commits / runs)


def due_ratio(product: Product, home: str, *, seconds: int) -> float:
    """From the due second to the command's first instruction, over a bare fork and exec of sh.

    The command's first instruction opens a fifo and writes to it; state on tmpfs; each second one
    occurrence and, in its middle, one bare spawn. Medians.
    """
    state, fifo = os.path.join(home, "state"), os.path.join(home, "fifo")
    product.init(state)
    os.mkfifo(fifo, 0o600)
    text = f"echo >{fifo}"
    late: list[float] = []
    bare: list[float] = []
    descriptor = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    try:
        with product.daemon(state) as daemon, BareSpawner(product.python) as spawner:
            daemon.call("task.add", name="due", shell=text, cron=["* * * * * *"], zone="UTC")
            arrived_ns(descriptor)  # the first one warms the wrapper's probes up
            for _ in range(seconds):
                arrived = arrived_ns(descriptor)
                late.append(arrived % 1_000_000_000)
                time.sleep(0.5)
                bare.append(bare_ns(spawner, descriptor, text))
    finally:
        os.close(descriptor)
    return measure.median(late) / measure.median(bare)


def arrived_ns(descriptor: int) -> int:
    """When the next word came over a fifo, on the wall clock."""
    if not select.select([descriptor], [], [], _SECONDS_MAX)[0]:
        raise RuntimeError("no command began within its second")
    now = time.time_ns()
    os.read(descriptor, 4_096)
    return now


def bare_ns(spawner: BareSpawner, descriptor: int, text: str) -> int:
    """From a bare fork to the word of the command; the spawner answers after that has ended."""
    spawner.order("/bin/sh", "sh", "-c", text)
    arrived = arrived_ns(descriptor)
    start, _cpu = spawner.answer()
    return arrived - start


@dataclass(frozen=True)
class Sustained:
    """Wall time of a run and of a bare spawn, each without a pause."""

    runs_ns: float
    spawn_ns: float


def sustained(product: Product, home: str, *, seconds: float) -> Sustained:
    """As many runs as may be at once, always; then bare spawns of the same, one after the other."""
    state = os.path.join(home, "state")
    product.init(state)
    names = [f"one line {number}" for number in range(_AT_ONCE)]
    with product.daemon(state) as daemon, BareSpawner(product.python) as spawner:
        for name in names:
            daemon.call("task.add", name=name, shell=_ECHO)
        _together(daemon, names)
        begun, runs = time.monotonic_ns(), 0
        while time.monotonic_ns() - begun < seconds * 1e9:
            _together(daemon, names)
            runs += len(names)
        ran = time.monotonic_ns() - begun
        begun = time.monotonic_ns()
        for _ in range(runs):
            spawner.spawn("/bin/sh", "sh", "-c", _ECHO)
        return Sustained(ran / runs, (time.monotonic_ns() - begun) / runs)


def _together(daemon: Daemon, names: list[str]) -> None:
    started = [daemon.call("run.start", name=name)["number"] for name in names]
    for number in started:
        daemon.call("run.wait", run=str(number))
