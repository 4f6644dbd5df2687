"""Signals at every instant and of every kind: no stop is lost, no exit code is changed or invented.

The runtime lives inside the test, so that an instant is an instant. EDGE_PASSES=all asks for every
one of the thousand instants; EDGE_SEED repeats a run.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qinglong_edge.app.runtime import Parts
from qinglong_edge.core import handle as handles
from qinglong_edge.core.limits import ESCAPED_POLL_MS, START_MARK_WAIT_MS
from qinglong_edge.execution.active import Active
from qinglong_edge.system.child import Child
from qinglong_edge.system.process import Processes
from tests.e2e.kit import Kit, alive, gone
from tests.e2e.resident import Moved, Resident, collect

SEED = int(os.environ.get("EDGE_SEED", "69"))
INSTANTS = 1_000 if os.environ.get("EDGE_PASSES") == "all" else 150
GATE_US = 5_000  # the part of a run's life in which a stop may find anything
AT_ONCE = 8

# Says on its own disk what it is going to end with, just before it does.
HEARS = 'trap \'echo 7 >> "$SAID"; exit 7\' TERM; : > "$READY"; while :; do sleep 30 & wait; done'
# Ends as TERM ends a process.
OBEYS = ': > "$READY"; exec sleep 30'
# Waits for a file, and ends with 7.
PATIENT = 'echo $$ >> "{0}/pid"; while [ ! -e "{0}/go" ]; do sleep 0.02; done; exit 7'

ENDING = [n for n in range(1, 32) if n not in (17, 18, 19, 20, 21, 22, 23, 28)]
HARMLESS = [signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH]


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    yield
    collect()


@pytest.fixture
def resident(kit: Kit) -> Iterator[Resident]:
    """The runtime on a fresh state."""
    with Resident(kit.state, places=64) as resident:
        yield resident


class Mark:
    """The start mark of a launch, readable after everybody else has given it back."""

    def __init__(self, active: Active) -> None:
        child = getattr(active.launch, "_child")  # noqa: B009 - the launch keeps it to itself
        assert isinstance(child, Child)
        assert child._mark is not None
        self._fd = os.dup(child._mark)

    def take(self) -> bool:
        """True if the command was at its exec; the descriptor goes."""
        size = os.fstat(self._fd).st_size
        os.close(self._fd)
        return size > 0


def test_a_stop_at_any_instant_behind_the_gate_is_never_lost(kit: Kit, resident: Resident) -> None:
    """A thousand random instants of the first 5 ms: own exit code if the command had started."""
    chance = random.Random(SEED)
    resident.task("hears", shell=HEARS, log=False, overlap="parallel", max_parallel=64)
    resident.task("obeys", shell=OBEYS, log=True, overlap="parallel", max_parallel=64)
    marks: dict[int, Mark] = {}
    due: dict[int, tuple[float, Active]] = {}

    def started(active: Active) -> None:
        marks[active.run.number] = Mark(active)
        due[active.run.number] = (time.monotonic() + chance.uniform(0, GATE_US) / 1e6, active)

    resident.on_started = started
    begun, words, codes = 0, {}, []
    try:
        while begun < INSTANTS or due or resident.runtime.coordinator.registry.busy:
            if begun < INSTANTS and resident.runtime.coordinator.registry.busy < AT_ONCE:
                begun += 1
                name, said = chance.choice(("hears", "obeys")), kit.file(f"said{begun}")
                env = {"SAID": str(said), "READY": str(kit.file(f"ready{begun}"))}
                resident.begin("run.start", name=name, environment=env)
                words[begun] = said
            for number, (when, active) in list(due.items()):
                if time.monotonic() >= when:
                    del due[number]
                    resident.runtime.control.stop_active(
                        active, reason="user", actor="user:0", grace_ms=5_000, done=None
                    )
            resident.turn(0 if due else 2)
    finally:
        started_commands = {number: mark.take() for number, mark in marks.items()}
    assert len(marks) == begun == INSTANTS
    for number, said in words.items():
        run = resident.run(number)
        assert (run["status"], run["cancel_reason"]) == ("cancelled", "user"), (SEED, run)
        code = run["exit_code"]
        codes.append(code)
        if not started_commands[number]:
            assert code is None, (SEED, run)
        elif said.exists():
            assert (said.read_text(), code, run["evidence"]) == ("7\n", 7, "receipt"), (SEED, run)
        else:  # before its trap was set, or without one
            assert (code, run["evidence"]) == (143, "receipt"), (SEED, run)
    assert {7, 143} <= set(codes), "both kinds of end were seen"


def test_a_stop_of_a_command_that_never_began_has_no_exit_code(kit: Kit) -> None:
    """The start mark is not there within its second: TERM all the same, and nothing is invented."""
    slow = kit.file("slow")
    slow.write_text("#!/bin/sh\nsleep 30\n")
    slow.chmod(0o700)
    parts = Parts()
    parts.shell = str(slow)
    with Resident(kit.state, parts) as resident:
        resident.task("t", shell="exit 7")
        number = resident.start("t")
        begun = time.monotonic()
        run = resident.call("run.stop", run=str(number))
    assert (run["status"], run["exit_code"], run["evidence"]) == ("cancelled", None, "identity")
    assert time.monotonic() - begun >= START_MARK_WAIT_MS / 1000


def test_every_exit_code_is_recorded_as_it_was(resident: Resident) -> None:
    resident.task("t", shell='exit "$CODE"', log=False, overlap="parallel", max_parallel=64)
    registry = resident.runtime.coordinator.registry
    numbers = {}
    for code in range(256):
        resident.until(lambda: registry.busy < AT_ONCE, what="a place")
        numbers[code] = resident.start("t", environment={"CODE": str(code)})
    for code, number in numbers.items():
        run = resident.end(number)
        expected = "failed" if code else "succeeded"
        assert (run["status"], run["exit_code"], run["evidence"]) == (expected, code, "receipt")
        assert run["signal"] is None, "nobody of ours sent one"


def test_every_signal_that_ends_a_command_becomes_128_and_its_number(resident: Resident) -> None:
    resident.task("t", shell='kill -"$N" $$; exit 3', overlap="parallel", max_parallel=64)
    registry = resident.runtime.coordinator.registry
    numbers = {}
    for number in [*ENDING, *HARMLESS]:
        resident.until(lambda: registry.busy < AT_ONCE, what="a place")
        numbers[number] = resident.start("t", environment={"N": str(int(number))})
    for number, run_number in numbers.items():
        code = 3 if number in HARMLESS else 128 + number
        run = resident.end(run_number)
        assert (run["status"], run["exit_code"], run["evidence"]) == ("failed", code, "receipt")


@pytest.mark.parametrize("number", [signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU])
def test_nobody_without_a_terminal_is_stopped_by_job_control(
    resident: Resident, number: int
) -> None:
    resident.task("t", shell=f"kill -{int(number)} $$; exit 5", log=False)
    assert resident.end(resident.start("t"))["exit_code"] == 5


def test_a_frozen_command_is_stopped_for_good(kit: Kit, resident: Resident) -> None:
    resident.task("t", shell=f'echo $$ >> "{kit.place}/pid"; kill -STOP $$; exit 5')
    number = resident.start("t")
    pid = resident.until(lambda: _written(kit.file("pid")))
    resident.until(lambda: _state(pid) == "T", what="the command is frozen")
    run = resident.call("run.stop", run=str(number), grace_ms=50)
    assert (run["status"], run["exit_code"], run["signal"]) == ("cancelled", None, signal.SIGKILL)
    assert not alive(pid)


@pytest.mark.parametrize("how", ["the run ends", "the run is stopped"])
def test_a_grandchild_with_a_session_of_its_own_is_left_alone(
    kit: Kit, resident: Resident, how: str
) -> None:
    """Who calls setsid says that it is no part of the task any more, as with every cron."""
    rest = "exit 0" if how == "the run ends" else "exec sleep 60"
    background = f"setsid sh -c 'echo $$ >> \"{kit.place}/pid\"; exec sleep 60' >/dev/null 2>&1 &"
    resident.task("t", shell=f'{background} while [ ! -s "{kit.place}/pid" ]; do :; done; {rest}')
    number = resident.start("t")
    stranger = resident.until(lambda: _written(kit.file("pid")))
    try:
        if how == "the run ends":
            run = resident.end(number)
            assert (run["status"], run["exit_code"]) == ("succeeded", 0)
        else:
            assert resident.call("run.stop", run=str(number))["status"] == "cancelled"
        assert alive(stranger)
    finally:
        os.kill(stranger, signal.SIGKILL)
    gone(stranger)


def test_a_wrapper_that_was_killed_alone_holds_the_run_while_its_command_lives(kit: Kit) -> None:
    parts = Parts()
    parts.clock = clock = Moved()
    with Resident(kit.state, parts) as resident:
        resident.task("t", shell=PATIENT.format(kit.place), log=False)
        number = resident.start("t")
        command = resident.until(lambda: _written(kit.file("pid")))
        os.kill(os.getsid(command), signal.SIGKILL)
        resident.until(lambda: resident.hold(number), what="the run is held")
        assert resident.hold(number) == "escaped"
        assert f"run_unproven:{number}:escaped" in resident.degraded()
        assert resident.refused("run.start", name="t") == "overlap_skipped", "it is still there"
        assert resident.run(number)["status"] == "running"
        clock.pass_by(ESCAPED_POLL_MS)
        resident.turn()
        assert resident.hold(number) == "escaped", "looked at again, and still true"
        kit.file("go").touch()
        gone(command)
        clock.pass_by(ESCAPED_POLL_MS)
        run = resident.end(number)
        assert (run["status"], run["exit_code"], run["evidence"]) == ("lost", None, "identity")
        assert not resident.degraded() or "escaped" not in str(resident.degraded())


def test_a_stop_of_a_run_whose_wrapper_was_killed_alone_reaches_its_command(kit: Kit) -> None:
    """An own wrapper stays a zombie until then, so its group is still provably ours."""
    with Resident(kit.state) as resident:
        resident.task("t", shell=PATIENT.format(kit.place), log=False)
        number = resident.start("t")
        command = resident.until(lambda: _written(kit.file("pid")))
        os.kill(os.getsid(command), signal.SIGKILL)
        resident.until(lambda: resident.hold(number) == "escaped", what="the run is held")
        run = resident.call("run.stop", run=str(number))
        assert (run["status"], run["exit_code"]) == ("cancelled", None)
        assert not alive(command)


@pytest.mark.parametrize("name", ["a) R 1 1 (b", "x y  z", ")))", "sh) S 1 (1"])
def test_a_command_name_that_looks_like_a_stat_line_deceives_nobody(kit: Kit, name: str) -> None:
    """The wrapper itself bears the name, so that every reading of its entry meets it."""
    shell = kit.file(name)
    shutil.copy(os.path.realpath("/bin/sh"), shell)
    parts = Parts()
    parts.shell = str(shell)
    with Resident(kit.state, parts) as first:
        first.task("t", shell=PATIENT.format(kit.place), overlap="parallel", max_parallel=2)
        adopted, stopped = first.start("t"), first.start("t")
        first.until(lambda: len(_all(kit.file("pid"))) == 2, what="both commands run")
        command = _all(kit.file("pid"))
        leader = os.getsid(command[0])
        assert Path(f"/proc/{leader}/comm").read_text() == f"{name[:15]}\n"
    with Resident(kit.state, parts) as second:
        assert second.hold(adopted) is second.hold(stopped) is None
        run = second.call("run.stop", run=str(stopped))
        assert (run["status"], run["exit_code"]) == ("cancelled", 143)
        kit.file("go").touch()
        run = second.end(adopted)
        assert (run["status"], run["exit_code"], run["evidence"]) == ("failed", 7, "receipt")
    gone(*command)


class Reused(Processes):
    """The machine after the task has gone and its pid was given to somebody else."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[int, int]] = []

    def stat_text(self, pid: int) -> bytes | None:
        text = super().stat_text(pid)
        if text is None:
            return None
        head, _, fields = text.rpartition(b") ")
        words = fields.split(b" ")
        words[19] = b"%d" % (int(words[19]) + 1)  # one tick later
        return head + b") " + b" ".join(words)

    def signal_group(self, pgid: int, number: int) -> bool:
        self.sent.append((pgid, number))
        return False

    def signal_pid(self, pid: int, number: int) -> bool:
        self.sent.append((pid, number))
        return False


