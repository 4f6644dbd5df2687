"""What worker and plane say about one offer: activation, lease control, artifact, completion.

Owns these documents, both ways. A reply that is about anything else than what was asked is not a
reply: Invalid `wire_invalid`.
"""

from __future__ import annotations

import struct

from qinglong_edge.core import canonical, wire
from qinglong_edge.core.inbox import Ended, Entry
from qinglong_edge.core.offer import Lease
from qinglong_edge.core.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

APPLIED, ALREADY_STARTING = "applied", "already_starting"
ALREADY_RUNNING, ALREADY_TERMINAL = "already_running", "already_terminal"
ALREADY_COMPLETED = "already_completed"
RENEWED, STOP_REQUESTED, TERMINAL = "renewed", "stop_requested", "terminal"
_ACTIVATION = "qinglong/remote-run-activation@v1"
_CONTROL = "qinglong/remote-worker-lease-control@v1"
_UPLOAD = "qinglong/remote-worker-artifact-upload@v1"
_COMPLETION = "qinglong/remote-worker-completion@v1"
_ANSWERS = (APPLIED, ALREADY_STARTING, ALREADY_RUNNING, ALREADY_TERMINAL)
_ENDS = ("failed", "cancelled", "timed_out")
ARTIFACT_BYTES_MAX = 67_108_864
HEADER_BYTES_MAX = 4_096


class Activation(Record):
    """A plane's answer to starting, running or start-failure."""

    status: str
    callback_sequence: int
    deadline_at_ms: int | None


class Control(Record):
    """A plane's answer to a renewal: the next lease, and whether to stop."""

    status: str
    lease: Lease | None
    reason: str | None  # of a stop, or the end that the plane knows


class Stored(Record):
    """What a plane has of an uploaded log."""

    byte_length: int
    sha256: str
    truncated: bool | None


def fence(entry: Entry) -> dict[str, Any]:
    """What every request about an attempt carries, so that a stale one is refused."""
    offer = entry.offer
    return {
        "runId": offer.run_id,
        "attemptId": offer.attempt_id,
        "workerGeneration": offer.worker.generation,
        "offerId": offer.offer_id,
        "leaseGeneration": offer.lease.generation,
        "leaseToken": offer.lease_token,
        "expectedLeaseVersion": offer.lease.version,
    }


def running(entry: Entry) -> dict[str, Any]:
    """The body of a running acknowledgement."""
    return {
        **fence(entry),
        "executorHandle": entry.handle,
        "logArtifactId": entry.log_id,
        "callbackSequence": entry.callback_sequence,
        "callbackTokenDigest": entry.token_digest,
    }


def activated(value: object, entry: Entry, asked: str) -> Activation:
    """The reply to an acknowledgement that the attempt is `asked`: starting, running, terminal."""
    found = wire.members(value, "activation", ("schema", "status", "snapshot"))
    wire.same(found["schema"], _ACTIVATION, "schema")
    status = wire.one_of(found["status"], "status", _ANSWERS)
    snapshot = wire.members(
        found["snapshot"],
        "snapshot",
        (
            "runId",
            "attemptId",
            "runStatus",
            "attemptStatus",
            "leaseVersion",
            "leaseGeneration",
            "callbackSequence",
        ),
        (
            "deadlineAtMs",
            "startedAtMs",
            "finishedAtMs",
            "executorHandle",
            "logArtifactId",
            "errorCode",
        ),
    )
    offer = entry.offer
    wire.same(snapshot["runId"], offer.run_id, "runId")
    wire.same(snapshot["attemptId"], offer.attempt_id, "attemptId")
    wire.same(snapshot["leaseGeneration"], offer.lease.generation, "leaseGeneration")
    shape = _shape(snapshot)
    wire.same(
        status, APPLIED if status == APPLIED and shape == asked else f"already_{shape}", "status"
    )
    version = wire.whole(snapshot["leaseVersion"], "leaseVersion")
    newest = offer.lease.version + (1 if shape == "terminal" else 0)
    if not offer.lease.version <= version <= newest:
        wire.refuse("leaseVersion")
    deadline = snapshot.get("deadlineAtMs")
    if (deadline is None) != (offer.revision.timeout_ms is None):
        wire.refuse("deadlineAtMs")
    return Activation(
        status=status,
        callback_sequence=wire.whole(
            snapshot["callbackSequence"], "callbackSequence", 0, wire.INT31_MAX
        ),
        deadline_at_ms=wire.maybe_whole(deadline, "deadlineAtMs"),
    )


def _shape(snapshot: dict[str, Any]) -> str:
    """`starting`, `running` or `terminal`: the only three forms that a snapshot has."""
    pair = (snapshot["runStatus"], snapshot["attemptStatus"])
    there = {
        key
        for key in ("executorHandle", "startedAtMs", "finishedAtMs", "errorCode")
        if snapshot.get(key) is not None
    }
    if pair == ("dispatching", "starting") and not there:
        return "starting"
    if pair == ("running", "running") and there == {"executorHandle", "startedAtMs"}:
        return "running"
    if pair[0] != pair[1] or pair[0] not in _ENDS or there != {"finishedAtMs", "errorCode"}:
        wire.refuse("snapshot")
    return "terminal"


def control(entry: Entry) -> dict[str, Any]:
    """The body of a renewal."""
    return _scoped(entry, _CONTROL)


