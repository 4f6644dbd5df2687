"""`build.py cuts`: every power cut of a job on an emulated router, two guests at a time.

The job is the main one, or with `--worker` a worker's. It is recorded once; its cuts are tried in
an order drawn anew each time, until all are done or the time is over. With `--control` the disk
forgets its flushes: promises must break.
Exit status: 0, or 1 if a promise was broken (with `--control`: if none was).
"""

from __future__ import annotations

import argparse
import os
import queue
import random
import threading
import time
from dataclasses import dataclass, field

from tests.tools import debian
from tests.tools.measure import ROOT
from tests.tools.router import images, power, share
from tests.tools.router.blocks import Cut
from tests.tools.router.images import Image
from tests.tools.router.machines import MACHINES
from tests.tools.router.power import Found, Recording

GUESTS = 2


@dataclass
class Campaign:
    """What is to be tried, and what was found."""

    image: Image
    shared: str
    recording: Recording
    honest: bool
    until: float
    left: queue.SimpleQueue[Cut] = field(default_factory=queue.SimpleQueue)
    found: list[Found] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    def run(self, order: list[Cut]) -> None:
        """Try the cuts in this order with all guests."""
        for cut in order:
            self.left.put(cut)
        threads = [threading.Thread(target=self._guest) for _ in range(GUESTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failures:
            raise self.failures[0]

    def _guest(self) -> None:
        try:
            with power.Judge(self.image, self.shared, self.recording) as judge:
                while time.monotonic() < self.until:
                    try:
                        cut = self.left.get_nowait()
                    except queue.Empty:
                        return
                    self._tell(judge.try_(cut, honest=self.honest))
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            self.failures.append(error)

    def _tell(self, found: Found) -> None:
        self.found.append(found)
        verdict = "; ".join(found.broken) or "kept"
        print(f"{len(self.found):5d}  {found.cut}: {verdict}", flush=True)


def main(given: list[str]) -> int:
    """Record, cut, tell."""
    parser = argparse.ArgumentParser(prog="build.py cuts")
    parser.add_argument("--seconds", type=int, default=900)
    parser.add_argument("--arch", choices=tuple(MACHINES), default="arm64")
    parser.add_argument("--worker", action="store_true")
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    own = parser.parse_args(given)
    until = time.monotonic() + own.seconds
    try:
        if wanted := debian.missing(debian.EMULATORS):
            debian.install(wanted)
        image = images.image(ROOT, MACHINES[own.arch])
    except debian.UnobtainableError as error:
        print(f"build.py cuts: {error}")
        return 1
    with power.place() as folder:
        shared = os.path.join(folder, "share")
        os.mkdir(shared)
        share.fill(ROOT, shared)
        job = power.WORKER if own.worker else power.RUNTIME
        recording = power.record(image, shared, folder, job)
        every = recording.cuts()
        print(f"{own.arch}: {len(recording.entries)} writes, flushes and marks, {len(every)} cuts")
        random.Random(own.seed).shuffle(every)
        campaign = Campaign(image, shared, recording, not own.control, until)
        campaign.run(every)
    broken = [each for each in campaign.found if each.broken]
    spent = sum(each.seconds for each in campaign.found) / max(1, len(campaign.found))
    print(
        f"{own.arch}: {len(campaign.found)} of {len(every)} cuts tried, {len(broken)} broke a "
        f"promise{' (control)' * own.control}; {spent:.1f} s each in a guest; --seed {own.seed}"
    )
    return int(bool(broken) != own.control)
