"""One loop: timers by an injected clock, signals, descriptors; nothing here sleeps."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from qinglong_edge.core.limits import WAKE_CAP_MS
from qinglong_edge.system.clock import Clock
from qinglong_edge.system.loop import Loop
from tests.support import ROOT
from tests.tools import pythons

_STEPS = """
import os, sys
sys.path.insert(0, sys.argv[1])
from qinglong_edge.system.clock import Clock
from qinglong_edge.system.loop import Loop
loop = Loop(Clock(), wake_cap_ms=20)
loop.watch_clock_steps()
long = loop.call_later(600_000, lambda: None)
print(loop._wait_ms(None) > 20)
long.cancel()
told = []
loop.on_wake = lambda: told.append("woken")
loop.call_later(60, lambda: told.append("timer"))
while "timer" not in told:  # this machine's clock may be set just now
    loop.run_once()
print(told[0], told[-1], loop._wait_ms(None))
loop._clock_was_set()
before = len(os.listdir("/proc/self/fd"))
loop.close()
print(before - len(os.listdir("/proc/self/fd")))
"""


class Time(Clock):
    """A boottime that moves by hand."""

    def __init__(self) -> None:
        self.now_ms = 1_000

    def boot_ms(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def loop(clock: Time) -> Iterator[Loop]:
    made = Loop(clock)
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def turn(loop: Loop, clock: Time, now_ms: int) -> None:
    """One turn at a moment, without waiting."""
    clock.now_ms = now_ms
    loop.run_once(0)


def test_timers_run_in_the_order_of_their_moments(loop: Loop, clock: Time) -> None:
    told: list[str] = []
    for due_ms, name in ((1300, "d"), (1100, "a"), (1200, "b"), (1200, "c")):
        loop.call_at(due_ms, lambda name=name: told.append(name))  # type: ignore[misc]
    turn(loop, clock, 1099)
    assert told == []
    turn(loop, clock, 1100)
    assert told == ["a"]
    turn(loop, clock, 5000)
    assert told == ["a", "b", "c", "d"]


def test_timers_of_one_moment_run_as_they_were_made(loop: Loop, clock: Time) -> None:
    told: list[int] = []
    for number in range(200):
        loop.call_at(1100, lambda number=number: told.append(number))  # type: ignore[misc]
    turn(loop, clock, 1100)
    assert told == list(range(200))


def test_a_cancelled_timer_is_never_called_even_in_its_own_batch(loop: Loop, clock: Time) -> None:
    told: list[str] = []
    early = loop.call_at(1100, lambda: told.append("early"))
    early.cancel()
    early.cancel()
    later = loop.call_at(1300, lambda: told.append("later"))
    loop.call_at(1200, later.cancel)
    turn(loop, clock, 2000)
    assert told == []


def test_a_timer_made_by_a_timer_waits_for_the_next_turn(loop: Loop, clock: Time) -> None:
    told: list[str] = []

    def again() -> None:
        loop.call_later(0, lambda: told.append("again"))

    loop.call_at(1100, again)
    turn(loop, clock, 1100)
    assert told == []
    turn(loop, clock, 1100)
    assert told == ["again"]


def test_cancelled_timers_do_not_pile_up(loop: Loop, clock: Time) -> None:
    """Each run cancels its deadline of hours: months of runs keep a heap of a few."""
    kept = [loop.call_later(10_000_000, lambda: None) for _ in range(10)]
    for _ in range(10_000):
        loop.call_later(3_600_000, lambda: None, slack_ms=0).cancel()
    assert len(loop._timers) < 200
    assert all(timer in loop._timers for timer in kept)


def test_the_wait_is_until_the_first_latest_moment(loop: Loop) -> None:
    assert loop._wait_ms(None) == WAKE_CAP_MS
    assert loop._wait_ms(7) == 7
    loop.call_at(21_000, lambda: None, slack_ms=30_000)
    assert loop._wait_ms(None) == WAKE_CAP_MS
    timer = loop.call_at(11_000, lambda: None)
    assert loop._wait_ms(None) == 10_000
    timer.cancel()
    assert loop._wait_ms(None) == WAKE_CAP_MS
    loop.call_at(500, lambda: None)
    assert loop._wait_ms(None) == 0


def test_a_wait_is_never_longer_than_the_kernel_counts(clock: Time) -> None:
    loop = Loop(clock, wake_cap_ms=2**40)
    loop.call_later(365 * 86_400_000, lambda: None)
    assert loop._wait_ms(None) == 86_400_000
    loop.close()


def test_a_timer_with_slack_rides_on_another_wake_up(loop: Loop, clock: Time) -> None:
    told: list[int] = []
    loop.call_at(2000, lambda: told.append(clock.now_ms), slack_ms=30_000)
    turn(loop, clock, 1999)
    assert told == []
    turn(loop, clock, 5000)
    assert told == [5000]
    turn(loop, clock, 40_000)
    assert told == [5000]


def test_a_timer_with_slack_is_never_later_than_that(loop: Loop, clock: Time) -> None:
    told: list[int] = []
    loop.call_at(2000, lambda: told.append(clock.now_ms), slack_ms=3000)
    loop.call_at(9000, lambda: None)
    assert loop._wait_ms(None) == 4000
    turn(loop, clock, 5000)
    assert told == [5000]


def test_maintenance_within_one_slack_shares_a_wake_up(loop: Loop, clock: Time) -> None:
    told: list[int] = []
    for due_ms in (2000, 12_000, 25_000):
        loop.call_at(due_ms, lambda due_ms=due_ms: told.append(due_ms), slack_ms=30_000)  # type: ignore[misc]
    turn(loop, clock, 1000 + loop._wait_ms(WAKE_CAP_MS))
    assert sorted(told) == [2000, 12_000, 25_000]


def test_a_cancelled_timer_with_slack_rides_nowhere(loop: Loop, clock: Time) -> None:
    told: list[int] = []
    loop.call_at(2000, lambda: told.append(1), slack_ms=30_000).cancel()
    turn(loop, clock, 9000)
    turn(loop, clock, 90_000)
    assert told == []
    assert loop._lazy == []


def test_a_signal_is_called_from_the_loop(loop: Loop) -> None:
    told: list[str] = []
    loop.on_signal(signal.SIGUSR1, lambda: told.append("one"))
    loop.on_signal(signal.SIGUSR2, lambda: told.append("two"))
    signal.raise_signal(signal.SIGUSR2)
    assert told == []
    loop.run_once(0)
    assert told == ["two"]
    signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)
    loop.run_once(0)
    assert told == ["two", "one"]


def test_a_signal_that_was_blocked_at_the_start_is_called_all_the_same(loop: Loop) -> None:
    called: list[int] = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        loop.on_signal(signal.SIGTERM, lambda: called.append(1))
        os.kill(os.getpid(), signal.SIGTERM)
        loop.run_once(0)
        assert called == [1]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_a_signal_ends_a_long_wait(loop: Loop) -> None:
    told: list[str] = []
    loop.on_signal(signal.SIGALRM, lambda: told.append("alarm"))
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    loop.run_once(20_000)
    assert told == ["alarm"]


def test_closing_gives_signals_and_descriptors_back(clock: Time) -> None:
    before = set(os.listdir("/proc/self/fd"))
    loop = Loop(clock)
    loop.on_signal(signal.SIGUSR1, lambda: None)
    loop.watch_clock_steps()
    loop.close()
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    assert set(os.listdir("/proc/self/fd")) == before
    assert signal.set_wakeup_fd(-1) == -1


Pair = tuple[socket.socket, socket.socket]


def fill(sock: socket.socket) -> None:
    """Send until the kernel takes no more."""
    try:
        while True:
            sock.send(b"x" * 65_536)
    except BlockingIOError:
        return


def test_a_readable_descriptor_is_told_until_it_is_read(loop: Loop, pair: Pair) -> None:
    left, right = pair
    told: list[bytes] = []
    loop.watch(left.fileno(), lambda: told.append(left.recv(1)))
    loop.run_once(0)
    assert told == []
    right.send(b"ab")
    loop.run_once(0)
    loop.run_once(0)
    assert told == [b"a", b"b"]
    loop.unwatch(left.fileno())
    loop.unwatch(left.fileno())
    right.send(b"c")
    loop.run_once(0)
    assert told == [b"a", b"b"]


def test_watching_for_room_is_not_woken_by_what_arrives(loop: Loop, pair: Pair) -> None:
    left, right = pair
    left.setblocking(False)
    fill(left)
    told: list[str] = []
    loop.watch(left.fileno(), lambda: told.append("room"), write=True)
    right.send(b"pipelined")
    loop.run_once(0)
    assert told == []
    right.recv(1_000_000)
    loop.run_once(0)
    assert told == ["room"]


def test_watching_again_replaces_call_and_direction(loop: Loop, pair: Pair) -> None:
    left, right = pair
    told: list[str] = []
    loop.watch(left.fileno(), lambda: told.append("write"), write=True)
    loop.watch(left.fileno(), lambda: told.append("read"))
    loop.run_once(0)
    assert told == []
    right.send(b"x")
    loop.run_once(0)
    assert told == ["read"]


def test_a_call_may_watch_and_unwatch_others_of_its_batch(loop: Loop) -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    told: list[int] = []

    def first_of_all(number: int) -> Callable[[], None]:
        def call() -> None:
            told.append(number)
            for other, (left, _right) in enumerate(pairs):
                if other != number:
                    loop.unwatch(left.fileno())

        return call

    for number, (left, right) in enumerate(pairs):
        loop.watch(left.fileno(), first_of_all(number))
        right.send(b"x")
    loop.run_once(0)
    assert len(told) == 1
    for left, right in pairs:
        loop.unwatch(left.fileno())
        left.close()
        right.close()


def test_a_reused_descriptor_does_not_get_the_event_of_the_old_one(loop: Loop) -> None:
    """Two are ready; the first call closes the other, whose number is taken by a new one."""
    told: list[str] = []
    pairs = {name: socket.socketpair() for name in ("a", "b")}
    fresh: list[socket.socket] = []

    def swap(name: str) -> Callable[[], None]:
        def call() -> None:
            told.append(name)
            (other,) = pairs.keys() - {name}
            left, right = pairs[other]
            number = left.fileno()
            loop.unwatch(number)
            left.close()
            new, end = socket.socketpair()
            fresh.extend((new, end, right))
            if new.fileno() != number:
                os.dup2(new.fileno(), number)
                fresh.append(socket.socket(fileno=number))
            loop.watch(number, lambda: told.append("fresh"))

        return call

    for name, (left, right) in pairs.items():
        loop.watch(left.fileno(), swap(name))
        right.send(b"x")
    loop.run_once(0)
    assert len(told) == 1
    assert "fresh" not in told
    for sock in (*fresh, *(each for pair in pairs.values() for each in pair)):
        sock.close()


def test_every_wake_up_is_counted_and_told_first(loop: Loop, clock: Time, pair: Pair) -> None:
    told: list[str] = []
    loop.on_wake = lambda: told.append("wake")
    loop.watch(pair[0].fileno(), lambda: told.append("read"))
    loop.call_at(1000, lambda: told.append("timer"))
    pair[1].send(b"x")
    loop.run_once(0)
    assert told == ["wake", "read", "timer"]
    assert loop.wakes == 1


def test_the_cap_wakes_a_loop_that_has_nothing_to_do() -> None:
    """So that a step of the wall clock is noticed where the kernel does not tell."""
    loop = Loop(Clock(), wake_cap_ms=5)
    loop.run_once()
    loop.run_once(20_000)
    assert loop.wakes == 2
    loop.close()


def test_an_exception_of_a_call_ends_the_loop(loop: Loop) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    loop.call_at(0, fail)
    with pytest.raises(ZeroDivisionError):
        loop.run_once(0)


def test_without_the_kernels_notice_the_cap_stays(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> int:
        raise OSError(22, "invalid")

    monkeypatch.setattr(os, "timerfd_create", refuse, raising=False)
    monkeypatch.setattr(os, "TFD_CLOEXEC", 0, raising=False)
    monkeypatch.setattr(os, "TFD_NONBLOCK", 0, raising=False)
    loop.watch_clock_steps()
    assert loop._wait_ms(None) == WAKE_CAP_MS


def test_on_a_newer_python_the_kernel_tells_of_clock_steps() -> None:
    """The cap of 30 s goes: an idle loop waits for its next timer only."""
    python = sys.executable if hasattr(os, "timerfd_create") else pythons.on_this_machine(13)
    if python is None:
        pytest.skip("needs a Python 3.13, whose os module has timerfd_create")
    done = subprocess.run(
        [python, "-I", "-S", "-B", "-c", _STEPS, ROOT],
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
    )
    assert done.stdout.decode().splitlines() == ["True", "woken timer 86400000", "1"]
