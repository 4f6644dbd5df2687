"""The worker's control socket: `status`, `drain`, `settle`, one JSON-RPC object a line.

Owns the listening socket. Only root and the worker's own user are served; a client costs its own
connection only. With no worker running a command asks the journal itself.
"""

from __future__ import annotations

import os

from qinglong_edge.app import rpc
from qinglong_edge.app.worker import Parts, Worker, settle, view
from qinglong_edge.core.canonical import decode
from qinglong_edge.core.errors import EdgeError, Invalid, Refused, Unavailable, from_document
from qinglong_edge.system import sockets
from qinglong_edge.system.sockets import Connection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from qinglong_edge.app.worker_config import WorkerConfig

_CONNECTIONS_MAX = 16
_ACCEPT_AGAIN_MS = 1_000
_ROOT = 0
_CONNECT_S = 5.0
_ANSWER_S = 60.0  # the worker may be waiting for its plane
_ANSWER_BYTES_MAX = 4_194_304


def _settle(worker: Worker, params: dict[str, object]) -> object:
    offer_id, reason = params.get("offer"), params.get("reason")
    if not isinstance(offer_id, str) or not isinstance(reason, str) or not 1 <= len(reason) <= 256:
        raise Invalid("param_invalid", "An offer and a reason of 1 to 256 characters are needed.")
    return settle(worker, offer_id, reason)


def _drain(worker: Worker, _params: dict[str, object]) -> object:
    worker.lifecycle.begin_drain()
    return view(worker)


_METHODS: dict[str, Callable[[Worker, dict[str, object]], object]] = {
    "status": lambda worker, _params: view(worker),
    "drain": _drain,
    "settle": _settle,
}


def call(worker: Worker, method: str, params: dict[str, object]) -> object:
    """Do one method."""
    known = _METHODS.get(method)
    if known is None:
        raise Refused("method_unknown", "There is no such method.")
    return known(worker, params)


class ControlServer:
    """Serves one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._path = worker.config.socket
        self._connections: set[Connection] = set()
        try:
            self._listener = sockets.bind(self._path)
        except OSError as error:
            raise Unavailable(
                "socket_unavailable", "The control socket cannot be made.", errno=error.errno
            ) from None
        self._listen()

    def _listen(self) -> None:
        if self._listener.fileno() >= 0:
            self._worker.loop.watch(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            sock = sockets.accept(self._listener)
        except BlockingIOError:
            return
        except OSError:  # no descriptor left: the client waits, the loop does not spin
            self._worker.loop.unwatch(self._listener.fileno())
            self._worker.loop.call_later(_ACCEPT_AGAIN_MS, self._listen)
            return
        try:
            uid = sockets.peer_uid(sock)
        except OSError:
            sock.close()
            return
        if uid not in (_ROOT, os.geteuid()) or len(self._connections) >= _CONNECTIONS_MAX:
            sock.close()
            return
        connection = Connection(self._worker.loop, sock, uid)
        self._connections.add(connection)
        connection.on_line = lambda line: connection.send(self._answer(line))
        connection.on_oversize = connection.close
        connection.on_close = lambda: self._connections.discard(connection)

    def _answer(self, line: bytes) -> bytes:
        call_id: object = None
        try:
            request = rpc.read_call(line)
            call_id = request.id
            return rpc.result_line(call_id, call(self._worker, request.method, request.params))
        except EdgeError as error:
            return rpc.error_line(call_id, error)
        except Exception as error:  # noqa: BLE001 - one bad request, not the worker
            self._worker.say("bug", kind=type(error).__name__)
            return rpc.error_line(call_id, error)

    def close(self) -> None:
        """Take the socket's name away and drop every client."""
        self._worker.loop.unwatch(self._listener.fileno())
        self._listener.close()
        for connection in list(self._connections):
            connection.close()
        try:
            os.unlink(self._path)
        except OSError:
            return


def ask(config: WorkerConfig, method: str, params: dict[str, object]) -> Any:
    """The running worker's answer; without one `status` and `settle` are done here."""
    try:
        sock = sockets.connect(config.socket, _CONNECT_S)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        if method == "drain":
            raise Refused("not_running", "No worker runs with this configuration.") from None
        return _here(config, method, params)
    except OSError:
        raise Unavailable("worker_silent", "The worker does not answer.") from None
    buffer = bytearray()
    try:
        sock.settimeout(_ANSWER_S)
        sock.sendall(rpc.call_line(1, method, params))
        while b"\n" not in buffer and (data := sock.recv(65_536)):
            buffer += data
    except OSError:
        raise Unavailable("worker_silent", "The worker does not answer.") from None
    finally:
        sock.close()
    answer = decode(bytes(buffer), bytes_max=_ANSWER_BYTES_MAX) if buffer else None
    if not isinstance(answer, dict):
        raise Unavailable("worker_silent", "The worker went away before it answered.")
    failure = answer.get("error")
    if isinstance(failure, dict):
        told = failure.get("data")
        document: dict[str, object] = told if isinstance(told, dict) else {}
        raise from_document(document, _exit(document))
    return answer.get("result")


def _here(config: WorkerConfig, method: str, params: dict[str, object]) -> object:
    if not os.path.isdir(config.state):
        raise Refused("state_missing", "This worker has never run here.")
    worker = Worker(config, Parts(), say=lambda _event, **_facts: None)
    try:
        return call(worker, method, params)
    finally:
        worker.close()


def _exit(document: dict[str, object]) -> int:
    found = document.get("exit")
    return found if isinstance(found, int) else 70
