"""The verification lines of the decisions this program rests on, and who proves each of them.

A test proves a line by naming it in its docstring: ``ADR-0069 verification 4``. Lines are numbered
in the order in which the decision lists them; the sentences are restatements.
"""

from __future__ import annotations

import ast
import os
import re

REQUIRED: dict[tuple[str, int], str] = {
    ("ADR-0069", 1): "The journal row exists before the spawn; without it no user command has run.",
    ("ADR-0069", 2): "A drifted wrapper is refused before row and spawn; only verified bytes run.",
    ("ADR-0069", 3): "Without an identity the process group is stopped; no bare pid is returned.",
    (
        "ADR-0069",
        4,
    ): "Receipts: never overwritten, 4 KiB, no symlinks, clean environment, own code.",
    (
        "ADR-0069",
        5,
    ): "Registration is exact-idempotent and exclusive; pages and due times are stable.",
    ("ADR-0069", 6): "Quarantine intent precedes the move; a row goes only after its file.",
    ("ADR-0069", 7): "Cleanup takes exact terminal candidates only; its lifecycle never overlaps.",
    ("ADR-0069", 8): "On a real store a start removes one exact terminal receipt and its row.",
    ("ADR-0069", 9): "The artifact holds its gates for bytes, files, modules and resident memory.",
    ("ADR-0024", 1): "Recipe order, content address and digest are fixed by vectors.",
    ("ADR-0024", 2): "Of concurrent equal recipes exactly one is inserted, the rest idempotent.",
    ("ADR-0024", 3): "A recipe in wrong order, form or digest is refused.",
    ("ADR-0024", 4): "After a failed recipe its revision is never written.",
    (
        "ADR-0024",
        5,
    ): "Secrets are resolved once each, in one batch; a bad one stops before any log.",
    ("ADR-0024", 6): "Secret versions, compare-and-set, damage and foreign projects fail closed.",
    ("ADR-0024", 7): "A log id is stable for an attempt, different for another, bounded in length.",
    (
        "ADR-0024",
        8,
    ): "Modes, symlinks, late writes, release and appending are proven on real files.",
    ("ADR-0024", 9): "The log id is durable before the spawn; a bad one leaves the run queued.",
    ("ADR-0024", 10): "A manual run without a log behaves as before.",
    ("ADR-0024", 11): "A cluster's storage is refused and cannot be reached at start.",
    ("ADR-0024", 12): "The whole suite passes on every supported interpreter.",
}
LATER: dict[tuple[str, int], str] = {
    (
        "ADR-0115",
        1,
    ): "Equal authority gives the same log id, a new offer another; inputs stay hidden.",
    ("ADR-0115", 2): "Root, shard and file are 0700, 0700, 0600; a symlink is refused.",
    ("ADR-0115", 3): "Reopening appends to the accepted prefix and never truncates.",
    ("ADR-0115", 4): "The quota keeps the prefix that fits; an oversized chunk writes nothing.",
    ("ADR-0115", 5): "Without capacity neither shard nor file appears.",
    ("ADR-0115", 6): "Output is taken once; release closes it only when it was not taken.",
    (
        "ADR-0115",
        7,
    ): "Output is handed over after durable launching only; a drifted id never spawns.",
    ("ADR-0115", 8): "A tagged rejection closes idempotently; an ambiguous failure is not closed.",
    ("ADR-0115", 9): "Packages, databases, schema, dependencies and timers do not grow.",
}

_CITATION = re.compile(r"\b(ADR-\d{4})\s+verification\s+(\d+(?:(?:\s*,\s*|\s+and\s+)\d+)*)")


def cited(tests: str) -> dict[tuple[str, int], list[str]]:
    """Every line that a test's docstring names, with the tests that name it."""
    found: dict[tuple[str, int], list[str]] = {}
    for folder, folders, files in os.walk(tests):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for file in sorted(files):
            if file.startswith(("test_", "contract_")) and file.endswith(".py"):
                path = os.path.join(folder, file)
                for test, line in _citations(path):
                    found.setdefault(line, []).append(f"{os.path.relpath(path, tests)}::{test}")
    return found


def _citations(path: str) -> list[tuple[str, tuple[str, int]]]:
    with open(path, encoding="utf-8") as opened:
        tree = ast.parse(opened.read(), path)
    return [
        (node.name, (decision, int(number)))
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        for decision, numbers in _CITATION.findall(ast.get_docstring(node) or "")
        for number in re.findall(r"\d+", numbers)
    ]
