"""The README's tables of figures: written from one document of the bench, between two marks."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from tests.tools.bench_rows import COLUMNS, PEERS, WHOLE
from tests.tools.bench_table import WIDTH, number

BEGINS, ENDS = "<!-- bench: begins -->\n", "<!-- bench: ends -->\n"
HEAD = ("what", "here", "arm64 router", "x86 router", "gate", "goal")
BESIDE = ("the same beside others, here", "ours", "bare Python", "crond", "yacron", "APScheduler")
LABELS = {
    "artifact_bytes": "the program, one file, bytes",
    "idle_private_dirty": "idle with 100 tasks over a bare interpreter, private dirty, KiB",
    "idle_rss_with_zone": "idle with a time zone in use over a bare interpreter, resident, KiB",
    "growth_by_runs": f"growth by {WHOLE.growth:,} runs, KiB",
    "running_task": "a running task's own shells, KiB",
    "secret_child": "the child that opens a secret, KiB",
    f"idle_bytes_written_{WHOLE.tasks}": f"idle with {WHOLE.tasks:,} tasks: bytes written",
    f"idle_wakes_per_minute_{WHOLE.tasks}": "idle with the same: wake-ups a minute",
    "start_ratio": "CPU of a start to `ready` over a bare interpreter's, x",
    "run_cpu_ratio_sh": "CPU of a run over a bare `sh -c echo`, dash, x",
    "run_cpu_ratio_ash": "CPU of a run over a bare `sh -c echo`, BusyBox ash, x",
    "due_to_command_ratio": "due second to the command over a bare fork and exec, x",
    "sustained_run_ratio": "wall time of a run, four at once, over a bare spawn's, x",
    "run_device_bytes_burst": "bytes of a run with a one-line log, ext4, back to back",
    "run_device_bytes_apart": "bytes of a run with a one-line log, ext4, minutes apart",
    "run_device_bytes_f2fs": "bytes of a run on f2fs, back to back",
    "run_device_bytes_overlay": "bytes of a run on an overlay over ext4, back to back",
    "run_device_bytes_tmpfs": "bytes of a run on a tmpfs",
    "run_device_bytes_jffs2": "bytes of a run on jffs2, back to back",
    "run_device_bytes_jffs2_overlay": "bytes of a run on an overlay over jffs2, back to back",
    "run_device_bytes_ubifs": "bytes of a run on ubifs, back to back",
    "run_device_bytes_ubifs_overlay": "bytes of a run on an overlay over ubifs, back to back",
    "run_commits": "commits of a run",
    "run_flushes": "flushes of a run",
    "tick_growth": f"{WHOLE.tasks:,} tasks and {WHOLE.history:,} runs over 100: an admission, x",
    "status_growth": "one `status` of the same, x",
    "day_64_broken": f"a 64 MB router's day of {WHOLE.day} runs: promises broken",
    "day_64_rss": "the daemon at the end of it, resident, KiB",
    "day_128_broken": f"a 128 MB router's day of {WHOLE.day} runs: promises broken",
    "day_128_rss": "the daemon at the end of that, resident, KiB",
}
PEER_LABELS = {
    "process_private_dirty": "idle with 100 tasks, private dirty, KiB",
    "process_rss": "idle with 100 tasks, resident, KiB",
    "start_ratio": "CPU of a start over a bare interpreter's, x",
    "idle_wakes_per_minute_100": "idle wake-ups a minute",
    "run_cpu_ratio_sh": "CPU of a run over a bare `sh -c echo`, x",
    "due_to_command_ratio": "due to the command over a bare fork and exec, x",
}


def into(path: str, document: dict[str, Any]) -> None:
    """Replace what stands between the marks; ValueError if they are not there once."""
    with open(path, encoding="utf-8") as opened:
        text = opened.read()
    if text.count(BEGINS) != 1 or text.count(ENDS) != 1:
        raise ValueError(f"{path} has no place for the bench")
    before, _, rest = text.partition(BEGINS)
    after = rest.partition(ENDS)[2]
    told = block(document)
    with open(path, "w", encoding="utf-8") as opened:
        opened.write(before + BEGINS + told + ENDS + after)


def block(document: dict[str, Any]) -> str:
    """Both tables, and why what is over its goal is."""
    rows = {row["name"]: row for row in document["rows"]}
    lines = [*_table(HEAD, [_figures(rows[name], label) for name, label in LABELS.items()]), ""]
    lines += _table(BESIDE, [_beside(rows[name], label) for name, label in PEER_LABELS.items()])
    lines += ["", "Over the goal, and why:", "", *_over(rows), ""]
    machine = document["machine"]
    where = f"{machine['processor']}, Python {machine['python']}, {machine['libc']}"
    lines.append(f"Here: {where}, load {machine['load']} at the end.")
    return "".join(f"{line}\n" for line in lines)


def _table(head: tuple[str, ...], rows: list[list[str]]) -> list[str]:
    cells = [list(head), ["---"] * len(head), *rows]
    return [f"| {' | '.join(line)} |" for line in cells]


def _figures(row: dict[str, Any], label: str) -> list[str]:
    gate, router = number(row["gate"]), number(row["router_gate"])
    limit = gate if gate == router else f"{gate}, router {router}"
    return [label, *(number(row[name]) for name in COLUMNS), limit, number(row["goal"])]


def _beside(row: dict[str, Any], label: str) -> list[str]:
    peers = row.get("peers", {})
    others = [number(peers[peer]["native"]) if peer in peers else "-" for peer in PEERS]
    return [label, number(row["native"]), *others]


def _over(rows: dict[str, dict[str, Any]]) -> Iterator[str]:
    """One item a reason, with the rows that share it."""
    by_reason: dict[str, list[str]] = {}
    for name, label in LABELS.items():
        if rows[name]["met"] is False:
            by_reason.setdefault(str(rows[name]["explained"]), []).append(label)
    for reason, labels in by_reason.items():
        item = f"- {'; '.join(labels)}: {reason}."
        yield from textwrap.wrap(item, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
