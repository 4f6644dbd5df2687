"""The rows of the bench: what each one measures, where, its gate, its goal, and why it misses that.

A gate fails the bench; a goal is what is aimed at. A ratio is measured in one session against a
bare interpreter or a bare spawn, so it means the same on a fast and on a slow box; an absolute time
has neither gate nor goal. A figure that cannot be had somewhere is null with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

COLUMNS = ("native", "arm64", "x86")
PEERS = ("bare", "crond", "yacron", "apscheduler")
FEW = 100  # tasks of an ordinary router
FLAT_GATE, FLAT_GOAL = 1.5, 1.2  # "flat" within what two runs of the same thing differ by
PLACES = ("f2fs", "overlay", "tmpfs")  # beside ext4, which has rows of its own
FLASH = ("jffs2", "jffs2_overlay", "ubifs", "ubifs_overlay")
SMALL = (64, 128)  # MB of the small routers' memory
Found = dict[str, float | str]  # by `row` or `row/peer`: a figure, or the reason for none


@dataclass(frozen=True)
class Effort:
    """How long to look: the whole bench, a quick one that a person waits for, an emulated one."""

    rounds: int  # of starts
    turns: int  # of runs and bare spawns
    runs: int  # in a turn
    growth: int
    device: int
    apart: int
    due_s: int
    idle_s: int
    sustained_s: int
    tasks: int
    history: int
    ticks_s: int
    minutes: int  # whole ones in which the peers' tasks are due
    day: int  # runs of a small router


WHOLE = Effort(15, 7, 25, 1_000, 100, 60, 30, 120, 20, 10_000, 100_000, 20, 4, 500)
QUICK = Effort(5, 7, 10, 100, 40, 20, 8, 35, 5, 2_000, 20_000, 6, 0, 0)
ROUTER = Effort(4, 3, 10, 1_000, 100, 20, 8, 60, 10, 10_000, 100_000, 8, 4, 500)
EFFORTS = {"whole": WHOLE, "quick": QUICK, "router": ROUTER}


@dataclass(frozen=True)
class Line:
    """A row that is to be measured; `over` tells why it stands above its goal where it does."""

    name: str
    unit: str
    how: str
    gate: float | None = None
    goal: float | None = None
    router_gate: float | None = None  # where an emulated router has another one
    over: str | None = None

    def limit(self, column: str) -> float | None:
        """The gate in one column."""
        other = self.router_gate if column != "native" else None
        return self.gate if other is None else other


@dataclass(frozen=True)
class Figure:
    """One measured number; `value` is None where `reason` says why."""

    value: float | None
    reason: str | None = None

    @classmethod
    def of(cls, found: float | str | None) -> Figure:
        """From what a part of the bench found."""
        if found is None:
            return cls(None, "not measured")
        return cls(None, found) if isinstance(found, str) else cls(float(found))


@dataclass(frozen=True)
class Row:
    """A line with its figures by column, and those of its peers by peer and column."""

    line: Line
    figures: Mapping[str, Figure]
    peers: Mapping[str, Mapping[str, Figure]] = field(default_factory=dict)

    @property
    def missed(self) -> list[str]:
        """The columns that are over their gate."""
        return [name for name in self.figures if self._over(name, self.line.limit(name))]

    @property
    def over_goal(self) -> list[str]:
        """The columns that are over the goal."""
        return [name for name in self.figures if self._over(name, self.line.goal)]

    def _over(self, column: str, limit: float | None) -> bool:
        value = self.figures[column].value
        return value is not None and limit is not None and value > limit

    @property
    def ok(self) -> bool | None:
        """Whether every gate holds; None where nothing was measured or nothing is asked."""
        return not self.missed if self._known and self.line.gate is not None else None

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached in every column; None as above."""
        return not self.over_goal if self._known and self.line.goal is not None else None

    @property
    def _known(self) -> bool:
        return any(figure.value is not None for figure in self.figures.values())

    @property
    def explained(self) -> str | None:
        """Why the goal is not reached; None where it is, or where nobody knows."""
        return self.line.over if self.over_goal else None

    def document(self) -> dict[str, object]:
        """The row as JSON."""
        line = self.line
        told: dict[str, object] = {"name": line.name, "unit": line.unit}
        told |= {name: _rounded(figure) for name, figure in self.figures.items()}
        told |= {"gate": line.gate, "router_gate": line.limit("arm64"), "goal": line.goal}
        told |= {"ok": self.ok, "met": self.met, "explained": self.explained}
        told["reasons"] = _reasons(self.figures)
        told["how"] = line.how
        if self.peers:
            told["peers"] = {
                peer: {name: _rounded(figure) for name, figure in figures.items()}
                | {"reasons": _reasons(figures)}
                for peer, figures in self.peers.items()
            }
        return told


