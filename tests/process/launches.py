"""The process room put together as the product does it, in a test's own folder.

`World` is one owner: real shell, real /proc, real signals, a receipt root, a verified wrapper. Its
effects may be replaced one by one (`World(folder, processes=...)`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from qinglong_edge.core import receipt as receipts
from qinglong_edge.core.evidence import Exit, Target
from qinglong_edge.core.plan import LaunchPlan
from qinglong_edge.core.receipt import Receipt
from qinglong_edge.process import wrapper
from qinglong_edge.process.controller import Controller
from qinglong_edge.process.identity import Inspector
from qinglong_edge.process.launcher import Launch, Launcher, Tools
from qinglong_edge.process.receipts import ReceiptStore
from qinglong_edge.system.child import Spawner
from qinglong_edge.system.clock import Clock
from qinglong_edge.system.files import Files
from qinglong_edge.system.loop import Loop
from qinglong_edge.system.process import Processes
from tests.support import until

RUN = "019f7200-0000-7000-8000-000000000001"
ATTEMPT = "019f7200-0000-7000-8000-000000000002"
TOKEN = "t" * 43
QUOTA = 65_536
PLAIN = {"PATH": "/usr/bin:/bin"}


def plan(text: str, **changes: Any) -> LaunchPlan:
    """A plan that has /bin/sh run `text`."""
    given: dict[str, Any] = {
        "run_id": RUN,
        "attempt_id": ATTEMPT,
        "callback_sequence": 1,
        "token": TOKEN,
        "started_at_ms": Clock().wall_ms(),
        "argv": ("/bin/sh", "-c", text),
        "environment": dict(PLAIN),
        "cwd": "/",
        "nice": 0,
        "log_quota_bytes": 0,
    }
    given.update(changes)
    return LaunchPlan(**given)


class World:
    """One owner's process room."""

    def __init__(
        self,
        folder: Path,
        *,
        processes: Processes | None = None,
        spawner: Spawner | None = None,
        shell: str = "/bin/sh",
        sync: str = "sync",
        program_fd: int | None = None,
    ) -> None:
        self.folder = folder
        self.processes = processes or Processes()
        self.inspector = Inspector(self.processes)
        self.clock = Clock()
        root = folder / "receipts"
        root.mkdir(mode=0o700, exist_ok=True)
        self.receipts = ReceiptStore(str(root), Files())
        self.wrapper = folder / "wrapper.sh"
        wrapper.install(str(self.wrapper))
        self.tools = Tools(sync=lambda: sync, shell=shell)
        self.launcher = Launcher(
            spawner or Spawner(),
            self.processes,
            self.inspector,
            self.receipts,
            self.clock,
            wrapper_path=str(self.wrapper),
            tools=self.tools,
            oom_score_adj=0,
            program_fd=program_fd,
        )

    def begin(self, text: str, **changes: Any) -> Launch:
        """A child behind its gate, on its way to say that it is ready."""
        wanted = plan(text, **changes)
        fact = None
        if wanted.log_quota_bytes:
            fact = (str(self.folder / ".log.tmp"), str(self.folder / ".log.json"))
        return self.launcher.begin(wanted, fact)

    def ready(self, text: str, **changes: Any) -> Launch:
        """A child that waits for the word; its receipt's place is prepared."""
        launch = self.begin(text, **changes)
        try:
            until(launch.take_ready)
        except BaseException:
            launch.refuse()
            raise
        self.launcher.prepare(ATTEMPT)
        return launch

    def start(self, text: str, **changes: Any) -> tuple[Launch, Target]:
        """A task beyond its gate, and the handle under which a later owner would know it."""
        launch = self.ready(text, **changes)
        identity = self.launcher.identify(launch, ATTEMPT)
        launch.open_gate(None)
        target = Target(
            handle=identity.handle, pid=identity.pid, pid_namespace=identity.pid_namespace
        )
        return launch, target

    def stopping(self) -> tuple[Controller, Loop]:
        """A controller on a loop of its own; the caller closes the loop."""
        loop = Loop(self.clock)
        return Controller(self.processes, self.inspector, loop, self.clock), loop


def ended(launch: Launch) -> Exit:
    """How the wrapper ended; it stays a zombie."""
    found = until(launch.peek_exit, what="the wrapper's end")
    if found is None:
        raise AssertionError("the wrapper has not ended")
    return found


def hear(launch: Launch) -> tuple[str, Receipt]:
    """The receipt line that comes over the channel."""
    said = b""
    while not said.endswith(b"\n"):
        said += until(launch.read_channel) or b""
    word, _, text = said.partition(b" ")
    return word.decode(), receipts.decode(text.rstrip(b"\n"))


def gone(pid: int) -> bool:
    """Whether no process bears this number, a zombie neither."""
    return not os.path.exists(f"/proc/{pid}")
