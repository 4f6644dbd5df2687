"""The wrapper under signals: the command gets each of them once, its own way, and is believed."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

from tests.process.harness import EVERY_SHELL, OK, PYTHON, Bench, Running
from tests.support import say_to, until

_SURVIVED = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE),
    *(signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2),
)
_HARMLESS = (signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH)
_STOPPING = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_RANDOM_INSTANTS = 150

# Counts what arrives, waits for a second one that must not come, tells it late, exits 23.
_HANDLER = """
import os, signal, sys, time
seen = []
for number in map(int, sys.argv[1:]):
    signal.signal(number, lambda number, frame: seen.append(number))
os.write(1, b"up\\n")
deadline = time.monotonic() + 20
while not seen and time.monotonic() < deadline:
    time.sleep(0.01)
deadline = time.monotonic() + 0.2
while time.monotonic() < deadline:
    time.sleep(0.01)
os.write(1, b"late %d %d\\n" % (len(seen), seen[0]))
os._exit(23)
"""


@EVERY_SHELL
def test_a_signal_that_ends_the_command_becomes_128_and_its_number(
    shell: str, tmp_path: Path
) -> None:
    """ADR-0069 verification 4: every signal from 1 to 31, and the first and last of real time."""
    bench = Bench(shell, tmp_path)
    numbers = [
        *(number for number in range(1, 32) if number not in (*_HARMLESS, *_STOPPING)),
        *(signal.SIGRTMIN, signal.SIGRTMAX),
    ]
    for first in range(0, len(numbers), 8):
        part = numbers[first : first + 8]
        started = [bench.start(["/bin/sh", "-c", f"kill -{int(n)} $$; exit 1"]) for n in part]
        for running, number in zip(started, part, strict=True):
            ended = running.wait()
            assert (ended.codes, ended.word) == ((128 + number, 128 + number), "whole")
            assert ended.log == b""  # no "Terminated" of the wrapper's shell


@EVERY_SHELL
def test_a_signal_that_ends_nothing_changes_nothing(shell: str, tmp_path: Path) -> None:
    bench = Bench(shell, tmp_path)
    for number in _HARMLESS:
        assert bench.task(f"kill -{int(number)} 0; exit 3").codes == (3, 3)


@EVERY_SHELL
def test_a_stopped_command_goes_on_when_it_is_told_to(shell: str, tmp_path: Path) -> None:
    running = Bench(shell, tmp_path).start(["/bin/sh", "-c", "echo $$; kill -STOP $$; exit 3"])
    until(lambda: b"\n" in running.log.read_bytes())
    stat = Path(f"/proc/{int(running.log.read_bytes())}/stat")
    until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
    assert not running.ended()
    running.signal_group(signal.SIGCONT)
    assert running.wait().codes == (3, 3)


@EVERY_SHELL
def test_a_signal_for_the_group_reaches_the_commands_handler_once(
    shell: str, tmp_path: Path
) -> None:
    """Late output is kept: the capture outlives the signal; the exit code is the handler's."""
    bench = Bench(shell, tmp_path)
    started = [bench.start([*PYTHON, _HANDLER, str(int(number))]) for number in _SURVIVED]
    for running, number in zip(started, _SURVIVED, strict=True):
        until(lambda: b"up\n" in running.log.read_bytes())  # noqa: B023
        running.signal_group(number)
    for running, number in zip(started, _SURVIVED, strict=True):
        ended = running.wait()
        assert ended.log == b"up\nlate 1 %d\n" % number
        assert (ended.codes, ended.word) == ((23, 23), "whole")


@EVERY_SHELL
def test_a_signal_for_the_group_ends_a_command_without_a_handler(
    shell: str, tmp_path: Path
) -> None:
    """INT and QUIT too, which a background child of dash or ash would ignore for ever."""
    bench = Bench(shell, tmp_path)
    started = [bench.start(["/bin/sleep", "60"]) for _ in _SURVIVED]
    for running, number in zip(started, _SURVIVED, strict=True):
        until(running.marked)
        running.signal_group(number)
        ended = running.wait()
        assert (ended.codes, ended.word) == ((128 + number, 128 + number), "whole")


@EVERY_SHELL
def test_a_command_may_signal_its_own_group(shell: str, tmp_path: Path) -> None:
    bench = Bench(shell, tmp_path)
    plain = bench.task("echo a; kill 0; echo b")
    assert (plain.codes, plain.log) == ((143, 143), b"a\n")
    trapped = bench.task("trap 'kill 0; exit 5' EXIT; trap '' TERM; echo out; exit 3")
    assert (trapped.codes, trapped.log) == ((5, 5), b"out\n")