def _rounded(figure: Figure) -> float | None:
    return None if figure.value is None else round(figure.value, 2)


def _reasons(figures: Mapping[str, Figure]) -> dict[str, str]:
    return {name: figure.reason for name, figure in figures.items() if figure.reason is not None}


def rows(lines: list[Line], found: Mapping[str, Found]) -> list[Row]:
    """Each line with what was found for it by column."""
    made = []
    for line in lines:
        figures = {name: Figure.of(found[name].get(line.name)) for name in found}
        peers: dict[str, dict[str, Figure]] = {}
        for peer in PEERS:
            key = f"{line.name}/{peer}"
            if any(key in each for each in found.values()):
                peers[peer] = {name: Figure.of(found[name].get(key)) for name in found}
        made.append(Row(line, figures, peers))
    return made


# -- the catalogue --------------------------------------------------------------------------------


def catalogue(limits: Mapping[str, float], effort: Effort) -> list[Line]:
    """Every line, in the order of the table."""
    return [
        *_program(limits),
        *_memory(limits, effort),
        *_cost(limits),
        *_device(limits),
        *_rest(limits, effort),
        *_scale(effort),
        *_days(effort),
    ]


def _program(limits: Mapping[str, float]) -> list[Line]:
    return [
        Line(
            "artifact_bytes",
            "bytes",
            "sources and byte code, as built",
            limits["zipapp_bytes"],
            196_608,
            over="imports, exports, `doctor`, box files, the LuCI page and notifications came on "
            "top of the runtime that the goal is of",
        ),
        Line("artifact_files", "files", "members of the zipapp", limits["zipapp_files"], 512),
        Line(
            "resident_modules",
            "modules",
            "sys.modules over a bare interpreter, after a run and the common questions",
        ),
        Line("modules_over_golden", "modules", "those that the golden list does not name", 0, 0),
    ]


def _memory(limits: Mapping[str, float], effort: Effort) -> list[Line]:
    how = "100 tasks, smaps_rollup after sync, over a bare interpreter under -I -S"
    growth, wrapper = limits["growth_kib"], limits["router_wrapper_kib"]
    child = limits["router_secret_child_kib"]
    return [
        Line(
            "idle_private_dirty",
            "KiB",
            how,
            limits["idle_private_dirty_kib"],
            3_328,
            over="SQLite and the modules in C beside it take 0.8 MiB, 14,000 lines "
            "of the program and SQLite's cache the rest",
        ),
        Line(
            "idle_rss_with_zone",
            "KiB",
            f"{how}, a trigger in CST-8 in use",
            limits["idle_rss_kib"],
            5_632,
            over="SQLite and the modules in C beside it take 2.5 MiB, 14,000 lines "
            "of the program and SQLite's cache the rest",
        ),
        Line("process_private_dirty", "KiB", "the whole process, 100 tasks"),
        Line("process_rss", "KiB", "the whole process, 100 tasks"),
        Line("growth_by_runs", "KiB", f"private dirty, {effort.growth:,} runs", growth, growth),
        Line("growth_by_4_at_once", "KiB", "private dirty, four runs at work", growth, growth),
        Line("growth_by_a_secret", "KiB", "private dirty, a run with a secret", growth, growth),
        Line("running_task", "KiB", "private dirty of one task's shells", wrapper, wrapper),
        Line(
            "secret_child",
            "KiB",
            "the most that the launching child holds while it opens a secret",
            child,
            child,
        ),
    ]


