"""A way to the plane that is too slow for a log, and what goes on meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.crash.stage import alive
from tests.support import until
from tests.worker.kit import Plane, WorkerHome

LEASE_MS = 3_000
GRACE_MS = 1_500
LOG_BYTES = 4_194_304
# What a busy machine may add; behind a request that hangs it would be fourteen seconds at least.
BUSY_S = 6


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    made = Plane(str(tmp_path / "plane"), lease_ms=LEASE_MS)
    yield made
    made.close()


def test_a_log_that_takes_too_long_to_send_costs_no_lease(plane: Plane, home: WorkerHome) -> None:
    """Trap 11: four mebibytes that do not get through in the time of a request, with pauses between
    the tries, for three times the length of a lease; neither that run nor its neighbour is lost."""
    home.configure(maxConcurrentRuns=2, limits={"request_timeout_ms": 1_000})
    plane.fault("artifacts", "hang", ms=1_500, times=3)
    loud = plane.add(f"head -c {LOG_BYTES} /dev/zero")
    calm = plane.add("sleep 5")
    home.start()
    ends = {run: plane.await_end(run) for run in (loud, calm)}
    looked = plane.look()
    assert {run: each["end"] for run, each in ends.items()} == {
        loud: "succeeded",
        calm: "succeeded",
    }, home.said()
    assert looked["fired"] == {"hang": 3}
    assert looked["calls"]["artifacts"] >= 5  # a busy machine may need one try more
    assert ends[loud]["artifact"]["byteLength"] == LOG_BYTES
    assert [each["completions"] for each in looked["attempts"]] == [1, 1]
    until(lambda: home.status()["offers"] == [])


def running(plane: Plane, marker: Path, *, deaf: bool = False) -> Callable[[], int]:
    """Queue a run that does not end by itself; what gives its process, once it is known to run."""
    trap = "trap '' TERM; " if deaf else ""
    sleeps = "while :; do sleep 0.2; done"
    run = plane.add(f"{trap}echo $$ > {marker}.new; mv {marker}.new {marker}; {sleeps}")

    def pid() -> int:
        until(marker.exists)
        until(lambda: plane.attempts(run)[0]["status"] == "running")
        return int(marker.read_text(encoding="ascii"))

    return pid


def silenced(plane: Plane) -> float:
    """From this moment on the plane holds every request for longer than a lease."""
    plane.fault("*", "hang", ms=14_000, times=1_000)
    return time.monotonic()


def ends_by(pid: int, until_s: float) -> bool:
    """Wait for the end of a process; True if it came in time."""
    until(lambda: not alive(pid))
    return time.monotonic() < until_s


def test_a_plane_that_falls_silent_delays_neither_the_stop_of_what_it_gave_nor_its_kill(
    tmp_path: Path, plane: Plane, home: WorkerHome
) -> None:
    """Its lease ends on time: the plane may have given the run to another worker by then, and each
    request would wait for fifteen seconds. What ignores TERM is killed when its grace is over, with
    the next request on its way."""
    home.configure(maxConcurrentRuns=3, limits={"stop_grace_ms": GRACE_MS})
    pids = [running(plane, tmp_path / name, deaf=name == "deaf") for name in ("calm", "deaf")]
    home.start()
    calm, deaf = (pid() for pid in pids)
    over_s = silenced(plane) + LEASE_MS / 1000
    assert ends_by(calm, over_s + BUSY_S), home.said()
    assert ends_by(deaf, over_s + GRACE_MS / 1000 + BUSY_S), home.said()
    until(lambda: "settled" in home.said(), 30)


def test_a_worker_that_starts_under_a_silent_plane_stops_what_has_no_lease_any_more(
    tmp_path: Path, plane: Plane, home: WorkerHome
) -> None:
    """Its first request would wait for fifteen seconds, and what it adopted with it."""
    pid = running(plane, tmp_path / "pid")
    home.start()
    running_pid = pid()
    over_s = silenced(plane) + LEASE_MS / 1000
    home.kill()
    home.start()
    assert ends_by(running_pid, over_s + BUSY_S), home.said()
