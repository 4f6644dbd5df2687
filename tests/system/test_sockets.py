"""The control socket: line framing, one request at a time, nobody holds the loop."""

from __future__ import annotations

import _socket
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from qinglong_edge.core.errors import Unavailable
from qinglong_edge.core.limits import REQUEST_BYTES_MAX
from qinglong_edge.system import sockets
from qinglong_edge.system.clock import Clock
from qinglong_edge.system.loop import Loop
from qinglong_edge.system.sockets import Connection

KERNEL_PATH_MAX = 108
# Its /proc/self is root's once it is another user, so it takes the plain name.
_STRANGER = """
import os, socket, sys
os.setuid(4_000_000_000)
socket.socket(socket.AF_UNIX).connect(sys.argv[1])
"""
BIG = b"b" * 4_000_000 + b"\n"


class Server:
    """Answers each line in upper case; `later` lines wait for `answer`."""

    def __init__(self, loop: Loop, path: str) -> None:
        self.loop = loop
        self.lines: list[bytes] = []
        self.closed: list[Connection] = []
        self.waiting: list[Connection] = []
        self.connections: list[Connection] = []
        self._listener = sockets.bind(path)
        loop.watch(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        sock = sockets.accept(self._listener)
        connection = Connection(self.loop, sock, sockets.peer_uid(sock))
        connection.on_line = lambda line: self._serve(connection, line)
        connection.on_oversize = lambda: connection.send(b"oversize\n", last=True)
        connection.on_close = lambda: self.closed.append(connection)
        self.connections.append(connection)

    def _serve(self, connection: Connection, line: bytes) -> None:
        self.lines.append(line)
        if line.startswith(b"later"):
            self.waiting.append(connection)
        elif line.startswith(b"big"):
            connection.send(BIG)
        elif line.startswith(b"last"):
            connection.send(b"LAST\n", last=True)
        else:
            connection.send(line.upper() + b"\n")

    def answer(self) -> None:
        self.waiting.pop(0).send(b"AT LAST\n")

    def turn(self, times: int = 8) -> None:
        for _ in range(times):
            self.loop.run_once(0)

    def until(self, ready: Callable[[], bool], turns: int = 200_000) -> None:
        for _ in range(turns):
            if ready():
                return
            self.loop.run_once(0)
        raise AssertionError("it did not come to that")

    def close(self) -> None:
        self.loop.unwatch(self._listener.fileno())
        self._listener.close()
        for connection in self.connections:
            connection.close()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "control.sock")


@pytest.fixture
def server(path: str) -> Iterator[Server]:
    loop = Loop(Clock())
    made = Server(loop, path)
    yield made
    made.close()
    loop.close()


@pytest.fixture
def client(server: Server, path: str) -> Iterator[_socket.socket]:
    with closing(sockets.connect(path, 5.0)) as sock:
        server.turn(2)
        yield sock


def received(sock: _socket.socket | socket.socket, server: Server, size: int) -> bytes:
    """What the client has been sent once that are `size` bytes, or once the server has closed."""
    sock.setblocking(False)
    data = bytearray()

    def enough() -> bool:
        try:
            part = sock.recv(1_000_000)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True
        data.extend(part)
        return not part or len(data) >= size

    server.until(enough)
    return bytes(data)


def give(sock: socket.socket, server: Server, data: bytes) -> None:
    """Send everything while the server works; a server that closed ends it."""
    sock.setblocking(False)
    left = memoryview(data)

    def sent() -> bool:
        nonlocal left
        try:
            left = left[sock.send(left) :]
        except BlockingIOError:
            return False
        except OSError:
            return True
        return not left

    server.until(sent)


def test_the_name_is_private_and_replaces_what_was_left_there(path: str) -> None:
    for _owner in range(2):
        before = os.umask(0)
        os.umask(before)
        with closing(sockets.bind(path)):
            found = os.lstat(path)
            assert stat.S_ISSOCK(found.st_mode)
            assert stat.S_IMODE(found.st_mode) == 0o600
            assert os.umask(before) == before
    with pytest.raises(ConnectionRefusedError):
        sockets.connect(path, 1.0)
    os.unlink(path)
    with pytest.raises(FileNotFoundError):
        sockets.connect(path, 1.0)
    with pytest.raises(FileNotFoundError):
        sockets.connect(f"{path}/../none/control.sock", 1.0)


