"""The POSIX executor with real processes: barrier, gate, ends, stops."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.app.worker import Spool
from qinglong_edge.artifact.worker import Policy, WorkerLogAllocator
from qinglong_edge.core import inbox
from qinglong_edge.core.canonical import base64url, sha256_hex
from qinglong_edge.core.errors import EdgeError, Refused, Unavailable
from qinglong_edge.core.evidence import Stopped
from qinglong_edge.core.inbox import Entry
from qinglong_edge.core.plan import Identity, LaunchPlan
from qinglong_edge.process import wrapper
from qinglong_edge.process.controller import Controller
from qinglong_edge.process.identity import Inspector
from qinglong_edge.process.launcher import TOOLS_PATH, Launcher, Tools
from qinglong_edge.process.receipts import ReceiptStore
from qinglong_edge.system.child import Spawner
from qinglong_edge.system.clock import Clock
from qinglong_edge.system.files import Files
from qinglong_edge.system.loop import Loop
from qinglong_edge.system.process import Processes
from qinglong_edge.worker.executor import Draft, End, Executor, Rejected, Started
from tests.support import until
from tests.unit import offers

TOKEN = bytes([0x5A]) * 32
QUOTA = 65_536
IDS = ("project-1", offers.RUN, offers.ATTEMPT, "offer-1")


class Machine:
    """One executor on the real machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files, self.processes, self.clock = Files(), Processes(), Clock()
        for name in ("logs", "receipts"):
            self.files.make_private_directory(str(folder / name))
        self.loop = Loop(self.clock)
        self.inspector = Inspector(self.processes)
        self.receipts = ReceiptStore(str(folder / "receipts"), self.files)
        self.spool = Spool(str(folder / "logs"), self.files)
        policy = Policy(
            maximum_attempt_bytes=QUOTA, minimum_free_bytes=0, maximum_write_chunk_bytes=1_024
        )
        self.logs = WorkerLogAllocator(str(folder / "logs"), self.files, policy)
        wrapper.install(str(folder / "wrapper.sh"))
        self.launcher = Launcher(
            Spawner(),
            self.processes,
            self.inspector,
            self.receipts,
            self.clock,
            wrapper_path=str(folder / "wrapper.sh"),
            tools=Tools(path=TOOLS_PATH, sync=lambda: wrapper.probe_sync(TOOLS_PATH)),
            oom_score_adj=0,
        )
        self.ends: list[End] = []
        self.commits = True
        self.executor = self.made()
        self.entry: Entry | None = None

    def made(self) -> Executor:
        executor = Executor(
            launcher=self.launcher,
            inspector=self.inspector,
            controller=Controller(self.processes, self.inspector, self.loop, self.clock),
            receipt_store=self.receipts,
            spool=self.spool,
            loop=self.loop,
            pids=self.processes,
            clock=self.clock,
            grace_ms=200,
        )

        def ended(_offer_id: str, end: End) -> bool:
            self.ends.append(end)
            return self.commits

        executor.on_end = ended
        return executor

    def turn(self, ready: Callable[[], object], seconds: float = 60.0) -> None:
        """Turn the loop until something is so."""
        deadline = time.monotonic() + seconds
        while not ready():
            assert time.monotonic() < deadline
            self.loop.run_once(20)

    def draft(self, text: str, **resolved: str) -> Draft:
        """A gated child that is ready."""
        said: list[EdgeError | None] = []
        plan = LaunchPlan(
            run_id=offers.RUN,
            attempt_id=offers.ATTEMPT,
            callback_sequence=1,
            token=base64url(TOKEN),
            started_at_ms=100,
            argv=("/bin/sh", "-c", text),
            environment={"PLAIN": "x"},
            cwd="/",
            nice=0,
            log_quota_bytes=QUOTA,
            log_artifact_id=self.log_id,
        )
        draft = self.executor.begin(plan, self.log_id, lambda: resolved, said.append)
        self.turn(lambda: said)
        assert said == [None]
        return draft

    @property
    def log_id(self) -> str:
        return self.spool.log_id(offers.entry(offer=offers.made()))

    def launching(self, **changes: Any) -> Entry:
        return offers.entry(
            inbox.LAUNCHING,
            log_id=self.log_id,
            token_digest=sha256_hex(TOKEN),
            **changes,
        )

    def start(self, draft: Draft, entry: Entry | None = None) -> Started | Rejected:
        """Through the barrier."""
        before = entry or self.launching()

        def barrier(identity: Identity) -> Entry:
            self.entry = before.moved(
                inbox.STARTED,
                200,
                handle=identity.handle,
                pid=identity.pid,
                pid_namespace=identity.pid_namespace,
            )
            return self.entry

        return self.executor.start(draft, before, self.logs.prepare(*IDS).take_output(), barrier)

    def log(self) -> bytes:
        """What the process has said."""
        return next((self.folder / "logs").rglob("wlog-*.log")).read_bytes()

    def receipt_files(self) -> list[Path]:
        return list((self.folder / "receipts").rglob("*.json"))

    def leave(self) -> None:
        """The owner goes, as far as its process can tell; what runs goes on."""
        launches = [each.launch for each in self.executor._processes.values()]
        self.executor.close()
        for launch in launches:
            if launch is not None:
                launch._child.close()  # type: ignore[attr-defined]

    def finish(self) -> None:
        """Everything that runs is stopped, everything that ended is reaped."""
        if self.entry is not None and not self.executor.gone(self.entry):
            done: list[Stopped] = []
            self.executor.stop(self.entry, done.append)
            self.turn(lambda: done)
        if self.entry is not None:
            self.executor.release(self.entry)
        self.executor.close()
        self.loop.close()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.finish()


