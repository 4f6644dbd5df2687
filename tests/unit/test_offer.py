"""Offers: exactly the claim's own, with a token digest that only the worker can make."""

from __future__ import annotations

from typing import Any

import pytest

from qinglong_edge.core import canonical, offer
from qinglong_edge.core.errors import Invalid
from tests.unit import offers

REPLY = {
    "schema": "qinglong/remote-execution-offer@v1",
    "status": "offered",
    "stats": offers.STATS,
    "truncated": False,
}
IDLE = {**REPLY, "status": "idle", "reason": "no_candidates"}


@pytest.mark.parametrize(
    ("number", "digest"),
    [
        ("01", "3ec0eba7327e31e6bf55b10a70a671f1d53caea3234ad3358be1f13217f17203"),
        ("02", "9cb1049724d514ee4913cd285a0db9ec046ea81a6b37a38a138788b211b7bfc1"),
        ("09", "dd299fd3889297ddb4e3ab0da6555a16004ad919c52ae47b22af60ee72956927"),
        ("10", "2fe4152ae8ea7bcd75a6f03a0be0800c951bc533742a3bcb5cb1784f607ed321"),
    ],
)
def test_a_lease_tokens_digest_is_that_of_its_text(number: str, digest: str) -> None:
    token = f"worker_generated_lease_capability_00000000000000{number}"
    assert offers.made().replace(lease_token=token).token_digest == digest


def test_an_offer_comes_back_from_the_journal_as_it_was() -> None:
    made = offers.made()
    document = canonical.decode(canonical.encode(offer.stored(made)), bytes_max=99_999)
    assert isinstance(document, dict)
    assert offer.from_stored(document, made.lease) == made
    assert offers.TOKEN not in repr(made)


def test_an_idle_answer_is_no_offer() -> None:
    assert offer.decode_reply(IDLE, offers.CLAIM) is None
    found = offer.decode_reply({**REPLY, "offer": offers.delivered()}, offers.CLAIM)
    assert found == offers.made()


@pytest.mark.parametrize(
    "changes",
    [
        {"offerId": "offer-2"},
        {"worker": {"workerId": "router-1", "sessionId": "session-1", "generation": 3}},
        {"executionDigest": "a" * 64},
        {"lease": {"expiresAtMs": 1_000}},
        {"lease": {"renewedAtMs": 999}},
        {"lease": {"version": True}},
        {"executionRevision": offers.plan(taskId="task-2")},
        {"deliveryKind": "gift"},
        {"surplus": 1},
    ],
)
def test_an_offer_of_another_claim_or_form_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        offer.decode(offers.delivered(**changes), offers.CLAIM)


@pytest.mark.parametrize(
    "reply",
    [
        {**IDLE, "reason": "tired"},
        {**IDLE, "truncated": 0},
        {**IDLE, "stats": {**offers.STATS, "claimRaces": 2}},
        {**IDLE, "schema": "other"},
        {**IDLE, "offer": {}},
        {**REPLY, "status": "taken", "offer": offers.delivered()},
        [],
    ],
)
def test_an_answer_of_another_form_is_refused(reply: object) -> None:
    with pytest.raises(Invalid):
        offer.decode_reply(reply, offers.CLAIM)
