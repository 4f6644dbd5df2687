"""Sending one message: an HTTP request or a mail, over TLS or not, within one deadline.

Owns the bytes on the wire. Runs in a child of its own; nothing here is retried, redirected or
kept. The small clients spare a router the standard ones, which need three more packages: hosts are
given as bytes, so no IDNA codec is loaded. A certificate is always checked. Failures are
`Unavailable` with a stable code; no text of the peer, whose words may repeat a key, leaves here.
"""

from __future__ import annotations

import binascii
import time

from qinglong_edge.core.errors import Unavailable
from qinglong_edge.system.dial import dial

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from qinglong_edge.core.notice import Address, Request

_ANSWER_BYTES_MAX = 65_536
_LINE_BYTES_MAX = 4_096


class _Wire:
    """One connection; every wait counts against the same deadline."""

    def __init__(self, target: Address, timeout_s: float) -> None:
        from socket import gaierror

        self._until_s = time.monotonic() + timeout_s
        self._buffer = b""
        try:
            self._sock: socket.socket | None = dial(target.host, target.port, self._left)
        except gaierror:
            raise Unavailable("notify_host_unknown", "The channel's host is not found.") from None
        except OSError:
            raise Unavailable("notify_unreachable", "The channel's host does not answer.") from None
        if target.secure:
            self.secure(target.host)

    def secure(self, host: str) -> None:
        """TLS from here on."""
        try:
            import ssl
        except ImportError:
            raise Unavailable(
                "module_missing", "TLS needs a package of Python.", package="python3-openssl"
            ) from None
        sock = self._live()
        if self._buffer:  # words from before would count as said under TLS
            raise _gone()
        try:
            context = ssl.create_default_context()
            sock.settimeout(self._left())
            self._sock = context.wrap_socket(sock, server_hostname=host.encode("ascii"))
        except ssl.SSLCertVerificationError:
            raise Unavailable(
                "notify_certificate", "The host's certificate is not valid."
            ) from None
        except (OSError, ValueError):
            raise Unavailable("notify_tls", "The host does not speak TLS as it should.") from None

    def send(self, data: bytes) -> None:
        """All of it."""
        sock = self._live()
        try:
            sock.settimeout(self._left())
            sock.sendall(data)
        except OSError:
            raise _gone() from None

    def line(self) -> bytes:
        """A line without its end."""
        while b"\n" not in self._buffer:
            if len(self._buffer) > _LINE_BYTES_MAX or not self._more():
                raise _gone()
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.rstrip(b"\r")

    def rest(self, length: int | None) -> bytes:
        """So many bytes, or up to the end; bounded."""
        wanted = _ANSWER_BYTES_MAX if length is None else min(length, _ANSWER_BYTES_MAX)
        while len(self._buffer) < wanted and self._more():
            continue
        taken, self._buffer = self._buffer[:wanted], self._buffer[wanted:]
        return taken

    def _more(self) -> bool:
        sock = self._live()
        try:
            sock.settimeout(self._left())
            data = sock.recv(8_192)
        except OSError:
            raise _gone() from None
        self._buffer += data
        return bool(data)

    def _left(self) -> float:
        left = self._until_s - time.monotonic()
        if left <= 0:
            raise Unavailable("notify_timeout", "The channel did not answer in time.")
        return left

    def _live(self) -> socket.socket:
        if self._sock is None:
            raise _gone()
        return self._sock

    def close(self) -> None:
        """Hang up."""
        if self._sock is not None:
            self._sock.close()


def _gone() -> Unavailable:
    return Unavailable("notify_broken", "The channel hung up, or did not answer in time.")


def post(request: Request, timeout_s: float) -> tuple[int, bytes]:
    """(status, body of at most 64 KiB) of one POST."""
    target = request.address
    host = f"[{target.host}]" if ":" in target.host else target.host
    head = {
        "Host": host if target.port in (80, 443) else f"{host}:{target.port}",
        "User-Agent": "qinglong-edge",
        "Accept": "application/json",
        "Connection": "close",
        "Content-Length": str(len(request.body)),
        **request.headers,
    }
    lines = [f"POST {target.path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
    wire = _Wire(target, timeout_s)
    try:
        wire.send("\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + request.body)
        return _answer(wire)
    finally:
        wire.close()


def _answer(wire: _Wire) -> tuple[int, bytes]:
    words = wire.line().split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise Unavailable("notify_not_http", "The channel does not speak HTTP.")
    length: int | None = None
    chunked = False
    while line := wire.line():
        name, _, value = line.partition(b":")
        value = value.strip().lower()
        if name.lower() == b"content-length" and value.isdigit():
            length = int(value)
        chunked = chunked or (name.lower() == b"transfer-encoding" and b"chunked" in value)
    if not chunked:
        return int(words[1]), wire.rest(length)
    body = b""
    while len(body) < _ANSWER_BYTES_MAX:
        size = wire.line().partition(b";")[0]
        try:
            left = int(size or b"0", 16)
        except ValueError:
            raise Unavailable("notify_not_http", "The channel does not speak HTTP.") from None
        if left == 0:
            break
        body += wire.rest(left)
        wire.line()
    return int(words[1]), body


def send_mail(
    target: Address, mail: bytes, *, sender: str, to: str, login: list[str], timeout_s: float
) -> None:
    """Hand a mail to its server; over TLS where that is offered, and never a login without it."""
    wire = _Wire(target, timeout_s)
    try:
        _say(wire, None, 220)
        offers = _say(wire, b"EHLO qinglong-edge", 250)
        secure = target.secure
        if not secure and b"STARTTLS" in offers:
            _say(wire, b"STARTTLS", 220)
            wire.secure(target.host)
            offers, secure = _say(wire, b"EHLO qinglong-edge", 250), True
        if login:
            if not secure:
                raise Unavailable("notify_tls", "A login is not sent without TLS.")
            user, password = (each.encode("utf-8") for each in login)
            plain = binascii.b2a_base64(b"\0" + user + b"\0" + password, newline=False)
            _say(wire, b"AUTH PLAIN " + plain, 235)
        _say(wire, f"MAIL FROM:<{sender}>".encode("ascii"), 250)
        _say(wire, f"RCPT TO:<{to}>".encode("ascii"), 250)
        _say(wire, b"DATA", 354)
        _say(wire, mail + b".", 250)
        wire.send(b"QUIT\r\n")
    finally:
        wire.close()


def _say(wire: _Wire, words: bytes | None, code: int) -> bytes:
    """One command and its answer, all lines; `Unavailable` for another code."""
    if words is not None:
        wire.send(words + b"\r\n")
    told = []
    while True:
        line = wire.line()
        told.append(line[4:].upper())
        if line[3:4] != b"-":
            break
    if not line.startswith(str(code).encode()):
        number = int(line[:3]) if line[:3].isdigit() else 0
        raise Unavailable("notify_refused", "The mail server refused.", status=number)
    return b"\n".join(told)
