"""P7: a secret's plaintext is in the launching child and the task it becomes, nowhere else.

A marker goes in as a secret; afterwards every file under state, runtime and temporary folder, every
row, the daemon's memory, and the command line and environment of every process are searched for it.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kit import Daemon, Kit, gone, pids
from tests.support import until

WORD = secrets.token_hex(6)  # no other test of this machine has the same
MARKER = f"mark-{WORD}-\u00e9\u4e2d"
NEEDLES = (MARKER.encode(), MARKER.encode("utf-16-le"), WORD.encode())


@pytest.fixture
def sealed(kit: Kit) -> Kit:
    """A state with the marker as the secret TOKEN."""
    kit.ok("init")
    kit.ok("secret", "set", "TOKEN", stdin=MARKER.encode())
    return kit


def _task(kit: Kit, text: str, *flags: str, name: str = "t") -> None:
    kit.ok("task", "add", name, "--secret", "TOKEN=TOKEN", *flags, "--shell", text)


def _memory(pid: int) -> Iterator[bytes]:
    """The readable memory of a process, area by area."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights, *_ = line.split()
            if rights[0] != "r" or "[v" in line:
                continue
            start, end = (int(part, 16) for part in span.split("-"))
            memory.seek(start)
            try:
                yield memory.read(end - start)
            except OSError:
                continue


def nowhere(kit: Kit, daemon: Daemon, *task: int) -> None:
    """Nothing but the processes in `task` knows the marker."""
    places = [kit.place, *(Path(p) for p in ("/dev/shm", "/run/qinglong-edge") if Path(p).is_dir())]
    for place in places:
        for path in sorted(place.rglob("*")):
            with contextlib.suppress(FileNotFoundError):  # the daemon's files come and go
                if path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 24:
                    data = path.read_bytes()
                    assert not any(needle in data for needle in NEEDLES), path
    for area in _memory(daemon.pid):
        assert not any(needle in area for needle in NEEDLES)
    assert not any(needle in line.encode() for line in kit.dump() for needle in NEEDLES)
    # A task that has ended, or its wrapper, may be at its last lines.
    until(lambda: not _knowing(*task), what="nobody else knows it")


def _knowing(*task: int) -> list[tuple[str, str]]:
    """Who has the marker in its command line or environment, the task itself left out."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        if int(name) in (*task, os.getpid()):
            continue
        for what in ("cmdline", "environ"):
            with contextlib.suppress(OSError):
                data = Path(f"/proc/{name}/{what}").read_bytes()
                if any(needle in data for needle in NEEDLES):
                    found.append((name, what))
    return found


def _in_session(leader: int) -> set[int]:
    """The wrapper and the command it has become the parent of: the task."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.getsid(int(name)) == leader and b"cat" not in _words(int(name))[:1]:
                found.add(int(name))
        except OSError:
            continue
    return found


def _words(pid: int) -> list[bytes]:
    return [
        os.path.basename(word) for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    ]


def test_while_a_task_with_a_secret_runs_only_the_task_knows_it(sealed: Kit) -> None:
    """ADR-0024 verification 5: and the tools that the wrapper runs beside it do not."""
    there = sealed.file("pid")
    _task(sealed, f"echo $$ >{there}; exec sleep 60")
    with sealed.daemon() as daemon:
        run = sealed.ok("start", "t")["number"]
        (pid,) = pids(there)
        assert MARKER.encode() in Path(f"/proc/{pid}/environ").read_bytes()
        nowhere(sealed, daemon, *_in_session(os.getsid(pid)))
        maps = Path(f"/proc/{daemon.pid}/maps").read_text()
        assert not re.search(r"cryptography|libcrypto|libssl|_rust", maps)
        sealed.ok("stop", str(run))
        gone(pid)


