"""Other eyes: another pid namespace, a /proc that hides, a pid that is really given away.

What cannot be told is unknown: never read as dead, never signalled. Namespaces and mounts need
root; nothing outside of them is changed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from qinglong_edge.process.identity import Inspector
from qinglong_edge.system.process import Processes
from tests.e2e.kit import WITHIN_S, Kit, alive, gone, pids
from tests.support import ROOT, until
from tests.tools import measure

PATIENT = 'echo $$ >> "{0}/pid"; while [ ! -e "{0}/go" ]; do sleep 0.05; done; exit 7'
NAMESPACE = ("unshare", "-p", "-f", "--mount-proc", "--kill-child")
NOBODY = 65_534
AS_NOBODY = f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups"


class Inside(Kit):
    """The program as seen through other eyes; `prefix` gives it those."""

    prefix: tuple[str, ...] = ()

    def command(self, *arguments: str | bytes) -> list[str | bytes]:
        return [*self.prefix, *super().command(*arguments)]


def needs(*command: str) -> None:
    """Skip with the reason where this machine or user cannot do it."""
    if os.geteuid() != 0:
        pytest.skip("namespaces and mounts need root")
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(command, capture_output=True)
    if done.returncode != 0:
        pytest.skip(f"{command[0]} is refused: {done.stderr.decode(errors='replace').strip()}")


@pytest.fixture
def patient(tmp_path: Path) -> Inside:
    """A state with the task `t`, which runs until the file `go` is there."""
    needs(*NAMESPACE, "true")
    kit = Inside(tmp_path)
    kit.ok("init")
    kit.ok("task", "add", "t", "--no-log", "--shell", PATIENT.format(kit.place))
    return kit


# -- another pid namespace ------------------------------------------------------------------------


def test_a_daemon_in_another_pid_namespace_judges_and_signals_nothing(patient: Inside) -> None:
    kit = patient
    with kit.daemon() as daemon:
        kit.ok("start", "t")
        (task,) = pids(kit.file("pid"))
        daemon.kill()
    kit.prefix = NAMESPACE
    with kit.daemon():
        told = kit.ask("status")["result"]
        assert [each["hold"] for each in told["active"]] == ["other_namespace"]
        assert "run_unproven:1:other_namespace" in told["degraded"]
        stop = kit.ask("run.stop", run="1")["error"]["data"]
        assert (stop["code"], stop["facts"]["reason"]) == ("stop_unproven", "other_namespace")
        assert alive(task)
        assert kit.ask("run.start", name="t")["error"]["data"]["code"] == "overlap_skipped"
        assert kit.ask("run.show", run="1")["result"]["run"]["status"] == "running"
    kit.prefix = ()
    kit.sql("UPDATE run SET cancel_requested_at_ms = NULL, cancel_reason = NULL")
    with kit.daemon():
        assert kit.shown(1)["hold"] is None, "adopted where it can be seen"
        kit.file("go").touch()
        run = kit.ended(1)
    assert (run["status"], run["exit_code"], run["evidence"]) == ("failed", 7, "receipt")
    gone(task)


def test_a_receipt_is_believed_in_whatever_namespace_it_is_found(patient: Inside) -> None:
    kit = patient
    with kit.daemon() as daemon:
        kit.ok("start", "t")
        (task,) = pids(kit.file("pid"))
        daemon.kill()
    kit.file("go").touch()
    gone(task)
    until(lambda: list((kit.state / "receipts").glob("??/*.json")), what="a receipt file")
    kit.prefix = NAMESPACE
    with kit.daemon():
        run = kit.ended(1)
    assert (run["status"], run["exit_code"], run["evidence"]) == ("failed", 7, "receipt")


def test_a_container_that_is_made_anew_knows_what_it_does_not_know(patient: Inside) -> None:
    """Its tasks died with the old namespace; nothing here can prove that, so a person says it."""
    kit = patient
    kit.prefix = NAMESPACE
    with kit.daemon() as daemon:
        kit.ask("run.start", name="t")
        pids(kit.file("pid"))
        daemon.kill()
    with kit.daemon():
        (active,) = kit.ask("status")["result"]["active"]
        assert active["hold"] == "other_namespace"
        run = kit.ask("run.settle", run="1", **{"as": "lost", "reason": "a new container"})
        assert run["result"]["status"] == "lost"
        assert kit.ended(1)["status"] == "lost"
        kit.file("pid").unlink()
        kit.file("go").touch()
        assert kit.ask("run.start", name="t")["result"]["number"] == 2, "its place is free again"
        assert kit.ended(2)["exit_code"] == 7


def test_a_daemon_that_is_pid_1_runs_and_stops(patient: Inside) -> None:
    """Orphans become zombies there, since nobody reaps what is not his: they count as gone."""
    kit = patient
    kit.prefix = NAMESPACE
    orphan = f'(sleep 0.2; echo done >> "{kit.place}/orphan") & exit 3'
    with kit.daemon():
        kit.ask("task.add", name="orphan", shell=orphan, log=False)
        kit.ask("run.start", name="orphan")
        assert kit.ended(1)["exit_code"] == 3
        until(kit.file("orphan").exists, what="the orphan ends")
        kit.ask("run.start", name="t")
        pids(kit.file("pid"))
        run = kit.ask("run.stop", run="2")["result"]
        assert (run["status"], run["exit_code"]) == ("cancelled", 143)


# -- a pid that is given away ---------------------------------------------------------------------

# Runs inside its own pid namespace: kills a task with its daemon's back turned, then makes a new
# session under the very same pid, and lets the next owner judge.
_REUSE = """
import json, os, signal, sys, time
sys.path.insert(0, sys.argv[1])
from qinglong_edge.app import state
from qinglong_edge.app.runtime import Parts, Runtime
place = state.place(sys.argv[2], None)
parts = Parts()
runtime = Runtime(place, state.read_config(place, parts.files), parts, daemon=True)
runtime.load()
(active,) = runtime.coordinator.registry
pid = active.target.pid
runtime.close()
os.killpg(pid, signal.SIGKILL)
while os.path.exists(f"/proc/{pid}"):
    time.sleep(0.01)
