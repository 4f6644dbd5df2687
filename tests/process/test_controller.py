"""Stopping: who is signalled, when, and what counts as the end; a table on a fake clock."""

from __future__ import annotations

import errno
import heapq
import signal
from collections.abc import Callable
from typing import cast

import pytest

from qinglong_edge.core.errors import Unavailable
from qinglong_edge.core.evidence import ALIVE, GONE, UNKNOWN, Exit, Stopped, Target, Verdict
from qinglong_edge.process.controller import Controller, Stop
from qinglong_edge.process.identity import Inspector, Member
from qinglong_edge.system.clock import Clock
from qinglong_edge.system.loop import Loop
from qinglong_edge.system.process import Processes

_PID = 1234
_TARGET = Target(handle="h", pid=_PID, pid_namespace=None)
_GRACE_MS = 1_000
TERM, KILL = signal.SIGTERM, signal.SIGKILL


class FakeTimer:
    """A call that is due."""

    def __init__(self, due_ms: int, call: Callable[[], None]) -> None:
        self.due_ms = due_ms
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None

    def __lt__(self, other: FakeTimer) -> bool:
        return self.due_ms < other.due_ms


class Stage:
    """A task and its owner as a table: what the system says, what is signalled, on a fake clock."""

    def __init__(self) -> None:
        self.now_ms = 5_000
        self.timers: list[FakeTimer] = []
        self.sent: list[tuple[int, int]] = []
        self.verdicts: list[Verdict] = []  # the next ones; the last one stays
        self.members: dict[int, int] = {_PID: _PID}  # pid -> group
        self.failing: Exception | None = None
        self.refusing: set[int] = set()  # groups that may not be signalled
        self.on_signal: Callable[[int, int], None] = lambda _group, _number: None
        self.outcomes: list[Stopped] = []
        self.alive()

    def say(self, *verdicts: Verdict) -> None:
        """What the next inspections find."""
        self.verdicts = list(verdicts)

    def alive(self) -> None:
        self.say(Verdict(state=ALIVE))

    # The four things that a controller is built of.

    def boot_ms(self) -> int:
        return self.now_ms

    def call_later(self, delay_ms: int, call: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(self.now_ms + delay_ms, call)
        heapq.heappush(self.timers, timer)
        return timer

    def inspect(self, target: Target) -> Verdict:
        assert target is _TARGET
        return self.verdicts.pop(0) if len(self.verdicts) > 1 else self.verdicts[0]

    def survivors(self, target: Target) -> list[Member]:
        assert target is _TARGET
        if self.failing is not None:
            raise self.failing
        return [Member(pid=pid, pgrp=group, start_ticks=1) for pid, group in self.members.items()]

    def signal_group(self, group: int, number: int) -> bool:
        if group in self.refusing:
            raise PermissionError
        self.sent.append((group, number))
        self.on_signal(group, number)
        return True

    def stop(self, own: FakeOwn | None = None, *, grace_ms: int = _GRACE_MS) -> Stop:
        """Begin a stop."""
        controller = Controller(
            cast("Processes", self),
            cast("Inspector", self),
            cast("Loop", self),
            cast("Clock", self),
        )
        return controller.stop(
            _TARGET,
            own=own,
            grace_ms=grace_ms,
            done=self.outcomes.append,
        )

    def until_ms(self, moment_ms: int) -> None:
        """Let the clock run."""
        while self.timers and self.timers[0].due_ms <= moment_ms:
            timer = heapq.heappop(self.timers)
            if timer.call is not None:
                self.now_ms = max(self.now_ms, timer.due_ms)
                timer.call()
        self.now_ms = moment_ms

    def run(self) -> Stopped:
        """Let the clock run to the end of the stop, at most a minute."""
        self.until_ms(self.now_ms + 60_000)
        (outcome,) = self.outcomes
        assert all(timer.call is None for timer in self.timers)
        return outcome


class FakeOwn:
    """What an owner knows of its own wrapper."""

    pid = _PID

    def __init__(self) -> None:
        self.marked = True
        self.exit: Exit | None = None

    def started(self) -> bool:
        return self.marked

    def peek_exit(self) -> Exit | None:
        return self.exit


@pytest.fixture
def stage() -> Stage:
    return Stage()


def dies(stage: Stage, *numbers: int) -> None:
    """Have the whole session die of these signals."""

    def die(_group: int, number: int) -> None:
        if number in numbers:
            stage.members = {}
            stage.say(Verdict(state=GONE))

    stage.on_signal = die


# -- who is signalled -----------------------------------------------------------------------------


def test_a_task_that_obeys_gets_one_term_to_its_group(stage: Stage) -> None:
    dies(stage, TERM)
    stage.stop()
    assert stage.run() == Stopped(conclusive=True, signal=TERM)
    assert stage.sent == [(_PID, TERM)]


def test_a_task_that_does_not_is_killed_when_its_grace_is_over(stage: Stage) -> None:
    dies(stage, KILL)
    begun_ms = stage.now_ms
    stage.stop()
    stage.until_ms(begun_ms + _GRACE_MS - 1)
    assert stage.sent == [(_PID, TERM)]
    assert stage.run() == Stopped(conclusive=True, signal=KILL)
    assert stage.sent == [(_PID, TERM), (_PID, KILL)]


def test_a_pid_that_is_reused_when_the_grace_is_over_is_never_killed(stage: Stage) -> None:
    stage.say(Verdict(state=ALIVE), Verdict(state=GONE, reason="pid_reused"))
    stage.stop()
    stage.until_ms(stage.now_ms + _GRACE_MS - 1)
    stage.members = {77: _PID}
    assert stage.run() == Stopped(conclusive=False, signal=TERM, survivors=1, reason="escaped")
    assert stage.sent == [(_PID, TERM)]


def test_an_end_at_the_last_moment_needs_no_kill(stage: Stage) -> None:
    stage.say(Verdict(state=ALIVE), Verdict(state=GONE))
    stage.stop()
    stage.until_ms(stage.now_ms + _GRACE_MS - 1)
    stage.members = {}
    assert stage.run() == Stopped(conclusive=True, signal=TERM)
    assert stage.sent == [(_PID, TERM)]


@pytest.mark.parametrize("reason", ["invalid_handle", "provider_unavailable", "hidden_process"])
def test_an_unknown_identity_is_not_signalled_and_nothing_is_claimed(
    stage: Stage, reason: str
) -> None:
    stage.say(Verdict(state=UNKNOWN, reason=reason))
    stage.stop()
    assert stage.run() == Stopped(conclusive=False, reason=reason)
    assert stage.sent == []


def test_an_identity_that_becomes_unknown_gets_no_kill(stage: Stage) -> None:
    stage.say(Verdict(state=ALIVE), Verdict(state=UNKNOWN, reason="provider_unavailable"))
    stage.stop()
    assert stage.run() == Stopped(conclusive=False, signal=TERM, reason="provider_unavailable")
    assert stage.sent == [(_PID, TERM)]


def test_a_task_that_is_gone_already_is_stopped_at_once(stage: Stage) -> None:
    stage.say(Verdict(state=GONE))
    stage.members = {}
    stage.stop()
    assert stage.outcomes == [Stopped(conclusive=True)]
    assert stage.sent == []


def test_survivors_of_an_adopted_task_whose_leader_is_gone_are_reported_only(stage: Stage) -> None:
    stage.say(Verdict(state=GONE))
    stage.members = {77: _PID, 78: 78}
    stage.stop()
    assert stage.outcomes == [Stopped(conclusive=False, survivors=2, reason="escaped")]
    assert stage.sent == []


def test_an_own_zombies_group_is_still_ours_to_signal(stage: Stage) -> None:
    own = FakeOwn()
    own.exit = Exit(code=0, signal=None)
    stage.say(Verdict(state=GONE))
    stage.members = {77: _PID}
    dies(stage, KILL)
    stage.stop(own)
    assert stage.run() == Stopped(conclusive=True, signal=KILL)
    assert stage.sent == [(_PID, TERM), (_PID, KILL)]


def test_an_own_zombie_without_survivors_is_stopped_without_a_signal(stage: Stage) -> None:
    own = FakeOwn()
    own.exit = Exit(code=0, signal=None)
    stage.say(Verdict(state=GONE))
    stage.members = {}
    stage.stop(own)
    assert stage.outcomes == [Stopped(conclusive=True)]
    assert stage.sent == []


def test_a_kill_reaches_the_groups_that_members_made_for_themselves(stage: Stage) -> None:
    stage.members = {_PID: _PID, 77: _PID, 80: 80, 81: 80, 90: 90}

    def die(group: int, number: int) -> None:
        if number == KILL:
            left = {pid: of for pid, of in stage.members.items() if of != group}
            stage.members = left
            stage.say(Verdict(state=GONE))

    stage.on_signal = die
    stage.stop()
    assert stage.run() == Stopped(conclusive=True, signal=KILL)
    assert stage.sent[:2] == [(_PID, TERM), (_PID, KILL)]
    assert sorted(stage.sent[2:]) == [(80, KILL), (90, KILL)]


def test_what_is_forked_beside_a_kill_is_killed_while_the_zombie_is_ours(stage: Stage) -> None:
    own = FakeOwn()

    def fork(group: int, number: int) -> None:
        if number == KILL and group in stage.members.values():
            own.exit = Exit(code=None, signal=KILL)
            stage.say(Verdict(state=GONE))
            stage.members = {group + 1: group + 1} if group < _PID + 3 else {}

    stage.on_signal = fork
    stage.stop(own)
    assert stage.run() == Stopped(conclusive=True, signal=KILL)
    assert [each for each in stage.sent if each[0] != _PID] == [
        (_PID + number, KILL) for number in (1, 2, 3)
    ]


def test_what_survives_a_kill_is_reported(stage: Stage) -> None:
    begun_ms = stage.now_ms
    stage.stop()
    outcome = stage.run()
    assert outcome == Stopped(conclusive=False, signal=KILL, survivors=1, reason="survivors")
    assert stage.sent == [(_PID, TERM), (_PID, KILL)]  # not ours any more: once only
    assert stage.now_ms - begun_ms >= _GRACE_MS


def test_a_group_that_may_not_be_signalled_hinders_no_other_and_is_reported(stage: Stage) -> None:
    stage.refusing = {_PID}
    stage.members = {_PID: _PID, 80: 80}
    stage.stop()
    outcome = stage.run()
    assert outcome == Stopped(conclusive=False, signal=KILL, survivors=2, reason="survivors")
    assert stage.sent == [(80, KILL)]


@pytest.mark.parametrize(
    "failure", [OSError(errno.EMFILE, "x"), Unavailable("identity_unavailable", "x")]
)
def test_a_session_that_cannot_be_read_is_no_proof_of_death(
    stage: Stage, failure: Exception
) -> None:
    stage.stop()
    stage.failing = failure
    assert stage.run() == Stopped(conclusive=False, signal=TERM, reason="provider_unavailable")


def test_what_the_callers_own_code_raises_is_not_swallowed(stage: Stage) -> None:
    def fail(_stopped: Stopped) -> None:
        raise Unavailable("x", "y")

    dies(stage, TERM)
    controller = Controller(
        cast("Processes", stage),
        cast("Inspector", stage),
        cast("Loop", stage),
        cast("Clock", stage),
    )
    controller.stop(_TARGET, own=None, grace_ms=0, done=fail)
    with pytest.raises(Unavailable):
        stage.until_ms(stage.now_ms + 1_000)


# -- when -----------------------------------------------------------------------------------------


def test_a_term_waits_for_the_commands_exec(stage: Stage) -> None:
    own = FakeOwn()
    own.marked = False
    stage.stop(own)
    stage.until_ms(stage.now_ms + 500)
    assert stage.sent == []
    own.marked = True
    stage.until_ms(stage.now_ms + 10)
    assert stage.sent == [(_PID, TERM)]


def test_a_term_waits_a_second_at_most(stage: Stage) -> None:
    own = FakeOwn()
    own.marked = False
    begun_ms = stage.now_ms
    stage.stop(own)
    stage.until_ms(begun_ms + 990)
    assert stage.sent == []
    stage.until_ms(begun_ms + 1_010)
    assert stage.sent == [(_PID, TERM)]


def test_a_wrapper_that_ended_before_its_command_is_not_waited_for(stage: Stage) -> None:
    own = FakeOwn()
    own.marked = False
    stop = stage.stop(own)
    own.exit = Exit(code=126, signal=None)
    stage.say(Verdict(state=GONE))
    stage.members = {}
    stop.advance()
    assert stage.outcomes == [Stopped(conclusive=True)]


def test_an_adopted_task_gets_its_term_at_once(stage: Stage) -> None:
    stage.stop()
    assert stage.sent == [(_PID, TERM)]


def test_hurry_shortens_a_grace_that_runs(stage: Stage) -> None:
    dies(stage, KILL)
    stop = stage.stop(grace_ms=300_000)
    stage.until_ms(stage.now_ms + 100)
    stop.hurry(50)
    stage.until_ms(stage.now_ms + 40)
    assert stage.sent == [(_PID, TERM)]
    stage.until_ms(stage.now_ms + 120)
    assert stage.sent == [(_PID, TERM), (_PID, KILL)]
    stop.hurry(0)
    assert stage.run() == Stopped(conclusive=True, signal=KILL)


def test_hurry_to_nothing_kills_at_once_and_never_lengthens(stage: Stage) -> None:
    stop = stage.stop(grace_ms=100)
    stop.hurry(300_000)
    stage.until_ms(stage.now_ms + 200)
    assert stage.sent == [(_PID, TERM), (_PID, KILL)]
    other = Stage()
    other.stop(grace_ms=300_000).hurry(0)
    assert other.sent == [(_PID, TERM), (_PID, KILL)]


def test_hurry_before_the_term_counts_for_the_grace_to_come(stage: Stage) -> None:
    own = FakeOwn()
    own.marked = False
    stop = stage.stop(own, grace_ms=300_000)
    stop.hurry(20)
    assert stage.sent == []
    own.marked = True
    stage.until_ms(stage.now_ms + 200)
    assert stage.sent == [(_PID, TERM), (_PID, KILL)]


def test_an_ended_stop_does_nothing_more(stage: Stage) -> None:
    dies(stage, TERM)
    stop = stage.stop()
    stage.run()
    stop.advance()
    stop.hurry(0)
    assert len(stage.outcomes) == 1
    assert stage.sent == [(_PID, TERM)]
