"""The plane's half of the worker contract, written from its text and sharing nothing with ours.

`StrictError` carries the status that a plane answers with.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

PREFIX = "qinglong/"
REGISTER = PREFIX + "worker-session-register@v1"
HEARTBEAT = PREFIX + "worker-session-heartbeat@v1"
TRANSITION = PREFIX + "worker-session-transition@v1"
OFFER = PREFIX + "remote-execution-offer@v1"
ACTIVATION = PREFIX + "remote-run-activation@v1"
SECRETS = PREFIX + "remote-secret-delivery@v2"
UPLOAD = PREFIX + "remote-worker-artifact-upload@v1"
COMPLETION = PREFIX + "remote-worker-completion@v1"
CONTROL = PREFIX + "remote-worker-lease-control@v1"

FENCE = (
    "runId",
    "attemptId",
    "workerGeneration",
    "offerId",
    "leaseGeneration",
    "leaseToken",
    "expectedLeaseVersion",
)
CAPS = {
    "register": 20_480,
    "secrets": 65_536,
    "completion": 16_384,
    "lease-control": 8_192,
}
OPERATIONS = frozenset(
    {
        *("register", "heartbeat", "transition", "offers", "starting", "running", "start-failure"),
        *("secrets", "artifacts", "completion", "lease-control"),
    }
)
_PATH = re.compile(
    r"/api/v3/worker-ingress/workers/([A-Za-z0-9][A-Za-z0-9._:-]{0,127})"
    r"/sessions/([0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})/([a-z-]+)"
)
_TOKEN = re.compile(r"[A-Za-z0-9_-]{32,128}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class StrictError(Exception):
    """A request that the contract does not allow."""

    def __init__(self, status: int, code: str, why: str = "") -> None:
        super().__init__(f"{status} {code} {why}")
        self.status = status
        self.code = code
        self.why = why


def bad(why: str) -> StrictError:
    """A request that is malformed."""
    return StrictError(400, "invalid_worker_request", why)


def route(path: str) -> tuple[str, str, str]:
    """Worker, session and operation of a path."""
    matched = _PATH.fullmatch(path)
    if matched is None or matched[3] not in OPERATIONS:
        raise StrictError(404, "worker_route_not_found", path)
    return matched[1], matched[2], matched[3]


def document(data: bytes) -> dict[str, Any]:
    """One JSON object, its keys each once."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise bad("a key twice")
        return made

    try:
        found = json.loads(data.decode("utf-8"), object_pairs_hook=once)
    except ValueError as error:
        raise StrictError(400, "invalid_json") from error
    if not isinstance(found, dict):
        raise bad("no object")
    return found


def keys(found: dict[str, Any], *wanted: str) -> None:
    """Exactly these keys."""
    if set(found) != set(wanted):
        raise bad(f"keys {sorted(set(found) ^ set(wanted))}")


def whole(value: object, low: int, high: int, name: str) -> int:
    """A whole number that is no boolean."""
    if type(value) is not int or not low <= value <= high:
        raise bad(name)
    return value


def words(value: object, name: str, most: int = 128) -> str:
    """A bounded text without control characters."""
    if not isinstance(value, str) or not 1 <= len(value) <= most:
        raise bad(name)
    if any(ord(each) < 32 or ord(each) == 127 for each in value):
        raise bad(name)
    return value


def matches(value: object, pattern: re.Pattern[str], name: str) -> str:
    """A text of one form."""
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise bad(name)
    return value


def check_fence(found: dict[str, Any]) -> None:
    """The seven members that every request about an attempt has."""
    words(found["runId"], "runId", 36)
    words(found["attemptId"], "attemptId", 36)
    words(found["offerId"], "offerId")
    matches(found["leaseToken"], _TOKEN, "leaseToken")
    for name in ("workerGeneration", "leaseGeneration"):
        whole(found[name], 1, 2**31 - 1, name)
    whole(found["expectedLeaseVersion"], 0, 2**31 - 1, "expectedLeaseVersion")


