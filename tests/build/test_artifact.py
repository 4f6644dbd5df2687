"""The zipapp: reproducible, within its budget, and whole after its file is gone."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.tools import builder, gates, sample

FLAGS = ("-I", "-S")


def built(root: str, output: Path) -> builder.Artifact:
    """The artifact of a tree with the byte code of the running Python."""
    return builder.build(root, str(output), python=sys.executable)


def answered(
    command: list[str], between: Callable[[], object], **options: str
) -> dict[str, object]:
    """The sample's document, with something done between its start and its late imports."""
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        cwd=options.get("cwd"),
    ) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        between()
        output, _ = started.communicate("go\n", timeout=30)
    assert started.returncode == 0
    document: dict[str, object] = json.loads(output)
    return document


def test_this_tree_keeps_its_budget_of_bytes_and_files(tmp_path: Path) -> None:
    """ADR-0069 verification 9: bytes and files of the artifact."""
    artifact = built(ROOT, tmp_path / "a.pyz")
    checked = gates.artifact_gates(artifact, gates.budget(ROOT))
    assert all(gate.held for gate in checked), gates.report(artifact, checked)
    assert artifact.size == (tmp_path / "a.pyz").stat().st_size


def test_this_tree_built_twice_is_the_same_to_the_byte(tmp_path: Path) -> None:
    built(ROOT, tmp_path / "a.pyz")
    built(ROOT, tmp_path / "b.pyz")
    assert (tmp_path / "a.pyz").read_bytes() == (tmp_path / "b.pyz").read_bytes()


def test_every_module_is_there_as_source_and_as_byte_code(tmp_path: Path) -> None:
    built(ROOT, tmp_path / "a.pyz")
    with zipfile.ZipFile(tmp_path / "a.pyz") as archive:
        names = archive.namelist()
        assert archive.testzip() is None
    modules = {name for name in names if name.endswith(".py")}
    carried = {f"qinglong_edge/{name}" for name in ("build.json", "profiles.json")}
    assert names == sorted(names)
    assert set(names) == modules | {f"{name}c" for name in modules} | builder.DATA | carried
    on_disk = {
        path.relative_to(ROOT).as_posix() for path in Path(ROOT, "qinglong_edge").rglob("*.py")
    }
    away = {name for name in on_disk if name.split("/")[1] in builder.ELSEWHERE}
    assert modules == (on_disk - away) | {"__main__.py"}


