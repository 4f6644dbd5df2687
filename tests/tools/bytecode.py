"""Compiles modules with the Python that runs this file: JSON in, JSON out.

Started as a script of its own by the builder, because byte code belongs to one minor version of
Python and the target's may be another one than the builder's. Promises the same bytes for the same
input: nothing of the machine (paths, time, locale, hash seed) enters a code object.

What a router's daemon never reads is left out: docstrings, asserts, the text of annotations (their
names stay: a record's fields are its annotations), what stands under ``if TYPE_CHECKING:``, column
and line numbers (a traceback names the function and the line on which that begins).

This is the writing half of the layout that the program's first lines read; those are among the
input, and every module is read back through them before anything is answered.

Input ``{file name: base64 of the source}``; output ``{"python": "3.11", "first": the first lines'
.pyc, "member": name of the code member, "code": and "source": both members, "alone": {file name:
bytes that its code and source take when packed alone}}``, bytes in base64. A .pyc is 16 bytes of
header (magic, flags 1 = hash-based and unchecked, source hash), then the marshalled code.
"""

from __future__ import annotations

import ast
import base64
import bz2
import importlib.util
import itertools
import json
import marshal
import sys
import zlib
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any

_UNCHECKED_HASH = (1).to_bytes(4, "little")
_TYPING = frozenset({"TYPE_CHECKING", "typing.TYPE_CHECKING"})


class _Bare(ast.NodeTransformer):
    """Takes away the text of annotations and what only a type checker reads."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.copy_location(ast.Constant(None), node.annotation)
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        if ast.unparse(node.test) not in _TYPING:
            return node
        return node.orelse or ast.copy_location(ast.Pass(), node)


class _Regions:
    """The regions of the code stream while they grow, module by module."""

    def __init__(self, loader: ModuleType) -> None:
        self._loader = loader
        self._places: dict[str, tuple[bool, int, int, int, int]] = {}
        self._words = bytearray()
        self._heads: list[bytes] = []
        self._tables = bytearray()
        self._texts = bytearray()

    def add(self, name: str, code: CodeType, *, package: bool) -> None:
        """One more module."""
        begun = (len(self._words), len(self._heads), len(self._tables), len(self._texts))
        self._places[name] = (package, *begun)
        self._words += _marshalled(tuple(self._flat(code, "")))

    def stream(self) -> bytes:
        """The regions behind their index."""
        columns = b"".join(map(bytes, zip(*self._heads, strict=True)))
        regions = (self._words, columns, self._tables, self._texts)

        def placed(start: int) -> dict[str, tuple[int, ...]]:
            begins = list(itertools.accumulate(map(len, regions[:-1]), initial=start))
            return {
                name: (package, *map(sum, zip(begins, places, strict=True)))
                for name, (package, *places) in self._places.items()
            }

        return _indexed(self._loader, placed, rows=len(self._heads)) + b"".join(regions)

    def _flat(self, code: CodeType, outer: str) -> Iterator[object]:
        """The words of a code object and of those within it; their numbers and bytes on the way."""
        joints: tuple[str, ...] = self._loader.JOINTS
        fitting = [n for n in (1, 2) if f"{outer}{joints[n]}{code.co_name}" == code.co_qualname]
        joint = fitting[0] if fitting else 0
        lists = (code.co_varnames, code.co_cellvars, code.co_freevars, code.co_names)
        constants = [[] if isinstance(c, CodeType) else c for c in code.co_consts]
        head = (
            *(joint, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount),
            *(len(_within(code)), code.co_stacksize, code.co_flags, code.co_firstlineno),
            *(len(code.co_code), len(code.co_exceptiontable)),
            *map(len, (*lists, constants)),
        )
        self._heads.append(self._loader.HEAD.pack(*head))
        self._tables += code.co_exceptiontable
        self._texts += code.co_code
        yield code.co_name
        for words in (*lists, constants):
            yield from words
        for inner in _within(code):
            yield from self._flat(inner, code.co_qualname)


def members(loader: ModuleType, sources: dict[str, bytes]) -> tuple[bytes, bytes]:
    """The code and the source of all modules as members, proven to be readable by `loader`."""
    modules = {_module(file): file for file in sorted(sources)}
    packages = {name for name, file in modules.items() if file.endswith("/__init__.py")}
    codes = {name: compiled(file, sources[file]) for name, file in modules.items()}
    texts = {name: sources[file] for name, file in modules.items()}
    regions = _Regions(loader)
    for name, code in codes.items():
        regions.add(name, code, package=name in packages)
    stream = regions.stream()
    code_member = loader.WHOLE.pack(len(stream)) + zlib.compress(stream, 9)
    source_member = bz2.compress(_source(loader, texts, packages), 9)
    made = loader.Contents(loader.CODE, code_member)
    kept = loader.Contents(loader.SOURCE, source_member)
    for name, file in modules.items():
        if not same(made.code(name, file), codes[name]):
            raise ValueError(f"the code of {name} cannot be read back")
        if kept.text(name) != texts[name]:
            raise ValueError(f"the source of {name} cannot be read back")
    return code_member, source_member


def _source(loader: ModuleType, texts: dict[str, bytes], packages: set[str]) -> bytes:
    def placed(start: int) -> dict[str, tuple[int, ...]]:
        places: dict[str, tuple[int, ...]] = {}
        for name, text in texts.items():
            places[name] = (name in packages, start, len(text))
            start += len(text)
        return places

    return _indexed(loader, placed, rows=0) + b"".join(texts.values())


def _indexed(
    loader: ModuleType, placed: Callable[[int], dict[str, tuple[int, ...]]], *, rows: int
) -> bytes:
    """A stream's beginning; `placed` gives the index if the regions begin at a position."""
    # Format 2 writes every number in the same width, so the first size is the last.
    size = len(marshal.dumps(placed(0), 2))
    index = marshal.dumps(placed(loader.START.size + size), 2)
    start: bytes = loader.START.pack(size, rows)
    return start + index