time.sleep(0.02)
for _ in range(100):
    with open("/proc/sys/kernel/ns_last_pid", "w") as last:
        last.write(str(pid - 1))
    child = os.fork()
    if child == 0:
        os.setsid()
        time.sleep(60)
        os._exit(0)
    if child == pid:
        break
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
while os.getsid(child) != child:
    time.sleep(0.01)
runtime = Runtime(place, state.read_config(place, parts.files), parts, daemon=True)
runtime.recover()
run = runtime.store.runs.get(1)
code = runtime.store.runs.latest_attempt(1).exit_code
runtime.close()
ended = os.waitpid(child, os.WNOHANG)[0]
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
print(json.dumps({"same": child == pid, "status": run.status, "code": code, "hurt": ended != 0}))
"""

# Pid 1 of the namespace: reaps everybody, as an init does, and ends with the first child's end.
_INIT = """
import os, sys
first = os.fork()
if first == 0:
    os.execv(sys.argv[1], sys.argv[1:])
while True:
    pid, status = os.wait()
    if pid == first:
        os._exit(os.waitstatus_to_exitcode(status) & 255)
"""


@pytest.mark.parametrize("stopping", [False, True])
def test_a_pid_that_was_really_given_away_belongs_to_a_stranger(
    patient: Inside, stopping: bool
) -> None:
    kit = patient
    if not os.path.exists("/proc/sys/kernel/ns_last_pid"):
        pytest.skip("this kernel does not let anybody choose the next pid")
    program = kit.command("run")
    script = (
        f'"$@" > "{kit.place}/out" & '
        f'while [ ! -s "{kit.place}/pid" ]; do sleep 0.02; done; kill -9 $!; wait $!; '
        f'exec "{sys.executable}" -c "$REUSE" "{ROOT}" "{kit.state}"'
    )
    kit.ok("start", "t")  # queued; the daemon inside starts it
    if stopping:
        script = script.replace("wait $!;", 'wait $!; "$PYTHON" -c "$INTEND" "$STATE";')
    intend = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1] + '/edge.db'); "
        'c.execute("UPDATE run SET cancel_requested_at_ms = created_at_ms, '
        "cancel_reason = 'user'\"); c.commit(); c.close()"
    )
    done = subprocess.run(
        [*NAMESPACE, sys.executable, "-c", _INIT, "/bin/sh", "-c", script, "sh", *program],
        capture_output=True,
        cwd=ROOT,
        timeout=60,
        env={
            **kit.environment,
            "REUSE": _REUSE,
            "INTEND": intend,
            "PYTHON": sys.executable,
            "STATE": str(kit.state),
        },
    )
    assert done.returncode == 0, done.stderr.decode()
    told = json.loads(done.stdout)
    expected = "cancelled" if stopping else "lost"
    assert told == {"same": True, "status": expected, "code": None, "hurt": False}


# -- a /proc that hides ---------------------------------------------------------------------------

# Asks one inspector, with the rights and the /proc of its caller, about a process's identity.
_INSPECT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from qinglong_edge.core.errors import EdgeError
from qinglong_edge.core.evidence import Target
from qinglong_edge.process.identity import Inspector
from qinglong_edge.system.process import Processes
processes = Processes()
target = Target(handle=sys.argv[2], pid=int(sys.argv[3]), pid_namespace=processes.pid_namespace())
inspector = Inspector(processes)
try:
    members = len(inspector.survivors(target))
except (OSError, EdgeError) as error:
    members = getattr(error, "code", "os")
verdict = inspector.inspect(target)
print(json.dumps([verdict.state, verdict.reason, members]))
"""


