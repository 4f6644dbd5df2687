"""One thread, one poll, one heap of timers.

Owns the waiting of the process. It wakes for a readable descriptor, a signal, a due timer, and at
most every `wake_cap_ms` so that a step of the wall clock is noticed; on Python 3.13 and later a
cancel-on-set timer descriptor tells of the step itself and the cap is not needed. Timers run on
boottime. A timer with slack waits for another wake-up as long as its slack allows.

Timers that are due together run in the order of their latest moments, equals as they were made.
A callback that raises ends the loop: callers isolate what may fail.
"""

from __future__ import annotations

import _heapq as heapq  # without the same once more in Python
import os
import select
import time

from qinglong_edge.core.limits import WAKE_CAP_MS

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from typing import Any

    from qinglong_edge.system.clock import Clock
else:
    import _signal as signal  # without the enums of `signal`: 0.2 MiB, and time in every launch


_FAR_FUTURE_NS = 2**62
_WAIT_MS_MAX = 86_400_000  # epoll counts milliseconds in 31 bits
_TIMERS_MIN = 64


class Timer:
    """A pending call; `cancel` is idempotent."""

    __slots__ = ("call", "due_ms", "latest_ms", "number")

    def __init__(self, due_ms: int, latest_ms: int, number: int, call: Callable[[], None]) -> None:
        self.due_ms = due_ms
        self.latest_ms = latest_ms
        self.number = number
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Forget the call; the heap drops the entry when it comes up, or with many others."""
        self.call = None

    def __lt__(self, other: Timer) -> bool:
        return (self.latest_ms, self.number) < (other.latest_ms, other.number)


class Loop:
    """Descriptors, signals and timers of one process."""

    def __init__(self, clock: Clock, *, wake_cap_ms: int = WAKE_CAP_MS) -> None:
        self._clock = clock
        self._poll = select.poll()  # `selectors` would weigh 0.3 MiB in every daemon
        self._calls: dict[int, Callable[[], None]] = {}
        self._timers: list[Timer] = []
        self._timers_max = _TIMERS_MIN  # the size at which cancelled ones are looked for
        self._made = 0
        self._lazy: list[Timer] = []
        self._signals: dict[int, Callable[[], None]] = {}
        self._signal_pipe: tuple[int, int] | None = None
        self._step_fd: int | None = None
        self._wake_cap_ms: int | None = wake_cap_ms
        self.on_wake: Callable[[], None] | None = None
        self.wakes = 0

    def watch(self, fd: int, call: Callable[[], None], *, write: bool = False) -> None:
        """Call when `fd` is readable, or else writable; watching again replaces both.

        Call `unwatch` before closing the descriptor.
        """
        self._poll.register(fd, select.POLLOUT if write else select.POLLIN)
        self._calls[fd] = call

    def watch_end(self, fd: int, call: Callable[[], None]) -> None:
        """Call when the other end of `fd` has gone; what it says until then wakes nobody."""
        self._poll.register(fd, 0)
        self._calls[fd] = call

    def unwatch(self, fd: int) -> None:
        """Stop watching; unknown descriptors are fine."""
        if self._calls.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def call_at(self, due_ms: int, call: Callable[[], None], *, slack_ms: int = 0) -> Timer:
        """Call at a boottime in ms; up to `slack_ms` later if another wake-up comes by then."""
        if len(self._timers) >= self._timers_max:
            self._timers = [timer for timer in self._timers if timer.call is not None]
            heapq.heapify(self._timers)
            self._timers_max = 2 * len(self._timers) + _TIMERS_MIN
        self._made += 1
        timer = Timer(due_ms, due_ms + slack_ms, self._made, call)
        heapq.heappush(self._timers, timer)
        if slack_ms:
            self._lazy.append(timer)
        return timer

    def call_later(self, delay_ms: int, call: Callable[[], None], *, slack_ms: int = 0) -> Timer:
        """Call `delay_ms` from now."""
        return self.call_at(self._clock.boot_ms() + delay_ms, call, slack_ms=slack_ms)

    def on_signal(self, number: int, call: Callable[[], None]) -> None:
        """Call from the loop, not from the handler, when the signal arrives."""
        if self._signal_pipe is None:
            self._signal_pipe = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            signal.set_wakeup_fd(self._signal_pipe[1], warn_on_full_buffer=False)
            self.watch(self._signal_pipe[0], self._read_signals)
        self._signals[number] = call
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (number,))  # whoever started us may block it
        signal.signal(number, lambda _number, _frame: None)

    def watch_clock_steps(self) -> None:
        """Replace the wake-up cap by the kernel's own notice, where Python can ask for it."""
        kernel: Any = os  # the calls are Python 3.13's; the type checker reads 3.11
        if not hasattr(kernel, "timerfd_create"):
            return
        try:
            fd = kernel.timerfd_create(
                time.CLOCK_REALTIME, flags=kernel.TFD_CLOEXEC | kernel.TFD_NONBLOCK
            )
            kernel.timerfd_settime_ns(
                fd,
                flags=kernel.TFD_TIMER_ABSTIME | kernel.TFD_TIMER_CANCEL_ON_SET,
                initial=_FAR_FUTURE_NS,
            )
        except (OSError, OverflowError):  # the latter where times have 32 bits
            return
        self._step_fd = fd
        self._wake_cap_ms = None
        self.watch(fd, self._clock_was_set)

    def _clock_was_set(self) -> None:
        """The read fails with ECANCELED and re-arms the notice; `on_wake` does the rest."""
        if self._step_fd is None:
            return
        try:
            os.read(self._step_fd, 8)
        except OSError:
            return

    def _read_signals(self) -> None:
        if self._signal_pipe is None:
            return
        for number in set(os.read(self._signal_pipe[0], 256)):
            call = self._signals.get(number)
            if call is not None:
                call()

    def _wait_ms(self, bound_ms: int | None) -> int:
        while self._timers and self._timers[0].call is None:
            heapq.heappop(self._timers)
        waits = [ms for ms in (bound_ms, self._wake_cap_ms, _WAIT_MS_MAX) if ms is not None]
        if self._timers:
            waits.append(max(0, self._timers[0].latest_ms - self._clock.boot_ms()))
        return min(waits)

    def run_once(self, bound_ms: int | None = None) -> None:
        """Wait for the next thing that is due, at most `bound_ms`, and do what is due."""
        ready = [(fd, self._calls[fd]) for fd, _events in self._poll.poll(self._wait_ms(bound_ms))]
        self.wakes += 1
        if self.on_wake is not None:
            self.on_wake()
        for fd, call in ready:
            if self._calls.get(fd) is call:  # an earlier call may have closed it
                call()
        self._run_due()

    def _run_due(self) -> None:
        now_ms = self._clock.boot_ms()
        due = []
        while self._timers and (self._timers[0].call is None or self._timers[0].due_ms <= now_ms):
            due.append(heapq.heappop(self._timers))
        if self._lazy:
            self._lazy = [timer for timer in self._lazy if timer.call is not None]
            due += [timer for timer in self._lazy if timer.due_ms <= now_ms and timer not in due]
        for timer in due:
            call, timer.call = timer.call, None
            if call is not None:
                call()

    def close(self) -> None:
        """Give every descriptor of the loop back; the loop cannot be used again."""
        if self._signal_pipe is not None:
            signal.set_wakeup_fd(-1)
            for number in self._signals:
                signal.signal(number, signal.SIG_DFL)
            for fd in self._signal_pipe:
                os.close(fd)
            self._signal_pipe = None
        if self._step_fd is not None:
            os.close(self._step_fd)
            self._step_fd = None
