"""A plane and a home of a worker for each test, or a worker in memory without either."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="certificates are made with it")

from tests.worker.kit import Plane, WorkerHome
from tests.worker.world import World


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    made = Plane(str(tmp_path / "plane"), lease_ms=6_000)
    yield made
    made.close()


@pytest.fixture
def home(tmp_path: Path, plane: Plane) -> Iterator[WorkerHome]:
    made = WorkerHome(str(tmp_path / "worker"), plane)
    yield made
    made.kill()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(str(tmp_path))
    yield made
    made.store.close()
