"""Reading crontabs: both dialects, their schedules against models of those crons, bad input."""

from __future__ import annotations

import json
import os
import random
import re
from datetime import date, timedelta

import pytest

from qinglong_edge.core import cron, crontab, crontab_schedule, limits
from qinglong_edge.core.canonical import sha256_hex
from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.zone import open_zone
from tests import crond_model
from tests.support import ROOT

VECTORS = os.path.join(ROOT, "tests", "vectors", "crontab")
UTC = open_zone("UTC")
DAY_MS = 86_400_000
EPOCH = date(1970, 1, 1)
# Two years with a 29 February, and every date on several weekdays.
DATES = [date(2027, 1, 1) + timedelta(days=day) for day in range(731)]
BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))

Note = dict[str, int | str]


def vixie(text: str | bytes, *, user_column: bool = False, user: str = "root") -> crontab.Plan:
    data = text.encode() if isinstance(text, str) else text
    return crontab.parse(data, dialect="vixie", user_column=user_column, user=user, zone="UTC")


def busybox(text: str | bytes, *, user: str = "root") -> crontab.Plan:
    data = text.encode() if isinstance(text, str) else text
    return crontab.parse(data, dialect="busybox", user_column=False, user=user, zone="UTC")


def codes(notes: tuple[Note, ...]) -> list[tuple[int | str, int | str]]:
    return [(note["line"], note["code"]) for note in notes]


def only(plan: crontab.Plan) -> crontab.Imported:
    """The one task of a plan that refused nothing."""
    assert not plan.refused
    (task,) = plan.tasks
    return task


def refusal(plan: crontab.Plan) -> int | str:
    """The code of the one line that the plan is about."""
    assert not plan.tasks
    (note,) = plan.refused
    return note["code"]


# The whole file -----------------------------------------------------------------------------------


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


# vixie: lines -------------------------------------------------------------------------------------


def test_a_percent_sign_is_unescaped() -> None:
    task = only(vixie('* * * * * date "+\\%F" > /tmp/x\\%y\n'))
    assert task.command == 'date "+%F" > /tmp/x%y'


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("cat > /tmp/x%in1%in2", "stdin_not_kept"),
        ("date +\\%F%", "stdin_not_kept"),
        ("%", "stdin_not_kept"),
        ("printf 'a\\\\n'", "backslash_pair"),
        ("date +\\\\%F", "backslash_pair"),
    ],
)
def test_what_a_command_cannot_keep_is_refused(command: str, code: str) -> None:
    assert refusal(vixie(f"* * * * * {command}\n")) == code


def test_a_number_sign_in_a_command_is_no_comment() -> None:
    assert only(vixie("* * * * * echo a # b\n")).command == "echo a # b"


def test_other_backslashes_and_trailing_blanks_stay() -> None:
    assert only(vixie("* * * * * echo a\\ b \\\n")).command == "echo a\\ b \\"
    assert only(vixie("* * * * *   echo a  \n")).command == "echo a  "


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("A=b", "A", "b"),
        ("  A = b ", "A", "b"),
        ("A=b c", "A", "b c"),
        ("A= b  c ", "A", "b  c"),
        ('A="b c"', "A", "b c"),
        ("A='b c' ", "A", "b c"),
        ('A=" b"', "A", " b"),
        ("A='x\"y'", "A", 'x"y'),
        ('A=""', "A", ""),
        ('"A"=b', "A", "b"),
        ("'A' = b", "A", "b"),
        ("A=b # c", "A", "b # c"),
        ("A=$HOME/bin:\\%", "A", "$HOME/bin:\\%"),
        ("A=a=b", "A", "a=b"),
        ('A=a"b"', "A", 'a"b"'),
        ("A=签到", "A", "签到"),
        ("HOME=/tmp", "HOME", "/tmp"),
    ],
)
def test_a_variable_is_read_as_cron_reads_it(line: str, name: str, value: str) -> None:
    plan = vixie(f"{line}\n* * * * * x\n")
    assert only(plan).environment == ((name, value),)
    assert not plan.warnings


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("A=", "environment_line"),
        ("A= ", "environment_line"),
        ('A="b', "environment_line"),
        ('A="b" c', "environment_line"),
        ("a.b=1", "binding_name_invalid"),
        ("QL3_X=1", "binding_name_refused"),
        ("IFS=x", "binding_name_refused"),
        ("RANDOM_DELAY=5", "random_delay_not_kept"),
        ("START_HOURS_RANGE=3-22", "start_hours_range_not_kept"),
        ("SHELL=bash", "shell_path"),
        ("CRON_TZ=/etc/localtime", "zone_invalid"),
        ("CRON_TZ=A B", "zone_invalid"),
        ('CRON_TZ=""', "zone_invalid"),
    ],
)
def test_a_variable_that_cannot_be_kept_is_refused(line: str, code: str) -> None:
    plan = vixie(f"{line}\n")
    assert codes(plan.refused) == [(1, code)]


