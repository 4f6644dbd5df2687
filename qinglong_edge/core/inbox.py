"""The inbox: what became of each offer, as states and the only ways between them (ADR-0115).

Owns the record of one offer, the fields that each state needs or forbids, and the rules of a
compare-and-set. `launching` is the durable barrier before the output is handed over, `started` the
one before the gate of the process opens: a record that a crash left in `launching` never ran.

    accepted -> starting_acknowledged -> launching -> started -> running_acknowledged
                       |                    |  |         |                |
                       +-> start_failed <---+  +---------+----------------+
                                |                        v
                 start_failure_acknowledged   completion_acknowledged

Whatever cannot go on by evidence is `recovery_required` with its reason; a receipt may still
complete it. `settled` stands beside the state: a record that holds its place no longer, because its
process is proven gone and its lease is over, or on an operator's word. `ended` is what was proven
of the process's end, durable before anything of it is uploaded.
"""

from __future__ import annotations

from _operator import _compare_digest  # hmac's own, without loading libcrypto

from qinglong_edge.core import canonical, wire
from qinglong_edge.core.errors import Corrupt, Invalid, Refused
from qinglong_edge.core.evidence import Target
from qinglong_edge.core.limits import HANDLE_BYTES_MAX
from qinglong_edge.core.offer import Lease, Offer
from qinglong_edge.core.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from qinglong_edge.core.receipt import Receipt

ACCEPTED = "accepted"
STARTING_ACKNOWLEDGED = "starting_acknowledged"
LAUNCHING = "launching"
STARTED = "started"
RUNNING_ACKNOWLEDGED = "running_acknowledged"
START_FAILED = "start_failed"
START_FAILURE_ACKNOWLEDGED = "start_failure_acknowledged"
COMPLETION_ACKNOWLEDGED = "completion_acknowledged"
RECOVERY_REQUIRED = "recovery_required"

TRANSITIONS: dict[str, frozenset[str]] = {
    ACCEPTED: frozenset({STARTING_ACKNOWLEDGED, RECOVERY_REQUIRED}),
    STARTING_ACKNOWLEDGED: frozenset({LAUNCHING, START_FAILED, RECOVERY_REQUIRED}),
    LAUNCHING: frozenset({STARTED, START_FAILED, COMPLETION_ACKNOWLEDGED, RECOVERY_REQUIRED}),
    STARTED: frozenset({RUNNING_ACKNOWLEDGED, COMPLETION_ACKNOWLEDGED, RECOVERY_REQUIRED}),
    RUNNING_ACKNOWLEDGED: frozenset({COMPLETION_ACKNOWLEDGED, RECOVERY_REQUIRED}),
    START_FAILED: frozenset({START_FAILURE_ACKNOWLEDGED, RECOVERY_REQUIRED}),
    START_FAILURE_ACKNOWLEDGED: frozenset(),
    COMPLETION_ACKNOWLEDGED: frozenset(),
    RECOVERY_REQUIRED: frozenset({COMPLETION_ACKNOWLEDGED}),
}
FINAL = frozenset({START_FAILURE_ACKNOWLEDGED, COMPLETION_ACKNOWLEDGED})
LAUNCHED = frozenset({STARTED, RUNNING_ACKNOWLEDGED})

LAUNCH_OUTCOME_UNKNOWN = "launch_outcome_unknown"
PLANE_ALREADY_RUNNING = "control_plane_already_running"
PLANE_TERMINAL = "control_plane_terminal"
LEASE_LOST_STOPPED = "lease_lost_local_execution_stopped"
LEASE_LOST_UNVERIFIED = "lease_lost_local_execution_unverified"
REASONS = frozenset(
    {
        LAUNCH_OUTCOME_UNKNOWN,
        PLANE_ALREADY_RUNNING,
        PLANE_TERMINAL,
        LEASE_LOST_STOPPED,
        LEASE_LOST_UNVERIFIED,
    }
)

