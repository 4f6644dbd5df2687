"""The walls of the house: which room may import what, read from syntax trees.

Every import counts as an arrow: in function bodies and under TYPE_CHECKING too. Arrows of ours
point down only and form no circle between modules; the standard library is allowed room by room,
because what the daemon imports is memory for as long as a router is up.
"""

from __future__ import annotations

import ast
import graphlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

PACKAGE = "qinglong_edge"
ENTRY = "__main__"

_BELOW_APP = frozenset(
    {"core", "system", "storage", "process", "artifact", "secret", "execution", "worker"}
)
# room -> (the rooms it may import, why no others)
ARROWS: dict[str, tuple[frozenset[str], str]] = {
    "core": (frozenset(), "pure values and rules know nothing of ours"),
    "system": (frozenset({"core"}), "the seam to the operating system knows values only"),
    "storage": (frozenset({"core", "system"}), "the only SQL; it meets the others in app"),
    "process": (frozenset({"core", "system"}), "ADR-0069 section 1: it knows no policy, no SQL"),
    "artifact": (frozenset({"core", "system"}), "logs know neither runs nor SQL"),
    "secret": (frozenset({"core", "system"}), "secrets know neither runs nor SQL"),
    "execution": (frozenset({"core"}), "it decides; what it uses comes through constructors"),
    "worker": (frozenset({"core"}), "rules shared with execution are pure and live in core"),
    "app": (_BELOW_APP, "the composition root builds everything and knows no front end"),
    "cli": (frozenset({"app", "core"}), "a front end speaks to app only"),
    ENTRY: (frozenset({"cli"}), "the first lines start the front end"),
}
# (room, module of ours it must not import although the room is below it, why)
REFUSED = (
    ("storage", "system.process", "SQL has no business with processes"),
    ("process", "core.profile", "ADR-0069 section 1: numbers come as arguments"),
    ("execution", "core.profile", "ADR-0069 section 1: numbers come as arguments"),
    ("artifact", "system.loop", "ADR-0115: no timer cleans or closes a log"),
)
# room, or module that the daemon never loads -> what it may import when it is loaded
STDLIB: dict[str, frozenset[str]] = {
    "core": frozenset({"_operator", "binascii", "struct"}),
    **dict.fromkeys(("core.crontab", "core.crontab_schedule", "core.dotenv"), frozenset({"re"})),
    "system": frozenset(
        {
            *("binascii", "errno", "_heapq", "fcntl", "os", "pwd", "resource", "select"),
            *("_signal", "_socket", "signal", "stat", "struct", "sys", "time"),
        }
    ),
    "system.interpreter": frozenset({"gc", "sys"}),
    "storage": frozenset({"_sqlite3", "errno", "os"}),
    "process": frozenset({"_signal", "errno", "os", "signal", "stat", "struct"}),
    "artifact": frozenset({"_thread", "errno", "os", "stat"}),  # one writer, many callers
    # Moving in and out, in one-shot commands or for one request.
    **dict.fromkeys(("core.envset", "core.export"), frozenset({"re"})),
    **dict.fromkeys(("core.notice", "core.qinglong"), frozenset({"json", "re"})),
    "core.channel": frozenset({"re"}),
    **dict.fromkeys(("app.kit", "app.qinglong", "app.staging"), frozenset({"json"})),
    **dict.fromkeys(("cli.envfiles", "cli.exporting", "cli.moving"), frozenset({"json"})),
    "cli.uci": frozenset({"re"}),
    # The worker's own: its TLS brings `re` with it.
    **dict.fromkeys(
        ("artifact.worker", "core.revision", "core.session", "core.wire"), frozenset({"re"})
    ),
    "app.worker_credentials": frozenset({"re"}),
    "cli.worker": frozenset({"json"}),
    "secret": frozenset({"binascii", "errno", "os", "stat"}),
    "execution": frozenset({"_heapq"}),
    "worker": frozenset(),
    "worker.transport": frozenset({"io"}),  # every interpreter has it
    "app": frozenset({"_signal", "binascii", "errno", "os", "signal", "stat", "sys", "time"}),
    "cli": frozenset({"binascii", "errno", "gc", "os", "signal", "stat", "sys", "time"}),
    ENTRY: frozenset(
        {
            *("_bz2", "_frozen_importlib", "_frozen_importlib_external", "errno", "fcntl"),
            *("marshal", "os", "struct", "sys", "zipimport"),
        }
    ),
}
# room or module -> what a function may import late -> why the daemon does not pay for it
LATE: dict[str, dict[str, str]] = {
    "core.canonical": {"json": "only where its C half is missing"},
    "system.post": dict.fromkeys(("socket", "ssl"), "only a child that sends a message"),
    "system.interpreter": {"_functools": "built in; not every interpreter has it"},
    "system.dial": {"socket": "only a child that sends a message, and the worker"},
    "system": dict.fromkeys(
        ("cryptography", "site"), "only the launch child and one-shot commands open secrets"
    ),
    "app": {"tomllib": "only a checkout reads TOML; the zipapp carries JSON"},
    "app.making": {"json": "only `init` writes a document for a person to edit"},
    "app.worker_doctor": {"ssl": "one-shot: how long the certificate holds"},
    "worker.transport": dict.fromkeys(
        ("http", "select", "socket", "ssl"), "the plane is reached over HTTPS"
    ),
    "app.doctor": {"_ssl": "only `doctor`, a one-shot command"},
    "app.installed": dict.fromkeys(
        ("_bz2", "_frozen_importlib_external", "_imp", "marshal", "struct", "zipimport", "zlib"),
        "only `install`, a one-shot command",
    ),
    "cli": dict.fromkeys(("datetime", "termios"), "only one-shot commands"),
}
# the one module that may import it -> at any depth
ONE_PLACE = {
    "argparse": "cli.parser",  # imported late itself: the daemon reads its few options by hand
    "_json": "core.canonical",
    "_sha2": "core.canonical",
    "_sha256": "core.canonical",
    "hashlib": "core.canonical",  # the fallback: it loads libcrypto where that is installed
}


