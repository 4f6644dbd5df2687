"""Addresses as a resolver tells them, and one where nobody answers."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator
from typing import Any

import pytest

_LONG_S = 30


@contextlib.contextmanager
def silent() -> Iterator[tuple[str, int]]:
    """An address where nobody answers, not even with a refusal: its queue is full."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    waiting = [socket.socket() for _ in range(4)]
    for each in waiting:
        each.setblocking(False)
        each.connect_ex(listener.getsockname())
    try:
        yield listener.getsockname()
    finally:
        for each in (listener, *waiting):
            each.close()


@contextlib.contextmanager
def unanswered() -> Iterator[None]:
    """A resolver that answers nobody, in this process and in its children."""

    def never(*_given: object, **_named: object) -> None:
        select.select([], [], [], _LONG_S)
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", never)
        yield


def resolved(*places: tuple[str, int]) -> Any:
    """What the resolver tells of a name with these addresses."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", place) for place in places]
    return lambda *_given, **_named: found
