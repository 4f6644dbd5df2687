"""The power goes at any write of a job: what was acknowledged is there, nothing is doubled.

A sample for each router, drawn anew every day (`EDGE_SEED`; a failure names its cut); `build.py
cuts` tries them all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.emulation.conftest import Everywhere
from tests.tools.router import blocks, power
from tests.tools.router.blocks import Cut
from tests.tools.router.images import Image
from tests.tools.router.machines import MACHINES
from tests.tools.router.power import Found, Recording

SAMPLE = 12
WORKER_SAMPLE = 6
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


@pytest.fixture(scope="module")
def worker_found(routers: dict[str, Image], shared: str) -> list[Found]:
    """What a sample of a worker's cuts came to, in two guests; the last one is the control."""
    with power.place() as folder:
        recording = power.record(routers["arm64"], shared, folder, power.WORKER)
        sample = recording.sample(WORKER_SAMPLE, SEED)
        control = Cut(len(recording.entries), blocks.LOST)

        def work(part: int) -> list[Found]:
            with power.Judge(routers["arm64"], shared, recording) as judge:
                found = [judge.try_(cut) for cut in sample[part::2]]
                return [*found, judge.try_(control, honest=False)] if part else found

        with ThreadPoolExecutor(2) as pool:
            return [found for part in pool.map(work, range(2)) for found in part]


def test_after_a_power_cut_a_worker_converges(
    worker_found: list[Found], tell: Callable[[object], None]
) -> None:
    """ADR-0115: one process an offer, one completion an attempt, each with exactly its log."""
    tried = worker_found[:-1]
    broken = {str(each.cut): each.broken for each in tried if each.broken}
    tell(f"arm64, the worker: {len(tried)} cuts, {len(broken)} with a broken promise")
    assert len(tried) == WORKER_SAMPLE
    assert broken == {}, f"EDGE_SEED={SEED}"


def test_a_disk_that_forgets_its_flushes_breaks_a_worker_s_promises(
    worker_found: list[Found],
) -> None:
    """The control: what the plane was told of is not in the spool any more."""
    lost = worker_found[-1]
    assert any("times in the spool" in said for said in lost.broken), lost
