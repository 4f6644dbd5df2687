"""Typed errors: code, one sentence, facts, exit status."""

from __future__ import annotations

import pytest

from qinglong_edge.core.errors import (
    EXIT_BUG,
    Corrupt,
    EdgeError,
    Invalid,
    Refused,
    Unavailable,
)

KINDS = [(Invalid, 2), (Refused, 3), (Unavailable, 4), (Corrupt, 5)]


@pytest.mark.parametrize(("kind", "status"), KINDS)
def test_each_class_has_its_exit_status(kind: type[EdgeError], status: int) -> None:
    assert kind("some_code", "One sentence.").exit_status == status


def test_an_unnamed_failure_is_a_bug() -> None:
    assert EdgeError("some_code", "One sentence.").exit_status == EXIT_BUG == 70


def test_an_error_carries_code_sentence_and_facts() -> None:
    error = Refused("run_not_found", "There is no such run.", run_id="r", count=3, seen=None)
    assert str(error) == error.message == "There is no such run."
    assert error.document() == {
        "code": "run_not_found",
        "message": "There is no such run.",
        "facts": {"run_id": "r", "count": 3, "seen": None},
    }


def test_the_text_for_a_trace_names_class_code_and_facts() -> None:
    assert repr(Invalid("a_code", "A sentence.", n=1)) == "Invalid('a_code', {'n': 1})"
