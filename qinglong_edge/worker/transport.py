"""One HTTPS connection to the control plane: TLS 1.3, a client certificate, a token.

Owns how a request travels. Promises:

* A request is never sent again once a byte of it may have left: its outcome is then unknown, and
  every operation of the contract can be repeated by whoever asked for it.
* A reply counts only with status 200, as JSON, within its bound, and whole within the time that a
  request has; of any other reply nothing but the status is read.
* Certificate, key, trust and token are read again when their files change; a connection made with
  the old ones is given up.

Synchronous on purpose: a request has a bound in all, and nothing of a running task waits for it.
Five times a second, whatever the network does, it calls its `meanwhile`, which sees to the stops
that are due: a plane that is silent never delays one. It ends with the first lease that is over,
too, so that what follows from that is not delayed either.
"""

from __future__ import annotations

import io

from qinglong_edge.core import canonical
from qinglong_edge.core.errors import Invalid, Refused, Unavailable, module_missing
from qinglong_edge.core.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable, Iterable
    from http.client import HTTPResponse
    from typing import Any, TypeVar

    from qinglong_edge.worker.ports import ClockPort

    T = TypeVar("T")

BASE = "/api/v3/worker-ingress/workers/"
JSON_TYPE = "application/json"
ARTIFACT_TYPE = "application/vnd.qinglong.worker-artifact"
_TIMEOUT_MS_MIN = 1_000  # however soon a lease is over: a renewal has to have a chance
_LOOK_S = 0.2  # the longest time in which nothing else is seen to
_IDLE_MS_MAX = 4_000  # a plane closes what is idle for 5 s
_REQUESTS_MAX = 90  # and what has served 100 requests
_DEPTH_MAX = 16
_PIECE_BYTES = 65_536
_REFUSALS = {
    401: "credential_rejected",
    403: "credential_rejected",
    409: "fenced",
    429: "plane_busy",
}


class Material(Record):
    """What a connection proves itself with; `stamp` changes with any of the files."""

    certificate: str  # paths: `ssl` reads them itself
    key: str
    trust: str
    token: str
    stamp: tuple[object, ...]

    def __repr__(self) -> str:
        return "Material(...)"


class Route(Record):
    """One operation and its bounds."""

    name: str
    request_bytes_max: int = 4_096
    reply_bytes_max: int = 4_096


def require() -> None:
    """Refuse a Python whose TLS or HTTP is not installed: Unavailable `module_missing`."""
    try:
        import http.client  # noqa: F401 - it is only asked for
        import ssl  # noqa: F401 - the same
    except ModuleNotFoundError as error:
        raise module_missing(error.name or "") from None


