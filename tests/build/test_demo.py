"""The demo: the newcomer's first command keeps its word, says so when it cannot, and cleans up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.support import ROOT, until
from tests.tools import builder, demo, leaks


def start(home: Path, *, root: str = ROOT) -> subprocess.Popen[str]:
    """The demo as a newcomer starts it, with its folder under `home`."""
    return subprocess.Popen(
        [sys.executable, "-B", "build.py", "demo"],
        cwd=root,
        env={**os.environ, "TMPDIR": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        start_new_session=True,
    )


def read_until(started: subprocess.Popen[str], words: str) -> None:
    assert started.stdout is not None
    for line in started.stdout:
        if words in line:
            return
    raise AssertionError(f"the demo never said {words!r}")


def test_the_demo_tells_the_whole_story_and_leaves_nothing(tmp_path: Path) -> None:
    """A crontab runs, the scheduler is killed with -9, the next one finds the real exit code."""
    begun = time.monotonic()
    with start(tmp_path) as started:
        told, _ = started.communicate(timeout=150)
    assert started.returncode == 0, told
    assert time.monotonic() - begun < 120
    for part in ("good minute", "killed with -9", "adopted", "evidence   receipt", "exit code  7"):
        assert part in told
    assert told.splitlines()[-1].endswith("nothing is left running.")
    assert list(tmp_path.iterdir()) == []
    assert leaks.survivors(str(tmp_path)) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_stops_everything(tmp_path: Path, number: signal.Signals) -> None:
    with start(tmp_path) as started:
        read_until(started, "it is due at")
        assert leaks.survivors(str(tmp_path)) != []
        os.killpg(started.pid, number)
        told, _ = started.communicate(timeout=60)
    assert started.returncode == 130
    assert "Interrupted" in told
    assert list(tmp_path.iterdir()) == []
    until(lambda: leaks.survivors(str(tmp_path)) == [], what="every process has gone")


def test_a_broken_promise_is_one_sentence_and_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(demo, "CRONTAB", "* * * * * echo one\nnonsense\n")
    assert demo.main([]) == 1
    told = capsys.readouterr()
    assert told.err == "Not as promised: Four lines were to be imported, not 1.\n"
    assert list(tmp_path.iterdir()) == []


def test_a_tree_that_cannot_be_built_is_one_sentence_and_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_given: object, **_named: object) -> None:
        raise builder.BuildError("a module does not compile")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(builder, "build", refuse)
    assert demo.main([]) == 1
    assert capsys.readouterr().err == "Not as promised: a module does not compile\n"
    assert list(tmp_path.iterdir()) == []
