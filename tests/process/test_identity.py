"""Exact identity: every verdict of the table, with real processes where one can be had."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.core import handle as handles
from qinglong_edge.core.errors import Refused, Unavailable
from qinglong_edge.core.evidence import ALIVE, GONE, UNKNOWN, Target, Verdict
from qinglong_edge.process.identity import Inspector
from qinglong_edge.system.process import Processes
from tests.support import until

_BOOT = "11111111-2222-3333-4444-555555555555"
_PID = 1234
_TICKS = 987_654
_NAMESPACE = 4_026_531_836
_AWKWARD = "a) S 1 (b\n)"


def line(
    pid: int = _PID, *, state: str = "S", pgrp: int = _PID, session: int = _PID, ticks: int = _TICKS
) -> bytes:
    """A /proc/PID/stat line."""
    fields = [state, "1", str(pgrp), str(session), *["0"] * 15, str(ticks), "0"]
    return f"{pid} ({_AWKWARD}) {' '.join(fields)}\n".encode()


class FakeProcesses(Processes):
    """A machine as a table: stat lines by pid; an exception in its place is raised."""

    def __init__(self, lines: dict[int, bytes | Exception] | None = None) -> None:
        super().__init__()
        self.lines = {_PID: line()} if lines is None else lines
        self.boot: str | Exception | None = _BOOT
        self.namespace: int | None = _NAMESPACE
        self.known: set[int] = set()
        self.threaded: set[int] = set()
        self.asked: list[int] = []

    def boot_id(self) -> str | None:
        if isinstance(self.boot, Exception):
            raise self.boot
        return self.boot

    def pid_namespace(self) -> int | None:
        return self.namespace

    def stat_text(self, pid: int) -> bytes | None:
        self.asked.append(pid)
        found = self.lines.get(pid)
        if isinstance(found, Exception):
            raise found
        return found

    def exists(self, pid: int) -> bool:
        return pid in self.lines or pid in self.known

    def pids(self) -> Iterator[int]:
        yield from list(self.lines)

    def session_of(self, pid: int) -> int | None:
        found = self.lines.get(pid)
        if found is None:
            return None
        return _PID if isinstance(found, Exception) else int(found.rpartition(b")")[2].split()[3])

    def has_threads(self, pid: int) -> bool:
        return pid in self.threaded


def target(**changes: Any) -> Target:
    """The stored handle of the table's process."""
    given: dict[str, Any] = {
        "handle_id": "attempt-1",
        "boot_id": _BOOT,
        "pid": _PID,
        "pgid": _PID,
        "start_ticks": _TICKS,
    }
    namespace = changes.pop("pid_namespace", _NAMESPACE)
    given.update(changes)
    handle = handles.Handle(**given)
    return Target(handle=handle.encode(), pid=handle.pid, pid_namespace=namespace)


def judged(processes: FakeProcesses, **changes: Any) -> Verdict:
    """The verdict of the table."""
    return Inspector(processes).inspect(target(**changes))


# -- the table ------------------------------------------------------------------------------------


def test_all_equal_is_alive() -> None:
    assert judged(FakeProcesses()) == Verdict(state=ALIVE)
    assert judged(FakeProcesses(), pid_namespace=None) == Verdict(state=ALIVE)


def test_another_boot_is_gone_without_a_look_at_the_pid() -> None:
    processes = FakeProcesses()
    assert judged(processes, boot_id="x").state == GONE
    assert processes.asked == []


def test_another_pid_namespace_is_unknown_without_a_look_at_the_pid() -> None:
    processes = FakeProcesses()
    for namespace in (_NAMESPACE + 1, None):
        processes.namespace = namespace
        assert judged(processes) == Verdict(state=UNKNOWN, reason="other_namespace")
    assert processes.asked == []


@pytest.mark.parametrize("boot", [None, OSError(errno.EACCES, "x")])
def test_a_boot_that_cannot_be_read_is_unknown(boot: Exception | None) -> None:
    processes = FakeProcesses()
    processes.boot = boot
    assert judged(processes) == Verdict(state=UNKNOWN, reason="provider_unavailable")


def test_a_missing_entry_is_gone_only_if_the_kernel_knows_no_such_pid() -> None:
    processes = FakeProcesses({})
    assert judged(processes) == Verdict(state=GONE)
    processes.known = {_PID}  # its entry is hidden from this user
    assert judged(processes) == Verdict(state=UNKNOWN, reason="hidden_process")


