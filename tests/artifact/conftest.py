"""A log root on the real disk, and what may be wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.artifact.place import Place
from tests.artifact.spool import Spool


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path)


@pytest.fixture(autouse=True)
def _strict(open_umask: None, no_descriptor_stays: None) -> None:
    """Every test of logs."""
