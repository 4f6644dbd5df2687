"""An execution offer: who may run what, under which lease, proven by which token.

Owns the values and the way from the plane's reply. The token of a lease is made here and never
comes back over the wire; its digest is the SHA-256 of its text. `authority` is everything of an
offer that may never change; the lease's numbers may.
"""

from __future__ import annotations

from qinglong_edge.core import canonical, revision, wire
from qinglong_edge.core.record import Record
from qinglong_edge.core.revision import Revision

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCHEMA = "qinglong/remote-execution-offer@v1"
NEW_CLAIM, LEASE_RECOVERY = "new_claim", "lease_recovery"
IDLE_REASONS = frozenset(
    {
        "worker_unavailable",
        "no_candidates",
        "no_match",
        "plans_unavailable",
        "claim_raced",
        "claim_budget_exhausted",
        "scan_budget_exhausted",
    }
)
_STATS = (
    ("pages", 16),
    ("candidates", 1024),
    ("plansUnavailable", 1024),
    ("placementMismatches", 1024),
    ("claimAttempts", 64),
    ("claimRaces", 64),
)
_LEASE = {
    "version": "version",
    "leaseGeneration": "generation",
    "acquiredAtMs": "acquired_at_ms",
    "renewedAtMs": "renewed_at_ms",
    "expiresAtMs": "expires_at_ms",
    "updatedAtMs": "updated_at_ms",
}
_CANDIDATE = {
    "runId": "run_id",
    "attemptId": "attempt_id",
    "projectId": "project_id",
    "taskId": "task_id",
    "taskRevision": "task_revision",
    "priority": "priority",
    "queuedAtMs": "queued_at_ms",
    "attemptCreatedAtMs": "attempt_created_at_ms",
    "attemptNumber": "attempt_number",
}


class Worker(Record):
    """One session of one worker: the only one that may act on what it was offered."""

    worker_id: str
    session_id: str
    generation: int


class Lease(Record):
    """How long an offer's attempt belongs to its worker; `version` grows with each renewal."""

    version: int
    generation: int
    acquired_at_ms: int
    renewed_at_ms: int
    expires_at_ms: int
    updated_at_ms: int

    def _check(self) -> None:
        wire.whole(self.version, "lease", 0, wire.INT31_MAX)
        wire.whole(self.generation, "lease", 1, wire.INT31_MAX)
        for field in ("acquired_at_ms", "renewed_at_ms", "expires_at_ms", "updated_at_ms"):
            wire.whole(getattr(self, field), "lease")
        if self.renewed_at_ms < self.acquired_at_ms or self.updated_at_ms < self.acquired_at_ms:
            wire.refuse("lease")
        if self.expires_at_ms <= self.renewed_at_ms:
            wire.refuse("lease")

    @property
    def duration_ms(self) -> int:
        """How long a renewal holds."""
        return self.expires_at_ms - self.renewed_at_ms


class Claim(Record):
    """An id and a token that are durable before they are sent, so that a lost reply replays."""

    offer_id: str
    lease_token: str
    worker: Worker
    created_at_ms: int

    def __repr__(self) -> str:
        return f"Claim(offer_id={self.offer_id!r})"


class Offer(Record):
    """What a plane has given to this worker to run."""

    offer_id: str
    delivery_kind: str
    execution_digest: str
    run_id: str
    attempt_id: str
    project_id: str
    task_id: str
    task_revision: str
    priority: int
    queued_at_ms: int
    attempt_created_at_ms: int
    attempt_number: int
    worker: Worker
    lease: Lease
    lease_token: str
    revision: Revision
    placement_score: int

    @property
    def token_digest(self) -> str:
        """What a plane stores of the lease token."""
        return canonical.sha256_hex(self.lease_token.encode("utf-8"))

    def authority(self) -> dict[str, Any]:
        """Everything that stays the same for as long as the offer is known.

        How it was delivered is no authority: a replay of the same offer is a recovery.
        """
        return {
            "offerId": self.offer_id,
            "executionDigest": self.execution_digest,
            "candidate": {key: getattr(self, field) for key, field in _CANDIDATE.items()},
            "worker": {
                "workerId": self.worker.worker_id,
                "sessionId": self.worker.session_id,
                "generation": self.worker.generation,
            },
            "leaseGeneration": self.lease.generation,
            "leaseToken": self.lease_token,
            "executionRevision": self.revision.document,
        }

    def __repr__(self) -> str:
        return f"Offer(offer_id={self.offer_id!r})"


