"""Tasks from a crontab, line by line: nothing is changed silently, and twice is once."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from qinglong_edge.cli import commands
from qinglong_edge.cli.context import Context
from tests.e2e.kit import Kit

CRONTAB = """\
# a comment
SHELL=/bin/sh
PATH=/usr/bin:/bin
GREETING="good morning"
MAILTO=admin
*/5 * * * * echo "$GREETING" > {0}/out; pwd >> {0}/out
@reboot echo booted
30 2 * * 1 date +\\%F
0 4 * * * cat%input
61 * * * * broken
CRON_TZ=UTC
15 6 * * * echo utc
"""


def crontab(kit: Kit) -> str:
    """The path of the test's crontab."""
    path = kit.file("crontab")
    path.write_text(CRONTAB.format(kit.place), encoding="utf-8")
    return str(path)


def test_an_import_says_what_became_of_every_line(kit: Kit) -> None:
    told = kit.ok("import", "crontab", crontab(kit), "--zone", "CST-8")
    assert {"imported", "refused", "warnings"} <= set(told)
    taken = [(each["line"], each["kind"], each["zone"]) for each in told["imported"]]
    assert taken == [
        (6, "cron", "CST-8"),
        (7, "boot", None),
        (8, "cron", "CST-8"),
        (12, "cron", "UTC"),
    ]
    assert [each["line"] for each in told["refused"]] == [9, 10]
    assert all(set(each) == {"line", "code", "message"} for each in told["refused"])
    warned = {each["line"]: each["message"] for each in told["warnings"]}
    assert "not mailed" in warned[5]
    assert "cron daemon still runs these lines" in warned[0]
    names = [each["task"] for each in told["imported"]]
    listed = kit.ok("task", "list")["tasks"]
    assert sorted(each["task"] for each in listed) == sorted(names)
    shown = kit.ok("task", "show", names[2])
    assert shown["argv"] == ["/bin/sh", "-c", "date +%F"]


def test_the_second_import_changes_nothing(kit: Kit) -> None:
    path = crontab(kit)
    first = kit.ok("import", "crontab", path)
    with kit.unchanged():
        second = kit.ok("import", "crontab", path)
    assert {each["outcome"] for each in first["imported"]} == {"inserted"}
    assert {each["outcome"] for each in second["imported"]} == {"idempotent"}
    assert [each["task"] for each in first["imported"]] == [
        each["task"] for each in second["imported"]
    ]


@pytest.mark.parametrize("source", ["crontab", "tasks", "envs"])
def test_a_dry_run_says_that_it_was_one(kit: Kit, source: str) -> None:
    files = {
        "crontab": "* * * * * true\n",
        "tasks": '{"kind":"qinglong_edge.tasks","version":1,"tasks":[]}',
        "envs": '[{"name":"A","value":"1"}]',
    }
    words, said = ("import", source, "-"), "a dry run: nothing was changed\n"
    assert kit.run(*words, "--dry-run", stdin=files[source].encode()).out.endswith(said)
    assert said not in kit.run(*words, stdin=files[source].encode()).out


def test_a_dry_run_says_the_same_and_changes_nothing(kit: Kit) -> None:
    path = crontab(kit)
    with kit.unchanged():
        dry = kit.ok("import", "crontab", path, "--dry-run")
    wet = kit.ok("import", "crontab", path)
    for key in ("imported", "refused", "warnings"):
        assert dry[key] == wet[key]


def test_standard_input_is_a_crontab_too(kit: Kit) -> None:
    data = Path(crontab(kit)).read_bytes()
    with kit.daemon():
        told = kit.ok("import", "crontab", "-", stdin=data)
    assert len(told["imported"]) == 4
    assert kit.ok("import", "crontab", "-", stdin=b"")["imported"] == []
    kit.no("import", "crontab", "-", stdin=b"#" * 1_048_577, status=2, code="crontab_too_large")


def test_an_imported_task_runs_with_the_crontabs_environment(kit: Kit) -> None:
    name = kit.ok("import", "crontab", crontab(kit))["imported"][0]["task"]
    shown = {each["name"]: each["value"] for each in kit.ok("task", "show", name)["environment"]}
    user = pwd.getpwuid(os.geteuid())
    assert shown == {
        "GREETING": "good morning",
        "HOME": user.pw_dir,
        "LANG": "C.UTF-8",
        "LOGNAME": user.pw_name,
        "MAILTO": "admin",
        "PATH": "/usr/bin:/bin",
        "SHELL": "/bin/sh",
        "USER": user.pw_name,
    }
    assert kit.ok("start", name, "--wait")["status"] == "succeeded"
    assert kit.file("out").read_text() == f"good morning\n{user.pw_dir}\n"


def test_lines_of_other_users_are_refused(kit: Kit) -> None:
    me = pwd.getpwuid(os.geteuid()).pw_name
    data = f"* * * * * {me} echo mine\n* * * * * somebody echo theirs\n".encode()
    told = kit.ok("import", "crontab", "-", "--user-column", stdin=data)
    assert [each["line"] for each in told["imported"]] == [1]
    assert [each["line"] for each in told["refused"]] == [2]


@pytest.mark.parametrize(
    ("words", "dialect", "column"),
    [
        (["/etc/crontabs/root"], "busybox", None),
        (["/etc/x/../crontabs/root"], "busybox", None),
        (["/etc/crontabs/root", "--dialect", "vixie"], "vixie", None),
        (["/etc/crontab"], "vixie", True),
        (["/etc/cron.d/php"], "vixie", True),
        (["/etc/crontab", "--dialect", "busybox"], "busybox", None),
        (["/var/spool/cron/crontabs/root"], "vixie", None),
        (["/tmp/saved", "--user-column"], "vixie", True),
        (["-"], "vixie", None),
    ],
)
def test_a_crontab_is_read_as_the_cron_of_its_place_reads_it(
    monkeypatch: pytest.MonkeyPatch, words: list[str], dialect: str, column: bool | None
) -> None:
    """On a router `*/2` among days, `%` and `#` mean something else than on a PC."""
    asked: dict[str, object] = {}

    def call(_context: Context, _method: str, **params: object) -> dict[str, list[object]]:
        asked.update(params)
        return {"imported": [], "refused": [], "warnings": []}

    monkeypatch.setattr(Context, "call", call)
    monkeypatch.setattr(commands, "read_input", lambda _path: b"")
    status = commands.run(
        ["--json", "import", "crontab", *words],
        settled=lambda _state, _runtime: ("/nowhere", None),
        environment_tz="UTC",
    )
    assert (status, asked["dialect"], asked["user_column"]) == (0, dialect, column)


def test_the_text_form_has_a_line_for_each(kit: Kit) -> None:
    told = kit.run("import", "crontab", crontab(kit))
    lines = told.out.splitlines()
    assert told.status == 0
    assert lines[0].startswith("line 6: inserted echo-")
    assert sum(": refused " in line for line in lines) == 2
    assert any(": warning still_in_crontab: " in line for line in lines)


def test_a_busybox_crontab_keeps_its_percent_signs(kit: Kit) -> None:
    told = kit.ok(
        *("import", "crontab", "-", "--dialect", "busybox"),
        stdin=b"* * * * * date +%F\n0 1 * * 7 echo sunday\n",
    )
    shown = kit.ok("task", "show", told["imported"][0]["task"])
    assert shown["argv"][-1] == "date +%F"
