"""Every command answers as the interface says: its keys, its text, with and without a daemon."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from qinglong_edge.app import state, troubles
from qinglong_edge.cli.main import main
from qinglong_edge.system.files import Files
from tests.e2e.kit import ENDED, PROGRAM, Kit, request
from tests.support import ROOT, until

RUN_KEYS = {
    *("run", "number", "task", "revision", "status", "trigger", "scheduled_for_ms"),
    *("created_at_ms", "started_at_ms", "finished_at_ms", "duration_ms", "exit_code", "signal"),
    *("error_code", "attempts", "evidence", "log_bytes", "log_truncated"),
}
TASK_KEYS = {"task", "revision", "enabled", "triggers", "last_run", "active"}
TRIGGER_KEYS = {"trigger", "kind", "expression", "zone", "next_at_ms"}
STATUS_KEYS = {
    *("owner", "pid", "profile", "tasks", "active", "next", "clock", "storage", "rss_bytes"),
    "degraded",
}


def test_version_tells_program_python_sqlite_and_digest(bare: Kit) -> None:
    assert set(bare.ok("--version")) == {"version", "python", "sqlite", "digest"}
    told = bare.run("--version")
    assert told.status == 0
    assert told.out.startswith("qinglong-edge ")
    assert told.out.count("\n") == 1
    assert "SQLite" in told.out
    assert "checkout" in told.out


def test_init_makes_the_state_once_and_says_so(bare: Kit) -> None:
    state = str(bare.state)
    assert bare.ok("init") == {"state": state, "profile": "edge", "created": True}
    assert bare.ok("init") == {"state": state, "profile": "edge", "created": False}
    bare.no("init", "--profile", "standalone", status=3, code="profile_mismatch")
    assert bare.state.stat().st_mode & 0o777 == 0o700


def test_json_stands_before_or_after_the_command(kit: Kit) -> None:
    for words in (("--json", "task", "list"), ("task", "list", "--json")):
        told = kit.run(*words)
        assert json.loads(told.out) == {"tasks": []}
    told = kit.run("task", "show", "x", "--json")
    assert (told.status, json.loads(told.out)["error"]["code"]) == (3, "task_unknown")
    assert kit.run("run", "--json", "--bogus").out.startswith('{"error": {"code": "usage"')
    told = kit.run("task", "add", "x", "--cwd", "relative", "--", "echo", "--json")
    assert told.out == ""
    assert "path_invalid" in told.err


def test_the_directories_stand_before_or_after_the_command(kit: Kit) -> None:
    """People put an option where they think of it; a value after its name is never a command."""
    kit.ok("task", "add", "t", "--", "true")
    away = [*PROGRAM, "task", "list", "--runtime", str(kit.file("r")), "--json"]
    for words in (("--state", str(kit.state)), (f"--state={kit.state}",)):
        done = subprocess.run(
            [*away, *words], env=kit.environment, cwd=ROOT, stdout=subprocess.PIPE, check=True
        )
        assert [each["task"] for each in json.loads(done.stdout)["tasks"]] == ["t"]
    told = kit.run("task", "list", "--state")
    assert (told.status, "--state" in told.err) == (2, True)


def test_the_state_directory_is_named_by_the_environment_too(kit: Kit) -> None:
    command = [*PROGRAM, "--json", "task", "list"]
    environment = {**kit.environment, "QINGLONG_EDGE_STATE": str(kit.state)}
    done = subprocess.run(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    assert json.loads(done.stdout) == {"tasks": []}


def test_a_task_takes_every_flag_and_shows_it_again(kit: Kit) -> None:
    added = kit.ok(
        *("task", "add", "full", "--cron", "0 3 * * *", "--cron", "@weekly", "--every", "90m"),
        *("--boot", "--zone", "CST-8", "--misfire", "fire_once", "--overlap", "parallel"),
        *("--max-parallel", "3", "--timeout", "30s", "--grace", "7s", "--retry", "2"),
        *("--retry-on", "lost,failed", "--backoff", "10s", "--repeatable", "--env", "A=1"),
        *("--env", "B=x=y", "--cwd", "/tmp", "--nice", "5", "--no-log"),
        *("--", "/bin/echo", "a b", ""),
    )
    assert set(added) == {"task", "revision", "context_ref", "triggers"}
    assert added["task"] == "full"
    assert added["revision"] == 1
    assert added["context_ref"].startswith("localctx:sha256:")
    kinds = [(each["kind"], each["expression"], each["zone"]) for each in added["triggers"]]
    assert kinds == [
        ("cron", "0 3 * * *", "CST-8"),
        ("cron", "0 0 * * 0", "CST-8"),
        ("every", "1h30m", None),
        ("boot", None, None),
    ]
    assert all(set(each) >= TRIGGER_KEYS for each in added["triggers"])
    shown = kit.ok("task", "show", "full")
    assert (
        shown.items()
        >= {
            "argv": ["/bin/echo", "a b", ""],
            "shell": False,
            "cwd": "/tmp",
            "nice": 5,
            "timeout_ms": 30_000,
            "grace_ms": 7_000,
            "overlap": "parallel",
            "parallel_max": 3,
            "retry": 2,
            "retry_on": ["lost", "failed"],
            "backoff_ms": 10_000,
            "repeatable": True,
            "log": False,
        }.items()
    )
    variables = {each["name"]: each["value"] for each in shown["environment"]}
    assert variables["A"] == "1"
    assert variables["B"] == "x=y"
    assert {"PATH", "HOME", "LANG", "SHELL"} < set(variables)
    assert {each["kind"] for each in shown["environment"]} == {"public"}
    assert shown["context_ref"] == added["context_ref"]


def test_task_set_changes_only_what_is_named(kit: Kit) -> None:
    kit.ok(
        *("task", "add", "t", "--cron", "0 3 * * *", "--zone", "CST-8", "--every", "5m"),
        *("--timeout", "30s", "--env", "A=1", "--env", "B=2", "--no-log", "--shell", "echo one"),
    )

    def shown() -> dict[str, Any]:
        document: dict[str, Any] = kit.ok("task", "show", "t")
        for each in document["triggers"]:
            del each["next_at_ms"], each["trigger"]
        return document

    first = shown()

    def changed(*flags: str) -> dict[str, Any]:
        kit.ok("task", "set", "t", *flags)
        after = shown()
        named = {name for name in first if after[name] != first[name]}
        return {name: after[name] for name in named - {"revision", "context_ref"}}

    assert changed() == {}
    assert kit.ok("task", "show", "t")["revision"] == 1, "nothing named, nothing appended"
    assert changed("--nice", "3") == {"nice": 3}
    assert changed("--nice", "0", "--no-timeout") == {"timeout_ms": None}
    assert changed("--timeout", "30s", "--log") == {"log": True}
    variables = changed("--no-log", "--unset-env", "A", "--env", "C=3")["environment"]
    assert {"B", "C"} < {each["name"] for each in variables}
    assert len(variables) == 6
    triggers = changed("--unset-env", "C", "--env", "A=1", "--no-every")["triggers"]
    assert [each["expression"] for each in triggers] == ["0 3 * * *"]
    triggers = changed("--every", "5m", "--zone", "UTC0")["triggers"]
    assert [each["zone"] for each in triggers] == ["UTC0", None]
    kit.ok("task", "set", "t", "--shell", "echo two")
    assert kit.ok("task", "show", "t")["argv"] == ["/bin/sh", "-c", "echo two"]


def test_every_task_moves_to_another_zone_at_once(kit: Kit) -> None:
    for name in ("a", "b"):
        kit.ok("task", "add", name, "--cron", "0 3 * * *", "--zone", "UTC0", "--", "true")
    kit.ok("task", "add", "manual", "--", "true")
    moved = kit.ok("task", "set", "--all", "--zone", "CST-8")["tasks"]
    assert [each["task"] for each in moved] == ["a", "b", "manual"]
    assert [each["revision"] for each in moved] == [2, 2, 1]
    assert {each["zone"] for task in moved for each in task["triggers"]} == {"CST-8"}
    kit.no("task", "set", "--all", status=2, code="usage")
    kit.no("task", "set", "a", "--all", "--zone", "UTC0", status=2, code="usage")


def test_a_table_stays_one_however_many_tasks_bind_what_it_tells_of(kit: Kit) -> None:
    kit.ok("env", "set", "N", "--public", stdin=b"1")
    kit.ok("secret", "set", "S", stdin=b"1")
    kit.ok("task", "add", "t00", "--env-set", "N", "--secret", "A=S", "--", "true")
    document = json.loads(kit.run("export", "tasks").out)
    (first,) = document["tasks"]
    document["tasks"] = [
        {**first, "task": {**first["task"], "name": f"t{number:02}"}} for number in range(40)
    ]
    kit.ok("import", "tasks", "-", stdin=json.dumps(document).encode())
    for words in (("env", "list"), ("secret", "list")):
        told = kit.run(*words).out
        assert "t00, t01, t02 and 37 more\n" in told
        assert max(map(len, told.splitlines())) < 120


def test_a_new_revision_needs_replace(kit: Kit) -> None:
    kit.ok("task", "add", "t", "--env", "A=1", "--", "true")
    with kit.unchanged():
        kit.no("task", "add", "t", "--", "false", status=3, code="task_exists")
    assert kit.ok("task", "add", "t", "--replace", "--", "false")["revision"] == 2
    shown = kit.ok("task", "show", "t")
    assert shown["argv"] == ["false"]
    assert "A" not in {each["name"] for each in shown["environment"]}, "a whole new definition"


def test_a_renamed_task_keeps_its_history(kit: Kit) -> None:
    kit.ok("task", "add", "old", "--shell", "echo kept")
    run = kit.ok("start", "old", "--wait")
    assert kit.ok("task", "rename", "old", "new")["task"] == "new"
    assert kit.ok("runs", "--task", "new")["runs"][0]["run"] == run["run"]
    assert kit.ok("log", "new")["text"] == "kept\n"
    kit.no("task", "show", "old", status=3, code="task_unknown")
    kit.ok("task", "add", "old", "--", "true")
    kit.no("task", "rename", "old", "new", status=3, code="task_exists")


def test_disable_enable_and_remove(kit: Kit) -> None:
    kit.ok("task", "add", "t", "--every", "1h", "--shell", "echo hi")
    off = kit.ok("task", "disable", "t")
    assert set(off) >= TASK_KEYS
    assert not off["enabled"]
    assert off["triggers"][0]["next_at_ms"] is None
    assert kit.ok("start", "t", "--wait")["status"] == "succeeded", "a disabled task too"
    assert kit.ok("task", "enable", "t")["enabled"]
    assert kit.ok("task", "remove", "t") == {"task": "t", "removed": True}
    assert kit.ok("task", "list") == {"tasks": []}
    assert kit.ok("runs")["runs"][0]["task"] == "t", "its history stays"
    assert kit.ok("log", "1")["text"] == "hi\n"
    kit.no("task", "remove", "t", status=3, code="task_unknown")


@pytest.mark.parametrize("with_daemon", [False, True])
def test_the_same_answers_with_and_without_a_daemon(kit: Kit, with_daemon: bool) -> None:
    if not with_daemon:
        every_command(kit)
        return
    with kit.daemon() as daemon:
        every_command(kit)
        status = kit.ok("status")
        assert (status["owner"], status["pid"]) == ("daemon", daemon.pid)
        assert daemon.stop() == 0
    assert daemon.said().splitlines()[-1].endswith(" stopped")


def every_command(kit: Kit) -> None:
    kit.ok("task", "add", "t", "--every", "1h", "--shell", "echo out")
    kit.ok("task", "add", "other", "--", "false")
    run = kit.ok("start", "t", "--wait")
    assert set(run) >= RUN_KEYS
    assert (
        run.items()
        >= {
            "number": 1,
            "task": "t",
            "revision": 1,
            "status": "succeeded",
            "trigger": "manual",
            "exit_code": 0,
            "signal": None,
            "error_code": None,
            "attempts": 1,
            "evidence": "receipt",
            "log_bytes": 4,
            "log_truncated": False,
        }.items()
    )
    status, failed = kit("start", "other", "--wait")
    assert (status, failed["status"], failed["exit_code"]) == (1, "failed", 1)
    assert failed["error_code"] == "EXECUTION_FAILED"
    shown = kit.ok("show", run["run"])
    assert shown["run"] == kit.ok("show", "1")["run"] == kit.ok("show", "t")["run"]
    assert set(shown) == {"run", "attempts", "events"}
    assert [each["sequence"] for each in shown["events"]] == list(range(1, 9))
    assert all(
        set(each) == {"sequence", "type", "at_ms", "actor", "payload"} for each in shown["events"]
    )
    assert shown["attempts"][0]["attempt"] == 1
    log = kit.ok("log", "t")
    assert (
        log.items()
        >= {"offset": 0, "end": 4, "total": 4, "truncated": False, "text": "out\n"}.items()
    )
    listed = kit.ok("task", "list")["tasks"]
    assert [each["task"] for each in listed] == ["other", "t"]
    assert all(set(each) >= TASK_KEYS for each in listed)
    assert listed[1]["last_run"] == {"number": 1, "status": "succeeded"}
    assert set(kit.ok("status")) >= STATUS_KEYS
    assert kit.ok("status")["tasks"] == 2
    assert kit.ok("pause") == {"paused": True}
    assert kit.ok("resume") == {"paused": False}
    assert kit.ok("clock", "trust")["clock"]["trusted"] is True
    page = kit.ok("runs", "--limit", "1")
    assert page["next"] == 2
    assert page["runs"][0]["number"] == 2
    assert kit.ok("runs", "--limit", "1", "--after", "2")["runs"][0]["number"] == 1
    assert [each["number"] for each in kit.ok("runs", "--status", "failed")["runs"]] == [2]
    assert [each["number"] for each in kit.ok("runs", "--task", "t")["runs"]] == [1]
    kit.no("stop", "1", status=3, code="run_ended")
    kit.no("settle", "1", "--as", "lost", "--reason", "x", status=3, code="run_not_held")
    kit.no("show", "99", status=3, code="run_unknown")
    kit.no("show", "01a22862-b61f-7207-8a9b-7c1921a73fe4", status=3, code="run_unknown")
    kit.no("show", "x" * 36, status=3, code="run_unknown")
    kit.no("log", "t", "--attempt", "2", status=3, code="attempt_unknown")


def test_runs_page_from_newest_to_oldest(kit: Kit) -> None:
    kit.ok("task", "add", "t", "--overlap", "queue", "--", "true")
    for number in range(1, 6):
        assert kit.ok("start", "t")["number"] == number
    seen: list[int] = []
    after: list[str] = []
    while True:
        page = kit.ok("runs", "--limit", "2", *after)
        seen += [each["number"] for each in page["runs"]]
        if page["next"] is None:
            break
        after = ["--after", str(page["next"])]
    assert seen == [5, 4, 3, 2, 1]
    assert {each["status"] for each in kit.ok("runs")["runs"]} == {"queued"}
    assert kit.ok("runs", "--status", "running") == {"runs": [], "next": None}


def test_text_is_aligned_and_has_local_times_with_offset(kit: Kit) -> None:
    kit.ok("task", "add", "备份", "--cron", "0 3 * * *", "--zone", "CST-8", "--shell", "exit 3")
    assert kit.run("start", "备份", "--wait").status == 1
    environment = {**kit.environment, "TZ": "CST-8"}
    listed = kit.run("task", "list", environment=environment).out.splitlines()
    assert listed[0].split() == ["TASK", "ON", "WHEN", "NEXT", "LAST", "RUN"]
    assert listed[1].startswith("备份  yes  0 3 * * * CST-8  ")
    assert "+0800" in listed[1]
    assert listed[0].index("ON") == listed[1].index("yes") + 2, "wide letters take two columns"
    table = kit.run("runs").out.splitlines()
    assert table[1].split()[:4] == ["1", "备份", "failed", "manual"]
    assert "+0000" in table[1]
    told = kit.run("show", "1").out
    assert "exit code  3" in told
    assert "run.failed" in told
    for words in (("status",), ("task", "show", "备份"), ("cron", "next", "@daily")):
        told = kit.run(*words).out
        assert told
        assert "\x1b" not in told
    missing = kit.run("task", "show", "nothing")
    assert missing.out == ""
    assert missing.err == "qinglong-edge: task_unknown: There is no task of that name.\n"


def test_status_says_that_no_daemon_runs(kit: Kit) -> None:
    def lines() -> dict[str, str]:
        told = kit.run("status").out.splitlines()
        return {line.split()[0]: line.partition(" ")[2].strip() for line in told if line}

    found = lines()
    assert (found["owner"], found["memory"]) == ("none: no daemon runs", "-")
    start = f"qinglong-edge --state {kit.state} run"
    assert found["to"] == f"start   {start}"
    with kit.daemon() as daemon:
        found = lines()
        assert found["owner"] == f"daemon {daemon.pid}"
        assert found["memory"].endswith(" KiB")
        assert "to" not in found


def test_status_says_in_words_what_is_amiss_and_what_to_do_and_json_keeps_the_codes(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    kit.ok("task", "add", "t", "--shell", "true")
    monkeypatch.setattr(state, "VOLATILE", frozenset({Files().filesystem(str(kit.state))}))
    options = ["--state", str(kit.state)]
    assert main([*options, "status"]) == 0
    told = capfd.readouterr().out
    (words,) = troubles.told(["state_volatile"])
    assert words.startswith("state_volatile: The state is in memory")
    assert "Put the state on flash" in words
    *_fields, last = told.split("\n\n")
    assert " ".join(last.split()).endswith(words)
    assert all(len(line) <= 80 for line in told.splitlines() if str(kit.state) not in line)
    assert main([*options, "--json", "status"]) == 0
    assert json.loads(capfd.readouterr().out)["degraded"] == ["state_volatile"]


def test_a_page_of_runs_says_that_there_are_older_ones(kit: Kit) -> None:
    kit.ok("task", "add", "t", "--overlap", "queue", "--", "true")
    for _ in range(3):
        kit.ok("start", "t")
    assert kit.run("runs", "--limit", "2").out.endswith("\nolder ones: --after 2\n")
    assert "older" not in kit.run("runs", "--limit", "2", "--after", "2").out


def test_cron_next_answers_iso_and_milliseconds_without_a_state(bare: Kit) -> None:
    told = bare.ok(
        *("cron", "next", "30 2 * * *", "--zone", "CST-8", "--count", "2"),
        *("--after", "2026-01-01T00:00:00Z"),
    )
    assert told == {
        "expression": "30 2 * * *",
        "zone": "CST-8",
        "next_at_ms": [1_767_292_200_000, 1_767_378_600_000],
        "shifted_at_ms": [],
        "either_day": False,
    }
    same = bare.ok(
        *("cron", "next", "30 2 * * *", "--zone", "CST-8", "--count", "2"),
        *("--after", "1767225600000"),
    )
    assert same == told
    text = bare.run("cron", "next", "30 2 * * *", "--zone", "CST-8", "--after", "1767225600000")
    assert text.out.splitlines()[0] == "2026-01-02 02:30:00+0800"
    assert not bare.state.exists()


def test_cron_next_tells_of_a_time_that_the_clock_skips(bare: Kit) -> None:
    asked = (
        *("cron", "next", "30 2 * * *", "--zone", "CET-1CEST,M3.5.0,M10.5.0/3"),
        *("--after", "2026-03-28T12:00:00Z", "--count", "2"),
    )
    skipped_ms = 1_774_747_800_000
    told = bare.ok(*asked)
    assert told["next_at_ms"] == [skipped_ms, skipped_ms + 82_800_000]
    assert told["shifted_at_ms"] == [skipped_ms]
    assert bare.run(*asked).out.splitlines() == [
        "2026-03-29 03:30:00+0200  (the clock skips its own time)",
        "2026-03-30 02:30:00+0200",
    ]


@pytest.mark.parametrize(
    ("expression", "either"),
    [("0 12 1-7 * Mon", True), ("0 12 1-7 * *", False), ("0 12 ? * Mon", False)],
)
def test_cron_next_tells_that_one_of_two_day_fields_suffices(
    bare: Kit, expression: str, either: bool
) -> None:
    assert bare.ok("cron", "next", expression, "--zone", "UTC")["either_day"] is either
    told = bare.run("cron", "next", expression, "--zone", "UTC").out.splitlines()
    assert len(told) == 5 + either
    assert told[-1].startswith("note: day of month OR day of week") is either


def test_selftest_runs_the_products_own_vectors(bare: Kit) -> None:
    told = bare.ok("selftest")
    assert told["failed"] == 0
    assert told["passed"] == len(told["vectors"]) > 0
    assert all(set(each) >= {"name", "ok"} for each in told["vectors"])
    assert bare.run("selftest").out.splitlines()[-1].endswith(" passed, 0 failed")


def test_more_tasks_than_a_page_are_all_listed(kit: Kit) -> None:
    with kit.daemon():
        with kit.connect() as sock, sock.makefile("rb") as lines:
            for number in range(501):
                sock.sendall(request("task.add", name=f"t{number:03d}", argv=["true"]))
                assert b'"revision":1' in lines.readline()
        assert kit.ask("task.list")["result"]["next"] == "t499"
        assert len(kit.ok("task", "list")["tasks"]) == 501


def test_pause_holds_triggers_back_over_a_restart(kit: Kit) -> None:
    kit.ok("pause")
    kit.ok("task", "add", "tick", "--every", "1s", "--", "true")
    with kit.daemon() as daemon:
        assert kit.ok("status")["paused"] is True
        due_ms = kit.ask("task.list")["result"]["tasks"][0]["triggers"][0]["next_at_ms"]
        until(lambda: kit.ask("status")["result"]["clock"]["wall_ms"] > due_ms + 300)
        assert kit.ask("runs.list")["result"]["runs"] == []
        assert daemon.stop() == 0
    with kit.daemon():
        assert kit.ok("resume") == {"paused": False}
        runs = until(lambda: kit.ask("runs.list", status="succeeded")["result"]["runs"])
        assert runs[0]["trigger"] == "every"
        assert runs[0]["status"] in ENDED
    with kit.daemon():
        assert kit.ok("status")["paused"] is False


def test_the_operators_word_on_the_clock_is_kept_without_a_daemon(kit: Kit) -> None:
    far = "4000000000000"
    kit.sql("INSERT INTO setting (name, value) VALUES ('clock_high_ms', ?)", far)
    assert "clock_stepped_back" in kit.ok("status")["degraded"]
    assert kit.ok("clock", "trust")["clock"]["trusted"] is True
    assert kit.ok("status")["clock"]["trusted"] is True
