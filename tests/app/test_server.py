"""The control server under want: a client costs its own connection and never the process."""

from __future__ import annotations

import _socket
import errno
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.app import rpc
from qinglong_edge.app.server import Server
from qinglong_edge.core.errors import Unavailable
from qinglong_edge.core.limits import REQUEST_BYTES_MAX, REQUESTS_WAITING_MAX
from qinglong_edge.system import sockets
from qinglong_edge.system.clock import Clock
from qinglong_edge.system.loop import Loop

ASKED = rpc.call_line(1, "status", {})
WITHIN_MS = 30_000


class Served:
    """A server whose methods are a test's, and clients of it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.loop = Loop(Clock())
        self.bugs: list[str] = []
        self.failure: BaseException | None = None
        self.pending: list[rpc.Pending] = []
        self.server = Server(
            self.loop,
            path,
            call=self._call,
            on_bug=lambda error: self.bugs.append(type(error).__name__),
            later=frozenset({"wait"}),
            clients_max=2,
        )

    def _call(self, method: str, params: dict[str, object], peer: rpc.Peer) -> object:
        if self.failure is not None:
            raise self.failure
        if method == "wait":
            self.pending.append(rpc.Pending())
            return self.pending[-1]
        return {"method": method, "params": params, "uid": peer.uid}

    def client(self) -> _socket.socket:
        """A client that never blocks the test."""
        made = sockets.connect(self.path, 5.0)
        made.setblocking(False)
        return made

    def answer(self, sock: _socket.socket) -> Any:
        """The one line that a client is sent."""
        data, begun_ms = b"", Clock().boot_ms()
        while not data.endswith(b"\n"):
            assert Clock().boot_ms() - begun_ms < WITHIN_MS
            self.loop.run_once(50)
            try:
                data += sock.recv(65_536)
            except BlockingIOError:
                continue
        return json.loads(data)

    def asked(self, sock: _socket.socket, line: bytes = ASKED) -> Any:
        """The answer to one request."""
        sock.send(line)
        return self.answer(sock)

    def close(self) -> None:
        """End it."""
        self.server.close()
        self.loop.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(str(tmp_path / "control.sock"))
    yield made
    made.close()


def code(answer: Any) -> str:
    """The stable code of an error."""
    return str(answer["error"]["data"]["code"])


def test_a_request_is_answered_with_what_its_method_gives(served: Served) -> None:
    with closing(served.client()) as client:
        answer = served.asked(client, rpc.call_line(7, "a", {"b": 1}))
    assert (answer["id"], answer["result"]) == (
        7,
        {"method": "a", "params": {"b": 1}, "uid": os.geteuid()},
    )


def test_a_client_for_whom_no_descriptor_is_left_waits_and_the_loop_does_not_spin(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    def accept(_listener: object) -> None:
        nonlocal tries
        tries += 1
        raise OSError(errno.EMFILE, "EMFILE")

    with monkeypatch.context() as patch:
        patch.setattr(sockets, "accept", accept)
        client = served.client()
        begun_ms = Clock().boot_ms()
        while Clock().boot_ms() - begun_ms < 500:
            served.loop.run_once(50)
    assert tries == 1
    with closing(client):
        assert "result" in served.asked(client)


@pytest.mark.parametrize(
    ("failure", "said", "bugs"),
    [
        (Unavailable("busy", "No."), "busy", []),
        (OSError(errno.EIO, "EIO"), "bug", ["OSError"]),
        (MemoryError(), "no_memory", []),
    ],
)
def test_a_request_that_hits_a_fault_is_answered_and_the_next_one_served(
    served: Served, failure: BaseException, said: str, bugs: list[str]
) -> None:
    with closing(served.client()) as client:
        served.failure = failure
        assert code(served.asked(client)) == said
        assert served.bugs == bugs
        served.failure = None
        assert "result" in served.asked(client)


def test_a_client_too_many_is_told_so_and_the_others_stay(served: Served) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(closing(served.client())) for _ in range(2)]
        assert all("result" in served.asked(each) for each in clients)
        with closing(served.client()) as third:
            assert code(served.answer(third)) == "busy"
        clients.pop().close()
        assert "result" in served.asked(clients[0])
        assert "result" in served.asked(stack.enter_context(closing(served.client())))


def test_another_user_is_refused_by_the_kernels_word(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "peer_uid", lambda _sock: os.geteuid() + 1)
    with closing(served.client()) as client:
        assert code(served.answer(client)) == "peer_refused"


def test_a_line_beyond_the_bound_is_refused(served: Served) -> None:
    with closing(served.client()) as client:
        left = memoryview(b"x" * (REQUEST_BYTES_MAX + 1))
        while left:
            try:
                left = left[client.send(left) :]
            except BlockingIOError:
                served.loop.run_once(50)
        assert code(served.answer(client)) == "request_too_large"


def test_only_so_many_answers_are_waited_for(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert REQUESTS_WAITING_MAX > 1
    monkeypatch.setattr("qinglong_edge.app.server.REQUESTS_WAITING_MAX", 1)
    wait = rpc.call_line(1, "wait", {})
    with closing(served.client()) as first, closing(served.client()) as second:
        first.send(wait)
        while not served.pending:
            served.loop.run_once(50)
        assert code(served.asked(second, wait)) == "busy"
        assert "result" in served.asked(second)
        served.pending[0].settle(result=5)
        assert served.answer(first)["result"] == 5


def test_a_name_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        Served(str(tmp_path / "none" / "control.sock"))
    assert caught.value.code == "socket_unavailable"
