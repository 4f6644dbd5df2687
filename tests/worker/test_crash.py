"""A worker dies before and after every effect from the pull to the receipt's removal.

A sample by default, drawn anew with each seed; `EDGE_PASSES=all` tries everything. The plane lives
on and offers what was lost or failed to start again, as a new attempt under a new offer.
"""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT, until
from tests.worker.kit import Plane, WorkerHome
from tests.worker.victim import named

ALL = os.environ.get("EDGE_PASSES") == "all"
SEED = int(os.environ.get("EDGE_SEED") or time.strftime("%Y%m%d"))
SAMPLE = 24
DIED = 77
ITEM = "qlsecret:v1:eyJwcm9qZWN0SWQiOiJwcm9qZWN0LTEiLCJuYW1lIjoiaXRlbS0xIn0"
SECRET = {"name": "SECRET", "kind": "secret", "secretRef": ITEM}


class Bench:
    """One plane, one home, one victim after the other."""

    def __init__(self, folder: Path) -> None:
        self.marks = folder / "marks"
        self.marks.mkdir()
        self.report = str(folder / "report")
        self.plane = Plane(str(folder / "plane"), lease_ms=5_000, requeue=True)
        self.plane.order("secret", ref=ITEM, value="v")
        self.home = WorkerHome(str(folder / "worker"), self.plane)
        self.home.configure(limits={"cadence_ms": 100, "journal_entries_max": 1_024})

    def add(self) -> str:
        """A run that takes a moment and says where it began and where it ended."""
        return self.plane.add(
            f"echo begin; echo x >> {self.marks}/@ATTEMPT@; sleep 0.1; echo end",
            environment=[SECRET],
        )

    def victim(self, where: str, number: int, effect: str) -> subprocess.Popen[bytes]:
        """A worker that dies at one effect."""
        command = [sys.executable, "-m", "tests.worker.victim", self.home.config, where]
        with open(self.home.log, "ab") as log:
            return subprocess.Popen(
                [*command, str(number), effect, self.report], cwd=ROOT, stdout=log, stderr=log
            )

    def effects(self) -> list[tuple[str, int]]:
        """The lasting effects of a whole run without a death: name, and how manyth of it."""
        run = self.add()
        victim = self.victim("never", 0, "")
        try:
            self.plane.await_end(run)
            until(lambda: self.home.status()["offers"] == [])
        finally:
            victim.terminate()
            victim.wait(20)
        with open(self.report, encoding="utf-8") as opened:
            names = [named(name) for name, lasting in json.load(opened) if lasting]
        seen: Counter[str] = Counter()
        found = []
        for name in names:
            seen[name] += 1
            found.append((name, seen[name]))
        return found

    def case(self, where: str, number: int, effect: str) -> dict[str, Any]:
        """Die there, recover, and tell what the run became."""
        run = self.add()
        victim = self.victim(where, number, effect)
        try:
            until(
                lambda: victim.poll() is not None or self.plane.look()["runs"][run] == "succeeded",
                30,
            )
        finally:
            died = victim.poll() == DIED
            if victim.poll() is None:
                victim.kill()
            victim.wait(20)
        self.home.start()
        try:
            until(lambda: self.plane.look()["runs"][run] == "succeeded", 40, what=where)
            until(lambda: self.home.status()["offers"] == [], 30)
        finally:
            self.home.kill()
        return self.judge(run, died=died)

    def judge(self, run: str, *, died: bool) -> dict[str, Any]:
        """The promises, whatever happened."""
        attempts = self.plane.attempts(run)
        broken = []
        if sum(each["completions"] for each in attempts) != 1:
            broken.append("not exactly one completion")
        for each in attempts:
            mark = self.marks / each["attempt"]
            ran = len(mark.read_text(encoding="ascii").split()) if mark.exists() else 0
            if ran > 1:
                broken.append("two processes of one offer")
            if each["end"] == "start_failed" and ran:
                broken.append("a failed start that ran")
            if not each["completions"]:
                continue
            if base64.b64decode(each["content"]) != b"begin\nend\n":
                broken.append(f"another log: {each['content']}")
            spool = Path(self.home.state, "logs")
            spooled = next(spool.rglob(f"{each['artifact']['logArtifactId']}.log"))
            if spooled.read_bytes() != base64.b64decode(each["content"]):
                broken.append("the spooled log is not the uploaded one")
        receipts = [*Path(self.home.state, "receipts").rglob("*.json")]
        if receipts:
            broken.append("a receipt was left")
        ends = [each["end"] for each in attempts]
        return {"died": died, "ends": ends, "broken": broken}

    def close(self) -> None:
        self.home.kill()
        self.plane.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def test_a_worker_that_dies_at_any_effect_is_followed_by_one_that_knows(bench: Bench) -> None:
    """ADR-0115 verification 7: before and after each effect; exactly one completion, one log."""
    bench.effects()  # what only the very first run of a state does
    effects = bench.effects()
    cases = [(where, *effect) for effect in effects for where in ("before", "after")]
    if not ALL:
        chosen = sorted(random.Random(SEED).sample(range(len(cases)), SAMPLE))
        cases = [cases[number] for number in chosen]
    deaths, ends, broken = 0, Counter[str](), []
    for where, effect, number in cases:
        outcome = bench.case(where, number, effect)
        deaths += outcome["died"]
        ends.update(outcome["ends"])
        told = f"dies {where} {effect} ({number}): {outcome}"
        if outcome["broken"]:
            broken.append(f"EDGE_SEED={SEED} {told}")
        if ALL:
            sys.stderr.write(f"{told}\n")
    assert not broken, "\n".join(broken)
    assert deaths > len(cases) // 2
    # Between the durable `started` and the open gate nobody can tell; that is all that is lost.
    assert ends["lost"] <= len(_UNKNOWABLE), ends


_UNKNOWABLE = (
    "after the commit of started",
    "before the gate",
)