def _scoped(entry: Entry, schema: str) -> dict[str, Any]:
    """Schema, generation, then project and fence in the order of the contract."""
    given = fence(entry)
    head = {"schema": schema, "workerGeneration": given.pop("workerGeneration")}
    return {**head, "projectId": entry.offer.project_id, **given}


def controlled(value: object, entry: Entry) -> Control:
    """The reply to a renewal."""
    keys = ("projectId", "runId", "attemptId", "offerId", "leaseGeneration")
    more = ("leaseVersion", "renewedAtMs", "expiresAtMs", "stop", "terminalStatus")
    found = wire.members(value, "control", ("schema", "status", *keys, *more))
    wire.same(found["schema"], _CONTROL, "schema")
    sent = control(entry)
    for key in keys:
        wire.same(found[key], sent[key], key)
    status = wire.one_of(found["status"], "status", (RENEWED, STOP_REQUESTED, TERMINAL))
    if status == TERMINAL:
        if any(found[key] is not None for key in more[:-1]):
            wire.refuse("control")
        ends = ("succeeded", *_ENDS, "lost")
        end = wire.one_of(found["terminalStatus"], "terminalStatus", ends)
        return Control(status=status, lease=None, reason=end)
    wire.same(found["terminalStatus"], None, "terminalStatus")
    old = entry.offer.lease
    wire.same(found["leaseVersion"], old.version + 1, "leaseVersion")
    renewed_ms = wire.whole(found["renewedAtMs"], "renewedAtMs", old.renewed_at_ms)
    lease = old.replace(
        version=old.version + 1,
        renewed_at_ms=renewed_ms,
        expires_at_ms=wire.whole(found["expiresAtMs"], "expiresAtMs", renewed_ms + 1),
        updated_at_ms=renewed_ms,
    )
    reason: str | None = None
    if status == STOP_REQUESTED:
        stop = wire.members(found["stop"], "stop", ("reason", "requestedAtMs"))
        wire.whole(stop["requestedAtMs"], "stop")
        reasons = ("user", "policy", "shutdown", "reconcile", "timeout")
        reason = wire.one_of(stop["reason"], "stop", reasons)
    else:
        wire.same(found["stop"], None, "stop")
    return Control(status=status, lease=lease, reason=reason)


def upload_header(entry: Entry, *, byte_length: int, truncated: bool | None) -> bytes:
    """What precedes a log's bytes: the header's length, big-endian, and the header."""
    header = {
        **_scoped(entry, _UPLOAD),
        "logArtifactId": entry.log_id,
        "byteLength": wire.whole(byte_length, "byteLength", 0, ARTIFACT_BYTES_MAX),
        "truncated": truncated,
    }
    data = canonical.encode(header)
    if len(data) > HEADER_BYTES_MAX:
        wire.refuse("header")
    return struct.pack(">I", len(data)) + data


def uploaded(value: object, entry: Entry, sent: Stored) -> None:
    """The reply to an upload, which must be about exactly the bytes that were sent."""
    keys = ("projectId", "runId", "attemptId", "logArtifactId")
    more = ("schema", "status", "byteLength", "sha256", "truncated")
    found = wire.members(value, "artifact", (*keys, *more))
    wire.same(found["schema"], _UPLOAD, "schema")
    wire.one_of(found["status"], "status", ("stored", "already_stored"))
    wire.same(found["projectId"], entry.offer.project_id, "projectId")
    wire.same(found["runId"], entry.offer.run_id, "runId")
    wire.same(found["attemptId"], entry.offer.attempt_id, "attemptId")
    wire.same(found["logArtifactId"], entry.log_id, "logArtifactId")
    wire.same(found["byteLength"], sent.byte_length, "byteLength")
    wire.same(found["sha256"], sent.sha256, "sha256")
    wire.same(found["truncated"], sent.truncated, "truncated")


def completion(entry: Entry, ended: Ended, stored: Stored) -> dict[str, Any]:
    """The body of a completion; only for a log that the plane has acknowledged."""
    started_ms = entry.started_at_ms or 0
    return {
        **_scoped(entry, _COMPLETION),
        "callbackSequence": entry.callback_sequence,
        "callbackTokenDigest": entry.token_digest,
        "result": {
            "outcome": "failed" if ended.exit_code else "succeeded",
            "startedAtMs": started_ms,
            "finishedAtMs": max(started_ms, ended.finished_at_ms),
            "exitCode": ended.exit_code,
        },
        "artifact": {
            "logArtifactId": entry.log_id,
            "byteLength": stored.byte_length,
            "sha256": stored.sha256,
            "truncated": stored.truncated,
        },
    }


def completed(value: object, entry: Entry) -> str:
    """The status in the reply to a completion."""
    keys = ("schema", "status", "runId", "attemptId", "callbackSequence")
    found = wire.members(value, "completion", keys)
    wire.same(found["schema"], _COMPLETION, "schema")
    wire.same(found["runId"], entry.offer.run_id, "runId")
    wire.same(found["attemptId"], entry.offer.attempt_id, "attemptId")
    wire.same(found["callbackSequence"], entry.callback_sequence, "callbackSequence")
    return wire.one_of(found["status"], "status", (APPLIED, ALREADY_COMPLETED, ALREADY_TERMINAL))
