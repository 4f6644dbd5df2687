"""Where the bench's states lie: file systems of this machine, or those that a router has mounted.

On this machine a disk is made for the time of a measurement; in a router whoever started it has
mounted its disks, and says where. Nothing that is made here outlives its `with` block.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.tools import measure
from tests.tools.bench_rows import FLASH
from tests.tools.measure import Disk, UnmeasurableError
from tests.tools.router import flash


@dataclass(frozen=True)
class Memory(Disk):
    """A tmpfs; what is counted is all that any disk of the machine gets meanwhile."""

    def sync(self) -> None:
        """Bring what earlier looks left for the disks to them: it is none of this one's."""
        os.sync()

    def written(self) -> tuple[int, int | None]:
        """(bytes written to all disks, None)."""
        names = [name for name in os.listdir("/sys/block") if name.startswith("vd")]
        return sum(Disk(self.path, name).written()[0] for name in names), None


_KINDS: dict[str, type[Disk]] = {"tmpfs": Memory} | dict.fromkeys(FLASH, flash.Chip)


@contextlib.contextmanager
def disk(kind: str, mounted: Mapping[str, tuple[str, str]]) -> Iterator[Disk]:
    """A disk of this kind: one of `mounted` (folder, device), else one that is made now.

    UnmeasurableError where neither can be had.
    """
    if kind in mounted:
        folder, device = mounted[kind]
        yield _KINDS.get(kind, Disk)(folder, device)
    elif mounted:
        raise UnmeasurableError(f"this router has no {kind}")
    elif kind == "tmpfs":
        raise UnmeasurableError("other programs write to this machine's disks meanwhile")
    elif kind == "overlay":
        with measure.disk() as below, _overlay(below) as above:
            yield above
    else:
        with measure.disk(kind) as made:
            yield made


@contextlib.contextmanager
def _overlay(below: Disk) -> Iterator[Disk]:
    """An overlay whose upper folder is on a disk."""
    places = {name: os.path.join(below.path, name) for name in ("lower", "upper", "work", "all")}
    for place in places.values():
        os.mkdir(place)
    options = "lowerdir={lower},upperdir={upper},workdir={work}".format_map(places)
    measure.tool("mount", "-t", "overlay", "-o", options, "overlay", places["all"])
    try:
        yield Disk(places["all"], below.device)
    finally:
        measure.tool("umount", places["all"])
