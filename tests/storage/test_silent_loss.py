"""The two ways in which a process loses SQLite's promises without any error, and why ours cannot.

Both are first shown on bare sqlite3, so that the proof would notice if they ceased to exist.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from qinglong_edge.storage import store
from tests.storage.building import LAYOUT, opened
from tests.storage.test_connection import intrude
from tests.support import ROOT

# A parent with 50 commits forks; the child does one thing; the parent commits 50 more and dies.
_BARE = """
import os, signal, sqlite3, sys
path, deed = sys.argv[1:]
owner = sqlite3.connect(path, isolation_level=None)
for pragma in ("page_size=1024", "locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL"):
    owner.execute("PRAGMA " + pragma)
owner.execute("CREATE TABLE t (n INTEGER)")
for n in range(50):
    owner.execute("INSERT INTO t VALUES (?)", (n,))
child = os.fork()
if child == 0:
    if deed == "close":
        owner.close()
    os._exit(0)
os.waitpid(child, 0)
for n in range(50):
    owner.execute("INSERT INTO t VALUES (?)", (n,))
print(owner.execute("SELECT count(*) FROM t").fetchone()[0], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""

# The same with our Store and our launch child: one that is refused, one that finds its gate closed,
# one that runs a program.
_OURS = """
import gc, os, signal, sys
from qinglong_edge.storage import store
from qinglong_edge.storage.connection import Layout
from qinglong_edge.system.child import ChildPlan, ChildRefusal, Spawner

folder = sys.argv[1]
layout = Layout(page_bytes=512, cache_kib=256, wal_bytes=1048576)
store.create(folder, profile="edge", layout=layout, at_ms=1)
owner = store.Store(folder, layout=layout, at_ms=1)

def put(start):
    for n in range(start, start + 50):
        with owner.database.write():
            owner.put_setting(f"n{n}", "x")

def refuse():
    gc.collect()
    raise ChildRefusal("no_secret")

def crash():
    raise MemoryError

def launch(resolve, go):
    plan = ChildPlan(
        program="/bin/sh", arguments=("sh", "-c", "exit 0"), environment={}, cwd="/", nice=0,
        oom_score_adj=0, script=os.open("/dev/null", os.O_RDONLY), log_quota_bytes=0, kept=(),
    )
    child = Spawner().fork(plan, resolve)
    os.set_blocking(child.gate_fd, True)
    assert child.read_gate()
    if go:
        child.send_go(None)
    else:
        child.close_gate()
    os.waitpid(child.pid, 0)
    child.close()

put(0)
launch(refuse, False)
launch(crash, False)
launch(dict, False)
launch(dict, True)
put(50)
print(len(list(owner.database.rows("SELECT 1 FROM setting WHERE name GLOB 'n*'"))), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""

# Runs the program; whatever opens the database or its WAL other than SQLite is told in a file.
_WATCHED = """
import json, os, sys
root, answer = sys.argv[1:3]
del sys.argv[1:3]
sys.path.insert(0, root)
telling = False

def hook(event, arguments):
    global telling
    if event == "open" and "edge.db" in str(arguments[0]) and not telling:
        telling = True
        with open(answer, "a") as told:
            told.write(json.dumps([str(arguments[0]), sys.argv[1:]]) + "\\n")
        telling = False

sys.addaudithook(hook)
if sys.argv[1] == "--open":
    os.close(os.open(sys.argv[2], os.O_RDONLY))
    raise SystemExit
from qinglong_edge.cli.main import main
raise SystemExit(main(sys.argv[1:]))
"""

# An owner that looks at its own file by path, then waits for its input to end.
_LOOKING = """
import os, sqlite3, sys
owner = sqlite3.connect(sys.argv[1], isolation_level=None)
for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=WAL"):
    owner.execute("PRAGMA " + pragma)
owner.execute("CREATE TABLE t (n INTEGER)")
if sys.argv[2] == "open":
    os.close(os.open(sys.argv[1], os.O_RDONLY))
else:
    os.stat(sys.argv[1])
print("ready", flush=True)
sys.stdin.read()
os._exit(0)
"""


def python(code: str, *arguments: str) -> str:
    """What a script says before it kills itself."""
    environment = {**os.environ, "PYTHONPATH": ROOT}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        env=environment,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL
    return done.stdout.decode().strip()


@pytest.mark.parametrize(("deed", "left"), [("nothing", 100), ("close", 50)])
def test_a_child_that_closes_the_inherited_connection_loses_the_parents_commits(
    folder: Path, deed: str, left: int
) -> None:
    """The danger is real: the parent saw 100 rows, after its crash 50 of them are gone."""
    path = folder / "bare.db"
    assert python(_BARE, str(path), deed) == "100"
    survivor = sqlite3.connect(path)
    found = survivor.execute("SELECT count(*) FROM t").fetchone()[0]
    survivor.close()
    assert found == left


def test_launch_children_never_touch_the_parents_database(folder: Path) -> None:
    """Refused, crashed, sent away or executed: every commit of the parent outlives its crash."""
    assert python(_OURS, str(folder)) == "100"
    again = opened(folder)
    (count,) = again.database.row("SELECT count(*) FROM setting WHERE name GLOB 'n*'") or (0,)
    again.database.check()
    again.close()
    assert count == 100


@pytest.mark.parametrize(("look", "told"), [("stat", "database is locked"), ("open", "in")])
def test_an_owner_that_opens_its_file_by_path_lets_others_in(
    folder: Path, look: str, told: str
) -> None:
    """The danger is real: closing any descriptor of the file drops the locks of its process."""
    command = [sys.executable, "-I", "-S", "-c", _LOOKING, str(folder / store.NAME), look]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        assert intrude(folder) == told


def _watched(folder: Path, *arguments: str) -> list[str]:
    answer = str(folder / "opened.json")
    return [sys.executable, "-I", "-c", _WATCHED, ROOT, answer, *arguments]


def _opens(folder: Path) -> list[object]:
    path = folder / "opened.json"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_the_watch_sees_an_open_of_the_database(folder: Path) -> None:
    (folder / "edge.db").touch()
    subprocess.run(_watched(folder, "--open", str(folder / "edge.db")), check=True)
    assert len(_opens(folder)) == 1


def test_nothing_but_sqlite_opens_the_database_in_the_life_of_a_daemon(folder: Path) -> None:
    """Made, used by commands, owned by a daemon that runs a task, stopped: stat by path only."""
    base = ["--state", str(folder / "state"), "--json"]

    def command(*arguments: str) -> None:
        done = subprocess.run(
            _watched(folder, *base, *arguments), stdout=subprocess.PIPE, timeout=60
        )
        assert done.returncode == 0, done.stdout

    command("init")
    command("task", "add", "one", "--every", "1h", "--", "/bin/echo", "hello")
    command("start", "one", "--wait")
    with subprocess.Popen(
        _watched(folder, *base, "run"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"ready\n"
        command("start", "one", "--wait")
        command("status")
        command("log", "one")
        command("show", "one")
        assert intrude(folder / "state") == "database is locked"
        daemon.send_signal(signal.SIGTERM)
    assert daemon.returncode == 0
    command("runs")
    assert _opens(folder) == []


def test_the_layout_of_the_scripts_is_the_layout_of_the_tests() -> None:
    told = f"page_bytes={LAYOUT.page_bytes}, cache_kib={LAYOUT.cache_kib}"
    assert f"Layout({told}, wal_bytes={LAYOUT.wal_bytes})" in _OURS