def test_a_started_process_has_its_handle_durable_before_it_runs(machine: Machine) -> None:
    draft = machine.draft('echo "worker-output ${QL3_HEAD-unset} ${#SECRET}"; exit 3', SECRET="abc")
    seen: list[bytes] = []
    entry = machine.launching()

    def barrier(identity: Identity) -> Entry:
        seen.append(machine.log())
        time.sleep(0.05)
        seen.append(machine.log())
        machine.entry = entry.moved(
            inbox.STARTED, 200, handle=identity.handle, pid=identity.pid, pid_namespace=None
        )
        return machine.entry

    sink = machine.logs.prepare(*IDS).take_output()
    started = machine.executor.start(draft, entry, sink, barrier)
    assert isinstance(started, Started)
    assert started.identity.handle.startswith("ql3lp1.")
    assert started.started_at_ms == 100
    assert seen == [b"", b""]
    machine.turn(lambda: machine.ends)
    (end,) = machine.ends
    assert (end.exit_code, end.evidence, end.word) == (3, "receipt", "whole")
    assert machine.log() == b"worker-output unset 3\n"
    assert machine.entry is not None
    machine.turn(lambda: machine.executor.gone(machine.entry))  # type: ignore[arg-type]
    assert machine.receipt_files() == []


def test_a_refused_barrier_is_a_rejection_without_an_effect(
    machine: Machine, tmp_path: Path
) -> None:
    """ADR-0115 verification 8: what is tagged as rejected has never run."""
    marker = tmp_path / "marker"
    draft = machine.draft(f"touch {marker}")
    sink = machine.logs.prepare(*IDS).take_output()

    def refuse(_identity: Identity) -> Entry:
        raise Refused("offer_revision_conflict", "moved")

    outcome = machine.executor.start(draft, machine.launching(), sink, refuse)
    assert outcome == Rejected(code="offer_revision_conflict")
    with pytest.raises(Refused):
        sink.write("stdout", b"x", 1)
    time.sleep(0.1)
    assert not marker.exists()


def test_a_log_of_another_id_is_rejected_and_closed(machine: Machine, tmp_path: Path) -> None:
    """ADR-0115 verification 7"""
    marker = tmp_path / "marker"
    draft = machine.draft(f"touch {marker}")
    sink = machine.logs.prepare(*IDS).take_output()
    other = machine.launching(offer=offers.made()).replace(log_id="wlog-" + "2" * 30)
    outcome = machine.executor.start(draft, other, sink, lambda _identity: other)
    assert outcome == Rejected(code="log_id_drifted")
    with pytest.raises(Refused):
        sink.write("stdout", b"x", 1)
    assert not marker.exists()


def test_a_child_that_died_at_its_gate_is_no_rejection_once_the_barrier_is_durable(
    machine: Machine,
) -> None:
    """ADR-0115 verification 8: then nobody may say that it never ran but its evidence."""
    draft = machine.draft("true")
    assert draft.launch is not None
    pid = draft.launch.pid
    entry = machine.launching()

    def barrier(identity: Identity) -> Entry:
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return entry.moved(inbox.STARTED, 200, handle=identity.handle, pid=identity.pid)

    sink = machine.logs.prepare(*IDS).take_output()
    with pytest.raises(OSError):
        machine.executor.start(draft, entry, sink, barrier)


def test_an_end_that_cannot_be_recorded_is_not_acknowledged_and_becomes_a_file(
    machine: Machine,
) -> None:
    machine.commits = False
    machine.start(machine.draft("exit 5"))
    machine.turn(machine.receipt_files)
    assert machine.entry is not None
    end = machine.executor.end_of(machine.entry)
    assert end is not None
    assert end.exit_code == 5


