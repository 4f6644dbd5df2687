"""The bench's parts that need routers of their own: one with flash chips, and two small ones.

None of their figures is a time, so these guests' time passes as it does here.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.tools.bench_rows import EFFORTS, SMALL, Found
from tests.tools.measure import UnmeasurableError
from tests.tools.router import chips, flash, phram, share
from tests.tools.router import day as days
from tests.tools.router.guest import PYTHON, Guest, Options, overlay
from tests.tools.router.images import Image

_CHIP_MIB = 64  # the edge reserve and one log fit
_WITHIN_S = 1_200.0
_CHIPS = {"jffs2": flash.PLACE, "ubifs": "/mnt"}
_OVERLAYS = {"jffs2": "/overlay", "ubifs": "/tmp/overlay"}
Say = Callable[[str], None]


def on_flash(root: str, image: Image, shared: str, folder: str, _say: Say) -> Found:
    """What a run writes to a chip with each of its file systems, and on overlays over them."""
    shutil.copy(phram.module(root, image), os.path.join(shared, phram.NAME))
    paths = tuple(chips.make(os.path.join(folder, kind), _CHIP_MIB) for kind in _CHIPS)
    mounted = {kind: (place, "phram") for kind, place in _CHIPS.items()}
    mounted |= {f"{kind}_overlay": (place, "phram") for kind, place in _OVERLAYS.items()}
    with Guest(image, Options(share=shared, chips=paths)) as guest:
        guest.load(*flash.MODULES)
        for number, (kind, place) in enumerate(_CHIPS.items()):
            guest.check(f"{PYTHON} -m tests.tools.router.flash mount {kind} {number} {place}")
            guest.check(overlay(place, _OVERLAYS[kind]))
        words = (f"/share/{share.ZIPAPP}", "flash", "router", json.dumps({"mounted": mounted}))
        found: Found = guest.python("tests.tools.bench_parts", *words, timeout_s=_WITHIN_S)
    return found


def small(_root: str, image: Image, shared: str, folder: str, say: Say) -> Found:
    """The days of both small routers, at once."""
    if image.machine.name != "arm64":
        raise UnmeasurableError("the small routers are arm64 ones")
    runs = EFFORTS["router"].day

    def work(size: int) -> Found:
        place = os.path.join(folder, str(size))
        os.mkdir(place)
        memory_mib = days.ROUTERS[f"{size} MB"]
        day = days.lived(image, shared, place, memory_mib=memory_mib, runs=runs)
        for sentence in day.broken:
            say(f"a day of a {size} MB router: {sentence}")
        return {
            f"day_{size}_broken": len(day.broken),
            f"day_{size}_rss": day.seen["daemon_rss_kib"],
        }

    found: Found = {}
    with ThreadPoolExecutor(len(SMALL)) as pool:
        for each in pool.map(work, SMALL):
            found |= each
    return found


ALONE = {"flash": on_flash, "small routers": small}
