"""`notify` from the command line to the peer: bad news arrives, keys show nowhere, no run waits."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kit import PROGRAM, Kit, alive, fresh
from tests.notify import peers
from tests.support import ROOT, until

KEY = "sesame-topic"


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    """An initialised state with a task that ends as its file says."""
    made = fresh(tmp_path / "k")
    code = made.file("code")
    code.write_text("3", encoding="utf-8")
    made.ok("task", "add", "签到", "--shell", f"exit $(cat {code})")
    made.ok("task", "add", "other", "--shell", "exit 1")
    return made


def add(kit: Kit, peer: peers.Peer, *more: str, name: str = "ntfy", key: str = KEY) -> Any:
    """A channel that leads to the peer."""
    return kit.ok("notify", "add", name, "--url", peer.url, *more, stdin=key.encode())


def ends(kit: Kit, task: str) -> Any:
    """A run of the task, over."""
    return kit.ended(kit.ok("start", task)["number"])


def test_bad_news_and_good_arrive(kit: Kit) -> None:
    with peers.web() as peer, kit.daemon() as daemon:
        add(kit, peer, "--task", "签到")
        ends(kit, "other")
        run = ends(kit, "签到")
        (seen,) = until(lambda: peer.seen)
        told = json.loads(seen.body)
        assert told["topic"] == KEY
        assert told["title"] == f"[{os.uname().nodename}] 签到 failed"
        assert (
            f"签到 failed (run {run['number']}, exit code 3, EXECUTION_FAILED)" in told["message"]
        )
        until(lambda: kit.ok("notify", "list")["channels"][0]["last"])
        (channel,) = kit.ok("notify", "list")["channels"]
        assert channel["tasks"] == ["签到"]
        assert channel["last"]["code"] is None
        assert "notified channel=ntfy" in daemon.said()
        for path in ("environ", "cmdline"):
            assert KEY.encode() not in Path(f"/proc/{daemon.pid}/{path}").read_bytes()
    kit.file("code").write_text("0", encoding="utf-8")
    with peers.web() as peer, kit.daemon():
        add(kit, peer, "--replace")
        assert ends(kit, "签到")["status"] == "succeeded"
        (seen,) = until(lambda: peer.seen)
        assert json.loads(seen.body)["title"].endswith("签到 works again")
    texts = kit.run("audit").out + kit.run("notify", "list").out + kit.run("secret", "list").out
    assert KEY not in texts
    files = [path for path in kit.state.rglob("*") if path.is_file()]
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


def test_a_run_that_was_lost_is_told_by_the_next_daemon(kit: Kit) -> None:
    kit.ok("task", "add", "long", "--shell", "echo $$; exec sleep 60")
    with peers.web() as peer:
        add(kit, peer)
        with kit.daemon() as daemon:
            number = kit.ok("start", "long")["number"]
            until(lambda: kit.ok("log", str(number))["text"].strip())
            pid = int(kit.ok("log", str(number))["text"])
            wrapper = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            daemon.kill()
        for each in (wrapper, pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, 9)
        with kit.daemon():
            (seen,) = until(lambda: peer.seen)
        assert json.loads(seen.body)["title"].endswith("long was lost")


def test_a_dead_peer_delays_no_run(kit: Kit) -> None:
    """Nor does it keep a stopping daemon, or leave a child behind."""
    with peers.dead() as place:
        kit.ok("notify", "add", "webhook", stdin=f"http://{place}/".encode())
        with kit.daemon() as daemon:
            assert ends(kit, "签到")["status"] == "failed"
            children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children")
            until(lambda: children.read_text().split())
            runs = [ends(kit, "other") for _ in range(3)]
            assert max(each["duration_ms"] for each in runs) < 5_000
            until(lambda: len(children.read_text().split()) == 1)  # it still waits for the peer
            (child,) = children.read_text().split()
            assert daemon.stop() == 0
            until(lambda: not alive(int(child)))


def test_a_peer_that_refuses_shows_in_status(kit: Kit) -> None:
    with peers.web(status=500) as peer, kit.daemon():
        add(kit, peer)
        ends(kit, "签到")
        until(lambda: "notify_failed:ntfy" in kit.ok("status")["degraded"])


def test_a_channel_is_tried_from_the_command_itself(kit: Kit) -> None:
    with peers.web() as peer:
        add(kit, peer)
        assert kit.ok("notify", "test", "ntfy") == {"channel": "ntfy", "sent": True}
        assert "nothing has happened" in json.loads(peer.seen[0].body)["message"]
    kit.no("notify", "test", "ntfy", status=4, code="notify_unreachable")
    with peers.mail() as peer:
        wanted = ("--sender", "a@x.org", "--to", "b@x.org")
        add(kit, peer, *wanted, name="smtp", key="")
        kit.ok("notify", "test", "smtp")
    assert b"To: b@x.org" in peer.mails[0][1]


def test_a_channel_goes_with_its_key(kit: Kit) -> None:
    with peers.web() as peer:
        add(kit, peer, "--kind", "bark", "--quiet", "22:00-07:00", name="home", key="x")
    assert [each["secret"] for each in kit.ok("secret", "list")["secrets"]] == ["notify:home"]
    kit.no("secret", "remove", "notify:home", status=3, code="secret_is_key")
    kit.ok("notify", "remove", "home")
    assert kit.ok("secret", "list") == {"secrets": []}
    assert kit.ok("notify", "list") == {"channels": []}
    kit.no("notify", "remove", "home", status=3, code="channel_unknown")


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (("home",), 2, "usage"),
        (("home", "--kind", "pigeon"), 2, "usage"),
        (("ntfy", "sesame"), 2, "secret_on_command_line"),
        (("a b", "--kind", "ntfy"), 2, "notify_invalid"),
        (("ntfy", "--url", "x"), 2, "notify_address"),
        (("ntfy", "--quiet", "late"), 2, "notify_invalid"),
        (("ntfy", "--on", "luck"), 2, "notify_invalid"),
        (("ntfy", "--task", "nobody"), 3, "task_unknown"),
        (("ntfy", "--zone", "Mars/Olympus"), 2, "zone_unknown"),
        (("bark",), 3, "channel_exists"),
        (("telegram",), 2, "notify_key"),
    ],
)
def test_what_cannot_be_a_channel_is_refused(
    kit: Kit, words: tuple[str, ...], status: int, code: str
) -> None:
    kit.ok("notify", "add", "bark", stdin=b"key")
    with kit.unchanged():
        error = kit.no("notify", "add", *words, status=status, code=code, stdin=b"word")
    assert "sesame" not in json.dumps(error)


def test_a_daemon_without_channels_loads_nothing_for_them(kit: Kit) -> None:
    code = (
        "import sys\n"
        "from qinglong_edge.app import daemon\n"
        "print([n for n in sys.modules if n.endswith(('notifier', 'notice', 'channel', 'envset'))])"
    )
    done = subprocess.run(
        [*PROGRAM[:2], "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