def secured(trust: str, certificate: str, key: str) -> ssl.SSLContext:
    """How TLS is spoken to a plane; OSError or ValueError of files that are not fit for it."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(trust)
    context.load_cert_chain(certificate, key)
    return context


class Transport:
    """The plane at one origin, for one worker."""

    def __init__(
        self,
        origin: tuple[str, int],
        worker_id: str,
        *,
        material: Callable[[], Material],
        clock: ClockPort,
        dial: Callable[[str, int, Callable[[], float]], socket.socket],
        timeout_ms: int,
        lease_end: Callable[[], int | None] = lambda: None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """`dial` connects to a host and a port within the seconds that are left.

        `lease_end`: the boottime at which something has to be stopped unless a plane answers.
        `meanwhile` is called from within a request, whenever it asks for the time that is left: it
        sends nothing to the plane, and changes nothing that whoever sends a request relies on.
        """
        self._origin = origin
        self._worker_id = worker_id
        self._material = material
        self._clock = clock
        self._dial = dial
        self._timeout_ms = timeout_ms
        self._lease_end = lease_end
        self._meanwhile = meanwhile
        self._sock: ssl.SSLSocket | None = None
        self._context: ssl.SSLContext | None = None
        self._stamp: tuple[object, ...] | None = None
        self._used_ms = 0
        self._requests = 0

    def fresh(self, timeout_ms: int) -> Transport:
        """Another one without a connection: what a launch child uses, which shares no socket."""
        return Transport(
            self._origin,
            self._worker_id,
            material=self._material,
            clock=self._clock,
            dial=self._dial,
            timeout_ms=min(timeout_ms, self._timeout_ms),
        )

    def post(self, session_id: str, route: Route, body: dict[str, Any]) -> object:
        """Send a JSON document; the document that comes back.

        Refused `fenced` (409), `credential_rejected` (401, 403), `request_rejected`; Unavailable
        `transport_unavailable`, `plane_unavailable`, `response_invalid`.
        """
        data = canonical.encode(body)
        if len(data) > route.request_bytes_max:
            raise Invalid("request_too_large", "A request is larger than its route allows.")
        return self._exchange(session_id, route, JSON_TYPE, len(data), (data,))

    def upload(self, session_id: str, route: Route, length: int, pieces: Iterable[bytes]) -> object:
        """Send `length` bytes as they come; the document that comes back. Errors as of `post`."""
        return self._exchange(session_id, route, ARTIFACT_TYPE, length, pieces)

    def _exchange(
        self, session_id: str, route: Route, kind: str, length: int, pieces: Iterable[bytes]
    ) -> object:
        from http.client import HTTPException

        now_ms, end_ms = self._clock.boot_ms(), self._lease_end()
        until_ms = now_ms + self._timeout_ms
        if end_ms is not None:
            until_ms = min(until_ms, max(end_ms, now_ms + _TIMEOUT_MS_MIN))

        def left_s() -> float:
            self._meanwhile()
            left_ms = until_ms - self._clock.boot_ms()
            if left_ms <= 0:
                raise TimeoutError
            return left_ms / 1000

        material = self._material()
        try:
            sock = self._connected(material, left_s)
            head = self._head(session_id, route, kind, length, material.token)
            self._send(sock, head, length, pieces, left_s)
            return self._reply(sock, route, left_s)
        except (OSError, HTTPException) as error:
            self.close()
            raise Unavailable(
                "transport_unavailable",
                "The control plane cannot be reached.",
                kind=type(error).__name__,
            ) from None
        except BaseException:
            self.close()
            raise

    def _head(self, session_id: str, route: Route, kind: str, length: int, token: str) -> bytes:
        host, port = self._origin
        named = f"[{host}]" if ":" in host else host
        lines = (
            f"POST {BASE}{self._worker_id}/sessions/{session_id}/{route.name} HTTP/1.1",
            f"Host: {named}:{port}",
            f"Accept: {JSON_TYPE}",
            f"Authorization: Worker {token}",
            f"Content-Type: {kind}",
            f"Content-Length: {length}",
            "\r\n",
        )
        return "\r\n".join(lines).encode("ascii")

    def _connected(self, material: Material, left_s: Callable[[], float]) -> ssl.SSLSocket:
        """The living connection, or a new one; a stale one is seen before anything is sent."""
        import socket

        sock = self._sock
        if sock is not None and (
            material.stamp != self._stamp
            or self._requests >= _REQUESTS_MAX
            or self._clock.boot_ms() - self._used_ms > _IDLE_MS_MAX
            or _has_something_to_say(sock)
        ):
            self.close()
        if self._sock is None:
            context = self._secured(material)
            plain = self._dial(*self._origin, left_s)
            try:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # As bytes: a text would load the tables of international names.
                host = self._origin[0].encode("ascii")
                self._sock = sock = context.wrap_socket(
                    plain, server_hostname=host, do_handshake_on_connect=False
                )
            except BaseException:
                plain.close()
                raise
            _patiently(sock, left_s, sock.do_handshake)
            self._requests = 0
        self._requests += 1
        return self._sock

    def _secured(self, material: Material) -> ssl.SSLContext:
        if self._context is None or material.stamp != self._stamp:
            self._context = secured(material.trust, material.certificate, material.key)
            self._stamp = material.stamp
        return self._context

    def _send(
        self,
        sock: ssl.SSLSocket,
        head: bytes,
        length: int,
        pieces: Iterable[bytes],
        left_s: Callable[[], float],
    ) -> None:
        left = length
        waiting = head
        for piece in pieces:
            left -= len(piece)
            if left < 0:
                break
            waiting += piece
            if len(waiting) >= _PIECE_BYTES or left == 0:
                _send_all(sock, waiting, left_s)
                waiting = b""
        if left:
            raise Unavailable("upload_changed", "A log changed its size while it was sent.")
        _send_all(sock, waiting, left_s)

    def _reply(self, sock: ssl.SSLSocket, route: Route, left_s: Callable[[], float]) -> object:
        from http.client import HTTPResponse

        reply: Any = _Reply(sock, left_s)
        response = HTTPResponse(reply, method="POST")
        try:
            response.begin()
            if response.status != 200:
                self.close()
                raise _status_error(response.status)
            data = self._body(response, route)
        finally:
            response.close()  # what is left to the collector, Python 3.13 may tell on stderr
        self._used_ms = self._clock.boot_ms()
        if response.will_close:
            self.close()
        try:
            return canonical.decode(data, bytes_max=route.reply_bytes_max, depth_max=_DEPTH_MAX)
        except Invalid:
            raise invalid_response("body") from None

    def _body(self, response: HTTPResponse, route: Route) -> bytes:
        kind = (response.getheader("content-type") or "").partition(";")[0].strip().lower()
        coding = (response.getheader("content-encoding") or "identity").strip().lower()
        told = response.getheader("content-length")
        if kind != JSON_TYPE or coding != "identity":
            raise invalid_response("content-type")
        if told is not None and not (told.isdecimal() and int(told) <= route.reply_bytes_max):
            raise invalid_response("content-length")
        try:
            data = response.read(route.reply_bytes_max + 1)
        except ValueError:  # a piece of a negative length
            raise invalid_response("body") from None
        if not 2 <= len(data) <= route.reply_bytes_max:
            raise invalid_response("body")
        if told is not None and len(data) != int(told):
            raise invalid_response("body")
        return data

    def close(self) -> None:
        """Give the connection up; the next request makes a new one."""
        sock, self._sock = self._sock, None
        if sock is not None:
            try:
                sock.close()
            except OSError:
                return


def invalid_response(field: str) -> Unavailable:
    """The error of a reply that is not the contract's."""
    return Unavailable(
        "response_invalid", "The control plane's answer is not understood.", field=field
    )


