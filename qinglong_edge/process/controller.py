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
death is an empty session. `unknown` ends the stop without a signal and without a claim.
"""

from __future__ import annotations

import signal

from qinglong_edge.core.evidence import ALIVE, GONE, UNKNOWN, Stopped
from qinglong_edge.core.limits import START_MARK_WAIT_MS

TYPE_CHECKING = False
if TYPE_CHECKING:
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


_POLL_MS_MIN = 5
_POLL_MS_MAX = 100
_KILL_BOUND_MS = 5_000


class Controller:
    """Stops tasks; one `Stop` in flight per target."""

    def __init__(
        self, processes: Processes, inspector: Inspector, loop: Loop, clock: Clock
    ) -> None:
        self._processes = processes
        self._inspector = inspector
        self._loop = loop
        self._clock = clock

    def stop(
        self,
        target: Target,
        *,
        own: OwnChild | None,
        grace_ms: int,
        done: Callable[[Stopped], None],
    ) -> Stop:
        """Begin a stop; `done` is called once, from the loop or at once."""
        stop = Stop(self, target, own, grace_ms, done)
        stop.advance()
        return stop


class Stop:
    """One stop in progress; `hurry` cuts the grace short."""

    def __init__(
        self,
        controller: Controller,
        target: Target,
        own: OwnChild | None,
        grace_ms: int,
        done: Callable[[Stopped], None],
    ) -> None:
        self._controller = controller
        self._inspector = controller._inspector
        self._clock = controller._clock
        self._target = target
        self._own = own
        self._grace_ms = grace_ms
        self._done: Callable[[Stopped], None] | None = done
        self._poll_ms = _POLL_MS_MIN
        self._timer: Timer | None = None
        self._step = self._wait_for_mark
        self._until_ms = self._clock.boot_ms() + START_MARK_WAIT_MS
        self._sent: int | None = None

    def advance(self) -> None:
        """Do what the moment allows; called by the timer, and when the wrapper has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._done is not None:
            self._step()

    def hurry(self, grace_ms: int) -> None:
        """Shorten the grace of a stop that is waiting after its TERM."""
        if self._sent == signal.SIGTERM:
            self._until_ms = min(self._until_ms, self._clock.boot_ms() + grace_ms)
            self.advance()
        self._grace_ms = min(self._grace_ms, grace_ms)

    def _wait_for_mark(self) -> None:
        waiting = self._own is not None and self._own.peek_exit() is None
        if waiting and self._own is not None and not self._own.started():
            waiting = self._clock.boot_ms() < self._until_ms
        else:
            waiting = False
        if waiting:
            self._again(_POLL_MS_MIN)
            return
        self._signal(signal.SIGTERM, self._wait_after_term, self._grace_ms)

    def _wait_after_term(self) -> None:
        if self._finished():
            return
        if self._clock.boot_ms() < self._until_ms:
            self._again(self._poll_ms)
            return
        self._signal(signal.SIGKILL, self._wait_after_kill, _KILL_BOUND_MS)

    def _wait_after_kill(self) -> None:
        if self._finished():
            return
        if self._clock.boot_ms() < self._until_ms:
            self._again(self._poll_ms)
            return
        left = len(self._members())
        self._end(Stopped(conclusive=False, signal=self._sent, survivors=left, reason="survivors"))

    def _signal(self, number: int, step: Callable[[], None], wait_ms: int) -> None:
        """Prove the identity, signal the group once, and wait in the next step."""
        verdict = self._inspector.inspect(self._target)
        if verdict.state == UNKNOWN:
            self._end(Stopped(conclusive=False, signal=self._sent, reason=verdict.reason))
            return
        if verdict.state == GONE and not self._own_zombie():
            left = len(self._members())
            reason = "escaped" if left else None
            self._end(
                Stopped(conclusive=not left, signal=self._sent, survivors=left, reason=reason)
            )
            return
        if verdict.state == ALIVE or self._members():
            self._send(number)
            self._sent = number
        self._step = step
        self._poll_ms = _POLL_MS_MIN
        self._until_ms = self._clock.boot_ms() + wait_ms
        self._again(_POLL_MS_MIN)

    def _send(self, number: int) -> None:
        """The group first; a KILL then also reaches members that made a group of their own.

        The session is provably ours at this moment: its leader was just identified, or is an own
        zombie, so no other session can bear its number.
        """
        processes = self._controller._processes
        try:
            processes.signal_group(self._target.pid, number)
            if number == signal.SIGKILL:
                for member in self._members():
                    if member.pgrp != self._target.pid:
                        processes.signal_pid(member.pid, number)
        except PermissionError:
            return  # the wait that follows reports who is left

    def _finished(self) -> bool:
        """End conclusively once the session is empty."""
        if self._members():
            return False
        self._end(Stopped(conclusive=True, signal=self._sent))
        return True

    def _members(self) -> list[Member]:
        return self._inspector.survivors(self._target)

    def _own_zombie(self) -> bool:
        return self._own is not None and self._own.peek_exit() is not None

    def _again(self, delay_ms: int) -> None:
        self._timer = self._controller._loop.call_later(delay_ms, self.advance)
        self._poll_ms = min(self._poll_ms * 2, _POLL_MS_MAX)

    def _end(self, stopped: Stopped) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(stopped)
