"""One line of the audit: who asked for which change, and what came of it.

Owns the value. It names things and never holds a value of one: `target` is a task's, a secret's or
a key's name, `version` what came out, `code` why it was refused.
"""

from __future__ import annotations

from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.limits import NAME_BYTES_MAX
from qinglong_edge.core.record import Record

DONE, REFUSED, INTENDED = "done", "refused", "intended"


class Audit(Record):
    """`number` is 0 until it is stored; `mutation_id` joins an intent with its outcome.

    Invalid `audit_invalid`: an outcome that is none, or a text that is not `is_target`.
    """

    number: int = 0
    at_ms: int
    uid: int
    front_end: str
    mutation_id: str
    action: str
    target: str
    version: int | None = None
    outcome: str = DONE
    code: str | None = None

    def _check(self) -> None:
        told = (self.front_end, self.mutation_id, self.action, self.target, self.code or "")
        if self.outcome not in (DONE, REFUSED, INTENDED) or not all(map(is_target, told)):
            raise Invalid("audit_invalid", "A line of the audit is out of bounds.")

    def document(self) -> dict[str, object]:
        """The line as every front end prints it."""
        return {name: getattr(self, name) for name in self._fields}


def is_target(text: str) -> bool:
    """Whether a line may carry the text: UTF-8 of at most 512 bytes."""
    try:
        return len(text.encode("utf-8")) <= NAME_BYTES_MAX
    except UnicodeEncodeError:
        return False