def _status_error(status: int) -> Refused | Unavailable:
    if status in _REFUSALS:
        return Refused(_REFUSALS[status], "The control plane refused a request.", status=status)
    if 400 <= status < 500:
        return Refused("request_rejected", "The control plane refused a request.", status=status)
    return Unavailable("plane_unavailable", "The control plane cannot answer now.", status=status)


def _has_something_to_say(sock: socket.socket) -> bool:
    """An idle connection that can be read has been closed, or is out of step."""
    import select

    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _send_all(sock: ssl.SSLSocket, data: bytes, left_s: Callable[[], float]) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[_patiently(sock, left_s, lambda: sock.send(rest)) :]  # noqa: B023 - at once


def _patiently(sock: ssl.SSLSocket, left_s: Callable[[], float], do: Callable[[], T]) -> T:
    """Do what may have to wait, as often as it takes; what is left is asked again meanwhile."""
    while True:
        sock.settimeout(min(left_s(), _LOOK_S))
        try:
            return do()
        except TimeoutError as error:
            if error.errno is not None:  # the kernel's word: the other end is gone
                raise


class _Reply(io.RawIOBase):
    """A socket for reading one reply, every part of it within the time that is left."""

    def __init__(self, sock: ssl.SSLSocket, left_s: Callable[[], float]) -> None:
        self._sock = sock
        self._left_s = left_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return _patiently(self._sock, self._left_s, lambda: self._sock.recv_into(buffer))

    def makefile(self, _mode: str) -> io.BufferedReader:
        """What `HTTPResponse` asks a socket for."""
        return io.BufferedReader(self)
