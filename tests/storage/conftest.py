"""States for tests: in memory where the machine has a place for it, since each commit syncs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from qinglong_edge.storage.store import Store
from tests.storage.building import state

pytest.register_assert_rewrite(
    *(f"tests.storage.contract_{kind}" for kind in ("recipe", "revision", "secret")),
    "tests.storage.subject",
)

_MEMORY = "/dev/shm"


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty directory; what a test asks of the kind of file system uses `tmp_path` instead."""
    place = _MEMORY if os.access(_MEMORY, os.W_OK | os.X_OK) else None
    made = tempfile.mkdtemp(prefix="ql-edge-test-", dir=place)
    yield Path(made)
    shutil.rmtree(made)


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    """A new, open state in `folder`."""
    with state(folder) as made:
        yield made
