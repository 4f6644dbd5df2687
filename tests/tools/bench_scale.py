"""The rows of a large state: what many tasks and a long history cost a tick and a question.

The history is copied from one real run with SQL, so that a hundred thousand of them take seconds.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.tools import measure
from tests.tools.measure import Daemon, Product

_TICKER = "ticker"
_TABLES = {"run": ("number", 1), "attempt": ("key", 16), "event": ("key", 65_536)}  # a run's step


@dataclass(frozen=True)
class Growth:
    """CPU in the large state over CPU in the small one."""

    tick: float
    status: float


def prepare(product: Product, state: str, *, tasks: int, runs: int) -> None:
    """A stopped state with so many tasks and ended runs."""
    product.init(state)
    with product.daemon(state) as daemon:
        daemon.call("task.add", name=_TICKER, shell="true", log=False)
        daemon.run(_TICKER)
        measure.add_tasks(daemon, tasks - 1)
    multiply_history(os.path.join(state, "edge.db"), runs)


def multiply_history(path: str, runs: int) -> None:
    """Copy the first run with its rows until there are so many."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        for table, (key, step) in _TABLES.items():
            names = [str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})")]
            columns, places = ", ".join(names), ", ".join("?" * len(names))
            first = connection.execute(
                f"SELECT {columns} FROM {table} WHERE {key} < ?", (2 * step,)
            ).fetchall()
            for row in first:
                connection.executemany(
                    f"INSERT INTO {table} ({columns}) VALUES ({places})",
                    _copies(names, row, (key, step), runs),
                )
        connection.execute("COMMIT")
    finally:
        connection.close()


def _copies(
    names: list[str], row: tuple[object, ...], key: tuple[str, int], runs: int
) -> Iterator[list[object]]:
    """The row once for each further run, with its own number and an id that stays of version 7."""
    place = names.index(key[0])
    for number in range(2, runs + 1):
        copied = list(row)
        copied[place] = int(str(row[place])) + (number - 1) * key[1]
        if "id" in names:
            at = names.index("id")
            given = row[at]
            if not isinstance(given, bytes):
                raise RuntimeError("a stored id is not of 16 bytes")
            copied[at] = given[:10] + number.to_bytes(6, "big")
        yield copied


def growth(small: Daemon, large: Daemon, *, seconds: int, questions: int) -> Growth:
    """Both daemons tick each second in the same span; then they are asked in turns."""
    pair = (small, large)
    for daemon in pair:
        daemon.call("task.set", name=_TICKER, cron=["* * * * * *"], zone="UTC")
    time.sleep(1.5)
    before = [(measure.cpu_ns(each.pid), _newest(each)) for each in pair]
    time.sleep(seconds)
    ticks = [
        (measure.cpu_ns(each.pid) - cpu) / (_newest(each) - newest)
        for each, (cpu, newest) in zip(pair, before, strict=True)
    ]
    for daemon in pair:
        daemon.call("task.set", name=_TICKER, cron=[])
        measure.rest(daemon.pid)
    asked: tuple[list[float], list[float]] = ([], [])
    for _ in range(questions):
        for daemon, spent in zip(pair, asked, strict=True):
            begun = measure.cpu_ns(daemon.pid)
            daemon.call("status")
            measure.rest(daemon.pid, every_s=0.005)
            spent.append(measure.cpu_ns(daemon.pid) - begun)
    return Growth(ticks[1] / ticks[0], measure.median(asked[1]) / measure.median(asked[0]))


def _newest(daemon: Daemon) -> int:
    return int(daemon.call("runs.list", limit=1)["runs"][0]["number"])
