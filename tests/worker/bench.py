"""One plane, one home, and one worker after the other that is hit at one effect."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import ROOT, until
from tests.worker.kit import Plane, WorkerHome
from tests.worker.victim import FIRED, HEALED, named

DIED = 77
ITEM = "qlsecret:v1:eyJwcm9qZWN0SWQiOiJwcm9qZWN0LTEiLCJuYW1lIjoiaXRlbS0xIn0"
SECRET = {"name": "SECRET", "kind": "secret", "secretRef": ITEM}
_SETTLES_S = 90  # leases of five seconds, several of them, and much else to do
_FAILING_S = 0.5  # how long a fault for ever lasts, once it was met


class Seen(NamedTuple):
    """One effect of a whole run: its name, how manyth of it, what it can fail with."""

    name: str
    number: int
    possible: tuple[str, ...]
    lasting: bool


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

    def effects(self) -> list[Seen]:
        """Every effect of a whole run to which nothing happens."""
        run = self.add()
        victim = self.victim("never", 0, "")
        try:
            self.plane.await_end(run)
            until(lambda: self.home.status()["offers"] == [])
        finally:
            victim.terminate()
            victim.wait(60)
        with open(self.report, encoding="utf-8") as opened:
            report = json.load(opened)
        seen: Counter[str] = Counter()
        found = []
        for full, possible, lasting in report:
            name = named(full)
            seen[name] += 1
            found.append(Seen(name, seen[name], tuple(possible), lasting))
        return found

    def case(self, where: str, number: int, effect: str) -> dict[str, Any]:
        """Die there, recover, and tell what the run became."""
        run = self.add()
        victim = self.victim(where, number, effect)
        try:
            until(
                lambda: victim.poll() is not None or self.plane.look()["runs"][run] == "succeeded",
                _SETTLES_S,
            )
        finally:
            died = victim.poll() == DIED
            if victim.poll() is None:
                victim.kill()
            victim.wait(60)
        self.home.start()
        try:
            until(lambda: self.plane.look()["runs"][run] == "succeeded", _SETTLES_S, what=where)
            until(lambda: self.home.status()["offers"] == [], _SETTLES_S)
        finally:
            self.home.kill()
        return self.judge(run, died=died)

    def refusal(self, code: str, seen: Seen, *, for_ever: bool) -> dict[str, Any]:
        """Fail there, once or until the machine heals; what the run became without a restart."""
        fired, healed = Path(self.report + FIRED), Path(self.report + HEALED)
        for path in (fired, healed):
            path.unlink(missing_ok=True)
        said = len(self.home.said())
        run = self.add()
        victim = self.victim(code + "!" * for_ever, seen.number, seen.name)
        try:
            if for_ever:
                self._await_failing(run, victim, fired)
                healed.touch()
            alone = self._settles(run, victim)
        finally:
            victim.send_signal(signal.SIGTERM)
            status = victim.wait(60)
        if not alone:
            self.home.start()
            try:
                self._settles(run, None)
            finally:
                self.home.kill()
        outcome = self.judge(run, died=False)
        told = self.home.said()[said:]
        if not alone:
            outcome["broken"].append(f"it did not go on by itself: {told}")
        if status or "Traceback" in told:
            outcome["broken"].append(f"an exception left the loop: {status} {told}")
        return {**outcome, "fired": fired.exists()}

    def _await_failing(self, run: str, victim: subprocess.Popen[bytes], fired: Path) -> None:
        until(lambda: fired.exists() or victim.poll() is not None or self._ended(run), 60)
        give_up = time.monotonic() + _FAILING_S
        until(lambda: time.monotonic() > give_up or victim.poll() is not None, 30)

    def _ended(self, run: str) -> bool:
        succeeded: bool = self.plane.look()["runs"][run] == "succeeded"
        return succeeded

    def _settles(self, run: str, victim: subprocess.Popen[bytes] | None) -> bool:
        """Whether the run ends, and nothing of it holds a place or leaves a receipt."""
        give_up = time.monotonic() + _SETTLES_S
        while time.monotonic() < give_up:
            if victim is not None and victim.poll() is not None:
                return False
            if self._ended(run) and self.home.status()["offers"] == []:
                return True
            time.sleep(0.05)
        return False

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
