"""One fresh state directory a test, edge profile, and a place for a panel's data."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.kit import Kit, fresh


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    """An initialised state."""
    return fresh(tmp_path / "k")


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Where a panel's database lies, with its scripts beside it."""
    (tmp_path / "data" / "scripts").mkdir(parents=True)
    return tmp_path / "data" / "db" / "database.sqlite"
