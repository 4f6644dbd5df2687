"""The order in which an owner comes to life and goes."""

from __future__ import annotations

from typing import Any

import pytest

from qinglong_edge.app import daemon
from qinglong_edge.app.runtime import Runtime


class Parts:
    """Stands for anything: each call of a part, or of a part of it, is written down by its name."""

    def __init__(self, told: list[str], name: str = "") -> None:
        self._told, self._name = told, name

    def __getattr__(self, name: str) -> Parts:
        return Parts(self._told, f"{self._name}.{name}" if self._name else name)

    def __call__(self, *_given: object, **_named: object) -> Parts:
        self._told.append(self._name)
        return self


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done, in order, by a daemon whose first turn of the loop is its last."""
    made: list[str] = []
    for name in ("Server", "announce", "say", "signal", "state"):
        monkeypatch.setattr(daemon, name, Parts(made, name))
    return made


def order(told: list[str], *wanted: str) -> list[str]:
    """Those of the calls that a test asks about."""
    return [name for name in told if name in wanted]


def test_a_start_recovers_cleans_up_once_and_only_then_reads_who_waits_and_what_is_due() -> None:
    """ADR-0069 section 5: receipts first, one page of cleanup, then the domain."""
    told: list[str] = []
    runtime: Any = Parts(told)
    Runtime.recover(runtime)
    assert told == ["recovery.recover", "sweep.run_once", "dispatcher.load", "scheduler.load"]


def test_nothing_is_admitted_before_all_is_recovered_and_the_storage_closes_last(
    told: list[str],
) -> None:
    """ADR-0069 section 5: lifecycles before admission; its drain, cleanup, the others, storage."""
    runtime: Any = Parts(told)
    made = daemon.Daemon(runtime, on_stop=daemon.LEAVE)

    def turn() -> None:
        told.append("a turn")
        made._stop()

    runtime.__dict__["loop"] = loop = Parts(told, "loop")
    loop.__dict__["run_once"] = turn
    made.run()
    begin = ("secrets.examine", "recover", "sweep.start", "dispatcher.open", "scheduler.open")
    end = ("scheduler.close", "dispatcher.close", "sweep.stop", "coordinator.close", "close")
    assert order(told, *begin, "a turn") == [*begin, "a turn"]
    after = told[told.index("a turn") :]
    drained = after[after.index("dispatcher.close") + 1 :]
    assert after[1:3] == ["scheduler.close", "dispatcher.close"]
    assert order(drained, *end, "Server.close") == [*end[:4], "Server.close", end[4]]
