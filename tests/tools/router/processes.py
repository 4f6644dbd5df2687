"""Run in a guest: what the program's processes hold and spend there, as one line of JSON.

    python3 -m tests.tools.router.processes ZIPAPP [--runs N] [--rounds N]

Every figure of memory is KiB over a bare interpreter of the same guest under the same flags.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import threading
import time
from typing import Any

from tests.tools import bench_idle, bench_run, measure
from tests.tools.measure import Daemon, Memory, Product

ACTIVE = 4  # as many as the edge profile lets run at once
_WITHIN_S = 120.0


NOTHING = Memory(0, 0, 0)


def told(memory: Memory, over: Memory = NOTHING) -> dict[str, int]:
    """A figure of memory over another one, as JSON."""
    return {
        "rss": memory.rss - over.rss,
        "private_dirty": memory.private_dirty - over.private_dirty,
        "anonymous": memory.anonymous - over.anonymous,
    }


def children(pid: int) -> list[int]:
    """The children of a process."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as opened:
            return [int(word) for word in opened.read().split()]
    except FileNotFoundError:
        return []


def family(pid: int) -> list[int]:
    """A process and all below it."""
    return [pid, *(each for child in children(pid) for each in family(child))]


def life(product: Product, home: str, *, runs: int) -> dict[str, Any]:
    """One daemon with 100 tasks: idle, after so many runs, with as many runs as it lets be."""
    state, fifo = os.path.join(home, "state"), os.path.join(home, "fifo")
    product.populated(state, bench_idle.TASKS)
    os.mkfifo(fifo, 0o600)
    with measure.bare_interpreter(product.python) as (pid, _start):
        bare = measure.memory(pid)
    with product.daemon(state) as daemon:
        idle = measure.memory(daemon.pid)
        daemon.call("task.add", name="one line", shell="echo hi")
        for number in range(ACTIVE):
            daemon.call("task.add", name=f"held {number}", shell=f"read -r word <{fifo}")
        daemon.run("one line")
        first = measure.memory(daemon.pid)
        for _ in range(runs):
            daemon.run("one line")
        after = measure.memory(daemon.pid)
        together = _together(daemon, fifo)
    return {
        "bare": told(bare),
        "idle": told(idle, bare),
        "first": told(first, bare),
        "after": told(after, bare),
        "growth": told(after, first),
        **together,
    }


def _together(daemon: Daemon, fifo: str) -> dict[str, Any]:
    """The daemon's own and its family's dirty memory while several runs are at work."""
    before = measure.memory(daemon.pid)
    begun = [daemon.call("run.start", name=f"held {each}") for each in range(ACTIVE)]
    _until(lambda: len(family(daemon.pid)) >= 1 + 2 * ACTIVE)
    during = measure.memory(daemon.pid)
    below = [measure.memory(pid, at_rest=False) for pid in family(daemon.pid)[1:]]
    with open(fifo, "w", encoding="ascii") as opened:
        opened.write("go\n" * 64 * ACTIVE)
        opened.flush()
        for each in begun:
            daemon.call("run.wait", run=str(each["number"]))
    return {
        "during": told(during, before),
        "wrapper": sum(each.private_dirty for each in below) / ACTIVE,
        "processes": len(below) / ACTIVE,
    }


def _until(done: Any) -> None:
    deadline = time.monotonic() + _WITHIN_S
    while not done():
        if time.monotonic() > deadline:
            raise RuntimeError("not within its time")
        time.sleep(0.05)


def busy(daemon: Daemon) -> bool:
    """Whether a run waits, is being launched or at work."""
    status = daemon.call("status")
    return bool(status["active"] or status["waiting"])


def secrets_known(product: Product) -> bool:
    """Whether the program has secrets."""
    asked = subprocess.run(
        product.command("secret", "--help"), env=measure.ENVIRONMENT, capture_output=True
    )
    return asked.returncode == 0


def secret_launch(product: Product, home: str) -> dict[str, Any]:
    """The most that the child of a launch with one secret holds before it becomes the task."""
    state = os.path.join(home, "secret")
    product.init(state)
    subprocess.run(
        product.command("--state", state, "secret", "set", "token"),
        env=measure.ENVIRONMENT,
        input=b"a value that nobody prints",
        stdout=subprocess.DEVNULL,
        check=True,
    )
    words = ("task", "add", "secret", "--secret", "TOKEN=token")
    product.command_with(state, *words, "--shell", '[ "${#TOKEN}" = 26 ]')
    with measure.bare_interpreter(product.python) as (pid, _start):
        bare = measure.memory(pid)
    with product.daemon(state) as daemon:
        # The child that looks at the keyring shares the daemon's pages, which then are not its own.
        _until(lambda: not children(daemon.pid))
        before = measure.memory(daemon.pid)
        begun: list[Any] = []
        asking = threading.Thread(
            target=lambda: begun.append(daemon.call("run.start", name="secret"))
        )
        asking.start()  # it is answered once the child has opened what it was given
        peak = NOTHING
        while asking.is_alive():
            for child in children(daemon.pid):
                peak = max(peak, python_memory(child), key=lambda each: each.private_dirty)
        asking.join()
        ended = daemon.call("run.wait", run=str(begun[0]["number"]))
        _until(lambda: not children(daemon.pid))
        after = measure.memory(daemon.pid)
    if ended["exit_code"] != 0:
        raise RuntimeError(f"the run with a secret ended as {ended['status']}: {ended}")
    return {"child": told(peak), "daemon": told(after, before), "bare": told(bare)}


def python_memory(pid: int) -> Memory:
    """Memory of a child that is still the program; nothing once it is a shell or gone."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, KeyError):
        if os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python"):
            return measure.memory(pid, at_rest=False)
    return NOTHING


def cost(product: Product, home: str, *, rounds: int) -> dict[str, Any]:
    """Start and run over a bare start and a bare spawn."""
    with measure.folder(on_memory=True) as apart:
        start = bench_idle.start_ratio(product, apart, rounds=rounds)
    with measure.folder(on_memory=True) as apart:
        run = bench_run.cpu_ratio(product, apart, rounds=rounds, runs=10)
    return {"start_ratio": start, "run_cpu_ratio": run}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("zipapp")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("life", "secrets", "modules", "cost"))
    own = parser.parse_args()
    product = Product(own.zipapp)
    found: dict[str, Any] = {}
    with measure.folder(on_memory=True) as home:
        if own.only in (None, "life"):
            found["life"] = life(product, home, runs=own.runs)
        if own.only in (None, "secrets"):
            known = secrets_known(product)
            found["secrets"] = secret_launch(product, home) if known else None
        if own.only in (None, "modules"):
            found["modules"] = bench_idle.modules(product, os.path.join(home, "used"))
        if own.only in (None, "cost"):
            found["cost"] = cost(product, home, rounds=own.rounds)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
