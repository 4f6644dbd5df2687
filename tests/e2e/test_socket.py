"""The control socket: whoever sends whatever, the daemon goes on and nothing is changed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kit import WITHIN_S, Kit, alive, fresh, gone, pids, request
from tests.support import ROOT, until

BIG = 10 * 1_048_576


@pytest.fixture
def served(kit: Kit) -> Iterator[Kit]:
    """A state with one task that waits long, under a daemon that must end well."""
    kit.ok("task", "add", "t", "--shell", f'echo $$ >> "{kit.place}/pid"; exec sleep 60')
    with kit.daemon() as daemon:
        yield kit
        assert kit.ask("status")["result"]["owner"] == "daemon"
        assert daemon.stop() == 0
        assert " bug " not in daemon.said()


def code(answer: Any) -> tuple[str, int]:
    """(stable code, exit status) of an error answer."""
    data = answer["error"]["data"]
    assert set(data) == {"code", "message", "facts", "exit"}
    assert answer["jsonrpc"] == "2.0"
    assert isinstance(answer["error"]["code"], int)
    return data["code"], data["exit"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"", "json_invalid"),
        (b"\x00\xff\xfe garbage", "json_invalid"),
        (b"GET / HTTP/1.1\r", "json_invalid"),
        (b"[]", "request_invalid"),
        (b"[" * 1_000, "json_too_deep"),
        (b'{"a":' * 40 + b"1" + b"}" * 40, "json_too_deep"),
        (b'{"a":1,"a":2}', "json_duplicate_key"),
        (b'{"a":NaN}', "json_number"),
        (b'{"a":1e999}', "json_number"),
        (b'{"a":' + b"9" * 5_000 + b"}", "json_number"),
        (b'{"jsonrpc":"2.0","id":1}', "request_invalid"),
        (b'{"jsonrpc":"1.0","id":1,"method":"status"}', "request_invalid"),
        (b'{"jsonrpc":"2.0","id":[],"method":"status"}', "request_invalid"),
        (b'{"jsonrpc":"2.0","id":1,"method":"status","params":[]}', "request_invalid"),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', "request_invalid"),
        (b'{"jsonrpc":"2.0","id":1,"method":"\\ud800"}', "json_invalid"),
        (b'{"jsonrpc":"2.0","id":1,"method":"rm -rf"}', "method_unknown"),
        (b'{"jsonrpc":"2.0","id":1,"method":"status","params":{"x":1}}', "param_unknown"),
        (b'{"jsonrpc":"2.0","id":1,"method":"run.show"}', "param_missing"),
        (b'{"jsonrpc":"2.0","id":1,"method":"run.show","params":{"run":7}}', "param_invalid"),
        (b'{"jsonrpc":"2.0","id":1,"method":"runs.list","params":{"limit":true}}', "param_invalid"),
        (
            b'{"jsonrpc":"2.0","id":1,"method":"task.set","params":{"name":"t","argv":[1]}}',
            "param_invalid",
        ),
        (
            b'{"jsonrpc":"2.0","id":1,"method":"task.add","params":{"name":"x\\u0000","argv":["x"]}}',
            "name_control",
        ),
        (
            b'{"jsonrpc":"2.0","id":1,"method":"task.add","params":{"name":"x","argv":["a\\u0000"]}}',
            "command_has_nul",
        ),
        (
            (
                b'{"jsonrpc":"2.0","id":1,"method":"run.start","params":{"name":"t","environment":'
                b'{"A":"\\u0000"}}}'
            ),
            "value_has_nul",
        ),
        (
            b'{"jsonrpc":"2.0","id":1,"method":"import.crontab","params":{"data":"*"}}',
            "param_invalid",
        ),
        (
            (
                b'{"jsonrpc":"2.0","id":1,"method":"run.settle","params":{"run":"1","as":"succeeded",'
                b'"reason":"x"}}'
            ),
            "run_unknown",
        ),
    ],
)
def test_a_wrong_request_gets_its_code_and_changes_nothing(
    bad: Kit, line: bytes, said: str
) -> None:
    before = bad.rows()
    found, status = code(bad.send(line + b"\n"))
    assert found == said
    assert status in (2, 3)
    assert bad.rows() == before


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kit]:
    """One daemon for every wrong request."""
    kit = Kit(tmp_path_factory.mktemp("bad"))
    kit.ok("init")
    kit.ok("task", "add", "t", "--", "true")
    with kit.daemon() as daemon:
        yield kit
        assert daemon.stop() == 0
        assert " bug " not in daemon.said()


def test_an_answer_carries_the_requests_id_and_only_it(served: Kit) -> None:
    answer = served.send(
        b'{"jsonrpc":"2.0","id":"x-1","method":"cron.next","params":'
        b'{"expression":"0 3 * * *","zone":"UTC0","after_ms":0,"count":1}}\n'
    )
    assert (answer.pop("jsonrpc"), answer.pop("id")) == ("2.0", "x-1")
    assert set(answer) == {"result"}
    assert answer["result"]["next_at_ms"] == [10_800_000]


def test_the_socket_is_its_users_own(served: Kit) -> None:
    path = served.state / "run" / "control.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_another_user_is_refused_by_the_kernels_word(kit: Kit) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    nobody = 65_534
    with kit.daemon() as daemon, kit.unchanged():
        ours, theirs = socket.socketpair()
        with ours, theirs:
            child = os.fork()
            if child == 0:
                try:
                    os.chdir(kit.state / "run")
                    os.chmod(".", 0o711)
                    os.chmod("control.sock", 0o666)
                    os.setresuid(nobody, nobody, nobody)
                    with socket.socket(socket.AF_UNIX) as sock:
                        sock.connect("control.sock")
                        theirs.sendall(sock.recv(65_536))
                except OSError as error:
                    theirs.sendall(f"{error}\n".encode())
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            said = ours.recv(65_536)
        assert code(json.loads(said)) == ("peer_refused", 3)
        assert daemon.process.poll() is None


def test_a_line_of_ten_megabytes_is_refused_in_bounded_memory(served: Kit) -> None:
    before = served.ask("status")["result"]["rss_bytes"]
    for line in (b"x" * BIG, b'{"jsonrpc":"2.0","id":1,"method":"' + b"m" * BIG + b'"}\n'):
        with served.connect() as sock:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                sock.sendall(line)
            with contextlib.suppress(ConnectionResetError):
                answer = sock.makefile("rb").readline()
                assert not answer or code(json.loads(answer)) == ("request_too_large", 2)
    assert served.ask("status")["result"]["rss_bytes"] - before < 8 * 1_048_576


def test_thousands_of_requests_in_one_breath_are_answered_one_by_one(served: Kit) -> None:
    count = 3_000
    with served.connect() as sock, sock.makefile("rb") as lines:
        sock.sendall(b"\n" * count + request("status"))
        answers = [json.loads(lines.readline()) for _ in range(count + 1)]
    assert {code(each)[0] for each in answers[:-1]} == {"json_invalid"}
    assert answers[-1]["result"]["owner"] == "daemon"


def test_three_hundred_may_not_wait_and_the_257th_is_told_so(served: Kit) -> None:
    run = served.ask("run.start", name="t")["result"]["number"]
    with contextlib.ExitStack() as stack:
        waiting = []
        for _ in range(300):
            sock = stack.enter_context(served.connect())
            sock.sendall(request("run.wait", run=str(run)))
            waiting.append(sock)
        for sock in waiting[256:]:
            answer = json.loads(sock.makefile("rb").readline())
            assert code(answer) == ("busy", 4)
        with served.unchanged():
            assert code(served.ask("run.start", name="t")) == ("busy", 4)
        assert served.ask("status")["result"]["owner"] == "daemon", "others are still served"
        waiting[0].close()  # who goes away makes room
        until(lambda: "error" not in served_wait(served, run), what="room for one more")
        ended = served_stop(served, run)
        assert ended in ("busy", "cancelled")
        for sock in waiting[2:256]:
            sock.close()
        until(lambda: served_stop(served, run) in ("cancelled", "run_ended"))
        answer = json.loads(waiting[1].makefile("rb").readline())
        assert answer["result"]["status"] == "cancelled"
    gone(*pids(served.file("pid")))


def served_wait(kit: Kit, run: int) -> Any:
    """An error at once, or nothing while it waits."""
    with kit.connect() as sock:
        sock.sendall(request("run.wait", run=str(run)))
        sock.settimeout(0.05)
        try:
            return json.loads(sock.recv(65_536))
        except TimeoutError:
            return {}


def served_stop(kit: Kit, run: int) -> str:
    """How a stop was answered."""
    answer = kit.ask("run.stop", run=str(run))
    return str(answer["result"]["status"]) if "result" in answer else code(answer)[0]


def test_clients_that_say_half_or_nothing_or_never_read_hold_nobody_up(served: Kit) -> None:
    with contextlib.ExitStack() as stack:
        for piece in (b"", b'{"jsonrpc":', b"x" * 1_000_000):
            for _ in range(20):
                stack.enter_context(served.connect()).sendall(piece)
        deaf = stack.enter_context(served.connect())
        deaf.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                deaf.send(request("task.show", name="t") * 100)
        assert served.ask("status")["result"]["tasks"] == 1
        half = stack.enter_context(served.connect())
        half.sendall(request("status"))
        half.shutdown(socket.SHUT_WR)
        assert b'"owner":"daemon"' in half.makefile("rb").readline()
    assert served.ask("status")["result"]["tasks"] == 1


def test_a_client_that_goes_away_while_it_waits_changes_nothing(served: Kit) -> None:
    for _ in range(3):
        with served.connect() as sock:
            sock.sendall(request("run.start", name="t") + request("run.wait", run="t"))
            sock.recv(65_536)
    (task,) = pids(served.file("pid"))
    assert alive(task)
    assert served.ask("run.show", run="1")["result"]["run"]["status"] == "running"
    assert served_stop(served, 1) == "cancelled"
    gone(task)


def test_a_daemon_that_somebody_has_stopped_is_told_and_goes_on_when_it_is_woken(kit: Kit) -> None:
    """Ctrl-Z over a scheduler in the foreground: no command waits for it for ever."""
    with kit.daemon() as daemon:
        os.kill(daemon.pid, signal.SIGSTOP)
        error = kit.no("status", status=4, code="daemon_silent")
        assert error["facts"] == {"pid": daemon.pid}
        values = [word for n in range(4) for word in ("--env", f"V{n}={'x' * 60_000}")]
        kit.no("task", "add", "large", *values, "--", "true", status=4, code="daemon_silent")
        os.kill(daemon.pid, signal.SIGCONT)
        assert kit.ok("status")["owner"] == "daemon"


def test_a_command_waits_for_a_daemon_that_only_takes_its_time(kit: Kit) -> None:
    kit.ok("task", "add", "long", "--shell", "sleep 5")
    with kit.daemon():
        assert kit.ok("start", "long", "--wait")["status"] == "succeeded"


def test_the_socket_of_another_state_is_not_taken_for_this_ones(kit: Kit, tmp_path: Path) -> None:
    other = fresh(tmp_path / "other")
    runtime = str(kit.state / "run")
    with kit.daemon():
        before = kit.rows()
        wrong = ("--runtime", runtime, "task", "add", "t", "--", "true")
        other.no(*wrong, status=3, code="state_mismatch")
        assert kit.rows() == before
        kit.ok("--runtime", runtime, "task", "add", "t", "--", "true")


def test_a_command_outlives_no_daemon_that_dies_under_it(kit: Kit) -> None:
    kit.ok("task", "add", "t", "--shell", f'echo $$ >> "{kit.place}/pid"; exec sleep 60')
    with kit.daemon() as daemon:
        command = kit.command("--json", "start", "t", "--wait")
        waiting = subprocess.Popen(command, env=kit.environment, cwd=ROOT, stdout=subprocess.PIPE)
        (task,) = pids(kit.file("pid"))
        daemon.kill()
        out, _ = waiting.communicate(timeout=WITHIN_S)
        assert waiting.returncode == 4
        assert json.loads(out)["error"]["code"] == "daemon_gone"
    assert kit.ok("stop", "t")["status"] == "cancelled"
    gone(task)
