"""Reading a whole crontab of either dialect: its plan, names, refusals, bad input."""

from __future__ import annotations

import json
import os
import random

import pytest

from qinglong_edge.core import crontab, limits
from qinglong_edge.core.canonical import sha256_hex
from qinglong_edge.core.errors import Invalid
from tests.support import ROOT
from tests.unit.crontabs import busybox, codes, only, vixie

VECTORS = os.path.join(ROOT, "tests", "vectors", "crontab")


@pytest.mark.parametrize("name", ["openwrt-root", "vixie-user"])
def test_a_whole_crontab_gives_the_committed_plan(name: str) -> None:
    with open(os.path.join(VECTORS, name), "rb") as opened:
        data = opened.read()
    with open(os.path.join(VECTORS, f"{name}.json"), encoding="utf-8") as opened_text:
        wanted = json.load(opened_text)
    plan = crontab.parse(
        data,
        dialect=wanted["dialect"],
        user_column=False,
        user=wanted["user"],
        zone=wanted["zone"],
    )
    tasks = [{field: getattr(task, field) for field in task._fields} for task in plan.tasks]
    for task in tasks:
        task["environment"] = dict(task["environment"])
    assert tasks == wanted["tasks"]
    assert list(plan.refused) == wanted["refused"]
    assert list(plan.warnings) == wanted["warnings"]


@pytest.mark.parametrize("name", ["openwrt-root", "vixie-user"])
def test_every_line_is_a_task_a_refusal_a_variable_or_nothing(name: str) -> None:
    with open(os.path.join(VECTORS, f"{name}.json"), encoding="utf-8") as opened:
        wanted = json.load(opened)
    with open(os.path.join(VECTORS, name), encoding="utf-8") as opened:
        lines = opened.read().split("\n")
    named = [note["line"] for note in wanted["tasks"] + wanted["refused"]]
    assert len(named) == len(set(named))
    joined = [index + 1 for index, line in enumerate(lines, 1) if line.endswith("\\")]
    for number, line in enumerate(lines, 1):
        if number in named or number in joined or not line.strip():
            continue
        assert line.strip().startswith("#") or "=" in line


def test_a_second_reading_gives_the_same_names() -> None:
    text = "0 1 * * * a\n0 2 * * * /bin/b -c\n"
    assert [task.name for task in vixie(text).tasks] == [task.name for task in vixie(text).tasks]


def test_nothing_but_the_line_itself_decides_a_name() -> None:
    alone = only(vixie("0 2 * * * /bin/b -c\n")).name
    among = vixie("X=1\n# c\n0 1 * * * a\n0  2 *\t* *   /bin/b -c\n").tasks[1].name
    assert alone == among


@pytest.mark.parametrize(
    ("command", "base"),
    [
        ("/usr/bin/backup.sh --to x", "backup.sh"),
        ("backup", "backup"),
        ("./run.sh", "run.sh"),
        ("/opt/dir/", "dir"),
        ("[ -x /bin/a ] && /bin/a", "task"),
        ("(cd /tmp; ls)", "cd"),
        ('TOKEN="s3cret word" HTTP=1 /bin/curl x', "curl"),
        ("TOKEN=s3cret", "task"),
        ('TOKEN="s3cret', "task"),
        ("-x", "x"),
        (".", "task"),
        ("%!$", "task"),
        ("/opt/签到.sh", "签到.sh"),
        ("x" * 50, "x" * 40),
        ("", "task"),
    ],
)
def test_a_name_is_the_first_word_without_its_folder(command: str, base: str) -> None:
    name = crontab.name_for("* * * * *", "root", command)
    head, dash, digits = name.rpartition("-")
    assert (head, dash) == (base, "-")
    assert digits == sha256_hex(f"* * * * *\0root\0{command}".encode())[:6]


def test_a_name_depends_on_schedule_user_and_command() -> None:
    names = {
        crontab.name_for(schedule, user, command)
        for schedule in ("0 1 * * *", "0 2 * * *")
        for user in ("root", "www")
        for command in ("a", "a ")
    }
    assert len(names) == 8


def test_a_line_that_is_there_twice_is_refused_once() -> None:
    plan = vixie("0 1 * * * a\n0 1  * * *\ta\n0 1 * * * b\n")
    assert [task.line for task in plan.tasks] == [1, 3]
    assert codes(plan.refused) == [(2, "duplicate_line")]


