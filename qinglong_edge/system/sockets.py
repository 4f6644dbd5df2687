"""The control socket: a listening unix socket and line-framed, never-blocking connections.

Owns framing and back-pressure: one request a line, at most `REQUEST_BYTES_MAX` bytes, at most one
request of a connection at a time; while an answer waits for a slow reader nothing more is read
from it. A dead or hostile client costs its own connection only. Nothing survives a crash but the
socket's name, which the next owner (holding the owner lock) replaces.
"""

from __future__ import annotations

import _socket as socket  # without the enums of `socket`: 0.4 MiB less in every daemon
import os
import struct

from qinglong_edge.core.errors import Unavailable
from qinglong_edge.core.limits import REQUEST_BYTES_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from qinglong_edge.system.loop import Loop

_CHUNK_BYTES = 65_536
_BACKLOG = 64


def _through_directory(path: str) -> tuple[int, str]:
    """A directory descriptor and a short name for a socket path longer than the kernel takes."""
    fd = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    return fd, f"/proc/self/fd/{fd}/{os.path.basename(path)}"


def bind(path: str) -> socket.socket:
    """A listening socket, mode 0600, in place of whatever name was left there.

    Unavailable `socket_in_use` while somebody listens there: the owner of another state, whose
    commands would come here and whose name this one would take away.
    """
    if _listens(path):
        raise Unavailable("socket_in_use", "Another process answers at this control socket.")
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    directory, short = _through_directory(path)
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            sock.setblocking(False)
            sock.bind(short)
            sock.listen(_BACKLOG)
        except BaseException:
            sock.close()
            raise
        finally:
            os.umask(before)
    finally:
        os.close(directory)
    return sock


def _listens(path: str) -> bool:
    """True if a connection is taken, or waits for its turn."""
    try:
        connect(path, 0).close()
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


def connect(path: str, timeout_s: float | None) -> socket.socket:
    """A client's end; FileNotFoundError or ConnectionRefusedError if nobody listens."""
    directory, short = _through_directory(path)
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout_s)
            sock.connect(short)
        except BaseException:
            sock.close()
            raise
    finally:
        os.close(directory)
    return sock


def accept(listener: socket.socket) -> socket.socket:
    """The next client; BlockingIOError if none waits, OSError if no descriptor is left."""
    fd, _address = listener._accept()  # type: ignore[attr-defined]
    return socket.socket(fileno=fd)


def peer_uid(sock: socket.socket) -> int:
    """The user on the other end, as the kernel saw it at connect time."""
    return _peer(sock)[1]


def peer_pid(sock: socket.socket) -> int:
    """The process on the other end; 0 for one of a pid namespace that is not seen from here."""
    return _peer(sock)[0]


def _peer(sock: socket.socket) -> tuple[int, int, int]:
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3I"))
    pid, uid, gid = struct.unpack("3I", data)
    return pid, uid, gid


class Connection:
    """One client; `on_line` gets each request line, `on_close` is called once."""

    def __init__(self, loop: Loop, sock: socket.socket, uid: int) -> None:
        self.uid = uid
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._input = bytearray()
        self._output = bytearray()
        self._last = False
        self.closed = False
        self.on_line: Callable[[bytes], None] = lambda _line: None
        self.on_oversize: Callable[[], None] = lambda: None
        self.on_close: Callable[[], None] = lambda: None
        sock.setblocking(False)
        loop.watch(self._fd, self._ready)

    def send(self, line: bytes, *, last: bool = False) -> None:
        """Answer the request in hand; `last` closes once the bytes are gone."""
        if self.closed:
            return
        self._last = self._last or last
        self._output += line
        self._write()

    def close(self) -> None:
        """Drop the client; idempotent."""
        if not self.closed:
            self.closed = True
            self._loop.unwatch(self._fd)
            self._sock.close()
            self.on_close()

    def _ready(self) -> None:
        """One step a wake-up, so that a client with many requests leaves the others their turn."""
        try:
            if self._output:
                self._write()
            elif not self._take_line():
                self._read()
        except MemoryError:  # its lines are too much for this box; the others stay
            self.close()

    def _write(self) -> None:
        """Send what the kernel takes, then wait for what comes next."""
        try:
            del self._output[: self._sock.send(self._output[:_CHUNK_BYTES])]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        if self._last and not self._output:
            self.close()
            return
        # A next request that is here already waits for the socket to take bytes: the next wake-up.
        more = bool(self._output) or b"\n" in self._input
        self._loop.watch(self._fd, self._ready, write=more)

    def _read(self) -> None:
        try:
            data = self._sock.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._input += data
        self._take_line()

    def _take_line(self) -> bool:
        """Hand over one request; False if there is no whole one."""
        end = self._input.find(b"\n")
        if end < 0 and len(self._input) <= REQUEST_BYTES_MAX:
            return False
        # While a request is in hand nothing is read, so that one client cannot queue many.
        self._loop.watch_end(self._fd, self.close)
        if end < 0 or end > REQUEST_BYTES_MAX:
            self._input.clear()
            self.on_oversize()
            return True
        line = bytes(self._input[:end])
        del self._input[: end + 1]
        self.on_line(line)
        return True
