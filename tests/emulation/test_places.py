"""File systems in a router: the right mode is chosen there, or the place is refused in words."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT
from tests.tools.gates import Gate, budget
from tests.tools.router import share
from tests.tools.router.guest import Guest, Options, overlay
from tests.tools.router.images import Image

MAKERS = {
    "ext4": ("mkfs.ext4", "-q", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0"),
    "vfat": ("mkfs.vfat",),
    "f2fs": ("mkfs.f2fs", "-q"),
}
NAMES = dict(zip(MAKERS, ("vdb", "vdc", "vdd"), strict=True))
SIZE = 192 << 20  # the edge reserve of 32 MiB and one log have to fit beside what f2fs keeps back


@pytest.fixture(scope="module")
def guest(
    routers: dict[str, Image], shared: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guest]:
    """A router with one disk of each kind."""
    folder = tmp_path_factory.mktemp("disks")
    for kind, command in MAKERS.items():
        path = folder / kind
        with path.open("wb") as opened:
            opened.truncate(SIZE)
        subprocess.run([*command, str(path)], check=True, capture_output=True)
    disks = tuple(f"file={folder / kind},cache=unsafe" for kind in MAKERS)
    with Guest(routers["arm64"], Options(share=shared, disks=disks)) as booted:
        booted.load("vfat", "nls_cp437", "nls_ascii", "crc32_generic", "f2fs", "overlay")
        yield booted


def found(guest: Guest, kind: str, folder: Path) -> dict[str, Any]:
    """What the program makes of a mounted file system."""
    words = [f"/share/{share.ZIPAPP}", str(folder)]
    if kind in NAMES:
        words.append(NAMES[kind])
    answer: dict[str, Any] = guest.python("tests.tools.router.places", *words)
    return answer


@pytest.fixture
def mounted(guest: Guest) -> Iterator[Callable[[str], Path]]:
    """Mounts one disk for the time of a test."""

    def mount(kind: str) -> Path:
        guest.check(f"mount -t {kind} -o noatime /dev/{NAMES[kind]} /flash")
        return Path("/flash")

    yield mount
    guest.check("umount /flash")


@pytest.mark.parametrize("kind", ["ext4", "f2fs"])
def test_a_disk_gets_the_write_ahead_log_and_few_bytes(
    kind: str, guest: Guest, mounted: Callable[[str], Path], tell: Callable[[object], None]
) -> None:
    answer = found(guest, kind, mounted(kind))
    assert (answer["storage"]["mode"], answer["storage"]["filesystem"]) == ("wal", kind)
    assert (answer["degraded"], answer["exit_code"], answer["log_bytes"]) == ([], 7, 3)
    gate = Gate(f"{kind}: bytes a run", answer["bytes"], budget(ROOT)["run_device_bytes_burst"])
    tell(f"{gate}; {answer['flushes']} flushes, {answer['commits']} commits")
    assert gate.held, str(gate)


def test_an_overlay_is_a_place_like_the_disk_below_it(
    guest: Guest, mounted: Callable[[str], Path]
) -> None:
    """A file's device differs there from its directory's, and nothing is refused for it."""
    guest.check(overlay(str(mounted("ext4")), "/overlay"))
    try:
        answer = found(guest, "overlay", Path("/overlay"))
    finally:
        guest.check("umount /overlay")
    assert (answer["storage"]["mode"], answer["storage"]["filesystem"]) == ("wal", "overlay")
    assert (answer["degraded"], answer["exit_code"], answer["log_bytes"]) == ([], 7, 3)


def test_memory_is_a_place_that_says_what_it_is(guest: Guest) -> None:
    guest.check("mkdir -p /tmp/place")
    answer = found(guest, "tmpfs", Path("/tmp/place"))
    assert (answer["storage"]["mode"], answer["exit_code"]) == ("wal", 7)
    assert answer["degraded"] == ["state_volatile"]


def test_a_file_system_without_hard_links_is_refused_in_words(
    guest: Guest, mounted: Callable[[str], Path]
) -> None:
    answer = found(guest, "vfat", mounted("vfat"))
    assert (answer["refused"], answer["left"]) == ("no_hard_links", [])
    assert "no hard links" in answer["message"]


def test_a_shared_mount_is_refused_in_words(guest: Guest) -> None:
    answer = found(guest, "9p", Path("/share"))
    assert answer["refused"] in ("shared_mount", "state_read_only"), answer
