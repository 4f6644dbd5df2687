"""The machine refuses a worker one effect of a run, once or until it heals: nothing is lost of it.

A sample by default, drawn anew with each seed; `EDGE_PASSES=all` tries everything. The worker is
not started again: what was refused it has to be got over in the same process.
"""

from __future__ import annotations

import faulthandler
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.bench import Bench, Seen

ALL = os.environ.get("EDGE_PASSES") == "all"
SEED = int(os.environ.get("EDGE_SEED") or time.strftime("%Y%m%d"))
CODES = ("ENOSPC", "EIO", "EMFILE", "FULL", "IOERR")
OFTEN = 3  # of a name that comes in every tick or request, so many are tried
SAMPLE = 2  # of each code, once and for ever


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def chosen(effects: list[Seen]) -> list[tuple[str, Seen, bool]]:
    """Every effect with each of its errors, or some of each error."""
    cases = []
    chance = random.Random(SEED)
    for code in CODES:
        able = [seen for seen in effects if code in seen.possible and seen.number <= OFTEN]
        for for_ever in (False, True):
            some = able if ALL else chance.sample(able, min(SAMPLE, len(able)))
            cases += [(code, seen, for_ever) for seen in some]
    return cases


def test_a_worker_that_is_refused_any_effect_gets_over_it(bench: Bench) -> None:
    """ENOSPC EIO EMFILE, SQLITE_FULL and IOERR: at most one process of an offer, exactly one
    completion of a run, and only with the very bytes of its log."""
    if ALL:
        faulthandler.cancel_dump_traceback_later()
    bench.effects()  # what only the very first run of a state does
    cases = chosen(bench.effects())
    faults, ends, broken = 0, Counter[str](), []
    for code, seen, for_ever in cases:
        outcome = bench.refusal(code, seen, for_ever=for_ever)
        faults += outcome["fired"]
        ends.update(outcome["ends"])
        told = f"{seen.name} ({seen.number}) gives {code}{' for ever' * for_ever}: {outcome}"
        if outcome["broken"]:
            broken.append(f"EDGE_SEED={SEED} {told}")
        if ALL:
            sys.stderr.write(f"{told}\n")
    assert not broken, "\n".join(broken)
    assert faults > len(cases) // (2 if ALL else 4)  # a busy machine orders some effects otherwise
    assert ends["succeeded"] == len(cases), ends
