"""The parts of the bench: each measures some rows where it runs, on this machine or in a router.

    python3 -m tests.tools.bench_parts ZIPAPP PART EFFORT SETTING

prints what one part found as one line of JSON, by row or `row/peer`: a number, or the reason for
none. SETTING is a JSON object with fields of `Setting`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from tests.tools import bench_idle, bench_peers, bench_places, bench_run, bench_scale, measure
from tests.tools.bench_rows import EFFORTS, FEW, FLASH, PLACES, SMALL, Effort, Found
from tests.tools.measure import ROOT, Product, UnmeasurableError
from tests.tools.router import processes

GOLDEN = os.path.join(ROOT, "tests", "build", "golden_modules.txt")
MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"
STATES = ("small", "large")
_QUESTIONS = 25
_RECORDS = tuple(f"run_device_bytes_burst/{peer}" for peer in bench_peers.OTHERS)


@dataclass(frozen=True)
class Setting:
    """What is measured and where; the defaults are this machine's."""

    product: Product
    effort: Effort
    mounted: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # a router's disks
    prepared: str | None = None  # a folder with the two stopped states of `scale`
    tools: Mapping[str, str] = field(default_factory=dict)  # what the peers need, by peer
    without: Mapping[str, str] = field(default_factory=dict)  # why a peer cannot be had

    @property
    def router(self) -> bool:
        """Whether this is an emulated router, whose only shell is BusyBox's."""
        return bool(self.mounted)


def measured(part: str, setting: Setting) -> Found:
    """What a part found; every row of it, with the one reason if it cannot be measured here."""
    try:
        with measure.folder(on_memory=True) as home:
            return PARTS[part].measure(setting, home)
    except UnmeasurableError as error:
        return dict.fromkeys(PARTS[part].rows(setting.effort), str(error))


# -- the program ----------------------------------------------------------------------------------


def _artifact(setting: Setting, _home: str) -> Found:
    path = setting.product.zipapp
    with zipfile.ZipFile(path) as opened:
        members = len(opened.namelist())
    return {"artifact_bytes": os.path.getsize(path), "artifact_files": members}


def _modules(setting: Setting, home: str) -> Found:
    loaded = frozenset(bench_idle.modules(setting.product, home))
    over = loaded - bench_idle.golden(GOLDEN, MINOR)
    return {"resident_modules": len(loaded), "modules_over_golden": len(over)}


# -- memory ---------------------------------------------------------------------------------------


def _footprint(setting: Setting, home: str) -> Found:
    found = bench_idle.footprint(setting.product, home, rounds=setting.effort.rounds)
    return {
        "idle_private_dirty": found.private_dirty,
        "idle_rss_with_zone": found.rss_with_zone,
    }


def _growth(setting: Setting, home: str) -> Found:
    found = processes.life(setting.product, home, runs=setting.effort.growth)
    return {
        "growth_by_runs": found["growth"]["private_dirty"],
        "growth_by_4_at_once": found["during"]["private_dirty"],
        "running_task": found["wrapper"],
    }


def _secrets(setting: Setting, home: str) -> Found:
    try:
        found = processes.secret_launch(setting.product, home)
    except subprocess.CalledProcessError:
        raise UnmeasurableError("this Python has no `cryptography`") from None
    return {
        "secret_child": found["child"]["anonymous"],
        "growth_by_a_secret": found["daemon"]["private_dirty"],
    }


# -- what starts and runs cost --------------------------------------------------------------------


def _start(setting: Setting, home: str) -> Found:
    ratio = bench_idle.start_ratio(setting.product, home, rounds=setting.effort.rounds)
    return {"start_ratio": ratio}


def _run_sh(setting: Setting, home: str) -> Found:
    if setting.router:
        raise UnmeasurableError("a router's only shell is BusyBox's")
    effort = setting.effort
    ratio = bench_run.cpu_ratio(setting.product, home, rounds=effort.turns, runs=effort.runs)
    return {"run_cpu_ratio_sh": ratio}


def _run_ash(setting: Setting, home: str) -> Found:
    effort = setting.effort
    with ExitStack() as stack:
        ash = None if setting.router else stack.enter_context(measure.busybox())
        ratio = bench_run.cpu_ratio(
            setting.product, home, rounds=effort.turns, runs=effort.runs, ash=ash
        )
    return {"run_cpu_ratio_ash": ratio}


def _due(setting: Setting, home: str) -> Found:
    if measure.memory_folder() is None:
        raise UnmeasurableError("there is no tmpfs at /dev/shm")
    ratio = bench_run.due_ratio(setting.product, home, seconds=setting.effort.due_s)
    return {"due_to_command_ratio": ratio}


def _sustained(setting: Setting, home: str) -> Found:
    found = bench_run.sustained(setting.product, home, seconds=setting.effort.sustained_s)
    return {
        "sustained_run_ratio": found.runs_ns / found.spawn_ns,
        "runs_per_minute": 60e9 / found.runs_ns,
    }


# -- the device -----------------------------------------------------------------------------------


def _burst(setting: Setting, _home: str) -> Found:
    # A whole round of the write-ahead log has to lie within the measured runs.
    runs = setting.effort.device
    with bench_places.disk("ext4", setting.mounted) as disk:
        found = bench_run.device(setting.product, disk, runs=runs, apart=False)
    uncounted = "this kernel does not count it"
    return {
        "run_device_bytes_burst": found.bytes,
        "run_commits": found.commits,
        "run_flushes": uncounted if found.flushes is None else found.flushes,
    } | dict.fromkeys(_RECORDS, "it keeps no record of a run")


