"""Makes the zipapps: the same bytes from the same sources, wherever and however they are built.

Owns what goes in: the first lines as they are and as byte code, every other module once in one of
the code streams and once in the source stream, data files in theirs
(``qinglong_edge/app/installed.py`` draws it). What the resident process imports at its start, which
the imports themselves say, has a code stream of its own. Each artifact begins at its own front end.
The worker's carries what that front end reaches by its imports and nothing else; the runtime's
carries the rest of the package and what both reach.
Sorted names, one fixed time, one fixed mode. Needs the standard library only. The file is complete
or absent: it is written beside its name and renamed.
"""

from __future__ import annotations

import ast
import base64
import bz2
import hashlib
import io
import json
import marshal
import os
import stat
import struct
import subprocess
import tomllib
import zipfile
import zlib
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

PACKAGE = "qinglong_edge"
ARTIFACT = os.path.join("dist", "qinglong-edge.pyz")
SHEBANG = b"#!/usr/bin/python3 -IS\n"
DATA = frozenset({"qinglong_edge/process/wrapper.sh"})
KIT = "qinglong_edge/kit/"  # files that only one-shot commands read, so the daemon never holds them
# What moves a box in or out, looks it over or saves it: used once in a while, and compiled from its
# source then (under 0.1 s each here). Byte code takes more room than the source it is made of.
SELDOM = frozenset(
    f"{PACKAGE}/{room}/{name}.py"
    for room, names in {
        "app": "backup doctor imports installed kit making qinglong qinglong_envs staging",
        "cli": "envfiles exporting moving switching upkeep",
        "core": "crontab crontab_schedule dotenv export qinglong qinglong_env vectors",
        "storage": "backup qinglong",
    }.items()
    for name in names.split()
)
FIRST = "__main__.py"  # the package's, at the root of the zipapp
SOURCE = "source.bz2"
DATA_STREAM = "data.bz2"
KIT_STREAM = "kit.bz2"
_FIXED_TIME = (1980, 1, 1, 0, 0, 0)  # the oldest that a zip can say
_COMPILER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bytecode.py")


class BuildError(Exception):
    """The sources or the interpreter do not allow a build; the message is one sentence."""


@dataclass(frozen=True)
class Kind:
    """One of the artifacts: its file, the front end it begins at, the profiles it carries."""

    file: str
    entry: str
    daemon: str  # what the front end imports to be the resident process
    worker: bool
    profile: str  # whose budget it keeps


RUNTIME = Kind(
    ARTIFACT,
    f"{PACKAGE}.cli.main",
    f"{PACKAGE}.app.daemon",
    worker=False,
    profile="edge",
)
WORKER = Kind(
    os.path.join("dist", "qinglong-edge-worker.pyz"),
    f"{PACKAGE}.cli.worker",
    f"{PACKAGE}.app.worker_daemon",
    worker=True,
    profile="worker-edge",
)
KINDS = (RUNTIME, WORKER)
_WORKERS_ROOM = f"{PACKAGE}/worker/"


@dataclass(frozen=True)
class Artifact:
    """A finished zipapp."""

    path: str
    size: int
    entries: dict[str, int]  # member -> bytes it takes in the file, compressed
    modules: dict[str, int]  # file of a module -> its share of the members that carry it
    digest: str
    python: str


@dataclass(frozen=True)
class _Compiled:
    """What one interpreter makes of the sources."""

    python: str
    first: bytes  # the first lines' .pyc
    tag: str  # names the interpreter in the names of the code members
    code: dict[str, bytes]  # file of a module -> its marshalled code


