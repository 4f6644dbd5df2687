"""Run in a guest: a worker's job on a disk whose writes are recorded, beside a plane that keeps.

    python3 -m tests.tools.router.worker_scenario ZIPAPP STATE

Every command marks the effect of its attempt; they run one at a time, for two marks at once would
be one write of the disk. The last line printed is the number of runs.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from tests.support import until
from tests.tools import measure
from tests.tools.router.marks import effect
from tests.worker import watched
from tests.worker.kit import Plane, WorkerHome

EXIT = 7
QUOTA = 65_536
LEASE_MS = 60_000  # an emulated router on a busy machine is slow to start a worker again
EFFECTS, GO = "/tmp/effects", "/tmp/go"
_HELD = "/tmp/held"
_WITHIN_S = 180.0


def text(*, before: str = "", status: int = 0) -> str:
    """What a command does: its effect is marked, and counted in the guest that it happens in."""
    effects = f"echo @ATTEMPT@ >>{EFFECTS}; {effect('@ATTEMPT@')}"
    return f"echo begin; {effects}; {before}echo end; exit {status}"


class Stage:
    """A plane, and one worker with its state on the disk."""

    def __init__(self, zipapp: str, state: str) -> None:
        self.plane = Plane(
            "/tmp/plane", lease_ms=LEASE_MS, requeue=True, module="tests.tools.router.plane"
        )
        self.plane.order("secret", ref=watched.ITEM, value="v")
        self.home = WorkerHome("/tmp/worker", self.plane, [measure.PYTHON, *measure.FLAGS, zipapp])
        self.home.state = state
        limits = {"cadence_ms": 200, "log_quota_bytes": QUOTA}
        self.home.configure(state=state, limits=limits)

    def add(self, command: str, **spec: Any) -> str:
        """One more run."""
        return self.plane.add(command, **spec)

    def ended(self, *runs: str) -> None:
        """These runs have come to their ends."""
        for run in runs:
            self.plane.await_end(run, _WITHIN_S)

    def settled(self) -> None:
        """Nothing of an offer is left to do."""
        until(lambda: self.home.status()["offers"] == [], _WITHIN_S, what=self.home.said()[-2_000:])

    def hold(self) -> str:
        """A run whose command waits for `go` is at work."""
        run = self.add(text(before=f": >{_HELD}; while [ ! -e {GO} ]; do sleep 0.1; done; "))
        until(lambda: os.path.exists(_HELD), _WITHIN_S, what=self.home.said()[-2_000:])
        until(lambda: self.plane.attempts(run)[-1]["status"] == "running", _WITHIN_S)
        os.unlink(_HELD)
        return run

    def close(self) -> None:
        """The processes of both."""
        self.home.kill()
        self.plane.close()


def play(stage: Stage) -> int:
    """The job, one thing after the other; the number of runs."""
    stage.home.start()
    stage.ended(stage.add(text()))
    noise = f"head -c {2 * QUOTA} /dev/zero | tr '\\0' x; "
    several = [
        stage.add(text(before='[ "$SECRET" = v ]; '), environment=[watched.SECRET]),
        stage.add(text(before=noise)),
        stage.add(text(status=EXIT)),
    ]
    stage.ended(*several)
    held = stage.hold()
    stage.home.kill()
    stage.home.start()  # it adopts what the killed one has left
    _go()
    stage.ended(held)
    os.unlink(GO)
    held = stage.hold()
    stage.home.kill()
    _go()  # nobody listens: the receipt is left as a file
    until(lambda: _receipts(stage.home.state), _WITHIN_S)
    stage.home.start()
    stage.ended(held)
    stage.settled()
    if stage.home.end() != 0:
        raise RuntimeError(f"the worker did not end well: {stage.home.said()}")
    looked = stage.plane.look()
    ends = sorted(looked["runs"].values())
    if len(looked["attempts"]) != len(ends):
        raise RuntimeError(f"a run was begun again: {looked['attempts']}")
    if ends != ["failed", *["succeeded"] * (len(ends) - 1)]:
        raise RuntimeError(f"the runs ended as {ends}")
    return len(ends)


def _go() -> None:
    with open(GO, "w", encoding="ascii"):
        pass


def _receipts(state: str) -> bool:
    place = os.path.join(state, "receipts")
    return any(name.endswith(".json") for _, _, names in os.walk(place) for name in names)


def main(zipapp: str, state: str) -> None:
    """Play."""
    stage = Stage(zipapp, state)
    try:
        runs = play(stage)
    finally:
        stage.close()
    print(json.dumps({"runs": runs}))


if __name__ == "__main__":
    main(*sys.argv[1:])
