"""Every verification line of the decisions has a test that names it."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support import ROOT
from tests.tools import seed


def test_every_required_line_is_proven_by_a_test() -> None:
    cited = seed.cited(os.path.join(ROOT, "tests"))
    unproven = [
        f"{decision} verification {number}: {sentence}"
        for (decision, number), sentence in seed.REQUIRED.items()
        if (decision, number) not in cited
    ]
    assert unproven == []


def test_every_citation_names_a_line_that_exists() -> None:
    cited = seed.cited(os.path.join(ROOT, "tests"))
    unknown = {line: tests for line, tests in cited.items() if line not in _lines()}
    assert unknown == {}


def test_lines_are_numbered_without_gaps_and_said_once() -> None:
    assert not seed.REQUIRED.keys() & seed.LATER.keys()
    for decision, count in {"ADR-0024": 12, "ADR-0069": 9, "ADR-0115": 9}.items():
        assert [n for d, n in _lines() if d == decision] == list(range(1, count + 1))


def test_citations_are_read_from_the_docstrings_of_tests_only(tmp_path: Path) -> None:
    (tmp_path / "unit").mkdir()
    (tmp_path / "unit" / "test_x.py").write_text(
        'def test_a():\n    """ADR-0069\n    verification 1, 2 and 3."""\n'
        'def helper():\n    """ADR-0069 verification 4"""\n'
        "def test_b():\n    # ADR-0069 verification 5\n    pass\n",
        encoding="utf-8",
    )
    assert seed.cited(str(tmp_path)) == {
        ("ADR-0069", n): ["unit/test_x.py::test_a"] for n in (1, 2, 3)
    }


def _lines() -> list[tuple[str, int]]:
    return [*seed.REQUIRED, *seed.LATER]
