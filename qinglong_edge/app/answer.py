"""What a resident process answered: its result, or its error with its own class again.

Owns the reading of an answer on the asking side. Nothing an answer holds is trusted to be there.
"""

from __future__ import annotations

from qinglong_edge.core.errors import EXIT_BUG, Corrupt, EdgeError, Invalid, Refused, Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_BY_STATUS: dict[object, type[EdgeError]] = {
    kind.exit_status: kind for kind in (Invalid, Refused, Unavailable, Corrupt)
}


def result(answer: Mapping[str, Any]) -> Any:
    """The result of an answer; the error that it tells is raised."""
    failure = answer.get("error")
    if isinstance(failure, dict):
        raise _error(failure.get("data"))
    return answer.get("result")


def _error(told: object) -> EdgeError:
    document: dict[str, object] = told if isinstance(told, dict) else {}
    facts, status = document.get("facts"), document.get("exit", EXIT_BUG)
    kept = {
        str(name): fact
        for name, fact in (facts.items() if isinstance(facts, dict) else ())
        if fact is None or isinstance(fact, (str, int))
    }
    kind = _BY_STATUS.get(status, EdgeError) if isinstance(status, int) else EdgeError
    return kind(str(document.get("code", "bug")), str(document.get("message", "")), **kept)
