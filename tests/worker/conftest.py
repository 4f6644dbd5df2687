"""A plane and a home of a worker for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="certificates are made with it")

from tests.worker.kit import Plane, WorkerHome


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
