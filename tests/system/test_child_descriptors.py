"""What the gated child holds, what its parent gets back, what happens where there is little."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
from pathlib import Path

import pytest

from qinglong_edge.system.child import Spawner
from tests.support import until
from tests.system.gated import apart, collect, descriptors, fork, plan, script, word

_WIRES = {0, 1, 2, 3, 5, 9}
_LOG_WIRES = {0, 1, 2, 3, 4, 5, 7, 8, 9}  # the log itself comes over the gate


def test_a_child_holds_its_wires_its_gate_and_what_it_shall_keep(tmp_path: Path) -> None:
    opened = [os.open("/dev/zero", os.O_RDONLY) for _ in range(30)]
    opened += [fcntl.fcntl(opened[0], fcntl.F_DUPFD, number) for number in (70, 100, 300)]
    for fd in opened[::2]:
        os.set_inheritable(fd, True)
    kept = fcntl.fcntl(opened[0], fcntl.F_DUPFD_CLOEXEC, 80)
    lock = os.open(tmp_path / "owner.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    child, logged = fork("read x <&9", kept=(kept,)), fork(log_quota_bytes=65_536)
    try:
        held = descriptors(child.pid)
        assert held.keys() >= _WIRES
        high = held.keys() - _WIRES
        assert len(high) == 2
        assert kept in high
        assert {held[fd] for fd in high - {kept}} <= {
            target for target in held.values() if target.startswith("socket:")
        }
        assert len(descriptors(logged.pid).keys() - _LOG_WIRES) == 1
        # The lock was closed there and is still ours; it is free once we are gone.
        rival = os.open(tmp_path / "owner.lock", os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(rival, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(lock)
        fcntl.flock(rival, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(rival)

        child.send_go(None)
        assert word(child) == b""
        shells_own = {*range(10, 20), 255}  # where a shell keeps its script and its own wires
        until(  # the script's own descriptor is on its way there for a moment
            lambda: descriptors(child.pid).keys() - shells_own == _WIRES, what="the task's wires"
        )
    finally:
        for fd in (*opened, kept):
            os.close(fd)
        logged.close()
        child.close()
        for pid in (child.pid, logged.pid):
            os.waitpid(pid, 0)


def test_the_log_arrives_with_the_word_and_its_quota_is_the_kernels(tmp_path: Path) -> None:
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for soft in (65_536, 131_072):  # the second time something stands in the log's way
        os.lseek(log, 0, os.SEEK_SET)
        child = fork("echo told >&6; ulimit -S -f >&6; read x <&9", log_quota_bytes=soft)
        child.send_go(log)
        told = f"told\n{soft // 512}\n"
        until(lambda want=told: (tmp_path / "log").read_text().endswith(want))  # type: ignore[misc]
        assert (os.readlink(f"/proc/{child.pid}/fd/6")) == str(tmp_path / "log")
        flags = Path(f"/proc/{child.pid}/fdinfo/6").read_text().split("flags:")[1].split()[0]
        assert int(flags, 8) & os.O_APPEND
        child.close()
        assert collect(child) == 1  # `read` saw the channel's end
    os.close(log)


def test_a_log_that_was_promised_and_does_not_come_ends_the_child(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    missing, unasked = fork(f": >{marker}", log_quota_bytes=65_536), fork(f": >{marker}")
    missing.send_go(None)
    unasked.send_go(2)
    assert (collect(missing), collect(unasked)) == (126, 126)
    assert not marker.exists()


def test_a_hard_limit_below_the_quota_is_not_an_obstacle(tmp_path: Path) -> None:
    told = tmp_path / "told"

    def call() -> object:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8_192, 8_192))
        log = os.open("/dev/null", os.O_WRONLY | os.O_APPEND)
        child = fork(f"ulimit -S -f >{told}", log_quota_bytes=65_536)
        child.send_go(log)
        return collect(child)

    assert apart(call) == 0
    assert told.read_text() == "16\n"


def test_every_descriptor_of_the_parent_is_given_back() -> None:
    before = descriptors()
    for end in ("go", "refuse", "exec"):
        child = fork(program="/nonexistent" if end == "exec" else "/bin/sh", log_quota_bytes=65_536)
        assert child.gate_fd >= 0
        assert child.channel_fd >= 0
        if end != "refuse":
            child.send_go(2)
        child.close()
        assert (child.gate_fd, child.channel_fd) == (-1, -1)
        assert (child.read_gate(), child.read_channel(), child.answer(b"ok\n")) == (b"", b"", False)
        child.close()
        os.waitpid(child.pid, 0)
        assert descriptors() == before


def test_a_parent_without_standard_descriptors_launches_all_the_same(tmp_path: Path) -> None:
    told = tmp_path / "told"

    def call() -> object:
        for fd in (0, 1, 2):
            os.close(fd)
        child = fork(f"echo mark; echo got >{told}; read x <&9; echo $x >>{told}")
        child.send_go(None)
        until(child.marked)
        assert child.answer(b"heard\n")
        return collect(child)

    assert apart(call) == 0
    assert told.read_text() == "got\nheard\n"


@pytest.mark.parametrize("quota", [0, 65_536])
def test_a_lack_of_descriptors_is_an_os_error_that_leaves_nothing_open(quota: int) -> None:
    def call() -> object:
        while os.open("/dev/zero", os.O_RDONLY) < max(descriptors()):
            pass  # no hole is left below the highest
        wanted = {fd: target for fd, target in descriptors().items() if "/proc/" not in target}
        top = max(wanted) + 1
        failures = 0
        for free in range(40):
            ours = script("exit 0")
            resource.setrlimit(resource.RLIMIT_NOFILE, (top + free, 4_096))
            try:
                child = Spawner().fork(plan(script=ours, log_quota_bytes=quota), dict)
            except OSError as error:
                assert error.errno == errno.EMFILE  # noqa: PT017 - in a forked copy
                failures += 1
            else:
                child.close()
                os.waitpid(child.pid, 0)
                assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
                return failures
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (4_096, 4_096))
            found = {fd: t for fd, t in descriptors().items() if "/proc/" not in t}
            assert found == wanted
        return "never enough"

    failures = apart(call)
    assert isinstance(failures, int), failures
    assert failures >= 6


def test_a_lack_of_processes_is_an_os_error_that_leaves_nothing_open() -> None:
    def call() -> object:
        before = descriptors()
        if os.getuid() == 0:
            os.setresuid(65_534, 65_534, 65_534)
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        try:
            Spawner().fork(plan(log_quota_bytes=65_536), dict)
        except OSError as error:
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
            return [error.errno, len(mask), descriptors().keys() == before.keys()]
        return "forked"

    assert apart(call) == [errno.EAGAIN, 0, True]
