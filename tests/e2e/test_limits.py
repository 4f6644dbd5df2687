"""Little of everything: memory, processes, descriptors; much of everything: tasks, runs, clients.

Degraded, never dead: whatever is refused is named, and works again when there is enough.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qinglong_edge.app.runtime import Parts
from tests.e2e.kit import WITHIN_S, Daemon, Kit, gone, pids, request
from tests.e2e.resident import Moved, Resident, collect
from tests.support import until
from tests.tools import measure
from tests.tools.bench_scale import multiply_history

PATIENT = 'echo $$ >> "{0}/pid"; while [ ! -e "{0}/go" ]; do sleep 0.05; done; exit 7'
MIB = 1_048_576
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
PIDS = Path("/sys/fs/cgroup/pids")


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    yield
    collect()


def descriptors(daemon: Daemon) -> int:
    """How many descriptors a daemon has open."""
    return len(os.listdir(f"/proc/{daemon.pid}/fd"))


def healthy(kit: Kit, daemon: Daemon) -> None:
    """It answers, runs a task to its own end, and met nothing unexpected."""
    number = kit.ask("run.start", name="u")["result"]["number"]
    run = kit.ended(number)
    assert (run["status"], run["exit_code"], run["evidence"]) == ("failed", 4, "receipt")
    assert daemon.stop() == 0
    assert " bug " not in daemon.said()


# -- too little -----------------------------------------------------------------------------------


def test_a_daemon_without_memory_refuses_and_recovers(kit: Kit) -> None:
    """RLIMIT_AS just above what it has: big requests fail, launches wait, nothing else happens."""
    kit.ok("task", "add", "t", "--shell", PATIENT.format(kit.place))
    kit.ok("task", "add", "u", "--shell", "exit 4")
    with kit.daemon() as daemon:
        kit.ask("run.start", name="t")
        (task,) = pids(kit.file("pid"))
        kit.ask("status")
        pages = int(Path(f"/proc/{daemon.pid}/statm").read_text().split()[0])
        before = resource.prlimit(daemon.pid, resource.RLIMIT_AS)
        limit = pages * resource.getpagesize() + 256 * 1024
        resource.prlimit(daemon.pid, resource.RLIMIT_AS, (limit, before[1]))
        refused = 0
        for size in (16_384, 262_144, MIB, 2 * MIB - 4_096):
            with contextlib.suppress(OSError, ValueError):
                answer = kit.send(request("task.add", name="big", argv=["true", "x" * size]))
                refused += "error" in answer
            with contextlib.suppress(OSError, ValueError):
                kit.send(request("cron.next", expression="* * * * *", count=1_000))
        for _ in range(3):
            with contextlib.suppress(OSError, ValueError):
                kit.ask("run.start", name="u")
        assert daemon.process.poll() is None, daemon.said()
        resource.prlimit(daemon.pid, resource.RLIMIT_AS, before)
        kit.file("go").touch()
        run = kit.ended(1)
        assert (run["status"], run["exit_code"]) == ("failed", 7)
        gone(task)
        until(lambda: not kit.ask("status")["result"]["waiting"], what="waiting launches are over")
        until(lambda: not kit.ask("status")["result"]["active"], what="and their runs")
        healthy(kit, daemon)


@contextlib.contextmanager
def pids_group(maximum: int) -> Iterator[Path]:
    """A cgroup with so many pids."""
    folder = PIDS / f"edge-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "pids.max").write_text(str(maximum))
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        pytest.skip(f"no pids cgroup can be made here: {error.strerror}")
    try:
        yield folder
    finally:
        until(lambda: not (folder / "cgroup.procs").read_text(), what="the cgroup is empty")
        folder.rmdir()


def test_a_box_of_64_processes_makes_launches_wait_and_nothing_else(kit: Kit) -> None:
    hog = "i=3; while [ $i -lt 64 ]; do sleep 30 & i=$((i + 1)); done; wait"
    kit.ok("task", "add", "hog", "--shell", hog, "--no-log")
    kit.ok("task", "add", "u", "--shell", "exit 4")
    # Zombies count too, and not every box has an init that reaps orphans in time.
    with measure.subreaper(), pids_group(64) as group, kit.daemon() as daemon:
        (group / "cgroup.procs").write_text(str(daemon.pid))
        kit.ask("run.start", name="hog")
        current = group / "pids.current"
        until(lambda: int(current.read_text()) == 64, what="the box is full")
        assert kit.ask("run.start", name="u")["result"]["status"] == "queued"
        assert "launch_unavailable" in kit.ask("status")["result"]["degraded"]
        assert kit.ask("run.stop", run="1", grace_ms=100)["result"]["status"] == "cancelled"
        known = frozenset((daemon.pid,))
        until(
            lambda: measure.reap_orphans(known) >= 0 and int(current.read_text()) < 9,
            what="the orphans are gone",
        )
        run = kit.ended(2)
        assert run["status"] == "failed"
        # Its wrapper may have come through and found the box full again: then nothing has run.
        assert (run["exit_code"], run["error_code"]) in (
            (4, "EXECUTION_FAILED"),
            (None, "EXECUTOR_START_FAILED"),
        )
        assert kit.ask("status")["result"]["degraded"] == []
        healthy(kit, daemon)


def test_a_daemon_with_forty_descriptors_names_it_and_lives(kit: Kit) -> None:
    kit.ok("task", "add", "u", "--shell", "exit 4")
    with kit.daemon() as daemon:
        kit.ask("status")
        before = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        quiet = descriptors(daemon)
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (40, before[1]))
        clients = [kit.connect() for _ in range(50)]
        with contextlib.ExitStack() as closing:
            for client in clients:
                closing.callback(client.close)
            until(lambda: descriptors(daemon) >= 40, what="no descriptor is left")
            clients[0].sendall(request("run.start", name="u"))
            with clients[0].makefile("rb") as lines:
                answer = json.loads(lines.readline())
            assert answer["result"]["status"] == "queued", answer
            clients[1].sendall(request("status"))
            with clients[1].makefile("rb") as lines:
                (reason,) = json.loads(lines.readline())["result"]["degraded"]
                assert reason.startswith("launch_")
        told = until(
            lambda: kit.ask("status")["result"], what="the backlog is served when others go"
        )
        assert told["waiting"] + len(told["active"]) <= 1
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, before)
        assert kit.ended(1)["exit_code"] == 4
        until(lambda: descriptors(daemon) <= quiet, what="every descriptor is given back")
        assert kit.ask("status")["result"]["degraded"] == []
        healthy(kit, daemon)


class Bounded(Kit):
    """The program, born with less; `prefix` takes it away."""

    prefix: tuple[str, ...] = ()

    def command(self, *arguments: str | bytes) -> list[str | bytes]:
        return [*self.prefix, *super().command(*arguments)]


@pytest.fixture
def bounded(tmp_path: Path) -> Bounded:
    """A state with one task."""
    if shutil.which("prlimit") is None:
        pytest.skip("prlimit is not installed")
    kit = Bounded(tmp_path)
    kit.ok("init")
    kit.ok("task", "add", "u", "--shell", "exit 4")
    return kit


def test_a_daemon_born_with_forty_descriptors_says_why_nothing_starts(bounded: Bounded) -> None:
    kit = bounded
    kit.prefix = ("prlimit", "--nofile=40:1024")
    with kit.daemon() as daemon:
        assert kit.ask("run.start", name="u")["result"]["status"] == "queued"
        assert kit.ask("status")["result"]["degraded"] == ["launch_child_failed"]
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (1_024, 1_024))
        assert kit.ended(1)["exit_code"] == 4
        healthy(kit, daemon)


def test_a_daemon_born_in_forty_mebibytes_works_and_takes_the_largest_request(
    bounded: Bounded,
) -> None:
    kit = bounded
    kit.prefix = ("prlimit", f"--as={40 * MIB}")
    with kit.daemon() as daemon:
        big = {f"N{number}": "x" * 60_000 for number in range(4)}
        answer = kit.ask("task.add", name="big", argv=["true"], environment=big)
        assert answer["result"]["task"] == "big"
        answer = kit.send(request("task.add", name="huge", argv=["x" * (2 * MIB - 4_096)]))
        assert answer["error"]["data"]["code"] in ("command_too_large", "no_memory")
        kit.ask("run.start", name="big")
        assert kit.ended(1)["exit_code"] == 0
        healthy(kit, daemon)


# -- very much ------------------------------------------------------------------------------------


def test_two_hundred_clients_at_once_slow_and_half_open_ones_too(kit: Kit) -> None:
    kit.ok("task", "add", "u", "--shell", "exit 4")
    with kit.daemon() as daemon, contextlib.ExitStack() as closing:
        kit.ask("status")
        quiet = descriptors(daemon)
        clients = []
        for _ in range(200):
            clients.append(kit.connect())
            closing.callback(clients[-1].close)
        ask = request("status")
        for number, client in enumerate(clients):
            if number % 4 == 0:  # half a request, and silence
                client.sendall(ask[:20])
            elif number % 4 == 1:  # asks a hundred times and never reads
                client.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    client.sendall(ask * 100)
                client.settimeout(WITHIN_S)
            elif number % 4 == 2:  # will say nothing more, and reads
                client.sendall(ask)
                client.shutdown(socket.SHUT_WR)
            else:
                client.sendall(ask)
        assert kit.ask("status")["result"]["owner"] == "daemon", "nobody holds the others up"
        for number, client in enumerate(clients):
            if number % 4 >= 2:
                with client.makefile("rb") as lines:
                    assert json.loads(lines.readline())["result"]["owner"] == "daemon"
        for client in clients[::4]:
            client.sendall(ask[20:])
            with client.makefile("rb") as lines:
                assert json.loads(lines.readline())["result"]["owner"] == "daemon"
        closing.close()
        until(lambda: descriptors(daemon) <= quiet, what="every descriptor is given back")
        healthy(kit, daemon)


def multiply_tasks(path: Path, tasks: int) -> None:
    """Copy the second task with its revision, trigger and cursor until there are so many."""
    keys = {"task": "number", "revision": "task_number", "task_trigger": "number"}
    keys["cursor"] = "trigger_number"
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        for table, key in keys.items():
            names = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
            row = list(database.execute(f"SELECT * FROM {table} WHERE {key} = 2").fetchone())
            place, rows = names.index(key), []
            for number in range(3, tasks + 1):
                row[place] = number
                if table == "task":
                    row[names.index("name")] = f"t{number}"
                if table == "task_trigger":
                    row[names.index("task_number")] = number
                rows.append(tuple(row))
            database.executemany(
                f"INSERT INTO {table} VALUES ({', '.join('?' * len(names))})", rows
            )


def _cost(call: Callable[[], object], times: int) -> float:
    """CPU of one call: the lower quartile, so that a garbage collection does not count."""
    spent = []
    for _ in range(times):
        begun = time.process_time_ns()
        call()
        spent.append(time.process_time_ns() - begun)
    return sorted(spent)[times // 4]


def _costs(kit: Kit, keep: int) -> dict[str, float]:
    """What one skipped occurrence, one maintenance tick and one `status` cost."""
    parts = Parts()
    parts.clock = clock = Moved()
    with Resident(kit.state, parts) as resident:
        resident.call("status")
        runtime = resident.runtime
        runtime.sweep._keep_runs = keep

        def tick() -> None:
            clock.pass_by(MINUTE_MS + 31_000)  # beyond its grace: skipped, so that nothing forks
            runtime.scheduler.woken()

        return {
            "tick": _cost(tick, 30),
            "sweep": _cost(runtime.sweep.run_once, 12),
            "status": _cost(lambda: resident.call("status"), 40),
        }


def test_ten_thousand_tasks_and_a_hundred_thousand_runs_cost_a_tick_nothing(
    tmp_path: Path,
) -> None:
    kits = []
    for name in ("small", "large"):
        (tmp_path / name).mkdir()
        kit = Kit(tmp_path / name)
        kit.ok("init", "--profile", "standalone")
        with Resident(kit.state) as resident:  # which gives every trigger its cursor
            resident.task("ticker", every=["1m"], argv=["true"], log=False)
            resident.task("t", cron=["0 0 1 1 *"], zone="UTC", argv=["true"], log=False)
            resident.end(resident.start("ticker"))
        kits.append(kit)
    multiply_tasks(kits[1].state / "edge.db", 10_000)
    multiply_history(str(kits[0].state / "edge.db"), 2_000)
    multiply_history(str(kits[1].state / "edge.db"), 100_000)
    small, large = _costs(kits[0], 10), _costs(kits[1], 50_000)
    ratios = {name: round(large[name] / small[name], 2) for name in small}
    assert kits[1].sql("SELECT count(*) FROM task") == [(10_000,)]
    assert kits[1].sql("SELECT count(*) > 99000 FROM run") == [(1,)]
    assert all(ratio < 4 for ratio in ratios.values()), ratios
