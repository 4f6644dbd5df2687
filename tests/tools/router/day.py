"""A day of a small router: little memory, no swap, 64 processes, 16 MB of flash; its user's words.

A user's commands are processes of the program there, one at a time and as typed; everything else
goes over the control socket through a relay that holds no more than a bare interpreter. What the
user thinks about it is thought on this machine. The program and the state stand on the flash, not
on a shared tree, whose pages would be memory too; the state has a secret and its task from a day on
which there was more memory.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.tools.measure import Product
from tests.tools.router import share
from tests.tools.router.guest import Guest, GuestError, Options
from tests.tools.router.images import Image

# A guest with this much memory has as much of it free as a router of that size, whose own kernel is
# smaller: 26 and 93 MB.
ROUTERS = {"64 MB": 72, "128 MB": 144}
LIMITS = {"reserve_bytes": 2_097_152, "log_quota_bytes": 65_536}  # as README says for little flash
CRONTAB = (
    *(f"{number % 60} {number % 24} * * * echo {number}; true" for number in range(38)),
    "@daily echo day",
    "*/5 1-5 * * 1,3 [ -e /tmp ] && echo there",
)
_FLASH = 16 << 20
_AT_ONCE = 12  # three times what the edge profile lets run
_WITHIN_S = 600.0
_GROUP = "/sys/fs/cgroup/edge"
_PROGRAM = "python3 -I -S /flash/program --state /flash/state"
_NOISE = "i=0; while [ $i -lt 2000 ]; do echo line $i of the noise ..............; i=$((i+1)); done"
_REFUSED = "secret_provider_unavailable"
_COUNTS = ("oom_kill", "pgmajfault")


@dataclass
class Day:
    """What was promised and broken, and what was seen."""

    broken: list[str] = field(default_factory=list)
    seen: dict[str, Any] = field(default_factory=dict)

    def wants(self, held: object, sentence: str) -> None:
        """A promise."""
        if not held:
            self.broken.append(sentence)


class Router:
    """A booted one, its control group, and the program on its flash."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._answers: Iterator[str] = iter(())
        guest.check("mount -t ext4 -o noatime /dev/vdb /flash && chown -R 0:0 /flash")
        guest.check(
            "mount -t cgroup2 none /sys/fs/cgroup && "
            "echo +pids >/sys/fs/cgroup/cgroup.subtree_control && "
            f"mkdir {_GROUP} && echo 64 >{_GROUP}/pids.max"
        )

    def shell(self, line: str) -> tuple[int, str]:
        """One line of a user within the group: its status, what it printed."""
        inside = f"echo $$ >{_GROUP}/cgroup.procs; {line}"
        return self._guest.run(inside, timeout_s=_WITHIN_S)

    def command(self, words: str, given: str = "/dev/null") -> tuple[int, Any]:
        """One command of the program: its status, its document."""
        status, told = self.shell(f"{_PROGRAM} --json {words} <{given}")
        try:
            return status, json.loads(told)
        except ValueError:
            raise GuestError(f"`{words}` ended with {status}: {told[-2_000:]}") from None

    def must(self, words: str) -> Any:
        """A command that has to succeed."""
        status, document = self.command(words)
        if status != 0:
            raise GuestError(f"`{words}` ended with {status}: {document}")
        return document

    def write(self, path: str, text: str) -> None:
        """A small file."""
        quoted = text.replace("\\", "\\\\").replace("\n", "\\n").replace("%", "%%")
        self._guest.check(f"printf '{quoted}' >{path}")

    def read(self, path: str) -> str:
        """What a file has."""
        return self._guest.check(f"cat {path}")

    def start(self) -> None:
        """The daemon; it is ready."""
        begin = f"{_PROGRAM} run >/tmp/ready 2>/tmp/events & echo $! >/tmp/daemon"
        status, told = self.shell(
            f"{begin}; for i in $(seq 600); do grep -q ready /tmp/ready && exit 0; "
            "usleep 100000; done; cat /tmp/events; exit 1"
        )
        if status != 0:
            raise GuestError(f"the daemon is not ready: {told}")

    def stop(self) -> bool:
        """Whether the daemon was alive, and ends when it is asked to."""
        asked = "p=$(cat /tmp/daemon); kill -TERM $p && for i in $(seq 300); do "
        status, _ = self._guest.run(
            f'{asked} [ ! -e /proc/$p ] || grep -q "^State:.Z" /proc/$p/status && exit 0; '
            "usleep 100000; done; exit 1"
        )
        return status == 0

    @contextmanager
    def connected(self) -> Iterator[None]:
        """The relay is there for the time of a block, in which no command can be given."""
        relay = "python3 -I -S /flash/relay.py /flash/state/run/control.sock"
        inside = f"echo $$ >{_GROUP}/cgroup.procs; exec {relay}"
        self._answers = self._guest.lines(inside, timeout_s=_WITHIN_S)
        if next(self._answers, "") != "ready":
            raise GuestError("nobody listens at the control socket")
        yield
        self._guest.send("")
        for _ in self._answers:
            pass

    def call(self, method: str, **params: object) -> Any:
        """One method over the control socket."""
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        self._guest.send(json.dumps(request))
        answer = json.loads(next(self._answers, "null") or "null")
        if answer is None or "error" in answer:
            raise GuestError(f"{method}: {answer}")
        return answer["result"]

    def run(self, task: str) -> Any:
        """A run by hand, to its end."""
        return self.call("run.wait", run=str(self.call("run.start", name=task)["number"]))

    def counts(self) -> dict[str, int]:
        """What the kernel has counted since the boot, and what it can give."""
        told = self.read("/proc/vmstat /proc/meminfo")
        found = dict(re.findall(r"^(\w+):? +(\d+)", told, re.MULTILINE))
        names = (*_COUNTS, "MemAvailable")
        return {name: int(found[name]) for name in names}

    def refused_processes(self) -> int:
        """How often the group had no place for one more."""
        return int(self.read(f"{_GROUP}/pids.events").split()[-1])