def _hidden(*command: str) -> list[str]:
    """The command as nobody, with a /proc that shows nobody's processes only."""
    mount = f'mount -t proc -o hidepid=2 proc /proc && exec {AS_NOBODY} "$@"'
    return ["unshare", "-m", "sh", "-c", mount, "sh", *command]


@pytest.fixture
def session() -> Iterator[subprocess.Popen[bytes]]:
    """A session of root's: a leader and a member, until a line comes in."""
    needs(*_hidden(sys.executable, "-c", f"import os; os.listdir({ROOT!r})"))
    text = "sleep 60 & echo $!; read -r line"
    with subprocess.Popen(
        ["sh", "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        yield process
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _judged(handle: str, pid: int) -> list[object]:
    interpreter = os.path.realpath(sys.executable)
    done = subprocess.run(
        _hidden(interpreter, "-c", _INSPECT, ROOT, handle, str(pid)), capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    told: list[object] = json.loads(done.stdout)
    return told


def test_a_hidden_process_is_unknown_and_its_session_not_empty(
    session: subprocess.Popen[bytes],
) -> None:
    assert session.stdin is not None
    assert session.stdout is not None
    member = int(session.stdout.readline())
    handle = Inspector(Processes()).capture(session.pid, "0" * 32).handle
    state, reason, members = _judged(handle, session.pid)
    assert (state, reason) == ("unknown", "hidden_process")
    assert members != 0, "a session that cannot be seen is not an empty one"
    with measure.subreaper() as taken:
        session.stdin.write(b"\n")
        session.stdin.flush()
        session.wait(WITHIN_S)
    state, _reason, members = _judged(handle, session.pid)
    assert alive(member)
    assert state != "alive"
    assert members != 0, "the leader is gone, its session is not"
    os.kill(member, signal.SIGKILL)
    if taken:
        os.waitpid(member, 0)
    gone(member)
    assert _judged(handle, session.pid) == ["gone", None, 0]


def test_a_runtime_that_sees_its_own_processes_only_loses_nothing() -> None:
    """The whole program as an ordinary user under hidepid=2: adopt, record, stop."""
    needs(*_hidden(sys.executable, "-c", f"import os; os.listdir({ROOT!r})"))
    with tempfile.TemporaryDirectory(prefix="edge-hidden-") as folder:
        place = Path(folder)
        os.chown(place, NOBODY, NOBODY)
        kit = Inside(place)
        kit.prefix = tuple(_hidden())
        kit.ok("init")
        kit.ok("task", "add", "t", "--cwd", "/", "--shell", PATIENT.format(place))
        with kit.daemon() as daemon:
            kit.ask("run.start", name="t")
            (task,) = pids(kit.file("pid"))
            daemon.kill()
        with kit.daemon():
            assert kit.ask("run.show", run="1")["result"]["run"]["hold"] is None
            kit.file("go").touch()
            run = kit.ended(1)
            assert (run["status"], run["exit_code"], run["evidence"]) == ("failed", 7, "receipt")
            gone(task)
            kit.file("go").unlink()
            kit.ask("run.start", name="t")
            task = pids(kit.file("pid"), 2)[-1]
            assert kit.ask("run.stop", run="2")["result"]["exit_code"] == 143
            assert not alive(task)
