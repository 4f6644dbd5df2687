"""Reaching a host: whichever of its addresses answers, within the time there is."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from qinglong_edge.system.dial import dial
from tests.system import addresses

LACKING = socket.AF_APPLETALK  # a family that no kernel here has


@pytest.fixture
def there() -> Iterator[tuple[str, int]]:
    """An address where somebody answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
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
        assert 1.5 < time.monotonic() - begun < 3


def test_with_no_address_that_answers_it_is_over_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with addresses.silent() as place:
        resolves(monkeypatch, place, place)
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            dialled(1.0)
        assert time.monotonic() - begun < 3


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
