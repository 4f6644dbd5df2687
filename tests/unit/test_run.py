"""Run and Attempt: the one table of transitions, and the arithmetic of versions and events."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from qinglong_edge.core import run as runs
from qinglong_edge.core.errors import Refused
from qinglong_edge.core.run import ATTEMPT_NEXT, RUN_NEXT, Attempt, Run, Story

_RUN = Run(
    number=1,
    id="019f7200-0000-7000-8000-000000000001",
    task_number=1,
    revision=1,
    status="queued",
    version=0,
    trigger_kind="manual",
    recipe_number=1,
    created_at_ms=100,
)
_ATTEMPT = Attempt(
    run_number=1,
    attempt=1,
    id="019f7200-0000-7000-8000-000000000002",
    status="claimed",
    created_at_ms=100,
)


def _table(kind: str) -> dict[str, frozenset[str]]:
    """The table as the module's docstring draws it."""
    found: dict[str, frozenset[str]] = {}
    current = ""
    for line in (runs.__doc__ or "").splitlines():
        if not line.startswith("    ") or not line.strip():
            continue
        words = line.split()
        if line[4] != " ":
            current = words.pop(0)
        if current == kind:
            found[words[0]] = frozenset(words[1:])
    return found


def _at(status: str, **fields: Any) -> Story:
    return Story(_RUN.replace(status=status, version=5, **fields), _ATTEMPT, stored=True)


@pytest.mark.parametrize(("kind", "table"), [("Run", RUN_NEXT), ("Attempt", ATTEMPT_NEXT)])
def test_the_docstring_draws_the_table_that_is_enforced(
    kind: str, table: dict[str, frozenset[str]]
) -> None:
    assert _table(kind) == {status: targets for status, targets in table.items() if targets}


@pytest.mark.parametrize(("status", "target"), list(itertools.product(RUN_NEXT, repeat=2)))
def test_a_run_moves_along_the_table_and_nowhere_else(status: str, target: str) -> None:
    story = _at(status)
    if target in RUN_NEXT[status]:
        story.move_run(target)
        assert (story.run.status, story.run.version) == (target, 6)
        return
    with pytest.raises(Refused) as caught:
        story.move_run(target)
    assert caught.value.code == "illegal_transition"
    assert (story.run.status, story.run.version, story.change().events) == (status, 5, ())


@pytest.mark.parametrize(("status", "target"), list(itertools.product(ATTEMPT_NEXT, repeat=2)))
def test_an_attempt_moves_along_the_table_and_nowhere_else(status: str, target: str) -> None:
    story = Story(_RUN, _ATTEMPT.replace(status=status), stored=True)
    if target in ATTEMPT_NEXT[status]:
        story.move_attempt(target, {})
        assert (story.change().attempt or _ATTEMPT).status == target
        return
    with pytest.raises(Refused) as caught:
        story.move_attempt(target, {})
    assert caught.value.code == "illegal_transition"


def test_an_attempt_that_is_not_there_cannot_move() -> None:
    with pytest.raises(Refused) as caught:
        Story(_RUN, None, stored=True).move_attempt("starting", {})
    assert caught.value.code == "illegal_transition"


def test_four_ends_lead_nowhere_and_from_lost_only_a_retry_goes_on() -> None:
    assert {status for status, targets in RUN_NEXT.items() if not targets} == {
        "succeeded",
        "failed",
        "cancelled",
        "timed_out",
    }
    assert RUN_NEXT["lost"] == {"retry_wait"}
    assert all(not ATTEMPT_NEXT[status] for status in runs.ENDED)
    assert all(Run.replace(_RUN, status=each).ended for each in runs.ENDED)


def test_each_event_takes_one_version_and_the_values_given_are_not_changed() -> None:
    story = Story(_RUN, _ATTEMPT, stored=False)
    story.note("run.created")
    story.note("run.queued")
    story.move_run("dispatching")
    story.move_attempt("starting", {})
    story.move_attempt("running", {"pid": 7}, pid=7)
    story.move_run("running", started_at_ms=200)
    change = story.change()
    assert [event.type for event in change.events] == [
        "run.created",
        "run.queued",
        "run.dispatching",
        "attempt.starting",
        "attempt.running",
        "run.running",
    ]
    assert change.run.version == len(change.events)
    assert (change.before, change.attempt_before) == (None, None)
    assert change.events[4].facts == {"pid": 7}
    assert (_RUN.status, _ATTEMPT.status) == ("queued", "claimed")


def test_an_error_code_stands_in_the_event_of_its_move() -> None:
    story = _at("running")
    story.move_run("failed", error_code="EXECUTION_FAILED", finished_at_ms=300)
    assert story.change().events[0].facts == {"error_code": "EXECUTION_FAILED"}
    assert story.change().before == _RUN.replace(status="running", version=5)


def test_a_further_attempt_is_a_new_row_of_a_stored_run() -> None:
    story = _at("retry_wait", retry_at_ms=900)
    story.move_run("queued", retry_at_ms=None)
    story.begin_attempt(_ATTEMPT.replace(attempt=2))
    change = story.change()
    assert change.before is not None
    assert change.attempt_before is None
    assert [event.type for event in change.events] == ["run.queued", "attempt.claimed"]


def test_the_first_reason_to_end_stays() -> None:
    story = _at("running")
    story.ask_to_end("timeout", 500)
    story.ask_to_end("user", 600)
    assert (story.run.cancel_reason, story.run.cancel_requested_at_ms) == ("timeout", 500)
    assert len(story.change().events) == 1


@pytest.mark.parametrize(
    ("code", "reason", "status", "error"),
    [
        (0, None, "succeeded", None),
        (1, None, "failed", "EXECUTION_FAILED"),
        (255, None, "failed", "EXECUTION_FAILED"),
        (0, "user", "cancelled", "EXECUTION_CANCELLED"),
        (143, "replaced", "cancelled", "EXECUTION_CANCELLED"),
        (9, "shutdown", "cancelled", "EXECUTION_CANCELLED"),
        (0, "timeout", "timed_out", "EXECUTION_TIMED_OUT"),
        (137, "timeout", "timed_out", "EXECUTION_TIMED_OUT"),
    ],
)
def test_an_exit_code_means_what_was_asked_first(
    code: int, reason: str | None, status: str, error: str | None
) -> None:
    assert runs.outcome(code, reason) == (status, error)


def test_a_moment_is_never_before_a_durable_one() -> None:
    assert runs.at_or_after(10, None, 30, 20) == 30
    assert runs.at_or_after(-5) == 0