@pytest.mark.parametrize(
    "text",
    [
        OSError(errno.EACCES, "x"),
        OSError(errno.EMFILE, "x"),
        Refused("x", "y"),
        b"",
        b"garbage",
        line()[:-12],
        line(_PID + 1),
    ],
)
def test_an_entry_that_cannot_be_read_is_unknown(text: bytes | Exception) -> None:
    verdict = judged(FakeProcesses({_PID: text}))
    assert verdict == Verdict(state=UNKNOWN, reason="provider_unavailable")


def test_other_ticks_or_another_group_are_another_process() -> None:
    for other in (line(ticks=_TICKS + 1), line(ticks=_TICKS - 1), line(pgrp=1), line(pgrp=-1)):
        assert judged(FakeProcesses({_PID: other})) == Verdict(state=GONE, reason="pid_reused")


@pytest.mark.parametrize("state", ["Z", "X", "x"])
def test_a_dead_state_is_gone(state: str) -> None:
    assert judged(FakeProcesses({_PID: line(state=state)})) == Verdict(state=GONE)


@pytest.mark.parametrize("state", ["R", "D", "T", "t", "I", "S"])
def test_every_other_state_is_alive(state: str) -> None:
    assert judged(FakeProcesses({_PID: line(state=state)})) == Verdict(state=ALIVE)


def test_a_handle_that_is_none_asks_the_system_nothing() -> None:
    processes = FakeProcesses()
    inspector = Inspector(processes)
    stored = target()
    for spoilt in (
        stored.replace(handle=""),
        stored.replace(handle="not-a-durable-handle"),
        stored.replace(handle=stored.handle + "A"),
        stored.replace(pid=_PID + 1),
        target(pgid=4000),
    ):
        verdict = inspector.inspect(spoilt)
        assert verdict == Verdict(state=UNKNOWN, reason="invalid_handle")
    assert processes.asked == []


def test_a_number_beyond_every_pid_is_gone() -> None:
    real = Processes()
    boot_id = real.boot_id()
    verdict = Inspector(real).inspect(
        target(boot_id=boot_id, pid=2**50, pgid=2**50, pid_namespace=None)
    )
    assert verdict == Verdict(state=GONE)


# -- real processes -------------------------------------------------------------------------------


