"""The suite under several Pythons: which are found, which may be missing, the sum at the end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from qinglong_edge import __main__ as first
from tests.support import ROOT
from tests.tools import debian, pythons, strictness, testing
from tests.tools.musl.tree import MACHINE
from tests.tools.pythons import Python

OWN = sys.version_info.minor
REPORT = (
    '<testsuites><testsuite name="pytest" tests="{}" failures="1" errors="1" skipped="2"/>'
    "</testsuites>"
)


def program(path: Path, body: str) -> str:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def parts_that_pass(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Every part of a suite passes without having run; the commands that were to be."""
    commands: list[list[str]] = []

    def run(command: list[str], *_where: object) -> tuple[int, str]:
        commands.append(command)
        return 0, ""

    monkeypatch.setattr(testing, "bounded", run)
    return commands


def test_a_python_is_found_by_its_name_and_told_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "bin" / "python3.14", "echo 3 14 /real/python")
    monkeypatch.setenv("PATH", f"/nowhere:{tmp_path}/bin")
    assert pythons.on_this_machine(14) == "/real/python"
    assert pythons.on_this_machine(13) is None


@pytest.mark.parametrize("told", ["exit 127", "echo 3 13 /other", "echo", "echo 3 14 x; exit 1"])
def test_a_stand_in_that_starts_nothing_leads_to_the_versions_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    program(tmp_path / "stand-ins" / "python3.14", told)
    monkeypatch.setenv("PATH", f"{tmp_path}/stand-ins")
    assert pythons.on_this_machine(14) is None
    program(tmp_path / "versions" / "3.14.1" / "bin" / "python3.14", "echo 3 14 /real/python")
    assert pythons.on_this_machine(14) == "/real/python"


def test_a_python_that_debian_never_had_cannot_be_unpacked(tmp_path: Path) -> None:
    with pytest.raises(debian.UnobtainableError, match="no Debian release"):
        pythons.unpacked(str(tmp_path), 12, str(tmp_path), [])


def test_one_python_is_a_must_and_others_that_are_missing_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def other(root: str, minor: int) -> Python:
        if minor in missing:
            raise debian.UnobtainableError("it is not there")
        return Python(minor, ("python",), "somewhere")

    monkeypatch.setattr(testing, "_other", other)
    missing = {12}
    had = [one.minor for one in testing._others(str(tmp_path))]
    assert had == [minor for minor in (11, 13, 14) if minor != OWN]
    told = capsys.readouterr().out.splitlines()
    assert told == [f"== without Python 3.{n}: it is not there" for n in (12,) if n != OWN]
    missing = {11 if OWN == 13 else 13}
    monkeypatch.setattr(testing, "NEEDED", min(missing))
    with pytest.raises(debian.UnobtainableError):
        testing._others(str(tmp_path))


def test_several_pythons_end_with_the_sum_and_the_worst_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """ADR-0024 verification 12: the rooms and the main job under each, none of them forgotten."""
    commands = []

    def run(command: list[str], *_where: object) -> tuple[int, str]:
        commands.append(command)
        (report,) = [word.partition("=")[2] for word in command if word.startswith("--junitxml=")]
        if command[0] != "broken":
            Path(report).write_text(REPORT.format(10), encoding="utf-8")
        status = {"one": 0, "two": 1, "broken": 4}[command[0]]
        return status, "what it said"

    monkeypatch.setattr(testing, "bounded", run)
    every = [Python(11, ("one",), "a"), Python(12, ("two",), "b"), Python(13, ("broken",), "c")]
    assert testing._suites(str(tmp_path), every, {}) == 4
    told = capsys.readouterr().out.splitlines()
    parts = len(testing.LANES) + 3
    assert (
        told[-1]
        == f"{6 * (parts + 1)} passed, {2 * (parts + 1) + 1} failed, {2 * (parts + 1)} skipped"
    )
    assert told.count("what it said") == parts + 2
    assert commands[0][-1] == "tests/build"
    assert commands[-2][-2:] == ["tests/emulation", "tests/musl"]
    assert commands[-1][4:] == ["tests/flash"]
    rooms = [f"tests/{name}" for name in testing.ROOMS]
    assert [command[4:] for command in commands if command[0] != "one"] == [rooms, rooms]
    assert any(Path(ROOT, name, "test_main_job.py").exists() for name in rooms)


