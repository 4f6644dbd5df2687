"""Power cuts that are honest: a job recorded once, every disk that a cut leaves tried.

One guest plays the scenario on a disk whose writes are recorded with their flushes. A second guest,
which finds another boot id, gets one disk after the other as a cut would have left it: what was
flushed, and of the rest nothing, all, any part, or a torn end. On each of them the program starts
and has to know everything that was acknowledged. A disk that forgets its flushes is the control: if
it passed, nothing would be proved.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from tests.tools.router import blocks, share
from tests.tools.router.blocks import Cut, Entry, Journal, Server
from tests.tools.router.guest import PYTHON, Guest, GuestError, Options
from tests.tools.router.images import Image

_DISK_MIB = 24
_MEMORY_MIB = 256
_MARKS_BYTES = 1_048_576
_SCENARIO_S = 600.0
_VERDICT_S = 240.0
_MIXED = 3  # so many random parts of each unflushed tail are in the list of all cuts


@dataclass(frozen=True)
class Job:
    """A program, and the modules that play its scenario and look at what a cut left of it."""

    program: str  # in the share
    scenario: str
    verdict: str


RUNTIME = Job(share.ZIPAPP, "tests.tools.router.scenario", "tests.tools.router.verdict")
WORKER = Job(
    share.WORKER, "tests.tools.router.worker_scenario", "tests.tools.router.worker_verdict"
)


@dataclass(frozen=True)
class Recording:
    """What a guest wrote and said while it played the scenario."""

    job: Job
    image: str  # the disk before it
    entries: list[Entry]

    def cuts(self) -> list[Cut]:
        """Every cut there is to try."""
        return blocks.cuts(self.entries, mixed=_MIXED)

    def sample(self, count: int, seed: int) -> list[Cut]:
        """Some of them, spread over the whole recording."""
        every = self.cuts()
        chance = random.Random(seed)
        step = len(every) / count
        return [every[int((number + chance.random()) * step)] for number in range(count)]


def acknowledged(recording: Recording, what: str) -> list[Cut]:
    """A cut right after each such mark, with nothing kept of what was not flushed."""
    return [
        Cut(number, blocks.LOST)
        for number, entry in enumerate(recording.entries, 1)
        if entry.kind == blocks.MARK and json.loads(entry.data).get("ack") == what
    ]


def record(image: Image, shared: str, folder: str, job: Job = RUNTIME) -> Recording:
    """Play the scenario in a guest; its recording. `folder` keeps the disk."""
    disk, marks = os.path.join(folder, "disk"), os.path.join(folder, "marks")
    options = ("-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=0,lazy_journal_init=0")
    command = ["mke2fs", *options, disk, f"{_DISK_MIB}M"]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    with open(marks, "wb") as opened:
        opened.truncate(_MARKS_BYTES)
    journal = Journal()
    with Server(disk, journal) as first, Server(marks, journal, marks=True) as second:
        disks = (f"file={first.url}", f"file={second.url}")
        with Guest(image, Options(_MEMORY_MIB, share=shared, disks=disks)) as guest:
            guest.check("mount -t ext4 -o noatime /dev/vdb /flash")
            words = (f"/share/{job.program}", "/flash/state")
            guest.python(job.scenario, *words, timeout_s=_SCENARIO_S)
            entries = list(journal.entries)
    return Recording(job, disk, entries)


@dataclass(frozen=True)
class Found:
    """What one cut came to."""

    cut: object  # it says itself
    broken: list[str]
    seconds: float


class Looker:
    """The program in a booted guest that looks at whatever place it finds after a cut."""

    def __init__(self, guest: Guest, job: Job, *arguments: str) -> None:
        self._guest = guest
        words = " ".join((f"/share/{job.program}", *arguments))
        command = f"{PYTHON} -m {job.verdict} {words}"
        self._lines = guest.lines(command, timeout_s=_VERDICT_S)
        self._answer("ready")

    def _answer(self, wanted: str) -> str:
        told = []
        for line in self._lines:
            if line.startswith(wanted):
                return line
            told.append(line)
        raise GuestError(f"the checks ended with {self._guest.status}: " + "\n".join(told))

    def look(self, cut: object, marks: list[str]) -> Found:
        """What had been said before the cut, held against what is there."""
        said = [json.loads(mark) for mark in marks]
        books = [mark for mark in said if "books" in mark][-1:]  # each is the whole of them
        self._guest.send(json.dumps([*(mark for mark in said if "books" not in mark), *books]))
        answer = json.loads(self._answer("{"))
        return Found(cut, answer["broken"], answer["seconds"])


class Judge:
    """A booted guest that looks at one disk after the other."""

    def __init__(self, image: Image, shared: str, recording: Recording) -> None:
        self._recording = recording
        self._server = Server(recording.image)
        disks = (f"file={self._server.url}",)
        try:
            self._guest = Guest(image, Options(_MEMORY_MIB, share=shared, disks=disks))
            self._looker = Looker(self._guest, recording.job)
        except BaseException:
            self._server.close()
            raise

    def try_(self, cut: Cut, *, honest: bool = True) -> Found:
        """One disk."""
        entries = self._recording.entries
        self._server.put(blocks.disk(entries, cut, honest=honest))
        return self._looker.look(cut, blocks.marks(entries, cut))

    def close(self) -> None:
        """The guest's end."""
        self._guest.kill()
        self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def judged(
    image: Image, shared: str, recording: Recording, tried: list[Cut], *, honest: bool = True
) -> Iterator[Found]:
    """The cuts one after the other, in one guest."""
    with Judge(image, shared, recording) as judge:
        for cut in tried:
            yield judge.try_(cut, honest=honest)


def place() -> tempfile.TemporaryDirectory[str]:
    """Where a campaign keeps its files."""
    return tempfile.TemporaryDirectory(prefix="cuts-")
