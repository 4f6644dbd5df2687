"""Bad input gets a stable code, one sentence and an exit status, and changes nothing."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.disks import small_disk
from tests.e2e.kit import Kit

ADD = ("task", "add", "new")
LONG = "x" * 300
MANY = [word for hours in range(1, 18) for word in ("--every", f"{hours}h")]
NOBODY = 65_534

WRONG: tuple[tuple[tuple[str | bytes, ...], int, str], ...] = (
    (("--bogus",), 2, "usage"),
    (("bogus",), 2, "usage"),
    ((), 2, "usage"),
    (("task",), 2, "usage"),
    (("task", "add"), 2, "usage"),
    (("runs", "--bogus"), 2, "usage"),
    (("runs", "--limit", "x"), 2, "usage"),
    (("runs", "--lim", "1"), 2, "usage"),
    (("runs", "--limit", "0"), 2, "param_invalid"),
    (("runs", "--limit", "501"), 2, "param_invalid"),
    (("runs", "--status", "bogus"), 2, "choice_unknown"),
    (("runs", "--task", "nobody"), 3, "task_unknown"),
    (("runs", "--", "x"), 2, "usage"),
    (("status", "--zone\n", "x\ny"), 2, "usage"),
    (("task", "set", "nobody", "--boot"), 3, "task_unknown"),
    (("task", "set", "old", "--cron", "bad"), 2, "cron_fields"),
    (("task", "rename", "old", "a\nb"), 2, "name_control"),
    (("task", "show", b"\xff\xfe"), 2, "not_utf8"),
    (("start", "nobody"), 3, "task_unknown"),
    (("start", "old", "--env", "novalue"), 2, "usage"),
    (("start", "old", "--env", "1A=x"), 2, "binding_name_invalid"),
    (("stop", "99"), 3, "run_unknown"),
    (("stop", "old", "--grace", "6m"), 2, "usage"),
    (("settle", "1", "--as", "succeeded", "--reason", "x"), 2, "usage"),
    (("settle", "1", "--as", "lost"), 2, "usage"),
    (("log", "old", "--attempt", "17"), 2, "param_invalid"),
    (("cron", "next", "* * * *"), 2, "cron_fields"),
    (("cron", "next", "0 0 30 2 *"), 2, "cron_never"),
    (("cron", "next", "* * * * *", "--zone", "Mars/Olympus"), 2, "zone_unknown"),
    (("cron", "next", "* * * * *", "--count", "0"), 2, "count_invalid"),
    (("cron", "next", "* * * * *", "--count", "1001"), 2, "count_invalid"),
    (("cron", "next", "* * * * *", "--after", "yesterday"), 2, "time_invalid"),
    (("cron", "next", "* * * * *", "--after", "9" * 30), 2, "cron_horizon"),
    (("import", "crontab", "/no/such/file"), 2, "file_unreadable"),
    (("import", "crontab", "/"), 2, "file_unreadable"),
    (("import", "crontab", "-", "--dialect", "busybox", "--user-column"), 2, "crontab_user_column"),
    ((*ADD,), 2, "command_missing"),
    ((*ADD, "--"), 2, "command_empty"),
    ((*ADD, "--shell", " "), 2, "command_empty"),
    ((*ADD, "--shell", "x", "--", "y"), 2, "command_twice"),
    ((*ADD, "--cron", "61 * * * *", "--", "true"), 2, "cron_range"),
    ((*ADD, "--cron", "* * * * *", "--zone", "Nowhere", "--", "true"), 2, "zone_unknown"),
    ((*ADD, "--zone", "../../etc/passwd", "--", "true"), 2, "zone_invalid"),
    ((*ADD, "--every", "0s", "--", "true"), 2, "duration_range"),
    ((*ADD, "--every", "5", "--", "true"), 2, "duration_invalid"),
    ((*ADD, *MANY, "--", "true"), 2, "triggers_too_many"),
    ((*ADD, "--overlap", "maybe", "--", "true"), 2, "usage"),
    ((*ADD, "--misfire", "maybe", "--", "true"), 2, "usage"),
    ((*ADD, "--nice", "20", "--", "true"), 2, "number_out_of_range"),
    ((*ADD, "--retry", "16", "--", "true"), 2, "number_out_of_range"),
    ((*ADD, "--retry", "1", "--retry-on", "luck", "--", "true"), 2, "choice_unknown"),
    ((*ADD, "--max-parallel", "0", "--", "true"), 2, "number_out_of_range"),
    ((*ADD, "--timeout", "0s", "--", "true"), 2, "usage"),
    ((*ADD, "--cwd", "here", "--", "true"), 2, "path_invalid"),
    ((*ADD, "--env", "QL3_HEAD=x", "--", "true"), 2, "binding_name_refused"),
    ((*ADD, "--env", "A=" + "x" * 65_537, "--", "true"), 2, "value_too_large"),
    ((*ADD, "--secret", "A=token", "--", "true"), 3, "secret_unknown"),
    ((*ADD, "--secret", "A", "--", "true"), 2, "usage"),
    ((*ADD, "--secret", "A=x", "--env", "A=y", "--", "true"), 3, "secret_unknown"),
    ((*ADD, "--shell", "x" * 65_537), 2, "command_too_large"),
    ((*ADD, "--", "true", "x" * 16_385), 2, "command_too_large"),
    ((*ADD, "--", *["x"] * 257), 2, "command_too_large"),
    (("task", "add", "old", "--", "true"), 3, "task_exists"),
    (("task", "add", "", "--", "true"), 2, "name_empty"),
    (("task", "add", "a\nb", "--", "true"), 2, "name_control"),
    (("task", "add", "a\u2028b", "--", "true"), 2, "name_control"),
    (("task", "add", " a", "--", "true"), 2, "name_edge"),
    (("task", "add", "17", "--", "true"), 2, "name_is_number"),
    (("task", "add", LONG, "--", "true"), 2, "name_too_long"),
    (("task", "add", "名" * 129, "--", "true"), 2, "name_too_long"),
)


def test_every_wrong_command_line_has_its_code_and_changes_nothing(kit: Kit) -> None:
    kit.ok("task", "add", "old", "--every", "1h", "--", "true")
    kit.ok("start", "old", "--wait")
    found = {}
    with kit.daemon(), kit.unchanged():
        for words, _status, _code in WRONG:
            got, document = kit(*words)
            error = document.get("error", {"code": "none", "message": ""})
            assert "\n" not in error["message"], words
            found[words] = (got, error["code"])
    wanted = {words: (status, code) for words, status, code in WRONG}
    differ = {str(words)[:90]: found[words] for words in wanted if found[words] != wanted[words]}
    assert differ == {}


def test_the_same_without_a_daemon(kit: Kit) -> None:
    kit.ok("task", "add", "old", "--every", "1h", "--", "true")
    kit.ok("start", "old", "--wait")
    with kit.unchanged():
        for words, status, code in WRONG[::7]:
            got, document = kit(*words)
            assert got == status, (words, document)
            assert document["error"]["code"] == code
    told = kit.run("task", "add", "new", "--secret", "A=hunter2", "--", "true")
    assert (told.status, told.out) == (3, "")
    assert "hunter2" not in told.err
    assert told.err.count("\n") == 1


def test_the_longest_names_are_fine(kit: Kit) -> None:
    for name in ("x" * 128, "名" * 128, "a b/c:d*?"):
        kit.ok("task", "add", name, "--", "true")
        run = kit.ok("start", name, "--wait")
        assert run["task"] == name
        assert kit.ok("task", "show", name)["task"] == name


# -- the state directory --------------------------------------------------------------------------


def test_a_missing_state_is_named_and_never_made(bare: Kit) -> None:
    for words in (("runs",), ("task", "add", "t", "--", "true"), ("status",)):
        bare.no(*words, status=3, code="state_missing")
    told = bare.run("run")
    assert (told.status, told.out) == (3, "")
    assert f"(state={bare.state})" in told.err
    assert not bare.state.exists()
    bare.state.mkdir()
    bare.no("runs", status=3, code="state_missing")
    assert list(bare.state.iterdir()) == []


def test_a_state_that_is_a_file_or_below_one(bare: Kit) -> None:
    bare.state.write_text("mine")
    for words in (("runs",), ("init",)):
        bare.no(*words, status=2, code="state_not_directory")
    bare.no("--state", str(bare.state / "x"), "init", status=2, code="state_not_directory")
    bare.no("--state", "", "runs", status=2, code="path_invalid")
    bare.no("--state", "/", "init", status=2, code="path_invalid")
    bare.no("--state", "/" + "x" * 5_000, "runs", status=2, code="path_invalid")
    assert bare.state.read_text() == "mine"


def test_a_directory_with_something_else_in_it_is_not_taken(bare: Kit) -> None:
    bare.state.mkdir()
    (bare.state / "photo").touch()
    bare.no("init", status=3, code="state_not_empty")
    assert [path.name for path in bare.state.iterdir()] == ["photo"]
    for profile, status, code in (
        ("nothing", 2, "profile_unknown"),
        ("cluster-node", 3, "profile_cluster"),
    ):
        bare.no("init", "--profile", profile, status=status, code=code)


def test_a_directory_that_others_use_is_never_closed_to_them(bare: Kit) -> None:
    """As /tmp, /var/run or the root of a disk: shut, it would be the end of what they do there."""
    bare.state.mkdir()
    (bare.state / "photo").touch()
    bare.state.chmod(0o1777)
    backup = str(bare.file("backup"))
    for words in (
        *(("status",), ("run",), ("doctor",), ("init",), ("audit",), ("keyring", "rotate")),
        *(("backup", backup), ("restore", backup), ("task", "add", "t", "--", "true")),
    ):
        assert bare.run(*words).status != 0
        assert bare.state.stat().st_mode & 0o7777 == 0o1777
        assert [path.name for path in bare.state.iterdir()] == ["photo"]


def test_a_runtime_directory_that_others_use_is_refused_and_an_own_one_closed(kit: Kit) -> None:
    for name, status in (("photo", 5), ("ntp.stamp", 0)):
        runtime = kit.file(f"runtime of {name}")
        runtime.mkdir()
        (runtime / name).touch()
        runtime.chmod(0o755)
        if status:
            told = kit.run("--runtime", str(runtime), "run")
            assert (told.status, "directory_shared" in told.err) == (status, True)
            assert [path.name for path in runtime.iterdir()] == [name]
        else:
            with kit.daemon("--runtime", str(runtime)) as daemon:
                assert daemon.stop() == 0
        assert runtime.stat().st_mode & 0o7777 == (0o755 if status else 0o700)


def test_a_log_directory_that_others_use_is_refused(kit: Kit) -> None:
    logs = kit.file("disk")
    logs.mkdir()
    (logs / "photo").touch()
    logs.chmod(0o755)
    config = json.loads((kit.state / "config.json").read_bytes()) | {"logs": str(logs)}
    (kit.state / "config.json").write_text(json.dumps(config))
    kit.ok("task", "add", "t", "--", "true")
    kit("start", "t", "--wait")
    assert logs.stat().st_mode & 0o7777 == 0o755
    assert kit.ok("runs")["runs"][0]["error_code"] == "directory_shared"
    (logs / "photo").unlink()
    (logs / "lost+found").mkdir()
    assert kit.ok("start", "t", "--wait")["status"] == "succeeded"
    assert logs.stat().st_mode & 0o7777 == 0o700


def test_a_link_to_a_disk_is_followed(bare: Kit) -> None:
    disk = bare.file("disk")
    bare.state.symlink_to(disk)
    bare.no("runs", status=3, code="state_missing")
    disk.mkdir(mode=0o700)
    bare.ok("init")
    assert bare.ok("status")["owner"] == "command"
    assert (disk / "edge.db").exists()


def test_a_state_of_another_user(kit: Kit) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    os.chown(kit.state, NOBODY, NOBODY)
    for words in (("runs",), ("init",)):
        kit.no(*words, status=3, code="state_forbidden")
    assert kit.run("run").status == 3
    os.chown(kit.state, 0, 0)
    kit.ok("runs")


def fill(path: Path) -> None:
    """Write until nothing more fits."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4_096)


