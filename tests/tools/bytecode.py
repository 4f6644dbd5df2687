"""Compiles modules with the Python that runs this file: JSON in, JSON out.

Started as a script of its own by the builder, because byte code belongs to one minor version of
Python and the target's may be another one than the builder's. Promises the same bytes for the same
input: nothing of the machine (paths, time, locale, hash seed) enters a code object.

What a router's daemon never reads is left out: docstrings, asserts, the text of annotations (their
names stay: a record's fields are its annotations), what stands under ``if TYPE_CHECKING:``,
qualified names, column and line numbers (a traceback names the function and the line on which that
begins).

Input ``{file name: base64 of the source}``; output ``{"python": "3.11", "tag": which Python
it is of, "code": {file name: base64 of the marshalled code}, "first": the first lines' .pyc}``. A
.pyc is 16 bytes of header (magic, flags 1 = hash-based and unchecked, source hash), then the code.
"""

from __future__ import annotations

import ast
import base64
import importlib.util
import json
import marshal
import sys
from collections.abc import Iterator
from types import CodeType

_UNCHECKED_HASH = (1).to_bytes(4, "little")
_TYPING = frozenset({"TYPE_CHECKING", "typing.TYPE_CHECKING"})
_LINE = b"\xef\x00"  # a line table's entry: the next 8 instructions are of the same line
_LINE_BYTES = 16  # of code, that is


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


def compiled(name: str, source: bytes) -> CodeType:
    """The code of one module; tracebacks call it `name`."""
    tree = _Bare().visit(ast.parse(source, name))
    code = compile(tree, name, "exec", dont_inherit=True, optimize=2)
    longest = max(len(each.co_code) for each in _within(code))
    return _lineless(code, _LINE * (longest // _LINE_BYTES + 1))


def dumped(code: CodeType) -> bytes:
    """The code's bytes, which read back as the same code; ValueError if they do not.

    `marshal` marks all that is referred to more than once, whoever in the process does it. In a
    copy that is only what it shares itself, and the interned names, which `code` holds here too.
    """
    data = marshal.dumps(marshal.loads(marshal.dumps(code)))  # noqa: S302
    if marshal.loads(data) != code:  # noqa: S302
        raise ValueError(f"{code.co_filename} cannot be read back")
    return data


def _within(code: CodeType) -> Iterator[CodeType]:
    """A code object and all inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _within(constant)


def _lineless(code: CodeType, table: bytes) -> CodeType:
    """The code with one line table for all of a module: what is behind an end is never asked for.

    One of each function's own would be 80 KiB of the daemon. One that is too short makes
    `traceback` fail.
    """
    constants = tuple(_lineless(c, table) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_qualname=code.co_name, co_linetable=table, co_consts=constants)


def main() -> None:
    """Standard input to standard output."""
    sources = {n: base64.b64decode(t) for n, t in json.load(sys.stdin).items()}
    code = {name: dumped(compiled(name, sources[name])) for name in sorted(sources)}
    first = next(name for name in code if name.count("/") == 1 and name.endswith("/__main__.py"))
    magic = importlib.util.MAGIC_NUMBER
    header = magic + _UNCHECKED_HASH + importlib.util.source_hash(sources[first])
    tag = f"{sys.implementation.cache_tag}.{int.from_bytes(magic[:2], 'little')}"
    answer = {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "tag": tag,
        "first": _text(header + code.pop(first)),
        "code": {name: _text(data) for name, data in code.items()},
    }
    json.dump(answer, sys.stdout)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


if __name__ == "__main__":
    main()
