"""Emulated flash for tests: skipped by name without `--with-flash`, or where it cannot be made."""

from __future__ import annotations

import faulthandler
import os
import shutil
from collections.abc import Callable

import pytest

from tests.skipping import unless_asked_for, unless_had
from tests.support import ROOT
from tests.tools.router import images, phram, share
from tests.tools.router.images import Image
from tests.tools.router.machines import MACHINES


def pytest_runtest_setup() -> None:
    """These take minutes; what a guest is waited for has bounds of its own."""
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True, scope="session")
def _asked_for() -> None:
    unless_asked_for("flash", "boots routers with flash chips")


@pytest.fixture(scope="session")
def router(_asked_for: None) -> Image:
    """What the router boots."""
    with unless_had("a router's image"):
        return images.image(ROOT, MACHINES["arm64"])


@pytest.fixture(scope="session")
def driver(router: Image) -> str:
    """The module that makes flash of a guest's memory."""
    with unless_had("the driver of the flash chips"):
        return phram.module(ROOT, router)


@pytest.fixture(scope="session")
def given(driver: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Puts a tree and its zipapp where a guest sees them, with the driver; the folder."""

    def give(root: str) -> str:
        folder = str(tmp_path_factory.mktemp("share"))
        share.fill(root, folder)
        shutil.copy(driver, os.path.join(folder, phram.NAME))
        return folder

    return give


@pytest.fixture(scope="session")
def shared(given: Callable[[str], str]) -> str:
    """This tree, as the guests see it."""
    return given(ROOT)