def test_two_lines_of_one_name_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crontab, "sha256_hex", lambda data: "0" * 64)
    plan = vixie("0 1 * * * a 1\n0 1 * * * a 2\n")
    assert codes(plan.refused) == [(2, "name_conflict")]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"* * * * * a\0b", "nul_byte"),
        (b"* * * * * a\r", "carriage_return"),
        (b"* * * * * \xff", "not_utf8"),
        (b"* * * * * " + b"x" * (limits.COMMAND_BYTES_MAX + 1), "line_too_long"),
        (b"* * * * *", "command_missing"),
        (b"* * * * * ", "command_missing"),
        (b"@daily", "command_missing"),
        (b"@daily ", "command_missing"),
        (b"* * * *", "cron_fields"),
        (b"x", "cron_fields"),
        (b"@every 5m a", "unknown_macro"),
        (b"@Daily a", "unknown_macro"),
        (b"@once a", "unknown_macro"),
        (b"0 0 30 2 * a", "cron_never"),
    ],
)
@pytest.mark.parametrize("dialect", ["vixie", "busybox"])
def test_a_wrong_line_is_refused_by_its_number(dialect: str, line: bytes, code: str) -> None:
    data = b"# c\n\n" + line + b"\n1 1 * * * last\n"
    plan = crontab.parse(data, dialect=dialect, user_column=False, user="root", zone="UTC")
    assert codes(plan.refused) == [(3, code)]
    assert [task.command for task in plan.tasks] == ["last"]


@pytest.mark.parametrize("dialect", ["vixie", "busybox"])
def test_bytes_that_are_not_text_may_stand_in_comments(dialect: str) -> None:
    data = b"# caf\xe9 \0\r\n\r\n \t\n1 1 * * * a\n"
    plan = crontab.parse(data, dialect=dialect, user_column=False, user="root", zone="UTC")
    assert only(plan).line == 4


@pytest.mark.parametrize("dialect", ["vixie", "busybox"])
@pytest.mark.parametrize("data", [b"", b"\n", b"\n\n#\n", b"#"])
def test_an_empty_crontab_is_an_empty_plan(dialect: str, data: bytes) -> None:
    plan = crontab.parse(data, dialect=dialect, user_column=False, user="root", zone="UTC")
    assert (plan.tasks, plan.refused, plan.warnings) == ((), (), ())


@pytest.mark.parametrize(
    ("data", "dialect", "user_column", "code"),
    [
        (b"", "cronie", False, "crontab_dialect"),
        (b"", "busybox", True, "crontab_user_column"),
        (b"#" * (limits.IMPORT_BYTES_MAX + 1), "vixie", False, "crontab_too_large"),
        (b"\n" * 10_001, "vixie", False, "crontab_too_long"),
    ],
)
def test_a_file_that_cannot_be_read_at_all_is_invalid(
    data: bytes, dialect: str, user_column: bool, code: str
) -> None:
    with pytest.raises(Invalid) as caught:
        crontab.parse(data, dialect=dialect, user_column=user_column, user="root", zone="UTC")
    assert caught.value.code == code


@pytest.mark.parametrize("dialect", ["vixie", "busybox"])
def test_no_bytes_make_the_reader_fail(dialect: str) -> None:
    chance = random.Random(20)
    single = [bytes([byte]) for byte in b"*05/-, \t\n~?'\"%\\#\r\0\xff"]
    words = [b"@daily ", b"mon", b"A=", b"SHELL=", b"CRON_TZ=", "签".encode()]
    pieces = [*single, *words, b"* * * * * x\n", b"1 2 3 4 5 root y\n"]
    for _ in range(3_000):
        data = b"".join(chance.choice(pieces) for _ in range(chance.randint(1, 60)))
        column = dialect == "vixie" and chance.random() < 0.5
        plan = crontab.parse(data, dialect=dialect, user_column=column, user="root", zone="UTC")
        named = [task.line for task in plan.tasks] + [note["line"] for note in plan.refused]
        assert len(named) == len(set(named))
        assert len({task.name for task in plan.tasks}) == len(plan.tasks)


def test_a_message_never_quotes_the_line() -> None:
    marker = "s3cret"
    lines = [
        f"* * * * * {marker}%x",
        f"{marker} * * * * x",
        f"PATH={marker}\r",
        f"SHELL={marker}",
        f"CRON_TZ=/{marker}",
        f"a.b={marker}",
        f"* * * * * {marker}\\\\",
        f"@{marker} x",
        f"* * * * * {marker}",
        f"* * * * * {marker}",
    ]
    for plan in (vixie("\n".join(lines)), busybox("\n".join(lines))):
        assert len(plan.refused) > 4
        assert marker not in repr(plan.refused) + repr(plan.warnings) + repr(plan.tasks)
