"""A row of QingLong's Envs, as an item of one of our sets.

Owns the mapping. QingLong gives every task the enabled rows of each name, joined with ``&``, pinned
ones first, then by descending position; names that a shell could not have reach none. The value is
the row's own: the panel's generated copies differ between the languages of its scripts.
"""

from __future__ import annotations

from qinglong_edge.core import recipe
from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.limits import REASON_CHARACTERS_MAX
from qinglong_edge.core.qinglong import CONTROL, Refusal, flag, labels_of, text_of
from qinglong_edge.core.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

COLUMNS = ("id", "name", "value", "status", "remarks", "isPinned", "labels")
REQUIRED = ("id", "name", "value", "status")
ORDER = (("name", ""), ("isPinned", " DESC"), ("position", " DESC"), ("createdAt", ""), ("id", ""))
_OURS = frozenset({"PATH", "QL_SCRIPTS", "QL_DIR", "task_before", "task_after", "work_dir"})


class Row(Record):
    """One row; with a `code` it is refused."""

    row: int
    name: str
    value: str = ""
    enabled: bool = True
    remarks: str = ""
    labels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    code: str | None = None
    message: str | None = None

    def refused(self, code: str, message: str) -> Row:
        """The same, refused; its value goes."""
        return self.replace(code=code, message=message, value="")

    def __repr__(self) -> str:
        return f"Row({self.row})"


def judge(row: Mapping[str, object]) -> Row:
    """What becomes of a row by itself."""
    number = row["id"] if type(row["id"]) is int else 0
    found = Row(row=number, name="")
    try:
        found = found.replace(name=text_of(row, "name"))
        if number < 1:
            raise Refusal("id_invalid", "The row's id is not a whole number above 0.")
        recipe.check_name(found.name)
        if found.name in _OURS:
            raise Refusal("env_name_taken", "The runner has a variable of this name.")
        notes: list[str] = []
        enabled = row["status"] is not None and not flag(row, "status")
        if row["status"] is None:  # the panel takes rows whose status is 0
            notes.append("status_missing")
        remarks = CONTROL.sub(" ", text_of(row, "remarks")).strip()
        if len(remarks) > REASON_CHARACTERS_MAX:
            notes.append("remarks_cut")
        labels = labels_of(row, number, notes)
        value = text_of(row, "value")
    except (Refusal, Invalid) as error:
        return found.refused(error.code, error.message)
    return found.replace(
        value=value,
        enabled=enabled,
        remarks=remarks[:REASON_CHARACTERS_MAX],
        labels=tuple(labels),
        notes=tuple(notes),
    )
