"""`build.py bench`: the measured table of this machine and of two emulated routers.

Each row has its gate and its goal, and says why where it stands above that; figures of others are
beside the program's. What cannot be measured here prints null and the reason. `--quick` looks
shorter, at smaller states, and at no router. `--routers FILE` takes the routers' figures, which no
load of this machine is in, from an earlier `--json` of the same program. `--readme FILE` measures
nothing: it writes what `--json` printed into the README. Exit status: 0, or 1 if a gate is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from tests.tools import bench_parts, bench_readme, bench_table, builder, gates, measure, peers
from tests.tools.bench_rows import COLUMNS, PEERS, QUICK, WHOLE, Found, Row, catalogue, rows
from tests.tools.measure import ROOT, Product

_QUICKLY = "not in a quick look"
_HERE, *_ROUTERS = COLUMNS


def say(what: str) -> None:
    """Progress, beside the table."""
    print(f"measuring {what} ...", file=sys.stderr, flush=True)


def native(setting: bench_parts.Setting, parts: list[str]) -> Found:
    """What is found on this machine."""
    found: Found = {}
    for part in parts:
        say(part)
        found |= bench_parts.measured(part, setting)
    return found


def emulated(
    own: argparse.Namespace, parts: list[str], digest: str, states: str | None
) -> Mapping[str, Found]:
    """What is found in the routers, or was."""
    if own.quick:
        named = [name for part in parts for name in bench_parts.PARTS[part].rows(QUICK)]
        return {name: dict.fromkeys(named, _QUICKLY) for name in _ROUTERS}
    if own.routers is not None:
        with open(own.routers, encoding="utf-8") as opened:
            return earlier(json.load(opened), digest)
    from tests.tools.router import columns

    return columns.columns(ROOT, parts, say, states=states)


def earlier(document: Mapping[str, Any], digest: str) -> Mapping[str, Found]:
    """The routers' figures of another time; SystemExit with the reason if of another program."""
    if document["machine"]["program"] != digest:
        raise SystemExit("those figures are of another program")
    found: dict[str, Found] = {name: {} for name in _ROUTERS}
    for row in document["rows"]:
        told = {row["name"]: row}
        told |= {f"{row['name']}/{peer}": row.get("peers", {}).get(peer) for peer in PEERS}
        for key, figures in told.items():
            for name in _ROUTERS if figures is not None else ():
                value = figures[name]
                found[name][key] = figures["reasons"].get(name, "") if value is None else value
    return found


def measured(own: argparse.Namespace) -> tuple[list[Row], str]:
    """All rows of the parts that are asked for, and the digest of the program."""
    parts = own.only or list(bench_parts.PARTS)
    effort = QUICK if own.quick else WHOLE
    with measure.folder() as home:
        output = os.path.join(home, "qinglong-edge.pyz")
        artifact = builder.build(ROOT, output, python=measure.PYTHON)
        product, states = Product(artifact.path), None
        if "scale" in parts:
            say("nothing yet: a large state is made")
            states = os.path.join(home, "states")
            bench_parts.prepare(product, states, effort)
        tools, without = peers.found(ROOT)
        setting = bench_parts.Setting(product, effort, {}, states, tools, without)
        found = {_HERE: native(setting, parts)}
        found |= emulated(own, parts, artifact.digest, states)
    known = [
        line
        for line in catalogue(gates.budget(ROOT), effort)
        if any(line.name in each for each in found.values())
    ]
    return rows(known, found), artifact.digest


def main(given: list[str]) -> int:
    """Measure and print; 1 if a gate is missed."""
    parser = argparse.ArgumentParser(prog="build.py bench")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=bench_parts.PARTS, action="append")
    parser.add_argument("--routers", metavar="FILE")
    parser.add_argument("--readme", metavar="FILE")
    own = parser.parse_args(given)
    if own.readme is not None:
        with open(own.readme, encoding="utf-8") as opened:
            bench_readme.into(os.path.join(ROOT, "README.md"), json.load(opened))
        return 0
    table, program = measured(own)
    if own.json:
        print(json.dumps(bench_table.document(table, program=program), indent=1))
    else:
        print(bench_table.table(table))
    return 1 if any(row.missed for row in table) else 0
