"""The inbox's states, fields and steps, as tables."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from qinglong_edge.core import inbox
from qinglong_edge.core.errors import Corrupt, Refused
from qinglong_edge.core.inbox import Ended, Settled
from qinglong_edge.core.receipt import Receipt
from tests.unit import offers
from tests.unit.offers import entry

ENDED = Ended(exit_code=0, finished_at_ms=5, evidence=inbox.RECEIPT, truncated=None, log_bytes=0)
SETTLED = Settled(at_ms=20, by=inbox.BY_OPERATOR, reason="seen")


@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(inbox.TRANSITIONS, 2)))
def test_only_the_steps_of_the_table_exist(before: str, after: str) -> None:
    first = entry(before)
    second = entry(after, revision=1)
    fields = {
        name: getattr(first, name)
        for name in (*inbox._FIELDS, "pid", "pid_namespace")
        if getattr(first, name) is not None and name != "recovery_reason"
    }
    allowed = after in inbox.TRANSITIONS[before]
    try:
        second = second.replace(**fields)
    except Corrupt:
        assert not allowed, "a field of the state before is not one of the state after"
        return
    if allowed:
        inbox.check_step(first, second)
        return
    with pytest.raises(Refused) as caught:
        inbox.check_step(first, second)
    assert caught.value.code == "invalid_transition"


@pytest.mark.parametrize("state", inbox.TRANSITIONS)
def test_a_record_has_exactly_the_fields_of_its_state(state: str) -> None:
    good = entry(state)
    for field, (needed, allowed) in inbox._FIELDS.items():
        if state in needed:
            with pytest.raises(Corrupt):
                good.replace(**{field: None})
        elif state not in allowed:
            value: Any = getattr(entry(next(iter(needed))), field)
            with pytest.raises(Corrupt):
                good.replace(**{field: value})


def test_a_step_moves_one_revision_and_time_never_back() -> None:
    first = entry()
    step = first.moved(inbox.STARTING_ACKNOWLEDGED, 5)
    assert (step.revision, step.updated_at_ms) == (1, 10)
    inbox.check_step(first, step)
    for wrong in (step.replace(revision=2), step.replace(revision=0)):
        with pytest.raises(Refused) as caught:
            inbox.check_step(first, wrong)
        assert caught.value.code == "offer_revision_conflict"


def test_what_was_set_once_never_changes() -> None:
    first = entry(inbox.LAUNCHING)
    for changes in ({"log_id": "wlog-" + "2" * 30}, {"started_at_ms": 101}):
        with pytest.raises(Refused) as caught:
            inbox.check_step(first, first.moved(inbox.LAUNCHING, 11).replace(**changes))
        assert caught.value.code == "authority_conflict"
    ended = first.moved(inbox.LAUNCHING, 11, ended=ENDED)
    with pytest.raises(Refused):
        inbox.check_step(ended, ended.moved(inbox.LAUNCHING, 12).replace(ended=None))


def test_a_lease_only_grows_and_equal_versions_are_equal() -> None:
    first = entry(inbox.LAUNCHING)
    lease = first.offer.lease
    newer = lease.replace(version=1, renewed_at_ms=2_000, expires_at_ms=32_000, updated_at_ms=2_000)
    inbox.check_step(first, first.renewed(newer, 11))
    for wrong in (lease.replace(expires_at_ms=40_000),):
        with pytest.raises(Refused):
            inbox.check_step(first, first.renewed(wrong, 11))
    second = first.renewed(newer, 11)
    with pytest.raises(Refused):
        inbox.check_step(second, second.renewed(lease, 12))


def test_a_replay_under_a_newer_lease_keeps_the_first_kind_of_delivery() -> None:
    """Trap 5: a recovery of a new claim is the same offer."""
    first = entry()
    lease = {"version": 4, "renewedAtMs": 2_000, "expiresAtMs": 40_000, "updatedAtMs": 2_000}
    again = offers.made(deliveryKind="lease_recovery", lease=lease)
    merged = inbox.merged(first, again, 11)
    assert merged is not None
    assert merged.offer.delivery_kind == "new_claim"
    assert merged.offer.lease.version == 4
    inbox.check_step(first, merged)
    assert inbox.merged(first, offers.made(deliveryKind="lease_recovery"), 11) is None


def test_another_offer_under_the_same_name_is_a_conflict() -> None:
    other = offers.made(executionRevision=offers.plan(timeoutMs=5))
    for wrong in (other, offers.made(lease={"expiresAtMs": 40_000})):
        with pytest.raises(Refused) as caught:
            inbox.merged(entry(), wrong, 11)
        assert caught.value.code == "offer_conflict"


def test_only_what_needs_recovery_can_be_settled_and_then_holds_no_place() -> None:
    stuck = entry(inbox.RECOVERY_REQUIRED)
    assert stuck.holds_place
    assert not stuck.moved(inbox.RECOVERY_REQUIRED, 11, settled=SETTLED).holds_place
    with pytest.raises(Corrupt):
        entry(inbox.STARTED, settled=SETTLED)
    for state in inbox.FINAL:
        assert not entry(state).holds_place


def test_a_receipt_proves_itself_by_the_digest_of_its_tokens_bytes() -> None:
    token = "WlpaWlpaWlpaWlpaWlpaWlpaWlpaWlpaWlpaWlpaWlo"
    known = entry(
        inbox.STARTED,
        token_digest="60bf07c488aad18fda339df07e4fbc47b4f00be71711936f18d04d352ad01890",
    )
    receipt = Receipt(
        run_id=offers.RUN,
        attempt_id=offers.ATTEMPT,
        callback_sequence=1,
        token=token,
        started_at_ms=100,
        finished_at_ms=200,
        exit_code=0,
    )
    assert inbox.proves(receipt, known)
    for changes in (
        {"token": "A" * 43},
        {"token": "A" * 44},
        {"callback_sequence": 2},
        {"started_at_ms": 101},
        {"run_id": "other"},
        {"attempt_id": "other"},
    ):
        assert not inbox.proves(receipt.replace(**changes), known)
