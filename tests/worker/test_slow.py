"""A way to the plane that is too slow for a log, and what goes on meanwhile."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.support import until
from tests.worker.kit import Plane, WorkerHome

LEASE_MS = 3_000
LOG_BYTES = 4_194_304


def test_a_log_that_takes_too_long_to_send_costs_no_lease(tmp_path: Path) -> None:
    """Trap 11: four mebibytes that do not get through in the time of a request, with pauses between
    the tries, for three times the length of a lease; neither that run nor its neighbour is lost."""
    plane = Plane(str(tmp_path / "plane"), lease_ms=LEASE_MS)
    home = WorkerHome(str(tmp_path / "worker"), plane)
    home.configure(maxConcurrentRuns=2, limits={"request_timeout_ms": 1_000})
    try:
        plane.fault("artifacts", "hang", ms=1_500, times=3)
        loud = plane.add(f"head -c {LOG_BYTES} /dev/zero")
        calm = plane.add("sleep 5")
        home.start()
        ends = {run: plane.await_end(run, 40) for run in (loud, calm)}
        looked = plane.look()
        assert {run: each["end"] for run, each in ends.items()} == {
            loud: "succeeded",
            calm: "succeeded",
        }, home.said()
        assert looked["fired"] == {"hang": 3}
        assert looked["calls"]["artifacts"] == 5
        assert ends[loud]["artifact"]["byteLength"] == LOG_BYTES
        assert [each["completions"] for each in looked["attempts"]] == [1, 1]
        until(lambda: home.status()["offers"] == [])
    finally:
        home.kill()
        plane.close()


def test_a_plane_that_falls_silent_does_not_delay_the_stop_of_what_it_gave(tmp_path: Path) -> None:
    """Its lease ends on time: the plane may have given the run to another worker by then, and each
    request would wait for fifteen seconds."""
    plane = Plane(str(tmp_path / "plane"), lease_ms=LEASE_MS)
    home = WorkerHome(str(tmp_path / "worker"), plane)
    marker = tmp_path / "pid"
    try:
        run = plane.add(f"echo $$ > {marker}.new; mv {marker}.new {marker}; sleep 60")
        home.start()
        until(marker.exists)
        until(lambda: plane.attempts(run)[0]["status"] == "running")
        pid = int(marker.read_text(encoding="ascii"))
        plane.fault("*", "hang", ms=14_000, times=1_000)
        begun = time.monotonic()
        until(lambda: not os.path.exists(f"/proc/{pid}"), 20)
        assert time.monotonic() - begun < LEASE_MS / 1000 + 2, home.said()
        until(lambda: "settled" in home.said())
    finally:
        home.kill()
        plane.close()