def test_the_same_sources_give_the_same_bytes_whatever_is_around_them(tmp_path: Path) -> None:
    code = (
        "import sys; from tests.tools import builder\n"
        "builder.build(*sys.argv[1:3], python=sys.executable)"
    )
    around: list[tuple[str, int, dict[str, str]]] = [
        ("a", 0o022, {}),
        ("b/much/deeper", 0o077, {"LC_ALL": "C", "PYTHONHASHSEED": "1"}),
        ("c d", 0o000, {"LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "2", "TZ": "CST-8"}),
        ("e", 0o027, {"PYTHONUTF8": "1", "PYTHONOPTIMIZE": "1", "SOURCE_DATE_EPOCH": "1"}),
    ]
    results = set()
    for folder, umask, environment in around:
        root = sample.tree(str(tmp_path / folder))
        output = tmp_path / folder / "out.pyz"
        subprocess.run(
            [sys.executable, "-c", code, root, str(output)],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": ROOT, **environment},
            umask=umask,
            cwd=root,
            check=True,
        )
        assert stat.S_IMODE(output.stat().st_mode) == 0o755
        results.add(output.read_bytes())
    assert len(results) == 1


def test_the_file_says_how_it_is_run_and_of_what_it_was_made(tmp_path: Path) -> None:
    root = sample.tree(str(tmp_path / "tree"))
    artifact = built(root, tmp_path / "a.pyz")
    assert (tmp_path / "a.pyz").read_bytes().startswith(b"#!/usr/bin/python3 -IS\n")
    with zipfile.ZipFile(tmp_path / "a.pyz") as archive:
        made = json.loads(archive.read("qinglong_edge/build.json"))
        carried = json.loads(archive.read("qinglong_edge/profiles.json"))
        assert not [name for name in archive.namelist() if "worker" in name]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert made == {"digest": artifact.digest, "python": version}
    assert carried.keys() == {"edge", "standalone"}
    assert carried["edge"].keys() == {"runtime"}
    sample.write(root, "qinglong_edge/late.py", "x = 1\n")
    assert built(root, tmp_path / "b.pyz").digest != artifact.digest


@pytest.mark.parametrize("fate", ["kept", "deleted", "replaced", "garbage"])
def test_a_started_zipapp_imports_from_itself_whatever_becomes_of_its_file(
    tmp_path: Path, fate: str
) -> None:
    artifact = built(sample.tree(str(tmp_path / "tree")), tmp_path / "a.pyz")
    file = tmp_path / "a.pyz"

    def become() -> None:
        if fate != "kept":
            file.unlink()
        if fate == "replaced":
            sample.write(str(tmp_path / "tree"), "qinglong_edge/late.py", "raise SystemExit(9)\n")
            built(str(tmp_path / "tree"), file)
        if fate == "garbage":
            file.write_bytes(b"\xff" * 100_000)

    said = answered([sys.executable, *FLAGS, str(file)], become)
    held = said["descriptor"]
    assert isinstance(held, int)
    assert held >= 64
    assert said["file"] == f"/proc/self/fd/{held}/qinglong_edge/late.pyc"
    assert (said["child"], said["inheritable"]) == (42, False)
    assert (said["digest"], said["doc"]) == (artifact.digest, None)
    assert (said["profiles"], said["active"]) == (["edge", "standalone"], 4)
    assert "tomllib" not in str(said["modules"])


def test_a_relative_path_and_a_changed_directory_do_not_matter(tmp_path: Path) -> None:
    built(sample.tree(str(tmp_path / "tree")), tmp_path / "a.pyz")
    said = answered([sys.executable, *FLAGS, "a.pyz"], lambda: None, cwd=str(tmp_path))
    assert isinstance(said["descriptor"], int)


def test_without_room_for_the_descriptor_the_plain_path_serves(tmp_path: Path) -> None:
    built(sample.tree(str(tmp_path / "tree")), tmp_path / "a.pyz")
    limited = f'ulimit -n 32; exec "{sys.executable}" -I -S "{tmp_path}/a.pyz"'
    said = answered(["/bin/sh", "-c", limited], lambda: None)
    assert said["descriptor"] is None
    assert said["file"] == f"{tmp_path}/a.pyz/qinglong_edge/late.pyc"


def test_a_python_of_another_minor_version_runs_the_sources(tmp_path: Path) -> None:
    root = sample.tree(str(tmp_path / "tree"))
    sample.write(root, "qinglong_edge/late.py", '"""Documented."""\n')
    built(root, tmp_path / "a.pyz")
    with (
        zipfile.ZipFile(tmp_path / "a.pyz") as archive,
        zipfile.ZipFile(tmp_path / "b.pyz", "w") as foreign,
    ):
        for name in archive.namelist():
            content = archive.read(name)
            strange = b"\0\0\r\n" + content[4:] if name.endswith(".pyc") else content
            foreign.writestr(name, strange)
    said = answered([sys.executable, *FLAGS, str(tmp_path / "b.pyz")], lambda: None)
    assert str(said["file"]).endswith("/late.py")
    assert said["doc"] == "Documented."


def test_a_checkout_runs_the_same_program_without_a_descriptor(tmp_path: Path) -> None:
    root = sample.tree(str(tmp_path / "tree"))
    sample.write(root, "qinglong_edge/late.py", '"""Documented."""\n')
    said = answered([sys.executable, "-B", "-m", "qinglong_edge"], lambda: None, cwd=root)
    assert (said["descriptor"], said["digest"], said["child"]) == (None, None, 42)
    assert (said["profiles"], said["active"]) == (["edge", "standalone"], 4)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("qinglong_edge/notes.txt", "", "notes.txt is neither a module"),
        ("qinglong_edge/broken.py", "def\n", "could not compile the sources"),
    ],
)
def test_a_tree_that_cannot_be_built_whole_is_refused(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    root = sample.tree(str(tmp_path / "tree"))
    sample.write(root, name, text)
    with pytest.raises(builder.BuildError, match=said):
        built(root, tmp_path / "a.pyz")
    assert not (tmp_path / "a.pyz").exists()


def test_a_missing_wrapper_or_interpreter_is_refused(tmp_path: Path) -> None:
    root = sample.tree(str(tmp_path / "tree"))
    with pytest.raises(builder.BuildError, match="cannot be started"):
        builder.build(root, str(tmp_path / "a.pyz"), python=str(tmp_path / "none"))
    (tmp_path / "tree" / "qinglong_edge" / "process" / "wrapper.sh").unlink()
    with pytest.raises(builder.BuildError, match=r"wrapper\.sh is missing"):
        built(root, tmp_path / "a.pyz")
