"""A row of QingLong's Envs, as an item of one of our sets.

Owns the mapping. QingLong gives every task the enabled rows of each name, joined with ``&``, pinned
ones first, then by descending position; names that a shell could not have reach none. The value is
the row's own: the panel's generated copies differ between the languages of its scripts.
"""

from __future__ import annotations

from qinglong_edge.core import recipe
from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.limits import REASON_CHARACTERS_MAX
from qinglong_edge.core.qinglong import CONTROL, Judged, Refusal, flag, labels_of, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

COLUMNS = ("id", "name", "value", "status", "remarks", "isPinned", "labels")
REQUIRED = ("id", "name", "value", "status")
ORDER = (("name", ""), ("isPinned", " DESC"), ("position", " DESC"), ("createdAt", ""), ("id", ""))
_OURS = frozenset({"PATH", "QL_SCRIPTS", "QL_DIR", "task_before", "task_after", "work_dir"})


def judge(row: Mapping[str, object]) -> Judged:
    """What becomes of a row by itself; `asked` has value, remarks and labels."""
    number = row["id"] if type(row["id"]) is int else 0
    name, notes = "", list[str]()
    try:
        name = text_of(row, "name")
        if number < 1:
            raise Refusal("id_invalid", "The row's id is not a whole number above 0.")
        recipe.check_name(name)
        if name in _OURS:
            raise Refusal("env_name_taken", "The runner has a variable of this name.")
        if row["status"] is None:  # the panel takes rows whose status is 0
            notes.append("status_missing")
        enabled = row["status"] is not None and not flag(row, "status")
        remarks = CONTROL.sub(" ", text_of(row, "remarks")).strip()
        if len(remarks) > REASON_CHARACTERS_MAX:
            notes.append("remarks_cut")
        asked = {
            "value": text_of(row, "value"),
            "remarks": remarks[:REASON_CHARACTERS_MAX],
            "labels": tuple(labels_of(row, number, notes)),
        }
    except (Refusal, Invalid) as error:
        return Judged(row=number, name=name, asked=None, code=error.code, message=error.message)
    return Judged(row=number, name=name, asked=asked, enabled=enabled, notes=tuple(notes))
