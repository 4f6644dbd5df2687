"""The harness itself: skips are counted, leaks are found, waiting is bounded."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import ROOT, loaded_modules, until
from tests.tools import builder, leaks, sample, strictness

CONFTEST = """
from tests.tools import strictness

def pytest_configure(config):
    strictness.register(config, ".")
"""
SKIPPING = """
import pytest

@pytest.mark.skip(reason="no reason")
def test_marked(): pass

@pytest.mark.parametrize("shell", ["ash", "dash"])
def test_called(shell): pytest.skip("no shell")

@pytest.mark.xfail(strict=True)
def test_expected(): assert False

def test_good(): pass
"""
WHOLE = "import pytest\npytest.skip('no kernel', allow_module_level=True)\n"


def outcome(folder: Path, skips: str, strict: str) -> tuple[int, str]:
    """Status and closing line of a pytest run over the skipping tests."""
    for name, text in {
        "conftest.py": CONFTEST,
        "skips.txt": skips,
        "pytest.ini": "[pytest]\n",
        "test_a.py": SKIPPING,
        "test_b.py": WHOLE,
    }.items():
        (folder / name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": ROOT, "EDGE_STRICT": strict},
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    return done.returncode, done.stdout.strip().rpartition("\n")[2].partition(" in ")[0]


def test_a_skip_is_a_skip_on_a_machine_that_lacks_something(tmp_path: Path) -> None:
    assert outcome(tmp_path, "", "") == (0, "1 passed, 4 skipped, 1 xfailed")


def test_under_strictness_every_skip_is_a_failure(tmp_path: Path) -> None:
    skips = "# all may run\ntest_b.py -- no such kernel here\n"
    assert outcome(tmp_path, skips, "1") == (1, "2 failed, 1 passed, 1 skipped, 1 xfailed, 1 error")


def test_under_strictness_a_module_does_not_skip_itself_either(tmp_path: Path) -> None:
    status, closing = outcome(tmp_path, "test_a.py::* -- not today\n", "1")
    assert status != 0
    assert "1 error" in closing


def test_a_listed_skip_stays_a_skip(tmp_path: Path) -> None:
    skips = "test_a.py::test_marked -- a\ntest_a.py::test_called[*] -- b\ntest_b.py -- c\n"
    assert outcome(tmp_path, skips, "1") == (0, "1 passed, 4 skipped, 1 xfailed")


@pytest.mark.parametrize("line", ["test_a.py::test_b", "test_a.py -- ", " -- a reason"])
def test_a_listed_skip_needs_its_reason(line: str) -> None:
    with pytest.raises(ValueError, match="lacks its reason"):
        strictness.allowed([line])


EMULATED = """
from hypothesis import given, settings, strategies

tried = 0

@settings(max_examples=500, database=None)
@given(strategies.integers())
def test_random(number):
    global tried
    tried += 1

def test_few(): assert 0 < tried < 100

def test_impossible(): assert False
"""


def test_on_an_emulated_machine_its_list_is_left_out_and_random_is_short(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (tmp_path / "test_c.py").write_text(EMULATED, encoding="utf-8")
    (tmp_path / "skips_toy.txt").write_text("test_c.py::test_imp* -- x\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ROOT, "EDGE_STRICT": "", "EDGE_MACHINE": "toy"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed, 1 deselected" in done.stdout


def test_brackets_of_a_parameter_stand_for_themselves() -> None:
    (pattern,) = strictness.allowed(["t.py::test_a[dash] -- a reason"])
    assert pattern.fullmatch("t.py::test_a[dash]")
    assert not pattern.fullmatch("t.py::test_ad")


def test_a_clean_test_leaves_nothing(tmp_path: Path) -> None:
    before = leaks.snapshot()
    with open(tmp_path / "file", "w", encoding="utf-8"):
        pass
    subprocess.run(["true"], check=True)
    assert leaks.leaks(before, str(tmp_path)) == []


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is there and stays: a moment shows that as well as ten seconds."""
    monkeypatch.setattr(leaks, "_DYING_S", 0.5)


@pytest.mark.usefixtures("_impatient")
def test_an_open_descriptor_is_found(tmp_path: Path) -> None:
    before = leaks.snapshot()
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        assert leaks.leaks(before, str(tmp_path)) == [
            f"descriptor {descriptor} is open: {tmp_path}"
        ]
    finally:
        os.close(descriptor)


@pytest.mark.usefixtures("_impatient")
def test_a_child_is_found_and_ended(tmp_path: Path) -> None:
    before = leaks.snapshot()
    child = os.posix_spawnp("sleep", ["sleep", "60"], os.environ)
    assert leaks.leaks(before, str(tmp_path)) == [f"process {child} is there: sleep 60"]
    leaks.end(before, str(tmp_path))
    until(lambda: not leaks.leaks(before, str(tmp_path)))


@pytest.mark.usefixtures("_impatient")
def test_a_task_that_outlived_its_scheduler_is_found_by_its_folder(tmp_path: Path) -> None:
    before = leaks.snapshot()
    subprocess.run(["sh", "-c", "sleep 60 >/dev/null 2>&1 &"], cwd=tmp_path, check=True)
    (pid,) = until(lambda: leaks.survivors(str(tmp_path)))
    assert leaks.leaks(before, str(tmp_path)) == [f"process {pid} is there: sleep 60"]
    leaks.end(before, str(tmp_path))
    until(lambda: not leaks.survivors(str(tmp_path)))


def test_waiting_gives_the_first_true_answer_or_fails_in_time() -> None:
    answers = iter([0, None, 7])
    assert until(lambda: next(answers)) == 7
    begun = time.monotonic()
    with pytest.raises(AssertionError, match="the moon"):
        until(lambda: False, 0.02, what="the moon")
    assert time.monotonic() - begun < 5


DAEMON = """
from __future__ import annotations
import signal
import sys

def main() -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    print(sys.argv[1:], "ready", file=sys.stderr, flush=True)
    signal.sigwait([signal.SIGTERM])
    import qinglong_edge.late
    return 0
"""


def test_the_modules_of_a_daemon_are_told_to_its_stop(tmp_path: Path) -> None:
    root = sample.tree(str(tmp_path))
    sample.write(root, "qinglong_edge/cli/main.py", DAEMON)
    zipapp = builder.build(root, str(tmp_path / "a.pyz"), python=sys.executable).path
    loaded = loaded_modules(zipapp, ["run"], str(tmp_path / "answer"), ready=b"['run'] ready")
    assert {"signal", "qinglong_edge.cli.main", "qinglong_edge.late"} <= loaded
    assert not {"json", "typing", "qinglong_edge.app.program"} & loaded


def test_the_environment_of_the_caller_reaches_no_test() -> None:
    given = [name for name in os.environ if name.startswith(("LC_", "QINGLONG_EDGE_", "QL3_"))]
    assert given == []
    assert "TZ" not in os.environ
    assert "LANG" not in os.environ
