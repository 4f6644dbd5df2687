"""The musl tree for tests: skipped by name without `--with-musl`, run whole with it."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.musl.router import Router
from tests.skipping import unless_asked_for, unless_had
from tests.support import ROOT
from tests.tools import builder, pythons
from tests.tools.musl import parts, tree
from tests.tools.musl.tree import Tree


@pytest.fixture(autouse=True, scope="session")
def _asked_for() -> None:
    unless_asked_for("musl", "builds a router's userland")


@pytest.fixture(scope="session")
def musl(_asked_for: None) -> Tree:
    """The tree."""
    with unless_had("the musl tree"):
        return tree.made(ROOT)


@pytest.fixture(scope="session")
def program(_asked_for: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The artifact with the byte code of the tree's Python."""
    output = tmp_path_factory.mktemp("artifact") / "qinglong-edge"
    python = pythons.on_this_machine(parts.MINOR) or sys.executable
    return builder.build(ROOT, str(output), python=python).path


@pytest.fixture
def router(musl: Tree, program: str) -> Iterator[Router]:
    """The program and a place for a state in the tree, gone at the end."""
    with tempfile.TemporaryDirectory(prefix="edge-", dir=os.path.join(musl.folder, "tmp")) as home:
        shutil.copy(program, os.path.join(home, "qinglong-edge"))
        os.chmod(os.path.join(home, "qinglong-edge"), 0o755)
        yield Router(musl, Path(home))
