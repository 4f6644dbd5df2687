"""How the bench is told: columns for people, one JSON document, and the README's block."""

from __future__ import annotations

import os
import platform
import sys
import textwrap
import time
from collections.abc import Sequence
from typing import Any

from tests.tools.bench_rows import COLUMNS, PEERS, Row

WIDTH = 100


def number(value: float | None) -> str:
    """As people read it."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1_000 else f"{value:,.2f}"


def document(rows: Sequence[Row], *, program: str) -> dict[str, Any]:
    """All of it, with what the figures of this machine depend on."""
    return {
        "machine": {
            "program": program,
            "processor": platform.machine(),
            "python": f"{sys.version_info.major}.{sys.version_info.minor}",
            "libc": platform.libc_ver()[0] or "musl",
            "load": round(os.getloadavg()[0], 1),
            "ended": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        },
        "rows": [row.document() for row in rows],
    }


def table(rows: Sequence[Row]) -> str:
    """The figures, those of the peers, and below them how and why; no line over 100 columns."""
    told = [*_aligned(_figures(rows)), ""]
    peers = [row for row in rows if row.peers]
    if peers:
        told += [*_aligned(_beside(peers)), ""]
    for row in rows:
        told += _wrapped(f"{row.line.name}: {row.line.how}")
    over = [row for row in rows if row.over_goal]
    if over:
        told += ["", "Over the goal:"]
        told += [
            line
            for row in over
            for line in _wrapped(f"{row.line.name}: {row.explained or 'nobody has said why'}")
        ]
    told += ["", *_unmeasured(rows)] if _unmeasured(rows) else []
    return "\n".join(told)


def _figures(rows: Sequence[Row]) -> list[list[str]]:
    cells = [["", *COLUMNS, "gate", "router", "goal", "unit", ""]]
    for row in rows:
        line = row.line
        word = "MISSED" if row.missed else ("over" if row.over_goal else "")
        figures = [number(row.figures[name].value) for name in COLUMNS]
        limits = [number(line.gate), number(line.limit("arm64")), number(line.goal)]
        cells.append([line.name, *figures, *limits, line.unit, word])
    return cells


def _beside(rows: Sequence[Row]) -> list[list[str]]:
    cells = [["beside others", "", "ours", *PEERS, "unit"]]
    for row in rows:
        for column in COLUMNS:
            own = row.figures[column].value
            others = [
                row.peers[peer][column].value if peer in row.peers else None for peer in PEERS
            ]
            if any(value is not None for value in others):
                figures = [number(value) for value in (own, *others)]
                cells.append([row.line.name, column, *figures, row.line.unit])
    return cells


def _aligned(cells: list[list[str]]) -> list[str]:
    """Words to the left, numbers to the right."""
    widths = [max(len(line[place]) for line in cells) for place in range(len(cells[0]))]
    numeric = [_is_number([line[place] for line in cells[1:]]) for place in range(len(cells[0]))]
    return [
        " ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in cells
    ]


def _is_number(column: list[str]) -> bool:
    return all(
        text.lstrip("-").replace(",", "").replace(".", "").isdigit() or text == "-"
        for text in column
    )


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ")


def _unmeasured(rows: Sequence[Row]) -> list[str]:
    """Each reason once, with the rows that have it, or `every row`."""
    by_reason: dict[str, list[str]] = {}
    for row in rows:
        for where, figures in (
            ("", row.figures),
            *((f"{peer}, ", row.peers[peer]) for peer in row.peers),
        ):
            for column, figure in figures.items():
                if figure.reason is not None:
                    key = f"{where}{column}: {figure.reason}"
                    by_reason.setdefault(key, []).append(row.line.name)
    told = ["Not measured:"] if by_reason else []
    for reason, names in by_reason.items():
        every = len(names) == len(rows) > 1
        told += _wrapped(f"{reason}: {'every row' if every else ', '.join(names)}")
    return told
