"""Power cuts on flash: the main job played on a chip, what any moment of it would leave, tried.

What a guest has written to its chip stands in a file of the host at once, so a copy of that file
between two of the guest's instructions is exactly what a power cut then would leave, torn where the
guest stood. `record` stops the guest after each thing it was told, at once or a moment later, and
copies. A second guest finds one copy after the other on its own chip, and the program starts there.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

from tests.tools.router import chips, flash, share
from tests.tools.router.blocks import MARK, Journal, Server
from tests.tools.router.guest import PYTHON, Guest, GuestError, Options
from tests.tools.router.images import Image
from tests.tools.router.power import RUNTIME, Found, Looker

KINDS = ("jffs2", "ubifs")
CHIP_MIB = 16
ALL = 1_000_000  # more marks than there are
_MEMORY_MIB = 256
_MARKS_BYTES = 1_048_576
_SCENARIO_S = 900.0
_LATER_S = 0.2  # on average, of the moments that follow no mark at once
_POLL_S = 0.001
# What nobody asks the kernel to write stays in its memory, however slow this machine is.
_NOTHING_BY_ITSELF = "echo 0 >/proc/sys/vm/dirty_writeback_centisecs"
_FORGOTTEN = (  # (file, what asks the device, what asks nothing)
    ("storage/connection.py", r'"PRAGMA synchronous=FULL"', '"PRAGMA synchronous=OFF"'),
    ("system/files.py", r"os\.fsync\(fd\)", "os.fstat(fd)"),
)


@dataclass(frozen=True)
class Moment:
    """A chip at one moment, and what had been said before it."""

    name: str
    marks: list[str]
    blocks: tuple[bytes, ...] = field(repr=False)

    def __str__(self) -> str:
        return self.name


class Camera:
    """Copies a chip while a guest writes it, and cuts the guest's power after so many marks."""

    def __init__(self, guest: Guest, chip: str, journal: Journal, *, seed: int, last: int) -> None:
        self._guest = guest
        self._chip = chip
        self._journal = journal
        self._last = last
        self._chance = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._failed: BaseException | None = None
        self.cut = False
        self.moments: list[Moment] = []

    def _heard(self) -> list[str]:
        with self._journal.lock:
            entries = list(self._journal.entries)
        return [entry.data.decode("utf-8", "replace") for entry in entries if entry.kind == MARK]

    def _watch(self) -> None:
        try:
            seen = 0
            while not self._over.wait(_POLL_S) and not self.cut:
                if len(self._heard()) > seen:
                    later = self._chance.choice((0.0, self._chance.expovariate(1 / _LATER_S)))
                    self._over.wait(later)
                    seen = self._take(f"{later * 1_000:.0f} ms after a mark")
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            self._failed = error

    def _take(self, name: str) -> int:
        if len(self._heard()) >= self._last:
            self.cut, name = True, f"killed {name}"
            self._guest.cut()
            data, marks = chips.content(self._chip), self._heard()
        else:
            with self._guest.stopped():
                data = chips.content(self._chip)
                marks = self._heard()  # said before the guest stood still, whenever it is read
        before = self.moments[-1].blocks if self.moments else ()
        blocks = tuple(_shared(data, before))
        self.moments.append(Moment(f"{name}, {len(marks)} heard", marks, blocks))
        return len(marks)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._over.set()
        self._thread.join()
        if self._failed is not None:
            raise self._failed


def _shared(data: bytes, before: tuple[bytes, ...]) -> Iterator[bytes]:
    """The chip's blocks; one that has not changed is the same object as before."""
    for number, begin in enumerate(range(0, len(data), chips.BLOCK)):
        block = data[begin : begin + chips.BLOCK]
        same = number < len(before) and before[number] == block
        yield before[number] if same else block


def record(
    image: Image, shared: str, kind: str, folder: str, *, seed: int, last: int = ALL
) -> list[Moment]:
    """Play the scenario in a guest, on a chip with this file system; `folder` keeps the files.

    After `last` marks the guest is killed, and what that leaves is the last moment.
    """
    chip = chips.make(os.path.join(folder, "chip"), CHIP_MIB)
    marks, unused = os.path.join(folder, "marks"), os.path.join(folder, "unused")
    for path in (marks, unused):
        with open(path, "wb") as opened:
            opened.truncate(_MARKS_BYTES)
    journal = Journal()
    with Server(marks, journal, marks=True) as server:
        # The marks go to the third disk, as where the second is the one that is cut.
        disks = (f"file={unused}", f"file={server.url}")
        options = Options(_MEMORY_MIB, share=shared, disks=disks, chips=(chip,))
        with Guest(image, options) as guest:
            mount(guest, kind)
            guest.check(_NOTHING_BY_ITSELF)
            with Camera(guest, chip, journal, seed=seed, last=last) as camera:
                words = (f"/share/{share.ZIPAPP}", f"{flash.PLACE}/state")
                try:
                    guest.python("tests.tools.router.scenario", *words, timeout_s=_SCENARIO_S)
                except GuestError:
                    if not camera.cut:
                        raise
    return camera.moments


def mount(guest: Guest, kind: str) -> None:
    """The guest's first chip gets this file system."""
    guest.load(*flash.MODULES)
    guest.check(f"{PYTHON} -m tests.tools.router.flash mount {kind}")


def sample(moments: list[Moment], count: int, seed: int) -> list[Moment]:
    """Some of them, spread over the whole recording, the last one with them."""
    chance = random.Random(seed)
    step = (len(moments) - 1) / max(1, count - 1)
    spread = [moments[int((number + chance.random()) * step)] for number in range(count - 1)]
    return [*spread, moments[-1]]


class Judge:
    """A booted guest that looks at one chip after the other."""

    def __init__(self, image: Image, shared: str, kind: str, folder: str) -> None:
        self._chip = chips.make(os.path.join(folder, "judged"), CHIP_MIB)
        options = Options(_MEMORY_MIB, share=shared, chips=(self._chip,))
        self._guest = Guest(image, options)
        try:
            self._guest.load(*flash.MODULES)
            self._looker = Looker(self._guest, RUNTIME, kind)
        except BaseException:
            self._guest.kill()
            raise

    def try_(self, moment: Moment) -> Found:
        """One chip."""
        chips.put(self._chip, b"".join(moment.blocks))
        return self._looker.look(moment, moment.marks)

    def close(self) -> None:
        """The guest's end."""
        self._guest.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def forgetful(root: str, folder: str) -> str:
    """A copy of the tree whose program never asks the device to keep anything."""
    for name in ("qinglong_edge", "tests", "profiles"):
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
        shutil.copytree(os.path.join(root, name), os.path.join(folder, name), ignore=ignored)
    for name, pattern, instead in _FORGOTTEN:
        path = os.path.join(folder, "qinglong_edge", name)
        with open(path, encoding="utf-8") as opened:
            text, count = re.subn(pattern, instead, opened.read())
        if count == 0:
            raise ValueError(f"{name} asks in another way now")
        with open(path, "w", encoding="utf-8") as written:
            written.write(text)
    return folder