def test_variables_reach_only_the_lines_after_them() -> None:
    plan = vixie("0 1 * * * a\nA=1\n0 2 * * * b\nA=2\nB=3\n0 3 * * * c\n")
    assert [task.environment for task in plan.tasks] == [
        (),
        (("A", "1"),),
        (("A", "2"), ("B", "3")),
    ]


def test_too_many_variables_are_refused_by_line() -> None:
    plan = vixie("".join(f"A{number}=x\n" for number in range(300)) + "A0=y\n* * * * * a\n")
    assert {note["code"] for note in plan.refused} == {"bindings_too_many"}
    assert len(plan.refused) == 300 - len(plan.tasks[0].environment)
    assert dict(plan.tasks[0].environment)["A0"] == "y"


def test_a_shell_serves_the_lines_after_it() -> None:
    plan = vixie("0 1 * * * a\nSHELL=/bin/bash\n0 2 * * * b\n")
    assert [task.shell for task in plan.tasks] == ["/bin/sh", "/bin/bash"]
    assert plan.tasks[1].environment == (("SHELL", "/bin/bash"),)


@pytest.mark.parametrize("wrong", ["SHELL=bash", 'SHELL="/bin/bash', "SHELL=", "SHELL=/bin/sh\r"])
def test_lines_whose_shell_was_refused_are_refused_until_the_next(wrong: str) -> None:
    plan = vixie(f"0 1 * * * a\n{wrong}\n0 2 * * * b\nSHELL=/bin/sh\n0 3 * * * c\n")
    assert [task.command for task in plan.tasks] == ["a", "c"]
    assert [line for line, _ in codes(plan.refused)] == [2, 3]
    assert codes(plan.refused)[1] == (3, "shell_not_kept")


def test_cron_tz_moves_the_schedule_of_the_lines_after_it() -> None:
    plan = vixie("0 8 * * * a\nCRON_TZ=Asia/Shanghai\n0 8 * * * a\nCRON_TZ=CST6CDT\n0 8 * * * a\n")
    assert [task.zone for task in plan.tasks] == ["UTC", "Asia/Shanghai", "CST6CDT"]
    assert len({task.name for task in plan.tasks}) == 3
    assert codes(plan.warnings) == [(2, "cron_tz"), (4, "cron_tz")]


def test_lines_whose_zone_was_refused_are_refused_until_the_next() -> None:
    plan = vixie("CRON_TZ=../x\n0 8 * * * a\nCRON_TZ=UTC\n0 8 * * * a\n")
    assert codes(plan.refused) == [(1, "zone_invalid"), (2, "cron_tz_not_kept")]
    assert [task.line for task in plan.tasks] == [4]


def test_tz_reaches_the_command_and_not_the_schedule() -> None:
    plan = vixie("TZ=Asia/Shanghai\n0 8 * * * a\n")
    task = only(plan)
    assert (task.zone, task.environment) == ("UTC", (("TZ", "Asia/Shanghai"),))
    assert codes(plan.warnings) == [(1, "tz_not_schedule")]


@pytest.mark.parametrize("name", ["LOGNAME", "USER"])
def test_a_crontab_does_not_change_its_owner(name: str) -> None:
    plan = vixie(f"{name}=other\n* * * * * a\n")
    assert only(plan).environment == ()
    assert codes(plan.warnings) == [(1, "owner_fixed")]


@pytest.mark.parametrize(
    ("line", "warned"),
    [
        ("MAILTO=root", True),
        ("MAILFROM=a@b", True),
        ("CONTENT_TYPE=text/plain", True),
        ("CONTENT_TRANSFER_ENCODING=8bit", True),
        ('MAILTO=""', False),
    ],
)
def test_mail_that_will_not_be_sent_is_a_warning(line: str, warned: bool) -> None:
    plan = vixie(f"{line}\n* * * * * a\n")
    assert only(plan).environment[0][0] == line.partition("=")[0]
    assert codes(plan.warnings) == [(1, "mail_not_sent")] * warned


