"""A router's user at the shell: commands in a router's tree, one state, at most one scheduler.

The program is started as a router starts it, by the first line of its file, with a router's few
variables; the root folder is the tree and the processes are this machine's.
"""

from __future__ import annotations

import contextlib
import json
import select
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

_WITHIN_S = 60.0


class Tree(Protocol):
    """A router's root folder and how it is entered."""

    @property
    def folder(self) -> str:
        """Where it stands."""

    def entering(self, *binds: str) -> tuple[str, ...]:
        """The words before a command that make it the root, with these of its folders in place."""


class Router:
    """One folder in the tree; `packages` are shown beside what every command has."""

    def __init__(self, tree: Tree, home: Path) -> None:
        self.tree = tree
        self.home = home
        self.packages: Sequence[str] = ()

    def inside(self, path: Path) -> str:
        """The path of a file as the router's programs know it."""
        return f"/{path.relative_to(self.tree.folder)}"

    def entered(self, *command: str) -> list[str]:
        """The words that run a command with the tree as its root."""
        return [*self.tree.entering(*self.packages), *command]

    def shell(self, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A line at BusyBox's shell, to its end."""
        return self._done(self.entered("/bin/sh", "-c", text, "sh", *arguments))

    def run(self, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """A command of the program as a person types it."""
        return self._done(self.entered(*self._command(*arguments)), given)

    def ok(self, *arguments: str, given: str = "") -> Any:
        """The document of a command that has to succeed."""
        done = self.run("--json", *arguments, given=given)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    @contextlib.contextmanager
    def scheduler(self, *, killed: bool = False) -> Iterator[int]:
        """The scheduler in the foreground; its process, asked to stop at the end, or killed."""
        with (self.home / "events").open("ab") as events:
            command = self.entered(*self._command("run"))
            started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=events)
        try:
            assert started.stdout is not None
            assert select.select([started.stdout], [], [], _WITHIN_S)[0], self.events()
            assert started.stdout.readline() == b"ready\n", self.events()
            yield started.pid
            started.send_signal(signal.SIGKILL if killed else signal.SIGTERM)
            ended = started.wait(_WITHIN_S)
            assert ended == (-signal.SIGKILL if killed else 0), self.events()
        finally:
            started.kill()
            started.communicate()

    def events(self) -> str:
        """What the scheduler said so far."""
        return (self.home / "events").read_text(encoding="utf-8")

    def _command(self, *arguments: str) -> tuple[str, ...]:
        home = self.inside(self.home)
        return (f"{home}/qinglong-edge", "--state", f"{home}/state", *arguments)

    def _done(self, command: list[str], given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, input=given, capture_output=True, encoding="utf-8", timeout=_WITHIN_S
        )