def test_a_read_only_state(bare: Kit) -> None:
    with small_disk(bare.state, "size=8m"):
        bare.ok("init")
        bare.ok("task", "add", "t", "--", "true")
        subprocess.run(["mount", "-o", "remount,ro", str(bare.state)], check=True)
        for words in (("runs",), ("task", "add", "u", "--", "true")):
            bare.no(*words, status=4, code="state_read_only")
        assert bare.run("run").status == 4
        subprocess.run(["mount", "-o", "remount,rw", str(bare.state)], check=True)
        assert len(bare.ok("task", "list")["tasks"]) == 1


def test_a_full_disk_refuses_and_damages_nothing(bare: Kit) -> None:
    with small_disk(bare.state, "size=8m"):
        bare.ok("init")
        bare.ok("task", "add", "t", "--every", "1h", "--no-log", "--", "true")
        ballast = bare.state / "logs" / "ballast"
        fill(ballast)
        with bare.unchanged():
            for number in range(3):
                bare.no(
                    "task",
                    "add",
                    f"u{number}",
                    "--env",
                    "A=" + "x" * 60_000,
                    "--",
                    "true",
                    status=4,
                    code="no_space",
                )
        assert bare.ok("task", "list")["tasks"][0]["task"] == "t"
        with bare.daemon() as daemon:
            assert "log_capacity" in bare.ok("status")["degraded"]
            bare.no("start", "t", status=4, code="no_space")
            ballast.unlink()
            bare.ok("task", "add", "u", "--", "true")
            assert bare.ok("start", "t", "--wait")["status"] == "succeeded"
            assert daemon.stop() == 0


