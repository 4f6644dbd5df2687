"""One case of a pass: a scenario under a plan, then healing, recovery, and the invariants.

A case runs in a guardian, a process of its own that reaps whatever the case leaves behind, and
answers with one value over a pipe. The directory of a slot is made anew from a template each time.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import sqlite3
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from qinglong_edge.system import process
from tests.crash.invariants import ALWAYS, SETTLED, Check, Scene, broken
from tests.crash.scenarios import Scenario
from tests.crash.seam import DIED, Effect, Plan, guard
from tests.crash.stage import (
    HEALED_S,
    HOUR,
    LOG_QUOTA,
    Shift,
    Slot,
    Stage,
    StoppedError,
    alive,
    children,
)
from tests.support import REAP_TRIES

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_GONE_S = 20.0


@dataclass
class Outcome:
    """What became of a case."""

    broken: list[str] = field(default_factory=list)
    report: str = ""
    fired: bool = False
    died: bool = False
    died_again: bool = False
    effects: list[Effect] = field(default_factory=list)
    recovery: list[Effect] = field(default_factory=list)
    states: int = 0


def be_reaper() -> None:
    """Orphans of this process's children become its own."""
    import ctypes  # not every Python has it, and most who import this module need none

    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def apart(work: Callable[[], Any]) -> Any:
    """The value of `work`, done in a process of its own; its exception is raised here."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            tell(writing, work)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as opened:
        told = opened.read()
    os.waitpid(pid, 0)
    if not told:
        raise AssertionError("a guardian ended without a word")
    value, failure = pickle.loads(told)  # noqa: S301 - our own child wrote it
    if failure:
        raise AssertionError(failure)
    return value


def tell(fd: int, work: Callable[[], Any]) -> None:
    """Do the work in this guardian, and tell its value over the pipe."""
    be_reaper()
    process._REAP_TRIES = REAP_TRIES
    try:
        told = (work(), "")
    except BaseException:  # noqa: BLE001 - the parent raises it
        told = (None, traceback.format_exc())
    finally:
        _end_children()
    with os.fdopen(fd, "wb") as opened:
        opened.write(pickle.dumps(told))


def _end_children() -> None:
    """Whatever a case has left behind, and what that leaves behind in turn."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for pid in children():
            if alive(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


# -- the place ------------------------------------------------------------------------------------


def make_template(slot: Slot, scenario: Scenario) -> None:
    """The state that a scenario begins with; kept beside the slot."""
    reset(slot, None)
    if scenario.founded:
        stage = Stage(slot, Plan(), Shift())
        stage.plan.armed = False
        stage.found()
        with stage.owned():
            stage.define(*scenario.tasks)
    shutil.rmtree(template(slot, scenario), ignore_errors=True)
    shutil.copytree(slot.folder, template(slot, scenario))


def template(slot: Slot, scenario: Scenario) -> str:
    """Where a scenario's template stands."""
    return f"{slot.folder}.{scenario.name}"


def reset(slot: Slot, scenario: Scenario | None) -> None:
    """The slot as a scenario begins; without one, empty but for the noise."""
    shutil.rmtree(slot.folder, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{slot.folder}.report")
    if scenario is not None:
        shutil.copytree(template(slot, scenario), slot.folder)
        return
    os.makedirs(slot.folder)
    with open(slot.noise, "wb") as opened:
        opened.write(b"".join(b"%07d\n" % number for number in range(LOG_QUOTA // 8 + 100)))


# -- watching -------------------------------------------------------------------------------------


def _descriptors() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


def _leaks(before: dict[int, str], plan: Plan) -> Iterator[str]:
    """Descriptors that are open and were not, own children that nobody has collected."""
    now = _descriptors()
    extra = {fd: name for fd, name in now.items() if fd not in before and "/proc/" not in name}
    if extra:
        yield f"descriptors are left open: {extra}"
    mine = set(children())
    left = [pid for pid in plan.forked if pid in mine]
    if left:
        yield f"children are left uncollected: {left}"


def _living() -> list[str]:
    deadline = time.monotonic() + _GONE_S
    while (left := [pid for pid in children() if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.002)
    return [f"processes are left: {left}"] if left else []


# -- one case -------------------------------------------------------------------------------------


class Case:
    """One scenario on one slot, in the guardian."""

    def __init__(self, slot: Slot, scenario: Scenario, *, other_boot: bool = False) -> None:
        self.slot = slot
        self.scenario = scenario
        self.shift = Shift()
        self.other_boot = other_boot
        self.proofs: list[str] = []

    def stage(self, plan: Plan) -> Stage:
        """A stage on the slot."""
        return Stage(self.slot, plan, self.shift, other_boot=self.other_boot)

    def play(self, stage: Stage) -> None:
        """The scenario, as far as it gets; what leaves the loop is a broken promise."""
        try:
            self.scenario.play(stage)
        except StoppedError:
            pass
        except Exception:  # noqa: BLE001 - whatever it is, it is the finding
            self.proofs.append(f"an exception ended the owner\n{traceback.format_exc()}")
            with contextlib.suppress(Exception):
                stage.close()

    def settle(self, stage: Stage) -> int:
        """Heal is done: recover, run until quiet, run once more, clean up.

        The number of effects until quiet.
        """
        stage.release()
        try:
            return self._settle(stage)
        except StoppedError as error:
            self.proofs.append(f"a healed machine has no owner: {error}")
        except Exception:  # noqa: BLE001 - as above
            self.proofs.append(f"an exception ended the next owner\n{traceback.format_exc()}")
            with contextlib.suppress(Exception):
                stage.close()
        return len(stage.plan.effects)

    def _settle(self, stage: Stage) -> int:
        if not self.scenario.founded:
            stage.found()
        with stage.owned() as runtime:
            stage.define(*self.scenario.tasks)
            quiet = stage.drive(stage.idle, jumps=40, within_s=HEALED_S)
            effects = len(stage.plan.effects)
            if not quiet:
                holds = [
                    (active.run.number, active.hold) for active in runtime.coordinator.registry
                ]
                self.proofs.append(
                    f"no rest: held {holds}, {runtime.dispatcher.waiting} wait: "
                    f"{runtime.degraded()}"
                )
            runtime.scheduler.close()
            before = self.slot.effects()
            stage.start("plain")
            stage.drive(stage.idle, jumps=3, within_s=HEALED_S)
            if self.slot.effects() != before + 1:
                self.proofs.append("a further run is not admitted, launched and ended")
            stage.jump(25 * HOUR)
            for _ in range(3):
                runtime.sweep.run_once()
            stage.collect()
        return effects

    def twice(self) -> None:
        """A second recovery has nothing to do."""
        plan = Plan()
        with guard(plan):
            stage = self.stage(plan)
            stage.open(admit=False)
            stage.close()
        if plan.done:
            self.proofs.append(f"a second recovery is not idle: {plan.done}")

    def look(self, checks: tuple[Check, ...], **known: Any) -> list[str]:
        """The invariants on a copy of the database, so that no owner's lock is touched."""
        effects = self.slot.effects()
        copy = f"{self.slot.folder}.copy"
        shutil.rmtree(copy, ignore_errors=True)
        os.makedirs(copy)
        found = os.path.join(self.slot.state, "edge.db")
        for suffix in ("", "-wal", "-journal"):
            if os.path.exists(found + suffix):
                shutil.copy(found + suffix, copy)
        database = None
        if self.scenario.founded or os.path.exists(os.path.join(self.slot.state, "config.json")):
            database = sqlite3.connect(os.path.join(copy, "edge.db"))
        try:
            scene = Scene(
                slot=self.slot,
                database=database,
                scenario=self.scenario,
                effects=effects,
                proofs=self.proofs,
                **known,
            )
            return broken(scene, checks)
        finally:
            if database is not None:
                database.close()


def refuse(slot: Slot, scenario: Scenario, plan: Plan) -> Outcome:
    """Pass A: an effect fails; afterwards the machine is healed."""
    reset(slot, scenario)
    case = Case(slot, scenario)
    before = _descriptors()
    plan.here()
    with guard(plan):
        stage = case.stage(plan)
        case.play(stage)
        plan.armed = False
        case.settle(stage)
        case.twice()
    case.proofs += _leaks(before, plan)
    case.proofs += _living()
    return Outcome(
        broken=case.look(SETTLED), report=plan.report(), fired=plan.fired, effects=plan.effects
    )


def _dying(case: Case, plan: Plan, work: Callable[[Stage], object]) -> bool:
    """Live in a process that dies where its plan says so; True if it did."""
    report = f"{case.slot.folder}.report"
    pid = os.fork()
    if pid == 0:
        status = 0
        try:
            be_reaper()
            plan.here()
            plan.report_path = report
            with guard(plan):
                work(case.stage(plan))
            if case.proofs:
                plan.write_report("\n".join(case.proofs))
                status = 1
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status not in (0, DIED):
        with open(report, encoding="utf-8") as opened:
            case.proofs.append(f"the owner ended otherwise than by its plan: {opened.read()}")
    return status == DIED


def die(
    slot: Slot, scenario: Scenario, plan: Plan, again: Plan | None = None, *, pause: bool = False
) -> Outcome:
    """Pass B: the owner dies; pass D: the next one dies too while it recovers.

    With `pause` the next owner comes only after all processes of the first one have ended.
    """
    reset(slot, scenario)
    case = Case(slot, scenario)
    died = _dying(case, plan, case.play)
    if pause:
        case.stage(Plan()).wait_for_processes()
    found = case.look(ALWAYS)
    died_again = False
    if again is not None:
        died_again = _dying(case, again, case.settle)
        found += case.look(ALWAYS)
    quiet = Plan()
    with guard(quiet):
        stage = case.stage(quiet)
        count = case.settle(stage)
        case.twice()
    case.proofs += _living()
    found += case.look(SETTLED)
    report = ""
    if found and os.path.exists(f"{slot.folder}.report"):
        with open(f"{slot.folder}.report", encoding="utf-8") as opened:
            report = opened.read()
    return Outcome(
        broken=list(dict.fromkeys(found)),
        report=report,
        died=died,
        died_again=died_again,
        recovery=quiet.effects[:count],
    )
