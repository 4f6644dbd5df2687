"""One fresh state directory a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.kit import Kit


@pytest.fixture
def bare(tmp_path: Path) -> Kit:
    """A place without a state directory."""
    return Kit(tmp_path)


@pytest.fixture
def kit(bare: Kit) -> Kit:
    """A place with one, edge profile."""
    bare.ok("init")
    return bare