BY_EVIDENCE, BY_OPERATOR = "evidence", "operator"
RECEIPT, WAIT_STATUS, STOPPED = "receipt", "wait_status", "stopped"

# field -> (states that need it, further states that allow it)
_BARRIER = frozenset({LAUNCHING, STARTED, RUNNING_ACKNOWLEDGED, COMPLETION_ACKNOWLEDGED})
_AFTER_FAILURE = frozenset({START_FAILED, START_FAILURE_ACKNOWLEDGED, RECOVERY_REQUIRED})
_FIELDS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "handle": (LAUNCHED, frozenset({COMPLETION_ACKNOWLEDGED, RECOVERY_REQUIRED})),
    "started_at_ms": (_BARRIER, _AFTER_FAILURE),
    "log_id": (_BARRIER, _AFTER_FAILURE),
    "callback_sequence": (_BARRIER, _AFTER_FAILURE),
    "token_digest": (_BARRIER, _AFTER_FAILURE),
    "completed_at_ms": (frozenset({COMPLETION_ACKNOWLEDGED}), frozenset()),
    "recovery_reason": (frozenset({RECOVERY_REQUIRED}), frozenset()),
}


class Ended(Record):
    """What was proven of a process's end, and how much of its log that covers."""

    exit_code: int
    finished_at_ms: int
    evidence: str
    truncated: bool | None
    log_bytes: int

    def _check(self) -> None:
        wire.whole(self.exit_code, "ended", 0, 255)
        wire.whole(self.finished_at_ms, "ended")
        wire.whole(self.log_bytes, "ended")
        wire.one_of(self.evidence, "ended", (RECEIPT, WAIT_STATUS, STOPPED))


class Settled(Record):
    """Why a record that no plane can hear of any more holds its place no longer."""

    at_ms: int
    by: str
    reason: str

    def _check(self) -> None:
        wire.whole(self.at_ms, "settled")
        wire.one_of(self.by, "settled", (BY_EVIDENCE, BY_OPERATOR))
        wire.text(self.reason, "settled", 1, 1_024)


class Entry(Record):
    """One offer and what became of it."""

    offer: Offer
    revision: int
    state: str
    accepted_at_ms: int
    updated_at_ms: int
    handle: str | None = None
    pid: int | None = None  # stands beside the handle, as its pid namespace does
    pid_namespace: int | None = None
    started_at_ms: int | None = None
    log_id: str | None = None
    callback_sequence: int | None = None
    token_digest: str | None = None
    completed_at_ms: int | None = None
    recovery_reason: str | None = None
    ended: Ended | None = None
    settled: Settled | None = None

    def _check(self) -> None:
        if self.state not in TRANSITIONS or self.updated_at_ms < self.accepted_at_ms:
            _invalid("state")
        for field, (needed, allowed) in _FIELDS.items():
            there = getattr(self, field) is not None
            if (self.state in needed and not there) or (
                there and self.state not in needed and self.state not in allowed
            ):
                _invalid(field)
        if self.handle is not None:
            wire.printable(self.handle, "handle", HANDLE_BYTES_MAX)
            wire.whole(self.started_at_ms, "started_at_ms")
            wire.whole(self.pid, "pid", 1)
        if self.log_id is not None:
            wire.printable(self.log_id, "log_id", 36)
        if (self.callback_sequence is None) != (self.token_digest is None):
            _invalid("callback_sequence")
        if self.callback_sequence is not None:
            wire.whole(self.callback_sequence, "callback_sequence", 1, wire.INT31_MAX)
            wire.matching(self.token_digest, "token_digest", wire.DIGEST)
        if self.recovery_reason is not None:
            wire.one_of(self.recovery_reason, "recovery_reason", REASONS)
        if self.settled is not None and self.state != RECOVERY_REQUIRED:
            _invalid("settled")

    @property
    def offer_id(self) -> str:
        """The name of the offer."""
        return self.offer.offer_id

    @property
    def holds_place(self) -> bool:
        """True while this record may still stand for a process or an answer that is owed."""
        return self.state not in FINAL and self.settled is None

    @property
    def target(self) -> Target | None:
        """The process behind the handle."""
        if self.handle is None or self.pid is None:
            return None
        return Target(handle=self.handle, pid=self.pid, pid_namespace=self.pid_namespace)

    def moved(self, state: str, now_ms: int, **changes: Any) -> Entry:
        """The next record, one revision on; times never step back."""
        if state != RECOVERY_REQUIRED and self.recovery_reason is not None:
            changes["recovery_reason"] = None
        return self.replace(
            state=state,
            revision=self.revision + 1,
            updated_at_ms=max(now_ms, self.updated_at_ms),
            **changes,
        )

    def renewed(self, lease: Lease, now_ms: int) -> Entry:
        """The same record under a newer lease."""
        return self.moved(self.state, now_ms, offer=self.offer.replace(lease=lease))

    def __repr__(self) -> str:
        return f"Entry(offer_id={self.offer_id!r}, state={self.state!r})"


