"""Starts the wrapper alone, as a launch child does: descriptors, limits, session, QL3_ variables.

The product's launcher is not used, so that the wrapper's contract has a second reader. A `Bench`
runs it under one shell with that shell's own tools; `Running.wait` plays the daemon on its channel.
The wrapper waits two seconds for an answer and for its capture; here it waits longer than any test,
unless the test is about that: then whatever does not come at once is a wrapper that hangs.
"""

from __future__ import annotations

import fcntl
import functools
import os
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.core import fact, receipt

WRAPPER = Path(__file__).parents[2] / "qinglong_edge" / "process" / "wrapper.sh"
TOOLS = "/usr/sbin:/usr/bin:/sbin:/bin"
PYTHON = (sys.executable, "-I", "-S", "-c")  # a command that is a few lines of Python
PLAIN = {"PATH": "/usr/bin:/bin"}
RUN = "019f7200-0000-7000-8000-000000000001"
ATTEMPT = "019f7200-0000-7000-8000-000000000002"
TOKEN = "t" * 43
QUOTA = 65_536
OK = b"ok\n"

OPENWRT = os.environ.get("EDGE_OPENWRT_BUSYBOX", "")  # a busybox built with OpenWrt's configuration
_FOREIGN = "EDGE_MACHINE" in os.environ  # its tree has one shell
_INSTALLED = ("busybox",) if _FOREIGN else ("dash", "bash", "busybox")
SHELLS = (*_INSTALLED, *(("openwrt",) if OPENWRT else ()))
EVERY_SHELL = pytest.mark.parametrize("shell", SHELLS)

SILENCE_S = 2  # what the wrapper bears
_WAITS = b"read -r -t %d "
_HANGS_S = 40.0
_PATIENT_S = 100
_GONE = 199  # place of the descriptor that the exec closes


@dataclass(frozen=True)
class Ended:
    """What a wrapper left behind; `code` is negative if a signal ended the wrapper itself."""

    code: int
    said: bytes  # all that came over the channel
    published: bytes | None
    log: bytes
    fact: bytes | None
    mark: int  # bytes on the start mark: 1 once the command was at its exec
    seconds: float
    closed: bool  # nobody holds the channel any more
    left: tuple[str, ...]  # names of temporaries that were not cleared away

    @property
    def word(self) -> str:
        """`whole`, `cut` or `late`."""
        return self.said.partition(b" ")[0].decode()

    @property
    def receipt(self) -> receipt.Receipt:
        """The one receipt, from the channel or from the file; the codec accepts canonical bytes."""
        said = self.said.partition(b" ")[2].removesuffix(b"\n")
        return receipt.decode(said or self.published or b"")

    @property
    def codes(self) -> tuple[int, int]:
        """The exit status and the receipt's exit code."""
        return self.code, self.receipt.exit_code


