"""The effects of the machine, counted, failed, or cut short.

Owns the one place where tests stand between the product and the operating system. Every method of
the system's rooms that has an effect, and every BEGIN and COMMIT of the connection, is one numbered
effect. A plan says what happens at effect N: it raises an errno (once, or from then on for ever),
or the process dies before or after it. The list of effects with an arrow at N is the failure
report.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

from qinglong_edge.app.runtime import Parts
from qinglong_edge.core.errors import Unavailable
from qinglong_edge.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

DIED = 77

_DISK = ("ENOSPC", "EIO", "EROFS")
_TABLE = ("EMFILE", "ENOMEM")

# object -> method -> the errnos it can give; the empty tuple: it may die there, but cannot fail
FILES: dict[str, tuple[str, ...]] = {
    "make_private_directory": _DISK,
    "sync_directory": ("EIO", "EMFILE"),
    "publish": _DISK,
    "replace": _DISK,
    "link": _DISK,
    "remove": ("EIO", "EROFS"),
    "open_append": (*_DISK, "EMFILE"),
    "read_private": ("EIO", "EMFILE"),
    "size": ("EIO",),
    "space": ("EIO",),
}
SPAWNER: dict[str, tuple[str, ...]] = {"fork": (*_TABLE, "EAGAIN")}
CHILD: dict[str, tuple[str, ...]] = {"send_go": ("EPIPE",), "answer": ()}
PROCESSES: dict[str, tuple[str, ...]] = {
    "signal_group": (),
    "signal_pid": (),
    "open_pid": (),
    "reap": (),
}
DATABASE: dict[str, tuple[str, ...]] = {"begin": ("FULL", "IOERR"), "commit": ("FULL", "IOERR")}


class Plan:
    """What happens at which effect; effects are numbered from 1."""

    def __init__(
        self,
        *,
        fail_at: int = 0,
        code: str = "EIO",
        for_ever: bool = False,
        die_before: int = 0,
        die_after: int = 0,
    ) -> None:
        self.fail_at = fail_at
        self.code = code
        self.for_ever = for_ever
        self.die_before = die_before
        self.die_after = die_after
        self.effects: list[str] = []
        self.possible: list[tuple[str, ...]] = []
        self.fired = False
        self.armed = True

    def enter(self, name: str, possible: tuple[str, ...]) -> bool:
        """Count an effect; True if it has to fail."""
        if not self.armed:
            return False
        self.effects.append(name)
        self.possible.append(possible)
        number = len(self.effects)
        if number == self.die_before:
            os._exit(DIED)
        hit = number == self.fail_at or (self.for_ever and 0 < self.fail_at <= number)
        if hit and self.code in possible:
            self.fired = True
            return True
        return False

    def leave(self) -> None:
        """The effect has happened."""
        if self.armed and len(self.effects) == self.die_after:
            os._exit(DIED)

    def report(self) -> str:
        """Every effect, with an arrow at the one that was hit."""
        hit = self.fail_at or self.die_before or self.die_after
        lines = [
            f"{'-->' if number == hit else '   '} {number:3d} {name}"
            for number, name in enumerate(self.effects, 1)
        ]
        what = f"fail {self.code}" if self.fail_at else "die"
        return f"\n{what} at {hit}{' for ever' if self.for_ever else ''}:\n" + "\n".join(lines)


def _guard(
    plan: Plan, target: Any, label: str, table: dict[str, tuple[str, ...]], fault: Callable[[str], BaseException]
) -> None:
    for name, possible in table.items():
        real = getattr(target, name)

        def call(
            *given: Any,
            _real: Callable[..., Any] = real,
            _name: str = name,
            _possible: tuple[str, ...] = possible,
            **named: Any,
        ) -> Any:
            if plan.enter(f"{label}.{_name}", _possible):
                raise fault(plan.code)
            result = _real(*given, **named)
            if label == "spawner":
                _guard(plan, result, "child", CHILD, _os_error)
            plan.leave()
            return result

        setattr(target, name, call)


def _os_error(code: str) -> BaseException:
    return OSError(getattr(errno, code), os.strerror(getattr(errno, code)))


def _database_error(code: str) -> BaseException:
    name = {"FULL": "no_space", "IOERR": "database_failed"}[code]
    return Unavailable(name, "Injected.", sqlite=f"SQLITE_{code}")


def guarded(plan: Plan) -> Parts:
    """The machine's effects under a plan."""
    parts = Parts()
    _guard(plan, parts.files, "files", FILES, _os_error)
    _guard(plan, parts.spawner, "spawner", SPAWNER, _os_error)
    _guard(plan, parts.processes, "processes", PROCESSES, _os_error)

    def open_store(*given: Any, **named: Any) -> Store:
        store = Store(*given, **named)
        _guard(plan, store.database, "database", DATABASE, _database_error)
        return store

    parts.open_store = open_store
    return parts


