"""What stands where in this repository, how long it is, and what it does not say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.tools import house


@pytest.mark.parametrize(
    "rule", [house.strangers, house.too_long, house.unsaid, house.asserted, house.forbidden]
)
def test_this_repository_keeps_the_rule(rule: Callable[[str], list[str]]) -> None:
    assert rule(ROOT) == []


@pytest.mark.parametrize(
    ("rule", "name", "text", "said"),
    [
        (house.strangers, "Makefile", "", "Makefile"),
        (house.too_long, "qinglong_edge/long.py", "x = 1\n" * 501, "501 lines"),
        (house.too_long, "tests/long.py", "def f():\n" + "    x = 1\n" * 60, "f has 61 lines"),
        (house.unsaid, "qinglong_edge/a.py", "from __future__ import annotations\n", "docstring"),
        (house.unsaid, "qinglong_edge/a.py", '"""Owns."""\nx = 1\n', "annotations"),
        (house.asserted, "qinglong_edge/a.py", "def f(x):\n    assert x\n", "a.py:2"),
        (house.forbidden, "README.md", "see issue " + "#3\n", "README.md:1"),
        (house.forbidden, ".hidden", "x\ncd /" + "work/main\n", ".hidden:2"),
        (house.forbidden, "tests/a.txt", "as design" + ".md says\n", "a.txt:1"),
    ],
)
def test_a_broken_rule_is_named_with_its_place(
    tmp_path: Path, rule: Callable[[str], list[str]], name: str, text: str, said: str
) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    found = rule(str(tmp_path))
    assert len(found) == 1, found
    assert said in found[0]


def test_what_is_built_and_cached_belongs_to_nobody(tmp_path: Path) -> None:
    for folder in ("dist", ".git", ".venv", "tests/__pycache__"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "x.py").write_text("# /" + "root/x\n", encoding="utf-8")
    assert house.strangers(str(tmp_path)) == []
    assert house.forbidden(str(tmp_path)) == []