def build(root: str, output: str, *, python: str, kind: Kind = RUNTIME) -> Artifact:
    """Build the tree at `root` into the file `output`, byte code by the interpreter `python`."""
    sources = {**carried(root, kind), f"{PACKAGE}/profiles.json": _profiles(root, kind)}
    first = sources[f"{PACKAGE}/{FIRST}"]
    compiled = _compile(python, {n: t for n, t in sources.items() if n.endswith(".py")})
    made = {"digest": digest(sources), "python": compiled.python}
    texts = {name: sources[name] for name in compiled.code}
    plain_data = {n: content for n, content in sources.items() if not n.endswith(".py")}
    data = {name: content for name, content in plain_data.items() if not name.startswith(KIT)}
    kit = {n.removeprefix(KIT): content for n, content in plain_data.items() if n not in data}
    data[f"{PACKAGE}/build.json"] = _json(made)
    resident = _reached(sources, kind.entry, kind.daemon, late=False)
    packed = {
        f"code.{compiled.tag}.bz2": _stream(_some(compiled.code, resident)),
        f"more.{compiled.tag}.bz2": _stream(
            _some(compiled.code, compiled.code.keys() - resident - SELDOM)
        ),
        SOURCE: _stream(texts),
    }
    plain = {FIRST: first, f"{FIRST}c": compiled.first, DATA_STREAM: _stream(data)}
    plain[KIT_STREAM] = _stream(kit)
    content = _archive(plain | packed)
    _publish(output, content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = {info.filename: info.compress_size for info in archive.infolist()}
    alone = {n: len(zlib.compress(compiled.code[n])) + len(zlib.compress(texts[n])) for n in texts}
    modules = _shares(alone, sum(map(len, packed.values())))
    return Artifact(output, len(content), entries, modules, made["digest"], compiled.python)


def unpack_sources(zipapp: str, folder: str) -> list[str]:
    """Write every source that a zipapp carries below `folder`; their names, sorted.

    Reads the file itself, not through the program in it.
    """
    with zipfile.ZipFile(zipapp) as archive:
        first, stream = archive.read(FIRST), archive.read(SOURCE)
    found = {f"{PACKAGE}/{FIRST}": first, **_pieces(stream)}
    for name, text in found.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as opened:
            opened.write(text)
    return sorted(found)


def digest(sources: dict[str, bytes]) -> str:
    """SHA-256 over sorted names, lengths and bytes."""
    state = hashlib.sha256()
    for name in sorted(sources):
        state.update(f"{name}\0{len(sources[name])}\0".encode())
        state.update(sources[name])
    return state.hexdigest()


def kinds(root: str) -> list[Kind]:
    """The artifacts that a tree has the front ends of."""
    return [kind for kind in KINDS if os.path.exists(os.path.join(root, _file(kind.entry)))]


def carried(root: str, kind: Kind) -> dict[str, bytes]:
    """Every source and data file of one artifact by its name."""
    found = _package(root)
    trees = {name: text for name, text in found.items() if name.endswith(".py")}
    chosen = _reached(trees, kind.entry)
    if not kind.worker:  # and what no artifact reaches; only the type checker's modules stay out
        every = (_reached(trees, each.entry, typing=True) for each in KINDS)
        chosen |= {n for n in set(trees).difference(*every) if not n.startswith(_WORKERS_ROOM)}
    chosen.add(f"{PACKAGE}/{FIRST}")
    chosen |= DATA
    if not kind.worker:
        chosen |= {name for name in found if name.startswith(KIT)}
    made = {name: text for name, text in found.items() if name in chosen}
    name = f"{PACKAGE}/{FIRST}"
    made[name] = _beginning(found[name], kind)
    return made


def _beginning(text: bytes, kind: Kind) -> bytes:
    """The first lines, which start the artifact's own front end."""
    line = b"from %s import main"
    given = line % RUNTIME.entry.encode()
    if text.count(given) != 1:
        raise BuildError("The first lines do not start a front end.")
    return text.replace(given, line % kind.entry.encode())


def _file(module: str) -> str:
    return module.replace(".", "/") + ".py"


def _some(code: dict[str, bytes], names: AbstractSet[str]) -> dict[str, bytes]:
    return {name: data for name, data in code.items() if name in names}


def _reached(
    trees: dict[str, bytes], *entries: str, late: bool = True, typing: bool = False
) -> set[str]:
    """The files of all modules that are imported from `entries` on.

    With `late` also by what functions do, with `typing` also what only the type checker reads.
    """
    found: set[str] = set()
    waiting = list(entries)
    while waiting:
        module = waiting.pop()
        package = f"{_file(module)[:-3]}/__init__.py"
        name = package if package in trees else _file(module)
        if name not in trees or name in found:
            continue
        found.add(name)
        waiting.append(module.rpartition(".")[0])
        try:
            waiting += _imports(ast.parse(trees[name], name), late=late, typing=typing)
        except SyntaxError:
            continue  # the compiler says so
    return found


def _imports(parent: ast.AST, *, late: bool, typing: bool) -> Iterator[str]:
    """Modules of ours that may be imported, with names that may be modules too."""
    for node in ast.iter_child_nodes(parent):
        checked = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if isinstance(node, ast.If) and checked and not typing:
            yield from _imports(ast.Module(node.orelse, []), late=late, typing=typing)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith(PACKAGE))
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith(PACKAGE):
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif late or not isinstance(node, ast.FunctionDef):
            yield from _imports(node, late=late, typing=typing)


