"""P11 where the clock is the machine's own: no run before trust, no storm after it, no lost cursor.

The guests are booted in 1970 and shortly before 2^31 seconds; the rest of their time they set.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.tools.router import share
from tests.tools.router.guest import Guest, Options
from tests.tools.router.images import Image

STORIES = {"battery": "1970-01-01T00:00:00", "century": "2038-01-19T03:13:00"}
_MODULE = "tests.tools.router.clocks"


@pytest.fixture(scope="module")
def told(routers: dict[str, Image], shared: str) -> dict[str, dict[str, Any]]:
    """Both stories, in two guests at once."""

    def tell_in_guest(name: str) -> dict[str, Any]:
        options = Options(share=shared, clock=STORIES[name])
        with Guest(routers["arm64"], options) as guest:
            answer: dict[str, Any] = guest.python(_MODULE, f"/share/{share.ZIPAPP}", name)
            return answer

    with ThreadPoolExecutor(len(STORIES)) as pool:
        return dict(zip(STORIES, pool.map(tell_in_guest, STORIES), strict=True))


@pytest.mark.parametrize("story", STORIES)
def test_a_clock_that_is_wrong_moved_or_old_breaks_no_promise(
    story: str, told: dict[str, dict[str, Any]], tell: Callable[[object], None]
) -> None:
    tell(f"{story}: {json.dumps(told[story])}")
    assert told[story]["broken"] == []
    booted = told[story]["booted at"]
    assert booted < 3_600 if story == "battery" else booted > 2_147_482_000
