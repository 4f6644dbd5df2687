"""What a worker may be asked: `status`, `drain`, `settle`, over its control socket.

Owns these methods and a command's way to them. With no worker running a command asks the journal
itself.
"""

from __future__ import annotations

import os

from qinglong_edge.app import rpc
from qinglong_edge.app.worker import Parts, Worker, settle, view
from qinglong_edge.core.canonical import decode
from qinglong_edge.core.errors import Invalid, Refused, Unavailable
from qinglong_edge.system import sockets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from qinglong_edge.app.worker_config import WorkerConfig

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


def ask(config: WorkerConfig, method: str, params: dict[str, object]) -> Any:
    """The running worker's answer; without one `status` and `settle` are done here."""
    from qinglong_edge.app import answer  # only a command asks

    try:
        sock = sockets.connect(config.socket, _CONNECT_S)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        if method == "drain":
            raise Refused(
                "not_running", "No worker runs with this configuration; `run` starts one."
            ) from None
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
    told = decode(bytes(buffer), bytes_max=_ANSWER_BYTES_MAX) if buffer else None
    if not isinstance(told, dict):
        raise Unavailable("worker_silent", "The worker went away before it answered.")
    return answer.result(told)


def _here(config: WorkerConfig, method: str, params: dict[str, object]) -> object:
    if not os.path.isdir(config.state):
        raise Refused("state_missing", "This worker has never run here.")
    worker = Worker(config, Parts(), say=lambda _event, **_facts: None)
    try:
        return call(worker, method, params)
    finally:
        worker.close()
