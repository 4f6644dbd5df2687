"""A worker dies before and after every effect from the pull to the receipt's removal.

A sample by default, drawn anew with each seed; `EDGE_PASSES=all` tries everything. The plane lives
on and offers what was lost or failed to start again, as a new attempt under a new offer.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.bench import Bench

ALL = os.environ.get("EDGE_PASSES") == "all"
SEED = int(os.environ.get("EDGE_SEED") or time.strftime("%Y%m%d"))
SAMPLE = 16


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def test_a_worker_that_dies_at_any_effect_is_followed_by_one_that_knows(bench: Bench) -> None:
    """ADR-0115 verification 7: before and after each effect; exactly one completion, one log."""
    bench.effects()  # what only the very first run of a state does
    effects = bench.effects()
    cases = [
        (where, effect.name, effect.number)
        for effect in effects
        if effect.lasting
        for where in ("before", "after")
    ]
    if not ALL:
        chosen = sorted(random.Random(SEED).sample(range(len(cases)), SAMPLE))
        cases = [cases[number] for number in chosen]
    deaths, ends, broken = 0, Counter[str](), []
    for where, effect, number in cases:
        outcome = bench.case(where, number, effect)
        deaths += outcome["died"]
        ends.update(outcome["ends"])
        told = f"dies {where} {effect} ({number}): {outcome}"
        if outcome["broken"]:
            broken.append(f"EDGE_SEED={SEED} {told}")
        if ALL:
            sys.stderr.write(f"{told}\n")
    assert not broken, "\n".join(broken)
    assert deaths > len(cases) // (2 if ALL else 4)  # a busy machine orders some effects otherwise
    # Between the durable `started` and the open gate nobody can tell; that is all that is lost.
    assert ends["lost"] <= len(_UNKNOWABLE), ends


_UNKNOWABLE = (
    "after the commit of started",
    "before the gate",
)
