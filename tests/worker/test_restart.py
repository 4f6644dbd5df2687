"""A worker that is killed, restarted, fenced, drained: what its offers become."""

from __future__ import annotations

import base64
import os
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.kit import alive
from tests.support import until
from tests.worker.kit import Plane, WorkerHome


def test_a_restart_goes_on_with_the_session_and_adopts_what_runs(
    plane: Plane, home: WorkerHome, tmp_path: Path
) -> None:
    """Trap 2 of the contract: unsettled records never keep a worker from starting."""
    marker, go = tmp_path / "marker", tmp_path / "go"
    run = plane.add(f"echo x >> {marker}; while [ ! -e {go} ]; do sleep 0.05; done; echo end")
    home.start()
    until(marker.exists)
    until(lambda: plane.attempts(run)[0]["status"] == "running")
    home.kill()
    home.start()
    until(lambda: "session_online" in home.said().rpartition("ready")[2])
    go.touch()
    attempt = plane.await_end(run)
    assert attempt["end"] == "succeeded", home.said()
    looked = plane.look()
    assert (looked["sessions"], looked["session"]["generation"]) == (1, 1)
    assert marker.read_text(encoding="ascii") == "x\n"


def test_a_run_that_ended_while_no_worker_was_there_completes_by_its_receipt(
    plane: Plane, home: WorkerHome, tmp_path: Path
) -> None:
    marker, go = tmp_path / "marker", tmp_path / "go"
    run = plane.add(f"touch {marker}; while [ ! -e {go} ]; do sleep 0.05; done; echo bye; exit 4")
    home.start()
    until(marker.exists)
    home.kill()
    go.touch()
    receipts = Path(home.state, "receipts")
    until(lambda: list(receipts.rglob("*.json")))
    home.start()
    attempt = plane.await_end(run)
    assert attempt["result"]["exitCode"] == 4
    until(lambda: not list(receipts.rglob("*.json")))


def test_a_lease_that_is_lost_stops_the_process_and_settles_the_record(
    plane: Plane, home: WorkerHome, tmp_path: Path
) -> None:
    marker = tmp_path / "pid"
    run = plane.add(f"echo $$ > {marker}.new; mv {marker}.new {marker}; sleep 60")
    home.start()
    until(marker.exists)
    pid = int(marker.read_text(encoding="ascii"))
    plane.order("lose", run=run)
    until(lambda: home.status()["offers"] == [])
    assert not alive(pid)
    assert "settled" in home.said()
    again = plane.add("echo next")
    assert plane.await_end(again)["end"] == "succeeded"


def test_a_fenced_session_gives_way_to_a_new_one_and_its_offers_settle(
    plane: Plane, home: WorkerHome, tmp_path: Path
) -> None:
    """Traps 2 and 4: records and claim of a session that is gone block nothing."""
    marker = tmp_path / "marker"
    run = plane.add(f"touch {marker}; sleep 60")
    home.start()
    until(marker.exists)
    home.kill()
    plane.order("fence")
    plane.order("lose", run=run)
    home.start()
    again = plane.add("echo next")
    assert plane.await_end(again)["end"] == "succeeded", home.said()
    assert plane.look()["session"]["generation"] == 2
    assert home.status()["offers"] == []


def test_status_tells_that_the_plane_is_away_while_the_session_still_counts(
    plane: Plane, home: WorkerHome
) -> None:
    """`online` without a reason would be all that an operator sees for hours."""
    home.configure(limits={"heartbeat_ms": 5_000})
    home.start()
    until(lambda: home.status()["session"]["status"] == "online")
    assert home.status()["session"]["reason"] is None
    plane.fault("heartbeat", "status", status=503, times=4)
    until(lambda: home.status()["session"]["reason"] == "plane_unavailable", 60)
    until(lambda: home.status()["session"]["reason"] is None, 60)


def test_a_drained_worker_takes_nothing_more_and_ends_once_its_runs_have(
    plane: Plane, home: WorkerHome, tmp_path: Path
) -> None:
    marker, go = tmp_path / "marker", tmp_path / "go"
    run = plane.add(f"touch {marker}; while [ ! -e {go} ]; do sleep 0.05; done")
    home.configure(maxConcurrentRuns=2)
    home.start()
    until(marker.exists)
    assert home.command("drain").returncode == 0
    until(lambda: plane.look()["session"]["status"] == "draining")
    never = plane.add("echo never")
    time.sleep(0.5)
    go.touch()
    assert plane.await_end(run)["end"] == "succeeded"
    assert home.wait() == 0
    looked = plane.look()
    assert looked["session"]["status"] == "offline"
    assert looked["runs"][never] == "queued"


def test_term_leaves_a_running_task_for_the_next_start(
    plane: Plane, home: WorkerHome, tmp_path: Path
) -> None:
    marker, go = tmp_path / "marker", tmp_path / "go"
    run = plane.add(f"touch {marker}; while [ ! -e {go} ]; do sleep 0.05; done")
    home.start()
    until(marker.exists)
    assert home.end(signal.SIGTERM) == 0
    assert plane.look()["session"]["status"] == "online"
    go.touch()
    home.start()
    assert plane.await_end(run)["end"] == "succeeded"


def test_two_workers_never_own_one_state(plane: Plane, home: WorkerHome) -> None:
    home.start()
    second = WorkerHome(home.folder, plane)
    second.start(ready=False)
    assert second.wait() == 4
    assert home.running


def test_a_worker_that_was_given_no_streams_writes_its_events_into_no_file(
    plane: Plane, home: WorkerHome
) -> None:
    """What is opened first would become its stderr: the lock, then the journal."""
    bare = ["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *home.program]
    home.program = bare
    run = plane.add("echo well")
    pid = home.start(ready=False)
    assert plane.await_end(run)["end"] == "succeeded"
    for number in (0, 1, 2):
        assert os.readlink(f"/proc/{pid}/fd/{number}") == "/dev/null"
    home.end()
    for path in Path(home.folder).rglob("*"):
        if path.is_file():
            assert b"session_online" not in path.read_bytes(), path


def test_a_worker_in_a_legacy_locale_hands_on_every_character(
    plane: Plane, home: WorkerHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("LC_ALL", "C"), ("PYTHONUTF8", "0"), ("PYTHONCOERCECLOCALE", "0")):
        monkeypatch.setenv(name, value)
    named = {"name": "NAME", "kind": "public", "value": "\u7b7e\u5230"}
    run = plane.add('echo "\u00e9 $NAME"', environment=[named])
    home.start()
    attempt = plane.await_end(run)
    assert attempt["end"] == "succeeded", home.said()
    assert base64.b64decode(attempt["content"]).decode() == "\u00e9 \u7b7e\u5230\n"