def _apart(setting: Setting, _home: str) -> Found:
    with bench_places.disk("ext4", setting.mounted) as disk:
        found = bench_run.device(setting.product, disk, runs=setting.effort.apart, apart=True)
    return {"run_device_bytes_apart": found.bytes}


def _places(setting: Setting, _home: str) -> Found:
    return _on(setting, PLACES)


def _flash(setting: Setting, _home: str) -> Found:
    if not setting.router:
        raise UnmeasurableError("this machine has no flash chip")
    return _on(setting, FLASH)


def _on(setting: Setting, kinds: Sequence[str]) -> Found:
    """What a run writes on each kind of file system."""
    found: Found = {}
    for kind in kinds:
        try:
            with bench_places.disk(kind, setting.mounted) as disk:
                runs = setting.effort.device
                run = bench_run.device(setting.product, disk, runs=runs, apart=False)
            found[f"run_device_bytes_{kind}"] = run.bytes
        except UnmeasurableError as error:
            found[f"run_device_bytes_{kind}"] = str(error)
    return found


# -- rest and scale -------------------------------------------------------------------------------


def prepare(product: Product, folder: str, effort: Effort) -> None:
    """The two stopped states of `scale`, in a new folder."""
    os.mkdir(folder)
    for name, tasks, runs in zip(STATES, (FEW, effort.tasks), (100, effort.history), strict=True):
        bench_scale.prepare(product, os.path.join(folder, name), tasks=tasks, runs=runs)


def _scale(setting: Setting, home: str) -> Found:
    effort = setting.effort
    if setting.prepared is None:
        raise UnmeasurableError("nobody has made its states")
    for name in STATES:
        shutil.copytree(os.path.join(setting.prepared, name), os.path.join(home, name))
    with ExitStack() as stack:
        states = [os.path.join(home, name) for name in STATES]
        pair = [stack.enter_context(setting.product.daemon(state)) for state in states]
        held = [measure.memory(daemon.pid).private_dirty for daemon in pair]
        rests = bench_idle.idle(pair, seconds=effort.idle_s)
        grown = bench_scale.growth(*pair, seconds=effort.ticks_s, questions=_QUESTIONS)
    found: Found = {"tick_growth": grown.tick, "status_growth": grown.status}
    for tasks, rest in zip((FEW, effort.tasks), rests, strict=True):
        found[f"idle_bytes_written_{tasks}"] = rest.written
        found[f"idle_wakes_per_minute_{tasks}"] = rest.wakes_per_minute
    return found | {"memory_growth": held[1] - held[0]}


def _small(_setting: Setting, _home: str) -> Found:
    raise UnmeasurableError("a small router has a day of its own, this machine has not")


# -- the peers ------------------------------------------------------------------------------------


def _peers_at_rest(setting: Setting, home: str) -> Found:
    place = bench_peers.Place(home, setting.tools, setting.without)
    return bench_peers.at_rest(setting.product, place, seconds=setting.effort.idle_s)


def _peers_at_work(setting: Setting, home: str) -> Found:
    if not setting.effort.minutes:
        raise UnmeasurableError("their tasks are due at whole minutes: not in a quick look")
    place = bench_peers.Place(home, setting.tools, setting.without)
    run = bench_peers.RUNS[setting.router]
    return bench_peers.at_work(place, minutes=setting.effort.minutes, run=run)


# -- all of them ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """One measurement and the rows it has figures for."""

    measure: Callable[[Setting, str], Found]
    rows: Callable[[Effort], list[str]]


def _part(function: Callable[[Setting, str], Found], *rows: str) -> Part:
    return Part(function, lambda _effort: list(rows))


def _scaled(effort: Effort) -> list[str]:
    idle = ("idle_bytes_written", "idle_wakes_per_minute")
    named = [f"{name}_{tasks}" for name in idle for tasks in (FEW, effort.tasks)]
    return [*named, "tick_growth", "status_growth", "memory_growth"]


PARTS: dict[str, Part] = {
    "artifact": _part(_artifact, "artifact_bytes", "artifact_files"),
    "modules": _part(_modules, "resident_modules", "modules_over_golden"),
    "footprint": _part(_footprint, "idle_private_dirty", "idle_rss_with_zone"),
    "start": _part(_start, "start_ratio"),
    "run under sh": _part(_run_sh, "run_cpu_ratio_sh"),
    "run under ash": _part(_run_ash, "run_cpu_ratio_ash"),
    "due": _part(_due, "due_to_command_ratio"),
    "sustained": _part(_sustained, "sustained_run_ratio", "runs_per_minute"),
    "burst": _part(_burst, "run_device_bytes_burst", "run_commits", "run_flushes", *_RECORDS),
    "apart": _part(_apart, "run_device_bytes_apart"),
    "places": _part(_places, *(f"run_device_bytes_{kind}" for kind in PLACES)),
    "flash": _part(_flash, *(f"run_device_bytes_{kind}" for kind in FLASH)),
    "secrets": _part(_secrets, "secret_child", "growth_by_a_secret"),
    "growth": _part(_growth, "growth_by_runs", "growth_by_4_at_once", "running_task"),
    "scale": Part(_scale, _scaled),
    "small routers": _part(
        _small, *(f"day_{size}_{what}" for size in SMALL for what in ("broken", "rss"))
    ),
    "peers at rest": _part(_peers_at_rest, *bench_peers.AT_REST),
    "peers at work": _part(_peers_at_work, *bench_peers.AT_WORK),
}


def main(zipapp: str, part: str, effort: str, given: str) -> None:
    """Measure one part and print."""
    settings: dict[str, Any] = json.loads(given)
    print(json.dumps(measured(part, Setting(Product(zipapp), EFFORTS[effort], **settings))))


if __name__ == "__main__":
    main(*sys.argv[1:])
