"""Seven pieces of the product, each taken away, and the promise that breaks without it.

    python -m tests.crash.mutations NAME

prints as JSON which invariants are broken with the piece and without it. The pieces are taken away
in this process only.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

from qinglong_edge.core.canonical import sha256_hex
from qinglong_edge.core.evidence import ALIVE, Target, Verdict
from qinglong_edge.core.receipt import Receipt
from qinglong_edge.execution.active import Active
from qinglong_edge.execution.coordinator import Coordinator
from qinglong_edge.process import wrapper
from qinglong_edge.process.identity import Inspector
from qinglong_edge.system import child, files
from tests.crash import cases, power
from tests.crash.cases import Case
from tests.crash.invariants import ALWAYS, no_success_is_invented
from tests.crash.passes import place
from tests.crash.scenarios import SCENARIOS, Scenario
from tests.crash.seam import DIED, Double, Plan, guard
from tests.crash.stage import HOUR, Slot, Stage, StoppedError

Broken = list[str]


# -- what is taken away ---------------------------------------------------------------------------


@contextlib.contextmanager
def no_directory_sync() -> Iterator[None]:
    """`publish` links and does not sync the directory."""
    real = files.Files.sync_directory

    def sync(self: files.Files, path: str) -> None:
        if sys._getframe(1).f_code.co_name != "publish":
            real(self, path)

    with mock.patch.object(files.Files, "sync_directory", sync):
        yield


@contextlib.contextmanager
def no_directory_sync_of_the_wrapper() -> Iterator[None]:
    """The wrapper does not either."""
    text = wrapper._packaged().replace(b'  "$QL3_SYNC" "${3%/*}"\n', b"")
    with (
        mock.patch.object(wrapper, "_packaged", return_value=text),
        mock.patch.object(wrapper, "WRAPPER_SHA256", sha256_hex(text)),
    ):
        yield


def no_gate() -> Any:
    """The child does not wait for the word."""
    return mock.patch.object(child, "_await_go")


def no_mark() -> Any:
    """Every command counts as begun."""
    return mock.patch.object(child.Child, "marked", return_value=True)


@contextlib.contextmanager
def no_identity_before_kill() -> Iterator[None]:
    """A KILL follows a TERM without another look."""
    real = Inspector.inspect

    def inspect(self: Inspector, target: Target) -> Verdict:
        if sys._getframe(1).f_locals.get("number") == signal.SIGKILL:
            return Verdict(state=ALIVE)
        return real(self, target)

    with mock.patch.object(Inspector, "inspect", inspect):
        yield


@contextlib.contextmanager
def acknowledged_before_the_commit() -> Iterator[None]:
    """The wrapper is told first, then the receipt is committed."""
    real = Coordinator._end_by_receipt

    def end(self: Coordinator, active: Active, receipt: Receipt) -> bool:
        if active.launch is not None:
            active.launch.acknowledge()
        return real(self, active, receipt)

    with mock.patch.object(Coordinator, "_end_by_receipt", end):
        yield


@contextlib.contextmanager
def no_exit_of_the_child() -> Iterator[None]:
    """A launch child that will not run goes back into the frames that it was forked in."""

    def unwind(status: int) -> None:
        raise SystemExit(status)

    with mock.patch.object(child, "os", Double(os, _exit=unwind)):
        yield


def no_lock() -> Any:
    """The owner lock is opened and not taken."""
    return mock.patch.object(files, "fcntl", Double(fcntl, flock=lambda _fd, _operation: None))


# -- where it shows -------------------------------------------------------------------------------


def publishing(slot: Slot) -> Broken:
    """Every power cut of a publication by Python."""
    return power.cut(_ready(slot, "published"), None, 0.0, slot).broken


def leaving(slot: Slot) -> Broken:
    """Every power cut of a publication by the wrapper."""
    return power.cut(_ready(slot, "left"), None, 0.0, slot).broken


def dying_at_the_barrier(slot: Slot) -> Broken:
    """The owner dies before the COMMIT that makes the start durable."""
    return _dying_before_commit(slot, 1)


def dying_at_the_end(slot: Slot) -> Broken:
    """The owner dies before the COMMIT that records the receipt."""
    return _dying_before_commit(slot, 2)


def _dying_before_commit(slot: Slot, which: int) -> Broken:
    scenario = _ready(slot, "heard")
    effects = cases.refuse(slot, scenario, Plan()).effects
    numbers = [n for n, effect in enumerate(effects, 1) if effect.name.endswith("COMMIT")]
    return cases.die(slot, scenario, Plan(die_before=numbers[which - 1]), pause=True).broken


def starting_a_shell_that_does_nothing(slot: Slot) -> Broken:
    """The shell exits 0 without having begun the command."""
    case = Case(slot, _ready(slot, "heard"))
    with guard(Plan()) as plan:
        stage = case.stage(plan)
        stage.shell = shutil.which("true") or "/bin/true"
        case.play(stage)
    return case.look((no_success_is_invented,))


def stopping_a_leaderless_group(slot: Slot) -> Broken:
    """Between TERM and KILL the wrapper of an adopted run ends; its deaf command goes on."""
    scenario = _ready(slot, "adopted", "deaf")
    case = Case(slot, scenario)
    with guard(Plan()) as plan:
        stage = case.stage(plan)

        def hold() -> None:
            stage.start("deaf")
            stage.drive(lambda: os.path.exists(slot.deaf), jumps=0)

        stage.killed_owner(hold)
        with stage.owned() as runtime:
            (active,) = runtime.coordinator.registry
            answers: list[object] = []
            runtime.control.stop(active.run, actor="user:0", grace_ms=100, done=answers.append)
            stage.drive(lambda: bool(plan.signals), jumps=0)
            os.kill(active.attempt.pid or 0, signal.SIGKILL)
            stage.drive(lambda: bool(answers), jumps=50)
        stage.release()
        return case.look(ALWAYS, signals=tuple(plan.signals))


def refusing_a_child(slot: Slot) -> Broken:
    """A launch child cannot enter its directory; the owner goes on, and is killed."""
    scenario = _ready(slot, "heard", "nowhere")
    case = Case(slot, scenario)
    told = f"{slot.folder}.told"

    def life(stage: Stage) -> None:
        with stage.owned():
            stage.start("nowhere")
            stage.drive(lambda: not stage.live.starter.launching, jumps=0)
            for _ in range(3):
                stage.start("plain")
                stage.drive(lambda: not stage.busy(), jumps=0)
            with open(told, "w", encoding="ascii") as opened:
                opened.write(str(len(stage.runs())))
            os._exit(DIED)

    pid = os.fork()
    if pid == 0:
        try:
            with mock.patch.object(child, "_report"):
                life(case.stage(Plan()))
        finally:
            os._exit(1)
    os.waitpid(pid, 0)
    with open(told, encoding="ascii") as opened:
        committed = int(opened.read())
    stage = case.stage(Plan())
    stage.jump(HOUR)
    return case.look(ALWAYS, committed=committed)


def owning_twice(slot: Slot) -> Broken:
    """A second process opens a state that is owned."""
    case = Case(slot, _ready(slot, "heard"))
    with case.stage(Plan()).owned():
        second = cases.apart(lambda: _refusal(case.stage(Plan())))
        return case.look(ALWAYS, second_owner=second)


def _refusal(stage: Stage) -> str:
    try:
        stage.open(admit=False)
    except StoppedError as error:
        return str(error)
    stage.close()
    return "not refused"


def _ready(slot: Slot, name: str, *more: str) -> Scenario:
    """A scenario with its template made; with tasks of our own beside its own."""
    scenario = SCENARIOS[name]
    scenario = Scenario(**{**vars(scenario), "tasks": (*scenario.tasks, *more)})
    cases.make_template(slot, scenario)
    cases.reset(slot, scenario)
    return scenario


class Mutation(NamedTuple):
    """A piece taken away, where that shows, and the promise that is broken then."""

    applied: Callable[[], Any]
    probe: Callable[[Slot], Broken]
    check: str


MUTATIONS: dict[str, Mutation] = {
    "the directory fsync after the link": Mutation(
        no_directory_sync, publishing, "a_promised_receipt_is_believed"
    ),
    "the wrapper's directory fsync after the link": Mutation(
        no_directory_sync_of_the_wrapper, leaving, "a_promised_receipt_is_believed"
    ),
    "the gate": Mutation(no_gate, dying_at_the_barrier, "no_process_without_a_row"),
    "the start mark": Mutation(
        no_mark, starting_a_shell_that_does_nothing, "no_success_is_invented"
    ),
    "the identity check before KILL": Mutation(
        no_identity_before_kill, stopping_a_leaderless_group, "nothing_is_signalled_unproven"
    ),
    "the acknowledge-after-commit order": Mutation(
        acknowledged_before_the_commit, dying_at_the_end, "what_ran_to_its_end_is_recorded"
    ),
    "os._exit in the launch child": Mutation(
        no_exit_of_the_child, refusing_a_child, "what_was_committed_stays"
    ),
    "the owner lock": Mutation(no_lock, owning_twice, "there_is_one_owner"),
}


def main(name: str) -> int:
    """Try one mutation."""
    mutation = MUTATIONS[name]
    folder = place()
    slot = Slot(os.path.join(folder, "slot"))

    def mutated() -> Broken:
        with mutation.applied():
            return mutation.probe(slot)

    try:
        found = {
            "with": cases.apart(lambda: mutation.probe(slot)),
            "without": cases.apart(mutated),
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
