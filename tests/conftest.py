"""Holds for every test: a clean environment, no forbidden skips, nothing left behind."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qinglong_edge.system import process
from tests.skipping import unless_had
from tests.support import REAP_TRIES, ROOT, read_zone
from tests.tools import builder, debian, leaks, strictness, testing

_NAMES = ("LANG", "LANGUAGE", "TZ")
_PREFIXES = ("LC_", "QINGLONG_EDGE_", "QL3_")
_LEAKLESS = tuple(Path(ROOT, "tests", name) for name in ("process", "system", "e2e"))


def pytest_configure(config: pytest.Config) -> None:
    """Strictness, where the environment asks for it."""
    strictness.register(config, os.path.join(ROOT, "tests"))


@pytest.fixture(autouse=True, scope="session")
def _clean_environment() -> Iterator[None]:
    # In the background of a shell SIGINT is ignored, and so it would be in all that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name in _NAMES or name.startswith(_PREFIXES):
                patch.delenv(name)
        read_zone()
        yield
    read_zone()


@pytest.fixture(autouse=True, scope="session")
def _patient() -> Iterator[None]:
    """A child that was killed is collected here, however long a busy machine lets it wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "_REAP_TRIES", REAP_TRIES)
        yield


@pytest.fixture(autouse=True)
def _leakless(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test of processes ends with the processes and descriptors that it began with."""
    if not any(folder in request.path.parents for folder in _LEAKLESS):
        yield
        return
    folder = str(request.getfixturevalue("tmp_path"))
    before = leaks.snapshot()
    yield
    found = leaks.leaks(before, folder)
    if found:
        leaks.end(before, folder)
        pytest.fail("left behind: " + "; ".join(found))


@pytest.fixture
def open_umask() -> Iterator[None]:
    """What is to be private is so by its own doing, not by the umask's."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def no_descriptor_stays() -> Iterator[None]:
    """As many descriptors are open at the end as were at the beginning."""
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def tell(capfd: pytest.CaptureFixture[str]) -> Callable[[object], None]:
    """Prints past the capture: a figure is there to be read, held or not."""

    def told(what: object) -> None:
        with capfd.disabled():
            sys.stdout.write(f"\n{what}\n")

    return told


@pytest.fixture(scope="session")
def zipapp(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The artifact of this tree, with the byte code of the running Python."""
    output = tmp_path_factory.mktemp("artifact") / "qinglong-edge.pyz"
    return builder.build(ROOT, str(output), python=sys.executable).path


@pytest.fixture(scope="session")
def debian_crontabs() -> list[Path]:
    """/etc/crontab and /etc/cron.d files exactly as Debian's packages ship them."""
    found = []
    for name in debian.CRONTABS:
        with unless_had(f"the package {name}"):
            folder = Path(debian.unpacked(name, os.path.join(ROOT, testing.CACHE)))
        found += [*folder.glob("etc/crontab"), *folder.glob("etc/cron.d/[!.]*")]
    return sorted(found)
