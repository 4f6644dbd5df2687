"""The rows of the bench about others: BusyBox's crond, yacron, and APScheduler in a script.

All of them run at the same time on the same table of tasks, beside the program and a bare
interpreter, those of Python under the same flags and from a folder of their own. None of them keeps
a record of a run. What they hold and spend is counted with all their threads.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Self

from tests.tools import bench_run, measure
from tests.tools.bench_rows import FEW, PEERS, Found
from tests.tools.measure import BareSpawner, Product, UnmeasurableError

OTHERS = PEERS[1:]
RUNS = ("run_cpu_ratio_sh", "run_cpu_ratio_ash")  # by what /bin/sh is
AT_REST = (
    *("process_private_dirty", "process_rss"),
    *(f"{row}/{peer}" for row in ("process_private_dirty", "process_rss") for peer in PEERS),
    *(
        f"{row}/{peer}"
        for row in ("start_ratio", f"idle_wakes_per_minute_{FEW}")
        for peer in OTHERS
    ),
)
AT_WORK = tuple(f"{row}/{peer}" for row in ("due_to_command_ratio", *RUNS) for peer in OTHERS)
_ECHO = "echo hi"
_BATCH = 40  # tasks due at once; their CPU is counted in ticks of 10 ms
_BARE = 25
_BEFORE_S, _AFTER_S = 5.0, 25.0  # of a whole minute
_START_S = 60.0
_YACRON = """
import sys
sys.path.insert(0, sys.argv[1])
sys.argv[1:] = ["-c", sys.argv[2]]
from yacron.__main__ import main
main()
"""
_APSCHEDULER = """
import json, subprocess, sys
sys.path.insert(0, sys.argv[1])
from apscheduler.schedulers.blocking import BlockingScheduler
from apscheduler.triggers.cron import CronTrigger
scheduler = BlockingScheduler(timezone="UTC")
for when, command in json.load(open(sys.argv[2])):
    scheduler.add_job(
        subprocess.run,
        CronTrigger.from_crontab(when, timezone="UTC"),
        args=[["/bin/sh", "-c", command]],
        misfire_grace_time=None,
    )
