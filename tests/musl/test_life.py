"""The main job in a router's userland, from `init` to a log, as a person at its shell does it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from tests.musl.router import Router
from tests.support import until
from tests.tools.musl.tree import CRYPTO

NAME = "每天签到"
WORD = "密码-a=1;b"


def ended(router: Router, number: int) -> Any:
    """The document of a run once it has come to its end."""

    def shown() -> Any:
        found = router.ok("show", str(number))["run"]
        return found if found["finished_at_ms"] else None

    return until(shown, 30, what=f"the end of run {number}")


def test_a_task_with_a_chinese_name_runs_and_its_log_is_read(router: Router) -> None:
    router.ok("init")
    text = 'echo 你好 $(uname -s); sleep 1; [ "$NAME" = 值 ] && exit 3'
    cron = ("--cron", "*/5 * * * *", "--zone", "CST-8", "--env", "NAME=值")
    router.ok("task", "add", NAME, *cron, "--shell", text)
    with router.scheduler() as pid:
        started = router.run("start", NAME, "--wait")
        assert (started.returncode, started.stderr) == (1, "")
        assert router.ok("status")["pid"] == pid
        assert "你好 Linux\n" in router.run("log", "1").stdout
    run = router.ok("show", "1")["run"]
    assert (run["status"], run["exit_code"], run["task"]) == ("failed", 3, NAME)
    assert NAME in router.run("task", "list").stdout
    assert NAME in router.run("runs").stdout


def test_a_run_outlives_a_killed_scheduler_and_its_exit_code_is_found(router: Router) -> None:
    router.ok("init")
    go = router.home / "go"
    text = f"echo begun; until [ -e {router.inside(go)} ]; do sleep 1; done; exit 7"
    router.ok("task", "add", "held", "--shell", text)
    with router.scheduler(killed=True):
        number = router.ok("start", "held")["number"]
    with router.scheduler():
        assert router.ok("show", str(number))["run"]["status"] == "running"
        go.touch()
        run = ended(router, number)
    assert (run["status"], run["exit_code"], run["evidence"]) == ("failed", 7, "receipt")


def test_a_crontab_of_a_router_is_taken_over_and_fires(router: Router) -> None:
    router.ok("init")
    seen = router.home / "seen"
    Path(router.home, "root").write_text(
        f"* * * * * echo fired >>{router.inside(seen)}\n5 4 * * 1 /sbin/reboot\n", encoding="utf-8"
    )
    place = f"{router.inside(router.home)}/root"
    document = router.ok("import", "crontab", place, "--dialect", "busybox")
    assert [each["outcome"] for each in document["imported"]] == ["inserted"] * 2
    with router.scheduler():
        until(lambda: seen.exists() and seen.read_text("utf-8") == "fired\n", 75)


def test_a_secret_reaches_its_task_where_there_is_cryptography(router: Router) -> None:
    router.packages = (CRYPTO,)
    router.ok("init")
    router.ok("secret", "set", "COOKIE", given=WORD)
    text = 'printf %s "$C" | sha256sum | cut -d " " -f 1'
    router.ok("task", "add", "signin", "--secret", "C=COOKIE", "--shell", text)
    with router.scheduler():
        assert router.run("start", "signin", "--wait").returncode == 0
    assert router.run("log", "1").stdout == f"{hashlib.sha256(WORD.encode()).hexdigest()}\n"
    kept = [path.read_bytes() for path in Path(router.home).rglob("*") if path.is_file()]
    assert not [each for each in kept if WORD.encode() in each]


def test_without_cryptography_a_task_with_a_secret_is_refused_and_others_run(
    router: Router,
) -> None:
    router.packages = (CRYPTO,)
    router.ok("init")
    router.ok("secret", "set", "COOKIE", given=WORD)
    router.ok("task", "add", "signin", "--secret", "C=COOKIE", "--shell", "true")
    router.ok("task", "add", "plain", "--shell", "true")
    router.packages = ()
    refused = router.run("secret", "set", "OTHER", given="x")
    assert refused.returncode == 4
    assert "python3-cryptography" in refused.stderr or "cryptography" in refused.stderr
    with router.scheduler():
        assert router.run("start", "signin", "--wait").returncode != 0
        assert router.run("start", "plain", "--wait").returncode == 0
    assert router.ok("show", "1")["run"]["status"] != "succeeded"
