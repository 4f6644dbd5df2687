"""With EDGE_STRICT=1 a skip is a failure unless tests/skips.txt allows it.

A line of that file is a node id in which ``*`` stands for anything, two dashes, and the reason:

    tests/e2e/test_x.py::test_y* -- needs a kernel with Z

With EDGE_MACHINE=NAME the suite runs on a machine that is not like this one, emulated (arm64) or
with another libc and BusyBox alone (musl): what tests/skips_NAME.txt names is not run there, and
what tries random examples tries fewer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterable

import pytest
from hypothesis import settings

_EXAMPLES = 30  # of a property that is the same on any processor
_SETTINGS = "_hypothesis_internal_use_settings"  # where the decorator leaves them


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


class Elsewhere:
    """The pytest plugin of a machine that is not like this one."""

    def __init__(self, patterns: list[re.Pattern[str]]) -> None:
        self._patterns = patterns

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Leave out what the list names, and shorten what is random."""
        left = [item for item in items if any(p.fullmatch(item.nodeid) for p in self._patterns)]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]
        for item in items:
            test = getattr(item, "obj", None)
            given = getattr(test, _SETTINGS, None)
            if given is not None and given.max_examples > _EXAMPLES:
                setattr(test, _SETTINGS, settings(given, max_examples=_EXAMPLES))


def register(config: pytest.Config, folder: str) -> None:
    """Switch on what the environment asks for; `folder` has the lists."""
    if os.environ.get("EDGE_STRICT") == "1":
        with open(os.path.join(folder, "skips.txt"), encoding="utf-8") as opened:
            config.pluginmanager.register(Strictness(allowed(opened)), "edge-strictness")
    machine = os.environ.get("EDGE_MACHINE")
    if machine:
        with open(os.path.join(folder, f"skips_{machine}.txt"), encoding="utf-8") as opened:
            config.pluginmanager.register(Elsewhere(allowed(opened)), "edge-elsewhere")