ENDS: dict[str, tuple[str, tuple[str, ...], Any]] = {
    "well": ("exit 0", (), "succeeded"),
    "badly": ("exit 3", (), "failed"),
    "with a core": ("ulimit -c unlimited 2>/dev/null; kill -SEGV $$", (), "failed"),
    "out of time": ("sleep 60", ("--timeout", "300ms", "--grace", "0s"), "timed_out"),
    "without its program": ("", ("--", "/nonexistent/program"), "failed"),
    "without its folder": ("exit 0", ("--cwd", "/nonexistent"), "failed"),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_task_that_ended_leaves_its_secret_nowhere(sealed: Kit, how: str) -> None:
    """Events, receipt, log and core file included."""
    text, flags, status = ENDS[how]
    command = flags if "--" in flags else (*flags, "--shell", text)
    sealed.ok("task", "add", "t", "--secret", "TOKEN=TOKEN", *command)
    with sealed.daemon() as daemon:
        ended = sealed.ended(sealed.ok("start", "t")["number"])
        assert ended["status"] == status, ended
        nowhere(sealed, daemon)


def test_a_task_and_a_daemon_that_were_killed_leave_the_secret_nowhere(sealed: Kit) -> None:
    there = sealed.file("pid")
    _task(sealed, f"echo $$ >{there}; exec sleep 60")
    with sealed.daemon() as daemon:
        sealed.ok("start", "t")
        (pid,) = pids(there)
        daemon.kill()
        os.killpg(os.getsid(pid), signal.SIGKILL)
        gone(pid)
    with sealed.daemon() as daemon:
        assert sealed.shown("1")["status"] == "lost"
        nowhere(sealed, daemon)


def test_a_launch_that_cannot_open_its_secret_fails_closed_and_tells_nothing(sealed: Kit) -> None:
    """ADR-0024 verification 5: no artifact, no journal row, no process; the code says why."""
    _task(sealed, "exit 0")
    sealed.ok("task", "add", "plain", "--shell", "exit 0")
    keyring = sealed.state / "keyring.json"
    content = keyring.read_bytes()
    keyring.unlink()
    with sealed.daemon() as daemon:
        ended = sealed.ended(sealed.ok("start", "t")["number"])
        assert (ended["status"], ended["error_code"]) == ("failed", "secret_provider_unavailable")
        assert (ended["log_bytes"], ended["started_at_ms"]) == (None, None)
        for folder in ("logs", "receipts"):
            assert list((sealed.state / folder).rglob("*")) == []
        assert sealed.ended(sealed.ok("start", "plain")["number"])["status"] == "succeeded"
        assert not keyring.exists()
        until(
            lambda: "keyring_missing" in sealed.ask("status")["result"]["degraded"],
            what="status names the keyring",
        )
        keyring.write_bytes(content)
        keyring.chmod(0o644)
        ended = sealed.ended(sealed.ok("start", "t")["number"])
        assert ended["error_code"] == "secret_provider_unavailable"
        until(
            lambda: "keyring_unsafe" in sealed.ask("status")["result"]["degraded"],
            what="status names the mode",
        )
        keyring.chmod(0o600)
        assert sealed.ended(sealed.ok("start", "t")["number"])["status"] == "succeeded"
        assert sealed.ask("status")["result"]["degraded"] == []
        nowhere(sealed, daemon)
    crossed = "SELECT count(*) FROM receipt_journal JOIN attempt USING (key) WHERE error_code > ''"
    assert sealed.sql(crossed) == [(0,)]


def test_a_secret_that_is_damaged_or_gone_stops_its_task_and_no_other(sealed: Kit) -> None:
    """ADR-0024 verification 6: a damaged ciphertext fails closed."""
    _task(sealed, "exit 0")
    sealed.ok("secret", "set", "OTHER", stdin=b"other")
    sealed.ok("task", "add", "other", "--secret", "OTHER=OTHER", "--shell", 'test "$OTHER" = other')
    sealed.sql(
        "UPDATE secret_envelope SET ciphertext = zeroblob(length(ciphertext))"
        " WHERE secret_number = 1"
    )
    with sealed.daemon():
        ended = sealed.ended(sealed.ok("start", "t")["number"])
        assert (ended["status"], ended["error_code"]) == ("failed", "secret_unavailable")
        assert sealed.ended(sealed.ok("start", "other")["number"])["status"] == "succeeded"
