"""Ending a run from outside, and how runs of one task meet: stop, time-out, overlap, retry."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from qinglong_edge.app.runtime import Parts
from tests.e2e.kit import Kit, alive, gone, pids, request
from tests.e2e.resident import Moved, Resident
from tests.support import until

HOUR_MS = 3_600_000
SAY = 'echo $$ >> "{0}/pid"; '
SLEEP = SAY + "exec sleep 60"
STUBBORN = "trap '' TERM; " + SAY + "while :; do sleep 0.1; done"
# A child and a grandchild of the same session.
TREE = SAY + 'sh -c \'echo $$ >> "{0}/pid"; sleep 61 & echo $! >> "{0}/pid"; wait\' & wait'


def start(kit: Kit, task: str = "t") -> Any:
    """A run that the daemon began."""
    return kit.ask("run.start", name=task)["result"]


def stop(kit: Kit, run: int | str, **params: object) -> Any:
    """RUN of a stop."""
    return kit.ask("run.stop", run=str(run), **params)["result"]


def test_a_stop_ends_child_and_grandchild_before_it_says_cancelled(kit: Kit) -> None:
    kit.ok("task", "add", "t", "--shell", TREE.format(kit.place))
    with kit.daemon():
        start(kit)
        family = pids(kit.file("pid"), 3)
        assert all(map(alive, family))
        run = kit.ok("stop", "t")
        assert not any(map(alive, family))
        expected = ("cancelled", "user", "EXECUTION_CANCELLED", 15)
        names = ("status", "cancel_reason", "error_code", "signal")
        assert tuple(run[name] for name in names) == expected
        words = [each["type"] for each in kit.ok("show", "t")["events"]]
        assert words.index("run.cancel_requested") < words.index("run.cancelled")


def test_a_task_that_ignores_term_is_killed_after_its_grace(kit: Kit) -> None:
    kit.ok("task", "add", "t", "--grace", "300ms", "--shell", STUBBORN.format(kit.place))
    with kit.daemon():
        start(kit)
        (task,) = pids(kit.file("pid"))
        run = kit.ok("stop", "1")
        assert not alive(task)
        assert (run["status"], run["signal"]) == ("cancelled", 9)
        requested = kit.ok("show", "1")["run"]
        assert requested["duration_ms"] >= 300


def test_a_second_stop_can_shorten_the_grace_of_the_first(kit: Kit) -> None:
    kit.ok("task", "add", "t", "--shell", STUBBORN.format(kit.place))
    with kit.daemon():
        start(kit)
        (task,) = pids(kit.file("pid"))
        with kit.connect() as slow:
            slow.sendall(request("run.stop", run="1", grace_ms=60_000))
            until(lambda: kit.ask("run.show", run="1")["result"]["run"]["cancel_reason"])
            assert stop(kit, 1, grace_ms=0)["status"] == "cancelled"
            assert b'"cancelled"' in slow.recv(65_536), "and the first one hears of it"
        gone(task)


def test_a_task_that_ends_itself_on_term_keeps_its_own_code(kit: Kit) -> None:
    shell = "trap 'echo bye; exit 3' TERM; " + SAY + "while :; do sleep 0.05; done"
    kit.ok("task", "add", "t", "--shell", shell.format(kit.place))
    with kit.daemon():
        start(kit)
        pids(kit.file("pid"))
        run = stop(kit, 1)
        assert (run["status"], run["exit_code"], run["signal"]) == ("cancelled", 3, None)
    assert kit.ok("log", "1")["text"].endswith("bye\n"), "its last words are kept"


def test_a_queued_run_is_stopped_without_a_daemon_too(kit: Kit) -> None:
    kit.ok("task", "add", "t", "--", "true")
    kit.ok("start", "t")
    run = kit.ok("stop", "1")
    assert (run["status"], run["started_at_ms"]) == ("cancelled", None)
    kit.no("stop", "1", status=3, code="run_ended")


def test_a_run_of_a_dead_daemon_is_stopped_without_a_new_one(kit: Kit) -> None:
    kit.ok("task", "add", "t", "--shell", SLEEP.format(kit.place))
    with kit.daemon() as daemon:
        start(kit)
        (task,) = pids(kit.file("pid"))
        daemon.kill()
    run = kit.ok("stop", "t")
    assert run["status"] == "cancelled"
    gone(task)


def gone_if_begun(kit: Kit) -> None:
    """The task is gone; on a busy machine its time may be over before it has said who it is."""
    if kit.file("pid").exists():
        gone(*pids(kit.file("pid")))


def test_a_time_out_ends_the_run_as_timed_out(kit: Kit) -> None:
    shell = SLEEP.format(kit.place)
    kit.ok("task", "add", "t", "--timeout", "300ms", "--retry", "3", "--shell", shell)
    with kit.daemon():
        start(kit)
        run = kit.ended(1)
        assert (run["status"], run["error_code"]) == ("timed_out", "EXECUTION_TIMED_OUT")
        assert run["attempts"] == 1, "a time-out is an end, not a failure to be repeated"
        gone_if_begun(kit)


def test_a_task_that_ended_before_its_time_out_has_ended_so_whatever_it_left_running(
    kit: Kit,
) -> None:
    """The time-out comes while the wrapper still waits for what the task has left at its log."""
    parts = Parts()
    parts.clock = clock = Moved()
    path = kit.file("pid")
    with Resident(kit.state, parts) as resident:
        said = f'echo $! >> "{path}"; echo $$ >> "{path}"'
        resident.task("t", shell=f"sleep 600 & {said}; echo hi", timeout_ms=HOUR_MS)
        number = resident.start("t")
        resident.until(lambda: path.exists() and path.read_text().count("\n") == 2)
        left, task = map(int, path.read_text().split())
        resident.until(lambda: not alive(task), what="the task has ended")
        clock.pass_by(HOUR_MS)
        run = resident.end(number)
        assert (run["status"], run["exit_code"], run["error_code"]) == ("succeeded", 0, None)
        assert run["duration_ms"] < HOUR_MS
        gone(left)


def test_a_time_out_holds_over_a_killed_daemon(kit: Kit) -> None:
    """Deadlines run on the monotonic clock of this boot."""
    shell = SLEEP.format(kit.place)
    kit.ok("task", "add", "t", "--timeout", "1s", "--shell", shell)
    with kit.daemon() as daemon:
        assert start(kit)["status"] == "running"
        daemon.kill()
    with kit.daemon():
        assert kit.ended(1)["status"] == "timed_out"
    gone_if_begun(kit)


def test_settle_is_the_last_word_on_a_run_nobody_can_prove(kit: Kit) -> None:
    kit.ok("task", "add", "t", "--shell", SLEEP.format(kit.place))
    with kit.daemon() as daemon:
        start(kit)
        (task,) = pids(kit.file("pid"))
        kit.no("settle", "1", "--as", "lost", "--reason", "x", status=3, code="identity_alive")
        daemon.kill()
        kit.sql("UPDATE attempt SET pid_namespace = 1")  # its identity cannot be told any more
    with kit.daemon():
        assert kit.shown(1)["status"] == "running"
        assert any(each.startswith("run_unproven:1:") for each in kit.ok("status")["degraded"])
        for reason in ("", " ", "x" * 257):
            kit.no(
                "settle", "1", "--as", "lost", "--reason", reason, status=2, code="reason_invalid"
            )
        run = kit.ok("settle", "1", "--as", "failed", "--reason", "I saw it end")
        assert (run["status"], run["evidence"]) == ("failed", "operator")
        event = next(
            each for each in kit.ok("show", "1")["events"] if each["type"] == "attempt.failed"
        )
        assert event["actor"] == "user:0"
        assert event["payload"]["reason"] == "I saw it end"
        kit.no("settle", "1", "--as", "lost", "--reason", "x", status=3, code="run_not_held")
    os.kill(task, signal.SIGKILL)
    gone(task)


def test_skip_refuses_a_manual_start_and_says_so(kit: Kit) -> None:
    kit.ok("task", "add", "t", "--shell", SLEEP.format(kit.place))
    with kit.daemon():
        start(kit)
        pids(kit.file("pid"))
        with kit.unchanged():
            kit.no("start", "t", status=3, code="overlap_skipped")
            kit.no("task", "remove", "t", status=3, code="task_active")
        stop(kit, 1)


def test_queue_runs_one_after_the_other_and_is_bounded(kit: Kit) -> None:
    wait = f'while [ ! -e "{kit.place}/go" ]; do sleep 0.02; done'
    shell = f'echo begins >> "{kit.place}/told"; {wait}; echo ends >> "{kit.place}/told"'
    kit.ok("task", "add", "t", "--overlap", "queue", "--shell", shell)
    with kit.daemon():
        assert start(kit)["status"] == "running"
        for _ in range(16):
            assert start(kit)["status"] == "queued"
        assert kit.ask("run.start", name="t")["error"]["data"]["code"] == "queue_full"
        assert kit.ask("status")["result"]["waiting"] == 16
        kit.file("go").touch()
        assert kit.ended(17)["status"] == "succeeded"
        # The commands' own word, for a clock that is set meanwhile tells nothing of an order.
        assert kit.file("told").read_text().split() == ["begins", "ends"] * 17


def test_parallel_is_bounded(kit: Kit) -> None:
    shell = SLEEP.format(kit.place)
    kit.ok("task", "add", "t", "--overlap", "parallel", "--max-parallel", "2", "--shell", shell)
    with kit.daemon():
        assert [start(kit)["status"] for _ in range(2)] == ["running", "running"]
        kit.no("start", "t", status=3, code="overlap_skipped")
        pids(kit.file("pid"), 2)
        for number in (1, 2):
            assert stop(kit, number)["status"] == "cancelled"


def test_replace_cancels_the_one_before(kit: Kit) -> None:
    kit.ok("task", "add", "t", "--overlap", "replace", "--shell", SLEEP.format(kit.place))
    with kit.daemon():
        start(kit)
        (first,) = pids(kit.file("pid"))
        start(kit)
        run = kit.ended(1)
        assert (run["status"], run["cancel_reason"]) == ("cancelled", "replaced")
        assert not alive(first)
        pids(kit.file("pid"), 2)
        assert kit.shown(2)["status"] == "running"
        stop(kit, 2)


def test_no_more_runs_at_once_than_the_profile_has_places(kit: Kit) -> None:
    for number in range(6):
        kit.ok("task", "add", f"t{number}", "--shell", SLEEP.format(kit.place))
    with kit.daemon():
        states = [start(kit, f"t{number}")["status"] for number in range(6)]
        assert states == ["running"] * 4 + ["queued"] * 2
        pids(kit.file("pid"), 4)
        stop(kit, 1)
        pids(kit.file("pid"), 5)
        for number in range(2, 7):
            stop(kit, number)


def test_a_failed_run_is_tried_again_as_often_as_it_says(kit: Kit) -> None:
    kit.ok(
        *("task", "add", "t", "--retry", "2", "--backoff", "10ms"),
        *("--shell", "echo try; exit 3"),
    )
    status, run = kit("start", "t", "--wait")
    assert (status, run["status"], run["exit_code"], run["attempts"]) == (1, "failed", 3, 3)
    attempts = kit.ok("show", "t")["attempts"]
    assert [each["status"] for each in attempts] == ["failed"] * 3
    assert kit.ok("log", "t", "--attempt", "2")["text"] == "try\n", "each attempt has its log"


def test_a_lost_run_is_repeated_only_if_that_is_safe(kit: Kit) -> None:
    kit.no(
        *("task", "add", "t", "--retry", "1", "--retry-on", "lost", "--", "true"),
        status=2,
        code="retry_unsafe",
    )
    shell = SAY.format(kit.place) + f'[ -e "{kit.place}/go" ] || exec sleep 60'
    kit.ok(
        *("task", "add", "t", "--retry", "1", "--retry-on", "lost", "--repeatable"),
        *("--backoff", "10ms", "--shell", shell),
    )
    with kit.daemon() as daemon:
        start(kit)
        (task,) = pids(kit.file("pid"))
        daemon.kill()
        os.killpg(os.getsid(task), signal.SIGKILL)
        gone(task)
    kit.file("go").touch()
    with kit.daemon():
        until(lambda: len(kit.ask("run.show", run="1")["result"]["attempts"]) == 2)
        run = kit.ended(1)
    assert (run["status"], run["attempts"]) == ("succeeded", 2)
    assert [each["status"] for each in kit.ok("show", "1")["attempts"]] == ["lost", "succeeded"]


@pytest.mark.parametrize(
    ("bytes_written", "kept"), [(4_194_304, 4_194_304), (20_971_520, 4_194_304)]
)
def test_a_log_is_cut_at_the_quotas_byte_and_the_task_goes_on(
    kit: Kit, bytes_written: int, kept: int
) -> None:
    kit.ok(
        "task", "add", "t", "--shell", f"head -c {bytes_written} /dev/zero; echo end >&2; exit 9"
    )
    status, run = kit("start", "t", "--wait")
    assert (status, run["status"], run["exit_code"], run["evidence"]) == (1, "failed", 9, "receipt")
    # On a slow disk the fact of it is there a moment later.
    until(lambda: kit.shown("t")["log_truncated"], what="the log's fact")
    assert (kit.shown("t")["log_bytes"], kit.shown("t")["log_truncated"]) == (kept, True)
    log = kit.ok("log", "t", "--tail", "4")
    assert (log["total"], log["truncated"]) == (kept, True)
    (file,) = (kit.state / "logs").glob("??/*.log")
    assert file.stat().st_size == kept


def listed(kit: Kit) -> list[Any]:
    """The runs of the task that is due every second."""
    runs: list[Any] = kit.ask("runs.list", task="second")["result"]["runs"]
    return runs


def test_triggers_run_by_themselves_and_one_occurrence_is_one_run(kit: Kit) -> None:
    kit.ok("task", "add", "second", "--cron", "* * * * * *", "--overlap", "queue", "--", "true")
    kit.ok("task", "add", "every", "--every", "1s", "--", "true")
    with kit.daemon() as daemon:
        until(lambda: kit.ask("run.show", run="every").get("result"))
        until(lambda: len(listed(kit)) >= 2)
        found = listed(kit)
        daemon.kill()
    assert {run["trigger"] for run in found} == {"cron"}
    with kit.daemon() as daemon:
        until(lambda: len(listed(kit)) > len(found))
        assert daemon.stop() == 0
    due = [run["scheduled_for_ms"] for run in kit.ok("runs", "--task", "second")["runs"]]
    assert len(due) == len(set(due))
    assert all(moment % 1_000 == 0 for moment in due)


def test_a_boot_trigger_waits_for_the_next_boot(kit: Kit) -> None:
    kit.ok("task", "add", "t", "--boot", "--", "true")
    with kit.daemon() as daemon:
        assert daemon.stop() == 0
    assert kit.ok("runs")["runs"] == []
    kit.sql("UPDATE cursor SET boot_id = 'another'")
    with kit.daemon() as daemon:
        assert kit.ended("t")["trigger"] == "boot"
        assert daemon.stop() == 0
    with kit.daemon() as daemon:
        assert daemon.stop() == 0
    assert len(kit.ok("runs")["runs"]) == 1, "once per boot"


def test_an_edit_makes_a_revision_and_a_running_attempt_keeps_its_own(kit: Kit) -> None:
    kit.ok("task", "add", "t", "--shell", SLEEP.format(kit.place))
    with kit.daemon():
        start(kit)
        pids(kit.file("pid"))
        assert kit.ok("task", "set", "t", "--shell", "exit 4")["revision"] == 2
        assert kit.ok("task", "rename", "t", "u")["task"] == "u"
        assert kit.shown(1)["revision"] == 1
        stop(kit, "u")
        start(kit, "u")
        run = kit.ended(2)
        assert (run["revision"], run["exit_code"]) == (2, 4)
