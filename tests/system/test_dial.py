"""Reaching a host: whichever of its addresses answers, within the time there is."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from qinglong_edge.system.child import Spawner
from qinglong_edge.system.clock import Clock
from qinglong_edge.system.dial import Dialer, dial
from qinglong_edge.system.process import Processes
from tests.support import until
from tests.system import addresses

LACKING = socket.AF_APPLETALK  # a family that no kernel here has


@pytest.fixture
def there() -> Iterator[tuple[str, int]]:
    """An address where somebody answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        yield listener.getsockname()


def within(seconds: float) -> Callable[[], float]:
    """What is left of some seconds; `TimeoutError` when that is nothing."""
    until_s = time.monotonic() + seconds

    def left_s() -> float:
        left = until_s - time.monotonic()
        if left <= 0:
            raise TimeoutError("it is over")
        return left

    return left_s


def dialled(seconds: float = 3.0) -> tuple[str, int]:
    """Where a call to a name ended."""
    with dial("x.org", 80, within(seconds)) as sock:
        host, port = sock.getpeername()
        return host, port


def resolves(monkeypatch: pytest.MonkeyPatch, *places: tuple[str, int]) -> Any:
    found = addresses.resolved(*places)
    monkeypatch.setattr(socket, "getaddrinfo", found)
    return found


def test_an_address_that_leads_nowhere_costs_its_share_of_the_time_and_not_all_of_it(
    monkeypatch: pytest.MonkeyPatch, there: tuple[str, int]
) -> None:
    """A router with IPv6 that ends in nothing: the other address gets what is left."""
    with addresses.silent() as place:
        resolves(monkeypatch, place, place, there)
        begun = time.monotonic()
        assert dialled() == there
        assert time.monotonic() - begun > 1.5  # and within the three, or `left_s` had raised


def test_with_no_address_that_answers_it_is_over_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with addresses.silent() as place:
        resolves(monkeypatch, place, place)
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            dialled(1.0)
        assert time.monotonic() - begun < 20  # the kernel would go on for minutes


def test_a_family_that_the_kernel_lacks_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, there: tuple[str, int]
) -> None:
    """A kernel without IPv6, and a name that has such an address first."""
    found = [
        (LACKING, socket.SOCK_STREAM, 0, "", there),
        (socket.AF_INET, socket.SOCK_STREAM, 0, "", there),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_given, **_named: found)
    assert dialled() == there
    found.pop()
    with pytest.raises(OSError, match="supported") as caught:
        dialled()
    assert caught.value.errno == errno.EAFNOSUPPORT


