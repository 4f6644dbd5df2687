"""Emulated routers for tests: skipped by name without `--with-emulation`, run whole with it."""

from __future__ import annotations

import faulthandler
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from tests.skipping import unless_asked_for, unless_had
from tests.support import ROOT
from tests.tools.router import images, share
from tests.tools.router.images import Image
from tests.tools.router.machines import MACHINES

T = TypeVar("T")
Everywhere = Callable[[Callable[[Image], T]], dict[str, T]]


def pytest_runtest_setup() -> None:
    """These take minutes; what a guest is waited for has bounds of its own."""
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True, scope="session")
def _asked_for() -> None:
    unless_asked_for("emulation", "boots emulated routers")


@pytest.fixture(scope="session")
def shared(_asked_for: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the guests see: this tree and its zipapp."""
    folder = str(tmp_path_factory.mktemp("share"))
    share.fill(ROOT, folder)
    return folder


@pytest.fixture(scope="session")
def routers(_asked_for: None) -> dict[str, Image]:
    """What each kind of router boots."""
    with unless_had("a router's image"):
        return {name: images.image(ROOT, machine) for name, machine in MACHINES.items()}


@pytest.fixture(scope="session")
def everywhere(routers: dict[str, Image]) -> Iterator[Everywhere[T]]:
    """Does the same on each kind of router at once; a test then looks at its own kind."""
    with ThreadPoolExecutor(len(routers)) as pool:

        def do(work: Callable[[Image], T]) -> dict[str, T]:
            begun = {name: pool.submit(work, image) for name, image in routers.items()}
            return {name: each.result() for name, each in begun.items()}

        yield do
