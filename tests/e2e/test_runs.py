"""A manual run: queued or started, waited for, with its own recipe; and its log read back."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.disks import small_disk
from tests.e2e.kit import WITHIN_S, Kit, alive, gone, pids
from tests.support import ROOT, until

# What `log` shows of this on a terminal, and what it gives to a pipe.
ODD = b"a\x1b[31mred\x07\r\nb\xff\xe4\xbd\xa0\n"
SHOWN = "a\u241b[31mred\u2407\nb\\xff你\n"


def test_a_start_without_a_daemon_queues_and_says_so(kit: Kit) -> None:
    kit.ok("task", "add", "t", "--shell", "echo done")
    told = kit.run("start", "t")
    assert told.status == 0
    assert "queued" in told.out
    assert "no daemon" in told.out
    with kit.unchanged():
        kit.no("start", "t", status=3, code="overlap_skipped")
    with kit.daemon():
        assert kit.ended(1)["status"] == "succeeded"
        assert kit.run("start", "t").out == "run 2 started\n"
        kit.ended(2)


def test_a_wait_without_a_daemon_runs_that_one_run_and_no_other(kit: Kit) -> None:
    kit.ok("task", "add", "waiting", "--", "true")
    kit.ok("task", "add", "wanted", "--shell", "exit 7")
    kit.ok("start", "waiting")
    status, run = kit("start", "wanted", "--wait")
    assert (status, run["status"], run["exit_code"], run["attempts"]) == (1, "failed", 7, 1)
    assert kit.shown(1)["status"] == "queued"


def test_a_wait_that_cannot_begin_without_a_daemon_does_not_hang(kit: Kit) -> None:
    kit.ok("task", "add", "t", "--overlap", "queue", "--", "true")
    kit.ok("start", "t")
    error = kit.no("start", "t", "--wait", status=4, code="run_queued")
    assert kit.shown(error["facts"]["run"])["status"] == "queued"
    assert "no daemon runs" in error["message"]


@pytest.mark.parametrize("with_daemon", [False, True])
def test_a_run_that_waits_for_room_says_so(bare: Kit, with_daemon: bool) -> None:
    """Neither a daemon nor a second start would help; only room does."""
    with small_disk(bare.state, "size=8m"):
        bare.ok("init")
        bare.ok("task", "add", "t", "--", "true")
        with bare.daemon() if with_daemon else contextlib.nullcontext():
            told = bare.run("start", "t").out
            assert told == "run 1 queued (there is no room for its log; see doctor)\n"
            error = bare.no("start", "t", status=3, code="overlap_skipped")
            assert error["message"] == "The task has a run that waits already."
            bare.ok("task", "set", "t", "--overlap", "queue")
            if not with_daemon:
                error = bare.no("start", "t", "--wait", status=4, code="run_queued")
                assert "no room" in error["message"]


def test_a_wait_says_what_it_waits_for_besides_its_turn(kit: Kit) -> None:
    """Somebody cleared the logs away, folder and all: until a new start nothing runs."""
    kit.ok("task", "add", "t", "--overlap", "queue", "--", "true")
    with kit.daemon():
        kit.ok("start", "t", "--wait")
        shutil.rmtree(kit.state / "logs")
        command = kit.command("start", "t", "--wait")
        with subprocess.Popen(
            command, env=kit.environment, cwd=ROOT, stderr=subprocess.PIPE
        ) as waiting:
            assert waiting.stderr is not None
            assert waiting.stderr.readline() == b"run 2 waits: storage_unavailable; see status\n"
            told = " ".join(kit.run("status").out.split())
            assert "come back when the daemon starts anew" in told
            assert kit.run("start", "t").out == "run 3 queued (storage_unavailable; see status)\n"
            waiting.terminate()
    with kit.daemon():
        assert kit.ended(2)["status"] == kit.ended(3)["status"] == "succeeded"


def test_a_start_with_variables_makes_a_recipe_of_its_own(kit: Kit) -> None:
    kit.ok("task", "add", "t", "--env", "A=task", "--env", "B=task", "--shell", "echo $A-$B")
    first = kit.ok("task", "show", "t")
    assert kit.ok("start", "t", "--wait", "--env", "A=run")["revision"] == 1
    assert kit.ok("log", "t")["text"] == "run-task\n"
    assert kit.ok("start", "t", "--wait")["revision"] == 1
    assert kit.ok("log", "2")["text"] == "task-task\n"
    assert kit.ok("task", "show", "t")["context_ref"] == first["context_ref"]


def test_nothing_of_the_daemons_environment_reaches_a_task(kit: Kit) -> None:
    """The seed's task environment is the recipe, whole and alone (ADR-0024 section 1)."""
    kit.ok("task", "add", "t", "--env", "OWN=1", "--", "/usr/bin/env", "-0")
    marked = {**kit.environment, "MARKER": "leaked", "LD_PRELOAD": "", "LANG": "xx", "TZ": "EST5"}
    with kit.daemon(environment=marked):
        kit.ok("start", "t", "--wait")
        seen = set(kit.ok("log", "t")["text"].split("\0")) - {""}
    shown = kit.ok("task", "show", "t")["environment"]
    assert seen == {f"{each['name']}={each['value']}" for each in shown}
    assert kit.ok("start", "t", "--wait", environment=marked)["status"] == "succeeded"
    assert set(kit.ok("log", "t")["text"].split("\0")) - {""} == seen, "without a daemon too"


