"""The artifact of the worker: what is in it, what it weighs, what it holds at rest."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support import ROOT, until
from tests.tools import builder, gates, measure
from tests.worker.kit import Plane, WorkerHome


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> builder.Artifact:
    output = tmp_path_factory.mktemp("artifact") / "qinglong-edge-worker.pyz"
    return builder.build(ROOT, str(output), python=sys.executable, kind=builder.WORKER)


def test_the_workers_artifact_keeps_its_budget(artifact: builder.Artifact) -> None:
    held = gates.artifact_gates(artifact, gates.budget(ROOT, "worker-edge"))
    assert all(gate.held for gate in held), gates.report(artifact, held)


def test_each_artifact_carries_only_what_its_front_end_reaches() -> None:
    """ADR-0115 verification 9: the local runtime grows by nothing of the worker's."""
    runtime = {n for n in builder.carried(ROOT, builder.RUNTIME) if n.endswith(".py")}
    worker = {n for n in builder.carried(ROOT, builder.WORKER) if n.endswith(".py")}
    assert not [name for name in runtime if name.startswith("qinglong_edge/worker/")]
    assert not [name for name in runtime if "/worker" in name or name.endswith("/inbox.py")]
    for room in ("cli/main", "app/runtime", "storage/runs", "execution/dispatch"):
        assert f"qinglong_edge/{room}.py" not in worker
    for of_the_plane in ("storage/secrets", "storage/tasks", "secret/keyring", "secret/provider"):
        assert f"qinglong_edge/{of_the_plane}.py" not in worker  # ADR-0024 section 6
    assert "qinglong_edge/worker/transport.py" in worker


def test_no_test_of_the_tree_is_carried_by_neither(tmp_path: Path) -> None:
    """A module that no front end reaches would be dead weight, or a mistake."""
    every = {
        path.relative_to(ROOT).as_posix() for path in Path(ROOT, "qinglong_edge").rglob("*.py")
    }
    carried = {name for kind in builder.KINDS for name in builder.carried(ROOT, kind)}
    assert {name.rpartition("/")[2] for name in every - carried} <= {"ports.py"}


def test_an_idle_worker_holds_little_more_than_tls_itself(
    artifact: builder.Artifact, tmp_path: Path
) -> None:
    plane = Plane(str(tmp_path / "plane"))
    program = [sys.executable, "-I", "-S", artifact.path]
    home = WorkerHome(str(tmp_path / "worker"), plane, program)
    try:
        run = plane.add("echo once")
        pid = home.start()
        plane.await_end(run)
        until(lambda: home.status()["offers"] == [])
        with measure.bare_interpreter(sys.executable, loaded="ssl") as (other, _start):
            over = measure.memory(pid).rss - measure.memory(other).rss
        limit = gates.budget(ROOT, "worker-edge")["idle_rss_kib"]
        sys.stderr.write(f"\nidle worker: {over} KiB over a bare interpreter with ssl\n")
        assert over <= limit
        assert home.end() == 0
        assert os.path.exists(home.state)
    finally:
        home.kill()
        plane.close()
