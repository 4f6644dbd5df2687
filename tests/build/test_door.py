"""build.py from outside: exit statuses, what it prints, what it leaves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.kit import alive
from tests.support import until
from tests.tools import debian, sample, testing
from tests.tools.pythons import Python


def door(root: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """build.py of a sample tree, run as a newcomer runs it."""
    return subprocess.run(
        [sys.executable, "-B", "build.py", *arguments],
        cwd=root,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )


def test_without_a_command_it_builds_and_tells_the_measures(tmp_path: Path) -> None:
    root = sample.tree(str(tmp_path))
    done = door(root)
    assert (done.returncode, done.stderr) == (0, "")
    assert "bytes" in done.stdout
    assert "of 393,216" in done.stdout
    assert "of 512" in done.stdout
    assert [path.name for path in (tmp_path / "dist").iterdir()] == ["qinglong-edge.pyz"]


def test_over_its_budget_it_fails_and_names_the_largest_modules(tmp_path: Path) -> None:
    root = sample.tree(str(tmp_path))
    sample.write(root, "profiles/edge.toml", "[runtime]\n[budget]\nzipapp_bytes=9\nzipapp_files=4")
    done = door(root)
    assert done.returncode == 1
    assert done.stdout.count("MISSED") == 2
    named = done.stdout.partition("the largest modules")[2].splitlines()[1:]
    sizes = [int(line.split()[0].replace(",", "")) for line in named]
    assert sizes == sorted(sizes, reverse=True)
    assert all(" qinglong_edge/" in line for line in named)
    assert len(named) > 5


def test_what_cannot_be_built_is_one_sentence(tmp_path: Path) -> None:
    done = door(sample.tree(str(tmp_path)), "--python", "/nowhere/python3")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "/nowhere/python3 cannot be started (No such file or directory).\n"


@pytest.mark.parametrize("arguments", [["frob"], ["--frob"], ["--", "-k", "x"], ["bench", "x"]])
def test_wrong_usage_is_status_2(tmp_path: Path, arguments: list[str]) -> None:
    assert door(sample.tree(str(tmp_path)), *arguments).returncode == 2


class Calls:
    """Stands for subprocess.call: remembers commands, fails those that contain a word."""

    def __init__(self, failing: str = "-") -> None:
        self.commands: list[list[str]] = []
        self.strict: str | None = None
        self._failing = failing

    def __call__(self, command: list[str], *, env: object = None, **_where: object) -> int:
        self.commands.append(command)
        given = env if isinstance(env, dict) else {}
        self.strict = given.get("EDGE_STRICT")
        return 3 if self._failing in command else 0

    def tools(self) -> list[str]:
        """The tool that each command ran."""
        return [command[2] for command in self.commands]


def test_the_checks_come_first_and_pytest_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = Calls()
    monkeypatch.delenv("EDGE_STRICT", raising=False)
    monkeypatch.setattr(subprocess, "call", calls)
    monkeypatch.setattr(testing, "_environment", lambda root: "python")
    assert (
        testing.test(str(tmp_path), emulation=False, musl=False, flash=False, pytest=["-k", "x"])
        == 0
    )
    assert calls.tools() == ["ruff", "ruff", "mypy", "pytest"]
    assert calls.commands[-1] == ["python", "-m", "pytest", "-k", "x"]
    assert calls.strict is None
    assert capsys.readouterr().out.splitlines()[-1] == "== tests"


def test_a_failed_check_is_the_status_and_stops_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(failing="mypy")
    monkeypatch.setattr(subprocess, "call", calls)
    monkeypatch.setattr(testing, "_environment", lambda root: "python")
    assert testing.test(str(tmp_path), emulation=False, musl=False, flash=False, pytest=[]) == 3
    assert calls.tools()[-1] == "mypy"


def test_with_emulation_everything_is_provided_and_nothing_may_be_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls()
    installed: list[str] = []
    fetched: list[str] = []
    monkeypatch.setattr(subprocess, "call", calls)
    monkeypatch.setattr(testing, "_environment", lambda root: "python")
    monkeypatch.setattr(debian, "missing", lambda packages: ["busybox"])
    monkeypatch.setattr(debian, "install", installed.extend)
    monkeypatch.setattr(debian, "unpacked", lambda name, cache: fetched.append(name))
    monkeypatch.setattr(testing, "_others", lambda root: [])
    foreign = Python(11, ("arm64",), "elsewhere", machine="arm64")
    monkeypatch.setattr(testing, "_foreign", lambda root: foreign)
    assert testing.test(str(tmp_path), emulation=True, musl=False, flash=False, pytest=["-x"]) == 0
    assert installed[0] == "busybox"
    assert fetched == list(debian.READ)
    assert calls.strict == "1"
    machines: list[tuple[str, str | None]] = []

    def run(
        command: list[str], _folder: str, environment: dict[str, str], _within_s: float
    ) -> tuple[int, str]:
        machines.append((command[0], environment.get("EDGE_MACHINE")))
        return 0, ""

    monkeypatch.setattr(testing, "bounded", run)
    assert testing.test(str(tmp_path), emulation=True, musl=False, flash=False, pytest=[]) == 0
    assert machines.count(("arm64", "arm64")) == len(testing.ROOMS)
    assert {machine for name, machine in machines if name != "arm64"} == {None}


def test_with_flash_alone_its_tests_run_after_the_checks_and_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls()
    asked: list[tuple[str | None, ...]] = []

    def run(
        command: list[str], _folder: str, environment: dict[str, str], _within_s: float
    ) -> tuple[int, str]:
        names = ("EDGE_FLASH", "EDGE_EMULATION", "EDGE_STRICT")
        asked.append((command[-1], *map(environment.get, names)))
        return 0, ""

    for name in ("EDGE_FLASH", "EDGE_EMULATION", "EDGE_STRICT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(subprocess, "call", calls)
    monkeypatch.setattr(testing, "bounded", run)
    monkeypatch.setattr(testing, "_environment", lambda root: "python")
    monkeypatch.setattr(testing, "_provide", lambda root, packages: None)
    assert testing.test(str(tmp_path), emulation=False, musl=False, flash=True, pytest=[]) == 0
    assert calls.tools() == ["ruff", "ruff", "mypy"]
    assert asked == [("tests/flash", "1", None, "1")]
    asked.clear()
    assert testing.test(str(tmp_path), emulation=False, musl=False, flash=False, pytest=[]) == 0
    assert {each[1:] for each in asked} == {(None, None, None)}


def test_a_part_that_does_not_end_is_ended_with_all_it_started(tmp_path: Path) -> None:
    text = "echo begun; sleep 1000 & echo $! >child; trap '' ABRT; wait; wait; sleep 1000"
    status, told = testing.bounded(["sh", "-c", text], str(tmp_path), dict(os.environ), 1.0)
    assert status == testing.ENDED
    assert told == "begun\n\n== ended: it was not over after 1 s\n"
    child = int((tmp_path / "child").read_text(encoding="ascii"))
    until(lambda: not alive(child))


def test_a_part_that_ends_has_its_own_status_and_all_of_its_output(tmp_path: Path) -> None:
    text = "echo one; echo two >&2; exit 3"
    done = testing.bounded(["sh", "-c", text], str(tmp_path), dict(os.environ), 60.0)
    assert done == (3, "one\ntwo\n")


def test_a_python_that_is_ended_says_where_it_stood(tmp_path: Path) -> None:
    text = (
        "import faulthandler, time; faulthandler.enable()\ndef stuck(): time.sleep(1000)\nstuck()"
    )
    command = [sys.executable, "-c", text]
    status, told = testing.bounded(command, str(tmp_path), dict(os.environ), 2.0)
    assert (status, "in stuck" in told) == (testing.ENDED, True)


def test_what_cannot_be_provided_is_said_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(debian, "missing", lambda packages: ["busybox"])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert testing.test(str(tmp_path), emulation=True, musl=False, flash=False, pytest=[]) == 1
    assert "needs root" in capsys.readouterr().err


def test_the_environment_is_made_once_for_its_pins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls()
    monkeypatch.setattr(subprocess, "call", calls)
    monkeypatch.setattr(testing, "_making", lambda folder, python, pins: [["mkdir", folder]])
    pins = tmp_path / ".requirements-dev.txt"
    for text, made in [("a==1", 1), ("a==1", 1), ("a==2", 2)]:
        pins.write_text(text, encoding="utf-8")
        (tmp_path / ".venv").mkdir(exist_ok=True)
        monkeypatch.setattr(shutil, "rmtree", lambda path, ignore_errors: None)
        assert testing._environment(str(tmp_path)) == str(tmp_path / ".venv" / "bin" / "python")
        assert len(calls.commands) == made


@pytest.mark.parametrize(
    ("ensurepip", "pip", "made"),
    [(True, True, "-m venv E"), (False, True, "-m venv --without-pip E"), (False, False, "")],
)
def test_a_debian_python_without_ensurepip_lends_its_own_pip(
    monkeypatch: pytest.MonkeyPatch, ensurepip: bool, pip: bool, made: str
) -> None:
    monkeypatch.setattr(testing, "_venv_works", lambda: ensurepip)
    monkeypatch.setattr(testing, "_pip_works", lambda: pip)
    if made:
        assert " ".join(testing._making("E", "python", ["a==1"])[0][1:]) == made
    else:
        with pytest.raises(testing.SetupError, match="python3-venv"):
            testing._making("E", "python", ["a==1"])
