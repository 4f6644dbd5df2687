"""Run in a guest: what a worker's processes hold there, as one line of JSON.

    python3 -m tests.tools.router.workers ZIPAPP [--offers N]

A control plane on loopback is a process beside it. Figures of the worker are KiB over a bare
interpreter of the same guest, under the same flags, that has loaded TLS.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from tests.support import until
from tests.tools import measure
from tests.tools.measure import Memory
from tests.tools.router.processes import NOTHING, children, python_memory, told
from tests.worker import watched
from tests.worker.kit import Plane, WorkerHome

_WITHIN_S = 120.0
_EACH_S = 10.0
_CADENCE_MS = 200


def life(zipapp: str, folder: str, *, offers: int) -> dict[str, Any]:
    """One worker: idle after its first offer, during a launch, after so many more offers."""
    plane = Plane(os.path.join(folder, "plane"))
    program = [measure.PYTHON, *measure.FLAGS, zipapp]
    home = WorkerHome(os.path.join(folder, "worker"), plane, program)
    home.configure(limits={"cadence_ms": _CADENCE_MS})
    try:
        plane.order("secret", ref=watched.ITEM, value="v")
        first = plane.add("echo once")
        pid = home.start()
        plane.await_end(first, _WITHIN_S)
        _settled(home)
        with measure.bare_interpreter(loaded="ssl") as (other, _start):
            bare = measure.memory(other)
        idle = measure.memory(pid)
        child = _launch(plane, pid)
        _settled(home)
        launched = measure.memory(pid)
        _many(plane, offers)
        _settled(home)
        after = measure.memory(pid)
        if home.end() != 0:
            raise RuntimeError(f"the worker did not end well: {home.said()}")
    finally:
        home.kill()
        plane.close()
    return {
        "bare": told(bare),
        "idle": told(idle, bare),
        "child": told(child),
        "launched": told(launched, idle),
        "growth": told(after, launched),
    }


def _settled(home: WorkerHome) -> None:
    """Nothing of an offer is left to do."""
    until(lambda: home.status()["offers"] == [], _WITHIN_S)


def _launch(plane: Plane, pid: int) -> Memory:
    """The most that the child of an offer with a secret holds before it becomes the task.

    It asks the plane for the value itself, over TLS.
    """
    run = plane.add('[ "$SECRET" = v ]', environment=[watched.SECRET])
    peak = NOTHING
    looks = 0

    def ended() -> bool:
        nonlocal peak, looks
        for child in children(pid):
            peak = max(peak, python_memory(child), key=lambda each: each.anonymous)
        looks += 1
        return looks % 20 == 0 and plane.look()["runs"][run] != "dispatching" and _over(plane, run)

    until(ended, _WITHIN_S, what="an offer with a secret")
    if plane.await_end(run)["end"] != "succeeded" or peak == NOTHING:
        raise RuntimeError(f"the offer with a secret: {plane.attempts(run)}, {peak}")
    return peak


def _over(plane: Plane, run: str) -> bool:
    return any(each["end"] is not None for each in plane.attempts(run))


def _many(plane: Plane, offers: int) -> None:
    """Offers one after the other, each with a line in its log."""
    runs = [plane.add("echo hi") for _ in range(offers)]
    until(
        lambda: all(plane.look()["runs"][run] == "succeeded" for run in runs[-1:]),
        _WITHIN_S + _EACH_S * offers,
        what=f"{offers} offers",
    )
    ends = {plane.look()["runs"][run] for run in runs}
    if ends != {"succeeded"}:
        raise RuntimeError(f"offers ended as {sorted(ends)}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("zipapp")
    parser.add_argument("--offers", type=int, default=30)
    own = parser.parse_args()
    with measure.folder(on_memory=True) as folder:
        found = life(own.zipapp, folder, offers=own.offers)
    with measure.folder(on_memory=True) as folder:
        modules = sorted(watched.modules(measure.PYTHON, own.zipapp, folder))
    print(json.dumps({"life": found, "modules": modules}))


if __name__ == "__main__":
    main()
