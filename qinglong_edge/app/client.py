"""Who answers a command: the daemon over its socket, or this process for a moment.

Owns the choice. Both speak the same methods with the same parameters. A command may wait for a run,
so it waits as long as the daemon lives; one that somebody has stopped (Ctrl-Z) is told as silent.
"""

from __future__ import annotations

from qinglong_edge.app import answer, rpc, state
from qinglong_edge.core.canonical import decode
from qinglong_edge.core.errors import EdgeError, Unavailable
from qinglong_edge.core.limits import REQUEST_BYTES_MAX
from qinglong_edge.system import sockets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Callable
    from typing import Any, Self, TypeVar

    from qinglong_edge.app.local import LocalOwner
    from qinglong_edge.app.state import Place

    A = TypeVar("A")
    T = TypeVar("T")

_CONNECT_S = 5.0
_LOOK_S = 2.0  # after so long without a byte the daemon's process is looked at
_STOPPED = ("T", "t")
_ANSWER_BYTES_MAX = 4 * REQUEST_BYTES_MAX


class Client:
    """One command's way to the state; `remote` tells who answers."""

    def __init__(self, where: Place, *, patience_s: float | None = None) -> None:
        """With a patience only a daemon may answer, each time within so many seconds."""
        self._local: LocalOwner | None = None
        self._sock: socket | None = None
        self._buffer = bytearray()
        self._patience_s = patience_s
        self._state = state.identity(where)
        if self._connect(where):
            return
        if patience_s is not None:
            raise Unavailable("daemon_down", "The scheduler is not running.")
        from qinglong_edge.app.local import LocalOwner

        try:
            self._local = LocalOwner(where)
        except Unavailable as error:  # perhaps a daemon that was only just starting
            if error.code != "state_owned" or not self._connect(where):
                raise

    def _connect(self, where: Place) -> bool:
        try:
            self._sock = sockets.connect(where.socket, _CONNECT_S)
            self._sock.settimeout(_LOOK_S if self._patience_s is None else self._patience_s)
            return True
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            return False
        except PermissionError:
            raise Unavailable(
                "socket_forbidden", "The control socket is not for this user."
            ) from None
        except OSError:
            raise Unavailable("daemon_silent", "The daemon does not answer.") from None

    @property
    def remote(self) -> bool:
        """True if a daemon answers."""
        return self._local is None

    def launch_here(self) -> None:
        """Without a daemon: let runs start in this process."""
        if self._local is not None:
            self._local.launch()

    def call(self, method: str, params: dict[str, Any]) -> Any:
        """One method's result; its error is raised with its own class."""
        given = {name: value for name, value in params.items() if value is not None}
        if self._local is not None:
            return self._local.call(method, given)
        return self._remote(method, given)

    def _remote(self, method: str, params: dict[str, Any]) -> Any:
        if self._sock is None:
            raise Unavailable("daemon_silent", "The daemon does not answer.")
        try:
            self._send(self._sock, rpc.call_line(1, method, params, state=self._state))
            told = decode(self._line(), bytes_max=_ANSWER_BYTES_MAX)
        except TimeoutError:
            raise Unavailable("daemon_silent", "The daemon does not answer.") from None
        except OSError:
            raise Unavailable("daemon_gone", "The daemon went away before it answered.") from None
        if not isinstance(told, dict):
            raise Unavailable("daemon_gone", "The daemon's answer is not understood.")
        return answer.result(told)

    def _send(self, sock: socket, line: bytes) -> None:
        left = memoryview(line)
        while left:
            left = left[self._patiently(sock, sock.send, left) :]

    def _patiently(self, sock: socket, step: Callable[[A], T], given: A) -> T:
        """One step of the talk, for as long as a daemon is at work on the other end."""
        while True:
            try:
                return step(given)
            except TimeoutError:
                if self._patience_s is not None:
                    raise
                pid = sockets.peer_pid(sock)
            if _is_stopped(pid):
                raise Unavailable(
                    "daemon_silent", "The daemon's process is stopped; SIGCONT wakes it.", pid=pid
                )

    def _line(self) -> bytes:
        while self._sock is not None:
            end = self._buffer.find(b"\n")
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                return line
            data = self._patiently(self._sock, self._sock.recv, 65_536)
            if not data:
                break
            self._buffer += data
        raise Unavailable("daemon_gone", "The daemon went away before it answered.")

    def close(self) -> None:
        """Let go."""
        if self._sock is not None:
            self._sock.close()
        if self._local is not None:
            self._local.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def _is_stopped(pid: int) -> bool:
    """True if that process is there and stopped; one of another pid namespace is 0 here."""
    from qinglong_edge.core.handle import parse_stat
    from qinglong_edge.system.process import Processes

    text = Processes().stat_text(pid) if pid > 0 else None
    try:
        return text is not None and parse_stat(text, pid).state in _STOPPED
    except EdgeError:
        return False
