"""Tasks go out as our own JSON, which comes back exactly, or as a crontab."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.app.definitions import DEFAULT_PATH
from qinglong_edge.core import crontab
from qinglong_edge.system import users
from tests.e2e.kit import Kit, fresh


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    """A state with tasks of every kind."""
    made = fresh(tmp_path / "k")
    add = ("task", "add")
    made.ok(
        *add,
        "早",
        "--cron",
        "30 8 * * *",
        "--zone",
        "CST-8",
        "--env",
        "A=b 'c'",
        "--shell",
        "echo 1%2",
    )
    made.ok(
        *add,
        "two",
        "--cron",
        "*/2 * */2 * *",
        "--zone",
        "UTC",
        "--label",
        "x",
        "--",
        "echo",
        "a b",
        "",
    )
    made.ok(
        *(*add, "all", "--cron", "0 0 1 * 0-6", "--every", "5m", "--boot", "--zone", "UTC"),
        *("--misfire", "fire_once", "--overlap", "parallel", "--max-parallel", "3", "--retry", "2"),
        *("--timeout", "30s", "--grace", "1s", "--nice", "5", "--no-log", "--cwd", "/"),
        *("--label", "a", "--label", "b", "--shell", "true # no"),
    )
    made.ok(*add, "lines", "--shell", "echo a\necho b")
    made.ok(*add, "seconds", "--cron", "5 0 9 * * *", "--zone", "UTC", "--shell", "true")
    made.ok("task", "set", "all", "--unset-env", "LANG")
    made.ok("task", "disable", "two")
    return made


def definitions(kit: Kit) -> dict[str, Any]:
    """Everything that a task says, by name."""
    shown = {}
    for each in kit.ok("task", "list")["tasks"]:
        task = kit.ok("task", "show", each["task"])
        for name in ("created_at_ms", "revision"):
            del task[name]
        for trigger in task["triggers"]:
            del trigger["trigger"], trigger["next_at_ms"]
        shown[task["task"]] = task
    return shown


def test_an_export_comes_back_exactly(kit: Kit, tmp_path: Path) -> None:
    file = tmp_path / "tasks.json"
    file.write_text(kit.run("export", "tasks").out, encoding="utf-8")
    assert len(json.loads(file.read_bytes())["tasks"]) == 5
    assert file.read_bytes().count(b"\n") == 7  # a task a line
    other = fresh(tmp_path / "o")
    with other.unchanged():
        planned = other.ok("import", "tasks", str(file), "--dry-run")
    with other.daemon():
        report = other.ok("import", "tasks", str(file))
        assert planned["tasks"] == report["tasks"]
        assert {each["outcome"] for each in report["tasks"]} == {"inserted"}
    assert definitions(other) == definitions(kit)
    assert other.run("export", "tasks").out == file.read_text(encoding="utf-8")
    with other.unchanged():
        again = other.ok("import", "tasks", str(file))
        assert {each["outcome"] for each in again["tasks"]} == {"idempotent"}
    other.ok("task", "set", "lines", "--nice", "1")
    with other.unchanged():
        report = other.ok("import", "tasks", str(file))
    refused = [each for each in report["tasks"] if each["outcome"] == "refused"]
    assert [(each["task"], each["code"]) for each in refused] == [("lines", "task_exists")]


def test_a_crontab_says_what_it_can_and_names_the_rest(kit: Kit) -> None:
    told = kit.run("export", "tasks", "--format", "crontab", "--zone", "UTC").out.splitlines()
    assert told == [
        "CRON_TZ=UTC",
        "# all",
        f"PATH={DEFAULT_PATH}",
        "# not kept: timeout_ms, retry, nice",
        "0 0 * * * cd / || exit 1; true # no",
        "# not kept: every 5m",
        "@reboot cd / || exit 1; true # no",
        "# lines",
        "# not kept: the command does not fit into a line",
        "# seconds",
        "# not kept: cron 5 0 9 * * *",
        "# two",
        "# disabled: */2 * 1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31 * * echo 'a b' ''",
        "# 早",
        "CRON_TZ=CST-8",
        "30 8 * * * export A='b '\\''c'\\'''; echo 1\\%2",
        "CRON_TZ=UTC",
    ]
    told = kit.run(
        *("export", "tasks", "--format", "crontab", "--dialect", "busybox", "--zone", "CST-8")
    ).out.splitlines()
    assert f"30 8 * * * export A='b '\\''c'\\''' PATH={DEFAULT_PATH}; echo 1%2" in told
    assert not [line for line in told if line.startswith(("CRON_TZ", "@"))]
    assert "# not kept: */2 * */2 * * in the zone UTC" in told


def test_an_exported_line_runs_what_the_task_runs(kit: Kit, tmp_path: Path) -> None:
    text = kit.run("export", "tasks", "--format", "crontab", "--zone", "UTC").out
    plan = crontab.parse(text.encode(), dialect="vixie", user_column=False, user="root", zone="UTC")
    (line,) = [each for each in plan.tasks if each.expression == "30 8 * * *"]
    assert line.zone == "CST-8"
    done = subprocess.run(
        ["/bin/sh", "-c", f"{line.command}; echo $A"], capture_output=True, text=True
    )
    assert done.stdout == "1%2\nb 'c'\n"


@pytest.mark.parametrize("dialect", ["vixie", "busybox"])
def test_a_line_finds_the_programs_and_the_place_that_its_task_had(
    tmp_path: Path, dialect: str
) -> None:
    """What cron gives a line by itself is PATH and HOME too, and those are other ones."""
    kit = fresh(tmp_path / "k")
    tools, home = tmp_path / "tools", tmp_path / "home"
    tools.mkdir()
    home.mkdir()
    (tools / "mine").write_text("#!/bin/sh\npwd; echo $HOME\n", encoding="utf-8")
    (tools / "mine").chmod(0o755)
    path = f"{tools}:/usr/bin:/bin"
    lines = f"5 * * * * pwd\nPATH={path}\nHOME={home}\n1 * * * * mine\n"
    kit.ok("import", "crontab", "-", "--zone", "UTC", stdin=lines.encode())
    more = ("--cron", "2 * * * *", "--zone", "UTC", "--env", f"PATH={path}")
    kit.ok("task", "add", "zz", *more, "--cwd", str(home), "--shell", "mine")
    words = ("export", "tasks", "--format", "crontab", "--zone", "UTC", "--dialect", dialect)
    told = kit.run(*words).out
    assert kit.ok(*words)["crontab"] == told.splitlines()
    plan = crontab.parse(told.encode(), dialect=dialect, user_column=False, user="root", zone="UTC")
    said = {}
    for line in plan.tasks:
        own = {"PATH": crontab.DEFAULT_PATHS[dialect], "HOME": users.home()}
        own |= dict(line.environment)
        done = subprocess.run(
            ["/bin/sh", "-c", line.command], cwd=own["HOME"], env=own, capture_output=True
        )
        said[line.expression] = done.stdout.decode().split()
    usual = users.home()
    assert said == {
        "5 * * * *": [usual],
        "1 * * * *": [str(home), str(home)],
        "2 * * * *": [str(home), usual],
    }
    if dialect == "vixie":
        assert "5 * * * * pwd" in told.splitlines()  # nothing is said that holds anyway


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "json_invalid"),
        ("[]", "export_foreign"),
        ('{"kind":"qinglong_edge.tasks","version":2,"tasks":[]}', "export_too_new"),
        ('{"kind":"qinglong_edge.tasks","version":1,"tasks":{}}', "export_foreign"),
        ('{"kind":"qinglong_edge.tasks","version":1,"tasks":[{"task":{}}]}', "export_foreign"),
    ],
)
def test_a_file_that_is_no_export_is_refused(kit: Kit, text: str, code: str) -> None:
    with kit.unchanged():
        kit.no("import", "tasks", "-", status=2, code=code, stdin=text.encode())


def test_a_task_that_is_wrong_is_refused_and_the_rest_comes_in(kit: Kit) -> None:
    good = {"name": "new", "argv": ["true"], "cwd": "/", "triggers": [], "bindings": []}
    wrong = (
        {**good, "name": "w1", "triggers": [{"kind": "cron"}]},
        {**good, "name": "w2", "bindings": [{"name": "A", "kind": "public"}]},
        {**good, "name": "w3", "unknown": 1},
        {**good, "name": "w4", "argv": "true"},
    )
    tasks = [{"task": each, "enabled": True} for each in (*wrong, good)]
    document = {"kind": "qinglong_edge.tasks", "version": 1, "tasks": tasks}
    report = kit.ok("import", "tasks", "-", stdin=json.dumps(document).encode())
    codes = [each.get("code") for each in report["tasks"]]
    assert codes == ["param_invalid", "param_invalid", "param_unknown", "param_invalid", None]
    assert kit.ok("task", "show", "new")["environment"] == []
