"""One fresh state directory a test, edge profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.kit import Kit


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    """An initialised state."""
    (tmp_path / "k").mkdir()
    made = Kit(tmp_path / "k")
    made.ok("init")
    return made
