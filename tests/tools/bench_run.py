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
            _arrived_ns(descriptor)  # the first one warms the wrapper's probes up
            for _ in range(seconds):
                arrived = _arrived_ns(descriptor)
                late.append(arrived % 1_000_000_000)
                time.sleep(0.5)
                bare.append(_bare_ns(spawner, descriptor, text))
    finally:
        os.close(descriptor)
    return measure.median(late) / measure.median(bare)


def _arrived_ns(descriptor: int) -> int:
    if not select.select([descriptor], [], [], _SECONDS_MAX)[0]:
        raise RuntimeError("no command began within its second")
    now = time.time_ns()
    os.read(descriptor, 4_096)
    return now


def _bare_ns(spawner: BareSpawner, descriptor: int, text: str) -> int:
    """The spawner answers only after its command has ended, so the fifo is heard first."""
    spawner.order("/bin/sh", "sh", "-c", text)
    arrived = _arrived_ns(descriptor)
    start, _cpu = spawner.answer()
    return arrived - start