@dataclass(frozen=True)
class Arrow:
    """One import statement's one target; names of ours lack the package."""

    source: str
    line: int
    target: str
    ours: bool
    late: bool  # inside a function
    typing: bool  # under TYPE_CHECKING: never run

    @property
    def room(self) -> str:
        """The room that imports; empty for the package itself."""
        return _room(self.source)


def violations(root: str) -> list[str]:
    """Every arrow that the house does not have, with the reason; empty when the walls stand."""
    trees = dict(_modules(root))
    arrows = [arrow for name, tree in trees.items() for arrow in _arrows(name, tree, set(trees))]
    found = [f"{a.source}:{a.line} {why}" for a in arrows if (why := _wrong(a)) is not None]
    found += [
        f"{name}:{node.lineno} imports by text, which no wall can see"
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _called(node) in {"__import__", "import_module"}
    ]
    return sorted(set(found)) + _circle([arrow for arrow in arrows if arrow.ours])


def _wrong(arrow: Arrow) -> str | None:
    if arrow.target.startswith("."):
        return "imports relatively; the walls are checked by full names"
    return _wrong_within(arrow) if arrow.ours else _wrong_outside(arrow)


def _wrong_within(arrow: Arrow) -> str | None:
    room, other = arrow.room, _room(arrow.target)
    for source, target, why in REFUSED:
        if room == source and f"{arrow.target}.".startswith(f"{target}."):
            return f"{room} -> {target}: {why}"
    if other == room or (other == "" and room in {"app", "cli"}):  # the version
        return None
    if room not in ARROWS:
        return f"{room or 'the package itself'} -> {other}: no such room in the house"
    below, why = ARROWS[room]
    return None if other in below else f"{room} -> {other or PACKAGE}: {why}"


def _wrong_outside(arrow: Arrow) -> str | None:
    name = arrow.target.partition(".")[0]
    if arrow.typing or name == "__future__":
        return None
    if name in ONE_PLACE:
        if arrow.source == ONE_PLACE[name]:
            return None
        return f"{arrow.room} -> {name}: only {ONE_PLACE[name]} may import it"
    if name in STDLIB.get(arrow.room, ()) or name in STDLIB.get(arrow.source, ()):
        return None
    if name not in {**LATE.get(arrow.room, {}), **LATE.get(arrow.source, {})}:
        return f"{arrow.room} -> {name}: not on this room's list of the standard library"
    return None if arrow.late else f"{arrow.room} -> {name}: only late, inside a function"


def _circle(arrows: list[Arrow]) -> list[str]:
    """One line for a circle of modules, if there is one."""
    graph: dict[str, set[str]] = {}
    for arrow in arrows:
        graph.setdefault(arrow.target, set()).add(arrow.source)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return [f"circle: {' -> '.join(error.args[1])}"]
    return []


def _modules(root: str) -> Iterator[tuple[str, ast.Module]]:
    top = os.path.join(root, PACKAGE)
    for folder, folders, files in os.walk(top):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for file in sorted(files):
            if file.endswith(".py"):
                path = os.path.join(folder, file)
                name = os.path.relpath(path, top).removesuffix(".py").replace(os.sep, ".")
                with open(path, encoding="utf-8") as opened:
                    tree = ast.parse(opened.read(), path)
                yield "" if name == "__init__" else name.removesuffix(".__init__"), tree


def _arrows(source: str, tree: ast.Module, known: set[str]) -> Iterator[Arrow]:
    for node, late, typing in _statements(tree, late=False, typing=False):
        for module, name in _targets(node):
            ours = module.partition(".")[0] == PACKAGE
            target = module.removeprefix(PACKAGE).removeprefix(".") if ours else module
            inner = f"{target}.{name}".removeprefix(".")
            if ours and name and inner in known:  # `from room import module`
                target = inner
            yield Arrow(source, node.lineno, target, ours, late, typing)


def _statements(
    parent: ast.AST, *, late: bool, typing: bool
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool, bool]]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node, late, typing
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for inner in node.body:
                module = ast.Module([inner], [])
                yield from _statements(module, late=late, typing=True)
            for inner in node.orelse:
                module = ast.Module([inner], [])
                yield from _statements(module, late=late, typing=typing)
        else:
            function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from _statements(node, late=late or function, typing=typing)


def _targets(node: ast.Import | ast.ImportFrom) -> list[tuple[str, str]]:
    """(module, the name taken from it or nothing) for every alias."""
    if isinstance(node, ast.Import):
        return [(alias.name, "") for alias in node.names]
    return [("." * node.level + (node.module or ""), alias.name) for alias in node.names]


def _called(node: ast.Call) -> str:
    return ast.unparse(node.func).rpartition(".")[2]


def _room(module: str) -> str:
    return module.partition(".")[0]
