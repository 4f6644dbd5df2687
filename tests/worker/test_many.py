"""Many offers, and a worker that is killed again and again: every run ends once and for all.

`EDGE_WORKER_OFFERS=200` is the whole command with thirty kills; without it fewer of both.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.worker.kit import Plane, WorkerHome

OFFERS = int(os.environ.get("EDGE_WORKER_OFFERS") or 60)
KILLS = 30 if OFFERS >= 200 else 9
SEED = int(os.environ.get("EDGE_SEED") or time.strftime("%Y%m%d"))
QUOTA = 65_536
ITEM = "qlsecret:v1:eyJwcm9qZWN0SWQiOiJwcm9qZWN0LTEiLCJuYW1lIjoiaXRlbS0xIn0"
ENDS = {"cancel": "cancelled", "late": "timed_out"}


def kind_of(number: int) -> str:
    return ("plain", "fail", "much", "cancel", "late", "secret", "plain", "slow", "fail", "much")[
        number % 10
    ]


def spec(number: int, marks: Path) -> dict[str, Any]:
    once = f"echo {number} >> {marks}/@ATTEMPT@; "
    kind = kind_of(number)
    if kind == "fail":
        return {"text": f"{once}echo failing; exit {1 + number % 7}"}
    if kind == "much":
        return {"text": f"{once}head -c 100000 /dev/zero | tr '\\0' x"}
    if kind == "cancel":
        return {"text": f"{once}echo waiting; sleep 300"}
    if kind == "late":
        return {"text": f"{once}echo waiting; sleep 300", "timeoutMs": 1_000}
    if kind == "secret":
        binding = {"name": "SECRET", "kind": "secret", "secretRef": ITEM}
        return {"text": f"{once}echo ${{#SECRET}}", "environment": [binding]}
    return {"text": f"{once}echo run {number}; sleep {0.5 if kind == 'slow' else 0}"}


class Story:
    """The runs of one test, and the orders that they need."""

    def __init__(self, plane: Plane, marks: Path) -> None:
        self.plane = plane
        self.runs: dict[str, int] = {}
        self.stopped: set[str] = set()
        for number in range(OFFERS):
            given = spec(number, marks)
            self.runs[plane.add(given.pop("text"), **given)] = number

    def step(self) -> bool:
        """Cancel what runs and is to be cancelled; True once every run has ended."""
        looked = self.plane.look()
        for attempt in looked["attempts"]:
            wanted = kind_of(self.runs[attempt["run"]]) == "cancel"
            runs = attempt["end"] is None and attempt["status"] == "running"
            if wanted and runs and attempt["attempt"] not in self.stopped:
                self.stopped.add(attempt["attempt"])
                self.plane.order("stop", run=attempt["run"], why="user")
        open_states = ("queued", "dispatching")
        return not any(status in open_states for status in looked["runs"].values())


def test_every_run_ends_once_however_often_the_worker_is_killed(
    tmp_path: Path,
) -> None:
    """No offer becomes two processes, no completion comes without its very log."""
    marks = tmp_path / "marks"
    marks.mkdir()
    plane = Plane(str(tmp_path / "plane"), lease_ms=8_000, requeue=True)
    home = WorkerHome(str(tmp_path / "worker"), plane)
    limits = {"log_quota_bytes": QUOTA, "journal_entries_max": 1_024, "retention_ms": 2_592_000_000}
    home.configure(maxConcurrentRuns=4, limits=limits)
    plane.order("secret", ref=ITEM, value="hidden")
    chance = random.Random(SEED)
    try:
        story = Story(plane, marks)
        begun = time.monotonic()
        home.start()
        for _ in range(KILLS):
            until = time.monotonic() + chance.uniform(0.1, 2.0)
            while time.monotonic() < until:
                story.step()
                time.sleep(0.02)
            home.kill()
            home.start()
        while not story.step():
            assert time.monotonic() - begun < 60 + 4 * OFFERS, plane.look()
            time.sleep(0.1)
        check(plane, home, story, marks)
    finally:
        home.kill()
        plane.close()


def check(plane: Plane, home: WorkerHome, story: Story, marks: Path) -> None:
    looked = plane.look()
    completed = [each for each in looked["attempts"] if each["completions"]]
    assert len(completed) == OFFERS, f"EDGE_SEED={SEED}"
    assert Counter(each["run"] for each in completed).most_common(1)[0][1] == 1
    assert {each["completions"] for each in completed} == {1}
    for each in completed:
        number = story.runs[each["run"]]
        kind = kind_of(number)
        wanted = {"fail": "failed", **ENDS}.get(kind, "succeeded")
        assert each["end"] == wanted, (number, kind, each)
        spooled = next(Path(home.state, "logs").rglob(f"{each['artifact']['logArtifactId']}.log"))
        data = spooled.read_bytes()
        assert hashlib.sha256(data).hexdigest() == each["artifact"]["sha256"], (kind, each)
        assert each["artifact"]["byteLength"] == len(data)
        if kind == "much":
            assert len(data) == QUOTA
            assert each["artifact"]["truncated"] is not False
    for path in marks.iterdir():
        assert len(path.read_text(encoding="ascii").split()) == 1, path.name
    deadline = time.monotonic() + 60
    while home.status()["offers"]:
        assert time.monotonic() < deadline, home.status()
        time.sleep(0.2)
    ends = Counter(each["end"] for each in looked["attempts"])
    told = f"{OFFERS} runs, {KILLS} kills, attempts by end: {dict(ends)}"
    sys.stderr.write(f"\n{told}\nrefused by the plane: {dict(Counter(looked['refused']))}\n")