def test_emulated_programs_that_lock_up_are_tried_once_more_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    def run(command: list[str], *_where: object) -> tuple[int, str]:
        tries.append(f"{command[0]} {command[-1]}")
        locked = tries.count(tries[-1]) == 1 and command[-1] == "tests/system"
        return (testing.ENDED, "") if locked or command[-1] == "tests/kit" else (0, "")

    monkeypatch.setattr(testing, "bounded", run)
    foreign = Python(11, ("arm64",), "elsewhere", machine="arm64")
    status = testing._suites(str(tmp_path), [Python(11, ("one",), "a"), foreign], {})
    assert status == -testing.ENDED
    assert (tries.count("arm64 tests/system"), tries.count("arm64 tests/unit")) == (2, 1)
    assert tries.count("one tests/kit") == 1


def test_the_pythons_are_all_from_the_oldest_that_the_program_takes() -> None:
    """ADR-0024 verification 12: none between the first and the last is left out."""
    assert first._TOO_OLD[1].startswith(f"Python 3.{pythons.MINORS[0]} or later ")
    assert list(pythons.MINORS) == list(range(11, 15))


@pytest.mark.parametrize("minor", pythons.MINORS)
def test_each_python_runs_everything_where_it_is_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minor: int
) -> None:
    """ADR-0024 verification 12: `build.py test` under it is the whole suite."""
    commands = parts_that_pass(monkeypatch)
    testing._suites(str(tmp_path), [Python(minor, ("one",), "a")], {})
    folders = [word for command in commands for word in command if word.startswith("tests/")]
    assert len(folders) == len(set(folders))
    assert set(folders) == {
        f"tests/{path.parent.name}" for path in Path(ROOT, "tests").glob("*/test_*.py")
    }


def test_the_musl_tree_alone_runs_its_rooms_and_what_looks_at_it_from_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = parts_that_pass(monkeypatch)
    every = [Python(11, ("one",), "a"), Python(11, ("musl",), "b", machine=MACHINE)]
    assert testing._suites(str(tmp_path), every, {}, only=("musl",)) == 0
    assert {command[0] for command in commands[:-1]} == {"musl"}
    rooms = sorted(name for command in commands[:-1] for name in command[4:])
    assert rooms == sorted(f"tests/{name}" for name in testing.ROOMS)
    assert (commands[-1][0], commands[-1][4:]) == ("one", ["tests/musl"])


def test_a_musl_tree_that_cannot_be_had_is_named_and_its_own_tests_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert testing._musl(str(tmp_path)) == []
    assert capsys.readouterr().out.startswith("== without the musl tree: ")
    lines = Path(ROOT, "tests", "skips.txt").read_text(encoding="utf-8").splitlines()
    (allowed,) = strictness.allowed(line for line in lines if line.startswith("tests/musl/"))
    assert allowed.fullmatch("tests/musl/test_life.py::test_of_any_name")


def test_flash_alone_is_one_part_and_else_it_looks_around_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not asked for, its tests are skipped, which tests/skips.txt allows: nothing gets longer."""
    commands = parts_that_pass(monkeypatch)
    every = [Python(11, ("one",), "a"), Python(13, ("two",), "b")]
    assert testing._suites(str(tmp_path), every, {}, only=("flash",)) == 0
    assert [(command[0], command[4:]) for command in commands] == [("one", ["tests/flash"])]
    assert testing._suites(str(tmp_path), every, {}) == 0
    assert [command[-1] for command in commands[1:]].count("tests/flash") == 1
    lines = Path(ROOT, "tests", "skips.txt").read_text(encoding="utf-8").splitlines()
    (allowed,) = strictness.allowed(line for line in lines if line.startswith("tests/flash/"))
    assert allowed.fullmatch("tests/flash/test_power.py::test_of_any_name[jffs2]")


def test_the_other_pythons_get_what_the_tests_import_and_no_checkers() -> None:
    names = {pin.partition("==")[0] for pin in pythons.pins(ROOT, pythons.CHECKERS)}
    assert {"pytest", "hypothesis", "tzdata", "cryptography"} <= names
    assert not names & {"ruff", "mypy"}


@pytest.mark.parametrize("name", ["skips.txt", "skips_arm64.txt", "skips_musl.txt"])
def test_every_line_of_the_skips_names_tests_that_exist(name: str) -> None:
    nodes = [
        line.partition(" -- ")[0]
        for line in Path(ROOT, "tests", name).read_text(encoding="utf-8").splitlines()
        if line.strip() and not line.startswith("#")
    ]
    for node in nodes:
        if "*" in node.partition("::")[0]:
            assert list(Path(ROOT).glob(node.partition("::")[0])), node
            continue
        file, _, test = node.partition("::")
        text = Path(ROOT, file).read_text(encoding="utf-8")
        name = test.partition("[")[0]
        assert f"\ndef {name.rstrip('*')}{'' if name.endswith('*') else '('}" in text, node