scheduler.start()
"""
Table = list[tuple[str, str]]  # (when, command)


@dataclass(frozen=True)
class Place:
    """A folder for their files, what each peer needs, and why one cannot be had."""

    home: str
    tools: Mapping[str, str]
    without: Mapping[str, str]

    def reason(self, peer: str) -> str | None:
        """Why this peer cannot be measured here."""
        if peer in self.tools:
            return None
        return self.without.get(peer, "it was not asked for")


class Peer:
    """One of them as a process."""

    def __init__(self, name: str, place: Place, table: Table) -> None:
        self.name = name
        home = os.path.join(place.home, name)
        os.mkdir(home)
        self._process = subprocess.Popen(
            _COMMANDS[name](place.tools[name], home, table),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=measure.ENVIRONMENT,
        )
        self.pid = self._process.pid

    def settle(self) -> None:
        """Return once it has used no CPU for a while; RuntimeError if it has ended."""
        deadline, before = time.monotonic() + _START_S, -1
        while time.monotonic() < deadline:
            time.sleep(0.5)
            if self._process.poll() is not None:
                raise UnmeasurableError(f"it ended with status {self._process.returncode}")
            now = cpu_ns(self.pid)
            if now == before:
                return
            before = now
        raise UnmeasurableError(f"it had not settled within {_START_S:.0f} s")

    def spent_ns(self) -> int:
        """CPU of all its threads, ended ones too, and of its reaped children; in ticks of 10 ms."""
        with open(f"/proc/{self.pid}/stat", encoding="ascii", errors="replace") as opened:
            fields = opened.read().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._process.kill()
        self._process.wait()


def cpu_ns(pid: int) -> int:
    """CPU of the threads that a process has now."""
    return _over_threads(pid, "schedstat", lambda text: int(text.split()[0]))


def wakes(pid: int) -> int:
    """How often its threads went to sleep of their own will."""
    name = "voluntary_ctxt_switches:"
    return _over_threads(
        pid,
        "status",
        lambda text: next(
            int(line.split()[1]) for line in text.splitlines() if line.startswith(name)
        ),
    )


def _over_threads(pid: int, file: str, read: Callable[[str], int]) -> int:
    found = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            path = f"/proc/{pid}/task/{thread}/{file}"
            with open(path, encoding="ascii", errors="replace") as opened:
                found += read(opened.read())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


# -- how each is started --------------------------------------------------------------------------


def _crond(busybox: str, home: str, table: Table) -> list[str]:
    with open(os.path.join(home, "root"), "w", encoding="ascii") as opened:
        opened.writelines(f"{when} {command}\n" for when, command in table)
    return [busybox, "crond", "-f", "-c", home, "-L", os.devnull]


def _yacron(packages: str, home: str, table: Table) -> list[str]:
    path = os.path.join(home, "tasks.yaml")
    with open(path, "w", encoding="ascii") as opened:
        opened.write("jobs:\n")
        for number, (when, command) in enumerate(table):
            fields = {"name": f"task-{number}", "command": command, "schedule": when}
            opened.write("  -\n")
            opened.writelines(f"    {key}: {json.dumps(text)}\n" for key, text in fields.items())
    return [measure.PYTHON, *measure.FLAGS, "-c", _YACRON, packages, path]


def _apscheduler(packages: str, home: str, table: Table) -> list[str]:
    path = os.path.join(home, "tasks.json")
    with open(path, "w", encoding="ascii") as opened:
        json.dump(table, opened)
    return [measure.PYTHON, *measure.FLAGS, "-c", _APSCHEDULER, packages, path]


_COMMANDS: dict[str, Callable[[str, str, Table], list[str]]] = {
    "crond": _crond,
    "yacron": _yacron,
    "apscheduler": _apscheduler,
}


@contextmanager
def _running(place: Place, tables: Callable[[str], Table]) -> Iterator[tuple[list[Peer], Found]]:
    """Those that can be had, settled, and the reasons of the others by peer."""
    reasons: Found = {}
    with ExitStack() as stack:
        peers = []
        for name in OTHERS:
            reason = place.reason(name)
            if reason is None:
                peer = stack.enter_context(Peer(name, place, tables(name)))
                try:
                    peer.settle()
                    peers.append(peer)
                except UnmeasurableError as error:
                    reason = str(error)
            if reason is not None:
                reasons[name] = reason
        yield peers, reasons


# -- at rest --------------------------------------------------------------------------------------


def at_rest(product: Product, place: Place, *, seconds: float) -> Found:
    """What everybody holds with 100 tasks of which none is due, its start, and its wake-ups."""
    state = os.path.join(place.home, "state")
    product.populated(state, FEW)
    table = [(measure.NEVER, f"echo {number}; run the thing") for number in range(FEW)]
    with ExitStack() as stack:
        bare, bare_ns = stack.enter_context(measure.bare_interpreter(product.python))
        daemon = stack.enter_context(product.daemon(state))
        peers, reasons = stack.enter_context(_running(place, lambda _name: table))
        found: Found = {f"start_ratio/{peer.name}": cpu_ns(peer.pid) / bare_ns for peer in peers}
        daemon.hang_up()
        everyone = {"": daemon.pid, "/bare": bare}
        everyone |= {f"/{peer.name}": peer.pid for peer in peers}
        for suffix, pid in everyone.items():
            held = measure.memory(pid)
            found[f"process_private_dirty{suffix}"] = held.private_dirty
            found[f"process_rss{suffix}"] = held.rss
        before = {peer.name: wakes(peer.pid) for peer in peers}
        time.sleep(seconds)
        for peer in peers:
            often = (wakes(peer.pid) - before[peer.name]) * 60 / seconds
            found[f"idle_wakes_per_minute_{FEW}/{peer.name}"] = often
    for key in AT_REST:
        found.setdefault(key, reasons.get(key.rpartition("/")[2], "not measured"))
    return found


# -- at work --------------------------------------------------------------------------------------


def at_work(place: Place, *, minutes: int, run: str) -> Found:
    """From due to the command and the CPU of a run, over a bare fork and exec and a bare spawn.

    One task is due at even minutes, many at odd ones; so many whole minutes are looked at. `run`
    is the row of the shell that this machine calls sh.
    """
    fifos = {name: os.path.join(place.home, f"fifo-{name}") for name in OTHERS}
    with ExitStack() as stack:
        heard = {}
        for name, path in fifos.items():
            os.mkfifo(path, 0o600)
            heard[name] = os.open(path, os.O_RDWR | os.O_NONBLOCK)
            stack.callback(os.close, heard[name])
        spawner = stack.enter_context(BareSpawner())
        spawned = [spawner.spawn("/bin/sh", "sh", "-c", _ECHO)[1] for _ in range(_BARE)]
        text = f"echo >{fifos[OTHERS[0]]}"
        forked = [bench_run.bare_ns(spawner, heard[OTHERS[0]], text) for _ in range(_BARE)]

        def table(name: str) -> Table:
            one = ("0-58/2 * * * *", f"echo >{fifos[name]}")
            return [one, *[("1-59/2 * * * *", _ECHO)] * _BATCH]

        peers, reasons = stack.enter_context(_running(place, table))
        late, spent = _watched(peers, heard, minutes)
    found: Found = dict.fromkeys(AT_WORK, "measured under the machine's own sh")
    for name in OTHERS:
        reason = reasons.get(name, "no task of it ran at its time")
        due, batches = late.get(name), spent.get(name)
        key = f"due_to_command_ratio/{name}"
        found[key] = measure.median(due) / measure.median(forked) if due else reason
        bare = sum(spawned) / len(spawned) * _BATCH
        found[f"{run}/{name}"] = measure.median(batches) / bare if batches else reason
    return found


def _drain(descriptor: int) -> None:
    with suppress(BlockingIOError):
        while os.read(descriptor, 4_096):
            pass


def _watched(
    peers: list[Peer], heard: Mapping[str, int], minutes: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """By peer: ns after the due minute of each command, ns of CPU of each batch."""
    late: dict[str, list[float]] = {}
    spent: dict[str, list[float]] = {}
    for _ in range(minutes):
        time.sleep((60 - _BEFORE_S - time.time()) % 60)
        due = round((time.time() + _BEFORE_S) / 60)
        before = {peer.name: peer.spent_ns() for peer in peers}
        for place in heard.values():
            _drain(place)  # what was due while they were started
        until = due * 60 + _AFTER_S
        while (left := until - time.time()) > 0:
            for ready in select.select(list(heard.values()), [], [], left)[0]:
                os.read(ready, 4_096)
                name = next(each for each, place in heard.items() if place == ready)
                late.setdefault(name, []).append(time.time_ns() - due * 60_000_000_000)
        if due % 2:
            for peer in peers:
                spent.setdefault(peer.name, []).append(peer.spent_ns() - before[peer.name])
    return late, spent
