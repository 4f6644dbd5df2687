"""The README is true: its commands run as they stand, its files exist, its promises are there."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from qinglong_edge.cli import parser
from tests.support import ROOT

README = Path(ROOT, "README.md").read_text(encoding="utf-8")
PROGRAM = "qinglong-edge"
# What each numbered promise must keep saying, whatever words stand around it.
PROMISES = (
    ("No user code runs before", "durable"),
    ("outlives the scheduler", "SIGKILL, upgrade or restart", "real exit code"),
    ("acknowledges it only after the commit", "never overwritten", "fsynced before it is visible"),
    ("Nothing is signalled unless", "unknown is never read as dead"),
    ("one bounded start pass", "never invents a success, never starts a run twice"),
    ("at most one run", "commit together"),
    ("plaintext exists only in the launching child",),
    ("bounded to the byte", "the truncation is a durable fact"),
    ("no disk write at all", "at most two wake-ups a minute"),
    ("One owner per state directory", "refused"),
    ("monotonic clock", "no cron occurrence is admitted"),
    ("stable error code, one clear sentence and an exit status", "changes nothing"),
)
# Names that are no file of this tree: on a router, of the state, made by a command, a zone.
ELSEWHERE = re.compile(
    r"/.*|x\.(?:js|py)|(?:config|keyring)\.json|dist/qinglong-edge(-worker)?\.pyz|\.venv|Europe/Berlin"
)


def section(title: str) -> str:
    """The text below a heading of the second level."""
    return README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def block(title: str) -> str:
    """The one shell block of a section."""
    (found,) = re.findall(r"^```sh\n(.*?)^```$", section(title), re.MULTILINE | re.DOTALL)
    assert isinstance(found, str)
    return found


def inline() -> list[str]:
    """Everything between single backticks, outside blocks."""
    text = re.sub(r"^```.*?^```$", "", README, flags=re.MULTILINE | re.DOTALL)
    return [" ".join(found.split()) for found in re.findall(r"`([^`]+)`", text)]


def given(words: list[str]) -> list[str]:
    """The arguments of our program in a line of the router's block."""
    line = words[2:] if words[:2] == ["ssh", "root@router"] else words
    line = shlex.split(line[0]) if len(line) == 1 else line
    return line[1:] if line[:1] == [PROGRAM] else []


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A copy of the tree that was just cloned, and an environment whose python3 is this Python."""
    home = tmp_path_factory.mktemp("newcomer")
    names = ("build.py", "profiles", "qinglong_edge", "tests")
    hidden = shutil.ignore_patterns("__pycache__", "vectors")
    for name in names:
        source, target = Path(ROOT, name), home / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=hidden)
        else:
            shutil.copy(source, target)
    (home / "bin").mkdir()
    python = home / "bin" / "python3"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    return home, {**os.environ, "PATH": f"{home / 'bin'}:{os.environ['PATH']}"}


def sh(
    newcomer: tuple[Path, dict[str, str]], script: str, state: Path
) -> subprocess.CompletedProcess[str]:
    """Lines of the README under sh, with another folder than /tmp/qe; the first that fails ends."""
    home, environment = newcomer
    return subprocess.run(
        ["sh", "-euc", script.replace("/tmp/qe", str(state))],
        cwd=home,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
    )


def test_the_two_first_commands_are_there(newcomer: tuple[Path, dict[str, str]]) -> None:
    """What they do is shown elsewhere: the demo has its tests, `test` is what runs this one."""
    lines = block("Try it").splitlines()
    assert lines == ["python3 build.py demo", "python3 build.py test"]
    for line in lines:
        done = sh(newcomer, f"{line} --help", Path("unused"))
        assert (done.returncode, done.stderr) == (0, "")
    assert "--with-emulation" in done.stdout


def test_the_six_lines_run_as_they_stand(
    newcomer: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    script = block("Six lines")
    assert len(script.splitlines()) == 6
    done = sh(newcomer, script, tmp_path / "state")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == f"hello from {os.uname().nodename}"
    assert "succeeded" in done.stdout


def test_what_is_said_about_the_six_lines_is_true(
    newcomer: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    table = tmp_path / "crontab"
    table.write_text('MAILTO=""\n17 * * * * root cd / && run-parts /etc/cron.hourly\n', "utf-8")
    told = {line: line for line in inline() if line.startswith("qe ")}
    imported = "qe import crontab /etc/crontab --user-column"
    told[imported] = imported.replace("/etc/crontab", str(table))
    told["qe run"] = "qe run --help"
    script = "\n".join([*block("Six lines").splitlines()[:3], *told.values(), "qe task list"])
    done = sh(newcomer, script, tmp_path / "state")
    assert (done.returncode, done.stderr) == (0, "")
    assert "17 * * * *" in done.stdout


def test_the_lines_about_secrets_run_as_they_stand(
    newcomer: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    script = block("Secrets").replace("/tmp/qe.backup", str(tmp_path / "qe.backup"))
    first = block("Six lines").splitlines()[:3]
    done = sh(newcomer, "\n".join([*first, script]), tmp_path / "state")
    assert done.returncode == 0, done.stderr
    assert "succeeded" in done.stdout
    assert (tmp_path / "qe.backup.keyring").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("title", "said"),
    [
        ("Envs: several values under one name", "pt_key"),
        ("When runs end badly", "ntfy: removed"),
    ],
)
def test_the_lines_about_envs_and_channels_run_as_they_stand(
    newcomer: tuple[Path, dict[str, str]], tmp_path: Path, title: str, said: str
) -> None:
    script = "\n".join([*block("Six lines").splitlines()[:3], block(title), "qe log sign || true"])
    done = sh(newcomer, script, tmp_path / "state")
    assert done.returncode == 0, done.stderr
    assert (said in done.stdout) == (said != "pt_key")
    assert ("37 bytes" in done.stdout) == (said == "pt_key")


def test_without_a_scheduler_a_start_is_queued(
    newcomer: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    alias_init_add = block("Six lines").splitlines()[:4]
    script = "\n".join([*alias_init_add, "qe start hello", "qe --json runs"])
    done = sh(newcomer, script, tmp_path / "state")
    (run,) = json.loads(done.stdout.splitlines()[-1])["runs"]
    assert run["status"] == "queued"


def test_the_numbers_for_a_small_flash_are_accepted(
    newcomer: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    (limits,) = [found for found in inline() if found.startswith('"limits"')]
    (logs,) = [found for found in inline() if found.startswith('"logs"')]
    state = tmp_path / "state"
    made = sh(newcomer, "\n".join(block("Six lines").splitlines()[:3]), state)
    assert made.returncode == 0
    text = f"{{{limits}, {logs}}}".replace("/mnt/usb", str(tmp_path))
    configured = json.loads(text)
    Path(configured["logs"]).mkdir()
    settings = state / "config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text("utf-8")), **configured}))
    lines = block("Six lines").splitlines()
    done = sh(newcomer, "\n".join([lines[1], *lines[3:]]), state)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(Path(configured["logs"]).rglob("*.log"))


def test_the_lines_for_a_router_are_lines_of_our_program() -> None:
    script = block("On a router (OpenWrt)")
    assert subprocess.run(["sh", "-n"], input=script.encode()).returncode == 0
    every = [given(shlex.split(line, comments=True)) for line in script.splitlines()]
    parsed = [vars(parser.parse(arguments)) for arguments in filter(None, every)]
    assert len(parsed) >= 3
    first_line = re.search(r"starts with `(#!.*?)`", README)
    assert first_line is not None
    with open(Path(ROOT, "tests", "tools", "builder.py"), encoding="utf-8") as opened:
        assert first_line[1] in opened.read()


def test_every_option_named_is_known() -> None:
    grammar = subprocess.run(
        [sys.executable, "-m", "qinglong_edge", "task", "add", "--help"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    ).stdout.decode()
    for option in [found for found in inline() if re.fullmatch(r"--[a-z-]+", found)]:
        assert option in grammar, option


@pytest.mark.parametrize("number", range(1, 13))
def test_each_promise_is_there(number: int) -> None:
    numbered = re.split(r"^\d+\. ", section("What it promises"), flags=re.MULTILINE)[1:]
    assert len(numbered) == len(PROMISES)
    text = " ".join(numbered[number - 1].split())
    for words in PROMISES[number - 1]:
        assert words in text


def test_the_table_of_power_cuts_is_whole() -> None:
    rows = section("After a power cut at moment X you find Y").splitlines()
    table = [row for row in rows if row.startswith("|")]
    assert len(table) == 2 + 11
    assert {row.count("|") for row in table} == {3}


def test_every_file_that_is_named_is_there() -> None:
    named = {word for text in inline() for word in text.split() if re.search(r"\.\w+$|.+/", word)}
    files = {word for word in named if re.fullmatch(r"[\w./-]+", word)}
    dead = [
        name for name in files if not ELSEWHERE.fullmatch(name) and not Path(ROOT, name).exists()
    ]
    assert dead == []
    assert "tests/skips.txt" in files
