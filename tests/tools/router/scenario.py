"""Run in a guest: the main job on a disk whose writes are recorded, each answer marked as given.

    python3 -m tests.tools.router.scenario ZIPAPP STATE

Every command marks its effect and exits 7; what a person was told is marked at once. The last line
printed is the number of runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.tools import measure
from tests.tools.measure import Daemon, Product
from tests.tools.router import processes
from tests.tools.router.marks import Marks, effect

LIMITS = {"reserve_bytes": 1_048_576, "log_quota_bytes": 65_536}  # the disk is small
EXIT = 7
_WITHIN_S = 60.0
_GO = "/tmp/go"


class Recorded:
    """The state, its daemon of the moment, and the marks."""

    def __init__(self, product: Product, state: str) -> None:
        self.product = product
        self.state = state
        self.marks = Marks()
        self.daemon: Daemon | None = None
        self.runs = 0

    def command(self, *arguments: str, given: bytes | None = None) -> None:
        """One command of the program, which must succeed."""
        subprocess.run(
            self.product.command("--state", self.state, *arguments),
            env=measure.ENVIRONMENT,
            input=given,
            stdout=subprocess.DEVNULL,
            check=True,
        )

    def init(self) -> None:
        """Make the state and let it fit its disk."""
        self.command("init")
        self.marks.say(ack="init")
        path = os.path.join(self.state, "config.json")
        with open(path, encoding="utf-8") as opened:
            config = json.load(opened)
        config["limits"] = LIMITS
        with open(f"{path}.new", "w", encoding="utf-8") as opened:
            json.dump(config, opened)
            opened.flush()
            os.fsync(opened.fileno())
        os.rename(f"{path}.new", path)

    @property
    def live(self) -> Daemon:
        """The daemon."""
        if self.daemon is None:
            raise RuntimeError("there is no daemon")
        return self.daemon

    @contextmanager
    def owned(self, *, killed: bool = False) -> Iterator[None]:
        """A daemon for the time of a block; it is asked to stop, or killed."""
        with self.product.daemon(self.state) as self.daemon:
            yield
            if killed:
                self.daemon.kill()
        self.daemon = None

    def add(self, name: str, before: str = "", **fields: object) -> None:
        """A task that marks its effect; it is told that the task is there."""
        text = f"{before}{effect(name)}; exit {EXIT}"
        self.live.call("task.add", name=name, shell=text, **fields)
        self.marks.say(ack="task", name=name)

    def start(self, name: str) -> str:
        """A manual run; it is told that the run is admitted."""
        run = str(self.live.call("run.start", name=name)["number"])
        self.runs += 1
        self.marks.say(ack="admitted", run=run, name=name)
        return run

    def wait(self, run: str) -> None:
        """The end of a run; it is told how it ended."""
        document = self.live.call("run.wait", run=run)
        said = {key: document[key] for key in ("status", "exit_code")}
        self.marks.say(ack="ended", run=run, **said)

    def run(self, name: str) -> None:
        """Start and end."""
        self.wait(self.start(name))

    def hold(self, name: str) -> str:
        """A run that waits for `go` is at work."""
        run = self.start(name)
        until(lambda: os.path.exists(f"{_GO}.{name}"))
        return run

    def go(self) -> None:
        """The held command goes on."""
        with open(_GO, "w", encoding="ascii"):
            pass

    def published(self) -> None:
        """The wrapper whose daemon is gone has ended; its receipt was said to be durable."""
        until(lambda: not _wrappers())
        for folder, _folders, names in os.walk(os.path.join(self.state, "receipts")):
            for name in names:
                if name.endswith(".json") and ".quarantine" not in folder:
                    self.marks.say(ack="receipt", attempt=name.removesuffix(".json"))


def until(ready: Callable[[], object]) -> None:
    """Wait with a bound."""
    deadline = time.monotonic() + _WITHIN_S
    while not ready():
        if time.monotonic() > deadline:
            raise RuntimeError("the scenario stands still")
        time.sleep(0.02)


def _wrappers() -> list[str]:
    """Processes of held commands: they have the file in their words."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as opened:
                if _GO.encode() in opened.read():
                    found.append(name)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _held(name: str) -> str:
    return f": >{_GO}.{name}; while [ ! -e {_GO} ]; do sleep 0.05; done; "


def _clear() -> None:
    for name in os.listdir("/tmp"):
        if name.startswith("go"):
            os.unlink(os.path.join("/tmp", name))


def play(recorded: Recorded) -> None:
    """The main job, one thing after the other."""
    recorded.init()
    noise = "i=0; while [ $i -lt 900 ]; do echo $i.......................................; "
    with recorded.owned():
        recorded.add("plain", log=False)
        recorded.add("noisy", before=f"{noise}i=$((i+1)); done; {noise}i=$((i+1)); done; ")
        recorded.add("held", before=_held("held"), log=False)
        recorded.run("plain")
        recorded.run("noisy")
        recorded.run("plain")
        run = recorded.hold("held")
    recorded.go()  # nobody listens: the wrapper leaves its receipt as a file
    recorded.published()
    _clear()
    with recorded.owned(killed=True):
        recorded.wait(run)
        recorded.run("plain")
        run = recorded.hold("held")
    with recorded.owned():  # adopts what the killed one has left
        recorded.marks.say(ack="adopted", run=run)
        recorded.go()
        recorded.wait(run)
        _clear()
        recorded.add("ticking", cron=["* * * * * *"], zone="UTC", log=False)
        until(lambda: _count(recorded.live, "ticking") >= 2)
        recorded.live.call("task.set", name="ticking", cron=[])
        until(lambda: not processes.busy(recorded.live))
    if processes.secrets_known(recorded.product):
        _with_secret(recorded)


def _with_secret(recorded: Recorded) -> None:
    recorded.command("secret", "set", "token", given=b"a value")
    recorded.marks.say(ack="secret", name="token")
    words = ("task", "add", "secret", "--no-log", "--secret", "TOKEN=token", "--shell")
    recorded.command(*words, f'[ "$TOKEN" = "a value" ] && {effect("secret")}; exit {EXIT}')
    recorded.marks.say(ack="task", name="secret")
    with recorded.owned():
        recorded.run("secret")


def _count(daemon: Daemon, task: str) -> int:
    listed: Any = daemon.call("runs.list", task=task, limit=10)
    return len(listed["runs"])


def main(zipapp: str, state: str) -> None:
    """Play, and let nothing be left unsaid."""
    recorded = Recorded(Product(zipapp), state)
    play(recorded)
    print(json.dumps({"runs": recorded.runs}))


if __name__ == "__main__":
    main(*sys.argv[1:])