def check_step(before: Entry, after: Entry) -> None:
    """Refuse a step that the journal does not have.

    Refused: `offer_revision_conflict` (not the very next revision, a lease that goes back or
    changes without a new version), `authority_conflict` (another offer, or a field that was set
    once and differs), `invalid_transition`.
    """
    if after.revision != before.revision + 1 or after.updated_at_ms < before.updated_at_ms:
        raise Refused("offer_revision_conflict", "A record has moved on meanwhile.")
    old, new = before.offer.lease, after.offer.lease
    if new.version < old.version or (new.version == old.version and new != old):
        raise Refused("offer_revision_conflict", "A lease is older than the one that is known.")
    if (
        before.offer.authority() != after.offer.authority()
        or before.offer.delivery_kind != after.offer.delivery_kind
        or before.accepted_at_ms != after.accepted_at_ms
    ):
        raise Refused("authority_conflict", "A record's offer may not change.")
    if after.state != before.state and after.state not in TRANSITIONS[before.state]:
        raise Refused("invalid_transition", "A record cannot go this way.", state=before.state)
    for field in (*_FIELDS, "pid", "pid_namespace", "ended", "settled"):
        was, now = getattr(before, field), getattr(after, field)
        dropped = field in ("recovery_reason", "settled") and now is None
        if was is not None and was != now and not (dropped and after.state in FINAL):
            raise Refused("authority_conflict", "What was recorded once may not change.")


def merged(entry: Entry, offer: Offer, now_ms: int) -> Entry | None:
    """What a replayed delivery changes: a newer lease, or nothing (None).

    The first delivery's kind is kept: a replay of an offer is a recovery, and no other offer.
    Refused `offer_conflict` if anything else differs.
    """
    if entry.offer.authority() != offer.authority():
        raise Refused("offer_conflict", "Another offer has the same name.")
    old, new = entry.offer.lease, offer.lease
    if new.version > old.version:
        return entry.renewed(new, now_ms)
    if new.version == old.version and new != old:
        raise Refused("offer_conflict", "A lease changed without a new version.")
    return None


def proves(receipt: Receipt, entry: Entry) -> bool:
    """Whether a receipt is this attempt's: ids, sequence, start, and the digest of its token.

    Not its end against the clock: that is the start and what has passed since on a clock that never
    steps, and may lie behind a wall clock that was set back.
    """
    if (
        receipt.run_id != entry.offer.run_id
        or receipt.attempt_id != entry.offer.attempt_id
        or receipt.callback_sequence != entry.callback_sequence
        or receipt.started_at_ms != entry.started_at_ms
    ):
        return False
    try:
        token = canonical.from_base64url(receipt.token)
    except Invalid:
        return False
    return _compare_digest(canonical.sha256_hex(token), entry.token_digest or "")


def _invalid(field: str) -> None:
    raise Corrupt("invalid_record", "A record lacks a field of its state.", field=field)
