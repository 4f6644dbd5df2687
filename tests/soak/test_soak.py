"""The daemon under load, killed, replaced, stopped at random: nothing is lost, nothing runs twice.

    EDGE_SOAK_S=N     how many seconds of it (40)
    EDGE_SOAK_SEED=N  the same story again; a failure prints it

Every task writes a line when it begins and one when it ends, with the pid and the start ticks of
its wrapper: the very identity that the database has of the attempt, and nothing of its environment.
At the end the lines and the rows are compared.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import random
import shutil
import signal
import socket
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qinglong_edge.app.runtime import Parts
from qinglong_edge.core import handle as handles
from tests.e2e.kit import Daemon, Kit, request
from tests.e2e.resident import Moved, Resident
from tests.support import until
from tests.tools import leaks

SECONDS = float(os.environ.get("EDGE_SOAK_S", "40"))
DAY_MS = 86_400_000
NOISE_BYTES = 300_000

# The first and the last line of every task: `sh -c` has the wrapper as its parent.
_BEGIN = (
    'read -r stat </proc/$PPID/stat; set -- ${{stat##*) }}; me="$PPID ${{20}}"; '
    'echo "S {name} $me" >> "{lines}"; '
)
_END = 'echo "E {name} $me {code}" >> "{lines}"; exit {code}'

# name -> (what it does, its exit code, the flags of `task add`)
TASKS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "short": (":", 0, ("--every", "1s")),
    "fails": (":", 3, ("--cron", "* * * * * *", "--no-log")),
    "skips": ("sleep 1.3", 0, ("--cron", "* * * * * *", "--overlap", "skip")),
    "queues": ("sleep 0.9", 1, ("--every", "1s", "--overlap", "queue")),
    "parallel": (
        "sleep 1.7",
        0,
        ("--cron", "* * * * * *", "--overlap", "parallel", "--max-parallel", "3"),
    ),
    "replaced": ("sleep 2.5", 0, ("--cron", "*/2 * * * * *", "--overlap", "replace")),
    "long": ("sleep 7", 9, ("--every", "5s")),
    "noisy": (f"head -c {NOISE_BYTES} /dev/zero | tr '\\0' x", 0, ("--every", "2s")),
    "forks": (
        "for i in 1 2 3; do (sleep 0.4; :) & done; (sleep 1.1 & sleep 0.2)",
        5,
        ("--every", "2s"),
    ),
    "stubborn": (
        "trap '' TERM; sleep 6",
        0,
        ("--every", "4s", "--timeout", "1s", "--grace", "300ms"),
    ),
    "late": ("sleep 30", 0, ("--every", "3s", "--timeout", "500ms", "--grace", "1s")),
    "again": (
        "sleep 0.1",
        8,
        ("--every", "3s", "--retry", "2", "--retry-on", "failed", "--backoff", "1s"),
    ),
    "repeatable": (
        "sleep 0.3",
        0,
        ("--every", "2s", "--retry", "1", "--retry-on", "lost", "--backoff", "1s", "--repeatable"),
    ),
    "manual": ("sleep 0.5", 6, ("--overlap", "queue")),
}


class Zipapp(Kit):
    """The installed program, which may be swapped or deleted under its daemon."""

    def __init__(self, place: Path, artifact: str) -> None:
        super().__init__(place)
        self.artifact = artifact
        self.installed = place / "qinglong-edge.pyz"
        self.restore()

    def command(self, *arguments: str | bytes) -> list[str | bytes]:
        python = os.path.realpath(sys.executable)
        return [python, "-I", "-S", str(self.installed), "--state", str(self.state), *arguments]

    def restore(self) -> None:
        """Put the program back by a rename, as a package manager does."""
        fresh = self.installed.with_suffix(".new")
        shutil.copy(self.artifact, fresh)
        fresh.rename(self.installed)


@dataclass
class Told:
    """What happened; printed at the end."""

    counts: Counter[str] = field(default_factory=Counter)


class Soak:
    """One story: a seed, a state, a daemon that comes and goes."""

    def __init__(self, kit: Zipapp, chance: random.Random) -> None:
        self.kit = kit
        self.chance = chance
        self.told = Told()
        self.lines = kit.file("lines")
        self.lines.touch()
        self._stopping: list[socket.socket] = []

    def prepare(self) -> None:
        """The state with every task."""
        self.kit.ok("init", "--profile", "standalone")
        for name, (work, code, flags) in TASKS.items():
            given = {"name": name, "lines": self.lines, "code": code}
            text = _BEGIN.format(**given) + work + "; " + _END.format(**given)
            place = ("--cwd", str(self.kit.place))
            self.kit.ok("task", "add", name, *place, *flags, "--shell", text)

    def live(self, seconds: float) -> None:
        """One daemon after the other until the time is over."""
        over = time.monotonic() + seconds
        while time.monotonic() < over:
            policy = self.chance.choice(("leave", "leave", "cancel"))
            with self.kit.daemon("--on-stop", policy) as daemon:
                self._load(
                    daemon,
                    min(
                        over,
                        time.monotonic()
                        + self.chance.choice((0.3, 1.0, 3.0)) * self.chance.random(),
                    ),
                )
                self._end(daemon, policy)
            assert " bug " not in daemon.said(), daemon.said()
            self.kit.restore()
            if self.chance.random() < 0.2:
                self._kill_at_its_start()
            if self.chance.random() < 0.15:
                self._queue_without_a_daemon()

    def _load(self, daemon: Daemon, until_s: float) -> None:
        while time.monotonic() < until_s:
            act = self.chance.choice((self._start, self._start, self._stop, self._look))
            with contextlib.suppress(OSError, ValueError):
                act()
            if self.chance.random() < 0.04:
                self._replace()
            time.sleep(self.chance.uniform(0.0, 0.15))
            assert daemon.process.poll() is None, daemon.said()

    def _start(self) -> None:
        name = self.chance.choice(list(TASKS))
        self.told.counts["starts"] += "result" in self.kit.ask("run.start", name=name)

    def _stop(self) -> None:
        """Ask for a stop and do not wait for it; the answer may never come."""
        active = self.kit.ask("status")["result"]["active"]
        if active:
            sock = self.kit.connect()
            self._stopping.append(sock)
            number = str(self.chance.choice(active)["number"])
            sock.sendall(request("run.stop", run=number, grace_ms=self.chance.choice((0, 200))))
            self.told.counts["stops"] += 1

    def _look(self) -> None:
        self.kit.ask("runs.list", limit=20)
        self.kit.ask("log.read", run="noisy", tail=1_000)

    def _replace(self) -> None:
        """An upgrade, a clumsy upgrade, or somebody's tidying."""
        installed = self.kit.installed
        how = self.chance.choice(("swapped", "deleted", "garbage"))
        if how == "swapped":
            self.kit.restore()
        elif installed.exists():
            installed.unlink()
            if how == "garbage":
                installed.write_bytes(b"PK\x03\x04 half of it")
        self.told.counts[f"program {how}"] += 1

    def _end(self, daemon: Daemon, policy: str) -> None:
        if self.chance.random() < 0.7:
            daemon.kill()
            self.told.counts["kills"] += 1
        else:
            assert daemon.stop() == 0, daemon.said()
            self.told.counts[f"stops by {policy}"] += 1
        for sock in self._stopping:
            sock.close()
        self._stopping.clear()

    def _kill_at_its_start(self) -> None:
        """kill -9 somewhere between the exec and the first runs."""
        with self.kit.daemon() as daemon:
            time.sleep(self.chance.uniform(0, 0.05))
            daemon.kill()
        self.told.counts["kills"] += 1

    def _queue_without_a_daemon(self) -> None:
        self.kit("start", "manual")
        self.told.counts["one-shot owners"] += 1

    def rest(self) -> None:
        """A last daemon brings everything to its end and is stopped properly."""
        kit = self.kit
        with kit.daemon() as daemon:
            kit.ask("scheduler.pause")
            over = time.monotonic() + 200
            while (told := kit.ask("status")["result"])["active"] or told["waiting"]:
                assert time.monotonic() < over, told
                for active in told["active"]:
                    if self.chance.random() < 0.02:
                        kit.ask("run.stop", run=str(active["number"]), grace_ms=0)
                time.sleep(0.05)
            first = len(os.listdir(f"/proc/{daemon.pid}/fd"))
            for _ in range(20):
                number = kit.ask("run.start", name="short")["result"]["number"]
                kit.ended(number)
            until(
                lambda: len(os.listdir(f"/proc/{daemon.pid}/fd")) <= first,
                what="every descriptor of twenty runs is given back",
            )
            assert told["degraded"] == [], told
            assert daemon.stop() == 0
            assert " bug " not in daemon.said()