@dataclass
class Running:
    """A started wrapper. Its session is its own, so its group holds nothing of the tests."""

    pid: int
    mark: int
    channel: socket.socket | None
    log: Path
    receipt: Path
    fact: Path
    started_s: float = field(default_factory=time.monotonic)
    said: bytes = b""

    def marked(self) -> bool:
        """Whether the command is at its exec."""
        return os.fstat(self.mark).st_size > 0

    def ended(self) -> bool:
        """Whether the wrapper is a zombie by now; it stays one, so its group may be signalled."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def signal_group(self, number: int) -> None:
        """Signal wrapper, capture and command; only before `wait` has returned."""
        os.killpg(self.pid, number)

    def wait(self, answer: bytes = OK) -> Ended:
        """The end; every line on the channel is answered with `answer`, b"" is silence."""
        watch = os.pidfd_open(self.pid)
        poll = select.poll()
        poll.register(watch, select.POLLIN)
        if self.channel is not None:
            poll.register(self.channel, select.POLLIN)
        try:
            while not self.ended():
                ready = poll.poll(max(0.0, self.started_s + _HANGS_S - time.monotonic()) * 1000)
                if not ready:
                    self.signal_group(signal.SIGKILL)
                    raise AssertionError(f"the wrapper hangs; it said {self.said!r}")
                if self.channel is not None and any(fd != watch for fd, _ in ready):
                    self._hear(poll, answer)
            return self._ended()
        finally:
            os.close(watch)
            self.close()

    def hear(self) -> bytes:
        """Wait for the receipt line without answering it."""
        if self.channel is None:
            raise AssertionError("this wrapper has no daemon")
        self.channel.settimeout(_HANGS_S)
        self.said += self.channel.recv(65_536)
        return self.said

    def close(self) -> None:
        """Reap the wrapper, give the descriptors back."""
        os.waitpid(self.pid, 0)
        os.close(self.mark)
        if self.channel is not None:
            self.channel.close()

    def _hear(self, poll: select.poll, answer: bytes) -> None:
        if self.channel is None:
            return
        try:
            heard = self.channel.recv(65_536)
        except ConnectionResetError:  # it closed without having read our answer
            heard = b""
        self.said += heard
        if not heard:
            poll.unregister(self.channel)
        elif answer and self.said.endswith(b"\n"):
            try:
                self.channel.sendall(answer)
            except BrokenPipeError:  # it has gone meanwhile
                return

    def _drain(self, channel: socket.socket) -> bool:
        """Take what is left in the channel; whether its end follows."""
        channel.setblocking(False)
        try:
            while heard := channel.recv(65_536):
                self.said += heard
        except BlockingIOError:
            return False
        except ConnectionResetError:
            pass
        return True

    def _ended(self) -> Ended:
        seconds = time.monotonic() - self.started_s
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        if found is None:
            raise AssertionError("the wrapper has not ended")
        closed = self.channel is None or self._drain(self.channel)
        folders = {self.fact.parent, self.receipt.parent}
        names = [path.name for folder in folders if folder.is_dir() for path in folder.iterdir()]
        return Ended(
            code=found.si_status if found.si_code == os.CLD_EXITED else -found.si_status,
            said=self.said,
            published=_bytes(self.receipt),
            log=_bytes(self.log) or b"",
            fact=_bytes(self.fact),
            mark=os.fstat(self.mark).st_size,
            seconds=seconds,
            closed=closed,
            left=tuple(n for n in names if f"{self.receipt.stem}." in n and n.endswith(".tmp")),
        )


@dataclass
class Bench:
    """Wrappers under one shell; everything they write lies in `folder`."""

    shell: str
    folder: Path
    script: bytes = field(default_factory=WRAPPER.read_bytes)
    silence_s: int = _PATIENT_S
    count: int = 0

    @functools.cached_property
    def program(self) -> str:
        """The shell's path; a missing shell fails the test, for users' boxes have each of them."""
        name = "busybox" if self.shell == "openwrt" else self.shell
        found = OPENWRT if self.shell == "openwrt" else shutil.which(name)
        if not found:
            pytest.fail(f"{name} is not installed")
        return found

    @functools.cached_property
    def tools(self) -> str:
        """PATH of the wrapper's tools: a busybox's own applets and nothing else, or the system."""
        if self.shell in ("dash", "bash"):
            return TOOLS
        farm = self.folder / "applets"
        farm.mkdir()
        for applet in ("cat", "find", "grep", "ln", "rm", "tr", self.sync):
            (farm / applet).symlink_to(self.program)
        return str(farm)

    @property
    def sync(self) -> str:
        """The tool that syncs one path here."""
        return "fsync" if self.shell == "openwrt" else "sync"

    def run(self, argv: Sequence[str | bytes], **options: Any) -> Ended:
        """Start one command, answer `ok`, wait for its end; options as in `start`."""
        return self.start(argv, **options).wait()

    def task(self, text: str, **options: Any) -> Ended:
        """Run a shell task, as the launcher hands it over."""
        return self.run(["/bin/sh", "-c", text], **options)

    def start(
        self,
        argv: Sequence[str | bytes],
        *,
        environment: Mapping[str, str] | Mapping[bytes, bytes] = PLAIN,
        capture: bool = True,
        daemon: bool = True,
        quota: int = QUOTA,
        before: bytes = b"",
        umask: str = "022",
        log: Path | None = None,
        script: int | None = None,
        receipts: Path | None = None,
        changed: Mapping[str, str | None] | None = None,
    ) -> Running:
        """Start the wrapper.

        `before` stands in the log already; `daemon=False` closes the channel's other end;
        `script` is a descriptor to run instead of a fresh copy; `changed` replaces QL3_ variables
        (the prefix left out), None takes one away.
        """
        self.count += 1
        stem = f"{ATTEMPT}-{self.count}"
        shard = self.folder / "receipts" if receipts is None else receipts
        if receipts is None:
            shard.mkdir(exist_ok=True)
        place = log or self.folder / f"{stem}.log"
        opened = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if before:
            os.write(opened, before)
        target, truncated = shard / f"{stem}.json", self.folder / f".{stem}.log.truncated.json"
        variables: dict[str, str | None] = {
            **self._variables(umask),
            **(self._capture(quota, truncated) if capture else {}),
            "TEMPORARY": str(shard / f".{stem}.{'0' * 32}.tmp"),
            "TARGET": str(target),
            **(changed or {}),
        }
        given = {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
        for name, value in variables.items():
            if value is not None:
                given[f"QL3_{name}".encode()] = value.encode()
        ours, theirs = socket.socketpair()
        _bears(theirs, self.silence_s)
        mark = os.memfd_create("ql3-mark")
        runs = _memory(self._patient()) if script is None else script
        places = {1: mark, 3: runs, 6: opened, 9: theirs.fileno()}
        try:
            words = ["sh", "/proc/self/fd/3", *argv]
            limit = quota if capture else None
            pid = _fork(self.program, words, given, places, limit, self.silence_s)
        finally:
            os.close(opened)
            theirs.close()
            if script is None:
                os.close(runs)
            if not daemon:
                ours.close()
        return Running(pid, mark, ours if daemon else None, place, target, truncated)

    def _patient(self) -> bytes:
        """The script with this bench's patience in the place of its own."""
        before, found, after = self.script.partition(_WAITS % SILENCE_S)
        assert found, "the wrapper waits otherwise"
        return before + _WAITS % self.silence_s + after

    def _variables(self, umask: str) -> dict[str, str]:
        started_ms = time.time_ns() // 1_000_000
        soft, _hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        return {
            "HEAD": receipt.head(
                run_id=RUN,
                attempt_id=ATTEMPT,
                callback_sequence=1,
                token=TOKEN,
                started_at_ms=started_ms,
            ),
            "START_MS": str(started_ms),
            "START_CS": str(uptime_cs()),
            "TOOLS": self.tools,
            "UMASK": umask,
            "FSIZE": "unlimited" if soft == resource.RLIM_INFINITY else str(soft // 512),
            "SYNC": self.sync,
        }

    def _capture(self, quota: int, truncated: Path) -> dict[str, str]:
        log_id = fact.log_artifact_id(RUN, ATTEMPT)
        return {
            "CAPTURE": "1",
            "QUOTA": str(quota),
            "FACT": fact.head(
                run_id=RUN, attempt_id=ATTEMPT, log_artifact_id=log_id, maximum_bytes=quota
            ),
            "FACT_TEMPORARY": str(truncated.with_suffix(".tmp")),
            "FACT_TARGET": str(truncated),
        }


def uptime_cs() -> int:
    """Hundredths of a second since boot, as /proc/uptime tells them now."""
    return int(Path("/proc/uptime").read_text("ascii").split()[0].replace(".", ""))


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes() if path.is_file() else None
    except FileNotFoundError:
        return None


def _bears(sock: socket.socket, silence_s: int) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", silence_s, 0))


def _memory(data: bytes) -> int:
    fd = os.memfd_create("ql3-wrapper")
    os.write(fd, data)
    return fd


def _fork(
    program: str,
    argv: list[str | bytes],
    environment: dict[bytes, bytes],
    places: dict[int, int],
    soft_limit: int | None,
    silence_s: int,
) -> int:
    """The pid of a child that has become the shell: its session and its exec are over."""
    gone_r, gone_w = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            places = places | {_GONE: gone_w}
            _become(program, argv, environment, places, soft_limit, silence_s)
        finally:
            os._exit(199)
    os.close(gone_w)
    try:
        os.read(gone_r, 1)
    finally:
        os.close(gone_r)
    return pid


def _become(
    program: str,
    argv: list[str | bytes],
    environment: dict[bytes, bytes],
    places: dict[int, int],
    soft_limit: int | None,
    silence_s: int,
) -> None:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.setsid()
    os.umask(0o077)
    os.chdir("/")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    null_r, null_w = os.open(os.devnull, os.O_RDONLY), os.open(os.devnull, os.O_WRONLY)
    places = places | {0: null_r, 2: null_w, 5: null_w}
    if soft_limit is None:
        del places[6]
    else:
        done_r, done_w = socket.socketpair()
        _bears(done_r, silence_s)
        output_r, output_w = os.pipe2(0)
        places |= {4: output_r, 5: output_w, 7: done_r.detach(), 8: done_w.detach()}
    parked = {place: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for place, fd in places.items()}
    for fd in {int(name) for name in os.listdir("/proc/self/fd")} - {*parked.values()}:
        try:
            os.close(fd)
        except OSError:
            continue  # the listing's own
    for place, fd in parked.items():
        os.dup2(fd, place, inheritable=place != _GONE)
    if soft_limit is not None:
        _soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft_limit, hard))
    os.execve(program, argv, environment)