@pytest.mark.parametrize("line", ['A="b "', "A=\"'b'\""])
def test_a_value_that_crons_read_differently_is_a_warning(line: str) -> None:
    assert codes(vixie(f"{line}\n").warnings) == [(1, "quoted_value")]


def test_a_last_line_without_its_end_is_taken_with_a_warning() -> None:
    plan = vixie("0 1 * * * a\n0 2 * * * b")
    assert [task.command for task in plan.tasks] == ["a", "b"]
    assert codes(plan.warnings) == [(2, "no_final_newline")]


def test_a_boot_line_has_no_schedule() -> None:
    task = only(vixie("@reboot /bin/x\n"))
    assert (task.boot, task.expression, task.label) == (True, None, "@reboot")


@pytest.mark.parametrize(
    ("word", "fields"),
    [
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * 0"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@hourly", "0 * * * *"),
    ],
)
@pytest.mark.parametrize("dialect", ["vixie", "busybox"])
def test_a_macro_is_its_five_fields(dialect: str, word: str, fields: str) -> None:
    data = f"{word}\t/bin/x y\n".encode()
    plan = crontab.parse(data, dialect=dialect, user_column=False, user="root", zone="UTC")
    task = only(plan)
    assert (task.expression, task.label, task.boot) == (cron.parse(fields).text, word, False)
    assert task.command == "/bin/x y"


def test_the_user_column_selects_the_lines() -> None:
    text = "0 1 * * * root\t /bin/a b\n0 2 * * * www /bin/c\n@daily root d\n@reboot www e\n"
    plan = vixie(text, user_column=True)
    assert [(task.line, task.command) for task in plan.tasks] == [(1, "/bin/a b"), (3, "d")]
    assert codes(plan.refused) == [(2, "other_user"), (4, "other_user")]
    assert [task.command for task in vixie(text, user_column=True, user="www").tasks] == [
        "/bin/c",
        "e",
    ]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("0 1 * * * root", "command_missing"),
        ("0 1 * * * root ", "command_missing"),
        ("0 1 * * *", "command_missing"),
        ("0 1 * *", "cron_fields"),
        ("@daily root", "command_missing"),
        ("@daily", "command_missing"),
        ("* * * * * * root a", "six_fields"),
    ],
)
def test_a_wrong_line_of_a_system_crontab(line: str, code: str) -> None:
    assert refusal(vixie(f"{line}\n", user_column=True)) == code


# vixie: schedules ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ("*/60 * * * *", "cron_step"),
        ("60 * * * *", "cron_range"),
        ("0 22-3 * * *", "cron_range"),
        ("5/15 * * * *", "vixie_field"),
        ("0 0 ? * *", "vixie_field"),
        ("0 0 L * *", "vixie_field"),
        ("0 0 * * 5#1", "vixie_field"),
        ("0 0 * * 5L", "vixie_field"),
        ("0 0 * * fri-sun", "vixie_field"),
        ("0 0 15W * *", "cron_unsupported"),
        ("0~30 * * * *", "random_range"),
        ("-0 * * * *", "log_prefix"),
        ("0 0 8 * * *", "six_fields"),
        ("0 0 */2 * 1", "day_rule_differs"),
        ("0 0 1 * */2", "day_rule_differs"),
        ("0 0 *,5 * 1-3/2,*/6", None),
        ("0 0 1-31/2 * 1", None),
    ],
)
def test_a_schedule_that_cannot_be_kept_is_refused(fields: str, code: str | None) -> None:
    plan = vixie(f"{fields} x\n")
    assert [note["code"] for note in plan.refused] == ([] if code is None else [code])


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ("0 7 */1 * 1", "0 7 * * 1"),
        ("0 7 1 * */1", "0 7 1 * *"),
        ("0 7 *,1 * 1-5", "0 7 * * 1-5"),
        ("0 7 */2 * *", "0 7 */2 * *"),
        ("0 7 * * */2", "0 7 * * */2"),
        ("0 7 1 * 1", "0 7 1 * 1"),
        ("0 7 1-31 * 1", "0 7 1-31 * 1"),
        ("0 7 * JAN sun", "0 7 * 1 0"),
        ("07 08 * * 7", "7 8 * * 0"),
    ],
)
def test_a_schedule_keeps_its_meaning(fields: str, kept: str) -> None:
    assert only(vixie(f"{fields} x\n")).expression == cron.parse(kept).text