def check_register(found: dict[str, Any]) -> None:
    """A registration, its capabilities canonical and their digest right."""
    keys(
        found,
        *("schema", "capabilitiesJson", "capabilitiesHash", "maxConcurrentRuns"),
        *("availableSlots", "leaseDurationMs"),
    )
    if found["schema"] != REGISTER:
        raise bad("schema")
    text = found["capabilitiesJson"]
    if not isinstance(text, str) or not 2 <= len(text.encode()) <= 16_384:
        raise bad("capabilitiesJson")
    made = document(text.encode())
    if json.dumps(made, ensure_ascii=False, separators=(",", ":")) != text:
        raise bad("capabilities are not compact")
    if list(made)[:4] != ["architecture", "executors", "protocolVersion", "supportTier"]:
        raise bad("capabilities are not in order")
    if "remote-worker" not in made["executors"] or made["executors"] != sorted(made["executors"]):
        raise bad("executors")
    if hashlib.sha256(text.encode()).hexdigest() != found["capabilitiesHash"]:
        raise bad("capabilitiesHash")
    most = whole(found["maxConcurrentRuns"], 1, 1024, "maxConcurrentRuns")
    whole(found["availableSlots"], 0, most, "availableSlots")
    whole(found["leaseDurationMs"], 5_000, 600_000, "leaseDurationMs")


def check_offers(found: dict[str, Any]) -> None:
    """A request for work."""
    keys(found, "workerGeneration", "offerId", "leaseToken")
    whole(found["workerGeneration"], 1, 2**53 - 1, "workerGeneration")
    words(found["offerId"], "offerId")
    matches(found["leaseToken"], _TOKEN, "leaseToken")


def check_running(found: dict[str, Any]) -> None:
    """A running acknowledgement."""
    keys(
        found,
        *(*FENCE, "executorHandle", "logArtifactId", "callbackSequence", "callbackTokenDigest"),
    )
    check_fence(found)
    words(found["executorHandle"], "executorHandle", 512)
    if found["logArtifactId"] is not None:
        words(found["logArtifactId"], "logArtifactId", 36)
    whole(found["callbackSequence"], 1, 2**31 - 1, "callbackSequence")
    matches(found["callbackTokenDigest"], _DIGEST, "callbackTokenDigest")


def check_completion(found: dict[str, Any]) -> None:
    """A completion."""
    more = ("schema", "projectId", "callbackSequence", "callbackTokenDigest", "result", "artifact")
    keys(found, *FENCE, *more)
    check_fence(found)
    if found["schema"] != COMPLETION:
        raise bad("schema")
    whole(found["callbackSequence"], 1, 2**31 - 1, "callbackSequence")
    matches(found["callbackTokenDigest"], _DIGEST, "callbackTokenDigest")
    result, artifact = found["result"], found["artifact"]
    keys(result, "outcome", "startedAtMs", "finishedAtMs", "exitCode")
    started = whole(result["startedAtMs"], 0, 2**53 - 1, "startedAtMs")
    whole(result["finishedAtMs"], started, 2**53 - 1, "finishedAtMs")
    code = whole(result["exitCode"], 0, 255, "exitCode")
    if result["outcome"] != ("failed" if code else "succeeded"):
        raise bad("outcome")
    keys(artifact, "logArtifactId", "byteLength", "sha256", "truncated")
    check_artifact(artifact)
    matches(artifact["sha256"], _DIGEST, "sha256")


def check_artifact(found: dict[str, Any]) -> None:
    """What a log is said to be."""
    words(found["logArtifactId"], "logArtifactId", 36)
    whole(found["byteLength"], 0, 64 << 20, "byteLength")
    if found["truncated"] not in (True, False, None):
        raise bad("truncated")


def upload(body: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and content of an uploaded log."""
    length = int.from_bytes(body[:4], "big")
    if not 2 <= length <= 4_096 or len(body) < 4 + length:
        raise bad("header length")
    header = document(body[4 : 4 + length])
    order = [
        *("schema", "workerGeneration", "projectId", "runId", "attemptId", "offerId"),
        *("leaseGeneration", "leaseToken", "expectedLeaseVersion", "logArtifactId"),
        *("byteLength", "truncated"),
    ]
    if list(header) != order or header["schema"] != UPLOAD:
        raise bad("header")
    check_fence(header)
    check_artifact(header)
    content = body[4 + length :]
    if len(content) != header["byteLength"]:
        raise bad("byteLength")
    return header, content


def check_secrets(found: dict[str, Any]) -> None:
    """A request for secrets."""
    more = ("schema", "projectId", "taskId", "taskRevision", "executionDigest")
    keys(found, *FENCE, *more, "secretRefs", "environmentBundleRefs")
    check_fence(found)
    refs, bundles = found["secretRefs"], found["environmentBundleRefs"]
    if found["schema"] != SECRETS or not (refs or bundles) or len(bundles) > 1:
        raise bad("refs")
    if len(refs) > 64 or len(set(refs)) != len(refs) or set(refs) & set(bundles):
        raise bad("refs")
