"""The control server: clients in, answers out, nobody holds the loop.

Owns the listening socket and who is connected. A peer of another user is refused by its kernel
credentials. At most 256 requests wait for a later answer; the next one gets `busy`. Nothing of it
survives a crash; the next owner binds anew.
"""

from __future__ import annotations

import os

from qinglong_edge.app import rpc
from qinglong_edge.core.errors import EdgeError, Invalid, Refused, Unavailable
from qinglong_edge.core.limits import REQUEST_BYTES_MAX, REQUESTS_WAITING_MAX
from qinglong_edge.system import sockets
from qinglong_edge.system.files import storage_error
from qinglong_edge.system.sockets import Connection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from qinglong_edge.system.loop import Loop

    Method = Callable[[str, dict[str, object], rpc.Peer], object]

_CLIENTS_MAX = 512
_ROOT = 0
_ACCEPT_AGAIN_MS = 1_000


class Server:
    """Serves whoever may ask; `call` does one method, and may answer with a `Pending`."""

    def __init__(
        self,
        loop: Loop,
        path: str,
        *,
        call: Method,
        on_bug: Callable[[BaseException], None],
        later: frozenset[str] = frozenset(),
        state: str | None = None,
        clients_max: int = _CLIENTS_MAX,
    ) -> None:
        """`later`: the methods whose answers wait; who means another `state` is refused.

        Unavailable `no_space`, `socket_unavailable`.
        """
        self._loop = loop
        self._path = path
        self._call = call
        self._on_bug = on_bug
        self._methods_later = later
        self._state = state
        self._clients_max = clients_max
        self._waiting = 0
        self._connections: set[Connection] = set()
        try:
            self._listener = sockets.bind(path)
        except OSError as error:
            told = storage_error(error, "control socket")
            if told.code == "storage_unavailable":
                told = Unavailable(
                    "socket_unavailable",
                    "The control socket cannot be made.",
                    errno=error.errno,
                )
            raise told from None
        self._listen()

    def _listen(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.watch(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            sock = sockets.accept(self._listener)
        except BlockingIOError:
            return
        except OSError:  # no descriptor left: the backlog waits, the loop does not spin
            self._loop.unwatch(self._listener.fileno())
            self._loop.call_later(_ACCEPT_AGAIN_MS, self._listen)
            return
        try:
            uid = sockets.peer_uid(sock)
        except OSError:
            sock.close()
            return
        connection = Connection(self._loop, sock, uid)
        self._connections.add(connection)
        # From the loop, never from within the line before it: a client may send thousands at once.
        connection.on_line = lambda line: self._later(connection, line)
        connection.on_oversize = lambda: self._refuse(connection, _too_large())
        connection.on_close = lambda: self._connections.discard(connection)
        if uid not in (_ROOT, os.geteuid()):
            self._refuse(connection, Refused("peer_refused", "This user may not ask here."))
        elif len(self._connections) > self._clients_max:
            self._refuse(connection, _busy())

    def _refuse(self, connection: Connection, error: EdgeError) -> None:
        connection.send(rpc.error_line(None, error), last=True)

    def _later(self, connection: Connection, line: bytes) -> None:
        self._loop.call_later(0, lambda: self._serve(connection, line))

    def _serve(self, connection: Connection, line: bytes) -> None:
        call_id: object = None
        try:
            request = rpc.read_call(line)
            call_id = request.id
            if self._state is not None and request.state not in (None, self._state):
                raise _another_state()
            if request.method in self._methods_later and self._waiting >= REQUESTS_WAITING_MAX:
                raise _busy()
            peer = rpc.Peer(connection.uid, "socket")
            result = self._call(request.method, request.params, peer)
            if isinstance(result, rpc.Pending):
                self._answer_later(connection, call_id, result)
                return
            connection.send(rpc.result_line(call_id, result))
        except EdgeError as error:
            connection.send(rpc.error_line(call_id, error))
        except MemoryError:
            short = Unavailable("no_memory", "There is not enough memory for this request.")
            connection.send(rpc.error_line(call_id, short))
        except Exception as error:  # noqa: BLE001 - the outermost door: one bad request, not the daemon
            self._on_bug(error)
            connection.send(rpc.error_line(call_id, error))

    def _answer_later(self, connection: Connection, call_id: object, pending: rpc.Pending) -> None:
        self._waiting += 1
        forget = connection.on_close

        def closed() -> None:
            pending.on_abandoned()
            pending.settle(error=Refused("abandoned", "The client has gone."))
            forget()

        connection.on_close = closed

        def settled(result: object, error: BaseException | None) -> None:
            self._waiting -= 1
            connection.on_close = forget
            if error is not None:
                connection.send(rpc.error_line(call_id, error))
            else:
                connection.send(rpc.result_line(call_id, result))

        pending.listen(settled)

    def close(self) -> None:
        """Take the socket's name away and drop every client."""
        self._loop.unwatch(self._listener.fileno())
        self._listener.close()
        for connection in list(self._connections):
            connection.close()
        try:
            os.unlink(self._path)
        except OSError:
            return


def _another_state() -> Refused:
    return Refused(
        "state_mismatch",
        "The scheduler at this control socket keeps another state; --state or --runtime is wrong.",
    )


def _busy() -> Unavailable:
    return Unavailable("busy", "Too many requests wait already; try again.")


def _too_large() -> Invalid:
    return Invalid(
        "request_too_large", "A request is larger than 2 MiB.", maximum=REQUEST_BYTES_MAX
    )
