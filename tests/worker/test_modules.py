"""The golden list of the worker: what it holds in memory while it waits, and what it never may."""

from __future__ import annotations

import os
import sys

import pytest

from tests.support import ROOT
from tests.tools import bench_idle, builder, measure
from tests.worker import watched

GOLDEN = os.path.join(ROOT, "tests", "build", "golden_worker_modules.txt")
NEVER = frozenset(
    {
        *("argparse", "asyncio", "cryptography", "ctypes", "dataclasses", "hashlib", "_hashlib"),
        *("inspect", "logging", "pathlib", "shutil", "subprocess", "tempfile", "threading"),
        *("tomllib", "traceback", "typing", "uuid", "zipfile", "zoneinfo"),
    }
)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> frozenset[str]:
    """The modules of a worker that was used."""
    folder = str(tmp_path_factory.mktemp("modules"))
    zipapp = os.path.join(folder, "qinglong-edge-worker.pyz")
    builder.build(ROOT, zipapp, python=sys.executable, kind=builder.WORKER)
    return watched.modules(measure.PYTHON, zipapp, folder)


def test_the_worker_loads_exactly_what_the_golden_list_names(loaded: frozenset[str]) -> None:
    """ADR-0115 verification 9: TLS and the plane's documents, and nothing else that is heavy."""
    more, fewer = bench_idle.unlike_golden(loaded, GOLDEN)
    assert (more, fewer) == ([], []), f"loaded over golden: {more}; golden but not loaded: {fewer}"


def test_no_heavy_module_is_ever_resident_in_the_worker(loaded: frozenset[str]) -> None:
    """A router pays for each of these for as long as it is up."""
    assert sorted(loaded & NEVER) == []


def test_the_worker_holds_nothing_of_the_local_runtime(loaded: frozenset[str]) -> None:
    """The plane decides here: no schedule, no retry, no local journal of runs."""
    rooms = ("qinglong_edge.execution", "qinglong_edge.cli.main")
    local = {"app.runtime", "app.daemon", "storage.runs", "storage.tasks", "core.cron", "core.zone"}
    assert sorted(name for name in loaded if name.startswith(rooms)) == []
    assert sorted(loaded & {f"qinglong_edge.{name}" for name in local}) == []