def test_a_name_at_which_somebody_listens_is_never_taken_away(server: Server, path: str) -> None:
    """One owner: a second state with the same runtime directory gets none of its commands."""
    with pytest.raises(Unavailable) as caught:
        sockets.bind(path)
    assert caught.value.code == "socket_in_use"
    with closing(sockets.connect(path, 1.0)) as client:
        client.send(b"still here\n")
        server.turn()
        assert received(client, server, 11) == b"STILL HERE\n"


def test_a_path_longer_than_the_kernel_takes_works(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 120) / ("e" * 120)
    folder.mkdir(parents=True)
    path = str(folder / "control.sock")
    assert len(path) > 2 * KERNEL_PATH_MAX
    before = set(os.listdir("/proc/self/fd"))
    with closing(sockets.bind(path)) as listener, closing(sockets.connect(path, 1.0)) as client:
        accepted = sockets.accept(listener)
        with closing(accepted):
            assert sockets.peer_uid(accepted) == sockets.peer_uid(client) == os.geteuid()
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_requests_are_lines_however_they_are_cut(
    server: Server, client: socket.socket, size: int
) -> None:
    text = "one\ntwo\n\nthree \u00e9\n".encode()
    for start in range(0, len(text), size):
        client.send(text[start : start + size])
        server.turn(2)
    server.turn(20)
    assert server.lines == [b"one", b"two", b"", "three \u00e9".encode()]
    assert (
        received(client, server, len(text))
        == b"ONE\nTWO\n\n" + "three \u00e9".encode().upper() + b"\n"
    )


def test_a_request_without_its_end_waits(server: Server, client: socket.socket) -> None:
    client.send(b"unfinished")
    server.turn()
    assert server.lines == []
    client.send(b"\n")
    server.turn()
    assert server.lines == [b"unfinished"]


def test_thousands_of_requests_in_one_piece_are_answered_in_order(
    server: Server, client: socket.socket
) -> None:
    """One a wake-up: neither the stack nor the other clients feel it."""
    asked = [f"r{number}".encode() for number in range(5_000)]
    give(client, server, b"\n".join(asked) + b"\n")
    answer = b"\n".join(asked).upper() + b"\n"
    assert received(client, server, len(answer)) == answer
    assert server.lines == asked


def test_one_request_a_wake_up(server: Server, client: socket.socket) -> None:
    client.send(b"1\n2\n3\n")
    for count in (1, 2, 3):
        server.turn(1)
        assert len(server.lines) == count


def test_the_next_request_waits_for_the_answer_of_the_one_in_hand(
    server: Server, client: socket.socket
) -> None:
    client.send(b"later\nnext\nlater\n")
    server.turn()
    assert server.lines == [b"later"]
    client.send(b"more\n")
    server.turn()
    assert server.lines == [b"later"]
    server.answer()
    server.turn()
    assert server.lines == [b"later", b"next", b"later"]
    server.answer()
    server.turn()
    assert received(client, server, 26) == b"AT LAST\nNEXT\nAT LAST\nMORE\n"[:27]


def test_while_a_request_is_in_hand_the_loop_is_not_woken_for_more(
    server: Server, client: socket.socket
) -> None:
    client.send(b"later\n" + b"x" * 1000)
    server.turn()
    assert server.loop._poll.poll(0) == []
    assert server.closed == []


@pytest.mark.parametrize(
    "line", [b"x" * (REQUEST_BYTES_MAX + 1), b"x" * (REQUEST_BYTES_MAX + 1) + b"\n"]
)
def test_a_line_beyond_the_bound_is_refused_and_costs_its_own_connection(
    server: Server, client: socket.socket, line: bytes
) -> None:
    give(client, server, line)
    assert received(client, server, 9) == b"oversize\n"
    assert len(server.closed) == 1
    assert server.lines == []


