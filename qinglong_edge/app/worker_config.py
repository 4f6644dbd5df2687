"""A worker's configuration file: who it is, where its plane is, what it proves itself with.

Owns the reading of it, before anything else is touched; a worker that is not enabled opens nothing
more. Secrets are never in it, only the paths of the files that hold them.

    {"version": 1, "enabled": true, "profile": "worker-edge", "workerId": "router-1",
     "origin": "https://plane.example:5801", "state": "/srv/qinglong-worker",
     "trust": "/etc/.../ca.pem", "certificate": "/etc/.../chain.pem", "key": "/etc/.../key.pem",
     "token": "/etc/.../token"}

and, where the defaults do not fit: "runtime", "logs" (directories), "credentialId",
"capabilities", "maxConcurrentRuns", "limits" (numbers of the profile).
"""

from __future__ import annotations

import os

from qinglong_edge.app import program
from qinglong_edge.core import session, worker_profile
from qinglong_edge.core.canonical import decode
from qinglong_edge.core.errors import EdgeError, Invalid, Refused
from qinglong_edge.core.limits import PATH_BYTES_MAX
from qinglong_edge.core.record import Record
from qinglong_edge.core.wire import WORKER_ID
from qinglong_edge.core.worker_profile import WorkerProfile
from qinglong_edge.system.files import Files, storage_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_BYTES_MAX = 65_536
_REQUIRED = {
    *("version", "enabled", "profile", "workerId", "origin", "state"),
    *("trust", "certificate", "key", "token"),
}
_OPTIONAL = {"runtime", "logs", "credentialId", "capabilities", "maxConcurrentRuns", "limits"}
_SCHEME = "https://"
_PORT = 443


class WorkerConfig(Record):
    """One worker's configuration, checked."""

    enabled: bool
    profile: WorkerProfile
    worker_id: str
    origin: tuple[str, int]
    state: str
    runtime: str
    logs: str
    trust: str
    certificate: str
    key: str
    token: str
    credential_id: str | None
    capabilities: str
    runs_max: int

    @property
    def socket(self) -> str:
        """The control socket."""
        return os.path.join(self.runtime, "worker.sock")

    @property
    def wrapper(self) -> str:
        """The installed wrapper script."""
        return os.path.join(self.runtime, "wrapper.sh")

    @property
    def receipts(self) -> str:
        """The receipt root."""
        return os.path.join(self.state, "receipts")


def read(path: str, files: Files | None = None) -> WorkerConfig:
    """The configuration in a file.

    Refused `config_missing`; Invalid `config_invalid` naming the entry; `Corrupt` if the path leads
    to anything but a regular file.
    """
    try:
        data = (files or Files()).read_private(path, _BYTES_MAX)
    except OSError as error:
        raise storage_error(error, "configuration") from None
    if data is None:
        raise Refused("config_missing", "There is no configuration file of that name.")
    found = decode(data, bytes_max=_BYTES_MAX)
    if not isinstance(found, dict):
        raise _invalid("version")
    for name in sorted(_REQUIRED - set(found)) + sorted(set(found) - _REQUIRED - _OPTIONAL):
        raise _invalid(name)
    return _config(found)


def _config(found: dict[str, Any]) -> WorkerConfig:
    if found["version"] != 1 or type(found["enabled"]) is not bool:
        raise _invalid("version" if found["version"] != 1 else "enabled")
    profile = _profile(found)
    state = _path(found, "state")
    runs_max = found.get("maxConcurrentRuns") or profile.runs_default
    if type(runs_max) is not int or not 1 <= runs_max <= profile.runs_max:
        raise _invalid("maxConcurrentRuns")
    worker_id = found["workerId"]
    if not isinstance(worker_id, str) or not WORKER_ID.fullmatch(worker_id):
        raise _invalid("workerId")
    credential = found.get("credentialId")
    if credential is not None and not isinstance(credential, str):
        raise _invalid("credentialId")
    return WorkerConfig(
        enabled=found["enabled"],
        profile=profile,
        worker_id=worker_id,
        origin=_origin(found["origin"]),
        state=state,
        runtime=_path(found, "runtime", os.path.join(state, "run")),
        logs=_path(found, "logs", os.path.join(state, "logs")),
        trust=_path(found, "trust"),
        certificate=_path(found, "certificate"),
        key=_path(found, "key"),
        token=_path(found, "token"),
        credential_id=credential,
        capabilities=_capabilities(found.get("capabilities")),
        runs_max=runs_max,
    )


def _profile(found: dict[str, Any]) -> WorkerProfile:
    tables = program.profiles(worker=True)
    name, limits = found["profile"], found.get("limits", {})
    if name not in tables:
        raise _invalid("profile")
    if not isinstance(limits, dict) or not set(limits) <= set(tables[name]):
        raise _invalid("limits")
    try:
        return worker_profile.from_mapping(name, {**tables[name], **limits})
    except EdgeError as error:
        raise _invalid(f"limits.{error.facts.get('field')}") from None


def _path(found: dict[str, Any], name: str, default: str | None = None) -> str:
    path = found.get(name)
    if path is None and default is not None:
        path = default
    if (
        not isinstance(path, str)
        or os.path.normpath(path) != path
        or not path.startswith("/")
        or path == "/"
        or "\0" in path
        or len(os.fsencode(path)) > PATH_BYTES_MAX
    ):
        raise _invalid(name)
    return path


def _origin(value: object) -> tuple[str, int]:
    """Host and port of a bare https origin."""
    text = value if isinstance(value, str) else ""
    rest = text.removeprefix(_SCHEME)
    if rest == text or not rest.isascii() or not rest.isprintable():
        raise _invalid("origin")
    if rest.startswith("["):
        host, closed, tail = rest[1:].partition("]")
        if not closed:
            raise _invalid("origin")
        name, port = host, tail.removeprefix(":") if tail else str(_PORT)
    else:
        name, colon, port = rest.partition(":")
        port = port if colon else str(_PORT)
    if not name or set(name) & set("/?#@ \\") or not port.isdigit() or not 0 < int(port) < 65_536:
        raise _invalid("origin")
    return name, int(port)


def _capabilities(given: object) -> str:
    """What was configured, or what this machine is."""
    if given is None:
        machine = session.MACHINES.get(os.uname().machine)
        if machine is None:
            raise Refused("architecture_unsupported", "No plane gives work to this architecture.")
        given = {
            "architecture": machine,
            "executors": [session.EXECUTOR],
            "protocolVersion": session.PROTOCOL,
            "supportTier": session.TIERS[machine],
            "operatingSystem": "linux",
        }
    if not isinstance(given, dict):
        raise _invalid("capabilities")
    try:
        return session.capabilities(given)
    except Invalid as error:
        raise _invalid(f"capabilities.{error.facts.get('field')}") from None


def _invalid(field: str) -> Invalid:
    return Invalid("config_invalid", "The configuration has a wrong entry.", field=field)


def check_apart(config: WorkerConfig) -> None:
    """Refuse roots that lie in each other: what is forgotten in one must not be another's."""
    roots = sorted((config.logs, config.receipts, config.runtime))
    for at, upper in enumerate(roots):
        if any(lower == upper or lower.startswith(f"{upper}/") for lower in roots[at + 1 :]):
            raise Invalid("config_invalid", "Two directories lie in each other.", field="logs")
