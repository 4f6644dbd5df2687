"""A control plane on loopback, as a process of its own: TLS 1.3, mutual certificates, strict books.

    python -m tests.worker.peer SERVER_CERT SERVER_KEY TRUST TOKEN WORKER_ID [LEASE_MS] [requeue]

prints `port N`, then reads one JSON object a line from stdin and answers each with one:

    {"do": "add", "spec": {...}}          {"do": "fault", "fault": {...}}
    {"do": "stop", "run": ID, "why": W}   {"do": "secret", "ref": R, "value": V}
    {"do": "lose", "run": ID}             {"do": "look"}       {"do": "forget"}
    {"do": "restore", "books": TEXT or null}: as they were in a snapshot, or empty ones

A fault: operation `op`, a `kind`, how many `times`, and after how many calls (`skip`):

    delay MS | cut_before | cut_after | twice | status N | wrong | garbage | extra | hang MS
"""

from __future__ import annotations

import base64
import hashlib
import json
import pickle
import socket
import socketserver
import ssl
import sys
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.worker import strict
from tests.worker.books import Books
from tests.worker.strict import StrictError

_IDLE_S = 5
_REQUESTS_MAX = 100
_BODY_MAX = 67_112_964
_JSON_MAX = 65_536
_CODES = {401: "worker_authentication_required", 409: "worker_session_fenced"}


class Faults:
    """What goes wrong, and how often it still does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._list: list[dict[str, Any]] = []
        self.fired: dict[str, int] = {}

    def add(self, fault: dict[str, Any]) -> None:
        """One more fault."""
        with self._lock:
            self._list.append({"times": 1, "skip": 0, **fault})

    def clear(self) -> None:
        """No faults any more."""
        with self._lock:
            self._list.clear()

    def take(self, operation: str) -> list[dict[str, Any]]:
        """The faults of one request."""
        found = []
        with self._lock:
            for fault in self._list:
                if fault["op"] not in (operation, "*") or fault["times"] <= 0:
                    continue
                if fault["skip"] > 0:
                    fault["skip"] -= 1
                    continue
                fault["times"] -= 1
                self.fired[fault["kind"]] = self.fired.get(fault["kind"], 0) + 1
                found.append(fault)
        return found


class Plane:
    """Books, faults and what has been asked."""

    def __init__(self, books: Books, token: str) -> None:
        self.books = books
        self.token = token
        self.faults = Faults()
        self.lock = threading.Lock()
        self.calls: dict[str, int] = {}
        self.refused: list[str] = []
        self.connections = 0

    def answer(self, path: str, token: str, body: bytes) -> dict[str, Any]:
        """The reply to one request."""
        worker, session_id, operation = strict.route(path)
        if token != f"Worker {self.token}" or worker != self.books.worker:
            raise StrictError(401, "worker_authentication_required")
        with self.lock:
            self.books.expire()
            if operation == "artifacts":
                header, content = strict.upload(body)
                return self.books.store(session_id, header, content)
            if len(body) > strict.CAPS.get(operation, 4_096):
                raise StrictError(413, "request_too_large")
            return self._json(session_id, operation, strict.document(body))

    def snapshot(self) -> str:
        """The books as text."""
        return base64.b64encode(zlib.compress(pickle.dumps(self.books))).decode()

    def restore(self, text: str | None) -> None:
        """The books are those of a snapshot from now on, or empty."""
        old = self.books
        if text is None:
            self.books = Books(worker=old.worker, lease_ms=old.lease_ms, requeue=old.requeue)
        else:
            self.books = pickle.loads(zlib.decompress(base64.b64decode(text)))  # noqa: S301 - its own

    def _json(self, session_id: str, operation: str, found: dict[str, Any]) -> dict[str, Any]:
        books = self.books
        if operation == "register":
            strict.check_register(found)
            return books.register(session_id, found)
        if operation == "offers":
            strict.check_offers(found)
            return books.offer(session_id, found)
        calls = {
            "heartbeat": books.heartbeat,
            "transition": books.transition,
            "starting": books.starting,
            "running": books.running,
            "start-failure": books.start_failure,
            "secrets": books.deliver,
            "completion": books.complete,
            "lease-control": books.control,
        }
        return calls[operation](session_id, found)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    plane: Plane
    timeout = _IDLE_S
    disable_nagle_algorithm = True  # or a reply's second packet waits 40 ms for an acknowledgement
    served = 0

    def log_message(self, *_given: object) -> None:
        """Quiet."""

    def do_POST(self) -> None:
        """One request, with its faults."""
        self.served += 1
        if self.served >= _REQUESTS_MAX:
            self.close_connection = True
        operation = self.path.rpartition("/")[2]
        plane = self.plane
        with plane.lock:
            plane.calls[operation] = plane.calls.get(operation, 0) + 1
        faults = plane.faults.take(operation)
        body = self._body(operation)
        for fault in faults:
            if fault["kind"] in ("delay", "hang"):
                time.sleep(fault["ms"] / 1000)
        kinds = {fault["kind"]: fault for fault in faults}
        if "cut_before" in kinds:
            self._cut()
            return
        if "status" in kinds:
            status = kinds["status"]["status"]
            self._send(status, {"code": _CODES.get(status, "worker_ingress_unavailable")})
            return
        self._answer(operation, body, kinds)

    def _answer(self, operation: str, body: bytes, kinds: dict[str, Any]) -> None:
        try:
            reply = self.plane.answer(self.path, self.headers.get("authorization", ""), body)
            status = 200
        except StrictError as error:
            with self.plane.lock:
                self.plane.refused.append(f"{operation}: {error}")
            status, reply = error.status, {"code": error.code}
        if "cut_after" in kinds:
            self._cut()
            return
        if "wrong" in kinds:
            reply = _spoiled(reply)
        if "extra" in kinds:
            reply = {**reply, "surplus": 1}
        self._send(status, reply, garbage="garbage" in kinds)
        if "twice" in kinds:
            self._send(status, reply)

    def _body(self, operation: str) -> bytes:
        length = int(self.headers.get("content-length", "-1"))
        kind = self.headers.get("content-type", "")
        wanted = (
            "application/vnd.qinglong.worker-artifact"
            if operation == "artifacts"
            else "application/json"
        )
        most = _BODY_MAX if operation == "artifacts" else _JSON_MAX
        if kind != wanted or not 0 <= length <= most or self.headers.get("accept") is None:
            with self.plane.lock:
                self.plane.refused.append(f"{operation}: headers")
            return b""
        return self.rfile.read(length)

    def _send(self, status: int, reply: dict[str, Any], *, garbage: bool = False) -> None:
        data = json.dumps(reply, ensure_ascii=False, separators=(",", ":")).encode()
        if garbage:
            data = b"{" + data
        self.send_response_only(status)
        for name, value in (
            ("content-type", "application/json; charset=utf-8"),
            ("cache-control", "no-store"),
            ("x-content-type-options", "nosniff"),
            ("content-length", str(len(data))),
        ):
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def _cut(self) -> None:
        self.close_connection = True
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return


def _spoiled(reply: dict[str, Any]) -> dict[str, Any]:
    """The reply with one value that is not what was asked for."""
    for key, value in (
        ("sha256", "0" * 64),
        ("version", 99),
        ("leaseVersion", 99),
        ("runId", "another-run"),
    ):
        if reply.get(key) is not None:
            return {**reply, key: value}
    if "snapshot" in reply:
        return {**reply, "snapshot": {**reply["snapshot"], "runId": "another-run"}}
    return {**reply, "schema": "qinglong/other@v1"}


class Server(socketserver.ThreadingTCPServer):
    """TLS 1.3 with a client certificate, or nothing."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, plane: Plane, certificate: str, key: str, trust: str) -> None:
        self.plane = plane
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(trust)
        context.verify_mode = ssl.CERT_REQUIRED
        self.context = context
        handler = type("Bound", (Handler,), {"plane": plane})
        super().__init__(("127.0.0.1", 0), handler)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """The handshake belongs to the connection's own thread."""
        try:
            request.settimeout(_IDLE_S)
            request = self.context.wrap_socket(request, server_side=True)
        except OSError:
            self.shutdown_request(request)
            return
        with self.plane.lock:
            self.plane.connections += 1
        super().process_request_thread(request, client_address)

    def handle_error(self, _request: Any, _client_address: Any) -> None:
        """A worker that was killed in the middle is no error of the plane."""


