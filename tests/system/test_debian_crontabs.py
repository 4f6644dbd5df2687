"""The crontabs of Debian's packages, read exactly as they are shipped.

One belongs to another user, one escapes a percent sign, one steps within a range; each line must
come out as a task for its own user and for no other.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from qinglong_edge.core import crontab

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/sbin:/bin:/usr/sbin:/usr/bin"
CRON = {"SHELL": "/bin/sh", "PATH": SYSTEM_PATH}
SYSSTAT = {"PATH": "/usr/lib/sysstat:/usr/sbin:/usr/sbin:/usr/bin:/sbin:/bin"}
# By file: user, variables, then each task's schedule and the start of its command.
Wanted = tuple[str, dict[str, str], list[tuple[str, str]]]
WANTED: dict[str, Wanted] = {
    "anacron": ("root", CRON, [("30 7-23 * * *", "[ -x /etc/init.d/anacron ] && if [")]),
    "awstats": (
        "www-data",
        {"MAILTO": "root"},
        [
            ("*/10 * * * *", "[ -x /usr/share/awstats/tools/update.sh ] &&"),
            ("10 3 * * *", "[ -x /usr/share/awstats/tools/buildstatic.sh ] &&"),
        ],
    ),
    "certbot": ("root", CRON, [("0 */12 * * *", "test -x /usr/bin/certbot -a \\! -d /run/")]),
    "crontab": (
        "root",
        CRON,
        [
            ("17 * * * *", "cd / && run-parts --report /etc/cron.hourly"),
            ("25 6 * * *", "test -x /usr/sbin/anacron || { cd / && run-parts"),
            ("47 6 * * 0", "test -x /usr/sbin/anacron || { cd / && run-parts"),
            ("52 6 1 * *", "test -x /usr/sbin/anacron || { cd / && run-parts"),
        ],
    ),
    "e2scrub_all": (
        "root",
        {},
        [
            ("30 3 * * 0", "test -e /run/systemd/system || SERVICE_MODE=1 /usr/lib/"),
            ("10 3 * * *", "test -e /run/systemd/system || SERVICE_MODE=1 /sbin/e2scrub_all -A -r"),
        ],
    ),
    "mdadm": (
        "root",
        {},
        [("57 0 * * 0", "if [ -x /usr/share/mdadm/checkarray ] && [ $(date +%d")],
    ),
    "php": ("root", {}, [("9,39 * * * *", "[ -x /usr/lib/php/sessionclean ] && if [")]),
    "sysstat": (
        "root",
        SYSSTAT,
        [
            ("5-55/10 * * * *", "command -v debian-sa1 > /dev/null && debian-sa1 1 1"),
            ("59 23 * * *", "command -v debian-sa1 > /dev/null && debian-sa1 60 2"),
        ],
    ),
}


def read(path: Path, user: str) -> crontab.Plan:
    return crontab.parse(
        path.read_bytes(), dialect="vixie", user_column=True, user=user, zone="CST-8"
    )


@pytest.mark.parametrize("name", sorted(WANTED))
def test_each_line_becomes_a_task_of_its_user(debian_crontabs: list[Path], name: str) -> None:
    (path,) = [each for each in debian_crontabs if each.name == name]
    user, environment, wanted = WANTED[name]
    plan = read(path, user)
    assert not plan.refused
    assert [task.expression for task in plan.tasks] == [schedule for schedule, _ in wanted]
    for task, (_, command) in zip(plan.tasks, wanted, strict=True):
        assert task.command.startswith(command)
        assert dict(task.environment) == environment
        assert (task.shell, task.zone, task.boot) == ("/bin/sh", "CST-8", False)
    mailed = "MAILTO" in environment
    assert [note["code"] for note in plan.warnings] == ["mail_not_sent"] * mailed


@pytest.mark.parametrize("name", sorted(WANTED))
def test_no_line_becomes_a_task_of_another_user(debian_crontabs: list[Path], name: str) -> None:
    (path,) = [each for each in debian_crontabs if each.name == name]
    owner, _, wanted = WANTED[name]
    plan = read(path, "root" if owner != "root" else "www-data")
    assert not plan.tasks
    assert [note["code"] for note in plan.refused] == ["other_user"] * len(wanted)


def test_no_crontab_of_these_packages_is_left_unread(debian_crontabs: list[Path]) -> None:
    assert sorted(path.name for path in debian_crontabs) == sorted(WANTED)


def test_all_of_them_together_have_names_of_their_own(debian_crontabs: list[Path]) -> None:
    names = [task.name for path in debian_crontabs for task in read(path, "root").tasks]
    assert (
        len(names)
        == len(set(names))
        == sum(len(wanted) for user, _, wanted in WANTED.values() if user == "root")
    )


def test_without_the_user_column_the_user_would_be_run_and_that_is_said(
    debian_crontabs: list[Path],
) -> None:
    (path,) = [each for each in debian_crontabs if each.name == "crontab"]
    plan = crontab.parse(
        path.read_bytes(), dialect="vixie", user_column=False, user="root", zone="UTC"
    )
    assert [task.command.partition("\t")[0] for task in plan.tasks] == ["root"] * 4
    told = [each["line"] for each in plan.warnings if each["code"] == "user_column_likely"]
    assert told == [task.line for task in plan.tasks]