def test_the_next_owner_adopts_and_reads_what_the_wrapper_left(machine: Machine) -> None:
    go = machine.folder / "go"
    machine.start(machine.draft(f"while [ ! -e {go} ]; do sleep 0.02; done; echo late; exit 6"))
    assert machine.entry is not None
    machine.leave()
    second = machine.made()
    changed: list[str] = []
    second.on_change = changed.append
    second.adopt(machine.entry)
    assert second.end_of(machine.entry) is None
    assert not second.gone(machine.entry)
    go.touch()
    machine.turn(lambda: changed)
    machine.executor = second
    end = second.end_of(machine.entry)
    assert end is not None
    assert (end.exit_code, end.word) == (6, "")
    os.waitpid(machine.entry.pid or 0, 0)


def test_a_receipt_of_another_token_is_evidence_of_nothing(machine: Machine) -> None:
    machine.commits = False
    machine.start(machine.draft("exit 5"))
    machine.turn(machine.receipt_files)
    assert machine.entry is not None
    machine.executor.close()
    second = machine.executor = machine.made()
    assert second.end_of(machine.entry) is not None
    assert second.end_of(machine.entry.replace(token_digest="0" * 64)) is None


def started_deaf(machine: Machine, folder: Path) -> Entry:
    """An offer whose process runs and hears no TERM."""
    deaf = folder / "deaf"
    machine.start(machine.draft(f"trap '' TERM; touch {deaf}; while :; do sleep 0.1; done"))
    machine.turn(deaf.exists)
    assert machine.entry is not None
    return machine.entry


def test_a_killed_process_ends_with_what_killed_it(machine: Machine, tmp_path: Path) -> None:
    entry = started_deaf(machine, tmp_path)
    done: list[Stopped] = []
    assert machine.executor.stop(entry, done.append)
    assert not machine.executor.stop(entry, done.append)
    machine.turn(lambda: done)
    assert done == [Stopped(conclusive=True, signal=9)]
    end = machine.executor.end_of(entry)
    assert end is not None
    assert (end.exit_code, end.evidence) == (137, "stopped")


def test_a_stop_that_is_guarded_waits_for_no_loop_and_tells_its_end_from_there(
    machine: Machine, tmp_path: Path
) -> None:
    """While a request is waited for nobody turns the loop, and nobody may be told of an end."""
    entry = started_deaf(machine, tmp_path)
    changed: list[str] = []
    machine.executor.on_change = changed.append

    def guarded(*outlived: str) -> bool:
        machine.executor.guard(lambda offer_id: offer_id in outlived)
        return machine.executor.gone(entry)

    assert not guarded("offer-2")
    assert not machine.executor.stopping("offer-1")
    until(lambda: guarded("offer-1"), 10)
    assert machine.executor.stopping("offer-1")
    assert (changed, machine.executor.end_of(entry)) == ([], None)
    machine.turn(lambda: changed)
    end = machine.executor.end_of(entry)
    assert end is not None
    assert (end.exit_code, end.evidence) == (137, "stopped")
    until(lambda: guarded("offer-1"))
    assert not machine.executor.stopping("offer-1")  # once is enough


def test_a_stop_that_was_begun_goes_on_under_guard_whatever_its_lease_says(
    machine: Machine, tmp_path: Path
) -> None:
    entry = started_deaf(machine, tmp_path)
    done: list[Stopped] = []
    machine.executor.stop(entry, done.append)

    def guarded() -> bool:
        machine.executor.guard(lambda _offer_id: False)
        return machine.executor.gone(entry)

    until(guarded, 10)
    assert done == []
    machine.turn(lambda: done)
    assert done == [Stopped(conclusive=True, signal=9)]


def test_an_exit_without_a_receipt_counts_by_its_status(machine: Machine) -> None:
    """A full disk loses the file and not what the kernel saw."""
    machine.commits = False
    go = machine.folder / "go"
    machine.start(machine.draft(f"while [ ! -e {go} ]; do sleep 0.02; done; exit 7"))
    os.chmod(machine.folder / "receipts" / offers.ATTEMPT[:2], 0o700)
    assert machine.entry is not None
    paths = machine.receipts.paths(offers.ATTEMPT)
    os.mkdir(paths.unfinished)  # nothing can be written there
    go.touch()
    machine.turn(lambda: machine.executor.gone(machine.entry))  # type: ignore[arg-type]
    machine.executor._processes["offer-1"].end = None
    end = machine.executor.end_of(machine.entry)
    assert end is not None
    assert (end.exit_code, end.evidence) == (7, "wait_status")
    os.rmdir(paths.unfinished)


def test_a_child_that_gets_no_secret_says_why_and_has_done_nothing(machine: Machine) -> None:
    said: list[EdgeError | None] = []
    ready = machine.draft("true")
    machine.executor.refuse(ready)
    plan = ready.plan

    def fail() -> dict[str, str]:
        raise Unavailable("transport_unavailable", "away")

    machine.executor.begin(plan, machine.log_id, fail, said.append)
    machine.turn(lambda: said)
    assert isinstance(said[0], Unavailable)
