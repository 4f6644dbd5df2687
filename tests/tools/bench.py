"""`build.py bench`: the measured table of this machine, each row with its gate and its goal.

A ratio is measured in one session against a bare interpreter or a bare spawn, so it means the same
on a fast and on a slow box; an absolute time is never a row. A row that this user or machine cannot
measure prints null and the reason. Exit status: 0, or 1 if a gate is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests.tools import bench_idle, bench_run, bench_scale, builder, gates, measure
from tests.tools.measure import ROOT, Product, UnmeasurableError

GOLDEN = os.path.join(ROOT, "tests", "build", "golden_modules.txt")
MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"
FLAT_GATE, FLAT_GOAL = 1.5, 1.2  # "flat" within what two runs of the same thing differ by


@dataclass(frozen=True)
class Row:
    """One measured number; `value` is None where `reason` says why."""

    name: str
    value: float | None
    unit: str
    gate: float
    goal: float
    how: str
    reason: str | None = None

    @property
    def ok(self) -> bool | None:
        """Whether the gate holds; None for what was not measured."""
        return None if self.value is None else self.value <= self.gate

    def document(self) -> dict[str, object]:
        """The row as JSON."""
        value = None if self.value is None else round(self.value, 2)
        return {
            "name": self.name,
            "value": value,
            "unit": self.unit,
            "gate": self.gate,
            "goal": self.goal,
            "ok": self.ok,
            "reason": self.reason,
            "how": self.how,
        }


@dataclass(frozen=True)
class Effort:
    """How long to look: the whole bench, or a quick one that a person waits for."""

    rounds: int
    runs: int
    apart: int
    due_s: int
    idle_s: int
    tasks: int
    history: int
    ticks_s: int


WHOLE = Effort(15, 25, 60, 30, 120, 10_000, 100_000, 20)
QUICK = Effort(5, 10, 20, 8, 35, 2_000, 20_000, 6)


@dataclass(frozen=True)
class Line:
    """A row that is to be measured."""

    name: str
    unit: str
    gate: float
    goal: float
    how: str

    def row(self, value: float | None, reason: str | None = None) -> Row:
        return Row(self.name, value, self.unit, self.gate, self.goal, self.how, reason)


Group = tuple[list[Line], Callable[[], "list[float | None]"]]


def measured(group: Group) -> list[Row]:
    """The rows of a group; all null with one reason if it cannot be measured here."""
    lines, measurement = group
    try:
        values = measurement()
    except UnmeasurableError as error:
        return [line.row(None, str(error)) for line in lines]
    missing = "this kernel does not count it"
    return [
        line.row(value, missing if value is None else None)
        for line, value in zip(lines, values, strict=True)
    ]


@contextmanager
def _place() -> Iterator[str]:
    with measure.folder(on_memory=True) as home:
        yield home


def groups(product: Product, artifact: builder.Artifact, effort: Effort) -> list[Group]:
    """Everything there is to measure, cheapest first."""
    limits = gates.budget(ROOT)
    return [
        _artifact(artifact, limits),
        _modules(product),
        _footprint(product, effort, limits),
        _start(product, effort, limits),
        _cpu(product, effort, limits, shell="sh"),
        _cpu(product, effort, limits, shell="ash"),
        _due(product, effort, limits),
        _burst(product, effort, limits),
        _apart(product, effort, limits),
        _large(product, effort, limits),
    ]


def _artifact(artifact: builder.Artifact, limits: dict[str, float]) -> Group:
    how = "sources and byte code, as built"
    return [
        Line("artifact_bytes", "bytes", limits["zipapp_bytes"], 196_608, how),
        Line("artifact_files", "files", limits["zipapp_files"], 512, how),
    ], lambda: [artifact.size, len(artifact.entries)]


def _modules(product: Product) -> Group:
    def measurement() -> list[float | None]:
        with _place() as home:
            loaded = frozenset(bench_idle.modules(product, home))
        return [len(loaded), len(loaded - bench_idle.golden(GOLDEN, MINOR))]

    how = "sys.modules over a bare interpreter, after a run and the common questions"
    return [
        Line("resident_modules", "modules", 999, 999, how),
        Line("modules_over_golden", "modules", 0, 0, "those that the golden list does not name"),
    ], measurement


def _footprint(product: Product, effort: Effort, limits: dict[str, float]) -> Group:
    def measurement() -> list[float | None]:
        with _place() as home:
            found = bench_idle.footprint(product, home, rounds=effort.rounds)
        return [found.private_dirty, found.rss_with_zone]

    how = "100 tasks, smaps_rollup after sync, over a bare interpreter under -I -S"
    dirty, rss = limits["idle_private_dirty_kib"], limits["idle_rss_kib"]
    return [
        Line("idle_private_dirty", "KiB", dirty, 3_328, how),
        Line("idle_rss_with_zone", "KiB", rss, 5_632, f"{how}, a trigger in CST-8 in use"),
    ], measurement


def _start(product: Product, effort: Effort, limits: dict[str, float]) -> Group:
    def measurement() -> list[float | None]:
        with _place() as home:
            return [bench_idle.start_ratio(product, home, rounds=effort.rounds)]

    how = "CPU of the start to `ready` over a bare interpreter's start; 100 tasks, tmpfs"
    return [Line("start_ratio", "x", limits["start_ratio"], 2, how)], measurement


def _cpu(product: Product, effort: Effort, limits: dict[str, float], *, shell: str) -> Group:
    def measurement() -> list[float | None]:
        with ExitStack() as stack:
            home = stack.enter_context(_place())
            ash = stack.enter_context(measure.busybox()) if shell == "ash" else None
            ratio = bench_run.cpu_ratio(product, home, rounds=7, runs=effort.runs, ash=ash)
            return [ratio]

    how = f"daemon, child and wrapper of `{shell} -c 'echo hi'` over a bare spawn of it"
    return [Line(f"run_cpu_ratio_{shell}", "x", limits["run_cpu_ratio"], 5, how)], measurement


def _due(product: Product, effort: Effort, limits: dict[str, float]) -> Group:
    def measurement() -> list[float | None]:
        if measure.memory_folder() is None:
            raise UnmeasurableError("there is no tmpfs at /dev/shm")
        with _place() as home:
            return [bench_run.due_ratio(product, home, seconds=effort.due_s)]

    how = "due second to the command's first instruction over a bare fork and exec of sh; tmpfs"
    gate = limits["due_to_command_ratio"]
    return [Line("due_to_command_ratio", "x", gate, 3, how)], measurement


def _burst(product: Product, effort: Effort, limits: dict[str, float]) -> Group:
    def measurement() -> list[float | None]:
        with measure.ext4() as disk:
            # A whole round of the write-ahead log has to lie within the measured runs.
            found = bench_run.device(product, disk, runs=4 * effort.runs, apart=False)
        return [found.bytes, found.commits, found.flushes]

    how = "ext4 on a loop device, one-line log, back to back"
    return [
        Line("run_device_bytes_burst", "bytes", limits["run_device_bytes_burst"], 24_576, how),
        Line("run_commits", "commits", limits["run_commits"], 2, "counted by the daemon"),
        Line("run_flushes", "flushes", limits["run_flushes"], 3, "flush requests at the device"),
    ], measurement


def _apart(product: Product, effort: Effort, limits: dict[str, float]) -> Group:
    def measurement() -> list[float | None]:
        with measure.ext4() as disk:
            return [bench_run.device(product, disk, runs=effort.apart, apart=True).bytes]

    how = "ext4 on a loop device, one-line log, syncfs after each run"
    gate = limits["run_device_bytes_apart"]
    return [Line("run_device_bytes_apart", "bytes", gate, 81_920, how)], measurement


def _large(product: Product, effort: Effort, limits: dict[str, float]) -> Group:
    def measurement() -> list[float | None]:
        with ExitStack() as stack:
            home = stack.enter_context(_place())
            small, large = (os.path.join(home, name) for name in ("small", "large"))
            bench_scale.prepare(product, small, tasks=bench_idle.TASKS, runs=100)
            bench_scale.prepare(product, large, tasks=effort.tasks, runs=effort.history)
            pair = [stack.enter_context(product.daemon(state)) for state in (small, large)]
            rests = bench_idle.idle(pair, seconds=effort.idle_s)
            grown = bench_scale.growth(*pair, seconds=effort.ticks_s, questions=25)
        values: list[float | None] = []
        for rest in rests:
            values += [rest.written, rest.wakes_per_minute]
        return [*values, grown.tick, grown.status]

    lines = []
    for tasks in (bench_idle.TASKS, effort.tasks):
        how = f"{tasks:,} tasks, {effort.idle_s} s without a question"
        written, wakes = limits["idle_bytes_written"], limits["idle_wakes_per_minute"]
        lines.append(Line(f"idle_bytes_written_{tasks}", "bytes", written, 0, how))
        lines.append(Line(f"idle_wakes_per_minute_{tasks}", "/min", wakes, 2, how))
    grown = f"CPU with {effort.tasks:,} tasks and {effort.history:,} runs over 100 and 100"
    lines += [
        Line("tick_growth", "x", FLAT_GATE, FLAT_GOAL, f"{grown}, a due run each second"),
        Line("status_growth", "x", FLAT_GATE, FLAT_GOAL, f"{grown}, one `status`"),
    ]
    return lines, measurement


def table(rows: list[Row]) -> str:
    """Aligned columns for people."""
    cells = [("", "measured", "gate", "goal", "unit", "how")]
    for row in rows:
        value = "-" if row.value is None else _number(row.value)
        word = "MISSED" if row.ok is False else ("" if row.ok else "-")
        numbers = (value, _number(row.gate), _number(row.goal))
        cells.append((f"{row.name} {word}".strip(), *numbers, row.unit, row.reason or row.how))
    widths = [max(len(line[column]) for line in cells) for column in range(5)]
    told: list[str] = []
    for line in cells:
        columns = " ".join(line[column].rjust(widths[column]) for column in range(1, 4))
        told.append(f"{line[0].ljust(widths[0])} {columns} {line[4].ljust(widths[4])} {line[5]}")
    return "\n".join(told)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or value >= 1_000 else f"{value:,.2f}"


def main(given: list[str]) -> int:
    """Measure and print; 1 if a gate is missed."""
    parser = argparse.ArgumentParser(prog="build.py bench")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    own = parser.parse_args(given)
    rows: list[Row] = []
    with measure.folder() as home:
        output = os.path.join(home, "qinglong-edge.pyz")
        artifact = builder.build(ROOT, output, python=measure.PYTHON)
        product = Product(artifact.path)
        for group in groups(product, artifact, QUICK if own.quick else WHOLE):
            print(f"measuring {group[0][0].name} ...", file=sys.stderr, flush=True)
            rows += measured(group)
    if own.json:
        print(json.dumps({"rows": [row.document() for row in rows]}, indent=1))
    else:
        print(table(rows))
    return 1 if any(row.ok is False for row in rows) else 0
