"""A worker that is hit at one effect: `python -m tests.worker.victim CONFIG WHERE N EFFECT REPORT`.

WHERE is `before`, `after` or `never` for a death, or what the effect fails with: `EIO` once, `EIO!`
and everything after it that can fail so, until a file REPORT.healed is there. N is the how manyth
of that name. Effects count from its first request for an offer on: those of the crash passes' seam,
and of every request three: connected, sent, answered. The report is the list of effects, each with
its errors and whether it lasts, as JSON; a file REPORT.fired tells that one has failed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from qinglong_edge.app import worker, worker_config, worker_daemon
from qinglong_edge.artifact import worker as artifact_worker
from qinglong_edge.artifact import writer
from qinglong_edge.storage import inbox
from qinglong_edge.worker.plane import Plane
from qinglong_edge.worker.transport import Transport
from tests.crash import seam
from tests.crash.seam import Plan

FIRED, HEALED = ".fired", ".healed"
_MORE = (worker, inbox, artifact_worker, writer)


def named(effect: str) -> str:
    """An effect without the names of one run in it."""
    return effect if effect.startswith("connection.") else " ".join(effect.split()[:2])


class Hit(Plan):
    """Dies or fails at the N-th effect of a name, wherever that stands."""

    def __init__(self, where: str, number: int, effect: str) -> None:
        super().__init__()
        self._where = where
        self._left = number
        self._effect = effect
        self.armed = False

    def enter(self, name: str, possible: tuple[str, ...], *, lasting: bool) -> str | None:
        """Count an effect, and die beside it or let it fail if it is the one."""
        if self.mine and self._where != "never" and named(name) == self._effect:
            self._left -= 1
            if self._left == 0:
                self._aim(len(self.effects) + 1)
        if self.for_ever and os.path.exists(self.report_path + HEALED):
            self.for_ever = False
        code = super().enter(name, possible, lasting=lasting)
        if code is not None:
            os.close(os.open(self.report_path + FIRED, os.O_CREAT | os.O_WRONLY, 0o600))
        return code

    def _aim(self, at: int) -> None:
        if self._where == "before":
            self.die_before = at
        elif self._where == "after":
            self.die_after = at
        else:
            self.fail_at, self.code = at, self._where.rstrip("!")
            self.for_ever = self._where.endswith("!")

    def write_report(self, _text: str) -> None:
        """The list as it is so far."""
        with open(self.report_path, "w", encoding="utf-8") as opened:
            json.dump([tuple(each) for each in self.effects], opened)


def _counted(plan: Plan, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    possible = ("EMFILE",) if name.endswith("_connected") else ()

    def call(self: Any, *given: Any, **named: Any) -> Any:
        code = plan.enter(name, possible, lasting=True)
        if code is not None:
            raise seam.os_error(code)
        result = real(self, *given, **named)
        plan.leave("net")
        return result

    return call


def _arming(plan: Plan, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *given: Any) -> Any:
        plan.armed = True
        return real(self, *given)

    return call


def main(argv: list[str]) -> int:
    """Be the worker until it dies."""
    path, where, number, effect, report = argv
    plan = Hit(where, int(number), effect)
    plan.report_path = report
    config = worker_config.read(path)

    with seam.guard(plan):
        for module in _MORE:
            module.__dict__["os"] = seam.Double(os, **seam._Calls(plan).table())
        Plane.offers = _arming(plan, Plane.offers)  # type: ignore[method-assign]
        for name in ("_connected", "_send", "_reply"):
            real = getattr(Transport, name)
            setattr(Transport, name, _counted(plan, f"transport.{name}", real))
        worker_daemon.serve(config)
    plan.write_report("")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