def vixie_places(text: str, index: int) -> set[int] | None:
    """The values of a field as the manual of Debian's cron has them; None: an error, or none."""
    names = crond_model.NAMES[index]
    low, high = BOUNDS[index]
    places: set[int] = set()

    def place(word: str) -> int:
        if word.lower() in names:
            return names.index(word.lower()) + (1 if index == 3 else 0)
        value = int(word)
        if not low <= value <= high:
            raise ValueError(word)
        return value

    for part in text.split(","):
        span, slash, step = part.partition("/")
        first, dash, last = span.partition("-")
        try:
            ends = (low, high) if span == "*" else (place(first), place(last if dash else first))
            if slash and not dash and span != "*":
                return None
            inside = range(ends[0], ends[1] + 1, int(step) if slash else 1)
        except ValueError:
            return None
        if not inside:
            return None
        places.update(inside)
    return {each % 7 for each in places} if index == 4 else places


def dates_of(expression: str) -> set[date]:
    """The dates of DATES on which an expression fires."""
    parsed = cron.parse(expression)
    after = (DATES[0] - EPOCH).days * DAY_MS - 1
    end = ((DATES[-1] - EPOCH).days + 1) * DAY_MS
    found: set[date] = set()
    while True:
        after = parsed.next_after(after, UTC)
        if after >= end:
            return found
        day = after // DAY_MS
        found.add(EPOCH + timedelta(days=day))
        after = (day + 1) * DAY_MS - 1


