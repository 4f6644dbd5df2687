"""Activation, lease control, upload and completion: exactly about what was asked."""

from __future__ import annotations

from typing import Any

import pytest

from qinglong_edge.core import exchange, inbox
from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.exchange import Stored
from qinglong_edge.core.inbox import Ended
from tests.unit import offers

STORED = Stored(byte_length=10, sha256="c" * 64, truncated=None)
ENDED = Ended(exit_code=3, finished_at_ms=50, evidence="receipt", truncated=None, log_bytes=10)


def snapshot(shape: str, **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "runId": offers.RUN,
        "attemptId": offers.ATTEMPT,
        "leaseVersion": 0,
        "leaseGeneration": 1,
        "callbackSequence": 4,
    }
    if shape == "starting":
        made |= {"runStatus": "dispatching", "attemptStatus": "starting"}
    elif shape == "running":
        made |= {"runStatus": "running", "attemptStatus": "running"}
        made |= {"executorHandle": "ql3lp1.x", "startedAtMs": 5}
    else:
        made |= {"runStatus": "failed", "attemptStatus": "failed"}
        made |= {"finishedAtMs": 5, "errorCode": "EXECUTOR_START_FAILED"}
    return {**made, **changes}


def activation(status: str, shape: str, **changes: Any) -> dict[str, Any]:
    return {
        "schema": "qinglong/remote-run-activation@v1",
        "status": status,
        "snapshot": snapshot(shape, **changes),
    }


@pytest.mark.parametrize(
    ("status", "shape", "asked"),
    [
        ("applied", "starting", "starting"),
        ("already_starting", "starting", "starting"),
        ("already_running", "running", "starting"),
        ("already_terminal", "terminal", "starting"),
        ("applied", "running", "running"),
        ("applied", "terminal", "terminal"),
    ],
)
def test_an_answer_agrees_with_its_snapshot(status: str, shape: str, asked: str) -> None:
    found = exchange.activated(activation(status, shape), offers.entry(), asked)
    assert (found.status, found.callback_sequence) == (status, 4)


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        (activation("applied", "running"), "starting"),
        (activation("already_running", "starting"), "starting"),
        (activation("already_starting", "terminal"), "starting"),
        (activation("applied", "starting", runId="other"), "starting"),
        (activation("applied", "starting", leaseVersion=1), "starting"),
        (activation("applied", "terminal", leaseVersion=2), "terminal"),
        (activation("applied", "starting", leaseGeneration=2), "starting"),
        (activation("applied", "starting", callbackSequence=2**31), "starting"),
        (activation("applied", "starting", deadlineAtMs=9), "starting"),
        (activation("applied", "starting", executorHandle="x"), "starting"),
        (activation("applied", "terminal", runStatus="lost", attemptStatus="lost"), "terminal"),
        ({**activation("applied", "starting"), "more": 1}, "starting"),
        (None, "starting"),
    ],
)
def test_an_answer_that_contradicts_itself_is_none(given: object, asked: str) -> None:
    with pytest.raises(Invalid):
        exchange.activated(given, offers.entry(), asked)


def test_a_deadline_is_told_exactly_for_a_revision_with_a_timeout() -> None:
    timed = offers.entry(offer=offers.made(executionRevision=offers.plan(timeoutMs=5_000)))
    with pytest.raises(Invalid):
        exchange.activated(activation("applied", "starting"), timed, "starting")
    told = activation("applied", "starting", deadlineAtMs=6_000)
    assert exchange.activated(told, timed, "starting").deadline_at_ms == 6_000


def control(**changes: Any) -> dict[str, Any]:
    return {
        "schema": "qinglong/remote-worker-lease-control@v1",
        "status": "renewed",
        "projectId": "project-1",
        "runId": offers.RUN,
        "attemptId": offers.ATTEMPT,
        "offerId": "offer-1",
        "leaseGeneration": 1,
        "leaseVersion": 1,
        "renewedAtMs": 5_000,
        "expiresAtMs": 35_000,
        "stop": None,
        "terminalStatus": None,
        **changes,
    }


