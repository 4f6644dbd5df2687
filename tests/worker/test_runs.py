"""Runs of every kind, offered by a real plane to a real worker."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from pathlib import Path

from tests.support import until
from tests.worker.kit import Plane, WorkerHome

QUOTA = 65_536
ITEM = "qlsecret:v1:eyJwcm9qZWN0SWQiOiJwcm9qZWN0LTEiLCJuYW1lIjoiaXRlbS0xIn0"
BUNDLE = (
    "qlsecret:v1:eyJwcm9qZWN0SWQiOiJwcm9qZWN0LTEiLCJuYW1lIjoibGVnYWN5LWVudi1idW5kbGUiLCJ2"
    "ZXJzaW9uIjoyfQ"
)
CANARY = "c4nary-of-the-secret"


def knowing(needle: bytes) -> set[str]:
    """The programs of all processes whose environment or command line holds something."""
    found = set()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            known = needle in (place / "environ").read_bytes() + (place / "cmdline").read_bytes()
            if known:
                found.add((place / "comm").read_text(encoding="ascii").strip())
        except OSError:
            continue  # it ended, or is another user's
    return found


def text(attempt: dict[str, object]) -> str:
    return base64.b64decode(str(attempt["content"])).decode()


def test_a_log_over_its_quota_is_cut_to_the_byte_and_told(plane: Plane, home: WorkerHome) -> None:
    """ADR-0115 verification 4: exactly the quota is kept and uploaded, the run goes on."""
    home.configure(limits={"log_quota_bytes": QUOTA})
    run = plane.add("head -c 200000 /dev/zero | tr '\\0' x; exit 0")
    home.start()
    attempt = plane.await_end(run)
    assert attempt["end"] == "succeeded"
    assert attempt["artifact"]["byteLength"] == QUOTA
    assert attempt["artifact"]["truncated"] is True


def test_a_cancelled_run_is_stopped_and_completes_with_what_it_has_said(
    plane: Plane, home: WorkerHome, tmp_path: Path
) -> None:
    deaf = tmp_path / "deaf"
    soft = plane.add(
        f"trap 'echo bye; exit 9' TERM; echo up; touch {deaf}.soft; while :; do sleep 0.1; done"
    )
    home.configure(maxConcurrentRuns=2)
    hard = plane.add(f"trap '' TERM; touch {deaf}; while :; do sleep 0.1; done")
    home.start()
    until(lambda: deaf.exists() and Path(f"{deaf}.soft").exists())
    plane.order("stop", run=soft, why="user")
    plane.order("stop", run=hard, why="user")
    first, second = plane.await_end(soft), plane.await_end(hard)
    assert (first["end"], second["end"]) == ("cancelled", "cancelled")
    assert first["result"]["exitCode"] == 9
    assert text(first).startswith("up\n")
    assert text(first).endswith("bye\n")
    assert second["result"]["exitCode"] == 137


def test_a_timed_out_run_is_stopped_when_the_plane_says_so_and_not_much_later(
    plane: Plane, home: WorkerHome
) -> None:
    run = plane.add("sleep 600", timeoutMs=1_500)
    home.start()
    begun = time.monotonic()
    attempt = plane.await_end(run)
    assert attempt["end"] == "timed_out"
    assert time.monotonic() - begun < 25


def test_secrets_and_bundles_reach_the_process_and_nothing_else(
    plane: Plane, home: WorkerHome, tmp_path: Path
) -> None:
    """P7: the launching child asks for them; nothing of the worker ever holds or writes one."""
    plane.order("secret", ref=ITEM, value=CANARY)
    entries = [{"name": "LEGACY_TOKEN", "value": f"{CANARY}-b"}]
    bundle = {"schema": "qinglong/environment-bundle@v1", "entries": entries}
    plane.order("secret", ref=BUNDLE, value=json.dumps(bundle))
    go = tmp_path / "go"
    run = plane.add(
        f'echo "$PUBLIC ${{#SECRET}} ${{#LEGACY_TOKEN}}"; while [ ! -e {go} ]; do sleep 0.2; done',
        environment=[
            {"name": "PUBLIC", "kind": "public", "value": "shown"},
            {"name": "SECRET", "kind": "secret", "secretRef": ITEM},
        ],
        environmentBundleRef=BUNDLE,
    )
    pid = home.start()
    until(lambda: "started" in home.said())
    limits = Path(f"/proc/{pid}/limits").read_text(encoding="ascii")
    (core,) = [line.split()[4:6] for line in limits.splitlines() if "core file" in line]
    assert core in (["1", "1"], ["0", "0"])  # it holds its own key and token
    with open(f"/proc/{pid}/maps", encoding="ascii") as maps:
        spans = [line.split()[:2] for line in maps if "rw" in line and "[v" not in line]
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for span, _mode in spans:
            begin, end = (int(part, 16) for part in span.split("-"))
            memory.seek(begin)
            assert CANARY.encode() not in memory.read(end - begin)
    until(lambda: "sleep" in knowing(CANARY.encode()))
    assert knowing(CANARY.encode()) <= {"sh", "dash", "bash", "busybox", "sleep"}  # no tool does
    go.touch()
    attempt = plane.await_end(run)
    assert text(attempt) == f"shown {len(CANARY)} {len(CANARY) + 2}\n"
    assert plane.look()["secret_requests"] == 1
    for path in Path(home.folder).rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # the worker's files come and go
            if path.is_file():
                assert CANARY.encode() not in path.read_bytes(), path


def test_a_secret_that_cannot_be_had_fails_the_start_and_runs_nothing(
    plane: Plane, home: WorkerHome, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    run = plane.add(
        f"touch {marker}",
        environment=[{"name": "SECRET", "kind": "secret", "secretRef": ITEM}],
    )
    home.start()
    attempt = plane.await_end(run)
    assert attempt["end"] == "start_failed", home.said()
    assert not marker.exists()


def test_a_start_that_cannot_be_is_told_with_nothing_run(
    plane: Plane, home: WorkerHome, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    bad = plane.add(f"touch {marker}", workingDirectory="/nowhere/at/all")
    good = plane.add("echo fine")
    home.start()
    assert plane.await_end(bad)["end"] == "start_failed"
    assert plane.await_end(good)["end"] == "succeeded"
    assert not marker.exists()


def test_an_idle_worker_writes_nothing(plane: Plane, home: WorkerHome) -> None:
    """Asking for work again and again costs no flash: the claim is kept, not made anew."""
    home.start()
    until(lambda: plane.look()["calls"].get("offers", 0) > 3)
    before = {path: path.read_bytes() for path in Path(home.state).glob("worker.db*")}
    asked = plane.look()["calls"]["offers"]
    until(lambda: plane.look()["calls"]["offers"] > asked + 20)
    after = {path: path.read_bytes() for path in Path(home.state).glob("worker.db*")}
    assert before == after
