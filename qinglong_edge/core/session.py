"""A worker's session with its control plane: what it says of itself, and what it is told.

Owns the canonical capabilities (their order is part of their digest) and the documents of register,
heartbeat and transition.
"""

from __future__ import annotations

import re

from qinglong_edge.core import canonical, wire
from qinglong_edge.core.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ONLINE, DRAINING, OFFLINE = "online", "draining", "offline"
CAPABILITIES_BYTES_MAX = 16_384
# architecture -> the tier that a plane gives it; others cannot register
TIERS = {
    "amd64": "tier1",
    "arm64": "tier1",
    "ppc64le": "candidate",
    "s390x": "candidate",
    "arm/v7": "experimental",
    "arm/v6": "legacy-only",
    "386": "legacy-only",
}
MACHINES = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "ppc64le": "ppc64le",
    "s390x": "s390x",
    "armv7l": "arm/v7",
    "armv6l": "arm/v6",
    "i686": "386",
    "i586": "386",
}
PROTOCOL = "1.0.0"
EXECUTOR = "remote-worker"
_REGISTER = "qinglong/worker-session-register@v1"
_HEARTBEAT = "qinglong/worker-session-heartbeat@v1"
_TRANSITION = "qinglong/worker-session-transition@v1"
_ORDER = (
    "architecture",
    "executors",
    "protocolVersion",
    "supportTier",
    "operatingSystem",
    "runtimes",
    "labels",
    "capacity",
    "features",
)
_NAME = re.compile(r"[a-z0-9][a-z0-9._+-]{0,63}")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
_VERSION = re.compile(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")
_CAPACITY = ("cpuCores", "memoryBytes", "diskBytes", "gpu")


class Accepted(Record):
    """A plane's answer: the session as it stands there."""

    generation: int
    version: int
    status: str
    lease_expires_at_ms: int


def capabilities(given: dict[str, Any]) -> str:
    """The canonical capabilities of a worker; Invalid `wire_invalid` naming the field."""
    found = wire.members(given, "capabilities", _ORDER[:4], _ORDER[4:])
    wire.one_of(found["architecture"], "architecture", TIERS)
    wire.same(found["supportTier"], TIERS[found["architecture"]], "supportTier")
    wire.matching(found["protocolVersion"], "protocolVersion", _VERSION)
    made = {**found, "executors": _names(found["executors"], "executors", 16)}
    if EXECUTOR not in made["executors"]:
        wire.refuse("executors")
    if "operatingSystem" in found:
        wire.printable(found["operatingSystem"], "operatingSystem", 32)
    if "runtimes" in found:
        made["runtimes"] = _runtimes(found["runtimes"])
    if "labels" in found:
        made["labels"] = _labels(found["labels"])
    if "capacity" in found:
        made["capacity"] = _capacity(found["capacity"])
    if "features" in found:
        made["features"] = _names(found["features"], "features", 32)
    data = canonical.encode({key: made[key] for key in _ORDER if key in made})
    if len(data) > CAPABILITIES_BYTES_MAX:
        wire.refuse("capabilities")
    return data.decode("utf-8")


def register(text: str, *, runs_max: int, slots: int, lease_ms: int) -> dict[str, Any]:
    """The body of a registration; its content identifies the session when it is sent again."""
    return {
        "schema": _REGISTER,
        "capabilitiesJson": text,
        "capabilitiesHash": canonical.sha256_hex(text.encode("utf-8")),
        "maxConcurrentRuns": wire.whole(runs_max, "maxConcurrentRuns", 1, 1024),
        "availableSlots": wire.whole(slots, "availableSlots", 0, runs_max),
        "leaseDurationMs": wire.whole(lease_ms, "leaseDurationMs", 5_000, 600_000),
    }


def heartbeat(generation: int, version: int, *, slots: int, lease_ms: int) -> dict[str, Any]:
    """The body of a heartbeat."""
    return {
        "schema": _HEARTBEAT,
        "generation": generation,
        "expectedVersion": version,
        "availableSlots": slots,
        "leaseDurationMs": lease_ms,
    }


def transition(generation: int, version: int, status: str) -> dict[str, Any]:
    """The body of a transition to `draining` or `offline`."""
    return {
        "schema": _TRANSITION,
        "generation": generation,
        "expectedVersion": version,
        "status": status,
    }


def registered(value: object, worker_id: str, session_id: str) -> Accepted:
    """The reply to a registration; of a session that is sent again, `draining` is told too."""
    found = _reply(value, _REGISTER, worker_id, session_id, "replacedSession")
    wire.flag(found["replacedSession"], "replacedSession")
    return _accepted(found, (ONLINE, DRAINING))


def beaten(value: object, worker_id: str, session_id: str) -> Accepted:
    """The reply to a heartbeat."""
    return _accepted(_reply(value, _HEARTBEAT, worker_id, session_id), (ONLINE, DRAINING))


def moved(value: object, worker_id: str, session_id: str, status: str) -> Accepted:
    """The reply to a transition."""
    return _accepted(_reply(value, _TRANSITION, worker_id, session_id), (status,))


def _reply(
    value: object, schema: str, worker_id: str, session_id: str, *more: str
) -> dict[str, Any]:
    keys = (
        "schema",
        "workerId",
        "sessionId",
        "generation",
        "version",
        "status",
        "leaseExpiresAtMs",
    )
    found = wire.members(value, "session", (*keys, *more))
    wire.same(found["schema"], schema, "schema")
    wire.same(found["workerId"], worker_id, "workerId")
    wire.same(found["sessionId"], session_id, "sessionId")
    return found


def _accepted(found: dict[str, Any], statuses: tuple[str, ...]) -> Accepted:
    return Accepted(
        generation=wire.whole(found["generation"], "generation", 1),
        version=wire.whole(found["version"], "version"),
        status=wire.one_of(found["status"], "status", statuses),
        lease_expires_at_ms=wire.whole(found["leaseExpiresAtMs"], "leaseExpiresAtMs"),
    )


def _names(value: object, field: str, most: int) -> list[str]:
    if not isinstance(value, list) or len(value) > most:
        wire.refuse(field)
    names = [wire.matching(each, field, _NAME) for each in value]
    if len(set(names)) != len(names):
        wire.refuse(field)
    return sorted(names)


def _runtimes(value: object) -> list[dict[str, str]]:
    if not isinstance(value, list) or len(value) > 32:
        wire.refuse("runtimes")
    made = []
    for each in value:
        found = wire.members(each, "runtimes", ("name", "version"))
        wire.matching(found["name"], "runtimes", _NAME)
        wire.matching(found["version"], "runtimes", _VERSION)
        made.append({"name": found["name"], "version": found["version"]})
    if len({each["name"] for each in made}) != len(made):
        wire.refuse("runtimes")
    return sorted(made, key=lambda each: each["name"])


def _labels(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > 32:
        wire.refuse("labels")
    for key, label in value.items():
        wire.matching(key, "labels", _LABEL)
        wire.printable(label, "labels", 256)
    return dict(sorted(value.items()))


def _capacity(value: object) -> dict[str, Any]:
    found = wire.members(value, "capacity", (), _CAPACITY)
    if "cpuCores" in found:
        wire.whole(found["cpuCores"], "capacity", 1, 4096)
    for key in ("memoryBytes", "diskBytes"):
        if key in found:
            wire.whole(found[key], "capacity")
    gpu = found.get("gpu", [])
    if not isinstance(gpu, list) or len(gpu) > 8:
        wire.refuse("capacity")
    return {key: found[key] for key in _CAPACITY if key in found}