def minutes_of(expression: str, day: date) -> set[tuple[int, int]]:
    """Hour and minute of each start of an expression on a day."""
    parsed = cron.parse(expression)
    begin = (day - EPOCH).days * DAY_MS
    found: set[tuple[int, int]] = set()
    after = parsed.next_after(begin - 1, UTC)
    while after < begin + DAY_MS:
        assert after % 60_000 == 0
        found.add(divmod((after - begin) // 60_000, 60))
        after = parsed.next_after(after, UTC)
    return found


def random_fields(chance: random.Random, *, wild: bool) -> list[str]:
    """Five fields; `wild` ones go over their bounds, wrap, and step from single values."""

    def value(index: int) -> str:
        low, high = BOUNDS[index]
        names = crond_model.NAMES[index]
        if names and chance.random() < 0.2:
            return chance.choice([chance.choice(names), chance.choice(names).upper()])
        return str(chance.randint(low, high + 3 if wild and chance.random() < 0.2 else high))

    def item(index: int) -> str:
        kind = chance.random()
        text = "*" if kind < 0.25 else value(index)
        if kind > 0.6:
            text += f"-{value(index)}"
        if chance.random() < 0.3 and (wild or text == "*" or "-" in text):
            text += f"/{chance.randint(0 if wild else 1, 8)}"
        return text

    return [
        "*"
        if chance.random() < 0.35
        else ",".join(item(at) for _ in range(chance.choice((1, 1, 2))))
        for at in range(5)
    ]


def test_vixie_schedules_fire_when_the_model_of_vixie_cron_does() -> None:
    chance = random.Random(11)
    kept = 0
    for _ in range(600):
        fields = random_fields(chance, wild=False)
        places = [vixie_places(field, index) for index, field in enumerate(fields)]
        both = fields[2].startswith("*") or fields[4].startswith("*")
        plan = vixie(" ".join(fields) + " x\n")
        if None in places:
            assert not plan.tasks, fields
            continue
        minutes, hours, days, months, weekdays = (each or set() for each in places)
        wanted = {
            day
            for day in DATES
            if day.month in months
            and (all if both else any)((day.day in days, day.isoweekday() % 7 in weekdays))
        }
        if not plan.tasks:
            allowed = {"cron_step", "cron_never", "day_rule_differs"}
            assert refusal(plan) in allowed, fields
            assert (refusal(plan) == "cron_never") <= (not wanted), fields
            continue
        kept += 1
        expression = only(plan).expression or ""
        assert dates_of(expression) == wanted, fields
        if wanted:
            day = chance.choice(sorted(wanted))
            assert minutes_of(expression, day) == {(h, m) for h in hours for m in minutes}, fields
    assert kept > 150


# busybox: lines -----------------------------------------------------------------------------------


def test_percent_signs_and_backslashes_are_themselves() -> None:
    assert only(busybox("* * * * * printf a%b\\\\n \\% \n")).command == "printf a%b\\\\n \\%"


def test_a_command_ends_at_the_first_number_sign() -> None:
    plan = busybox("* * * * * echo 'a#b' # c\n")
    assert only(plan).command == "echo 'a"
    assert codes(plan.warnings) == [(1, "comment_cut")]


@pytest.mark.parametrize("line", ["* * * * #5 x", "* * * * *#x", "5#x * * * * y"])
def test_a_number_sign_before_the_command_leaves_none(line: str) -> None:
    assert refusal(busybox(f"{line}\n")) in {"cron_fields", "command_missing"}


def test_a_backslash_at_the_end_joins_the_next_line() -> None:
    plan = busybox("* * * * * a \\\n  b \\\n\n0 1 * * * c\\")
    assert [(task.line, task.command) for task in plan.tasks] == [(1, "a   b"), (4, "c")]


def test_a_backslash_continues_a_comment_too() -> None:
    plan = busybox("# a \\\n* * * * * never\n0 1 * * * b\n")
    assert only(plan).command == "b"
    assert codes(plan.warnings) == [(1, "comment_continued")]


def test_a_last_line_without_its_end_is_as_good_as_any() -> None:
    plan = busybox("0 1 * * * a")
    assert (only(plan).command, plan.warnings) == ("a", ())


def test_crond_knows_three_variables() -> None:
    plan = busybox("MAILTO=root\nSHELL=/bin/ash x\nPATH=/bin:/sbin#x\n* * * * * a\n")
    task = only(plan)
    assert task.shell == "/bin/ash"
    assert task.environment == (("SHELL", "/bin/ash"), ("PATH", "/bin:/sbin"))
    assert codes(plan.warnings) == [(1, "mail_not_sent"), (3, "path_by_version")]


@pytest.mark.parametrize("line", ["HOME=/tmp", "A=1", "SHELL = /bin/sh", "TZ=UTC", "A=1 2 3 4 5 6"])
def test_a_variable_that_crond_ignores_is_refused(line: str) -> None:
    plan = busybox(f"{line}\n* * * * * a\n")
    assert codes(plan.refused) == [(1, "environment_line")]
    assert (plan.tasks[0].environment, plan.tasks[0].shell) == ((), "/bin/sh")


def test_lines_whose_shell_crond_cannot_run_are_refused() -> None:
    plan = busybox('SHELL="/bin/ash"\n0 1 * * * a\nSHELL=/bin/ash\n0 1 * * * a\n')
    assert codes(plan.refused) == [(1, "shell_path"), (2, "shell_not_kept")]
    assert [task.line for task in plan.tasks] == [4]


def test_special_times_depend_on_how_crond_was_built() -> None:
    plan = busybox("@reboot /bin/a #1 \n@daily b\n")
    assert [(task.boot, task.command) for task in plan.tasks] == [
        (True, "/bin/a #1 "),
        (False, "b"),
    ]
    assert codes(plan.warnings) == [(1, "special_times"), (2, "special_times")]
    assert refusal(busybox("@daily # x\n")) == "command_missing"


# busybox: schedules -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ("0 0 */2 * *", "0 0 2,4,6,8,10,12,14,16,18,20,22,24,26,28,30 * *"),
        ("0 0 */5 * *", "0 0 5,10,15,20,25,30 * *"),
        ("5/15 * * * *", "5 * * * *"),
        ("0 22-3 * * *", "0 0-3,22,23 * * *"),
        ("50-10/10 * * * *", "0,10,50 * * * *"),
        ("0 0 1 * 0-6", "0 0 1 * *"),
        ("0 0 0-31 * 1", "0 0 * * 1"),
        ("0 0 1-31 * 1", "0 0 * * *"),
        ("0 0 1,15 * fri", "0 0 1,15 * 5"),
        ("0 0 0 * 1", "0 0 * * 1"),
        ("0 0 * * fri-mon", "0 0 * * 0,1,5,6"),
        ("0 0 * nov-FEB *", "0 0 * 1,2,11,12 *"),
        ("*/7 */6 * * *", "*/7 */6 * * *"),
        ("*/60 * * * *", "0 * * * *"),
        ("*/0 * * * *", "0 * * * *"),
        ("0-59 0-23 * 1-12 *", "* * * * *"),
        ("1,2,3,5 * * * *", "1-3,5 * * * *"),
    ],
)
def test_a_field_is_written_out_with_the_values_crond_marks(fields: str, kept: str) -> None:
    plan = busybox(f"{fields} x\n")
    assert only(plan).expression == cron.parse(kept).text
    assert not plan.warnings


