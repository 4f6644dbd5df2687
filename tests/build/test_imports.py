"""The golden list: what the resident daemon loads, exactly, and what it must never load."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.tools import bench_idle, measure

GOLDEN = os.path.join(ROOT, "tests", "build", "golden_modules.txt")
NEVER = frozenset(
    {
        *("argparse", "asyncio", "base64", "collections", "contextlib", "cryptography", "ctypes"),
        *("dataclasses", "datetime", "enum", "functools"),
        *("hashlib", "_hashlib", "http", "inspect", "json", "logging", "pathlib", "re", "shutil"),
        *("ssl", "subprocess", "tempfile", "threading", "tomllib", "traceback", "typing", "uuid"),
        *("zipfile", "zoneinfo"),
    }
)


@pytest.fixture(scope="module")
def loaded(zipapp: str, tmp_path_factory: pytest.TempPathFactory) -> frozenset[str]:
    """The modules of a daemon that was used."""
    home = tmp_path_factory.mktemp("imports")
    return frozenset(bench_idle.modules(measure.Product(zipapp), str(home)))


def test_the_daemon_loads_exactly_what_the_golden_list_names(loaded: frozenset[str]) -> None:
    """ADR-0069 verification 9: the modules of the resident process."""
    more, fewer = bench_idle.unlike_golden(loaded, GOLDEN)
    assert (more, fewer) == ([], []), f"loaded over golden: {more}; golden but not loaded: {fewer}"


def test_no_heavy_module_is_ever_resident(loaded: frozenset[str]) -> None:
    """Each of these costs a router between half a megabyte and nine."""
    assert sorted(loaded & NEVER) == []


def test_a_golden_line_may_stand_for_some_versions_only(tmp_path: Path) -> None:
    path = tmp_path / "golden.txt"
    path.write_text("# all\njson\n\n_sha256 3.11  # older\n_sha2 3.12 3.13\n", encoding="utf-8")
    assert bench_idle.golden(str(path), "3.11") == {"json", "_sha256"}
    assert bench_idle.golden(str(path), "3.13") == {"json", "_sha2"}


def test_a_module_more_and_a_module_less_are_both_named(tmp_path: Path) -> None:
    path = tmp_path / "golden.txt"
    path.write_text("qinglong_edge.a\nqinglong_edge.b\n", encoding="utf-8")
    loaded = frozenset({"qinglong_edge.b", "qinglong_edge.c"})
    assert bench_idle.unlike_golden(loaded, str(path)) == (["qinglong_edge.c"], ["qinglong_edge.a"])
