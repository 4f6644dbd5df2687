"""Drives the program as a user does: a state directory, commands, a daemon with a bounded life.

Every command gets a clean environment; a daemon leads its own process group, which is killed when
its block ends. Reading the database is done on a copy, so that no lock of the owner is touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support import ROOT, nearby, until

PROGRAM = (sys.executable, "-S", "-m", "qinglong_edge")
_AUDIT = re.compile(r"(INSERT INTO|DELETE FROM|UPDATE) \"?(audit|sqlite_sequence)\"")
WITHIN_S = 60.0  # a bound for what comes at once, on a machine with much else to do
ENDED = ("succeeded", "failed", "cancelled", "timed_out", "lost")
Answer = tuple[int, Any]


class Told:
    """What a command left: exit status and both streams as text."""

    def __init__(self, done: subprocess.CompletedProcess[bytes]) -> None:
        self.status = done.returncode
        self.out = done.stdout.decode("utf-8")
        self.err = done.stderr.decode("utf-8")


class Daemon:
    """One running daemon; `stderr` is the file of its event lines."""

    def __init__(self, process: subprocess.Popen[bytes], stderr: Path) -> None:
        self.process = process
        self.pid = process.pid
        self.stderr = stderr

    def kill(self) -> None:
        """kill -9, and wait."""
        self.process.kill()
        self.process.wait(WITHIN_S)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask it to end; its exit status."""
        self.process.send_signal(number)
        return self.process.wait(WITHIN_S)

    def said(self) -> str:
        """Its event lines so far."""
        return self.stderr.read_text(encoding="utf-8")


class Kit:
    """One state directory; `place` is a short path that does not exist yet."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.state = place / "s"
        self.environment: dict[str, str] = {"PATH": os.environ["PATH"]}
        self._daemons = 0

    def command(self, *arguments: str | bytes) -> list[str | bytes]:
        """The command line for these arguments."""
        return [*PROGRAM, "--state", str(self.state), *arguments]

    def run(
        self,
        *arguments: str | bytes,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        timeout: float = WITHIN_S,
        **options: Any,
    ) -> Told:
        """One command to its end, as text."""
        environment = self.environment if environment is None else environment
        done = subprocess.run(
            self.command(*arguments),
            input=stdin,
            capture_output=True,
            cwd=ROOT,
            env=dict(environment),
            timeout=timeout,
            **options,
        )
        return Told(done)

    def __call__(self, *arguments: str | bytes, **options: Any) -> Answer:
        """(exit status, the one JSON document)."""
        told = self.run("--json", *arguments, **options)
        assert told.err == "", told.err
        assert told.out.find("\n") == len(told.out) - 1, told.out
        return told.status, json.loads(told.out)

    def ok(self, *arguments: str | bytes, **options: Any) -> Any:
        """The document of a command that must succeed."""
        status, document = self(*arguments, **options)
        assert status == 0, document
        return document

    def no(self, *arguments: str | bytes, status: int, code: str, **options: Any) -> Any:
        """The error of a command that must fail so; its sentence is one line of text."""
        got, document = self(*arguments, **options)
        assert got == status, document
        error = document["error"]
        assert set(error) == {"code", "message", "facts"}, error
        assert error["code"] == code, error
        assert error["message"].strip()
        assert "\n" not in error["message"]
        return error

    @contextlib.contextmanager
    def daemon(
        self, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> Iterator[Daemon]:
        """A daemon that has said `ready`; killed with its group at the end if it still runs."""
        self._daemons += 1
        stderr = self.place / f"daemon{self._daemons}.err"
        with stderr.open("wb") as opened:
            process = subprocess.Popen(
                self.command("run", *arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=opened,
                cwd=ROOT,
                env=dict(self.environment if environment is None else environment),
                start_new_session=True,
            )
        daemon = Daemon(process, stderr)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n", daemon.said()
            yield daemon
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(WITHIN_S)
            if process.stdout is not None:
                process.stdout.close()

    # -- waiting ----------------------------------------------------------------------------------

    def shown(self, run: str | int) -> Any:
        """RUN as it is now."""
        return self.ok("show", str(run))["run"]

    def ended(self, run: str | int, timeout: float = WITHIN_S) -> Any:
        """RUN once it has ended; asked over the socket, so it is cheap."""

        def look() -> Any:
            told = self.ask("run.show", run=str(run)).get("result")
            return told["run"] if told and told["run"]["status"] in ENDED else None

        return until(look, timeout, what=f"run {run} ends")

    def file(self, name: str) -> Path:
        """A file of the test beside the state directory."""
        return self.place / name

    # -- the socket -------------------------------------------------------------------------------

    def connect(self) -> socket.socket:
        """A client's end of the control socket, however long the path of the test's folder is."""
        with nearby(self.state / "run" / "control.sock") as name:
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.connect(name)
                sock.settimeout(WITHIN_S)
            except BaseException:
                sock.close()
                raise
        return sock

    def send(self, data: bytes) -> Any:
        """The answer to raw bytes."""
        with self.connect() as sock, sock.makefile("rb") as lines:
            sock.sendall(data)
            return json.loads(lines.readline())

    def ask(self, method: str, **params: object) -> Any:
        """The answer object of one request."""
        return self.send(request(method, **params))

    # -- the database -----------------------------------------------------------------------------

    def dump(self) -> list[str]:
        """Every row of the state, read from a copy (WAL included)."""
        copy = self.place / "copy"
        copy.mkdir()
        try:
            for name in ("edge.db", "edge.db-wal", "edge.db-journal"):
                if (self.state / name).exists():
                    shutil.copy(self.state / name, copy / name)
            with contextlib.closing(sqlite3.connect(copy / "edge.db")) as database:
                return list(database.iterdump())
        finally:
            shutil.rmtree(copy)

    def sql(self, statement: str, *values: object) -> list[Any]:
        """Change or read the database while nobody owns it."""
        with contextlib.closing(sqlite3.connect(self.state / "edge.db")) as database, database:
            return database.execute(statement, values).fetchall()

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """What happens in this block changes no row; a refusal may leave its audit event."""
        before = self.rows()
        yield
        assert self.rows() == before

    def rows(self) -> list[str]:
        """Every row of the state but those of the audit."""
        return [line for line in self.dump() if not _AUDIT.match(line)]


def fresh(place: Path) -> Kit:
    """An initialised state of its own, in a folder that is made for it."""
    place.mkdir()
    made = Kit(place)
    made.ok("init")
    return made


def request(method: str, **params: object) -> bytes:
    """A request line."""
    document = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return json.dumps(document).encode() + b"\n"


def alive(pid: int) -> bool:
    """True unless the process is gone or a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state.rpartition(")")[2].split()[0] not in ("Z", "X")


def pids(path: Path, count: int = 1) -> list[int]:
    """The pids that a task wrote to a file, one a line, once there are that many."""

    def look() -> list[int]:
        words = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
        return [int(word) for word in words] if len(words) >= count else []

    return until(look, what=f"pids in {path.name}")


def gone(*numbers: int, timeout: float = 30.0) -> None:
    """Wait until none of the processes is there."""
    until(lambda: not any(map(alive, numbers)), timeout, what="processes end")