@pytest.mark.parametrize(
    ("fields", "kept", "warnings"),
    [
        ("0 5 * * 7", "0 5 * * *", 1),
        ("* * * * 8", "* * * * *", 1),
        ("99 * * * *", "* * * * *", 1),
        ("99 24 * * *", "* * * * *", 2),
        ("65-5 * * * *", "5 * * * *", 1),
        ("0 0 * 13 *", "0 0 * * *", 1),
        ("0 0 32 * 1", "0 0 * * 1", 1),
        ("61/5,3 * * * *", "1,6,11,16,21,26,31,36,41,46,51,56 * * * *", 1),
    ],
)
def test_a_value_out_of_range_is_kept_as_crond_runs_it(
    fields: str, kept: str, warnings: int
) -> None:
    plan = busybox(f"{fields} x\n")
    assert only(plan).expression == cron.parse(kept).text
    assert codes(plan.warnings) == [(1, "out_of_range")] * warnings


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ("0 0 ? * *", "busybox_field"),
        ("0 0 * * monday", "busybox_field"),
        ("5- * * * *", "busybox_field"),
        ("*/ * * * *", "busybox_field"),
        ("*/-5 * * * *", "busybox_field"),
        ("1-2-3 * * * *", "busybox_field"),
        ("1,,2 * * * *", "busybox_field"),
        ("jan * * * *", "busybox_field"),
        ("0 0 * mon *", "busybox_field"),
        ("１ * * * *", "busybox_field"),
        ("12345678901 * * * *", "busybox_field"),
        ("0 0 * 0 *", "out_of_range"),
        ("0 0 * 0-5 *", "out_of_range"),
        ("0 0 0 * *", "never_runs"),
        ("0 0 30 2 *", "cron_never"),
    ],
)
def test_a_field_without_a_certain_meaning_is_refused(fields: str, code: str) -> None:
    assert refusal(busybox(f"{fields} x\n")) == code


def test_busybox_schedules_fire_when_the_model_of_crond_does() -> None:
    chance = random.Random(12)
    kept = 0
    for _ in range(600):
        fields = random_fields(chance, wild=True)
        plan = busybox(" ".join(fields) + " x\n")
        if plan.refused:
            assert refused_with_reason(fields, refusal(plan)), fields
            continue
        marks = [crond_model.field(field, index)[0] for index, field in enumerate(fields)]
        wanted = {
            day
            for day in DATES
            if crond_model.starts(marks, day.month, day.day, day.isoweekday() % 7)
        }
        expression = only(plan).expression or ""
        assert dates_of(expression) == wanted, fields
        kept += 1
        if wanted:
            day = chance.choice(sorted(wanted))
            times = {(h, m) for h in range(24) for m in range(60) if marks[1][h] and marks[0][m]}
            assert minutes_of(expression, day) == times, fields
    assert kept > 400


def refused_with_reason(fields: list[str], code: int | str) -> bool:
    """Whether the model of crond has the reason for a refusal."""
    if code == "out_of_range":
        return any(re.search(r"(?:^|-)0(?:-|/|$)", part) for part in fields[3].split(","))
    marks = [crond_model.field(field, index)[0] for index, field in enumerate(fields)]
    return code in {"never_runs", "cron_never"} and not any(
        crond_model.starts(marks, day.month, day.day, day.isoweekday() % 7) for day in DATES
    )


def test_a_plain_schedule_means_the_same_in_both_dialects() -> None:
    for fields in ("*/5 * * * *", "0 3 * * *", "30 4 1,15 * 5", "0 0 1 1 *", "15 */6 * * 1-5"):
        assert only(vixie(f"{fields} x\n")).expression == only(busybox(f"{fields} x\n")).expression


def test_schedules_are_usable_without_a_crontab() -> None:
    assert crontab_schedule.vixie(["0", "8", "*", "*", "*"]) == cron.parse("0 8 * * *").text
    assert crontab_schedule.busybox(["0", "25", "*", "*", "*"])[1] == ["hour"]
    assert crontab_schedule.macro("@reboot") is None