def compiled(name: str, source: bytes) -> CodeType:
    """The code of one module, bare; tracebacks call it `name`."""
    tree = _Bare().visit(ast.parse(source, name))
    return compile(tree, name, "exec", dont_inherit=True, optimize=2)


def same(one: CodeType, other: CodeType) -> bool:
    """Whether two code objects are alike in all but their line tables."""
    if one.co_qualname != other.co_qualname or one.co_stacksize != other.co_stacksize:
        return False
    within, others = _within(one), _within(other)
    if len(within) != len(others) or not all(map(same, within, others)):
        return False
    return _alone(one) == _alone(other)


def _within(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _alone(code: CodeType) -> CodeType:
    """The code without a line table and without the code within it."""
    constants = tuple(None if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_linetable=b"", co_consts=constants)


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _marshalled(words: tuple[Any, ...]) -> bytes:
    """The same bytes whoever else holds a word: marshal writes down what is held more than once."""
    held: list[object] = []
    seen: list[object] = [words]
    while seen:
        value = seen.pop()
        held.append(value)
        if isinstance(value, (tuple, frozenset)):
            seen += value
    return marshal.dumps(words)


def _pyc(name: str, source: bytes) -> bytes:
    header = importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + importlib.util.source_hash(source)
    return header + marshal.dumps(compiled(name, source))


def _alone_size(file: str, source: bytes) -> int:
    code = marshal.dumps(compiled(file, source))
    return len(zlib.compress(code, 9)) + len(bz2.compress(source, 9))


def main() -> None:
    """Standard input to standard output."""
    given: dict[str, str] = json.load(sys.stdin)
    sources = {name: base64.b64decode(text) for name, text in given.items()}
    (first,) = [name for name in sources if name.endswith("/__main__.py")]
    lines = sources.pop(first)
    loader = ModuleType("loader")
    exec(compile(lines, first, "exec"), loader.__dict__)  # noqa: S102 - it is of this tree
    code, source = members(loader, sources)
    answer = {"first": _pyc(first, lines), "code": code, "source": source}
    said = {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "member": loader.CODE,
        "alone": {name: _alone_size(name, text) for name, text in sources.items()},
        **{name: base64.b64encode(content).decode() for name, content in answer.items()},
    }
    json.dump(said, sys.stdout)


if __name__ == "__main__":
    main()