# -- the judgement --------------------------------------------------------------------------------


def violations(soak: Soak) -> Iterator[str]:
    """One sentence for everything that the lines and the rows do not agree on."""
    began, ended = _lines(soak.lines)
    with Resident(soak.kit.state) as resident:
        attempts = _attempts(resident, soak.told.counts)
    with contextlib.closing(sqlite3.connect(soak.kit.state / "edge.db")) as database:
        for name, scheduled, count in database.execute(_TWICE):
            yield f"the occurrence {scheduled} of {name} became {count} runs"
        for number, status in database.execute(_UNENDED):
            yield f"run {number} rests as {status}"
        for run, number, status in database.execute(_OPEN):
            yield f"attempt {number} of run {run} rests as {status}"
    for identity, (name, count) in began.items():
        if identity not in attempts or attempts[identity]["name"] != name:
            yield f"{name} ran as {identity}, and nobody knows of it"
        if count != 1:
            yield f"{name} began {count} times as {identity}"
    for identity, code in ended.items():
        yield from _wrong_end(attempts.get(identity), identity, code)
    for identity, row in attempts.items():
        if row["exit_code"] in (0, TASKS[row["name"]][1]) and identity not in ended:
            yield f"run {row['run_number']} has an exit code and its command did not end: {row}"
        if row["status"] == "lost" and identity in began:
            yield f"run {row['run_number']} ran and is lost: {row}"
        if row["status"] in ("succeeded", "failed") and identity not in began:
            yield f"run {row['run_number']} ended as {row['status']} and never ran: {row}"


