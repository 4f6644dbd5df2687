"""A way to the plane that leads nowhere or lies: the bound of a request holds for all of it."""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from qinglong_edge.core.errors import Unavailable
from qinglong_edge.worker.plane import _REGISTER
from qinglong_edge.worker.transport import Route
from tests.system import addresses
from tests.worker.kit import Plane, WorkerHome
from tests.worker.test_transport import BODY, ID, transport


@contextlib.contextmanager
def peer(plane: Plane, serve: Callable[[ssl.SSLSocket], None]) -> Iterator[int]:
    """A TLS server for one connection, whose words and pauses are a test's; its port."""
    pair = plane.authority.server()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)

    def run() -> None:
        with contextlib.suppress(OSError):
            plain, _address = listener.accept()
            with context.wrap_socket(plain, server_side=True) as sock:
                serve(sock)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()
        thread.join(60)
        assert not thread.is_alive()


def test_a_plane_that_cannot_be_dialled_is_unavailable_within_the_bound_of_one_request(
    home: WorkerHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    with addresses.silent() as place:
        monkeypatch.setattr(socket, "getaddrinfo", addresses.resolved(place, place))
        begun = time.monotonic()
        with pytest.raises(Unavailable) as caught:
            transport(home, timeout_ms=1_000).post(ID, _REGISTER, BODY)
        assert time.monotonic() - begun < 20  # the kernel would go on for minutes
    assert caught.value.code == "transport_unavailable"


def stuck_resolver(_plane: Plane, stack: contextlib.ExitStack) -> tuple[str, int]:
    """A name that nobody answers for."""
    stack.enter_context(addresses.unanswered())
    return "plane.example", 443


def stuck_handshake(_plane: Plane, stack: contextlib.ExitStack) -> tuple[str, int]:
    """A kernel that accepts for somebody who never does."""
    listener = stack.enter_context(socket.socket())
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    host, port = listener.getsockname()
    return host, port


def stuck_upload(plane: Plane, stack: contextlib.ExitStack) -> tuple[str, int]:
    """Nobody reads what is sent."""
    return "127.0.0.1", _stuck(plane, stack, lambda _sock: None)


def stuck_reply(plane: Plane, stack: contextlib.ExitStack) -> tuple[str, int]:
    """A reply of which one byte comes at a time."""

    def drip(sock: ssl.SSLSocket) -> None:
        sock.sendall(b"H")

    return "127.0.0.1", _stuck(plane, stack, drip)


def _stuck(plane: Plane, stack: contextlib.ExitStack, each: Callable[[ssl.SSLSocket], None]) -> int:
    over = threading.Event()

    def serve(sock: ssl.SSLSocket) -> None:
        until_s = time.monotonic() + 20
        while not over.wait(0.05) and time.monotonic() < until_s:
            each(sock)

    port = stack.enter_context(peer(plane, serve))
    stack.callback(over.set)
    return port


@pytest.mark.parametrize("stuck", [stuck_resolver, stuck_handshake, stuck_upload, stuck_reply])
def test_wherever_a_request_is_stuck_what_is_due_meanwhile_is_seen_to(
    plane: Plane,
    home: WorkerHome,
    stuck: Callable[[Plane, contextlib.ExitStack], tuple[str, int]],
) -> None:
    """A stop may wait for a fraction of a second, and for nothing that the network does."""
    looks: list[float] = []
    with contextlib.ExitStack() as stack:
        host, port = stuck(plane, stack)
        home.configure(origin=f"https://{host}:{port}")
        wire = transport(home, timeout_ms=2_000, meanwhile=lambda: looks.append(time.monotonic()))
        begun = time.monotonic()
        with pytest.raises(Unavailable) as caught:
            wire.upload(ID, Route(name="artifacts"), 16 << 20, iter([bytes(65_536)] * 256))
        looks = [begun, *looks, time.monotonic()]
    assert caught.value.code == "transport_unavailable"
    assert 1.9 < looks[-1] - begun < 20
    gaps = [after - before for before, after in itertools.pairwise(looks)]
    assert sum(gap for gap in gaps if gap > 0.5) < 1.5  # a busy machine may stand still for a while


@pytest.mark.parametrize(
    "told", ["Content-Length: \xb2", "Content-Length: -1", "Transfer-Encoding: chunked"]
)
def test_a_reply_whose_length_is_no_number_is_no_reply(
    plane: Plane, home: WorkerHome, told: str
) -> None:
    """An error that nobody expects would end the worker."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n{told}\r\n\r\n-9\r\n{{}}"

    def answer(sock: ssl.SSLSocket) -> None:
        sock.recv(16_384)
        sock.sendall(head.encode("latin-1"))
        sock.unwrap()

    with peer(plane, answer) as port:
        home.configure(origin=f"https://127.0.0.1:{port}")
        with pytest.raises(Unavailable):
            transport(home, timeout_ms=3_000).post(ID, _REGISTER, BODY)
