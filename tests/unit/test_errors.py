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
    from_document,
)
from qinglong_edge.core.receipt import ReceiptInvalid

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


@pytest.mark.parametrize(("kind", "status"), KINDS)
def test_an_error_comes_back_from_another_process_with_its_class(
    kind: type[EdgeError], status: int
) -> None:
    error = kind("a_code", "A sentence.", field="x", n=1)
    again = from_document(error.document(), error.exit_status)
    assert type(again) is kind
    assert again.exit_status == status
    assert again.document() == error.document()


def test_a_special_error_comes_back_as_the_class_a_caller_branches_on() -> None:
    error = ReceiptInvalid("receipt_invalid", "No.")
    assert type(from_document(error.document(), error.exit_status)) is Invalid


@pytest.mark.parametrize("status", [0, 1, 6, 70, -1])
def test_an_unknown_status_comes_back_as_a_bug(status: int) -> None:
    assert type(from_document({"code": "x", "message": "y"}, status)) is EdgeError


@pytest.mark.parametrize(
    "document",
    [{}, {"facts": None}, {"facts": [1]}, {"code": 1, "message": None}, {"facts": {"a": [1]}}],
)
def test_a_strange_document_still_becomes_an_error(document: dict[str, object]) -> None:
    again = from_document(document, 3)
    assert isinstance(again, Refused)
    assert isinstance(again.code, str)
    assert again.facts == {}
