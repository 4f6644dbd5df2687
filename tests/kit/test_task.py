"""QingLong's `task` as its users write it, with real interpreters, in every shell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

TASK = Path(ROOT, "qinglong_edge/kit/common/bin/task")
SHELLS = (["dash"], ["bash", "--posix"], ["busybox", "ash"])
SHOW = """
import os, sys
print(os.environ.get("JD_COOKIE", "-"), os.getcwd().rpartition("/")[2], *sys.argv[1:])
"""


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """A scripts directory; `python3` is the Python that runs the tests."""
    folder = tmp_path / "scripts"
    (folder / "sub").mkdir(parents=True)
    (folder / "show.py").write_text(SHOW, encoding="utf-8")
    (folder / "sub" / "show.py").write_text(SHOW, encoding="utf-8")
    (folder / "fail.py").write_text("raise SystemExit(7)\n", encoding="utf-8")
    (folder / "slow.py").write_text("import time\ntime.sleep(60)\n", encoding="utf-8")
    (folder / "show.sh").write_text('echo "sh $JD_COOKIE $1"\n', encoding="utf-8")
    (tmp_path / "tmp").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    return folder


def task(
    scripts: Path, *arguments: str, shell: list[str], path: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """One `task` line to its end."""
    path = f"{scripts.parent}/bin:{os.environ['PATH']}" if path is None else path
    return subprocess.run(
        [shutil.which(shell[0]) or shell[0], *shell[1:], str(TASK), *arguments],
        env={
            "PATH": path,
            "QL_SCRIPTS": str(scripts),
            "TMPDIR": str(scripts.parent / "tmp"),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=45,
    )


pytestmark = pytest.mark.parametrize("shell", SHELLS, ids=["dash", "bash", "ash"])


def test_a_script_runs_in_its_own_directory_with_its_arguments(
    scripts: Path, shell: list[str]
) -> None:
    for arguments, said in (
        (["show.py"], "- scripts"),
        (["show.py", "now"], "- scripts"),
        (["sub/show.py"], "- sub"),
        (["show.py", "--", "a b", "now"], "- scripts a b now"),
        (["show.py", "now", "--", "x"], "- scripts x"),
        (["show.py", "one", "two"], "- scripts one two"),
        (["-l", "-m", "1h", "show.py", "now"], "- scripts"),
        ([str(scripts / "show.py")], "- scripts"),
        (["echo", "any", "command"], "any command"),
    ):
        done = task(scripts, *arguments, shell=shell)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{said}\n", "")
    done = task(scripts, "sub/show.py", shell=shell, work_dir=".")
    assert done.stdout == "- scripts\n"


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_node_runs_what_ends_in_js(scripts: Path, shell: list[str]) -> None:
    for name in ("a.js", "b.mjs", "c.cjs"):
        (scripts / name).write_text("console.log(process.argv[2], process.env.JD_COOKIE)\n")
        done = task(scripts, name, "--", "x", shell=shell, JD_COOKIE="a&b")
        assert (done.returncode, done.stdout) == (0, "x a&b\n")


def test_conc_runs_once_for_each_value_and_desi_once_with_the_chosen(
    scripts: Path, shell: list[str]
) -> None:
    cookie = "pin=1; a&pin=2&pin=3&pin=$HOME*"
    for arguments, said in (
        ("conc JD_COOKIE", ["pin=1; a", "pin=2", "pin=3", "pin=$HOME*"]),
        ("conc JD_COOKIE 4 1-2 2", ["pin=$HOME*", "pin=1; a", "pin=2"]),
        ("desi JD_COOKIE 2", ["pin=2"]),
        ("desi JD_COOKIE 3-max 1", ["pin=3&pin=$HOME*&pin=1; a"]),
        ("desi JD_COOKIE max-3 9", ["pin=$HOME*&pin=3"]),
        ("desi JD_COOKIE 1~2 3_3", ["pin=1; a&pin=2&pin=3"]),
    ):
        done = task(scripts, "show.py", *arguments.split(), shell=shell, JD_COOKIE=cookie)
        assert done.stdout == "".join(f"{line} scripts\n" for line in said), arguments
        assert (done.returncode, done.stderr) == (0, "")
        words = (*arguments.split(), "--", "a b", "--", "2")
        done = task(scripts, "show.py", *words, shell=shell, JD_COOKIE=cookie)
        assert done.stdout == "".join(f"{line} scripts a b -- 2\n" for line in said), arguments
    assert os.listdir(scripts.parent / "tmp") == []


def test_conc_over_nothing_says_so(scripts: Path, shell: list[str]) -> None:
    for arguments in ("conc JD_COOKIE", "conc JD_COOKIE 7 -- x"):
        done = task(scripts, "show.py", *arguments.split(), shell=shell, JD_COOKIE="")
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr == "task: JD_COOKIE holds no such values; nothing is run\n"


def test_a_failure_is_the_tasks_failure(scripts: Path, shell: list[str]) -> None:
    assert task(scripts, "fail.py", shell=shell).returncode == 7
    assert task(scripts, "fail.py", "conc", "X", shell=shell, X="1&2").returncode == 7
    hooks = {"task_before": "export JD_COOKIE=hook", "task_after": "echo after; false"}
    done = task(scripts, "show.py", shell=shell, **hooks)
    assert (done.returncode, done.stdout) == (0, "hook scripts\nafter\n")
    done = task(scripts, "show.sh", "now", "--", "x", shell=shell, JD_COOKIE="c")
    assert done.stdout == "sh c x\n"


def test_line_ends_of_windows_are_named_where_a_shell_stumbles_over_them(
    scripts: Path, shell: list[str]
) -> None:
    (scripts / "crlf.sh").write_bytes(b"if true; then\r\n  echo yes\r\nfi\r\n")
    (scripts / "crlf.py").write_bytes(b"print('yes')\r\n")
    done = task(scripts, "crlf.sh", shell=shell)
    assert done.returncode != 0
    assert done.stderr.startswith(f"task: {scripts}/crlf.sh has line ends of Windows")
    done = task(scripts, "crlf.py", shell=shell)
    assert (done.returncode, done.stdout, done.stderr) == (0, "yes\n", "")


def test_a_time_out_ends_the_script_and_leaves_nothing(scripts: Path, shell: list[str]) -> None:
    done = task(scripts, "-m", "1s", "slow.py", shell=shell)
    assert (done.returncode, done.stderr) == (124, "task: ended after 1 seconds\n")
    # The call ends with its output: the watch has ended too, and not after its hour.
    assert task(scripts, "-m", "1h", "fail.py", shell=shell).returncode == 7


def test_what_is_missing_is_named(scripts: Path, shell: list[str]) -> None:
    (scripts / "a.js").write_text("", encoding="utf-8")
    tools = scripts.parent / "tools"
    tools.mkdir()
    for name in ("sh", "sed", "cat"):
        (tools / name).symlink_to(shutil.which(name) or name)
    for arguments, status, said in (
        (["a.js"], 127, "node is not installed; install node (OpenWrt), nodejs (elsewhere)"),
        (["a.py"], 127, "python3 is not installed; install python3"),
        (["a.ts"], 127, "tsx is not installed; install node, then npm install -g tsx"),
        (["a.sh"], 66, f"there is no script {scripts}/a.sh"),
        ([], 2, "which script?"),
        (["-m", "soon", "a.sh"], 2, "-m takes a time"),
    ):
        done = task(scripts, *arguments, shell=shell, path=str(tools))
        assert done.returncode == status, arguments
        assert done.stderr.startswith(f"task: {said}"), done.stderr
    done = task(scripts / "none", "a.py", shell=shell)
    assert (done.returncode, done.stderr) == (
        66,
        f"task: there is no scripts directory {scripts}/none; set QL_SCRIPTS\n",
    )
    for words in ("desi X", "desi X 1-a", "desi 1x 1", "conc"):
        assert task(scripts, "show.py", *words.split(), shell=shell).returncode == 2, words
