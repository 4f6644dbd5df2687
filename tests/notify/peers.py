"""The other ends on loopback: an HTTP server and a mail server, with and without TLS."""

from __future__ import annotations

import contextlib
import datetime
import http.server
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Seen:
    """One request as it came."""

    def __init__(self, path: str, headers: dict[str, str], body: bytes) -> None:
        self.path, self.headers, self.body = path, headers, body


class Peer:
    """A server's address and what it has seen."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.seen: list[Seen] = []
        self.mails: list[tuple[list[str], bytes]] = []


@contextlib.contextmanager
def web(
    answer: bytes = b"{}", *, status: int = 200, chunked: bool = False, tls: Path | None = None
) -> Iterator[Peer]:
    """An HTTP server that answers everything alike."""
    scheme = "http" if tls is None else "https"

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            peer.seen.append(Seen(self.path, dict(self.headers), body))
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            if chunked:
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for place in range(0, len(answer), 5):
                    piece = answer[place : place + 5]
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                self.wfile.write(b"0\r\n\r\n")
            else:
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        def log_message(self, *_arguments: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_arguments: None  # type: ignore[method-assign]
    peer = Peer(f"{scheme}://127.0.0.1:{server.server_port}")
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    with _serving(server):
        yield peer


@contextlib.contextmanager
def _serving(server: Any) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def dead() -> Iterator[str]:
    """The address of somebody who takes a call and never says a word."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(8)
        yield f"127.0.0.1:{sock.getsockname()[1]}"


@contextlib.contextmanager
def mail(*, tls: Path | None = None, refuse: bytes = b"") -> Iterator[Peer]:
    """A mail server; with a certificate it offers STARTTLS. It refuses the command `refuse`."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(4)
        listening.settimeout(60)
        peer = Peer(f"smtp://127.0.0.1:{listening.getsockname()[1]}")

        def serve() -> None:
            with contextlib.suppress(OSError):
                sock, _ = listening.accept()
                with contextlib.closing(sock):
                    _session(sock, peer, tls, refuse)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield peer
        finally:
            thread.join()


def _session(sock: socket.socket, peer: Peer, tls: Path | None, refuse: bytes) -> None:
    sock.settimeout(60)
    said: list[str] = []
    sock.sendall(b"220-hello\r\n220 ready\r\n")
    lines = sock.makefile("rb")
    while line := lines.readline().rstrip(b"\r\n"):
        said.append(line.decode())
        word = line.split()[0].upper()
        if refuse and line.upper().startswith(refuse):
            sock.sendall(b"550 no\r\n")
        elif word == b"EHLO":
            offer = b"250-STARTTLS\r\n" if tls and not isinstance(sock, ssl.SSLSocket) else b""
            sock.sendall(b"250-loopback\r\n" + offer + b"250 AUTH PLAIN\r\n")
        elif word == b"STARTTLS" and tls is not None:
            sock.sendall(b"220 go\r\n")
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls)
            lines.close()
            sock = context.wrap_socket(sock, server_side=True)
            lines = sock.makefile("rb")
        elif word == b"DATA":
            sock.sendall(b"354 go on\r\n")
            data = b""
            while (each := lines.readline()) not in (b".\r\n", b""):
                data += each
            peer.mails.append((said, data))
            sock.sendall(b"250 taken\r\n")
        elif word == b"QUIT":
            break
        else:
            sock.sendall(b"235 welcome\r\n" if word == b"AUTH" else b"250 fine\r\n")
    lines.close()
    sock.close()


def certificate(file: Path) -> Path:
    """A key and a certificate for 127.0.0.1 that sign themselves."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "loopback")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return file
