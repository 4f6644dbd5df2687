"""Capabilities in their canonical form, and the session's documents."""

from __future__ import annotations

from typing import Any

import pytest

from qinglong_edge.core import canonical, session
from qinglong_edge.core.errors import Invalid

PLAIN: dict[str, Any] = {
    "architecture": "arm64",
    "executors": ["remote-worker"],
    "protocolVersion": "1.0.0",
    "supportTier": "tier1",
}
RICH: dict[str, Any] = {
    "features": [],
    "capacity": {"memoryBytes": 268435456, "cpuCores": 1},
    "labels": {},
    "runtimes": [{"version": "24.14.0", "name": "node"}],
    "operatingSystem": "linux",
    **PLAIN,
    "architecture": "amd64",
}


@pytest.mark.parametrize(
    ("given", "digest"),
    [
        (PLAIN, "b3d79017d91c477ffdf4a4dcc4ce9135ca053c921922ce0221920f905d8a2aa4"),
        (RICH, "466e88456c62bd9ff755101e33999ef6c8b480440ad5a9cf9fc4b480368ce9a9"),
    ],
)
def test_capabilities_have_one_form_and_its_digest(given: dict[str, Any], digest: str) -> None:
    body = session.register(session.capabilities(given), runs_max=2, slots=2, lease_ms=45_000)
    assert body["capabilitiesHash"] == digest
    assert canonical.sha256_hex(body["capabilitiesJson"].encode()) == digest


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"architecture": "mips"}, "architecture"),
        ({"supportTier": "experimental"}, "supportTier"),
        ({"executors": ["local"]}, "executors"),
        ({"executors": ["remote-worker", "remote-worker"]}, "executors"),
        ({"protocolVersion": "1"}, "protocolVersion"),
        ({"labels": {"-x": "y"}}, "labels"),
        ({"capacity": {"cpuCores": 0}}, "capacity"),
        ({"surplus": 1}, "capabilities"),
    ],
)
def test_other_capabilities_are_refused_by_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as caught:
        session.capabilities({**PLAIN, **changes})
    assert caught.value.facts == {"field": field}


def reply(schema: str, **changes: Any) -> dict[str, Any]:
    return {
        "schema": f"qinglong/worker-session-{schema}@v1",
        "workerId": "w",
        "sessionId": "s",
        "generation": 1,
        "version": 3,
        "status": "online",
        "leaseExpiresAtMs": 9,
        **changes,
    }


def test_a_reply_about_another_session_is_none() -> None:
    assert session.beaten(reply("heartbeat"), "w", "s").version == 3
    for changes in ({"workerId": "x"}, {"sessionId": "x"}, {"status": "offline"}, {"more": 1}):
        with pytest.raises(Invalid):
            session.beaten(reply("heartbeat", **changes), "w", "s")
    with pytest.raises(Invalid):
        session.moved(reply("transition", status="online"), "w", "s", "draining")
    with pytest.raises(Invalid):
        session.registered(reply("register"), "w", "s")
    assert session.registered(reply("register", replacedSession=False), "w", "s").generation == 1
