"""The effects of the machine, counted, failed, or cut short.

Stands between the product and the operating system: `guard` puts doubles of `os`, `fcntl`, `socket`
and `sqlite3` into the modules of the `system` room and of the others that touch files, so that each
system call of the owner with an effect or a possible failure, and each statement of the connection,
is one numbered effect. A plan says what happens at effect N: it fails (once, or from then on for
ever), or the process dies before or after it. The list with an arrow at N is the failure report.

What a forked launch child does is not counted: it is another process.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple

from qinglong_edge.app import runtime, state
from qinglong_edge.process import wrapper
from qinglong_edge.storage import connection, store
from qinglong_edge.system import child, clock, files, memory, process

DIED = 77

_DISK = ("ENOSPC", "EIO", "EROFS")
_TABLE = ("EMFILE", "ENOMEM")
_FULL = ("FULL", "IOERR")
_KERNEL = ("/proc/", "/dev/null")
_SQLITE = {"FULL": sqlite3.SQLITE_FULL, "IOERR": sqlite3.SQLITE_IOERR}
_SYSTEM = (files, child, process, memory, wrapper, state, connection, store, runtime)
Op = tuple[Any, ...]


class Effect(NamedTuple):
    """One numbered effect: what it can fail with, and whether a death beside it can matter."""

    name: str
    possible: tuple[str, ...]
    lasting: bool


class Plan:
    """What happens at which effect; effects are numbered from 1."""

    def __init__(
        self,
        *,
        fail_at: int = 0,
        code: str = "",
        for_ever: bool = False,
        die_before: int = 0,
        die_after: int = 0,
    ) -> None:
        self.fail_at = fail_at
        self.code = code
        self.for_ever = for_ever
        self.die_before = die_before
        self.die_after = die_after
        self.effects: list[Effect] = []
        self.fired = False
        self.report_path = ""
        self.done: list[str] = []  # what lasts and has happened
        self.armed = True
        self.owner = os.getpid()
        self.paths: dict[int, str] = {}  # descriptor -> name, of what was opened for writing
        self.forked: list[int] = []
        self.signals: list[tuple[int, int, bool]] = []
        self.ops: list[Op] | None = None  # recorded for the power pass
        self.before_op: Callable[[], None] = lambda: None
        self.on_commit: Callable[[], None] = lambda: None

    @property
    def mine(self) -> bool:
        """True in the process whose effects count."""
        return self.armed and os.getpid() == self.owner

    def here(self) -> None:
        """Count the effects of this process: it has just been forked to live the scenario."""
        self.owner = os.getpid()

    def enter(self, name: str, possible: tuple[str, ...], *, lasting: bool) -> str | None:
        """Count an effect; the code that it has to fail with."""
        if not self.mine:
            return None
        self.effects.append(Effect(name, possible, lasting))
        number = len(self.effects)
        if number == self.die_before:
            self._die()
        hit = number == self.fail_at or (self.for_ever and 0 < self.fail_at <= number)
        if hit and self.code in possible:
            self.fired = True
            return self.code
        return None

    def leave(self, *op: Any) -> None:
        """The effect has happened."""
        if not self.mine:
            return
        if op:
            self.done.append(self.effects[-1].name)
        if self.ops is not None and op:
            self.before_op()
            self.ops.append(op)
        if len(self.effects) == self.die_after:
            self._die()

    def _die(self) -> None:
        self.write_report(self.report())
        os._exit(DIED)

    def write_report(self, text: str) -> None:
        """Leave a report behind for whoever lives on."""
        if self.report_path:
            with open(self.report_path, "a", encoding="utf-8") as opened:
                opened.write(text + "\n")

    def report(self) -> str:
        """Every effect, with an arrow at the one that was hit."""
        hit = self.fail_at or self.die_before or self.die_after
        what = f"fail {self.code}" if self.fail_at else "die before"
        what = "die after" if self.die_after else what
        lines = [
            f"{'-->' if number == hit else '   '} {number:3d} {effect.name}"
            for number, effect in enumerate(self.effects, 1)
        ]
        return f"{what} {hit}{' for ever' if self.for_ever else ''}:\n" + "\n".join(lines)


def os_error(code: str) -> OSError:
    """The exception of a system call that failed so."""
    number = getattr(errno, code)
    return OSError(number, os.strerror(number))


class Double:
    """A module with some functions replaced; everything else is the real one's."""

    def __init__(self, real: ModuleType, **replaced: Any) -> None:
        self._real = real
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


