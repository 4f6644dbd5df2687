"""The launch barrier with the real wrapper: nothing runs before it may, exactly it runs after."""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.core import handle as handles
from qinglong_edge.core.errors import Corrupt, EdgeError, Refused, Unavailable
from qinglong_edge.core.evidence import Exit
from qinglong_edge.core.limits import RECEIPT_BYTES_MAX
from qinglong_edge.core.receipt import Receipt, ReceiptInvalid
from qinglong_edge.process.launcher import Launch
from qinglong_edge.system.child import Child, ChildPlan, Spawner
from qinglong_edge.system.process import Processes
from tests.process.launches import ATTEMPT, QUOTA, RUN, TOKEN, World, ended, gone, hear, plan
from tests.support import until

_TRIES = 30


class CountingSpawner(Spawner):
    """Counts what it forks."""

    def __init__(self) -> None:
        super().__init__()
        self.forked = 0

    def fork(self, plan: ChildPlan, resolve: Callable[[], dict[str, str]]) -> Child:
        self.forked += 1
        return super().fork(plan, resolve)


class Nameless(Processes):
    """A system that does not tell its boot id."""

    def boot_id(self) -> str | None:
        return None


def descriptors() -> set[str]:
    """The open descriptors of this process."""
    return set(os.listdir("/proc/self/fd"))


def finish(launch: Launch) -> Exit:
    """Wait for the wrapper's end and collect it."""
    found = ended(launch)
    launch.finish()
    return found


def run(world: World, text: str, **changes: Any) -> tuple[Exit, Receipt]:
    """One whole run with a living owner."""
    launch = world.ready(text, **changes)
    launch.open_gate(None)
    _word, receipt = hear(launch)
    assert launch.acknowledge()
    return finish(launch), receipt


# -- the barrier ----------------------------------------------------------------------------------


def test_a_refused_barrier_leaves_no_effect_of_the_command(tmp_path: Path) -> None:
    """ADR-0069 verification 1: whose registration fails has run nothing."""
    world, marker = World(tmp_path), tmp_path / "ran"
    before = descriptors()
    launch = world.ready(f": >{marker}")
    world.launcher.identify(launch, ATTEMPT)
    assert not launch.started()
    launch.refuse()
    assert gone(launch.pid)
    assert not marker.exists()
    assert world.receipts.read(ATTEMPT) is None
    assert descriptors() == before


def test_a_refusal_before_the_child_is_ready_is_as_good(tmp_path: Path) -> None:
    world, marker = World(tmp_path), tmp_path / "ran"
    for _ in range(10):
        launch = world.begin(f": >{marker}")
        launch.refuse()
        assert gone(launch.pid)
    assert not marker.exists()


def test_a_child_that_does_not_listen_is_killed_by_a_refusal(tmp_path: Path) -> None:
    launch = World(tmp_path).ready("true")
    os.kill(launch.pid, signal.SIGSTOP)
    launch.refuse()
    assert gone(launch.pid)


def _identified(told: int) -> bytes:
    """What an owner has said by the time it has identified its child, or by its end."""
    said = b""
    while b"identified" not in said and (more := os.read(told, 64)):
        said += more
    return said


def test_an_owner_killed_at_any_moment_before_the_gate_has_started_nothing(tmp_path: Path) -> None:
    """ADR-0069 verification 1: the same for an owner that dies instead of refusing."""
    marker = tmp_path / "ran"
    world = World(tmp_path)
    reached = 0
    for number in range(_TRIES):
        told_r, told_w = os.pipe()
        owner = os.fork()
        if owner == 0:
            try:
                launch = world.begin(f": >{marker}")
                os.write(told_w, f"{launch.pid}\n".encode())
                while not launch.take_ready():
                    time.sleep(0.0005)
                world.launcher.identify(launch, ATTEMPT)
                os.write(told_w, b"identified\n")
                time.sleep(60)
            finally:
                os._exit(1)
        os.close(told_w)
        time.sleep(number * 0.0005)
        early = _identified(told_r) if number == _TRIES - 1 else b""
        os.kill(owner, signal.SIGKILL)
        os.waitpid(owner, 0)
        with open(told_r, "rb") as opened:
            told = (early + opened.read()).split()
        if told:
            until(lambda pid=int(told[0]): gone(pid) or _zombie(pid))  # type: ignore[misc]
        reached += b"identified" in told
    time.sleep(0.05)
    assert not marker.exists()
    assert reached > 0


