"""Three deliberate regressions, and the gate that names each: so the gates are known to see."""

from __future__ import annotations

import hashlib
import random
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.tools import builder, gates
from tests.tools.router import gates as router_gates
from tests.tools.router import power, share
from tests.tools.router.guest import Guest, Options
from tests.tools.router.images import Image


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of this tree to break."""
    copy = tmp_path / "tree"
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in ("qinglong_edge", "tests", "profiles"):
        shutil.copytree(Path(ROOT, name), copy / name, ignore=ignored)
    return copy


def given(tree: Path, tmp_path: Path) -> str:
    """The broken tree as a share."""
    folder = tmp_path / "share"
    folder.mkdir()
    share.fill(str(tree), str(folder))
    return str(folder)


def changed(path: Path, pattern: str, replacement: str) -> None:
    """One change at exactly one place."""
    text, count = re.subn(pattern, lambda _found: replacement, path.read_text(), flags=re.MULTILINE)
    assert count == 1, f"{pattern} is found {count} times in {path.name}"
    path.write_text(text)


def test_an_import_of_dataclasses_is_named_by_the_guest_s_table(
    tree: Path, tmp_path: Path, routers: dict[str, Image]
) -> None:
    changed(
        tree / "qinglong_edge" / "app" / "daemon.py",
        "^from __future__ import annotations\n",
        "from __future__ import annotations\n\nimport dataclasses  # noqa: F401\n",
    )
    with Guest(routers["arm64"], Options(share=given(tree, tmp_path))) as guest:
        table = router_gates.measured(guest, str(tree), parts=("life", "modules"), runs=1, rounds=1)
    missed = [gate.name for gate in table.gates if not gate.held]
    assert any(name.startswith("modules over golden") and "dataclasses" in name for name in missed)
    assert "idle private dirty KiB" in missed, str(table)


def test_a_missing_fsync_in_the_receipt_s_way_is_named_by_a_power_cut(
    tree: Path, tmp_path: Path, routers: dict[str, Image]
) -> None:
    """The wrapper's fsync of the directory, without which the receipt's name is not durable."""
    wrapper = tree / "qinglong_edge" / "process" / "wrapper.sh"
    changed(wrapper, r'^  "\$QL3_SYNC" "\$\{3%/\*\}"\n', "")
    digest = hashlib.sha256(wrapper.read_bytes()).hexdigest()
    program = tree / "qinglong_edge" / "process" / "wrapper.py"
    changed(program, "^WRAPPER_SHA256 = .*$", f'WRAPPER_SHA256 = "{digest}"')
    folder = given(tree, tmp_path)
    recording = power.record(routers["arm64"], folder, str(tmp_path))
    cuts = power.acknowledged(recording, "receipt")
    found = list(power.judged(routers["arm64"], folder, recording, cuts))
    said = [sentence for each in found for sentence in each.broken]
    assert any("a_promised_receipt_is_believed" in sentence for sentence in said), found


def test_a_large_file_in_the_zipapp_is_named_by_the_build(tree: Path, tmp_path: Path) -> None:
    data = random.Random(7).randbytes(150_000).hex()
    large = tree / "qinglong_edge" / "core" / "large.py"
    large.write_text(f'"""Large."""\n\nDATA = "{data}"\n')
    artifact = builder.build(str(tree), str(tmp_path / "edge.pyz"), python=sys.executable)
    checked = gates.artifact_gates(artifact, gates.budget(str(tree)))
    assert [gate.name for gate in checked if not gate.held] == ["bytes"]
    _head, _words, named = gates.report(artifact, checked).partition("the largest modules")
    assert "qinglong_edge/core/large.py" in named.splitlines()[1]
