"""Signals, waits and /proc: what the process effects promise by themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from qinglong_edge.core.evidence import Exit
from qinglong_edge.system import process
from qinglong_edge.system.process import Processes
from tests.support import until

_BEYOND_EVERY_PID = 2**40


def sleeper() -> int:
    """An own child that sleeps."""
    return os.posix_spawn("/bin/sleep", ["sleep", "30"], {})


def zombies(pid: int) -> bool:
    """Whether an own child is still to be collected."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def test_an_exit_is_seen_without_being_collected() -> None:
    processes = Processes()
    ended = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 9"], {})
    killed = sleeper()
    assert processes.peek_exit(killed) is None
    processes.signal_pid(killed, signal.SIGKILL)
    for pid, found in ((ended, Exit(code=9, signal=None)), (killed, Exit(code=None, signal=9))):
        assert until(lambda pid=pid: processes.peek_exit(pid)) == found  # type: ignore[misc]
        assert processes.peek_exit(pid) == found
        processes.reap(pid)
        assert processes.peek_exit(pid) is None


def test_collecting_a_child_that_cannot_die_yet_does_not_hold_the_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "_REAP_TRIES", 50)
    processes = Processes()
    stubborn, other = sleeper(), sleeper()
    processes.reap(stubborn)
    assert not zombies(stubborn)  # it lives, so its end was not waited for
    for pid in (stubborn, other):
        processes.signal_pid(pid, signal.SIGKILL)
        until(lambda pid=pid: zombies(pid))  # type: ignore[misc]
    processes.reap(other)
    for pid in (stubborn, other):
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    processes.reap(other)  # nothing to do any more


def test_a_group_or_process_number_that_means_many_is_never_signalled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr(os, "killpg", lambda pid, number: sent.append((-pid, number)))
    processes = Processes()
    for number in (-1, 0, 1):
        assert not processes.signal_group(number, signal.SIGKILL)
        assert not processes.signal_pid(number, signal.SIGKILL)
    assert sent == []


def test_a_signal_for_nobody_is_told_so() -> None:
    processes = Processes()
    pid = sleeper()
    assert processes.exists(pid)
    assert processes.signal_pid(pid, signal.SIGKILL)
    processes.reap(pid)
    assert not processes.exists(pid)
    assert not processes.signal_pid(pid, signal.SIGKILL)
    assert not processes.signal_group(pid, signal.SIGKILL)
    assert processes.session_of(pid) is None
    assert processes.stat_text(pid) is None
    assert not processes.has_threads(pid)
    assert processes.open_pid(pid) is None


def test_a_number_beyond_every_pid_is_nobody() -> None:
    processes = Processes()
    assert not processes.exists(_BEYOND_EVERY_PID)
    assert processes.open_pid(_BEYOND_EVERY_PID) is None
    assert processes.stat_text(_BEYOND_EVERY_PID) is None


def test_a_process_of_another_user_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_pid: int, _number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert Processes().exists(os.getpid())


def test_a_descriptor_of_a_process_tells_of_its_end() -> None:
    processes = Processes()
    pid = sleeper()
    watch = processes.open_pid(pid)
    assert watch is not None
    processes.signal_pid(pid, signal.SIGKILL)
    until(lambda: zombies(pid))
    processes.close_pid(watch)
    processes.reap(pid)


def test_the_session_and_the_threads_of_a_process_are_the_kernels_word() -> None:
    processes = Processes()
    code = "import threading, sys; e = threading.Event(); threading.Thread(target=e.wait).start()"
    code += "; print(flush=True); sys.stdin.read(); e.set()"
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as threaded:
        assert threaded.stdout is not None
        threaded.stdout.readline()
        assert processes.session_of(threaded.pid) == threaded.pid
        assert processes.has_threads(threaded.pid)
        assert threaded.pid in processes.pids()
    single = sleeper()
    assert not processes.has_threads(single)
    processes.signal_pid(single, signal.SIGKILL)
    processes.reap(single)
    assert processes.session_of(os.getpid()) == os.getsid(0)


def test_boot_namespace_and_memory_are_read() -> None:
    processes = Processes()
    boot_id = processes.boot_id()
    assert boot_id is not None
    assert len(boot_id) == 36
    assert processes.pid_namespace() == os.stat("/proc/self/ns/pid").st_ino
    assert processes.resident_bytes() > 1_000_000
