"""The lines of a crontab as each cron reads them: commands, variables, users, macros."""

from __future__ import annotations

import pytest

from qinglong_edge.core import cron, crontab
from tests.unit.crontabs import busybox, codes, only, refusal, vixie

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


def test_a_system_crontab_that_is_read_as_a_users_own_is_told_of() -> None:
    text = "0 1 * * * root /bin/a b\n@daily root d\n0 1 * * * rootkit-check\n"
    assert codes(vixie(text).warnings) == [(1, "user_column_likely"), (2, "user_column_likely")]
    assert codes(vixie(text, user_column=True).warnings) == []
    assert codes(vixie("* * * * * \v\n").warnings) == []


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
