"""The rules of the house that are not walls: what stands where, how long it is, what it may say."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator

TOP_LEVEL = frozenset({"qinglong_edge", "tests", "build.py", "README.md", "profiles"})
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
_MADE = frozenset({"dist", "__pycache__"})  # ignored by git
_UNREAD = frozenset(
    {".git", ".venv", ".cache", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
)
_FORBIDDEN = {
    "a path of somebody's machine": re.compile(r"(?<![\w.])/(?:work(?![\w-])|root/)"),
    "a tracker's number": re.compile(r"\bissue #\d", re.IGNORECASE),
    "a document that is not in this repository": re.compile(
        r"\b(?:design|models|ARCH)\.md\b|\.\./shared\b|\blaunch[-]kit\b"
    ),
}


def strangers(root: str) -> list[str]:
    """Entries of the top level that do not belong there; hidden files are configuration."""
    return sorted(
        name
        for name in os.listdir(root)
        if name not in TOP_LEVEL | _MADE and not name.startswith(".")
    )


def too_long(root: str) -> list[str]:
    """Files and functions over their bound, longest first within a file."""
    found = []
    for name, text in _python(root):
        lines = text.count("\n")
        if lines > FILE_LINES_MAX:
            found.append(f"{name} has {lines} lines")
        for node in ast.walk(ast.parse(text, name)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    found.append(f"{name}:{node.lineno} {node.name} has {lines} lines")
    return found


def unsaid(root: str) -> list[str]:
    """Modules of the package without docstring or future import; `__init__` may be empty."""
    found = []
    for name, text in _python(root, "qinglong_edge"):
        tree = ast.parse(text, name)
        if not tree.body:
            continue
        if not ast.get_docstring(tree):
            found.append(f"{name} has no docstring")
        if not name.endswith("__init__.py") and "annotations" not in _future(tree):
            found.append(f"{name} lacks `from __future__ import annotations`")
    return found


def asserted(root: str) -> list[str]:
    """Asserts in the package: the zipapp's byte code has none, so a check would vanish."""
    return [
        f"{name}:{node.lineno} asserts"
        for name, text in _python(root, "qinglong_edge")
        for node in ast.walk(ast.parse(text, name))
        if isinstance(node, ast.Assert)
    ]


def forbidden(root: str) -> list[str]:
    """Lines that tell of a machine, a tracker or a document outside the repository."""
    found = []
    for name, text in _texts(root):
        for number, line in enumerate(text.splitlines(), 1):
            found += [
                f"{name}:{number} has {what}"
                for what, pattern in _FORBIDDEN.items()
                if pattern.search(line)
            ]
    return found


def _future(tree: ast.Module) -> set[str]:
    return {
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == "__future__"
        for alias in node.names
    }


def _python(root: str, part: str = "") -> Iterator[tuple[str, str]]:
    for name, text in _texts(root):
        if name.endswith(".py") and name.startswith(part):
            yield name, text


def _texts(root: str) -> Iterator[tuple[str, str]]:
    """Every text file that belongs to the repository, by its name relative to `root`."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _MADE | _UNREAD)
        for file in sorted(files):
            path = os.path.join(folder, file)
            name = os.path.relpath(path, root)
            if name == ".git":  # a work tree's pointer
                continue
            with open(path, "rb") as opened:
                content = opened.read()
            try:
                yield name, content.decode("utf-8")
            except UnicodeDecodeError:
                continue