# function -> what it can fail with, whether it lasts
_BY_PATH: dict[str, tuple[tuple[str, ...], bool]] = {
    "mkdir": (_DISK, True),
    "makedirs": (_DISK, True),
    "chmod": (("EIO", "EROFS"), True),
    "link": (_DISK, True),
    "rename": (_DISK, True),
    "unlink": (("EIO", "EROFS"), True),
    "lstat": (("EIO",), False),
    "stat": (("EIO",), False),
    "statvfs": (("EIO",), False),
    "listdir": (_TABLE, False),
    "access": ((), False),
}
_BY_FD: dict[str, tuple[tuple[str, ...], bool]] = {
    "write": (("ENOSPC", "EIO"), True),
    "fsync": (("EIO", "ENOSPC"), True),
    "fchmod": (("EIO", "EROFS"), True),
    "fstat": (("EIO",), False),
    "read": (("EIO",), False),
    "pread": (("EIO",), False),
}
_PLAIN: dict[str, tuple[tuple[str, ...], bool]] = {
    "memfd_create": (_TABLE, False),
    "pipe2": (("EMFILE",), False),
    "pidfd_open": (_TABLE, False),
    "posix_spawn": (("EAGAIN", "ENOMEM"), False),
    "waitpid": ((), True),
}


def _short(path: object) -> str:
    text = os.fsdecode(path) if isinstance(path, str | bytes) else str(path)
    return text if text.startswith(_KERNEL) else "/".join(text.split("/")[-2:])


def _leads(pid: int) -> bool:
    """Whether a process is there, an uncollected own one included."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as opened:
            fields = opened.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return fields[0] not in (b"Z", b"X")


def _caller() -> str:
    """Who of the product asks, as room.function."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals["__name__"] == __name__:
        frame = frame.f_back
    return f"{frame.f_globals['__name__'].rpartition('.')[2]}.{frame.f_code.co_name}"


