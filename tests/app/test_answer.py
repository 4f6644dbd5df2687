"""An answer on the asking side: the result, or the error with its own class again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qinglong_edge.app import answer, rpc
from qinglong_edge.core.errors import Corrupt, EdgeError, Invalid, Refused, Unavailable
from qinglong_edge.core.receipt import ReceiptInvalid


def raised(data: object) -> EdgeError:
    """The error that an answer with this `data` raises."""
    with pytest.raises(EdgeError) as caught:
        answer.result({"error": {"data": data}})
    return caught.value


def over(error: BaseException) -> EdgeError:
    """An error as it comes back over the socket."""
    with pytest.raises(EdgeError) as caught:
        answer.result(json.loads(rpc.error_line(1, error)))
    return caught.value


def test_a_result_is_what_the_answer_holds() -> None:
    assert answer.result(json.loads(rpc.result_line(1, {"a": [1]}))) == {"a": [1]}


@pytest.mark.parametrize("kind", [Invalid, Refused, Unavailable, Corrupt])
def test_an_error_comes_back_from_another_process_with_its_class(kind: type[EdgeError]) -> None:
    error = kind("a_code", "A sentence.", field="x", n=1)
    again = over(error)
    assert type(again) is kind
    assert again.document() == error.document()


def test_a_special_error_comes_back_as_the_class_a_caller_branches_on() -> None:
    assert type(over(ReceiptInvalid("receipt_invalid", "No."))) is Invalid


def test_a_bug_comes_back_as_one() -> None:
    again = over(ZeroDivisionError("its text may hold anything"))
    assert (type(again), again.code, again.facts) == (
        EdgeError,
        "bug",
        {"kind": "ZeroDivisionError"},
    )


@pytest.mark.parametrize("status", [0, 1, 6, 70, -1, None, "3", [3]])
def test_an_unknown_status_comes_back_as_a_bug(status: object) -> None:
    assert type(raised({"code": "x", "message": "y", "exit": status})) is EdgeError


@pytest.mark.parametrize(
    "document",
    [{}, {"facts": None}, {"facts": [1]}, {"code": 1, "message": None}, {"facts": {"a": [1]}}],
)
def test_a_strange_document_still_becomes_an_error(document: dict[str, Any]) -> None:
    again = raised({**document, "exit": 3})
    assert isinstance(again, Refused)
    assert isinstance(again.code, str)
    assert again.facts == {}


@pytest.mark.parametrize("data", [None, [], "text"])
def test_an_error_that_tells_nothing_is_an_error(data: object) -> None:
    assert type(raised(data)) is EdgeError