def _zombie(pid: int) -> bool:
    """An orphan that nobody collects here counts as gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_the_gate_lets_the_command_run_and_the_mark_tells_of_its_exec(tmp_path: Path) -> None:
    world = World(tmp_path)
    launch, target = world.start("exit 5")
    launch.close_channel()
    assert launch.take_exec() in (None, 0)
    until(launch.started)
    assert target.pid == launch.pid
    assert ended(launch) == Exit(code=5, signal=None)
    assert launch.take_exec() in (None, 0)
    launch.finish()


def test_no_mark_is_set_before_the_commands_exec(tmp_path: Path) -> None:
    world = World(tmp_path, shell="/bin/cat")  # in the shell's place: it never gets to a command
    launch = world.ready("true")
    launch.open_gate(None)
    ended(launch)
    assert not launch.started()
    launch.finish()


# -- the wrapper ----------------------------------------------------------------------------------


def test_a_drifted_wrapper_is_refused_before_anything_exists(tmp_path: Path) -> None:
    """ADR-0069 verification 2: drift is refused before the spawn, and so before the row."""
    spawner = CountingSpawner()
    world = World(tmp_path, spawner=spawner)
    before = descriptors()
    text = world.wrapper.read_bytes()
    for other in (b"exit 0\n", text + b"\n", text.replace(b"umask 077", b"umask 000")):
        world.wrapper.chmod(0o700)
        world.wrapper.write_bytes(other)
        with pytest.raises(Corrupt) as raised:
            world.begin("true")
        assert raised.value.code == "wrapper_drift"
    world.wrapper.unlink()
    world.wrapper.symlink_to("/bin/true")
    with pytest.raises(Corrupt):
        world.begin("true")
    assert spawner.forked == 0
    assert descriptors() == before


@pytest.mark.parametrize("way", ["renamed over", "rewritten in place", "deleted"])
def test_a_wrapper_replaced_after_it_was_verified_runs_as_it_was(tmp_path: Path, way: str) -> None:
    """ADR-0069 verification 2: only the verified bytes run."""
    world = World(tmp_path)
    launch = world.ready("exit 3")
    if way == "renamed over":
        rival = tmp_path / "rival"
        rival.write_text("exit 99\n")
        rival.rename(world.wrapper)
    elif way == "deleted":
        world.wrapper.unlink()
    else:
        world.wrapper.chmod(0o700)
        with world.wrapper.open("r+b") as opened:
            opened.write(b"exit 99\n" * 10)
    launch.open_gate(None)
    _word, receipt = hear(launch)
    assert launch.acknowledge()
    assert (finish(launch).code, receipt.exit_code) == (3, 3)


# -- the identity ---------------------------------------------------------------------------------


def test_a_child_that_cannot_be_identified_is_killed_and_no_handle_is_returned(
    tmp_path: Path,
) -> None:
    """ADR-0069 verification 3: no identity, no process, no bare pid."""
    world, marker = World(tmp_path, processes=Nameless()), tmp_path / "ran"
    launch = world.ready(f": >{marker}")
    with pytest.raises(Unavailable) as raised:
        world.launcher.identify(launch, ATTEMPT)
    assert raised.value.code == "identity_unavailable"
    assert raised.value.facts == {}
    launch.refuse()
    assert gone(launch.pid)
    assert not marker.exists()


@pytest.mark.parametrize("failure", [OSError(errno.EACCES, "x"), Refused("x", "y")])
def test_whatever_hinders_the_identification_is_one_passing_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def fail(_self: Processes, _pid: int) -> bytes | None:
        raise failure

    world = World(tmp_path)
    launch = world.ready("true")
    monkeypatch.setattr(Processes, "stat_text", fail)
    with pytest.raises(Unavailable) as raised:
        world.launcher.identify(launch, ATTEMPT)
    assert raised.value.code == "identity_unavailable"
    launch.refuse()


def test_the_handle_names_the_waiting_child_exactly(tmp_path: Path) -> None:
    world = World(tmp_path)
    launch = world.ready("true")
    identity = world.launcher.identify(launch, ATTEMPT)
    handle = handles.decode(identity.handle)
    assert handle is not None
    assert (handle.pid, handle.pgid, handle.handle_id) == (launch.pid, launch.pid, ATTEMPT)
    assert identity.pid == os.getpgid(launch.pid) == os.getsid(launch.pid)
    assert identity.pid_namespace == os.stat("/proc/self/ns/pid").st_ino
    launch.refuse()


# -- the receipt ----------------------------------------------------------------------------------


def test_the_receipt_reaches_a_living_owner_and_leaves_no_file(tmp_path: Path) -> None:
    world = World(tmp_path)
    before = world.clock.uptime_cs()
    exit_, receipt = run(world, "exit 7")
    passed_ms = (world.clock.uptime_cs() - before) * 10  # the wrapper's clock, not the wall's
    assert exit_ == Exit(code=7, signal=None)
    assert (receipt.run_id, receipt.attempt_id, receipt.token) == (RUN, ATTEMPT, TOKEN)
    assert (receipt.callback_sequence, receipt.exit_code) == (1, 7)
    assert 0 <= receipt.finished_at_ms - receipt.started_at_ms <= passed_ms
    assert not world.receipts.exists(ATTEMPT)


def test_a_published_receipt_is_bounded_private_and_kept_by_the_next_one(tmp_path: Path) -> None:
    """ADR-0069 verification 4: no overwrite, 4 KiB, and the command's own exit code."""
    world = World(tmp_path)
    for code in (9, 10):
        launch = world.ready(f"exit {code}")
        launch.close_channel()
        launch.open_gate(None)
        assert finish(launch).code == code
        receipt = world.receipts.read(ATTEMPT)
        assert receipt is not None
        assert receipt.exit_code == 9
    target = Path(world.receipts.paths(ATTEMPT).target)
    assert target.stat().st_size <= RECEIPT_BYTES_MAX
    assert target.stat().st_mode & 0o7777 == 0o600
    assert os.listdir(target.parent) == [target.name]