class _Calls:
    """The counted functions of one plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def table(self) -> dict[str, Any]:
        """Every replaced function of `os`."""
        made = {name: self._by_path(name, *row) for name, row in _BY_PATH.items()}
        made |= {name: self._by_fd(name, *row) for name, row in _BY_FD.items()}
        made |= {name: self._plain(name, *row) for name, row in _PLAIN.items()}
        return made | {
            "open": self._open,
            "close": self._close,
            "fork": self._fork,
            "kill": self._signalling(os.kill),
            "killpg": self._signalling(os.killpg),
        }

    def _by_path(self, name: str, possible: tuple[str, ...], lasting: bool) -> Any:
        real = getattr(os, name)

        def call(path: Any, *given: Any, **named: Any) -> Any:
            kernel = str(path).startswith(_KERNEL)
            codes = () if kernel and name != "listdir" else possible
            code = self._plan.enter(f"{_caller()}: {name} {_short(path)}", codes, lasting=lasting)
            if code is not None:
                raise os_error(code)
            new = name != "makedirs" or not os.path.exists(path)
            result = real(path, *given, **named)
            if lasting and new:
                self._plan.leave(name, str(path), *(str(each) for each in given[:1]))
            return result

        return call

    def _by_fd(self, name: str, possible: tuple[str, ...], lasting: bool) -> Any:
        real = getattr(os, name)

        def call(fd: int, *given: Any, **named: Any) -> Any:
            path = self._plan.paths.get(fd)
            if path is None and name in ("fstat", "fchmod"):
                return real(fd, *given, **named)
            codes, lasts = (possible, lasting) if path is not None else ((), False)
            code = self._plan.enter(
                f"{_caller()}: {name} {_short(path or fd)}", codes, lasting=lasts
            )
            if code is not None:
                raise os_error(code)
            result = real(fd, *given, **named)
            if lasts:
                data = bytes(given[0])[:result] if name == "write" else b""
                self._plan.leave(name, path, data)
            return result

        return call

    def _plain(self, name: str, possible: tuple[str, ...], lasting: bool) -> Any:
        real = getattr(os, name)

        def call(*given: Any, **named: Any) -> Any:
            code = self._plan.enter(f"{_caller()}: {name}", possible, lasting=lasting)
            if code is not None:
                raise os_error(code)
            result = real(*given, **named)
            self._plan.leave()
            return result

        return call

    def _open(self, path: Any, flags: int, *given: Any, **named: Any) -> int:
        creates = bool(flags & os.O_CREAT)
        codes: tuple[str, ...] = (*_DISK, *_TABLE) if creates else ("EIO", *_TABLE)
        if str(path).startswith(_KERNEL):
            codes = _TABLE
        word = "create" if creates else "open"
        code = self._plan.enter(f"{_caller()}: {word} {_short(path)}", codes, lasting=creates)
        if code is not None:
            raise os_error(code)
        new = creates and not os.path.lexists(path)
        fd = os.open(path, flags, *given, **named)
        if not str(path).startswith(_KERNEL):
            self._plan.paths[fd] = str(path)
        else:
            self._plan.paths.pop(fd, None)
        if creates:
            self._plan.leave(*(("create", str(path)) if new else ()))
        return fd

    def _close(self, fd: int) -> None:
        self._plan.paths.pop(fd, None)
        os.close(fd)

    def _fork(self) -> int:
        code = self._plan.enter(f"{_caller()}: fork", ("EAGAIN", "ENOMEM"), lasting=True)
        if code is not None:
            raise os_error(code)
        pid = os.fork()
        if pid:
            self._plan.forked.append(pid)
            self._plan.leave("fork")
        return pid

    def _signalling(self, real: Callable[[int, int], None]) -> Any:
        def call(target: int, number: int) -> None:
            if number == 0:
                real(target, number)
                return
            name = f"{_caller()}: {real.__name__} {signal.Signals(number).name}"
            self._plan.enter(name, (), lasting=True)
            if self._plan.mine:
                self._plan.signals.append((target, number, _leads(target)))
            real(target, number)
            self._plan.leave()

        return call

    def opened(self, path: str, *given: Any, **named: Any) -> Any:
        """The builtin `open`, of /proc only."""
        code = self._plan.enter(f"{_caller()}: open {path}", _TABLE, lasting=False)
        if code is not None:
            raise os_error(code)
        return open(path, *given, **named)

    def socketpair(self, *given: Any) -> Any:
        """A pair of sockets."""
        code = self._plan.enter(f"{_caller()}: socketpair", _TABLE, lasting=False)
        if code is not None:
            raise os_error(code)
        return socket.socketpair(*given)

    def connect(self, path: str, **named: Any) -> sqlite3.Connection:
        """A connection whose statements are counted."""
        plan = self._plan

        class Counted(sqlite3.Connection):
            def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
                return _statement(plan, super().execute, statement, values)

        return sqlite3.connect(path, factory=Counted, **named)


def _statement(
    plan: Plan, real: Callable[..., sqlite3.Cursor], statement: str, values: tuple[Any, ...]
) -> sqlite3.Cursor:
    words = statement.split()
    kind = words[0]
    possible: tuple[str, ...] = _FULL if kind in ("COMMIT", "INSERT", "UPDATE", "DELETE") else ()
    if kind in ("BEGIN", "SELECT"):
        possible = ("IOERR",)
    name = f"{_caller()}: {' '.join(words[:3])}"
    code = plan.enter(name, possible, lasting=kind in ("BEGIN", "COMMIT", "CREATE"))
    if code is not None:
        error = sqlite3.OperationalError("injected")
        error.sqlite_errorcode = _SQLITE[code]
        error.sqlite_errorname = f"SQLITE_{code}"
        raise error
    cursor = real(statement, *values)
    if kind == "COMMIT" and plan.mine:
        plan.on_commit()
    if kind in ("BEGIN", "COMMIT", "CREATE"):
        plan.leave(*(("commit",) if kind == "COMMIT" else ()))
    return cursor


def _send_go(plan: Plan, real: Callable[..., None]) -> Any:
    def call(self: child.Child, log: int | None) -> None:
        code = plan.enter("child.send_go", ("EPIPE", "ENOMEM"), lasting=True)
        if code is not None:
            raise os_error(code)
        real(self, log)
        plan.leave("go")

    return call


def _answer(plan: Plan, real: Callable[..., bool]) -> Any:
    def call(self: child.Child, text: bytes) -> bool:
        if plan.enter("child.answer", ("EPIPE",), lasting=True) is not None:
            return False
        result = real(self, text)
        plan.leave("answer")
        return result

    return call


@contextmanager
def guard(plan: Plan) -> Iterator[Plan]:
    """Put the doubles into the product's modules for the time of a block."""
    calls = _Calls(plan)
    double = Double(os, **calls.table())
    changes: list[tuple[Any, str, Any]] = [(module, "os", double) for module in _SYSTEM]
    changes += [
        (child, "socket", Double(socket, socketpair=calls.socketpair)),
        (connection, "sqlite3", Double(sqlite3, connect=calls.connect)),
        (clock, "open", calls.opened),
        (files, "open", calls.opened),
        (child.Child, "send_go", _send_go(plan, child.Child.send_go)),
        (child.Child, "answer", _answer(plan, child.Child.answer)),
    ]
    missing = object()
    before = [(target, name, target.__dict__.get(name, missing)) for target, name, _ in changes]
    for target, name, value in changes:
        setattr(target, name, value)
    try:
        yield plan
    finally:
        for target, name, value in reversed(before):
            if value is missing:
                delattr(target, name)
            else:
                setattr(target, name, value)
