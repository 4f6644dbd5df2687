"""A plane that is slow, cut off, refuses or talks nonsense, at every request of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import until
from tests.worker.kit import Plane, WorkerHome

ITEM = "qlsecret:v1:eyJwcm9qZWN0SWQiOiJwcm9qZWN0LTEiLCJuYW1lIjoiaXRlbS0xIn0"
OPERATIONS = (
    "offers",
    "starting",
    "running",
    "start-failure",
    "secrets",
    "artifacts",
    "completion",
)
FAULTS: dict[str, dict[str, Any]] = {
    "cut_before": {},
    "cut_after": {},
    "twice": {},
    "wrong": {},
    "garbage": {},
    "extra": {},
    "delay": {"ms": 300},
    "unavailable": {"kind": "status", "status": 503},
    "unauthorised": {"kind": "status", "status": 401},
    "forbidden": {"kind": "status", "status": 403},
    "fenced": {"kind": "status", "status": 409},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_request_that_goes_wrong_once_costs_no_run_and_doubles_none(
    plane: Plane, home: WorkerHome, tmp_path: Path, fault: str
) -> None:
    """Traps 7 and 10 too: a reply that is lost or refused once is not a fence."""
    plane.order("secret", ref=ITEM, value="v")
    given = {"kind": fault, **FAULTS[fault]}
    plane.order("fault", fault={"op": "register", **given})
    home.configure(maxConcurrentRuns=2, limits={"cadence_ms": 100, "heartbeat_ms": 5_000})
    plane.order("fault", fault={"op": "lease-control", **given})
    go = tmp_path / "go"  # its renewal goes wrong while the others run
    long = plane.add(f"while [ ! -e {go} ]; do sleep 0.1; done")
    home.start()
    until(lambda: [each["status"] for each in plane.attempts(long)] == ["running"])
    for operation in OPERATIONS:
        marker = tmp_path / f"{operation}.marker"
        plane.order("fault", fault={"op": operation, **given})
        nowhere = {"workingDirectory": "/nowhere"} if operation == "start-failure" else {}
        run = plane.add(
            f"echo x >> {marker}",
            environment=[{"name": "SECRET", "kind": "secret", "secretRef": ITEM}],
            **nowhere,
        )
        attempt = plane.await_end(run)
        ends: tuple[str, ...] = ("start_failed",) if nowhere else ("succeeded",)
        if operation == "secrets" and fault not in ("delay", "twice"):
            ends = ("succeeded", "start_failed")
        assert attempt["end"] in ends, (operation, home.said())
        ran = marker.read_text(encoding="ascii").split() if marker.exists() else []
        assert ran == (["x"] if attempt["end"] == "succeeded" else []), operation
        assert attempt["completions"] == len(ran)
    until(lambda: plane.look()["calls"].get("lease-control"), what="a renewal")
    go.touch()
    assert plane.await_end(long)["end"] == "succeeded", home.said()
    until(lambda: home.status()["offers"] == [])
    looked = plane.look()
    assert [each["completions"] for each in looked["attempts"] if each["run"] == long] == [1]
    assert len(looked["attempts"]) == len(OPERATIONS) + 1
    assert looked["sessions"] == 1, home.said()
    assert sum(looked["fired"].values()) == len(OPERATIONS) + 2
