"""A day of a small router: its memory, 64 processes, 16 MB of flash, and nobody is killed.

`EDGE_DAY_RUNS=100` is a whole day; without it some of its runs are left out, nothing else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.tools.router import day as days
from tests.tools.router.day import ROUTERS, Day
from tests.tools.router.images import Image

RUNS = int(os.environ.get("EDGE_DAY_RUNS") or 40)


@pytest.fixture(scope="module")
def lived(
    routers: dict[str, Image], shared: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Day]:
    """Both routers' days, at the same time."""

    def work(memory_mib: int) -> Day:
        folder = str(tmp_path_factory.mktemp("day"))
        return days.lived(routers["arm64"], shared, folder, memory_mib=memory_mib, runs=RUNS)

    with ThreadPoolExecutor(len(ROUTERS)) as pool:
        return dict(zip(ROUTERS, pool.map(work, ROUTERS.values()), strict=True))


@pytest.mark.parametrize("router", ROUTERS)
def test_a_small_router_gets_through_its_day(
    router: str, lived: dict[str, Day], tell: Callable[[object], None]
) -> None:
    """Limits as README says for little flash; the smaller one may refuse what has a secret."""
    day = lived[router]
    tell(f"{router}, {RUNS} runs: {json.dumps(day.seen)}")
    assert day.broken == []
    small = router == "64 MB"
    assert day.seen["opening"] == "succeeded" or (
        small and day.seen["opening"] == "secret_provider_unavailable"
    )
    assert day.seen["sealing"] == "done" or small
