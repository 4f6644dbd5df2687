"""Run in a guest: what the program makes of a file system, as one line of JSON.

    python3 -m tests.tools.router.places ZIPAPP FOLDER [DEVICE]

DEVICE is a disk's, or `phram` for the flash chips.
Either `refused` with the code and the sentence that a person reads, or the mode of its database and
what a run writes to the device.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from tests.tools import bench_run, measure
from tests.tools.measure import Disk, Product
from tests.tools.router.flash import Chip

_RUNS = 20


def place(product: Product, folder: str, device: str | None) -> dict[str, Any]:
    """What becomes of a state in this folder."""
    state = os.path.join(folder, "state")
    asked = subprocess.run(
        product.command("--state", state, "--json", "init"),
        env=measure.ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    if asked.returncode != 0:
        error = json.loads(asked.stdout)["error"]
        left = sorted(os.listdir(state)) if os.path.isdir(state) else []
        return {"refused": error["code"], "message": error["message"], "left": left}
    with product.daemon(state) as daemon:
        daemon.call("task.add", name="one", shell="echo hi; exit 7")
        ended = daemon.run("one")
        status = daemon.call("status")
    found = {
        "storage": status["storage"],
        "degraded": status["degraded"],
        "exit_code": ended["exit_code"],
        "log_bytes": ended["log_bytes"],
    }
    if device is not None:
        counted = Chip if device == "phram" else Disk
        run = bench_run.device(product, counted(folder, device), runs=_RUNS, apart=False)
        found |= {"bytes": run.bytes, "flushes": run.flushes, "commits": run.commits}
    return found


def main(zipapp: str, folder: str, device: str | None = None) -> None:
    """Look and print."""
    print(json.dumps(place(Product(zipapp), folder, device)))


if __name__ == "__main__":
    main(*sys.argv[1:])