def _package(root: str) -> dict[str, bytes]:
    """Every file of the package; one that no rule names is refused, not left out."""
    found: dict[str, bytes] = {}
    top = os.path.join(root, PACKAGE)
    for folder, folders, files in os.walk(top):
        folders[:] = [
            name for name in folders if name != "__pycache__" and not name.startswith(".")
        ]
        for file in files:
            path = os.path.join(folder, file)
            name = os.path.relpath(path, root).replace(os.sep, "/")
            if file.startswith(".") or file.endswith(".pyc"):
                continue
            if not (file.endswith(".py") or name in DATA or name.startswith(KIT)):
                raise BuildError(f"{name} is neither a module nor a known data file.")
            with open(path, "rb") as opened:
                found[name] = opened.read()
    for name in sorted(DATA | {f"{PACKAGE}/__main__.py"}):
        if name not in found:
            raise BuildError(f"{name} is missing.")
    return found


def _profiles(root: str, kind: Kind) -> bytes:
    """The run-time half of every profile of an artifact, as JSON."""
    carried_ones: dict[str, object] = {}
    folder = os.path.join(root, "profiles")
    for file in sorted(os.listdir(folder)):
        name, suffix = os.path.splitext(file)
        if suffix == ".toml" and name.startswith("worker-") is kind.worker:
            with open(os.path.join(folder, file), "rb") as opened:
                carried_ones[name] = {"runtime": tomllib.load(opened)["runtime"]}
    return _json(carried_ones)


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _compile(python: str, sources: dict[str, bytes]) -> _Compiled:
    """Every module as the interpreter `python` compiles it."""
    given = {name: base64.b64encode(text).decode() for name, text in sources.items()}
    # Not -I: it would drop the hash seed with all other variables of the interpreter.
    environment = {n: v for n, v in os.environ.items() if not n.startswith("PYTHON")}
    environment["PYTHONHASHSEED"] = "0"
    try:
        done = subprocess.run(
            [python, "-S", "-s", "-P", "-B", _COMPILER],
            input=json.dumps(given),
            capture_output=True,
            text=True,
            encoding="utf-8",
            env=environment,
        )
    except OSError as error:
        raise BuildError(f"{python} cannot be started ({error.strerror}).") from error
    if done.returncode != 0:
        last = done.stderr.strip().rpartition("\n")[2]
        raise BuildError(f"{python} could not compile the sources: {last}")
    answer = json.loads(done.stdout)
    code = {name: base64.b64decode(data) for name, data in answer["code"].items()}
    first = base64.b64decode(answer["first"])
    return _Compiled(answer["python"], first, answer["tag"], code)


def _stream(pieces: dict[str, bytes]) -> bytes:
    """Index and pieces of files in one stream, by room and name."""
    index, begin = {}, 0
    for file in sorted(pieces):
        index[file] = (begin, begin + len(pieces[file]))
        begin += len(pieces[file])
    head = marshal.dumps(index, 2)  # a later version's bytes depend on who else refers to a value
    body = b"".join(pieces[file] for file in sorted(pieces))
    stream = struct.pack("<I", len(head)) + head + body
    level = min(9, 1 + len(stream) // 100_000)  # one block; a larger one costs memory to read
    packed = bz2.compress(stream, level)
    if _pieces(packed) != pieces:
        raise BuildError("A stream could not be read back.")
    return packed


def _pieces(packed: bytes) -> dict[str, bytes]:
    """What `_stream` was given."""
    stream = bz2.decompress(packed)
    begins = 4 + struct.unpack_from("<I", stream)[0]
    index = marshal.loads(stream[4:begins])  # noqa: S302 - of our own making
    return {file: stream[begins + begin : begins + end] for file, (begin, end) in index.items()}


def _shares(alone: dict[str, int], size: int) -> dict[str, int]:
    """What each module takes of `size` bytes, if all lose alike by being packed alone."""
    whole = sum(alone.values())
    return {name: round(size * bytes_alone / whole) for name, bytes_alone in alone.items()}


def _archive(entries: dict[str, bytes]) -> bytes:
    """Shebang and zip; offsets count from the start of the file, as zip readers expect.

    What is large is packed already. The first lines' source is deflated, which their own Python
    never reads; more would put zlib into the daemon's memory.
    """
    stream = io.BytesIO()
    stream.write(SHEBANG)
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(entries):
            info = zipfile.ZipInfo(name, _FIXED_TIME)
            info.create_system = 3  # Unix, whatever the builder runs on
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(
                info, entries[name], zipfile.ZIP_DEFLATED if name == FIRST else None, 9
            )
    return stream.getvalue()


def _publish(output: str, content: bytes) -> None:
    os.makedirs(os.path.dirname(os.path.abspath(output)), exist_ok=True)
    part = f"{output}.{os.getpid()}.part"
    try:
        with open(part, "xb") as opened:
            opened.write(content)
            os.fchmod(opened.fileno(), 0o755)
        os.replace(part, output)
    except BaseException:
        if os.path.exists(part):
            os.unlink(part)
        raise