def test_a_line_of_exactly_the_bound_is_a_request(server: Server, client: socket.socket) -> None:
    give(client, server, b"x" * REQUEST_BYTES_MAX + b"\n")
    server.until(lambda: bool(server.lines))
    assert len(server.lines[0]) == REQUEST_BYTES_MAX


@pytest.mark.parametrize("asked", [b"later\n", b"later\nnext\n"])
def test_a_client_that_has_said_all_it_had_to_say_still_gets_its_answers(
    server: Server, client: socket.socket, asked: bytes
) -> None:
    client.send(asked)
    client.shutdown(socket.SHUT_WR)
    server.turn()
    assert server.closed == []
    assert server.loop._poll.poll(0) == []
    server.answer()
    wanted = b"AT LAST\n" + (b"NEXT\n" if b"next" in asked else b"")
    assert received(client, server, 10**6) == wanted
    assert len(server.closed) == 1


@pytest.mark.parametrize("said", [b"", b"half a li", b"later\n", b"later\nmore\n", b"big\n"])
def test_a_client_that_has_gone_frees_its_place(
    server: Server, client: socket.socket, said: bytes
) -> None:
    if said:
        client.send(said)
        server.turn()
    client.close()
    server.turn()
    assert server.closed == server.connections
    server.connections[0].send(b"nobody hears it\n")
    server.connections[0].close()
    assert len(server.closed) == 1


def test_a_client_that_said_all_it_had_to_say_and_goes_while_it_waits_frees_its_place(
    server: Server, client: socket.socket
) -> None:
    client.send(b"later\n")
    server.turn()
    client.shutdown(socket.SHUT_WR)
    server.turn()
    assert server.closed == []
    client.close()
    server.turn()
    assert server.closed == server.connections


def test_a_client_that_goes_together_with_its_requests_is_not_waited_for(
    server: Server, path: str
) -> None:
    with closing(sockets.connect(path, 1.0)) as client:
        client.send(b"later\nmore\n" + b"x" * 100_000)
    server.turn()
    assert len(server.closed) == 1


def test_a_slow_reader_gets_everything_and_blocks_nobody(
    server: Server, client: socket.socket, path: str
) -> None:
    client.send(b"big\nnext\n")
    server.turn(100)
    assert server.lines == [b"big"]
    with closing(sockets.connect(path, 1.0)) as other:
        other.send(b"quick\n")
        server.turn()
        assert received(other, server, 6) == b"QUICK\n"
    answer = received(client, server, len(BIG) + 5)
    assert answer == BIG + b"NEXT\n"


def test_a_slow_reader_that_goes_on_asking_does_not_keep_the_loop_awake(
    server: Server, client: socket.socket
) -> None:
    client.send(b"big\n")
    server.turn(100)
    client.send(b"more\n" * 10)
    client.shutdown(socket.SHUT_WR)
    assert server.loop._poll.poll(0) == []
    answer = received(client, server, len(BIG) + 50)
    assert answer == BIG + b"MORE\n" * 10


def test_the_last_answer_closes_once_it_is_gone(server: Server, client: socket.socket) -> None:
    client.send(b"last\nignored\n")
    assert received(client, server, 10**6) == b"LAST\n"
    assert len(server.closed) == 1
    assert server.lines == [b"last"]


def test_the_peer_is_the_user_the_kernel_saw(server: Server, client: socket.socket) -> None:
    assert server.connections[0].uid == os.geteuid()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_the_peer_is_another_user_when_it_is() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = os.path.join(folder, "control.sock")
        with closing(sockets.bind(path)) as listener:
            os.chmod(path, 0o666)
            done = subprocess.run([sys.executable, "-I", "-S", "-c", _STRANGER, path])
            assert done.returncode == 0
            accepted = sockets.accept(listener)
            with closing(accepted):
                assert sockets.peer_uid(accepted) == 4_000_000_000
