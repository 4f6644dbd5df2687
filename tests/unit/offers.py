"""An offer as a plane delivers it, and the record that it becomes."""

from __future__ import annotations

from typing import Any

from qinglong_edge.core import inbox, offer, revision
from qinglong_edge.core.inbox import Entry
from qinglong_edge.core.offer import Claim, Offer, Worker

TOKEN = "worker_generated_lease_capability_0000000000000001"
RUN, ATTEMPT = "019f70e0-0000-7000-8000-000000000101", "019f70e0-0000-7000-8000-000000000102"
WORKER = Worker(worker_id="router-1", session_id="session-1", generation=2)
CLAIM = Claim(offer_id="offer-1", lease_token=TOKEN, worker=WORKER, created_at_ms=1)
STATS = {
    "pages": 1,
    "candidates": 1,
    "plansUnavailable": 0,
    "placementMismatches": 0,
    "claimAttempts": 1,
    "claimRaces": 0,
}


def plan(**changes: Any) -> dict[str, Any]:
    made = {
        "projectId": "project-1",
        "taskId": "task-1",
        "taskRevision": "qltd:v1:1:" + "a" * 64,
        "sourceRevision": 1,
        "sourceContentDigest": "a" * 64,
        "executorType": "remote_worker",
        "planSchema": "qinglong/command-execution@v1",
        "command": {"kind": "argv", "file": "/bin/true", "args": []},
        "environment": [],
        "createdAtMs": 1,
        **changes,
    }
    return {**made, "contentDigest": revision.content_digest(made)}


def delivered(offer_id: str = "offer-1", **changes: Any) -> dict[str, Any]:
    found = changes.pop("executionRevision", plan())
    lease = {
        "version": 0,
        "leaseGeneration": 1,
        "acquiredAtMs": 1_000,
        "renewedAtMs": 1_000,
        "expiresAtMs": 31_000,
        "updatedAtMs": 1_000,
        **changes.pop("lease", {}),
    }
    return {
        "offerId": offer_id,
        "deliveryKind": "new_claim",
        "executionDigest": found["contentDigest"],
        "candidate": {
            "runId": RUN,
            "attemptId": ATTEMPT,
            "projectId": "project-1",
            "taskId": "task-1",
            "taskRevision": found["taskRevision"],
            "priority": -1,
            "queuedAtMs": 5,
            "attemptCreatedAtMs": 5,
            "attemptNumber": 1,
            "executorType": "remote_worker",
        },
        "worker": {"workerId": "router-1", "sessionId": "session-1", "generation": 2},
        "lease": lease,
        "executionRevision": found,
        "placementScore": 0,
        **changes,
    }


def made(offer_id: str = "offer-1", **changes: Any) -> Offer:
    claim = CLAIM.replace(offer_id=offer_id)
    return offer.decode(delivered(offer_id, **changes), claim)


def entry(state: str = inbox.ACCEPTED, **changes: Any) -> Entry:
    """A record of `offer-1` with the fields that its state needs."""
    given: dict[str, Any] = {}
    if state not in (inbox.ACCEPTED, inbox.STARTING_ACKNOWLEDGED):
        given = {
            "started_at_ms": 100,
            "log_id": "wlog-" + "1" * 30,
            "callback_sequence": 1,
            "token_digest": "b" * 64,
        }
    if state in inbox.LAUNCHED:
        given |= {"handle": "ql3lp1.x", "pid": 9}
    if state == inbox.COMPLETION_ACKNOWLEDGED:
        given |= {"completed_at_ms": 100}
    if state == inbox.RECOVERY_REQUIRED:
        given |= {"recovery_reason": inbox.LAUNCH_OUTCOME_UNKNOWN}
    return Entry(
        **{
            "offer": made(),
            "revision": 0,
            "state": state,
            "accepted_at_ms": 10,
            "updated_at_ms": 10,
            **given,
            **changes,
        }
    )