def test_an_address_that_refuses_costs_nothing(
    monkeypatch: pytest.MonkeyPatch, there: tuple[str, int]
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        resolves(monkeypatch, closed.getsockname(), there)
        assert dialled() == there
        resolves(monkeypatch, closed.getsockname())
        with pytest.raises(ConnectionRefusedError):
            dialled()


def test_what_says_that_no_time_is_left_is_what_the_caller_sees(
    monkeypatch: pytest.MonkeyPatch, there: tuple[str, int]
) -> None:
    def over() -> float:
        raise ZeroDivisionError

    resolves(monkeypatch, there)
    with pytest.raises(ZeroDivisionError):
        dial("x.org", 80, over)


def test_a_name_that_leads_to_no_address_is_told_from_one_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(*_given: object, **_named: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(socket.gaierror):
        dialled()


class Asking(Spawner):
    """Forks, and remembers whom."""

    def __init__(self) -> None:
        super().__init__()
        self.pids: list[int] = []

    def consult(self, ask: Callable[[], bytes], kept: Iterable[int]) -> tuple[int, int]:
        pid, fd = super().consult(ask, kept)
        self.pids.append(pid)
        return pid, fd


class Turned(Clock):
    """The machine's clock, and as much more as a test says."""

    ahead_ms = 0

    def boot_ms(self) -> int:
        return super().boot_ms() + self.ahead_ms


class Caller:
    """Somebody who dials again and again."""

    def __init__(self) -> None:
        self.spawner = Asking()
        self.clock = Turned()
        self.dialer = Dialer(self.spawner, Processes(), self.clock)

    def dialled(self, seconds: float = 3.0) -> tuple[str, int]:
        """Where a call to a name ended."""
        with self.dialer.dial("x.org", 80, within(seconds)) as sock:
            host, port = sock.getpeername()
            return host, port

    @property
    def asked(self) -> int:
        """How often the resolver was."""
        return len(self.spawner.pids)


def test_a_resolver_that_never_answers_costs_the_time_there_is_and_leaves_nobody_behind() -> None:
    caller = Caller()
    looks = within(1.0)
    count = 0

    def left_s() -> float:
        nonlocal count
        count += 1
        return looks()

    with addresses.unanswered():
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            caller.dialer.dial("x.org", 80, left_s)
        assert 0.9 < time.monotonic() - begun < 20
    assert count >= 5  # whoever waits can see to something else meanwhile
    (pid,) = caller.spawner.pids
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_resolver_whose_owner_is_gone_ends_by_itself() -> None:
    caller = Caller()
    reaped: list[int] = []

    class Gone(Processes):
        def signal_pid(self, _pid: int, _number: int) -> bool:
            return True

        def reap(self, pid: int) -> None:
            reaped.append(pid)

    with addresses.unanswered(), pytest.raises(TimeoutError):
        Dialer(caller.spawner, Gone(), caller.clock).dial("x.org", 80, within(0.3))
    (pid,) = reaped
    until(lambda: os.waitpid(pid, os.WNOHANG)[0] == pid, 5)


def test_a_host_that_is_an_address_asks_nobody(there: tuple[str, int]) -> None:
    caller = Caller()
    with caller.dialer.dial(*there, within(3.0)) as sock:
        assert sock.getpeername() == there
    with pytest.raises(socket.gaierror):
        caller.dialer.dial("1.2.3.4.5", 80, within(3.0))
    assert caller.asked == 0


def test_what_a_name_led_to_is_kept_for_ten_minutes(
    monkeypatch: pytest.MonkeyPatch, there: tuple[str, int]
) -> None:
    caller = Caller()
    resolves(monkeypatch, there)
    for minutes, asked in ((0, 1), (9, 1), (11, 2), (12, 2)):
        caller.clock.ahead_ms = minutes * 60_000
        assert caller.dialled() == there
        assert caller.asked == asked


def test_while_no_resolver_answers_what_a_name_led_to_serves_on(
    monkeypatch: pytest.MonkeyPatch, there: tuple[str, int]
) -> None:
    """A router whose resolver has died still reaches its plane, and is not slow each time."""
    caller = Caller()
    resolves(monkeypatch, there)
    assert caller.dialled() == there
    caller.clock.ahead_ms = 660_000
    with addresses.unanswered():
        assert caller.dialled(0.8) == there
        assert caller.dialled(0.8) == there
        assert caller.asked == 2
        caller.clock.ahead_ms += 61_000
        assert caller.dialled(0.8) == there
    assert caller.asked == 3


def test_an_address_where_nobody_answers_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, there: tuple[str, int]
) -> None:
    """A plane that has moved is found at its new place with the next call."""
    caller = Caller()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        resolves(monkeypatch, closed.getsockname())
        with pytest.raises(ConnectionRefusedError):
            caller.dialled()
    resolves(monkeypatch, there)
    assert caller.dialled() == there
    assert caller.asked == 2


def test_of_more_addresses_than_can_be_told_the_first_ones_are(
    monkeypatch: pytest.MonkeyPatch, there: tuple[str, int]
) -> None:
    resolves(monkeypatch, *[there] * 500)
    assert dialled() == there


def test_a_resolver_that_dies_is_one_that_has_no_answer_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def dies(*_given: object, **_named: object) -> None:
        os._exit(1)

    monkeypatch.setattr(socket, "getaddrinfo", dies)
    with pytest.raises(socket.gaierror) as caught:
        dialled()
    assert caught.value.errno == socket.EAI_AGAIN
