"""The envs of a QingLong 2.x database on their way in, name by name.

Owns the order: the rows of one name are sealed and staged before the next is read. A row that an
earlier import brought is known by its label, whatever became of its value since.
"""

from __future__ import annotations

from qinglong_edge.app import envedit
from qinglong_edge.core import qinglong_env
from qinglong_edge.core.errors import Invalid, Refused
from qinglong_edge.core.limits import BINDINGS_BYTES_MAX, BINDINGS_MAX
from qinglong_edge.core.qinglong import SOURCE_LABEL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from qinglong_edge.app.envedit import Draft
    from qinglong_edge.app.sealing import Sealer
    from qinglong_edge.core.qinglong import Judged
    from qinglong_edge.storage.qinglong import Source

    Outcome = str | dict[str, str]

EVERY = "*"
_ROOM_BYTES = BINDINGS_BYTES_MAX - 32_768  # what a task has besides: hooks, paths
_ROOM = BINDINGS_MAX - 16


class Envs:
    """The rows of one database; `bound` are the sets for its tasks, `unbound` those too many."""

    def __init__(self, source: Source, sealer: Sealer, public: frozenset[str]) -> None:
        self._source = source
        self._sealer = sealer
        self._public = public
        self._bytes = 0
        self.bound: list[str] = []
        self.unbound: list[str] = []
        self.needs_key = False

    def take(
        self, stage: Callable[[Draft], None], tell: Callable[[Judged, Outcome, str], None]
    ) -> None:
        """Judge every row, hand each changed set to `stage`, tell what becomes of each row."""
        for name, rows in self._groups():
            well = [each for each in rows if each.code is None]
            for each in rows:
                if each.code is not None:
                    tell(each, _refusal(each.code, each.message), "-")
            if well:
                self._name(name, well, stage, tell)

    def _groups(self) -> Iterator[tuple[str, list[Judged]]]:
        there = self._source.columns("Envs")
        if not there:
            return
        order = ", ".join(f'"{name}"{way}' for name, way in qinglong_env.ORDER if name in there)
        group: list[Judged] = []
        wanted = (qinglong_env.COLUMNS, qinglong_env.REQUIRED)
        for row in map(qinglong_env.judge, self._source.rows("Envs", *wanted, order)):
            if group and row.name != group[0].name:
                yield group[0].name, group
                group = []
            group.append(row)
        if group:
            yield group[0].name, group

    def _name(
        self,
        name: str,
        rows: list[Judged],
        stage: Callable[[Draft], None],
        tell: Callable[[Judged, Outcome, str], None],
    ) -> None:
        public = name in self._public or EVERY in self._public
        try:
            draft = envedit.load(self._sealer, name)
            outcomes = [self._row(draft, each, public=public) for each in rows]
            weight = draft.weight()
            if "inserted" in outcomes:
                stage(draft)
        except (Invalid, Refused) as error:
            outcomes = [_refusal(error.code, error.message)] * len(rows)
        else:
            self._bind(name, weight)
            self.needs_key |= not public and "inserted" in outcomes
        for row, outcome in zip(rows, outcomes, strict=True):
            tell(row, outcome, "public" if public else "secret")

    def _row(self, draft: Draft, row: Judged, *, public: bool) -> Outcome:
        if any(f"{SOURCE_LABEL}{row.row}" in each.labels for each in draft.items):
            return "idempotent"
        told = dict(row.asked or {}, enabled=row.enabled)
        draft.put(told.pop("value").encode(), number=None, public=public)
        draft.items[-1] = draft.items[-1].replace(**told)
        return "inserted"

    def _bind(self, name: str, weight: int) -> None:
        """Every task gets every set, as far as one task may have so much."""
        if self._bytes + weight > _ROOM_BYTES or len(self.bound) == _ROOM:
            self.unbound.append(name)
            return
        self._bytes += weight
        self.bound.append(name)


def _refusal(code: str, message: str | None) -> dict[str, str]:
    return {"code": code, "message": message or ""}