def look(plane: Plane) -> dict[str, Any]:
    """Everything that a test may ask."""
    books = plane.books
    books.expire()
    attempts = [
        {
            "run": each.run.run_id,
            "attempt": each.attempt_id,
            "offer": each.offer_id,
            "status": each.status,
            "end": each.end,
            "completions": each.completions,
            "deliveries": each.deliveries,
            "version": each.version,
            "result": None if each.completion is None else each.completion["result"],
            "artifact": each.artifact,
            "handle": each.handle,
            "content": base64.b64encode(each.content[:65_536]).decode(),
            "sha256": hashlib.sha256(each.content).hexdigest(),
        }
        for each in books.offers.values()
    ]
    session = books.current
    return {
        "runs": {run.run_id: run.status for run in books.runs},
        "attempts": attempts,
        "calls": dict(plane.calls),
        "refused": list(plane.refused),
        "fired": dict(plane.faults.fired),
        "connections": plane.connections,
        "sessions": len(books.sessions),
        "secret_requests": books.secret_requests,
        "session": None
        if session is None
        else {
            "id": session.session,
            "generation": session.generation,
            "version": session.version,
            "status": session.status,
            "slots": session.slots,
        },
    }


def obey(plane: Plane, order: dict[str, Any]) -> dict[str, Any]:
    """One order of a test."""
    what = order["do"]
    with plane.lock:
        if what == "add":
            return {"run": plane.books.add(order["spec"])}
        if what == "look":
            return look(plane)
        if what == "secret":
            plane.books.secrets[order["ref"]] = order["value"]
        elif what == "restore":
            plane.restore(order["books"])
        elif what == "stop":
            for attempt in plane.books.find(order["run"]).attempts:
                attempt.stop = order["why"]
        elif what == "lose":
            for attempt in plane.books.find(order["run"]).attempts:
                attempt.expires_ms = 0
        elif what == "fence":
            if plane.books.current is not None:
                plane.books.current.until_ms = 0
        elif what == "drop_artifact":
            for attempt in plane.books.find(order["run"]).attempts:
                attempt.artifact = None
    if what == "fault":
        plane.faults.add(order["fault"])
    elif what == "forget":
        plane.faults.clear()
    return {}


def main(argv: list[str], kind: type[Plane] = Plane) -> int:
    """Serve until stdin ends."""
    certificate, key, trust, token, worker, *rest = argv
    lease_ms = int(rest[0]) if rest else 30_000
    books = Books(worker=worker, lease_ms=lease_ms, requeue="requeue" in rest)
    plane = kind(books, token)
    server = Server(plane, certificate, key, trust)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"port {server.server_address[1]}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        answer = obey(plane, json.loads(line))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    server.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
