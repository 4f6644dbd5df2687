"""A worker is watched while it does what workers do: what it imports over a bare interpreter."""

from __future__ import annotations

import os

from tests.support import until
from tests.tools import measure
from tests.worker.kit import Plane, WorkerHome

ITEM = "qlsecret:v1:eyJwcm9qZWN0SWQiOiJwcm9qZWN0LTEiLCJuYW1lIjoiaXRlbS0xIn0"
SECRET = {"name": "SECRET", "kind": "secret", "secretRef": ITEM}
_WITHIN_S = 120.0


def modules(python: str, zipapp: str, folder: str) -> frozenset[str]:
    """It registers, runs an offer with a secret, a log and a deadline, answers `status`, and says
    goodbye."""
    answer = os.path.join(folder, "modules")
    plain = [python, *measure.FLAGS, zipapp]
    plane = Plane(os.path.join(folder, "plane"))
    watched = [python, *measure.FLAGS, "-c", measure.WATCHED, answer, zipapp]
    home = WorkerHome(os.path.join(folder, "worker"), plane, watched)
    try:
        plane.order("secret", ref=ITEM, value="v")
        run = plane.add("echo used", environment=[SECRET], timeoutMs=60_000)
        home.start()
        home.program = plain  # only the resident process is watched
        ended = plane.await_end(run, _WITHIN_S)
        assert ended["end"] == "succeeded", home.said()
        until(lambda: home.status()["offers"] == [], _WITHIN_S)
        assert home.end() == 0, home.said()
        assert plane.look()["session"]["status"] == "offline"
    finally:
        home.kill()
        plane.close()
    with open(answer, encoding="utf-8") as opened:
        return frozenset(opened.read().split("\n"))