_TWICE = """
SELECT task.name, run.scheduled_for_ms, count(*)
FROM run JOIN task ON task.number = run.task_number
WHERE run.trigger_kind = 'cron' GROUP BY run.trigger_number, run.scheduled_for_ms
HAVING count(*) > 1
"""
_UNENDED = "SELECT number, status FROM run WHERE finished_at_ms IS NULL"
_OPEN = "SELECT run_number, attempt, status FROM attempt WHERE finished_at_ms IS NULL"


def _attempts(resident: Resident, counts: Counter[str]) -> dict[str, dict[str, Any]]:
    """Identity -> what the database says of the attempt that bore it."""
    store, found = resident.runtime.store, {}
    names = {task.number: task.name for task in store.tasks.all()}
    for run in all_runs(resident):
        for attempt in store.runs.attempts(run.number):
            counts[f"attempts {attempt.status}"] += 1
            handle = handles.decode(attempt.handle or "")
            if handle is not None:
                found[f"{handle.pid} {handle.start_ticks}"] = {
                    "name": names[run.task_number],
                    "run_number": run.number,
                    "status": attempt.status,
                    "exit_code": attempt.exit_code,
                    "cancel_reason": run.cancel_reason,
                    "error_code": attempt.error_code,
                }
    return found


def _lines(path: Path) -> tuple[dict[str, tuple[str, int]], dict[str, int]]:
    """(identity -> name and how often it began, identity -> exit code)."""
    began: dict[str, tuple[str, int]] = {}
    ended: dict[str, int] = {}
    for line in path.read_text(encoding="ascii").splitlines():
        kind, name, pid, ticks, *code = line.split()
        identity = f"{pid} {ticks}"
        if kind == "S":
            began[identity] = (name, began.get(identity, (name, 0))[1] + 1)
        else:
            ended[identity] = int(code[0])
    return began, ended


