"""What the mount table says of a path."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import pytest

from qinglong_edge.system.files import Files
from tests.disks import small_disk


@pytest.fixture
def files() -> Files:
    return Files()


def test_the_kind_of_a_file_system_is_what_the_mount_table_says(files: Files) -> None:
    assert files.filesystem("/proc") == "proc"
    assert files.filesystem("/proc/self") == "proc"
    kinds = {line.split()[0]: line.split()[2] for line in _mounts()}
    assert files.filesystem("/") in {kinds["/"], "overlay", None}
    with pytest.raises(FileNotFoundError):
        files.filesystem("/missing")


def _mounts() -> list[str]:
    lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    return [" ".join(line.split()[1:]).replace(" ", " - ", 1) for line in lines]


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs /dev/shm")
def test_a_tmpfs_is_named(files: Files) -> None:
    assert files.filesystem("/dev/shm") == "tmpfs"


@pytest.mark.parametrize("upper", ["in memory", "on a disk"])
def test_an_overlay_is_in_memory_if_its_upper_layer_is(
    files: Files, tmp_path: Path, upper: str
) -> None:
    with contextlib.ExitStack() as stack:
        layers = tmp_path / "layers"
        layers.mkdir()
        if upper == "in memory":
            stack.enter_context(small_disk(layers, "size=1m"))
        names = ("lower", "upper", "work", "merged")
        lower, above, work, merged = (layers / name for name in names)
        for layer in (lower, above, work, merged):
            layer.mkdir()
        options = f"lowerdir={lower},upperdir={above},workdir={work}"
        command = ["mount", "-t", "overlay", "-o", options, "edge-test", str(merged)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"a small file system may not be mounted here: {done.stderr.strip()}")
        stack.callback(subprocess.run, ["umount", str(merged)], check=True)
        (merged / "state").mkdir()
        expected = "tmpfs" if upper == "in memory" else "overlay"
        assert files.filesystem(str(merged / "state")) == expected


def test_an_unknown_device_has_no_kind(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "major", lambda _device: 4_000)
    assert files.filesystem("/") is None
