"""A task outlives its scheduler, and the next one finds what is true (ADR-0069)."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from qinglong_edge.app import kit as kits
from qinglong_edge.app import state
from qinglong_edge.app.runtime import Parts, Runtime
from qinglong_edge.system.process import Processes
from tests.e2e.kit import Kit, alive, gone, pids
from tests.support import until

# A task that says who it is, waits for a file, and ends with 7.
PATIENT = 'echo $$ >> "{0}/pid"; while [ ! -e "{0}/go" ]; do sleep 0.05; done; exit 7'

# No row of the journal can be made, and to find that out takes longer than a command would.
SLOW_REFUSAL = """
CREATE TRIGGER slow_refusal BEFORE INSERT ON receipt_journal BEGIN
  SELECT count(*) FROM sqlite_schema, sqlite_schema, sqlite_schema, sqlite_schema,
    (SELECT 1 FROM sqlite_schema LIMIT 20), (SELECT 1 FROM sqlite_schema LIMIT 2);
  SELECT RAISE(ABORT, 'no row');
END
"""


@pytest.fixture
def patient(kit: Kit) -> Kit:
    """A state with the task `t`, which runs until the file `go` is there."""
    kit.ok("task", "add", "t", "--shell", PATIENT.format(kit.place))
    return kit


def started(kit: Kit) -> int:
    """Start `t` under the daemon; the pid of its shell."""
    kit.ok("start", "t")
    return pids(kit.file("pid"))[-1]


@pytest.mark.parametrize("ends", ["while nobody is there", "under the next daemon"])
def test_a_killed_daemon_loses_no_exit_code(patient: Kit, ends: str) -> None:
    kit = patient
    with kit.daemon() as daemon:
        task = started(kit)
        daemon.kill()
    assert alive(task)
    if ends == "while nobody is there":
        kit.file("go").touch()
        receipts = kit.state / "receipts"
        until(lambda: list(receipts.glob("??/*.json")), what="a receipt file")
        gone(task)
        kit.no("stop", "1", status=3, code="run_ended")
        kit.no("settle", "1", "--as", "failed", "--reason", "x", status=3, code="run_ended")
        assert kit.shown(1)["status"] == "running", "a one-shot owner judges nothing"
    with kit.daemon():
        if ends == "under the next daemon":
            assert kit.shown(1)["status"] == "running"
            kit.no("settle", "1", "--as", "lost", "--reason", "x", status=3, code="identity_alive")
            kit.file("go").touch()
        run = kit.ended(1)
    expected = ("failed", 7, "receipt", 1, "EXECUTION_FAILED", None)
    names = ("status", "exit_code", "evidence", "attempts", "error_code", "signal")
    assert tuple(run[name] for name in names) == expected
    assert len(kit.file("pid").read_text().split()) == 1, "it was not started twice"
    assert not list((kit.state / "receipts").glob("??/*.json"))
    if ends == "while nobody is there":  # recovered first, then cleaned up, in one start
        assert kit.sql("SELECT count(*) FROM receipt_journal") == [(0,)]


def test_a_group_that_was_killed_with_its_daemon_is_lost(patient: Kit) -> None:
    kit = patient
    with kit.daemon() as daemon:
        task = started(kit)
        leader = os.getsid(task)
        daemon.kill()
        os.killpg(leader, signal.SIGKILL)
        gone(task, leader)
    with kit.daemon():
        run = kit.ended(1)
    assert (run["status"], run["exit_code"], run["evidence"]) == ("lost", None, "identity")
    assert run["error_code"] == "RECOVERY_PROCESS_NOT_RUNNING"
    assert run["finished_at_ms"] is not None
    assert run["attempts"] == 1


class OtherBoot(Processes):
    """The same machine after a reboot, where a stranger may bear the old pid."""

    def __init__(self) -> None:
        self.sent: list[int] = []

    def boot_id(self) -> str | None:
        return "11111111-2222-4333-8444-555555555555"

    def signal_group(self, pgid: int, number: int) -> bool:
        self.sent += [pgid, number]
        return False

    def signal_pid(self, pid: int, number: int) -> bool:
        self.sent += [pid, number]
        return False


@pytest.mark.parametrize("stopping", [False, True])
def test_a_process_of_another_boot_is_lost_and_never_signalled(
    patient: Kit, stopping: bool
) -> None:
    kit = patient
    with kit.daemon() as daemon:
        task = started(kit)
        daemon.kill()
    if stopping:  # a stop was intended and not carried out
        kit.sql("UPDATE run SET cancel_requested_at_ms = created_at_ms, cancel_reason = 'user'")
    place = state.place(str(kit.state), None)
    parts = Parts()
    parts.processes = other = OtherBoot()
    runtime = Runtime(place, state.read_config(place, parts.files), parts, daemon=True)
    try:
        runtime.recover()
        run = runtime.store.runs.get(1)
    finally:
        runtime.close()
    assert run is not None
    assert run.status == ("cancelled" if stopping else "lost")
    assert other.sent == []
    assert alive(task), "whoever bears the pid is not ours"
    kit.file("go").touch()
    gone(task)


@pytest.mark.parametrize("owner", ["a daemon", "a command"])
def test_the_files_that_a_router_keeps_over_a_sysupgrade_are_a_whole_state(
    kit: Kit, owner: str
) -> None:
    """It restores files, and makes their directories open to everybody on the way."""
    kit.ok("task", "add", "t", "--shell", "echo back")
    kit.ok("start", "t", "--wait")
    before = kit.state.rename(kit.place / "before")
    kit.state.mkdir(0o755)
    for line in kits.contents("openwrt")["lib/upgrade/keep.d/qinglong-edge"].decode().splitlines():
        folder, _, name = line.rpartition("/")
        if folder == state.DEFAULT_STATE and (before / name).exists():
            shutil.copy(before / name, kit.state / name)
    assert {path.name for path in kit.state.iterdir()} == {"config.json", "edge.db"}
    with kit.daemon() if owner == "a daemon" else contextlib.nullcontext():
        assert kit.ok("start", "t", "--wait")["status"] == "succeeded"
        assert kit.ok("status")["degraded"] == []
    assert kit.ok("log", "2")["text"] == "back\n"
    for name in ("receipts", "logs"):
        assert (kit.state / name).stat().st_mode & 0o777 == 0o700


def test_a_command_whose_registration_the_database_refuses_has_no_effect(kit: Kit) -> None:
    """ADR-0069 verification 1, in the whole program."""
    ran = kit.file("ran")
    kit.ok("task", "add", "t", "--shell", f": >{ran}")
    kit.sql(SLOW_REFUSAL)
    with kit.daemon():
        assert kit.run("start", "t").out == "run 1 failed\n"
        ended = kit.ended(1)
        assert (ended["status"], ended["error_code"]) == ("failed", "constraint")
        assert (ended["started_at_ms"], ended["evidence"]) == (None, "none")
        assert not ran.exists()
    assert kit.sql("SELECT pid, handle FROM attempt") == [(None, None)]
    assert kit.sql("SELECT count(*) FROM receipt_journal") == [(0,)]


def test_a_wrapper_that_somebody_changed_runs_nothing_and_registers_nothing(kit: Kit) -> None:
    """ADR-0069 verification 2, in the whole program; one that is missing is put back."""
    ran, wrapper = kit.file("ran"), kit.state / "run" / "wrapper.sh"
    kit.ok("task", "add", "t", "--shell", "exit 3")
    with kit.daemon():
        wrapper.chmod(0o700)
        wrapper.write_text(f": >{ran}\n" + wrapper.read_text())
        changed = kit.ended(kit.ok("start", "t")["number"])
        assert (changed["status"], changed["error_code"]) == ("failed", "wrapper_drift")
        assert not any((kit.state / "receipts").iterdir())
        wrapper.unlink()
        assert kit.ended(kit.ok("start", "t")["number"])["exit_code"] == 3
        assert not ran.exists()
    assert kit.sql("SELECT pid FROM attempt WHERE run_number = 1") == [(None,)]
    assert kit.sql("SELECT count(*) FROM receipt_journal WHERE run_number = 1") == [(0,)]


def test_a_start_removes_one_terminal_receipt_by_the_journal_and_resolves_its_row(
    kit: Kit,
) -> None:
    """ADR-0069 verification 8."""
    kit.ok("task", "add", "t", "--no-log", "--", "true")
    kit.ok("start", "t", "--wait")
    (attempt,) = kit.ok("show", "1")["attempts"]
    kit.sql("DELETE FROM receipt_journal")
    shard = kit.state / "receipts" / attempt["id"][:2]
    named, stranger = shard / f"{attempt['id']}.json", shard / "not-in-the-journal.json"
    for path in (named, stranger):
        path.write_bytes(b"{}")
        path.chmod(0o600)
    at_ms = attempt["finished_at_ms"]
    kit.sql("INSERT INTO receipt_journal VALUES (16, 'pending', NULL, NULL, ?, ?)", at_ms, at_ms)
    with kit.daemon() as daemon:
        assert not named.exists()
        assert stranger.exists(), "the journal is the only source of names"
        assert daemon.stop() == 0
    assert kit.sql("SELECT count(*) FROM receipt_journal") == [(0,)]
    assert kit.shown(1)["exit_code"] == 0, "the end that was committed stands"


def test_a_receipt_that_nobody_can_believe_is_kept_in_quarantine(patient: Kit) -> None:
    """ADR-0069 verification 6, in the whole program."""
    kit = patient
    with kit.daemon() as daemon:
        task = started(kit)
        leader = os.getsid(task)
        (attempt,) = kit.ok("show", "1")["attempts"]
        daemon.kill()
        os.killpg(leader, signal.SIGKILL)
        gone(task, leader)
    shard = kit.state / "receipts" / attempt["id"][:2]
    (shard / f"{attempt['id']}.json").write_bytes(b'{"exitCode":0}')
    with kit.daemon():
        assert kit.ended(1)["status"] == "lost", "no success is invented"
    assert not list(shard.glob("*.json"))
    kept = kit.state / "receipts" / ".quarantine" / shard.name / f"{attempt['id']}.json"
    assert kept.read_bytes() == b'{"exitCode":0}'
    rows = kit.sql("SELECT state, quarantine_ref FROM receipt_journal")
    assert rows == [("quarantined", str(kept.relative_to(kit.state / "receipts")))]


@pytest.mark.parametrize("policy", ["leave", "cancel"])
def test_a_stopping_daemon_leaves_its_tasks_or_cancels_them(patient: Kit, policy: str) -> None:
    kit = patient
    with kit.daemon("--on-stop", policy) as daemon:
        task = started(kit)
        assert daemon.stop() == 0
        assert daemon.said().rstrip().endswith(" stopped")
    if policy == "leave":
        assert alive(task)
        with kit.daemon():
            assert kit.shown(1)["status"] == "running"
            kit.file("go").touch()
            run = kit.ended(1)
        assert (run["status"], run["exit_code"], run["evidence"]) == ("failed", 7, "receipt")
        return
    gone(task)
    run = kit.shown(1)
    assert (run["status"], run["cancel_reason"]) == ("cancelled", "shutdown")
    assert run["finished_at_ms"] is not None


def test_an_interrupted_daemon_stops_like_a_terminated_one(kit: Kit) -> None:
    with kit.daemon() as daemon:
        assert daemon.stop(signal.SIGINT) == 0
    assert not (kit.state / "run" / "control.sock").exists()


def test_every_run_of_a_killed_daemon_is_adopted(kit: Kit) -> None:
    for number in range(4):
        task = PATIENT.format(kit.place).replace("exit 7", f"exit {number}")
        kit.ok("task", "add", f"t{number}", "--shell", task)
    with kit.daemon() as daemon:
        for number in range(4):
            kit.ok("start", f"t{number}")
        tasks = pids(kit.file("pid"), 4)
        daemon.kill()
    with kit.daemon():
        assert len(kit.ok("status")["active"]) == 4
        kit.file("go").touch()
        codes = {kit.ended(number)["exit_code"] for number in range(1, 5)}
        gone(*tasks)
    assert codes == {0, 1, 2, 3}


def test_a_second_daemon_is_refused_and_nothing_is_damaged(patient: Kit) -> None:
    """One owner per state directory."""
    kit = patient
    with kit.daemon() as daemon:
        task = started(kit)
        with kit.unchanged():
            told = kit.run("run")
            assert (told.status, told.out) == (4, "")
            assert told.err.startswith("qinglong-edge: state_owned: ")
            other = kit.run("--runtime", str(kit.file("elsewhere")), "run")
            assert other.status == 4
            assert "state_owned" in other.err
        kit.file("go").touch()
        assert kit.ended(1)["exit_code"] == 7
        assert daemon.stop() == 0
    gone(task)
    assert kit.sql("PRAGMA integrity_check") == [("ok",)]


def test_an_idle_daemon_writes_nothing_and_sleeps(kit: Kit) -> None:
    """Idle costs nothing: no write, no wake-up, with twenty tasks defined."""
    with kit.daemon() as daemon:
        for number in range(20):
            kit.ask("task.add", name=f"t{number}", cron=["0 3 1 1 *"], zone="CST-8", argv=["true"])
        kit.ask("status")

        def counters() -> tuple[str, ...]:
            proc = Path(f"/proc/{daemon.pid}")
            io = (proc / "io").read_text().splitlines()
            switches = (proc / "status").read_text().splitlines()
            return tuple(
                line
                for line in (*io, *switches)
                if line.startswith(("wchar", "syscw", "write_bytes", "voluntary"))
            )

        asleep = (Path(f"/proc/{daemon.pid}/stat"), " S ")
        until(lambda: asleep[1] in asleep[0].read_text(), what="the daemon sleeps")
        told = kit.ask("status")["result"]["counters"]
        until(lambda: asleep[1] in asleep[0].read_text(), what="the daemon sleeps")
        before = counters()
        over = time.monotonic() + 3
        until(lambda: time.monotonic() > over)
        assert counters() == before
        after = kit.ask("status")["result"]["counters"]
        assert after["commits"] == told["commits"]
        assert after["wakes"] - told["wakes"] < 8, "the two requests themselves"


def test_a_disabled_runtime_prints_so_and_creates_nothing(kit: Kit) -> None:
    config = kit.state / "config.json"
    config.write_text(config.read_text().replace('"enabled": true', '"enabled": false'))
    before = sorted(path.name for path in kit.state.iterdir())
    told = kit.run("run")
    assert (told.status, told.out, told.err) == (0, "disabled\n", "")
    assert sorted(path.name for path in kit.state.iterdir()) == before
