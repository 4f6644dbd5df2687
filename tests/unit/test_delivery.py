"""Secrets on their way into a launch child: one batch, position by position, or nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qinglong_edge.core import delivery, inbox
from qinglong_edge.core.errors import Refused
from qinglong_edge.core.inbox import Entry
from tests.unit import offers

ITEM = "qlsecret:v1:eyJwcm9qZWN0SWQiOiJwcm9qZWN0LTEiLCJuYW1lIjoiaXRlbS0xIn0"
TOKEN = "qlsecret:v1:eyJwcm9qZWN0SWQiOiJwcm9qZWN0LTEiLCJuYW1lIjoidG9rZW4ifQ"
BUNDLE = (
    "qlsecret:v1:eyJwcm9qZWN0SWQiOiJwcm9qZWN0LTEiLCJuYW1lIjoibGVnYWN5LWVudi1idW5kbGUiLCJ2"
    "ZXJzaW9uIjoyfQ"
)
CANARY = "never-to-be-told"


def starting(refs: dict[str, str], *, bundle: bool = False, **public: str) -> Entry:
    environment: list[dict[str, str]] = [
        {"name": name, "kind": "public", "value": value} for name, value in public.items()
    ]
    environment += [
        {"name": name, "kind": "secret", "secretRef": ref} for name, ref in refs.items()
    ]
    environment.sort(key=lambda each: each["name"].lower())
    more = {"environmentBundleRef": BUNDLE} if bundle else {}
    plan = offers.plan(environment=environment, **more)
    return offers.entry(inbox.STARTING_ACKNOWLEDGED, offer=offers.made(executionRevision=plan))


def bundle(*entries: tuple[str, str], **changes: Any) -> str:
    found = [{"name": name, "value": value} for name, value in entries]
    document = {"schema": "qinglong/environment-bundle@v1", "entries": found, **changes}
    return json.dumps(document)


def reply(sent: dict[str, Any], **changes: Any) -> dict[str, Any]:
    same = ("schema", "runId", "attemptId", "offerId", "executionDigest")
    made = {
        **{key: sent[key] for key in same},
        "values": [{"secretRef": ref, "value": CANARY} for ref in sent["secretRefs"]],
        "environmentBundles": [
            {"secretRef": ref, "value": bundle(("LEGACY_TOKEN", CANARY), ("LEGACY_MODE", "x"))}
            for ref in sent["environmentBundleRefs"]
        ],
    }
    return {**made, **changes}


def test_two_bindings_of_one_secret_ask_for_it_once() -> None:
    """ADR-0024 verification 5: secrets are resolved once each, in one batch."""
    entry = starting({"B": ITEM, "A": ITEM, "C": TOKEN})
    sent = delivery.request(entry)
    assert sent["secretRefs"] == [ITEM, TOKEN]
    assert list(sent)[:3] == ["schema", "runId", "attemptId"]
    got = delivery.environment(reply(sent), sent, entry.offer.revision)
    assert got == {"A": CANARY, "B": CANARY, "C": CANARY}


def test_nothing_to_fetch_is_not_fetched() -> None:
    assert not delivery.wanted(starting({}, PLAIN="x").offer.revision)
    assert delivery.wanted(starting({"A": ITEM}).offer.revision)


def test_a_bundle_adds_entries_that_no_binding_has() -> None:
    """Trap 6: an environment may have more variables than its revision has bindings."""
    entry = starting({"A": ITEM}, bundle=True, PLAIN="x")
    sent = delivery.request(entry)
    got = delivery.environment(reply(sent), sent, entry.offer.revision)
    assert got == {"A": CANARY, "LEGACY_TOKEN": CANARY, "LEGACY_MODE": "x"}


@pytest.mark.parametrize(
    "text",
    [
        bundle(("A", "twice")),
        bundle(("PLAIN", "taken")),
        bundle(("X", "1"), ("X", "2")),
        bundle(("QL3_X", "1")),
        bundle(("IFS", "1")),
        bundle(("X", "a\0")),
        bundle(("X", "v" * 16_385)),
        bundle(),
        bundle(("X", "1"), schema="other"),
        "[" * 40,
        "{}",
    ],
)
def test_a_bundle_of_another_form_is_refused_whole(text: str) -> None:
    entry = starting({"A": ITEM}, bundle=True, PLAIN="x")
    sent = delivery.request(entry)
    value = [{"secretRef": BUNDLE, "value": text}]
    with pytest.raises(Refused) as caught:
        delivery.environment(reply(sent, environmentBundles=value), sent, entry.offer.revision)
    assert caught.value.code == "secret_value_invalid"
    assert not any(text in str(fact) for fact in caught.value.facts.values())


@pytest.mark.parametrize(
    "changes",
    [
        {"executionDigest": "0" * 64},
        {"offerId": "offer-2"},
        {"values": []},
        {"values": [{"secretRef": TOKEN, "value": CANARY}, {"secretRef": ITEM, "value": CANARY}]},
        {"values": [{"secretRef": ITEM, "value": "a\0"}, {"secretRef": TOKEN, "value": CANARY}]},
        {
            "values": [
                {"secretRef": ITEM, "value": "v" * 16_385},
                {"secretRef": TOKEN, "value": CANARY},
            ]
        },
        {"values": {"secretRef": ITEM, "value": CANARY}},
        {"surplus": CANARY},
    ],
)
def test_a_reply_that_is_not_position_exact_gives_nothing(changes: dict[str, Any]) -> None:
    entry = starting({"A": ITEM, "B": TOKEN})
    sent = delivery.request(entry)
    with pytest.raises(Refused) as caught:
        delivery.environment(reply(sent, **changes), sent, entry.offer.revision)
    assert CANARY not in f"{caught.value!r} {caught.value}"


def test_the_whole_environment_has_one_budget() -> None:
    entry = starting({"A": ITEM}, PLAIN="p" * 60_000)
    sent = delivery.request(entry)
    big = [{"secretRef": ITEM, "value": "v" * 6_000}]
    with pytest.raises(Refused):
        delivery.environment(reply(sent, values=big), sent, entry.offer.revision)
