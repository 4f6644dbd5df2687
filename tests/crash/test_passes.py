"""Every effect of the main job fails, every effect is a death, the power goes: nothing is lost.

A sample by default, drawn anew with each seed (`EDGE_SEED`, today's date otherwise: a failure
prints it); `EDGE_PASSES=all` tries everything and prints the figures. The promises are the
functions of tests/crash/invariants.py.
"""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.support import ROOT

ALL = os.environ.get("EDGE_PASSES") == "all"
# So many of the cases come about at least; a busy machine orders some effects otherwise.
SHARE = 2 if ALL else 4
SEED = int(os.environ.get("EDGE_SEED") or time.strftime("%Y%m%d"))
SAMPLES = {"refuse": 14, "die": 12, "compound": 7, "power": 24}  # of each scenario
_TIMEOUT_S = 7_200 if ALL else 300


@pytest.fixture
def told(capfd: pytest.CaptureFixture[str]) -> Any:
    """Prints past the capture, so that the figures of a full run stand in its output."""

    def tell(figures: dict[str, object]) -> None:
        with capfd.disabled():
            sys.stdout.write("\n" + " ".join(f"{k}={v}" for k, v in figures.items()) + "\n")

    return tell


def _pass(what: str, tell: Any) -> dict[str, int]:
    command = [sys.executable, "-m", "tests.crash.passes", what, "--seed", str(SEED)]
    if ALL:
        faulthandler.cancel_dump_traceback_later()  # it takes long, and is bounded below
    else:
        command += ["--sample", str(SAMPLES[what])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_TIMEOUT_S)
    *lines, last = done.stdout.splitlines() or [""]
    assert done.returncode == 0, f"EDGE_SEED={SEED}\n" + "\n".join([*lines, done.stderr])
    figures: dict[str, int] = json.loads(last)
    if ALL:
        tell(figures)
    return figures


def test_every_effect_that_fails_once_or_for_ever_leaves_nothing_behind_it(told: Any) -> None:
    """P3, P5, P12: ENOSPC EIO EROFS EMFILE ENOMEM EAGAIN, SQLITE_FULL and IOERR."""
    figures = _pass("refuse", told)
    assert figures["faults"] > figures["cases"] // SHARE


def test_an_owner_that_dies_at_any_effect_is_followed_by_one_that_knows(told: Any) -> None:
    """P1, P2, P5 (ADR-0069 verification 1): before and after each effect that lasts."""
    figures = _pass("die", told)
    assert figures["deaths"] > figures["cases"] // SHARE


def test_an_owner_that_dies_while_it_recovers_is_followed_by_one_that_knows(told: Any) -> None:
    """P5: the second death at each effect of the recovery; a third recovery finds a true state."""
    figures = _pass("compound", told)
    assert figures["compound_deaths"] > figures["cases"] // (SHARE + 1)


def test_a_power_cut_between_any_two_fsyncs_tears_nothing_that_was_promised(told: Any) -> None:
    """P3, P5: publication by Python and by the wrapper, quarantine, wrapper, log, `init`."""
    figures = _pass("power", told)
    assert figures["states"] >= 50
