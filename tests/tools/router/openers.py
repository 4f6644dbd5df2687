"""Run in a guest: who opens a state beside its daemon and after it, as one line of JSON.

    python3 -m tests.tools.router.openers ZIPAPP FOLDER

On flash nobody may share the memory of a write-ahead log. So each command of the program must open
the database as its owner does, and a stranger that opens it in SQLite's usual way harms nothing.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from typing import Any

from tests.tools import measure
from tests.tools.measure import Product

_ASKED = (
    ("--json", "status"),
    ("--json", "task", "list"),
    ("--json", "runs"),
    ("--json", "show", "1"),
    ("log", "1"),
)


class State:
    """One state and what its commands answered."""

    def __init__(self, product: Product, path: str) -> None:
        self._product = product
        self.path = path

    def command(self, *words: str) -> tuple[int, str]:
        """(status, what it printed on both outputs)."""
        done = subprocess.run(
            self._product.command("--state", self.path, *words),
            env=measure.ENVIRONMENT,
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout + done.stderr

    def failed(self, commands: tuple[tuple[str, ...], ...]) -> list[str]:
        """The commands that did not end well, with their words."""
        told = {" ".join(words): self.command(*words) for words in commands}
        return [f"{words}: {said}" for words, (status, said) in told.items() if status != 0]

    def stranger(self) -> str:
        """What SQLite's own way of opening comes to."""
        try:
            connection = sqlite3.connect(os.path.join(self.path, "edge.db"), timeout=0.2)
            try:
                return f"{connection.execute('SELECT count(*) FROM sqlite_schema').fetchone()[0]}"
            finally:
                connection.close()
        except sqlite3.Error as error:
            return str(error)


def openers(product: Product, folder: str) -> dict[str, Any]:
    """What each of them found, and what the next daemon makes of it."""
    state = State(product, os.path.join(folder, "opened"))
    product.init(state.path)
    kept = os.path.join(folder, "kept")
    found: dict[str, Any] = {}
    with product.daemon(state.path) as daemon:
        daemon.call("task.add", name="one", shell="echo hi; exit 7")
        daemon.run("one")
        found["stranger beside"] = state.stranger()
        status, said = state.command("--json", "run")
        found["second daemon"] = (status, json.loads(said)["error"]["code"])
        found["failed beside"] = state.failed((*_ASKED, ("backup", f"{kept}.1")))
        found["exit code beside"] = daemon.run("one")["exit_code"]
    found["stranger after"] = state.stranger()
    found["failed after"] = state.failed((*_ASKED, ("backup", f"{kept}.2"), ("start", "one")))
    with product.daemon(state.path) as daemon:
        found["queued"] = daemon.call("run.wait", run="3")["exit_code"]
        status = daemon.call("status")
        found["mode"], found["degraded"] = status["storage"]["mode"], status["degraded"]
    again = State(product, os.path.join(folder, "again"))
    found["failed restored"] = again.failed((("restore", f"{kept}.2"), *_ASKED[:4]))
    with product.daemon(again.path) as daemon:
        found["exit code restored"] = daemon.run("one")["exit_code"]
    return found


def main(zipapp: str, folder: str) -> None:
    """Look and print."""
    print(json.dumps(openers(Product(zipapp), folder)))


if __name__ == "__main__":
    main(*sys.argv[1:])
