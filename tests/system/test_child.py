"""The gated child alone: what it waits for, what it becomes, what a dead parent makes of it."""

from __future__ import annotations

import _socket
import errno
import os
import resource
import select
import shutil
import signal
import socket
import sqlite3
import struct
import time
from pathlib import Path

import pytest

from qinglong_edge.core.limits import WRAPPER_SILENCE_MS
from qinglong_edge.system import child as child_module
from qinglong_edge.system.child import ChildRefusal, Spawner
from qinglong_edge.system.process import Processes
from tests.support import OF_THE_C_LIBRARY, until
from tests.system.gated import apart, collect, fork, plan, status, word

_TRIES = 40


# -- the gate -------------------------------------------------------------------------------------


def test_a_child_runs_nothing_until_the_word(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    child = fork(f": >{marker}")
    assert child.read_gate() is None
    assert not child.marked()
    assert not marker.exists()
    child.send_go(None)
    assert word(child) == b""  # the exec closed the gate
    assert collect(child) == 0
    assert marker.exists()


def test_a_wrapper_gives_up_on_silence_where_times_outgrew_the_machines_long_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with musl on 32-bit ARM and MIPS: another option, of words that a `long` does not fill."""
    pack, wide = struct.pack, 66
    monkeypatch.setattr(_socket, "SO_RCVTIMEO", wide)
    monkeypatch.setattr(struct, "pack", lambda layout, *values: pack(f"={layout}", *values))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child_module._read_timeout(theirs)
        told = theirs.getsockopt(socket.SOL_SOCKET, wide, 16)
    assert struct.unpack("=qq", told) == (WRAPPER_SILENCE_MS // 1000, 0)


def test_a_closed_gate_ends_a_child_that_has_done_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    child = fork(f": >{marker}")
    child.close_gate()
    assert collect(child) == 126
    assert not marker.exists()
    with pytest.raises(BrokenPipeError):
        child.send_go(None)


def test_a_parent_killed_at_any_moment_before_the_gate_leaves_no_child_and_no_effect(
    tmp_path: Path,
) -> None:
    """ADR-0069 verification 1: what was never let through its gate has no effect."""
    marker = tmp_path / "ran"
    reached = 0
    for number in range(_TRIES):
        alive_r, alive_w = os.pipe()
        parent = os.fork()
        if parent == 0:
            try:
                os.close(alive_r)
                child = Spawner().fork(plan(f": >{marker}", kept=(alive_w,)), dict)
                word(child)
                os.write(alive_w, b"r")
                time.sleep(60)
            finally:
                os._exit(1)
        os.close(alive_w)
        time.sleep(number * 0.0003)
        # The last one gets as far as the gate, however busy the machine is.
        said = os.read(alive_r, 1) if number == _TRIES - 1 else b""
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        with open(alive_r, "rb", buffering=0) as opened:
            while True:  # ends when nobody holds the other end: parent and child are gone
                assert select.select([opened], [], [], 30)[0], "a child waits on"
                more = opened.read(64)
                if not more:
                    break
                said += more
        reached += said == b"r"
    assert not marker.exists()
    assert reached > 0


def test_what_is_not_the_word_does_not_open_the_gate(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    child = fork(f": >{marker}")
    with socket.socket(fileno=os.dup(child.gate_fd)) as gate:
        gate.send(b"g")
    assert collect(child) == 126
    assert not marker.exists()


def test_an_exec_that_fails_is_told_by_its_errno() -> None:
    child = fork(program="/nonexistent/sh")
    child.send_go(None)
    assert word(child) == b"X %d" % errno.ENOENT
    assert collect(child) == 126


def test_a_child_that_cannot_enter_its_directory_says_so_and_runs_nothing(tmp_path: Path) -> None:
    marker, plain = tmp_path / "ran", tmp_path / "plain"
    plain.touch()
    for cwd, number in ((tmp_path / "missing", errno.ENOENT), (plain, errno.ENOTDIR)):
        child = Spawner().fork(plan(f": >{marker}", cwd=str(cwd)), dict)
        assert word(child) == b"E cwd_unavailable %d" % number
        assert collect(child) == 126
    assert not marker.exists()


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), SystemExit(0)])
def test_a_child_never_unwinds_into_the_frames_of_its_parent(
    tmp_path: Path, error: BaseException
) -> None:
    told = tmp_path / "unwound"

    def resolve() -> dict[str, str]:
        raise error

    try:
        child = Spawner().fork(plan(), resolve)
    finally:
        with told.open("a") as opened:
            opened.write(f"{os.getpid()} ")
    assert word(child) == b"E launch_child_failed 0"
    assert collect(child) == 126
    assert told.read_text() == f"{os.getpid()} "


def test_what_is_resolved_in_the_child_joins_its_environment_only(tmp_path: Path) -> None:
    told = tmp_path / "told"
    environment = {"PATH": "/usr/bin:/bin"}
    child = Spawner().fork(
        plan(f'echo "$A$B" >{told}', environment={**environment, "A": "1"}), lambda: {"B": "2"}
    )
    assert word(child) == b"R"
    child.send_go(None)
    assert collect(child) == 0
    assert told.read_text() == "12\n"


def test_a_refusal_of_the_resolver_is_told_by_its_code() -> None:
    def resolve() -> dict[str, str]:
        raise ChildRefusal("secret_missing", 2)

    child = Spawner().fork(plan(), resolve)
    assert word(child) == b"E secret_missing 2"
    assert collect(child) == 126


def test_a_parents_sqlite_journal_survives_its_children(tmp_path: Path) -> None:
    database = str(tmp_path / "edge.db")
    ours = sqlite3.connect(database, isolation_level=None)
    for setting in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL"):
        ours.execute(f"PRAGMA {setting}")
    ours.execute("CREATE TABLE t (n)")
    for ended in (True, False):
        ours.execute("INSERT INTO t VALUES (1)")
        child = fork()
        if ended:
            child.send_go(None)
        else:
            child.close_gate()
        collect(child)
        ours.execute("INSERT INTO t VALUES (2)")
    copy = tmp_path / "after-a-crash"
    copy.mkdir()
    for path in tmp_path.glob("edge.db*"):
        shutil.copy(path, copy)
    theirs = sqlite3.connect(copy / "edge.db")
    assert theirs.execute("SELECT count(*) FROM t").fetchone() == (4,)
    theirs.close()
    ours.close()


# -- signals and limits ---------------------------------------------------------------------------


def test_every_signal_is_at_its_default_whatever_the_parent_ignores() -> None:
    names = ("SIGINT", "SIGQUIT", "SIGHUP", "SIGTERM", "SIGPIPE", "SIGXFSZ", "SIGUSR1", "SIGTSTP")
    numbers = [signal.Signals[name] for name in names]
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        child = fork("echo; read x <&9")
        try:
            for _ in ("at the gate", "as a shell"):
                told = status(child.pid)
                ignored, blocked = int(told["SigIgn"], 16), int(told["SigBlk"], 16)
                assert (ignored & ~OF_THE_C_LIBRARY, blocked) == (0, 0)
                if child.gate_fd >= 0 and not child.marked():
                    assert int(told["SigCgt"], 16) & ~OF_THE_C_LIBRARY == 0
                    child.send_go(None)
                    assert word(child) == b""
                    until(child.marked)
        finally:
            child.close()
            os.waitpid(child.pid, 0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_signal_right_after_the_fork_is_the_childs_own() -> None:
    """The parent's handler never runs in a child, nor is the parent's wake-up pipe written."""
    handled: list[int] = []
    wake_r, wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.signal(signal.SIGUSR1, lambda number, _frame: handled.append(number))
    signal.set_wakeup_fd(wake_w)
    try:
        for _ in range(20):
            child = Spawner().fork(plan(), dict)
            os.kill(child.pid, signal.SIGUSR1)
            assert collect(child) == -signal.SIGUSR1
        with pytest.raises(BlockingIOError):
            os.read(wake_r, 1)
        assert handled == []
        os.kill(os.getpid(), signal.SIGUSR1)  # while our own still works
        assert until(lambda: handled) == [signal.SIGUSR1]
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGUSR1, before)
        os.close(wake_r)
        os.close(wake_w)


def test_the_parents_signal_mask_is_what_it_was() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        child = fork()
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before | {signal.SIGUSR2}
        assert int(status(child.pid)["SigBlk"], 16) == 0
        child.close()
        os.waitpid(child.pid, 0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_a_child_leads_a_session_of_its_own_with_the_limits_of_its_plan() -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    child = fork(nice=3, oom_score_adj=321, cwd="/usr")
    try:
        assert os.getsid(child.pid) == os.getpgid(child.pid) == child.pid
        assert status(child.pid)["Umask"] == "0077"
        limits = Path(f"/proc/{child.pid}/limits").read_text()
        core = next(line for line in limits.splitlines() if line.startswith("Max core file size"))
        assert core.split()[4:6] == ["1", "1"]  # 0 would let a piped core_pattern have it
        assert Path(f"/proc/{child.pid}/oom_score_adj").read_text() == "321\n"
        assert os.getpriority(os.PRIO_PROCESS, child.pid) == min(19, own + 3)
        assert os.readlink(f"/proc/{child.pid}/cwd") == "/usr"
    finally:
        child.close()
        os.waitpid(child.pid, 0)


def test_a_priority_that_needs_a_privilege_is_refused_before_the_gate() -> None:
    def call() -> object:
        if os.getuid() == 0:
            os.setresuid(65_534, 65_534, 65_534)
        resource.setrlimit(resource.RLIMIT_NICE, (0, 0))
        child = Spawner().fork(plan(nice=-5), dict)
        said = word(child)
        collect(child)
        return said.decode()

    assert apart(call) in {f"E nice_refused {number}" for number in (errno.EPERM, errno.EACCES)}


def test_the_environment_is_the_plans_and_nothing_of_the_parents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MARKER_OF_THE_PARENT", "1")
    child = fork("read x <&9", environment={"A": "b c", "E": ""})
    child.send_go(None)
    assert word(child) == b""
    given = Path(f"/proc/{child.pid}/environ").read_bytes()
    assert sorted(given.split(b"\0")) == [b"", b"A=b c", b"E="]
    child.close()
    os.waitpid(child.pid, 0)


def test_whoever_was_started_with_ended_children_ignored_still_learns_of_an_exit() -> None:
    def call() -> object:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        child = fork("exit 7")
        child.send_go(None)
        found = until(lambda: Processes().peek_exit(child.pid))
        return [found and found.code, collect(child)]

    assert apart(call) == [7, 7]


# -- the rest -------------------------------------------------------------------------------------


def test_a_kernel_without_memory_files_launches_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain = tmp_path / "script"
    plain.write_text("echo mark; exit 4")

    def refuse(_name: str, _flags: int = 0) -> int:
        raise OSError(errno.ENOSYS, "no such call")

    for lack in ("refused", "unknown"):
        if lack == "refused":
            monkeypatch.setattr(os, "memfd_create", refuse)
        else:
            monkeypatch.delattr(os, "memfd_create")
        child = fork(script=os.open(plain, os.O_RDONLY))
        assert child.marked()  # nobody waits for a mark that cannot come
        child.send_go(None)
        assert collect(child) == 4


def test_the_mark_is_what_the_script_writes_to_its_first_descriptor() -> None:
    child = fork("read x <&9; echo; read x <&9")
    child.send_go(None)
    assert word(child) == b""
    assert not child.marked()
    child.answer(b"1\n")
    until(child.marked)
    child.answer(b"2\n")
    assert collect(child) == 0


def test_the_channel_carries_lines_both_ways_and_ends_with_the_child() -> None:
    child = fork("echo said >&9; read x <&9; exit $x")
    child.send_go(None)
    assert until(child.read_channel) == b"said\n"
    assert child.read_channel() is None
    assert child.answer(b"9\n")
    assert collect(child) == 9


def test_a_plan_shows_nothing_of_itself() -> None:
    shown = plan(script=0, environment={"TOKEN": "hidden"}, cwd="/hidden")
    assert repr(shown) == "ChildPlan(...)"
    assert "hidden" not in repr(shown)
