"""The plugin by rpcd's own protocol: `list` and `call METHOD`, an object in, an object out."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.cli import main, uci
from tests.e2e.kit import Kit
from tests.luci import sample

PLUGIN = "usr/libexec/rpcd/luci.qinglong-edge"


class Router:
    """A root with the kit installed, whose configuration names a state of the test's."""

    def __init__(self, root: Path, zipapp: str, kit: Kit) -> None:
        self.root, self.kit = root, kit
        command = [sys.executable, "-I", "-S", zipapp, "openwrt", "install", "--root", str(root)]
        subprocess.run(command, check=True, capture_output=True)
        config = root / "etc/config/qinglong-edge"
        text = config.read_text(encoding="utf-8")
        text = re.sub(r"(option state) '.*'", rf"\1 '{kit.state}'", text)
        config.write_text(
            re.sub(r"(option runtime) '.*'", rf"\1 '{kit.state}/run'", text), encoding="utf-8"
        )
        program = root / "usr/bin/qinglong-edge"
        content = program.read_bytes().partition(b"\n")[2]
        program.write_bytes(b"#!" + sys.executable.encode() + b" -IS\n" + content)

    def call(self, method: str, **given: str) -> Any:
        """What rpcd gets, with the session's id that ubus adds."""
        done = subprocess.run(
            [str(self.root / PLUGIN), "call", method],
            input=json.dumps({"ubus_rpc_session": "0" * 32, **given}).encode(),
            capture_output=True,
            env={"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"},  # as procd starts rpcd
        )
        assert done.returncode == 0
        answer = json.loads(done.stdout)
        assert isinstance(answer, dict)
        return answer


@pytest.fixture
def router(tmp_path: Path, zipapp: str) -> Router:
    """A router with an initialised state and no daemon."""
    (tmp_path / "root").mkdir()
    (tmp_path / "k").mkdir()
    kit = Kit(tmp_path / "k")
    kit.ok("init")
    return Router(tmp_path / "root", zipapp, kit)


def test_with_the_scheduler_down_every_call_says_so_at_once(router: Router) -> None:
    listed = subprocess.run([str(router.root / PLUGIN), "list"], capture_output=True, check=True)
    methods = json.loads(listed.stdout)
    assert len(methods) == 9
    for method in methods:
        error = router.call(method)["error"]
        assert error["code"] == "daemon_down"
    assert router.call("reboot")["error"]["code"] == "method_unknown"
    sockets = Path(router.kit.state, "run")
    sockets.mkdir(exist_ok=True)
    with router.kit.daemon() as daemon:
        daemon.kill()  # leaves its socket behind
        assert router.call("overview")["error"]["code"] == "daemon_down"


def test_the_page_sees_and_does_everything_through_the_plugin(router: Router) -> None:
    kit = router.kit
    kit.ok(
        "task",
        "add",
        "早",
        "--cron",
        "30 8 * * *",
        "--zone",
        "CST-8",
        "--shell",
        "printf 'a\\033b\\n'",
    )
    kit.ok("task", "add", "long", "--shell", "echo on; exec sleep 60")
    kit.ok("task", "add", "quiet", "--no-log", "--shell", "true")
    with kit.daemon():
        started = router.call("start", task="早")
        run = str(started["run"])
        kit.ended(run)
        kit.ended(str(router.call("start", task="quiet")["run"]))
        page = router.call("overview")
        assert {each["task"] for each in page["tasks"]} == {"早", "long", "quiet"}
        assert page["tasks"][-1]["next_ms"].isdigit()
        log = router.call("log", run=run, bytes="100")
        assert log["text"] == "a\u241bb\n"
        assert (log["ended"], log["status"], log["total"]) == (True, "succeeded", "4")
        assert router.call("log", run="quiet")["none"] is True
        assert router.call("start", task="nobody")["error"]["code"] == "task_unknown"
        assert router.call("disable", task="早")["enabled"] is False
        assert router.call("enable", task="早")["enabled"] is True
        assert router.call("pause") == {"paused": True}
        assert router.call("overview")["status"]["paused"] is True
        assert router.call("resume") == {"paused": False}
        long = str(router.call("start", task="long")["run"])
        assert router.call("stop", run=long)["status"] == "cancelled"
        assert router.call("stop", run=long)["error"]["code"] == "run_ended"
        filtered = router.call("overview", task="long", status="cancelled")["runs"]
        assert [each["run"] for each in filtered] == [long]
        assert router.call("overview", after="x")["error"]["code"] == "param_invalid"
        shapes(page, sample.overview())
        shapes(log, sample.LOG)


def test_an_answer_takes_less_than_a_second(router: Router) -> None:
    """The best of some: another load on the machine can only make it slower."""
    with router.kit.daemon():
        assert any(timed(router) < 1 for _ in range(30))
    assert any(timed(router) < 1 for _ in range(30))


def timed(router: Router) -> float:
    """Seconds that the page's own call takes."""
    begun = time.monotonic()
    router.call("overview")
    return time.monotonic() - begun


def shapes(real: Any, drawn: Any) -> None:
    """The page's tests draw the same keys, and no whole number travels as one."""
    assert type(real) is not int
    if isinstance(real, dict) and isinstance(drawn, dict):
        assert set(real) == set(drawn)
        for name in real:
            shapes(real[name], drawn[name])
    elif isinstance(real, list) and real and isinstance(drawn, list) and drawn:
        shapes(real[0], drawn[0])


def test_many_tasks_and_runs_come_in_pages(router: Router) -> None:
    kit = router.kit
    with kit.daemon():
        for number in range(105):
            told = kit.ask("task.add", name=f"t{number:03}", shell="true", log=False)
            assert "result" in told
        for _ in range(30):
            kit.ended(kit.ask("run.start", name="t000")["result"]["number"])
        page = router.call("overview")
        assert (len(page["tasks"]), page["tasks_next"]) == (100, "t099")
        rest = router.call("tasks", after=page["tasks_next"])
        assert ([each["task"] for each in rest["tasks"]], rest["tasks_next"]) == (
            [f"t{number:03}" for number in range(100, 105)],
            None,
        )
        assert len(page["runs"]) == 25
        older = router.call("overview", after=page["runs_next"])
        assert len(older["runs"]) == 5


def test_the_commands_of_a_router_find_the_scheduler_of_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config"
    file.write_text(
        "config qinglong-edge 'main'\n\toption state \"/mnt/usb/q\"\n  option runtime /var/run/q \n"
        "option broken 'x\n",
        encoding="utf-8",
    )
    assert uci.options(str(file)) == {"state": "/mnt/usb/q", "runtime": "/var/run/q"}
    assert uci.options(str(tmp_path / "none")) == {}
    monkeypatch.setenv("QINGLONG_EDGE_CONFIG", str(file))
    assert main.settled(None, None) == ("/mnt/usb/q", "/var/run/q")
    assert main.settled("/mnt/usb/q", None) == ("/mnt/usb/q", "/var/run/q")
    assert main.settled("/elsewhere", None) == ("/elsewhere", None)
    assert main.settled(None, "/r") == ("/srv/qinglong-edge", "/r")
    monkeypatch.setenv("QINGLONG_EDGE_STATE", "/elsewhere")
    assert main.settled(None, None) == ("/elsewhere", None)