def stored(offer: Offer) -> dict[str, Any]:
    """The document that an inbox keeps of an offer: all but the lease's moving numbers."""
    document = offer.authority()
    document["deliveryKind"] = offer.delivery_kind
    document["placementScore"] = offer.placement_score
    return document


def from_stored(document: dict[str, Any], lease: Lease) -> Offer:
    """The offer of a stored document and its lease as it is now."""
    return _offer(document, document["worker"], lease, document["leaseToken"])


def decode_reply(value: object, claim: Claim) -> Offer | None:
    """What the plane answered to a claim; None = nothing to do. Invalid `wire_invalid`."""
    if isinstance(value, dict) and value.get("status") == "idle":
        found = wire.members(value, "reply", ("schema", "status", "reason", "stats", "truncated"))
        wire.one_of(found["reason"], "reason", IDLE_REASONS)
    else:
        found = wire.members(value, "reply", ("schema", "status", "offer", "stats", "truncated"))
        wire.same(found["status"], "offered", "status")
    wire.same(found["schema"], SCHEMA, "schema")
    wire.flag(found["truncated"], "truncated")
    _check_stats(found["stats"])
    return decode(found["offer"], claim) if "offer" in found else None


def decode(value: object, claim: Claim) -> Offer:
    """An offered offer; only one of this very claim."""
    found = wire.members(
        value,
        "offer",
        (
            "offerId",
            "deliveryKind",
            "executionDigest",
            "candidate",
            "worker",
            "lease",
            "executionRevision",
            "placementScore",
        ),
    )
    wire.same(found["offerId"], claim.offer_id, "offerId")
    lease = wire.members(found["lease"], "lease", _LEASE)
    made = Lease(**{field: lease[key] for key, field in _LEASE.items()})
    offer = _offer(found, found["worker"], made, claim.lease_token)
    if offer.worker != claim.worker:
        wire.refuse("worker")
    return offer


def _offer(found: dict[str, Any], worker: object, lease: Lease, token: str) -> Offer:
    candidate = _candidate(found["candidate"])
    plan = revision.decode(found["executionRevision"])
    for field in ("project_id", "task_id", "task_revision"):
        wire.same(getattr(plan, field), candidate[field], "executionRevision")
    wire.same(found["executionDigest"], plan.content_digest, "executionDigest")
    members = wire.members(worker, "worker", ("workerId", "sessionId", "generation"))
    return Offer(
        offer_id=wire.bounded_id(found["offerId"], "offerId"),
        delivery_kind=wire.one_of(
            found["deliveryKind"], "deliveryKind", (NEW_CLAIM, LEASE_RECOVERY)
        ),
        execution_digest=plan.content_digest,
        worker=Worker(
            worker_id=wire.matching(members["workerId"], "worker", wire.WORKER_ID),
            session_id=wire.bounded_id(members["sessionId"], "worker"),
            generation=wire.whole(members["generation"], "worker", 1),
        ),
        lease=lease,
        lease_token=wire.matching(token, "leaseToken", wire.LEASE_TOKEN),
        revision=plan,
        placement_score=wire.whole(found["placementScore"], "placementScore"),
        **candidate,
    )


def _candidate(value: object) -> dict[str, Any]:
    """The fields of a candidate that are used; a plane may tell more of it."""
    if not isinstance(value, dict) or not set(_CANDIDATE) <= set(value):
        wire.refuse("candidate")
    wire.same(value.get("executorType", revision.REMOTE_WORKER), revision.REMOTE_WORKER, "executor")
    for key in ("runId", "attemptId"):
        wire.bounded_id(value[key], key, wire.RUN_ID_UNITS_MAX)
    for key in ("projectId", "taskId"):
        wire.bounded_id(value[key], key)
    wire.whole(value["priority"], "priority", -wire.INT31_MAX - 1, wire.INT31_MAX)
    for key in ("queuedAtMs", "attemptCreatedAtMs"):
        wire.whole(value[key], key)
    wire.whole(value["attemptNumber"], "attemptNumber", 1)
    return {field: value[key] for key, field in _CANDIDATE.items()}


def _check_stats(value: object) -> None:
    found = wire.members(value, "stats", (name for name, _most in _STATS))
    for name, most in _STATS:
        wire.whole(found[name], "stats", 0, most)
    if max(found["plansUnavailable"], found["placementMismatches"]) > found["candidates"]:
        wire.refuse("stats")
    if found["claimRaces"] > found["claimAttempts"]:
        wire.refuse("stats")
