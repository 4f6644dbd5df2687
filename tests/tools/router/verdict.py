"""Run in a guest: is everything that was acknowledged there, and nothing doubled, after a cut?

    python3 -m tests.tools.router.verdict ZIPAPP [jffs2|ubifs]

Reads one line of JSON for each disk, the marks that had been heard before its cut; answers one line
of JSON with the broken promises. The disk is /dev/vdb, or a flash chip with the named file system;
the next owner finds another boot id, for the guest that wrote it is another one.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.crash import invariants
from tests.crash.invariants import Scene
from tests.crash.scenarios import SCENARIOS
from tests.crash.stage import Slot
from tests.tools.measure import Daemon, Product
from tests.tools.router import processes
from tests.tools.router.flash import PLACE, Flash
from tests.tools.router.judging import Disk, Judge, Marks, Mountable, judge
from tests.tools.router.scenario import EXIT, LIMITS

_WITHIN_S = 60.0
_SETTLED = (
    *invariants.ALWAYS,
    invariants.every_run_has_ended,
    invariants.what_ran_to_its_end_is_recorded,
    invariants.no_success_is_invented,
    invariants.a_promised_receipt_is_believed,
)


class _Slot(Slot):
    """The state on the cut disk; what tests add to a slot stands on the guest's own memory."""

    @property
    def state(self) -> str:
        return f"{PLACE}/state"


class Verdict(Judge):
    """What a daemon that starts on it finds, and makes of it."""

    def __init__(self, product: Product, disk: Mountable, marks: Marks) -> None:
        super().__init__(disk, marks)
        self._product = product
        self._slot = _Slot("/tmp/slot")
        self._state = self._slot.state

    def _give(self) -> None:
        begun = os.path.exists(os.path.join(self._state, "config.json"))
        if begun:
            self._look(invariants.ALWAYS, "before the start")
        elif self._acked("init"):
            self.broken.append("the state that `init` made is gone")
        if not (begun and self._acked("init")):
            self._product.init(self._state)
        self._fit()
        with self._product.daemon(self._state) as daemon:
            self._quiet(daemon)
            deadline = time.monotonic() + _WITHIN_S
            while processes.busy(daemon) and time.monotonic() < deadline:
                time.sleep(0.05)
            self.broken += self._kept(daemon)
            self.broken += self._goes_on(daemon)
        self._look(_SETTLED, "after it")

    def _quiet(self, daemon: Daemon) -> None:
        """No trigger starts a run that this look would end in the middle of."""
        for task in daemon.call("task.list")["tasks"]:
            daemon.call("task.set", name=task["task"], cron=[])

    def _fit(self) -> None:
        """The small disk's limits, which a person sets and a cut may have lost."""
        path = os.path.join(self._state, "config.json")
        with open(path, encoding="utf-8") as opened:
            config = json.load(opened)
        config["limits"] = LIMITS
        with open(path, "w", encoding="utf-8") as opened:
            json.dump(config, opened)

    def _acked(self, what: str) -> list[dict[str, Any]]:
        return [mark for mark in self._marks if mark.get("ack") == what]

    def _kept(self, daemon: Daemon) -> Iterator[str]:
        """Everything that somebody had been told, and every effect once."""
        tasks = {task["task"] for task in daemon.call("task.list")["tasks"]}
        for mark in self._acked("task"):
            if mark["name"] not in tasks:
                yield f"the task {mark['name']} is gone"
        for mark in self._acked("admitted"):
            yield from _same(daemon, mark["run"], {"task": mark["name"]})
        for mark in self._acked("ended"):
            wanted = {"status": mark["status"], "exit_code": mark["exit_code"]}
            yield from _same(daemon, mark["run"], wanted)
        effects = Counter(mark["effect"] for mark in self._marks if "effect" in mark)
        for name, count in effects.items():
            runs = daemon.call("runs.list", task=name, limit=100)["runs"] if name in tasks else []
            launched = [run for run in runs if run["started_at_ms"] is not None]
            if count > len(launched):
                yield f"{name} did its work {count} times in {len(launched)} recorded runs"

    def _goes_on(self, daemon: Daemon) -> Iterator[str]:
        """A further run is admitted, launched and ended."""
        daemon.call("task.add", name="further", shell=f"exit {EXIT}", log=False)
        ended = daemon.run("further")
        if (ended["status"], ended["exit_code"]) != ("failed", EXIT):
            yield f"a further run ended as {ended['status']} with {ended['exit_code']}"

    def _look(self, checks: tuple[invariants.Check, ...], when: str) -> None:
        """The invariants on a copy of the database."""
        shutil.rmtree(self._slot.folder, ignore_errors=True)
        os.makedirs(self._slot.folder)
        with open(self._slot.noise, "wb"):
            pass
        copy = os.path.join(self._slot.folder, "edge.db")
        for suffix in ("", "-wal", "-journal"):
            found = os.path.join(self._state, f"edge.db{suffix}")
            if os.path.exists(found):
                shutil.copy(found, f"{copy}{suffix}")
        database = sqlite3.connect(copy)
        promised = frozenset(mark["attempt"] for mark in self._acked("receipt"))
        try:
            scene = Scene(
                slot=self._slot,
                database=database,
                scenario=SCENARIOS["left"],
                effects=0,
                cut=True,
                promised=promised,
            )
            self.broken += [f"{when}: {said}" for said in invariants.broken(scene, checks)]
        finally:
            database.close()


def _same(daemon: Daemon, run: str, wanted: dict[str, object]) -> Iterator[str]:
    try:
        found = daemon.call("run.show", run=run)["run"]
    except RuntimeError as error:
        yield f"run {run} is gone: {error}"
        return
    different = {key: found[key] for key in wanted if found[key] != wanted[key]}
    if different:
        yield f"run {run} was said to be {wanted} and is {different}"


def main(zipapp: str, kind: str | None = None) -> None:
    """One disk after the other, until an empty line."""
    product = Product(zipapp)
    disk = Disk() if kind is None else Flash(kind)
    judge(lambda marks: Verdict(product, disk, marks))


if __name__ == "__main__":
    main(*sys.argv[1:])
