"""A log root with a disk of any size, one attempt's paths, and ways to spoil each of them."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from qinglong_edge.artifact.logs import LogStore
from qinglong_edge.core.fact import Fact
from qinglong_edge.system.files import Files, Space

RUN = "019f7200-0000-7000-8000-000000000001"
ATTEMPT = "019f7200-0000-7000-8000-000000000002"
QUOTA = 65_536
RESERVE = 1_000_000
STRANGER = 54_321
SEEN_MS = 1_800_000_000_000

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


class Disk(Files):
    """The real files on a disk with as much room as a test says."""

    def __init__(self) -> None:
        self.room = Space(bytes=1 << 40, inodes=9)
        self.after_look: Callable[[str], None] = lambda _path: None  # once, after the next open

    def space(self, path: str) -> Space:
        super().space(path)  # as the real one, it needs the directory
        return self.room

    def _told(self, path: str) -> None:
        call, self.after_look = self.after_look, lambda _path: None
        call(path)

    def open_append(self, path: str) -> int:
        fd = super().open_append(path)
        self._told(path)
        return fd

    def open_own(self, path: str, *, twin: str = "") -> int | None:
        fd = super().open_own(path, twin=twin)
        self._told(path)
        return fd


class Place:
    """One log root."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "logs"
        self.root.mkdir(0o700)
        self.root.chmod(0o700)
        self.disk = Disk()
        self.logs = LogStore(str(self.root), self.disk, reserve_bytes=RESERVE)
        paths = self.logs.paths(RUN, ATTEMPT)
        self.id = paths.id
        self.shard, self.log, self.starting = map(Path, (paths.shard, paths.file, paths.starting))
        self.fact, self.temporary = Path(paths.fact), Path(paths.fact_temporary)

    def begun(self) -> int:
        """A launch: the log as it is handed to the process, under its own name."""
        log = self.logs.prepare(RUN, ATTEMPT, QUOTA)
        self.logs.adopt(log, RUN, ATTEMPT)
        return log.fd

    def written(self, data: bytes = b"0123456789") -> None:
        """A settled log."""
        fd = self.begun()
        os.write(fd, data)
        os.close(fd)

    def told(self, data: bytes | None = None, **changes: object) -> None:
        """A fact beside it."""
        write(self.fact, fact(self.id, **changes) if data is None else data)

    def names(self) -> set[str]:
        """Everything below the root."""
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*")}


def fact(log_id: str, **changes: object) -> bytes:
    """The bytes of a fact."""
    given: dict[str, object] = {
        "run_id": RUN,
        "attempt_id": ATTEMPT,
        "log_artifact_id": log_id,
        "maximum_bytes": QUOTA,
        "quota_reached": True,
        "observed_at_ms": SEEN_MS,
    }
    return Fact(**{**given, **changes}).encode()  # type: ignore[arg-type]


def write(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """A private file."""
    path.write_bytes(data)
    path.chmod(mode)


def mode(path: Path) -> int:
    """The permission bits."""
    return stat.S_IMODE(path.lstat().st_mode)


def swap(path: Path) -> None:
    """Put another file, or directory, of the same look in its place."""
    aside = path.with_name(f"{path.name}.aside")
    path.rename(aside)
    if aside.is_dir():
        path.mkdir(0o700)
        for inner in aside.iterdir():
            inner.rename(path / inner.name)
    else:
        write(path, aside.read_bytes())


def to_link(path: Path) -> None:
    """A symbolic link to the very same thing elsewhere."""
    aside = path.with_name(f"{path.name}.aside")
    path.rename(aside)
    path.symlink_to(aside)


def to_strangers(path: Path) -> None:
    """Another user's."""
    os.chown(path, STRANGER, -1)


def to_open(path: Path) -> None:
    """Others may look in."""
    path.chmod(mode(path) | 0o044)


def to_twice(path: Path) -> None:
    """A second name."""
    os.link(path, path.parents[2] / "second")


def to_folder(path: Path) -> None:
    """A directory in a file's place."""
    path.unlink()
    path.mkdir(0o700)


def to_file(path: Path) -> None:
    """A file in a directory's place."""
    path.rename(path.with_name(f"{path.name}.aside"))
    write(path, b"")


def to_fifo(path: Path) -> None:
    """A FIFO that nobody writes to."""
    path.unlink()
    os.mkfifo(path, 0o600)


FOR_FILE: list[Callable[[Path], None]] = [to_link, to_strangers, to_twice, to_folder, to_fifo]
FOR_FOLDER: list[Callable[[Path], None]] = [to_link, to_strangers, to_file]