def _wrong_end(row: dict[str, Any] | None, identity: str, code: int) -> Iterator[str]:
    """A command that came to its end has its own exit code, unless a KILL of ours was faster."""
    if row is None:
        yield f"{identity} ended with {code}, and nobody knows of it"
    elif row["cancel_reason"] is None:
        expected = "failed" if code else "succeeded"
        if (row["status"], row["exit_code"]) != (expected, code):
            yield f"run {row['run_number']} ended with {code} and is {row['status']}: {row}"
    elif row["exit_code"] not in (code, None, 143) or row["status"] == "lost":
        yield f"run {row['run_number']} was stopped, ended with {code}: {row}"


def leftovers(kit: Kit) -> Iterator[str]:
    """Files and rows that the maintenance did not take away, long after everything has ended."""
    parts = Parts()
    parts.clock = clock = Moved()
    with Resident(kit.state, parts) as resident:
        clock.pass_by(2 * DAY_MS)
        for _ in range(200):
            resident.runtime.sweep.run_once()
            if not kit_rows(resident):
                break
        known = {
            resident.runtime.logs.paths(run.id, attempt.id).id
            for run in all_runs(resident)
            for attempt in resident.runtime.store.runs.attempts(run.number)
        }
        rows = kit_rows(resident)
    if rows:
        yield f"{rows} journal rows of ended attempts are left"
    for path in sorted(kit.state.rglob("*")):
        relative = path.relative_to(kit.state)
        if not path.is_file() or relative.parts[0] == "run":
            continue
        if relative.parts[0] == "receipts":
            yield f"a receipt file is left: {relative}"
        elif relative.parts[0] == "logs" and path.name.lstrip(".").split(".")[0] not in known:
            # The one name that a launch cut off before its commit leaves; the next takes it over.
            if path.name != ".starting.log" or path.stat().st_size:
                yield f"a log of nobody's is left: {relative}"
        elif path.suffix in (".tmp", ".new"):
            yield f"a temporary is left: {relative}"


def kit_rows(resident: Resident) -> int:
    """Rows of the receipt journal."""
    row = resident.runtime.store.database.row("SELECT count(*) FROM receipt_journal")
    return 0 if row is None else int(row[0])


def all_runs(resident: Resident) -> Iterator[Any]:
    """Every run, newest first."""
    before = None
    while page := resident.runtime.store.runs.page(
        limit=500, before=before, task_number=None, status=None
    ):
        yield from page
        before = page[-1].number


def test_nothing_is_lost_and_nothing_runs_twice_whatever_happens_to_the_daemon(
    tmp_path: Path, zipapp: str
) -> None:
    seed = int(os.environ.get("EDGE_SOAK_SEED") or random.SystemRandom().randrange(2**32))
    print(f"EDGE_SOAK_SEED={seed} EDGE_SOAK_S={SECONDS:g}")  # noqa: T201 - it repeats the story
    faulthandler.cancel_dump_traceback_later()  # long is what it shall be
    before = leaks.snapshot()
    soak = Soak(Zipapp(tmp_path, zipapp), random.Random(seed))
    try:
        soak.prepare()
        soak.live(SECONDS)
        soak.rest()
        until(
            lambda: not leaks.survivors(str(tmp_path)), 60, what="every process of a task is gone"
        )
        found = [*violations(soak), *leftovers(soak.kit)]
    finally:
        survivors = leaks.survivors(str(tmp_path))
        for pid in survivors:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    print(dict(sorted(soak.told.counts.items())))  # noqa: T201 - what the story was
    assert not survivors
    assert found == []
    assert leaks.leaks(before, str(tmp_path)) == []
    assert soak.told.counts["kills"] >= 1
