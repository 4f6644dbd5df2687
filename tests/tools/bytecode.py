"""Compiles modules with the Python that runs this file: JSON in, JSON out.

Started as a script of its own by the builder, because byte code belongs to one minor version of
Python and the target's may be another one than the builder's. Promises the same bytes for the same
input: nothing of the machine (paths, time, locale, hash seed) enters a code object.

What a router's daemon never reads is left out: docstrings, asserts, the text of annotations (their
names stay: a record's fields are its annotations) and, by ``-X no_debug_ranges``, column numbers.
Line numbers stay, so a traceback still says where.

Input ``{name: base64 of the source}``; output ``{"python": "3.11", "code": {name: base64 of the
.pyc}}``. A .pyc is 16 bytes of header (magic, flags 1 = hash-based and unchecked, source hash),
then the marshalled code.
"""

from __future__ import annotations

import ast
import base64
import importlib.util
import json
import marshal
import sys

_UNCHECKED_HASH = (1).to_bytes(4, "little")


class _Bare(ast.NodeTransformer):
    """Takes the text of annotations away."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.copy_location(ast.Constant(None), node.annotation)
        return self.generic_visit(node)


def compiled(name: str, source: bytes) -> bytes:
    """The .pyc of one module; without asserts and docstrings; tracebacks call it `name`."""
    tree = _Bare().visit(ast.parse(source, name))
    code = compile(tree, name, "exec", dont_inherit=True, optimize=2)
    header = importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + importlib.util.source_hash(source)
    return header + marshal.dumps(code)


def main() -> None:
    """Standard input to standard output."""
    sources: dict[str, str] = json.load(sys.stdin)
    code = {
        name: base64.b64encode(compiled(name, base64.b64decode(sources[name]))).decode()
        for name in sorted(sources)
    }
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    json.dump({"python": python, "code": code}, sys.stdout)


if __name__ == "__main__":
    main()
