"""With EDGE_STRICT=1 a skip is a failure unless tests/skips.txt allows it.

A line of that file is a node id in which ``*`` stands for anything, two dashes, and the reason:

    tests/e2e/test_x.py::test_y* -- needs a kernel with Z
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterable

import pytest


def allowed(lines: Iterable[str]) -> list[re.Pattern[str]]:
    """The node ids that may be skipped; ValueError for a line without a reason."""
    patterns = []
    for line in lines:
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        node, _, reason = text.partition(" -- ")
        if not node.strip() or not reason.strip():
            raise ValueError(f"a line of skips.txt lacks its reason: {text}")
        pieces = [re.escape(piece) for piece in node.strip().split("*")]
        patterns.append(re.compile(".*".join(pieces)))
    return patterns


class Strictness:
    """The pytest plugin: turns every skip that is not allowed into a failure."""

    def __init__(self, patterns: list[re.Pattern[str]]) -> None:
        self._patterns = patterns

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self,
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """A test that skipped itself, or was marked so."""
        report = yield
        if not hasattr(report, "wasxfail"):
            self._refuse(report)
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self,
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """A module that skipped itself whole."""
        report = yield
        self._refuse(report)
        return report

    def _refuse(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.skipped or any(p.fullmatch(report.nodeid) for p in self._patterns):
            return
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        report.outcome = "failed"
        report.longrepr = f"skipped, and tests/skips.txt does not allow it: {why}"


def register(config: pytest.Config, skips: str) -> None:
    """Switch strictness on where the environment asks for it."""
    if os.environ.get("EDGE_STRICT") == "1":
        with open(skips, encoding="utf-8") as opened:
            config.pluginmanager.register(Strictness(allowed(opened)), "edge-strictness")
