"""The power goes at any write of the main job: what was acknowledged is there, nothing is doubled.

A sample for each router, drawn anew every day (`EDGE_SEED`; a failure names its cut); `build.py
cuts` tries them all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest

from tests.emulation.conftest import Everywhere
from tests.tools.router import power
from tests.tools.router.images import Image
from tests.tools.router.machines import MACHINES
from tests.tools.router.power import Found, Recording

SAMPLE = 12
SEED = int(os.environ.get("EDGE_SEED") or time.strftime("%Y%m%d"))


@pytest.fixture(scope="module")
def recordings(everywhere: Everywhere[Recording], shared: str) -> Iterator[dict[str, Recording]]:
    """The scenario as each router wrote it."""
    with power.place() as folder:

        def work(image: Image) -> Recording:
            home = os.path.join(folder, image.machine.name)
            os.mkdir(home)
            return power.record(image, shared, home)

        yield everywhere(work)


@pytest.fixture(scope="module")
def found(
    everywhere: Everywhere[list[Found]], recordings: dict[str, Recording], shared: str
) -> dict[str, list[Found]]:
    """What each router's sample came to."""

    def work(image: Image) -> list[Found]:
        recording = recordings[image.machine.name]
        sample = recording.sample(SAMPLE, SEED)
        return list(power.judged(image, shared, recording, sample))

    return everywhere(work)


@pytest.mark.parametrize("machine", MACHINES)
def test_after_a_power_cut_everything_acknowledged_is_there(
    machine: str, found: dict[str, list[Found]], tell: Callable[[object], None]
) -> None:
    """P1, P3, P5, P6: cuts at writes and flushes of a disk that loses what was not flushed."""
    broken = {str(each.cut): each.broken for each in found[machine] if each.broken}
    tell(f"{machine}: {len(found[machine])} cuts, {len(broken)} with a broken promise")
    assert len(found[machine]) == SAMPLE
    assert broken == {}, f"EDGE_SEED={SEED}"


def test_a_disk_that_forgets_its_flushes_breaks_promises(
    routers: dict[str, Image], recordings: dict[str, Recording], shared: str
) -> None:
    """The control: if this passed, the cuts above would prove nothing."""
    recording = recordings["arm64"]
    last = power.acknowledged(recording, "ended")[-1]
    (lost,) = power.judged(routers["arm64"], shared, recording, [last], honest=False)
    assert any("run 1 is gone" in said for said in lost.broken), lost