def test_a_renewal_is_the_very_next_lease() -> None:
    found = exchange.controlled(control(), offers.entry())
    assert found.lease is not None
    assert (found.lease.version, found.lease.updated_at_ms) == (1, 5_000)
    stop = {"reason": "timeout", "requestedAtMs": 9_000}
    found = exchange.controlled(control(status="stop_requested", stop=stop), offers.entry())
    assert found.reason == "timeout"
    numbers = dict.fromkeys(("leaseVersion", "renewedAtMs", "expiresAtMs"))
    found = exchange.controlled(
        control(status="terminal", terminalStatus="lost", **numbers), offers.entry()
    )
    assert (found.lease, found.reason) == (None, "lost")


@pytest.mark.parametrize(
    "changes",
    [
        {"leaseVersion": 2},
        {"leaseVersion": None},
        {"renewedAtMs": 999},
        {"expiresAtMs": 5_000},
        {"runId": "other"},
        {"offerId": "offer-2"},
        {"stop": {"reason": "user", "requestedAtMs": 1}},
        {"status": "stop_requested"},
        {"status": "stop_requested", "stop": {"reason": "mood", "requestedAtMs": 1}},
        {"status": "terminal", "terminalStatus": "failed"},
        {"terminalStatus": "failed"},
    ],
)
def test_a_renewal_of_another_lease_or_form_is_none(changes: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        exchange.controlled(control(**changes), offers.entry())


def test_an_upload_says_in_front_what_it_is() -> None:
    entry = offers.entry(inbox.STARTED)
    data = exchange.upload_header(entry, byte_length=10, truncated=False)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    assert data[4:].startswith(b'{"schema":"qinglong/remote-worker-artifact-upload@v1",')
    named = (
        b'"logArtifactId":"%s","byteLength":10,"truncated":false}' % (entry.log_id or "").encode()
    )
    assert data.endswith(named)


def test_an_upload_counts_only_if_the_plane_has_the_same_bytes() -> None:
    entry = offers.entry(inbox.STARTED)
    reply = {
        "schema": "qinglong/remote-worker-artifact-upload@v1",
        "status": "stored",
        "projectId": "project-1",
        "runId": offers.RUN,
        "attemptId": offers.ATTEMPT,
        "logArtifactId": entry.log_id,
        "byteLength": 10,
        "sha256": "c" * 64,
        "truncated": None,
    }
    exchange.uploaded(reply, entry, STORED)
    for changes in (
        {"sha256": "d" * 64},
        {"byteLength": 11},
        {"truncated": False},
        {"logArtifactId": "wlog-" + "2" * 30},
        {"projectId": "project-2"},
        {"status": "lost"},
    ):
        with pytest.raises(Invalid):
            exchange.uploaded({**reply, **changes}, entry, STORED)


def test_a_completion_tells_outcome_times_and_the_stored_log() -> None:
    entry = offers.entry(inbox.RUNNING_ACKNOWLEDGED)
    body = exchange.completion(entry, ENDED, STORED)
    assert body["result"] == {
        "outcome": "failed",
        "startedAtMs": 100,
        "finishedAtMs": 100,  # a wall clock that stepped back makes no negative run
        "exitCode": 3,
    }
    assert body["artifact"]["logArtifactId"] == entry.log_id
    assert "workerId" not in str(body)
    reply = {
        "schema": "qinglong/remote-worker-completion@v1",
        "status": "applied",
        "runId": offers.RUN,
        "attemptId": offers.ATTEMPT,
        "callbackSequence": 1,
    }
    assert exchange.completed(reply, entry) == "applied"
    with pytest.raises(Invalid):
        exchange.completed({**reply, "runId": "other"}, entry)