def command(*argv: str) -> subprocess.Popen[bytes]:
    """A session leader of its own."""
    return subprocess.Popen(
        argv, start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def close(process: subprocess.Popen[bytes]) -> None:
    """KILL and collect."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def identified(inspector: Inspector, pid: int) -> Target:
    """The handle of a real process."""
    identity = inspector.capture(pid, "attempt-1")
    return Target(handle=identity.handle, pid=pid, pid_namespace=identity.pid_namespace)


def test_a_real_process_with_an_awkward_name_is_followed_to_its_end(tmp_path: Path) -> None:
    program = tmp_path / _AWKWARD
    shutil.copy("/bin/sleep", program)
    inspector = Inspector(Processes())
    process = command(str(program), "30")
    until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == _AWKWARD + "\n")
    try:
        stored = identified(inspector, process.pid)
        assert inspector.inspect(stored) == Verdict(state=ALIVE)
        os.kill(process.pid, signal.SIGSTOP)
        assert inspector.inspect(stored) == Verdict(state=ALIVE)
        os.kill(process.pid, signal.SIGKILL)
        until(lambda: inspector.inspect(stored).state == GONE)  # a zombie of ours
        assert os.path.exists(f"/proc/{process.pid}")
    finally:
        close(process)
    assert inspector.inspect(stored) == Verdict(state=GONE)


def test_only_a_living_leader_of_its_own_session_is_captured() -> None:
    inspector = Inspector(Processes())
    leader, zombie = command("/bin/sleep", "30"), command("/bin/true")
    follower = subprocess.Popen(["/bin/sleep", "30"])
    grouped = subprocess.Popen(["/bin/sleep", "30"], process_group=0)
    until(lambda: (inspector.stat(zombie.pid) or pytest.fail("gone")).state == "Z")
    try:
        assert inspector.capture(leader.pid, "attempt-1").pid == leader.pid
        for pid in (follower.pid, grouped.pid, zombie.pid, 2**22 + 1):
            with pytest.raises(Unavailable) as raised:
                inspector.capture(pid, "attempt-1")
            assert raised.value.code == "identity_unavailable"
    finally:
        for process in (leader, follower, grouped, zombie):
            close(process)


def test_every_member_of_a_session_is_a_survivor_in_whatever_group_it_is() -> None:
    same, escaped, other = (f"{seconds}.{os.getpid()}" for seconds in (30, 31, 32))
    text = f"sleep {same} & setsid sleep {escaped} & set -m; sleep {other} & echo up; read x"
    inspector = Inspector(Processes())
    process = command("/bin/bash", "-c", text)
    stored = identified(inspector, process.pid)
    pids = {words: until(lambda words=words: _sleeping(words)) for words in (same, escaped, other)}  # type: ignore[misc]

    def found() -> dict[int, int]:
        return {each.pid: each.pgrp for each in inspector.survivors(stored)}

    try:
        until(lambda: os.getsid(pids[escaped]) == pids[escaped])
        left = {pids[same]: process.pid, pids[other]: pids[other]}
        assert found() == {process.pid: process.pid, **left}
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        # The leader is gone; who is left still bears its number.
        assert inspector.inspect(stored) == Verdict(state=GONE)
        assert found() == left
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        until(lambda: not found())
        assert Processes().exists(pids[escaped])
    finally:
        close(process)
        for pid in pids.values():
            Processes().signal_pid(pid, signal.SIGKILL)


def _sleeping(seconds: str) -> int:
    for pid in Processes().pids():
        try:
            if Path(f"/proc/{pid}/cmdline").read_bytes() == f"sleep\0{seconds}\0".encode():
                return pid
        except (FileNotFoundError, ProcessLookupError):
            continue
    return 0


def test_a_process_whose_first_thread_has_ended_is_alive() -> None:
    code = (
        "import ctypes, sys, threading;"
        "threading.Thread(target=sys.stdin.read).start();"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    inspector = Inspector(Processes())
    process = command(sys.executable, "-I", "-S", "-c", code)
    try:
        stored = identified(inspector, process.pid)
        until(lambda: (inspector.stat(process.pid) or pytest.fail("gone")).state == "Z")
        assert [each.pid for each in inspector.survivors(stored)] == [process.pid]
    finally:
        close(process)
    assert inspector.survivors(stored) == []


# -- survivors, by the table ----------------------------------------------------------------------


def test_an_empty_session_is_the_proof_of_death() -> None:
    others = {7: line(7, pgrp=7, session=7), 8: line(8, pgrp=_PID, session=7)}
    assert Inspector(FakeProcesses({**others})).survivors(target()) == []
    dead = {_PID: line(state="Z"), 9: line(9, state="X"), **others}
    assert Inspector(FakeProcesses({**dead})).survivors(target()) == []


def test_a_session_made_anew_under_a_reused_number_is_not_ours() -> None:
    reused: dict[int, bytes | Exception] = {_PID: line(ticks=_TICKS + 5), 9: line(9, pgrp=9)}
    assert Inspector(FakeProcesses(reused)).survivors(target()) == []


def test_another_boot_has_no_survivors() -> None:
    assert Inspector(FakeProcesses()).survivors(target(boot_id="x")) == []


def test_a_member_that_cannot_be_read_is_no_proof_of_death() -> None:
    for failure in (OSError(errno.EMFILE, "x"), OSError(errno.EACCES, "x")):
        inspector = Inspector(FakeProcesses({9: failure}))
        with pytest.raises(OSError, match="x"):
            inspector.survivors(target())


def test_a_list_of_processes_that_cannot_be_had_is_no_proof_of_death(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_path: str) -> list[str]:
        raise OSError(errno.EMFILE, "x")

    real = Processes()
    stored = target(boot_id=real.boot_id(), pid_namespace=None)
    monkeypatch.setattr(os, "listdir", fail)
    with pytest.raises(OSError, match="x"):
        Inspector(real).survivors(stored)


def test_what_cannot_be_told_is_no_proof_of_death() -> None:
    processes = FakeProcesses({})
    inspector = Inspector(processes)
    for spoilt in (target().replace(handle="x"), target(pid_namespace=1)):
        with pytest.raises(Unavailable):
            inspector.survivors(spoilt)
    processes.boot = None
    with pytest.raises(Unavailable):
        inspector.survivors(target())


def test_a_member_that_forks_and_ends_while_it_is_looked_for_is_found() -> None:
    class Restless(FakeProcesses):
        """Pid 20 is listed and gone before it is asked about; its child came after the list."""

        def pids(self) -> Iterator[int]:
            yield 20
            self.lines = {21: line(21)}

        def session_of(self, pid: int) -> int | None:
            return _PID if pid in self.lines and pid != 20 else None

    class Then(Restless):
        passes = 0

        def pids(self) -> Iterator[int]:
            self.passes += 1
            yield from super().pids() if self.passes == 1 else iter(self.lines)

    processes = Then({})
    assert [each.pid for each in Inspector(processes).survivors(target())] == [21]
    assert processes.passes == 2
