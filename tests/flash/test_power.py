"""The power goes while a router writes its flash: what was acknowledged is there, nothing doubled.

A sample for each file system, drawn anew every day (`EDGE_SEED`; a failure names its moment);
`build.py cuts --flash` goes on with others.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.tools.router import chips, flash_power, power
from tests.tools.router.flash_power import KINDS
from tests.tools.router.guest import Guest, GuestError, Options
from tests.tools.router.images import Image
from tests.tools.router.power import Found

SAMPLE = 6
CUT_AFTER = (16, 28)  # marks, of about 32
SEED = int(os.environ.get("EDGE_SEED") or time.strftime("%Y%m%d"))


def tried(router: Image, shared: str, kind: str, *, played: str, count: int) -> list[Found]:
    """What became of some moments of a recording; the last of them is the guest's real end."""
    last = random.Random(SEED).randint(*CUT_AFTER)
    with power.place() as folder:
        moments = flash_power.record(router, played, kind, folder, seed=SEED, last=last)
        chosen = flash_power.sample(moments, count, SEED)
        with flash_power.Judge(router, shared, kind, folder) as judge:
            return [judge.try_(moment) for moment in chosen]


@pytest.fixture(scope="module")
def found(router: Image, shared: str) -> dict[str, list[Found]]:
    """What the sample of each file system came to, both at once."""

    def work(kind: str) -> list[Found]:
        return tried(router, shared, kind, played=shared, count=SAMPLE)

    with ThreadPoolExecutor(len(KINDS)) as pool:
        return dict(zip(KINDS, pool.map(work, KINDS), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_power_cut_everything_acknowledged_is_there(
    kind: str, found: dict[str, list[Found]], tell: Callable[[object], None]
) -> None:
    """P1, P3, P5, P6: copies of the chip between two instructions, and a guest that was killed."""
    broken = {str(each.cut): each.broken for each in found[kind] if each.broken}
    tell(f"{kind}: {len(found[kind])} cuts, {len(broken)} with a broken promise")
    assert len(found[kind]) == SAMPLE
    assert str(found[kind][-1].cut).startswith("killed")
    assert broken == {}, f"EDGE_SEED={SEED}"


def test_a_program_that_asks_the_flash_for_nothing_breaks_promises(
    router: Image, shared: str, given: Callable[[str], str], tmp_path: Path
) -> None:
    """The control: if this passed, the cuts on ubifs would prove nothing."""
    forgetful = given(flash_power.forgetful(ROOT, str(tmp_path / "tree")))
    (lost,) = tried(router, shared, "ubifs", played=forgetful, count=1)
    assert lost.broken, str(lost.cut)


def test_a_copy_of_a_stopped_guest_s_chip_is_what_killing_it_leaves(
    router: Image, shared: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What the moments rest on; the guest is in the middle of writing."""
    chip = chips.make(str(tmp_path_factory.mktemp("chip") / "chip"), flash_power.CHIP_MIB)
    with Guest(router, Options(share=shared, chips=(chip,))) as guest:
        flash_power.mount(guest, "jffs2")
        writing = guest.lines("cd /flash; i=0; while : ; do i=$((i+1)); echo $i | tee a$i; done")
        while next(writing) != "30":
            pass
        with guest.stopped():
            copied = chips.content(chip)
            guest.cut()
        assert chips.content(chip) == copied
        with pytest.raises(GuestError):
            list(writing)
    assert copied.count(b"\xff") < len(copied)