def _cost(limits: Mapping[str, float]) -> list[Line]:
    wrapper = (
        "half of it is the daemon with its fork and two commits, half the launching child and the "
        "wrapper's own shells around the command"
    )
    cpu, router = limits["run_cpu_ratio"], limits["router_run_cpu_ratio"]
    return [
        Line(
            "start_ratio",
            "x",
            "CPU of the start to `ready` over a bare interpreter's; 100 tasks, tmpfs",
            limits["start_ratio"],
            2,
            limits["router_start_ratio"],
            "runpy and sqlite3 alone take 2; the rest unpacks 85 modules and opens the state",
        ),
        Line(
            "run_cpu_ratio_sh",
            "x",
            "daemon, child and wrapper of `sh -c 'echo hi'` over a bare spawn of it",
            cpu,
            5,
            over=wrapper,
        ),
        Line(
            "run_cpu_ratio_ash",
            "x",
            "the same under BusyBox alone",
            cpu,
            5,
            router,
            wrapper,
        ),
        Line(
            "due_to_command_ratio",
            "x",
            "due second to the command's first instruction over a bare fork and exec of sh; tmpfs",
            limits["due_to_command_ratio"],
            3,
            over="the run is durable and its process known before the command begins, and its "
            "shell is the wrapper's second",
        ),
        Line("sustained_run_ratio", "x", "wall time of a run, four at once, over a bare spawn's"),
        Line("runs_per_minute", "/min", "the same, as a rate; a router's by its emulated clock"),
    ]


def _device(limits: Mapping[str, float]) -> list[Line]:
    burst = limits["run_device_bytes_burst"]
    how = "one-line log, back to back"
    pages = (
        "half of it is the log's: its inode, its folder and their journal in ext4's blocks of "
        "4 KiB; 13 KB with `--no-log`"
    )
    lines = [
        Line("run_device_bytes_burst", "bytes", f"ext4, {how}", burst, 24_576, over=pages),
        Line(
            "run_device_bytes_apart",
            "bytes",
            "ext4, one-line log, syncfs after each run",
            limits["run_device_bytes_apart"],
            81_920,
            over="54 KB of it are the log's inode, folder and journal in ext4's blocks of 4 KiB; "
            "29 KB with `--no-log`",
        ),
        Line("run_commits", "commits", "counted by the daemon", limits["run_commits"], 2),
        Line("run_flushes", "flushes", "requests at the device, ext4", limits["run_flushes"], 3),
    ]
    for kind in PLACES:
        gate = 0.0 if kind == "tmpfs" else burst
        where = {
            "f2fs": "f2fs",
            "overlay": "an overlay over ext4",
            "tmpfs": "tmpfs, all disks together",
        }[kind]
        over = f"{kind} writes a node of 4 KiB with every file it touches"
        lines.append(
            Line(
                f"run_device_bytes_{kind}",
                "bytes",
                f"{where}, {how}",
                gate,
                min(gate, 24_576),
                over=over if kind == "f2fs" else pages,
            )
        )
    return [*lines, *(_flash(kind, how, limits["run_flash_bytes"]) for kind in FLASH)]


def _flash(name: str, how: str, gate: float) -> Line:
    kind, _, overlay = name.partition("_")
    where = f"an overlay over {kind}" if overlay else kind
    return Line(
        f"run_device_bytes_{name}",
        "bytes",
        f"{where}, bytes programmed into the chip, {how}",
        gate,
        gate / 2,
        over="a node of its own for each inode, folder entry and page of the log and the database",
    )


def _rest(limits: Mapping[str, float], effort: Effort) -> list[Line]:
    written, wakes = limits["idle_bytes_written"], limits["idle_wakes_per_minute"]
    lines = []
    for tasks in (FEW, effort.tasks):
        how = f"{tasks:,} tasks, nobody asks"
        lines.append(Line(f"idle_bytes_written_{tasks}", "bytes", how, written, 0))
        lines.append(Line(f"idle_wakes_per_minute_{tasks}", "/min", how, wakes, 2))
    return lines


def _scale(effort: Effort) -> list[Line]:
    how = f"CPU with {effort.tasks:,} tasks and {effort.history:,} runs over 100 and 100"
    return [
        Line("tick_growth", "x", f"{how}, a due run each second", FLAT_GATE, FLAT_GOAL),
        Line("status_growth", "x", f"{how}, one `status`", FLAT_GATE, FLAT_GOAL),
        Line("memory_growth", "KiB", "private dirty of the same two, at rest"),
    ]


def _days(effort: Effort) -> list[Line]:
    how = f"a day of a {{}} MB router, {effort.day} runs, no swap, 64 processes, 16 MB of flash"
    lines = []
    for size in SMALL:
        of = how.format(size)
        lines.append(Line(f"day_{size}_broken", "promises", f"broken on {of}", 0, 0))
        lines.append(Line(f"day_{size}_rss", "KiB", f"the daemon's own at the end of {of}"))
    return lines
