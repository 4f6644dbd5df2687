"""Answers as text for people: aligned columns, local times with offset, no escape codes.

Owns the text form. Control characters of a task's output or name are made visible; bytes that are
not UTF-8 are shown escaped.
"""

from __future__ import annotations

import signal
import time

from qinglong_edge.app import troubles
from qinglong_edge.core import civil

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

_VISIBLE = {number: chr(0x2400 + number) for number in range(0x20) if number not in (0x09, 0x0A)}
_VISIBLE[0x7F] = "\u2421"
_VISIBLE.update({number: f"\\x{number:02x}" for number in range(0x80, 0xA0)})
_NAMES = 3  # in one cell
WIDTH = 80  # of a terminal
_INLINE = {**_VISIBLE, 0x09: "\u2409", 0x0A: "\u240a"}


def moment(ms: int | None) -> str:
    """A local time with its offset, or a dash."""
    if ms is None:
        return "-"
    try:
        offset_s = time.localtime(ms // 1000).tm_gmtoff
    except OverflowError:  # from 2038 on where times have 32 bits: in UTC then
        offset_s = 0
    return civil.written(ms // 1000, offset_s)


def duration(ms: int | None) -> str:
    """A length of time for a person."""
    if ms is None:
        return "-"
    if ms < 60_000:
        return f"{ms / 1000:.1f}s"
    minutes, seconds = divmod(ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{seconds:02d}s"


def size(count: int | None) -> str:
    """A number of bytes."""
    return "-" if count is None else str(count)


def inline(text: object) -> str:
    """One line, control characters visible."""
    return str(text).translate(_INLINE)


def names(every: Sequence[str], none: str) -> str:
    """Names in a cell: a table stays one, though hundreds of tasks bind what a row tells of."""
    more = f" and {len(every) - _NAMES} more" if len(every) > _NAMES + 1 else ""
    return ", ".join(every[:_NAMES] if more else every) + more or none


def output(data: bytes) -> str:
    """A task's output with control characters visible; lines stay lines."""
    return data.decode("utf-8", "backslashreplace").replace("\r\n", "\n").translate(_VISIBLE)


def _width(text: str) -> int:
    """Columns on a terminal: wide letters take two (east_asian_width needs an extra package)."""
    return sum(2 if ord(each) >= 0x1100 and _is_wide(ord(each)) else 1 for each in text)


def _is_wide(code: int) -> bool:
    return (
        code <= 0x115F
        or 0x2E80 <= code <= 0xA4CF
        or 0xAC00 <= code <= 0xD7A3
        or 0xF900 <= code <= 0xFAFF
        or 0xFE30 <= code <= 0xFE6F
        or 0xFF00 <= code <= 0xFF60
        or 0xFFE0 <= code <= 0xFFE6
        or 0x1F300 <= code <= 0x3FFFD
    )


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width` columns, cut between words; a word that is wider stays whole."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and _width(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def advice(lines: Iterable[str]) -> str:
    """What to know or to do about an answer, a paragraph each below it; empty if there is none."""
    told = "".join("\n  ".join(wrapped(inline(line), WIDTH - 2)) + "\n" for line in lines)
    return told and f"\n{told}"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Aligned columns."""
    lines = [[inline(cell) for cell in row] for row in rows]
    grid = [list(heads), *lines]
    widths = [max(_width(line[column]) for line in grid) for column in range(len(heads))]
    told = []
    for line in grid:
        cells = [
            cell + " " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True)
        ]
        told.append("  ".join(cells).rstrip())
    return "\n".join(told) + "\n"


def fields(pairs: Iterable[tuple[str, object]]) -> str:
    """Names and values, one a line."""
    listed = [(name, inline(value)) for name, value in pairs]
    width = max((len(name) for name, _value in listed), default=0)
    return "".join(f"{name:<{width}}  {value}\n" for name, value in listed)


def run_row(run: dict[str, Any]) -> list[object]:
    """One run in a list."""
    ended = run["exit_code"] if run["exit_code"] is not None else "-"
    return [
        run["number"],
        run["task"],
        run["status"],
        run["trigger"],
        moment(run["started_at_ms"] or run["created_at_ms"]),
        duration(run["duration_ms"]),
        ended,
        size(run["log_bytes"]) + ("+" if run["log_truncated"] is True else ""),
    ]


RUN_HEADS = ("RUN", "TASK", "STATUS", "TRIGGER", "STARTED", "TOOK", "EXIT", "LOG")
_SHELLS_WORDS = {
    126: "found, but not executable",
    127: "not found: the command, or what the first line of its file names",
}


def exit_code(code: int | None) -> str:
    """An exit code with what a shell says by it; a command of its own may mean something else."""
    if code is None:
        return "-"
    ended = signal.strsignal(code - 128) if 128 < code < 160 else None
    told = f"as by signal {code - 128}: {ended}" if ended else _SHELLS_WORDS.get(code)
    return f"{code} ({told})" if told else str(code)


def run_fields(run: dict[str, Any]) -> str:
    """One run in full, and what to do about an error that is not the command's own."""
    whole = {True: "cut at the quota", False: "whole"}.get(run["log_truncated"], "perhaps not all")
    logged, error = run["log_bytes"], run["error_code"]
    return fields(
        [
            ("run", f"{run['number']}  {run['run']}"),
            ("task", f"{run['task']} (revision {run['revision']})"),
            ("status", run["status"] + (f" (held: {run['hold']})" if run["hold"] else "")),
            ("trigger", run["trigger"]),
            ("scheduled", moment(run["scheduled_for_ms"])),
            ("started", moment(run["started_at_ms"])),
            ("finished", moment(run["finished_at_ms"])),
            ("took", duration(run["duration_ms"])),
            ("exit code", exit_code(run["exit_code"])),
            ("signal", "-" if run["signal"] is None else run["signal"]),
            ("error", error or "-"),
            ("attempts", run["attempts"]),
            ("evidence", run["evidence"]),
            ("log", "-" if logged is None else f"{logged} bytes, {whole}"),
        ]
    ) + advice(troubles.told([error] if error in troubles.WORDS else []))


def trigger(each: dict[str, Any]) -> str:
    """One trigger in a few words."""
    told = {"boot": "at boot", "every": f"every {each['expression']}"}
    text = told.get(each["kind"]) or f"{each['expression']} {each['zone']}{_side(each['zone'])}"
    return f"{text} (parked: {each['parked']})" if each["parked"] else text


def _side(zone: str) -> str:
    """TZ counts hours west of Greenwich; whoever writes UTC+8 as a rule means east."""
    if zone[:3] not in ("UTC", "GMT") or zone[3:4] not in ("+", "-"):
        return ""
    return " (behind UTC)" if zone[3] == "+" else " (ahead of UTC)"


def task_row(task: dict[str, Any]) -> list[object]:
    """One task in a list."""
    upcoming = [each["next_at_ms"] for each in task["triggers"] if each["next_at_ms"] is not None]
    last = task["last_run"]
    return [
        task["task"],
        "yes" if task["enabled"] else "no",
        ", ".join(trigger(each) for each in task["triggers"]) or "manual",
        moment(min(upcoming)) if upcoming else "-",
        "-" if last is None else f"{last['number']} {last['status']}",
    ]


TASK_HEADS = ("TASK", "ON", "WHEN", "NEXT", "LAST RUN")
