"""`build.py cuts`: every power cut of a job on an emulated router, two guests at a time.

The job is the main one, or with `--worker` a worker's. It is recorded once; its cuts are tried in
an order drawn anew each time, until all are done or the time is over. With `--flash` the main one
is played again and again on a chip with that file system, and each moment kept of it is tried. With
`--control` what is flushed is forgotten by the disk, or the program asks the flash for nothing:
promises must break.
Exit status: 0, or 1 if a promise was broken (with `--control`: if none was).
"""

from __future__ import annotations

import abc
import argparse
import os
import queue
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.tools import debian
from tests.tools.measure import ROOT
from tests.tools.router import flash_power, images, phram, power, share
from tests.tools.router.blocks import Cut
from tests.tools.router.images import Image
from tests.tools.router.machines import MACHINES
from tests.tools.router.power import Found, Recording

GUESTS = 2
_MARKS = (3, 40)  # a recording on flash is cut after so many of its about 32


@dataclass
class Campaign(abc.ABC):
    """Guests that try cuts until there are none or the time is over, and what they found."""

    image: Image
    shared: str
    until: float
    found: list[Found] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    @abc.abstractmethod
    def tried(self) -> Iterator[Found]:
        """What one of the guests finds, cut after cut."""

    def over(self) -> bool:
        """Whether there is no time left."""
        return time.monotonic() >= self.until

    def run(self) -> None:
        """All guests, to their end."""
        threads = [threading.Thread(target=self._guest) for _ in range(GUESTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failures:
            raise self.failures[0]

    def _guest(self) -> None:
        try:
            for found in self.tried():
                self._tell(found)
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            self.failures.append(error)

    def _tell(self, found: Found) -> None:
        self.found.append(found)
        verdict = "; ".join(found.broken) or "kept"
        print(f"{len(self.found):5d}  {found.cut}: {verdict}", flush=True)


@dataclass
class DiskCampaign(Campaign):
    """The cuts of one recording, each once."""

    recording: Recording = field(kw_only=True)
    honest: bool = field(kw_only=True)
    left: queue.SimpleQueue[Cut] = field(default_factory=queue.SimpleQueue)

    def tried(self) -> Iterator[Found]:
        """From one list for all guests."""
        with power.Judge(self.image, self.shared, self.recording) as judge:
            while not self.over():
                try:
                    cut = self.left.get_nowait()
                except queue.Empty:
                    return
                yield judge.try_(cut, honest=self.honest)


@dataclass
class FlashCampaign(Campaign):
    """Recordings on a chip, one after the other, each cut short somewhere else."""

    kind: str = field(kw_only=True)
    played: str = field(kw_only=True)  # what the guests that write see
    folder: str = field(kw_only=True)
    chance: random.Random = field(kw_only=True)

    def tried(self) -> Iterator[Found]:
        """Every moment of every recording."""
        home = tempfile.mkdtemp(dir=self.folder)
        with flash_power.Judge(self.image, self.shared, self.kind, home) as judge:
            while not self.over():
                moments = flash_power.record(
                    self.image,
                    self.played,
                    self.kind,
                    home,
                    seed=self.chance.randrange(1 << 30),
                    last=self.chance.randint(*_MARKS),
                )
                for moment in moments:
                    if self.over():
                        return
                    yield judge.try_(moment)


def main(given: list[str]) -> int:
    """Record, cut, tell."""
    parser = argparse.ArgumentParser(prog="build.py cuts")
    parser.add_argument("--seconds", type=int, default=900)
    parser.add_argument("--arch", choices=tuple(MACHINES), default="arm64")
    job = parser.add_mutually_exclusive_group()
    job.add_argument("--worker", action="store_true")
    job.add_argument("--flash", choices=flash_power.KINDS)
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    own = parser.parse_args(given)
    if own.control and own.flash == "jffs2":
        parser.error("jffs2 writes each thing at once: what asks for nothing loses nothing on it")
    until = time.monotonic() + own.seconds
    with power.place() as folder:
        try:
            if wanted := debian.missing(debian.EMULATORS):
                debian.install(wanted)
            image = images.image(ROOT, MACHINES[own.arch])
            make = _on_disk if own.flash is None else _on_flash
            campaign, tried = make(own, image, folder, until)
        except debian.UnobtainableError as error:
            print(f"build.py cuts: {error}")
            return 1
        campaign.run()
    broken = [each for each in campaign.found if each.broken]
    spent = sum(each.seconds for each in campaign.found) / max(1, len(campaign.found))
    print(
        f"{own.arch}: {len(campaign.found)} {tried}, {len(broken)} broke a "
        f"promise{' (control)' * own.control}; {spent:.1f} s each in a guest; --seed {own.seed}"
    )
    return int(bool(broken) != own.control)


def _shared(folder: str, root: str = ROOT, driver: str | None = None) -> str:
    """What guests see of a tree."""
    shared = tempfile.mkdtemp(dir=folder)
    share.fill(root, shared)
    if driver is not None:
        shutil.copy(driver, os.path.join(shared, phram.NAME))
    return shared


def _on_disk(
    own: argparse.Namespace, image: Image, folder: str, until: float
) -> tuple[Campaign, str]:
    """The campaign, and what is said of the number of its cuts."""
    shared = _shared(folder)
    job = power.WORKER if own.worker else power.RUNTIME
    recording = power.record(image, shared, folder, job)
    every = recording.cuts()
    print(f"{own.arch}: {len(recording.entries)} writes, flushes and marks, {len(every)} cuts")
    random.Random(own.seed).shuffle(every)
    campaign = DiskCampaign(image, shared, until, recording=recording, honest=not own.control)
    for cut in every:
        campaign.left.put(cut)
    return campaign, f"of {len(every)} cuts tried"


def _on_flash(
    own: argparse.Namespace, image: Image, folder: str, until: float
) -> tuple[Campaign, str]:
    """The same for a chip."""
    driver = phram.module(ROOT, image)
    shared = played = _shared(folder, driver=driver)
    if own.control:
        tree = os.path.join(folder, "tree")
        played = _shared(folder, flash_power.forgetful(ROOT, tree), driver)
    chance = random.Random(own.seed)
    campaign = FlashCampaign(
        image, shared, until, kind=own.flash, played=played, folder=folder, chance=chance
    )
    return campaign, f"cuts on {own.flash} tried"
