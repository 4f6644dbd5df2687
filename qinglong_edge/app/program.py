"""The program itself as a file: what it carries beside its code, and how it stays readable.

Owns no state. In a zipapp every path of ours begins with ``/proc/self/fd/N``, the descriptor that
the first lines of the program opened (see ``qinglong_edge.__main__``). A process that forks and
goes on importing keeps N open until its last import; after a crash there is nothing to repair.
"""

from __future__ import annotations

import os

from qinglong_edge.core.canonical import decode
from qinglong_edge.core.record import Record
from qinglong_edge.system import interpreter
from qinglong_edge.system.memory import give_back

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_HELD = "/proc/self/fd/"


class Build(Record):
    """What a zipapp knows of its making."""

    digest: str  # SHA-256 over the names and bytes of everything in it but the byte code
    python: str  # the minor version whose byte code it carries, such as "3.11"


def descriptor() -> int | None:
    """The descriptor that imports go through, or None in a checkout or without /proc."""
    if not _PACKAGE.startswith(_HELD):
        return None
    number = _PACKAGE[len(_HELD) :].partition("/")[0]
    return int(number) if number.isdigit() else None


def archive() -> str | None:
    """The zipapp's own file, by way of its descriptor where there is one; None in a checkout."""
    above = os.path.dirname(_PACKAGE)
    return None if os.path.isdir(_PACKAGE) else above


def settle(*needed: str) -> None:
    """For a process that stays, before it loads: forget what its start alone took."""
    interpreter.forget_starter(*needed)


def release() -> None:
    """Let go of the code that is held inflated for imports; nothing to do in a checkout.

    For when all that a process lives on is imported. A later import still works and inflates again.
    """
    let_go = getattr(__spec__.loader, "release", None)
    if let_go is not None and let_go():
        give_back()


def resource(name: str) -> bytes:
    """A data file of the package by its name relative to it; OSError where it does not exist."""
    read = getattr(__spec__.loader, "get_data")  # noqa: B009 - loaders differ; this one method is common
    data: bytes = read(os.path.join(_PACKAGE, name))
    return data


def profiles(*, worker: bool) -> dict[str, dict[str, Any]]:
    """The numbers of each profile, a worker's or a daemon's; budgets of the build are none.

    The zipapp carries ``profiles.json``, made at build time; a checkout has ``profiles/NAME.toml``
    beside the package.
    """
    try:
        data = resource("profiles.json")
    except OSError:
        return _checkout(worker=worker)
    carried: Any = decode(data, bytes_max=len(data))
    return {name: profile["runtime"] for name, profile in carried.items()}


def _checkout(*, worker: bool) -> dict[str, dict[str, Any]]:
    import tomllib

    folder = os.path.join(os.path.dirname(_PACKAGE), "profiles")
    tables = {}
    for file in os.listdir(folder):
        name, suffix = os.path.splitext(file)
        if suffix == ".toml" and name.startswith("worker-") is worker:
            with open(os.path.join(folder, file), "rb") as opened:
                tables[name] = tomllib.load(opened)["runtime"]
    return tables


def build() -> Build | None:
    """The making of this zipapp; None in a checkout."""
    try:
        data = resource("build.json")
    except OSError:
        return None
    made: Any = decode(data, bytes_max=len(data))
    return Build(digest=made["digest"], python=made["python"])
