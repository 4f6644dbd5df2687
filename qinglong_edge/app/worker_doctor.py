"""What may be wrong with a worker's place, in words, without changing anything.

Owns the checks of `doctor`: credentials and certificate, clock, directories, room, and whether the
plane can be reached at all. Each finding is one line; a certificate near its end is told in days.
"""

from __future__ import annotations

import os
import time

from qinglong_edge.app.worker_credentials import Credentials
from qinglong_edge.core.errors import EdgeError
from qinglong_edge.core.limits import CLOCK_FLOOR_MS
from qinglong_edge.system.dial import dial
from qinglong_edge.system.files import Files
from qinglong_edge.worker import transport

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from qinglong_edge.app.worker_config import WorkerConfig

_CONNECT_S = 5.0
_DAYS_MIN = 7


def examine(config: WorkerConfig) -> list[dict[str, Any]]:
    """Every check with its outcome."""
    files = Files()
    python = _python()
    return [
        python,
        _clock(),
        _credentials(config, files),
        *([_certificate(config)] if python["ok"] else []),
        *(_directory(name, getattr(config, name), files) for name in ("state", "logs", "runtime")),
        _room(config, files),
        *([_plane(config)] if python["ok"] else []),
    ]


def _told(check: str, text: str, *, ok: bool = True) -> dict[str, Any]:
    return {"check": check, "ok": ok, "text": text}


def _python() -> dict[str, Any]:
    try:
        transport.require()
    except EdgeError as error:
        return _told("python", f"{error.message} {error.facts['package']}", ok=False)
    return _told("python", "has TLS and HTTP")


def _clock() -> dict[str, Any]:
    right = time.time() * 1000 >= CLOCK_FLOOR_MS
    return _told(
        "clock", "set" if right else "The clock is not set; certificates will not hold.", ok=right
    )


def _credentials(config: WorkerConfig, files: Files) -> dict[str, Any]:
    try:
        Credentials(config, files).load()
    except EdgeError as error:
        field = error.facts.get("field")
        return _told("credentials", f"{field} is missing, unsafe or malformed.", ok=False)
    return _told("credentials", "private and well formed")


def _certificate(config: WorkerConfig) -> dict[str, Any]:
    """Key and chain fit together, and how long the certificate holds."""
    import ssl

    try:
        transport.secured(config.trust, config.certificate, config.key)
        decode: Any = getattr(ssl, "_ssl")._test_decode_cert  # noqa: B009
        until = ssl.cert_time_to_seconds(decode(config.certificate)["notAfter"])
    except (OSError, ValueError, KeyError, AttributeError) as error:
        kind = type(error).__name__
        return _told("certificate", f"Certificate, key or trust cannot be used ({kind}).", ok=False)
    days = int((until - time.time()) // 86_400)
    text = "is over" if days < 0 else f"holds for {days} days"
    return _told("certificate", text, ok=days >= _DAYS_MIN)


def _directory(name: str, path: str, files: Files) -> dict[str, Any]:
    if not os.path.lexists(path):
        return _told(name, "does not exist yet")
    if os.path.islink(path) or not os.path.isdir(path):
        return _told(name, "is no directory", ok=False)
    kind = files.filesystem(path)
    if name == "state" and kind in ("tmpfs", "ramfs"):
        return _told(name, "is lost with every restart of the machine (tmpfs)", ok=False)
    return _told(name, f"on {kind}", ok=os.access(path, os.W_OK | os.X_OK))


def _room(config: WorkerConfig, files: Files) -> dict[str, Any]:
    path = config.logs
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    needed = config.profile.reserve_bytes + config.profile.log_quota_bytes
    free = files.space(path).bytes
    return _told("room", f"{free} bytes free, {needed} needed for one log", ok=free >= needed)


def _plane(config: WorkerConfig) -> dict[str, Any]:
    """A handshake with the very certificates; no request is sent."""
    until_s = time.monotonic() + _CONNECT_S

    def left_s() -> float:
        left = until_s - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    try:
        context = transport.secured(config.trust, config.certificate, config.key)
        host, port = config.origin
        plain = dial(host, port, left_s)
        with plain, context.wrap_socket(plain, server_hostname=host.encode("ascii")) as sock:
            version = sock.version()
    except (OSError, ValueError) as error:
        return _told("plane", f"cannot be reached ({type(error).__name__})", ok=False)
    return _told("plane", f"reached over {version}")