def test_a_program_is_found_through_the_tasks_own_path(kit: Kit) -> None:
    program = kit.file("tool")
    program.write_text("#!/bin/sh\necho found\n")
    program.chmod(0o755)
    kit.ok("task", "add", "t", "--env", f"PATH={kit.place}:/usr/bin:/bin", "--", "tool")
    assert kit.ok("start", "t", "--wait")["status"] == "succeeded"
    assert kit.ok("log", "t")["text"] == "found\n"
    kit.ok("task", "set", "t", "--", "no-such-program")
    assert kit("start", "t", "--wait")[1]["exit_code"] == 127
    kit.ok("task", "set", "t", "--cwd", "/no/such/place", "--", "true")
    status, run = kit("start", "t", "--wait")
    assert (status, run["status"], run["error_code"]) == (1, "failed", "cwd_unavailable")


def test_a_log_is_read_by_range_by_tail_and_raw(kit: Kit) -> None:
    kit.file("out").write_bytes(ODD + b"x" * 300_000)
    kit.ok("task", "add", "t", "--", "/bin/cat", str(kit.file("out")))
    run = kit.ok("start", "t", "--wait")
    whole = ODD + b"x" * 300_000
    assert run["log_bytes"] == len(whole)

    def raw(*options: str) -> bytes:
        command = kit.command("log", "t", *options)
        done = subprocess.run(
            command, env=kit.environment, cwd=ROOT, stdout=subprocess.PIPE, check=True
        )
        return done.stdout

    assert raw() == whole, "to a pipe the bytes as they are"
    assert raw("--raw") == whole
    assert raw("--offset", "1", "--length", "4") == whole[1:5]
    assert raw("--length", "300000") == whole[:300_000]
    assert raw("--length", "0") == b""
    assert raw("--offset", "9999999") == b""
    assert raw("--tail", "7") == b"x" * 7
    assert raw("--tail", "0") == b""
    assert raw("--tail", "290000") == whole[-290_000:]
    assert raw("--tail", "9999999") == whole
    first = kit.ok("log", "t")
    assert (first["offset"], first["end"], first["total"]) == (0, 262_144, len(whole))
    assert first["text"].startswith("a\x1b[31mred\x07\r\nb\\xff你\n")
    last = kit.ok("log", "t", "--tail", "9999999")
    assert (last["end"], len(last["text"])) == (len(whole), 262_144)
    for options in (("--tail", "1", "--offset", "1"), ("--follow",), ("--tail", "-1")):
        kit.no("log", "t", *options, status=2, code="usage")


def test_a_task_without_a_log_has_none(kit: Kit) -> None:
    kit.ok("task", "add", "t", "--no-log", "--shell", "echo hidden")
    run = kit.ok("start", "t", "--wait")
    assert (run["log_bytes"], run["log_truncated"]) == (None, None)
    kit.no("log", "t", status=3, code="log_none")