def test_a_state_in_memory_is_told_of_as_soon_as_it_is_made(bare: Kit) -> None:
    """On a router /tmp and /var are memory; the first reboot would be the first word of it."""
    with small_disk(bare.state, "size=8m"):
        told = bare.run("init")
    assert told.status == 0
    assert "state_volatile: The state is in memory" in told.out


def test_an_init_on_a_full_disk_goes_on_when_there_is_room(bare: Kit) -> None:
    with small_disk(bare.place / "disk", "size=1m"):
        bare.state = bare.place / "disk" / "s"
        ballast = bare.place / "disk" / "ballast"
        fill(ballast)
        status, document = bare("init")
        assert (status, document["error"]["code"]) == (4, "no_space")
        bare.no("runs", status=3, code="state_missing")
        ballast.unlink()
        assert bare.ok("init")["created"] is True
        assert bare.ok("runs")["runs"] == []


def test_a_newer_schema_is_refused_untouched(kit: Kit) -> None:
    kit.sql(
        "INSERT INTO migration (number, name, sha256, applied_at_ms) VALUES (99, 'x', ?, 0)",
        "0" * 64,
    )
    with kit.unchanged():
        kit.no("runs", status=5, code="schema_too_new")
        assert kit.run("run").status == 5


@pytest.mark.parametrize("damage", ["empty", "garbage", "half", "foreign"])
def test_a_damaged_database_is_named_and_kept(kit: Kit, damage: str) -> None:
    kit.ok("task", "add", "t", "--", "true")
    for _ in range(3):
        kit.ok("start", "t", "--wait")
    path = kit.state / "edge.db"
    data = path.read_bytes()
    if damage == "foreign":
        path.unlink()
        kit.sql("CREATE TABLE mine (x)")
        data = path.read_bytes()
    else:
        data = {"empty": b"", "garbage": b"garbage" * 999, "half": data[: len(data) // 2]}[damage]
        path.write_bytes(data)
    code = "schema_foreign" if damage == "foreign" else "database_corrupt"
    kit.no("runs", status=5, code=code)
    told = kit.run("run")
    assert (told.status, told.out) == (5, "")
    assert code in told.err
    assert path.read_bytes() == data


def test_a_missing_database_is_never_made_anew(kit: Kit) -> None:
    (kit.state / "edge.db").unlink()
    kit.no("runs", status=3, code="state_missing")
    assert kit.run("run").status == 3
    assert not (kit.state / "edge.db").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "The document is not JSON."),
        ("{", "The document is not JSON."),
        ("[]", "The document is not an object."),
        ('{"profile": "edge"}', "profile, enabled or limits is not there or is wrong."),
        ('{"profile": "edge", "enabled": 1}', "profile, enabled or limits is not there or is"),
        ('{"profile": "edge", "enabled": true, "limits": []}', "profile, enabled or limits is"),
        ('{"profile": "edge", "enabled": true, "logs": "here"}', "logs is not an absolute path."),
        (
            '{"profile": "edge", "enabled": true, "oth\\u001b": 1}',
            "is no such entry. (field='oth\\x",
        ),
        ('{"profile": "edge", "enabled": true, "limits": {"x": 1}}', "no such entry. (field='x')"),
        (
            '{"profile": "edge", "enabled": true, "limits": {"cache_kib": "1"}}',
            "A profile number is not a whole number. (field=cache_kib)",
        ),
        ("[" * 100_000, "config.json: "),
    ],
)
def test_a_configuration_that_is_wrong_says_what_is_wrong_with_it(
    kit: Kit, text: str, said: str
) -> None:
    (kit.state / "config.json").write_text(text)
    kit.no("runs", status=5, code="config_corrupt")
    told = kit.run("run")
    assert told.status == 5
    assert "config_corrupt: config.json: " in told.err
    assert said in told.err


def test_a_database_of_another_profile_is_refused(kit: Kit) -> None:
    config = kit.state / "config.json"
    config.write_text(config.read_text().replace('"edge"', '"standalone"'))
    kit.no("runs", status=3, code="profile_mismatch")


def test_a_state_that_somebody_owns_is_busy(kit: Kit) -> None:
    with kit.daemon():
        error = kit.no("--runtime", str(kit.file("other")), "runs", status=4, code="state_owned")
        assert error["message"]
    shutil.rmtree(kit.state / "run")
    kit.ok("runs")