@EVERY_SHELL
def test_a_killed_group_leaves_no_receipt(shell: str, tmp_path: Path) -> None:
    """A documented bound: nothing survives KILL, so nothing is told about the command."""
    ended = Bench(shell, tmp_path).task("echo a; kill -9 0; exit 0")
    assert ended.code == -signal.SIGKILL
    assert (ended.said, ended.published, ended.left, ended.mark) == (b"", None, (), 1)


@EVERY_SHELL
def test_a_signal_for_the_wrapper_alone_waits_for_the_command(shell: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    running = Bench(shell, tmp_path).start(["/bin/sh", "-c", f"read go <'{gate}'; exit 4"])
    until(running.marked)
    for number in _SURVIVED:
        os.kill(running.pid, number)
    say_to(gate)
    assert running.wait().codes == (4, 4)


@EVERY_SHELL
def test_no_signal_after_the_mark_is_lost(shell: str, tmp_path: Path) -> None:
    """TERM at a random instant; a lost one would leave the command sleeping for a minute."""
    bench = Bench(shell, tmp_path)
    chance = random.Random(69)
    for _ in range(_RANDOM_INSTANTS):
        running = bench.start(["/bin/sh", "-c", "exec sleep 60"])
        spin = time.monotonic() + 20
        while not running.marked():
            assert time.monotonic() < spin
        spin = time.monotonic() + chance.random() * 0.003
        while time.monotonic() < spin:
            pass
        running.signal_group(signal.SIGTERM)
        ended = running.wait()
        assert (ended.codes, ended.word) == ((143, 143), "whole")


@EVERY_SHELL
def test_a_signal_between_receipt_and_answer_changes_nothing(shell: str, tmp_path: Path) -> None:
    running = Bench(shell, tmp_path).start(["/bin/sh", "-c", "exit 7"])
    running.hear()
    _storm(running)
    if running.channel is not None:
        running.channel.sendall(OK)
    ended = running.wait()
    assert (ended.codes, ended.published, ended.left) == ((7, 7), None, ())


@EVERY_SHELL
def test_a_signal_ends_a_grandchild_and_neither_capture_nor_receipt(
    shell: str, tmp_path: Path
) -> None:
    """The command is over, its child holds the pipe: TERM ends the child, so nothing is late."""
    bench = Bench(shell, tmp_path)
    running = bench.start(["/bin/sh", "-c", "sleep 60 & echo $!; exit 7"])
    until(lambda: running.log.read_bytes().endswith(b"\n"))
    until(lambda: len(_members(running.pid)) == 4)  # wrapper, capture, its cat, the grandchild
    running.signal_group(signal.SIGTERM)
    ended = running.wait()
    assert (ended.codes, ended.word) == ((7, 7), "whole")


@EVERY_SHELL
def test_a_signal_does_not_end_the_publication_half_way(shell: str, tmp_path: Path) -> None:
    """The sync tool waits until it has been signalled like everything in the group."""
    bench = Bench(shell, tmp_path)
    tools, gate, seen = (tmp_path / name for name in ("waiting", "gate", "seen"))
    tools.mkdir()
    os.mkfifo(gate)
    (tools / "waiting-sync").write_text(
        f"#!/bin/sh\ntest -e '{seen}' && exit 0\n: >'{seen}'\nread go <'{gate}'\n"
    )
    (tools / "waiting-sync").chmod(0o700)
    running = bench.start(
        ["/bin/sh", "-c", "exit 7"],
        daemon=False,
        changed={"TOOLS": f"{bench.tools}:{tools}", "SYNC": "waiting-sync"},
    )
    until(seen.exists)
    _storm(running)
    say_to(gate)
    ended = running.wait()
    assert (ended.codes, ended.left) == ((7, 7), ())
    assert ended.published is not None


def _storm(running: Running) -> None:
    """Everything but ALRM, which is how bash itself ends a `read -t`: it would publish early."""
    for number in _SURVIVED:
        if number != signal.SIGALRM:
            running.signal_group(number)


def _members(session: int) -> list[int]:
    """Living processes of a session, zombies left out."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[3] == str(session) and fields[0] != "Z":
            found.append(int(name))
    return found