@contextlib.contextmanager
def on_terminal(kit: Kit, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A command whose stdout is a terminal: (process, the other end)."""
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            kit.command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=subprocess.PIPE,
            env=kit.environment,
            cwd=ROOT,
            start_new_session=True,
        )
        os.close(theirs)
        try:
            with process:
                yield process, ours
        finally:
            if process.poll() is None:
                process.kill()
    finally:
        os.close(ours)


def read_all(fd: int) -> str:
    """Everything a terminal shows until its other end is closed."""
    data = b""
    with contextlib.suppress(OSError):  # EIO is the end of a terminal
        while piece := os.read(fd, 65_536):
            data += piece
    return data.decode("utf-8").replace("\r\n", "\n")


def shown(kit: Kit, output: bytes) -> str:
    """What a terminal shows of a task's output."""
    kit.file("out").write_bytes(output)
    kit.ok("task", "add", "t", "--", "/bin/cat", str(kit.file("out")))
    kit.ok("start", "t", "--wait")
    with on_terminal(kit, "log", "t") as (process, terminal):
        told = read_all(terminal)
        assert process.wait(WITHIN_S) == 0
    return told


def test_control_characters_are_visible_on_a_terminal_only(kit: Kit) -> None:
    assert shown(kit, ODD) == SHOWN


def test_a_character_that_is_cut_by_a_range_is_shown_whole_on_a_terminal(kit: Kit) -> None:
    text = "你" * 90_000  # 270,000 bytes: the first range ends within a character
    assert shown(kit, text.encode("utf-8")) == text


def test_a_followed_log_ends_with_its_run_over_every_attempt(kit: Kit) -> None:
    kit.ok(
        *("task", "add", "t", "--retry", "1", "--backoff", "10ms", "--shell"),
        f'echo one; while [ ! -e "{kit.place}/go" ]; do sleep 0.05; done; echo two; exit 1',
    )
    with kit.daemon():
        kit.ok("start", "t")
        command = kit.command("log", "t", "--follow")
        with subprocess.Popen(
            command, env=kit.environment, cwd=ROOT, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"one\n"
            kit.file("go").touch()
            assert process.stdout.read() == b"two\none\ntwo\n"
            assert process.wait(WITHIN_S) == 0
    assert kit.ok("log", "t", "--attempt", "1")["text"] == "one\ntwo\n"


def test_following_without_a_daemon_keeps_nobody_from_the_state(kit: Kit) -> None:
    kit.ok("task", "add", "t", "--shell", "echo out")
    kit.ok("start", "t")
    command = kit.command("log", "t", "--follow")
    with subprocess.Popen(
        command, env=kit.environment, cwd=ROOT, stdout=subprocess.PIPE
    ) as process:
        with kit.daemon():
            assert process.communicate(timeout=WITHIN_S)[0] == b"out\n"
        assert process.returncode == 0


@pytest.mark.parametrize("with_daemon", [False, True])
def test_an_interrupted_wait_leaves_the_run_running(kit: Kit, with_daemon: bool) -> None:
    kit.ok("task", "add", "t", "--shell", f"echo $$ >> {kit.place}/pid; sleep 60; exit 5")
    with kit.daemon() if with_daemon else contextlib.nullcontext():
        process = subprocess.Popen(
            kit.command("start", "t", "--wait"),
            env=kit.environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        (task,) = pids(kit.file("pid"))
        os.killpg(process.pid, signal.SIGINT)
        assert process.communicate(timeout=WITHIN_S) == (b"", b"")
        assert process.returncode == 130
        assert alive(task)
        assert kit.shown(1)["status"] == "running"
    with kit.daemon() as daemon:
        assert kit.shown(1)["status"] == "running", "adopted"
        kit.ok("stop", "1", "--grace", "5s")
        assert daemon.stop() == 0
    gone(task)


def test_an_interrupted_follow_ends_with_130(kit: Kit) -> None:
    kit.ok("task", "add", "t", "--shell", f"echo $$ > {kit.place}/pid; echo out; sleep 60")
    with kit.daemon():
        kit.ok("start", "t")
        process = subprocess.Popen(
            kit.command("log", "t", "--follow"),
            env=kit.environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"out\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=WITHIN_S) == (b"", b"")
        assert process.returncode == 130
        assert alive(*pids(kit.file("pid")))
        assert kit.ok("stop", "t")["status"] == "cancelled"


def test_a_closed_pipe_ends_quietly(kit: Kit) -> None:
    kit.ok("task", "add", "t", "--", "/usr/bin/seq", "100000")
    kit.ok("start", "t", "--wait")
    program = " ".join(str(word) for word in kit.command())
    for words in ("log t", "--json log t", "task list"):
        script = f"{program} {words} | head -c 10 > /dev/null; echo ${{PIPESTATUS[0]}}"
        done = subprocess.run(
            ["bash", "-c", script], env=kit.environment, cwd=ROOT, capture_output=True
        )
        assert (done.stdout, done.stderr) == (b"0\n", b""), words


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_missing_stream_never_becomes_the_database(kit: Kit, closed: str) -> None:
    program = " ".join(str(word) for word in kit.command())
    script = f"{program} --json task add t --shell 'echo hi' {closed}"
    done = subprocess.run(
        ["bash", "-c", script], env=kit.environment, cwd=ROOT, capture_output=True
    )
    assert done.returncode == 0, done
    assert kit.ok("start", "t", "--wait")["status"] == "succeeded"


def test_a_full_output_device_is_named(kit: Kit) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            kit.command("runs"), env=kit.environment, cwd=ROOT, stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode == 4
    assert b"output_failed" in done.stderr


def test_a_daemon_whose_lines_nobody_reads_any_more_goes_on(kit: Kit) -> None:
    """A reader that hangs must not hold up every run."""
    kit.ok("task", "add", "t", "--", "true")
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writer, b"x" * 4096):
            pass
    os.set_blocking(writer, True)
    daemon = subprocess.Popen(
        kit.command("run"), env=kit.environment, cwd=ROOT, stdout=writer, stderr=writer
    )
    try:
        until((kit.state / "run" / "control.sock").exists, what="a daemon")
        assert kit.ok("start", "t", "--wait")["status"] == "succeeded"
        daemon.terminate()
        assert daemon.wait(WITHIN_S) == 0
    finally:
        daemon.kill()
        daemon.wait(WITHIN_S)
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize(
    "locale", [{}, {"LC_ALL": "C"}, {"LANG": "C"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}]
)
def test_chinese_works_in_every_locale_without_home_and_terminal(
    kit: Kit, locale: dict[str, str]
) -> None:
    kit.environment.update(locale)
    kit.environment["PYTHONCOERCECLOCALE"] = "0"
    name = "每日备份"
    kit.ok("task", "add", name, "--env", "V=值", "--shell", "echo 你好 $V")
    run: dict[str, Any] = kit.ok("start", name, "--wait")
    assert (run["task"], run["status"]) == (name, "succeeded")
    assert kit.ok("log", name)["text"] == "你好 值\n"
    assert kit.run("log", name).out == "你好 值\n"
    assert name in kit.run("task", "list").out
    assert kit.ok("runs", "--task", name)["runs"][0]["task"] == name
    assert name in kit.run("task", "show", name).out


def test_a_home_that_is_not_in_the_environment_comes_from_the_user_database(kit: Kit) -> None:
    kit.ok("task", "add", "t", "--shell", 'echo "$HOME"; pwd')
    kit.ok("start", "t", "--wait")
    first, second = kit.ok("log", "t")["text"].split()
    assert first == second
    assert first.startswith("/")


def test_a_run_is_found_by_number_id_and_task(kit: Kit) -> None:
    kit.ok("task", "add", "t", "--shell", "echo $0")
    kit.ok("start", "t", "--wait")
    run = kit.ok("start", "t", "--wait")
    for word in ("2", run["run"], run["run"].upper(), "t"):
        assert kit.shown(word)["run"] == run["run"]
    kit.no("task", "add", "17", "--", "true", status=2, code="name_is_number")
    for word in ("0", "999999999999999", "9" * 40, "no-task", "", "run 2"):
        kit.no("show", word, status=3, code="run_unknown")


def test_a_refused_start_with_variables_leaves_no_recipe(kit: Kit) -> None:
    kit.ok("task", "add", "t", "--", "true")
    kit.ok("start", "t")
    with kit.unchanged():
        kit.no("start", "t", "--env", "A=1", status=3, code="overlap_skipped")


def test_a_box_may_have_numbers_of_its_own(kit: Kit) -> None:
    config = kit.state / "config.json"
    limits = {"reserve_bytes": 0, "log_quota_bytes": 65_536}
    config.write_text(json.dumps({**json.loads(config.read_text()), "limits": limits}))
    kit.ok("task", "add", "t", "--shell", "head -c 100000 /dev/zero")
    run = kit.ok("start", "t", "--wait")
    assert (run["log_bytes"], run["log_truncated"]) == (65_536, True)
    for wrong in ({"reserve_byte": 1}, {"log_quota_bytes": 1}, {"active_runs_max": "4"}):
        config.write_text(json.dumps({**json.loads(config.read_text()), "limits": wrong}))
        kit.no("status", status=5, code="config_corrupt")
