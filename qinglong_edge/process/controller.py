"""Stopping a task: TERM, bounded wait, identity again, KILL, proof.

Owns the procedure, one small state machine per stop, driven by the loop.

    mark --started, or 1 s--> TERM --session empty--> stopped (15)
                               | grace over
                               v
                              KILL --session empty--> stopped (9)
                               | bound over
                               v
                              survivors

Nothing is signalled unless boot, pid, group and start ticks match at that very moment, or the group
is led by an own child that ended and was not reaped, whose number nobody else can have. Proof of
death is an empty session. `unknown` ends the stop without a signal and without a claim, and so does
a system that cannot be asked.
"""

from __future__ import annotations

from qinglong_edge.core.errors import EdgeError
from qinglong_edge.core.evidence import GONE, UNKNOWN, Stopped
from qinglong_edge.core.limits import START_MARK_WAIT_MS

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from typing import Protocol

    from qinglong_edge.core.evidence import Target
    from qinglong_edge.process.identity import Inspector, Member
    from qinglong_edge.system.clock import Clock
    from qinglong_edge.system.loop import Loop, Timer
    from qinglong_edge.system.process import Processes

    class OwnChild(Protocol):
        """What the daemon knows of its own wrapper and of nobody else's."""

        pid: int

        def started(self) -> bool: ...
        def peek_exit(self) -> object | None: ...
else:
    import _signal as signal  # without the enums of `signal`: 0.2 MiB, and time in every launch


_POLL_MS_MIN = 5
_POLL_MS_MAX = 100
_KILL_BOUND_MS = 5_000


class Controller:
    """Stops tasks; one `Stop` in flight per target."""

    def __init__(
        self, processes: Processes, inspector: Inspector, loop: Loop, clock: Clock
    ) -> None:
        self._world = (processes, inspector, loop, clock)

    def stop(
        self,
        target: Target,
        *,
        own: OwnChild | None,
        grace_ms: int,
        done: Callable[[Stopped], None],
    ) -> Stop:
        """Begin a stop; `done` is called once, from the loop or at once."""
        stop = Stop(*self._world, target=target, own=own, grace_ms=grace_ms, done=done)
        stop.advance()
        return stop


class Stop:
    """One stop in progress; `hurry` cuts the grace short."""

    def __init__(
        self,
        processes: Processes,
        inspector: Inspector,
        loop: Loop,
        clock: Clock,
        *,
        target: Target,
        own: OwnChild | None,
        grace_ms: int,
        done: Callable[[Stopped], None],
    ) -> None:
        self._processes = processes
        self._inspector = inspector
        self._loop = loop
        self._clock = clock
        self._target = target
        self._own = own
        self._grace_ms = grace_ms
        self._done: Callable[[Stopped], None] | None = done
        self._poll_ms = _POLL_MS_MIN
        self._timer: Timer | None = None
        self._step = self._wait_for_mark
        self._until_ms = clock.boot_ms() + START_MARK_WAIT_MS
        self._sent: int | None = None

    def advance(self) -> None:
        """Do what the moment allows; called by the timer, and when the wrapper has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._done is None:
            return
        try:
            stopped = self._step()
        except (OSError, EdgeError):
            stopped = self._unproven("provider_unavailable")
        if stopped is not None:
            done, self._done = self._done, None
            done(stopped)

    def hurry(self, grace_ms: int) -> None:
        """Shorten the grace, of a TERM that is still to come as well as of one that was sent."""
        self._grace_ms = min(self._grace_ms, grace_ms)
        if self._sent == signal.SIGTERM:
            self._until_ms = min(self._until_ms, self._clock.boot_ms() + grace_ms)
            self.advance()

    # Each step gives the end of the stop, or None after it has asked to be called again.

    def _wait_for_mark(self) -> Stopped | None:
        own = self._own
        if own is None or own.peek_exit() is not None or own.started() or self._over():
            return self._signal(signal.SIGTERM, self._wait_after_term, self._grace_ms)
        self._again(_POLL_MS_MIN)
        return None

    def _wait_after_term(self) -> Stopped | None:
        if not self._members():
            return self._proven()
        if self._over():
            return self._signal(signal.SIGKILL, self._wait_after_kill, _KILL_BOUND_MS)
        self._again(self._poll_ms)
        return None

    def _wait_after_kill(self) -> Stopped | None:
        members = self._members()
        if not members:
            return self._proven()
        if self._over():
            return self._unproven("survivors", survivors=len(members))
        if self._own_zombie():
            self._send(signal.SIGKILL)  # what was forked while the first one was sent
        self._again(self._poll_ms)
        return None

    def _signal(
        self, number: int, step: Callable[[], Stopped | None], wait_ms: int
    ) -> Stopped | None:
        """Prove the identity, signal the group once, and wait in the next step."""
        verdict = self._inspector.inspect(self._target)
        if verdict.state == UNKNOWN:
            return self._unproven(verdict.reason)
        if verdict.state == GONE:
            members = self._members()
            if not members:
                return self._proven()
            if not self._own_zombie():
                return self._unproven("escaped", survivors=len(members))
        self._sent = number
        self._send(number)
        self._step = step
        self._poll_ms = _POLL_MS_MIN
        self._until_ms = self._clock.boot_ms() + wait_ms
        self._again(_POLL_MS_MIN)
        return None

    def _send(self, number: int) -> None:
        """To the group; a KILL then also to the groups that members made for themselves.

        The session is provably ours at this moment: its leader was just identified, or is an own
        zombie, so no other session can bear its number, and a group lies within one session. Whom
        we may not signal, the wait that follows reports.
        """
        self._signal_group(self._target.pid, number)
        if number == signal.SIGKILL:
            for group in {member.pgrp for member in self._members()} - {self._target.pid}:
                self._signal_group(group, number)

    def _signal_group(self, group: int, number: int) -> None:
        try:
            self._processes.signal_group(group, number)
        except PermissionError:
            return

    def _members(self) -> list[Member]:
        return self._inspector.survivors(self._target)

    def _own_zombie(self) -> bool:
        return self._own is not None and self._own.peek_exit() is not None

    def _over(self) -> bool:
        return self._clock.boot_ms() >= self._until_ms

    def _again(self, delay_ms: int) -> None:
        self._timer = self._loop.call_later(delay_ms, self.advance)
        self._poll_ms = min(self._poll_ms * 2, _POLL_MS_MAX)

    def _proven(self) -> Stopped:
        return Stopped(conclusive=True, signal=self._sent)

    def _unproven(self, reason: str | None, *, survivors: int = 0) -> Stopped:
        return Stopped(conclusive=False, signal=self._sent, survivors=survivors, reason=reason)
