"""One world a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.execution.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A machine with an owner that has just started."""
    made = World(tmp_path)
    made.start()
    yield made
    made.close()
