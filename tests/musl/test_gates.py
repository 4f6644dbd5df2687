"""The budgets in a router's userland: what the processes hold there, over its bare interpreter."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from typing import Any

from tests.musl.router import Router
from tests.support import ROOT
from tests.tools.musl.tree import CRYPTO, Tree
from tests.tools.router.gates import Table, judged

RUNS = 100
PARTS = ("life", "secrets", "modules")


def test_the_program_keeps_its_budget_in_the_userland(
    musl: Tree, router: Router, tell: Callable[[object], None]
) -> None:
    """ADR-0069 verification 9: musl, byte code for the standard library, Python's own packages."""
    router.packages = (CRYPTO,)
    zipapp = f"{router.inside(router.home)}/qinglong-edge"
    words = ("-m", "tests.tools.router.processes", zipapp, f"--runs={RUNS}")
    found: dict[str, Any] = {}
    os.sync()  # fresh files are dirty pages, and count as a process's own
    for part in PARTS:
        done = subprocess.run(
            router.entered("/usr/bin/python3", *words, f"--only={part}"),
            cwd=ROOT,
            env=musl.python.environment | {"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        found |= json.loads(done.stdout)
    table: Table = judged(ROOT, found)
    tell(f"musl x86-64\n{table}")
    assert table.held, str(table)