@pytest.mark.parametrize("stopping", [False, True])
def test_a_pid_that_was_given_away_is_never_signalled(kit: Kit, stopping: bool) -> None:
    with Resident(kit.state) as resident:
        resident.task("t", shell=PATIENT.format(kit.place), log=False)
        number = resident.start("t")
        command = resident.until(lambda: _written(kit.file("pid")))
    if stopping:
        kit.sql("UPDATE run SET cancel_requested_at_ms = created_at_ms, cancel_reason = 'user'")
    parts = Parts()
    parts.processes = other = Reused()
    with Resident(kit.state, parts) as resident:
        run = resident.run(number)
    assert run["status"] == ("cancelled" if stopping else "lost")
    assert other.sent == []
    assert alive(command)
    kit.file("go").touch()
    gone(command)


def test_the_handle_of_a_task_is_its_wrappers_own(kit: Kit, resident: Resident) -> None:
    """What is stored before the gate is what /proc says of the living task."""
    resident.task("t", shell=PATIENT.format(kit.place), log=False)
    number = resident.start("t")
    command = resident.until(lambda: _written(kit.file("pid")))
    handle = handles.decode(resident.active(number).target.handle)
    assert handle is not None
    leader = os.getsid(command)
    stat = Path(f"/proc/{leader}/stat").read_text().rpartition(")")[2].split()
    assert (handle.pid, handle.pgid, handle.start_ticks) == (leader, leader, int(stat[19]))
    kit.file("go").touch()
    assert resident.end(number)["exit_code"] == 7


def _all(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def _written(path: Path) -> int:
    found = _all(path)
    return found[-1] if found else 0


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