def test_a_receipt_behind_a_link_is_not_followed(tmp_path: Path) -> None:
    """ADR-0069 verification 4: O_NOFOLLOW."""
    world = World(tmp_path)
    _exit, receipt = run(world, "true")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(receipt.encode())
    Path(world.receipts.prepare(ATTEMPT).target).symlink_to(elsewhere)
    with pytest.raises(ReceiptInvalid):
        world.receipts.read(ATTEMPT)


def test_a_receipt_that_cannot_be_published_leaves_the_exit_code_alone(tmp_path: Path) -> None:
    """ADR-0069 verification 4: the command's exit code, whatever becomes of the receipt."""
    world = World(tmp_path)
    launch = world.ready("exit 17")
    launch.close_channel()
    shard = Path(world.receipts.paths(ATTEMPT).shard)
    shard.rmdir()
    shard.touch()
    launch.open_gate(None)
    assert finish(launch) == Exit(code=17, signal=None)
    shard.unlink()


def test_the_command_sees_its_recipe_and_nothing_of_launcher_or_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ADR-0069 verification 4: the environment of the callback is cleared."""
    monkeypatch.setenv("MARKER_OF_THE_OWNER", "1")
    world, path = World(tmp_path), tmp_path / "log"
    environment = {"PATH": "/usr/bin:/bin", "EMPTY": "", "LINES": "a\nb", "TEXT": "任务"}
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    argv = ("/usr/bin/env", "-0")
    launch = world.ready("", argv=argv, environment=environment, log_quota_bytes=QUOTA)
    launch.open_gate(log)
    os.close(log)
    hear(launch)
    launch.acknowledge()
    finish(launch)
    seen = [each.decode() for each in path.read_bytes().split(b"\0")[:-1]]
    assert sorted(seen) == sorted(f"{name}={value}" for name, value in environment.items())


def test_the_command_holds_its_three_standard_descriptors_only(tmp_path: Path) -> None:
    told = tmp_path / "told"
    run(World(tmp_path), f"ls -l /proc/self/fd >{told}")
    lines = told.read_text().splitlines()
    found = {int(line.split()[8]) for line in lines if " -> " in line}
    assert found - {3} == {0, 1, 2}  # 3 is what `ls` reads


# -- refusals and limits ---------------------------------------------------------------------------


def test_a_missing_directory_is_refused_for_good_and_nothing_has_run(tmp_path: Path) -> None:
    world, marker = World(tmp_path), tmp_path / "ran"
    with pytest.raises(Refused) as raised:
        world.ready(f": >{marker}", cwd=str(tmp_path / "missing"))
    assert raised.value.code == "cwd_unavailable"
    assert raised.value.facts == {"errno": "ENOENT"}
    assert str(tmp_path) not in str(raised.value)
    assert not marker.exists()


def test_a_child_that_dies_before_it_is_ready_is_a_passing_refusal(tmp_path: Path) -> None:
    world = World(tmp_path)
    launch = world.begin("true")
    os.kill(launch.pid, signal.SIGKILL)

    def twice() -> None:  # it may have been faster than the signal
        until(launch.take_ready)
        until(launch.take_ready)

    with pytest.raises(Unavailable) as raised:
        twice()
    assert raised.value.code == "launch_child_failed"
    launch.refuse()


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE])
def test_a_system_that_cannot_fork_is_a_passing_refusal_that_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail() -> int:
        raise OSError(number, os.strerror(number))

    world = World(tmp_path)
    before = descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fork", fail)
        with pytest.raises(Unavailable) as raised:
            world.begin("true", log_quota_bytes=QUOTA)
    assert raised.value.code == "launch_unavailable"
    assert raised.value.facts == {"errno": errno.errorcode[number]}
    assert descriptors() == before
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


def test_what_fails_before_the_fork_leaves_no_descriptor(tmp_path: Path) -> None:
    def fail() -> str:
        raise Unavailable("sync_tool_missing", "None.")

    spawner = CountingSpawner()
    world = World(tmp_path, spawner=spawner)
    object.__setattr__(world.tools, "sync", fail)
    before = descriptors()
    for changes in ({}, {"token": "short"}, {"attempt_id": "../x"}):
        with pytest.raises(EdgeError):
            world.begin("true", **changes)
    assert descriptors() == before
    assert spawner.forked == 0


def test_a_shell_that_cannot_be_executed_is_told_by_its_errno(tmp_path: Path) -> None:
    world = World(tmp_path, shell="/nonexistent/sh")
    launch = world.ready("true")
    launch.open_gate(None)
    told: list[int] = []

    def said() -> bool:
        number = launch.take_exec()
        if number is not None:
            told.append(number)
        return bool(told)

    until(said)
    assert told == [errno.ENOENT]
    assert launch.gate_fd == -1
    assert not launch.started()
    assert finish(launch) == Exit(code=126, signal=None)


def test_opening_the_gate_of_a_dead_child_is_an_os_error(tmp_path: Path) -> None:
    world = World(tmp_path)
    launch = world.ready("true")
    os.kill(launch.pid, signal.SIGKILL)
    ended(launch)
    with pytest.raises(OSError, match=r"[Pp]ipe|reset"):
        launch.open_gate(None)
    assert not launch.acknowledge()
    launch.finish()


def test_the_log_is_bounded_to_the_byte_and_the_command_goes_on(tmp_path: Path) -> None:
    # Without a sync of the fact: a slow disk would make the capture's last word late.
    world, path = World(tmp_path, sync="true"), tmp_path / "log"
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    text = f"head -c {QUOTA + 1000} /dev/zero; exit 4"
    launch = world.ready(text, log_quota_bytes=QUOTA)
    launch.open_gate(log)
    os.close(log)
    word, receipt = hear(launch)
    assert launch.acknowledge()
    assert finish(launch).code == 4
    assert (word, receipt.exit_code, path.stat().st_size) == ("cut", 4, QUOTA)
    fact = json.loads((tmp_path / ".log.json").read_bytes())
    assert (fact["runId"], fact["quotaReached"]) == (RUN, True)


def test_the_command_gets_its_own_umask_and_limits_back(tmp_path: Path) -> None:
    told = tmp_path / "told"
    run(World(tmp_path), f'echo "$(umask) $(ulimit -S -f) $(ulimit -S -c)" >{told}', umask=0o027)
    assert told.read_text() == "0027 unlimited 0\n"


def test_a_launch_without_memory_files_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    exit_, receipt = run(World(tmp_path), "exit 6")
    assert (exit_.code, receipt.exit_code) == (6, 6)


def test_the_program_stays_open_in_the_child_until_its_exec(tmp_path: Path) -> None:
    held = os.open("/dev/zero", os.O_RDONLY | os.O_CLOEXEC)
    program = os.dup2(held, 200, inheritable=False)
    os.close(held)
    world = World(tmp_path, program_fd=program)
    launch = world.ready("sleep 30")
    try:
        assert os.readlink(f"/proc/{launch.pid}/fd/{program}") == "/dev/zero"
        launch.open_gate(None)
        until(launch.started)
        assert not os.path.exists(f"/proc/{launch.pid}/fd/{program}")
    finally:
        os.killpg(launch.pid, signal.SIGKILL)
        finish(launch)
        os.close(program)


def test_every_descriptor_is_given_back(tmp_path: Path) -> None:
    world = World(tmp_path)
    before = descriptors()
    for _ in range(3):
        run(world, "true")
        assert descriptors() == before


def test_nothing_of_a_launch_shows_paths_variables_or_the_token(tmp_path: Path) -> None:
    wanted = plan("echo hidden-command", environment={"A": "hidden-value"}, cwd="/hidden-cwd")
    launch = World(tmp_path).ready("true")
    for shown in (repr(wanted), str(wanted), repr(launch)):
        assert "hidden" not in shown
        assert TOKEN not in shown
    launch.refuse()
