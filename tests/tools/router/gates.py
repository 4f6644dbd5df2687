"""The budgets inside a router: its table of processes against the numbers of two profiles."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.tools import bench_idle
from tests.tools.gates import Gate, budget
from tests.tools.router import share
from tests.tools.router.guest import Guest
from tests.tools.router.machines import MINOR

_MODULE = "tests.tools.router.processes"
_WORKERS = "tests.tools.router.workers"
_RUNTIME_GOLDEN, _WORKER_GOLDEN = "golden_modules.txt", "golden_worker_modules.txt"
_NAMED = 8
PARTS = ("life", "secrets", "modules", "cost")


@dataclass(frozen=True)
class Table:
    """What was found in one guest, as gates; `blame` tells what a missed one has that is large."""

    gates: list[Gate]
    blame: str

    @property
    def held(self) -> bool:
        """Whether every number is within its limit."""
        return all(gate.held for gate in self.gates)

    def __str__(self) -> str:
        lines = [str(gate) for gate in self.gates]
        return "\n".join(lines if self.held else [*lines, self.blame])


def measured(
    guest: Guest, root: str, *, parts: tuple[str, ...] = PARTS, runs: int, rounds: int
) -> Table:
    """Measure in a booted guest that has the tree at `root` as its share."""
    found: dict[str, Any] = {}
    for part in parts:
        words = ("--only", part, "--runs", runs, "--rounds", rounds)
        found |= guest.python(_MODULE, f"/share/{share.ZIPAPP}", *words, timeout_s=900.0)
    return judged(root, found)


def judged(root: str, found: dict[str, Any]) -> Table:
    """What was measured by parts, against the numbers of the profile."""
    limits = budget(root)
    makers: dict[str, Callable[[Any, dict[str, float]], list[Gate]]] = {
        "life": _life,
        "secrets": _secrets,
        "modules": lambda loaded, _limits: [_modules(root, loaded)],
        "cost": _cost,
    }
    gates = [gate for part in found for gate in makers[part](found[part], limits)]
    return Table(gates, blame(root, found.get("modules")))


def measured_worker(guest: Guest, root: str, *, offers: int) -> Table:
    """The worker's table, measured as the other one."""
    limits = budget(root, "worker-edge")
    words = (f"/share/{share.WORKER}", "--offers", offers)
    found = guest.python(_WORKERS, *words, timeout_s=900.0)
    life, growth = found["life"], limits["growth_kib"]
    dirty, child = life["idle"]["private_dirty"], life["child"]["anonymous"]
    gates = [
        Gate("idle worker private dirty KiB", dirty, limits["idle_private_dirty_kib"]),
        Gate("idle worker RSS KiB", life["idle"]["rss"], limits["idle_rss_kib"]),
        Gate("child of an offer with a secret KiB", child, limits["router_secret_child_kib"]),
        Gate("growth by a launch KiB", life["launched"]["private_dirty"], growth),
        Gate(f"growth by {offers} offers KiB", life["growth"]["private_dirty"], growth),
        _modules(root, found["modules"], _WORKER_GOLDEN),
    ]
    return Table(gates, blame(root, found["modules"], _WORKER_GOLDEN))


def _life(found: dict[str, Any], limits: dict[str, float]) -> list[Gate]:
    growth = limits["growth_kib"]
    return [
        Gate(
            "idle private dirty KiB",
            found["idle"]["private_dirty"],
            limits["idle_private_dirty_kib"],
        ),
        Gate("idle RSS KiB", found["idle"]["rss"], limits["idle_rss_kib"]),
        Gate("growth by runs KiB", found["growth"]["private_dirty"], growth),
        Gate("growth by 4 runs at once KiB", found["during"]["private_dirty"], growth),
        Gate("a running task's own KiB", found["wrapper"], limits["router_wrapper_kib"]),
    ]


def _secrets(found: dict[str, Any] | None, limits: dict[str, float]) -> list[Gate]:
    if found is None:
        return []
    child = found["child"]["anonymous"]
    return [
        Gate("child with a secret KiB", child, limits["router_secret_child_kib"]),
        Gate("growth by a secret KiB", found["daemon"]["private_dirty"], limits["growth_kib"]),
    ]


def _modules(root: str, loaded: list[str], golden: str = _RUNTIME_GOLDEN) -> Gate:
    over = sorted(frozenset(loaded) - _golden(root, golden))
    return Gate(f"modules over golden ({', '.join(over) or 'none'})", len(over), 0)


def _cost(found: dict[str, Any], limits: dict[str, float]) -> list[Gate]:
    return [
        Gate(
            "start over a bare start", round(found["start_ratio"], 2), limits["router_start_ratio"]
        ),
        Gate(
            "run over a bare spawn",
            round(found["run_cpu_ratio"], 2),
            limits["router_run_cpu_ratio"],
        ),
    ]


def _golden(root: str, name: str) -> frozenset[str]:
    path = os.path.join(root, "tests", "build", name)
    return bench_idle.golden(path, f"3.{MINOR}")


def blame(root: str, loaded: list[str] | None, golden: str = _RUNTIME_GOLDEN) -> str:
    """The modules over the golden list, and the largest of ours by their sources."""
    if loaded is None:
        return ""
    over = sorted(frozenset(loaded) - _golden(root, golden))
    paths = {name: f"{os.path.join(root, *name.split('.'))}.py" for name in loaded}
    sized = [(os.path.getsize(path), name) for name, path in paths.items() if os.path.isfile(path)]
    largest = ", ".join(f"{name} {size:,}" for size, name in sorted(sized, reverse=True)[:_NAMED])
    return f"modules over golden: {', '.join(over) or 'none'}; by size: {largest}"
