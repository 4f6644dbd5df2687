"""Run in a guest: does a worker converge after a cut, with nothing done twice and no log made up?

    python3 -m tests.tools.router.worker_verdict ZIPAPP

Reads one line of JSON for each disk, the marks that had been heard before its cut, the plane's
books among them; answers one line of JSON with the broken promises. The plane goes on with those
books, and the clock is set to a while after the cut: some leases have run out by then, some not.
"""

from __future__ import annotations

import base64
import hashlib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support import until
from tests.tools.router import worker_scenario as scenario
from tests.tools.router.flash import PLACE
from tests.tools.router.judging import Disk, Judge, Marks, Mountable, judge
from tests.tools.router.worker_scenario import EFFECTS, GO, QUOTA, Stage

STATE = f"{PLACE}/state"
_OUTAGE_MS = 40_000  # leases had 40 to 60 s left, the session 35 to 45
_WITHIN_S = 120.0
_OPEN = ("queued", "dispatching")


class Verdict(Judge):
    """What a worker that starts on it makes of it, and what its plane has heard of that."""

    def __init__(self, stage: Stage, disk: Mountable, marks: Marks) -> None:
        super().__init__(disk, marks)
        self._stage = stage

    def _said(self) -> str:
        return f"; it said {self._stage.home.said()[-2_000:]}"

    def _end(self) -> None:
        self._stage.home.kill()

    def _give(self) -> None:
        stage = self._stage
        self._begin()
        stage.home.start()
        until(self._over, _WITHIN_S, what="the end of every run")
        further = stage.add(scenario.text())
        until(self._over, _WITHIN_S, what="the end of a further run")
        stage.settled()
        if stage.home.end() != 0:
            self.broken.append("the worker does not end well")
        looked = stage.plane.look()
        if looked["runs"][further] != "succeeded":
            self.broken.append(f"a further run ended as {looked['runs'][further]}")
        self.broken += self._kept(looked)
        if "Traceback" in stage.home.said():
            self.broken.append(f"an exception left the loop: {stage.home.said()[-2_000:]}")

    def _begin(self) -> None:
        """The plane knows what it said; nothing in memory is left of an earlier disk."""
        books = [mark for mark in self._marks if "books" in mark]
        self._stage.plane.order("restore", books=books[-1]["books"] if books else None)
        if books:
            at_ms = books[-1]["at_ms"] + _OUTAGE_MS
            time.clock_settime(time.CLOCK_REALTIME, at_ms / 1_000)
        for path in (EFFECTS, GO, self._stage.home.log):
            with open(path, "wb"):
                pass

    def _over(self) -> bool:
        runs = self._stage.plane.look()["runs"]
        return not any(status in _OPEN for status in runs.values())

    def _kept(self, looked: dict[str, Any]) -> Iterator[str]:
        """Every promise about processes, completions and logs."""
        effects = Counter(mark["effect"] for mark in self._marks if "effect" in mark)
        with open(EFFECTS, encoding="ascii") as opened:
            effects.update(opened.read().split())
        completed: Counter[str] = Counter()
        for each in looked["attempts"]:
            name, count = each["attempt"], effects.pop(each["attempt"], 0)
            completed[each["run"]] += each["completions"]
            if each["end"] is None:
                yield f"{name} has no end"
            if count > 1:
                yield f"{name} became {count} processes"
            if each["end"] == "start_failed" and count:
                yield f"{name} is said to have failed to start, and ran"
            if each["completions"]:
                yield from _log(name, each, ran=bool(count))
        if effects:
            yield f"nobody knows of the attempts {sorted(effects)}"
        wrong = {run: completed[run] for run in looked["runs"] if completed[run] != 1}
        if wrong:
            yield f"completions that were accepted: {wrong}"
        done = {f"{each['attempt']}.json" for each in looked["attempts"] if each["completions"]}
        left = done.intersection(path.name for path in Path(STATE, "receipts").rglob("*.json"))
        if left:  # one of an attempt that was lost goes with its log, later
            yield f"receipts of completed attempts were left: {left}"


def _log(name: str, attempt: dict[str, Any], *, ran: bool) -> Iterator[str]:
    """The log of an attempt that was completed is with the plane, byte for byte as in the spool."""
    content = base64.b64decode(attempt["content"])
    found = [*Path(STATE, "logs").rglob(f"{attempt['artifact']['logArtifactId']}.log")]
    if len(found) != 1:
        yield f"the log of {name} is {len(found)} times in the spool"
    elif hashlib.sha256(spooled := found[0].read_bytes()).hexdigest() != attempt["sha256"]:
        length = attempt["artifact"]["byteLength"]
        yield f"the log of {name} has {len(spooled)} bytes, and {length} were uploaded"
    whole = content == b"begin\nend\n" or (
        len(content) == QUOTA and attempt["artifact"]["truncated"] is not False
    )
    if not (ran and whole):
        yield f"{name} was completed with {content[:40]!r} after {int(ran)} processes"


def main(zipapp: str) -> None:
    """One disk after the other, until an empty line."""
    stage = Stage(zipapp, STATE)
    try:
        judge(lambda marks: Verdict(stage, Disk(), marks))
    finally:
        stage.close()


if __name__ == "__main__":
    os.umask(0o077)
    main(sys.argv[1])
