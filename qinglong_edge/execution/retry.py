"""Whether an ended attempt is followed by another one.

Owns the rule. Pure: definition, attempt and ending in, a delay or nothing out.

    delay after attempt n = base * 2^(n-1), at most one day (ADR-0069's retry policy)

A lost attempt may have done its work, so it is repeated only if the task says that this is safe.
"""

from __future__ import annotations

from qinglong_edge.core.limits import BACKOFF_MS_MAX
from qinglong_edge.core.run import FAILED, LOST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qinglong_edge.core.task import Definition


def backoff_ms(base_ms: int, attempt: int) -> int:
    """The delay after the given attempt, in ms."""
    return min(BACKOFF_MS_MAX, base_ms << min(attempt - 1, 15))


def delay_ms(definition: Definition, attempt: int, ending: str) -> int | None:
    """The delay before the next attempt, or None if there is none."""
    if attempt > definition.retry or ending not in definition.retry_on:
        return None
    if ending == FAILED or (ending == LOST and definition.repeatable):
        return backoff_ms(definition.backoff_ms, attempt)
    return None