def live(router: Router, day: Day, *, runs: int) -> None:
    """Everything that happens on one day."""
    day.seen["available_kib"] = router.counts()["MemAvailable"]
    router.write("/tmp/crontab", "".join(f"{line}\n" for line in CRONTAB))
    imported = router.must("import crontab /tmp/crontab --dialect busybox --zone UTC")
    tasks = [line["task"] for line in imported["imported"]]
    day.wants(len(tasks) == len(CRONTAB), f"{len(tasks)} tasks; refused: {imported['refused']}")
    router.start()
    with router.connected():
        ends = [router.run(tasks[number % len(tasks)])["status"] for number in range(runs)]
        day.wants(set(ends) == {"succeeded"}, f"runs ended as {sorted(set(ends))}")
        _at_once(router, day, tasks[:_AT_ONCE])
        _noisy(router, day)
    _secret(router, day)
    with router.connected():
        day.wants(router.run(tasks[0])["status"] == "succeeded", "no further run ended well")
        status = router.call("status")
    day.seen["daemon_rss_kib"] = status["rss_bytes"] // 1_024
    day.seen["free_bytes"] = status["storage"]["free_bytes"]
    day.wants(router.stop(), "the daemon was gone, or does not end")
    found = router.counts()
    day.seen |= {name: found[name] for name in _COUNTS}
    day.wants(found["oom_kill"] == 0, f"the kernel killed {found['oom_kill']} processes")
    refused = router.refused_processes()
    day.wants(refused == 0, f"there were {refused} processes too many")


def _at_once(router: Router, day: Day, tasks: list[str]) -> None:
    """More than may run at once: they wait for each other, and all of them end."""
    started = [str(router.call("run.start", name=task)["number"]) for task in tasks]
    ends = [router.call("run.wait", run=run)["status"] for run in started]
    day.wants(set(ends) == {"succeeded"}, f"at once they ended as {ends}")


def _noisy(router: Router, day: Day) -> None:
    """The log ends at its quota, and the run does not."""
    router.call("task.add", name="noisy", shell=f"{_NOISE}; exit 7")
    ended = router.run("noisy")
    day.wants(ended["exit_code"] == 7, f"the noisy run ended with {ended['exit_code']}")
    day.wants(ended["log_bytes"] == LIMITS["log_quota_bytes"], f"log: {ended['log_bytes']} bytes")
    read = router.call("log.read", run=str(ended["number"]))
    day.wants(read, "its log is not readable")


def _secret(router: Router, day: Day) -> None:
    """Sealing and opening: done, or refused at once and in words; the day goes on."""
    router.write("/tmp/value", "another value")
    begun = time.monotonic()
    status, answer = router.command("secret set another", "/tmp/value")
    sealed = time.monotonic()
    day.seen["sealing"] = answer["error"]["message"] if status else "done"
    day.seen["sealing_s"] = round(sealed - begun, 1)
    with router.connected():
        ended = router.run("secret")
        degraded = router.call("status")["degraded"]
    day.seen["opening"] = ended["error_code"] or ended["status"]
    day.seen["opening_s"] = round(time.monotonic() - sealed, 1)
    refused = day.seen["opening"] == _REFUSED
    day.wants(degraded == ["memory_low"] * refused, f"it is degraded: {degraded}")
    day.wants(refused or ended["exit_code"] == 0, f"the secret was another one: {ended}")


def lived(image: Image, shared: str, folder: str, *, memory_mib: int, runs: int) -> Day:
    """What a day in such a router comes to; `folder` keeps its flash."""
    day = Day()
    begun = time.monotonic()
    options = Options(memory_mib=memory_mib, disks=(_flash(shared, folder),))
    with Guest(image, options) as guest:
        live(Router(guest), day, runs=runs)
    day.seen["seconds"] = round(time.monotonic() - begun)
    return day


def _flash(shared: str, folder: str) -> str:
    """Program, relay and state on a flash that keeps its blocks for files."""
    tree, path = os.path.join(folder, "tree"), os.path.join(folder, "flash")
    os.mkdir(tree)
    program = shutil.copy(os.path.join(shared, share.ZIPAPP), os.path.join(tree, "program"))
    shutil.copy(os.path.join(shared, "tests", "tools", "router", "relay.py"), tree)
    _state(Product(program), os.path.join(tree, "state"))
    with open(path, "wb") as opened:
        opened.truncate(_FLASH)
    made = ("mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-J", "size=1", "-d", tree, path)
    subprocess.run(made, check=True, capture_output=True)
    return f"file={path},cache=unsafe"


def _state(product: Product, state: str) -> None:
    """A secret, the task that has it, and the limits of a small flash."""
    product.init(state)
    setting = product.command("--state", state, "secret", "set", "token")
    subprocess.run(setting, input=b"a value", stdout=subprocess.DEVNULL, check=True)
    text = '[ "$TOKEN" = "a value" ]'
    words = ("--cwd", "/tmp", "--secret", "TOKEN=token", "--shell", text)
    product.command_with(state, "task", "add", "secret", *words)
    path = os.path.join(state, "config.json")
    with open(path, encoding="utf-8") as opened:
        config = json.load(opened)
    with open(path, "w", encoding="utf-8") as opened:
        json.dump({**config, "limits": LIMITS}, opened)
