"""The import of a QingLong 2.x database, in the command that asks for it.

Owns its order: copy the database, judge row by row, stage in pages, commit once, then tell what
became of each row. Rows that the state refuses are told like rows that QingLong's side refuses; the
rest goes in together or not at all. Memory holds one page, whatever the number of rows.
"""

from __future__ import annotations

import json
import os

from qinglong_edge.core import qinglong
from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.limits import IMPORT_PAGE_MAX, IMPORT_ROWS_MAX
from qinglong_edge.storage.qinglong import Source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any, Self

    from qinglong_edge.app.client import Client
    from qinglong_edge.app.envedit import Draft
    from qinglong_edge.app.qinglong_envs import Envs
    from qinglong_edge.core.qinglong import Judged, Place

    Progress = Callable[[int, int], None]

_PAGE_BYTES = 524_288  # of commands and schedules, well below what a request may have
_COUNTED = ("rows", "inserted", "idempotent", "adapted", "refused")
_NOT_KEPT = (("Subscriptions", "subscription"), ("Dependences", "dependency"))


class Import:
    """One database on its way in."""

    def __init__(self, client: Client, path: str, temporary: str) -> None:
        self._client = client
        self._source = Source(path, os.path.join(temporary, f"qinglong-edge-{os.getpid()}.import"))
        self._token: str | None = None
        self.counts = dict.fromkeys(_COUNTED, 0)
        self.env_counts = dict.fromkeys(_COUNTED, 0)
        self.envs: Envs | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._source.close()

    @property
    def source(self) -> Source:
        """The copy that is read."""
        return self._source

    def take_envs(self, envs: Envs, *, dry_run: bool) -> None:
        """Take over every row of Envs, or only say what would become of it; before the tasks."""
        self.envs = envs

        def stage(draft: Draft) -> None:
            if not dry_run:
                sent = {"token": self._token, "envs": [draft.request()]}
                self._token = self._client.call("import.stage", sent)["token"]

        envs.take(stage, self._tell_env)

    def _tell_env(self, row: Judged, outcome: Any, kind: str) -> None:
        counts = self.env_counts
        counts["rows"] += 1
        told: dict[str, object] = {"row": row.row, "env": row.name}
        if isinstance(outcome, dict):
            counts["refused"] += 1
            told.update(outcome="refused", **outcome)
        else:
            counts[outcome] += 1
            counts["adapted"] += bool(row.notes)
            told.update(outcome=outcome, enabled=row.enabled, kind=kind, notes=row.notes)
        self._source.tell("env", counts["rows"], json.dumps(told, ensure_ascii=False))

    def tasks(self, place: Place, *, dry_run: bool, progress: Progress) -> None:
        """Take over every row of Crontabs, or only say what would become of it."""
        total = self._source.count("Crontabs")
        if total > IMPORT_ROWS_MAX:
            raise Invalid("rows_too_many", "The database has too many tasks.", rows=total)
        page: list[tuple[int, Judged]] = []
        size = 0
        for row in self._source.rows("Crontabs", qinglong.COLUMNS, qinglong.REQUIRED):
            judged = qinglong.judge(row, self._name(row), place)
            self.counts["rows"] += 1
            if judged.asked is None:
                outcome = {"code": judged.code, "message": judged.message}
                self._tell(self.counts["rows"], judged, outcome)
                continue
            judged.asked["env_sets"] = self._bound()
            page.append((self.counts["rows"], judged))
            size += len(json.dumps(judged.asked))
            if len(page) == IMPORT_PAGE_MAX or size > _PAGE_BYTES:
                self._stage(page, dry_run=dry_run)
                progress(self.counts["rows"], total)
                page, size = [], 0
        if page or not total:
            self._stage(page, dry_run=dry_run)
        progress(total, total)
        if not dry_run and self._token is not None:
            self._client.call("import.commit", {"token": self._token})

    def _bound(self) -> list[str]:
        return [] if self.envs is None else self.envs.bound

    def _name(self, row: Mapping[str, object]) -> str:
        """The row's name; a later row of the same name has its id behind it."""
        name = qinglong.clean_name(row)
        number = row["id"]
        if type(number) is int and not self._source.claim(name, number):
            return f"{name} #{number}"
        return name

    def _stage(self, page: list[tuple[int, Judged]], *, dry_run: bool) -> None:
        tasks = [{"task": each.asked, "enabled": each.enabled} for _place, each in page]
        answer = self._client.call(
            "import.stage",
            {
                "token": self._token,
                "tasks": tasks,
                "arriving": self._bound(),
                "dry_run": dry_run or None,
            },
        )
        self._token = answer["token"]
        for (place, judged), outcome in zip(page, answer["outcomes"], strict=True):
            self._tell(place, judged, outcome)

    def _tell(self, place: int, judged: Judged, outcome: Any) -> None:
        told: dict[str, object] = {"row": judged.row, "task": judged.name}
        if isinstance(outcome, dict):
            self.counts["refused"] += 1
            told.update(outcome="refused", **outcome)
        else:
            asked = judged.asked or {}
            self.counts[outcome] += 1
            self.counts["adapted"] += bool(judged.notes)
            when = [*asked["cron"], *(["at boot"] if asked["boot"] else [])]
            told.update(outcome=outcome, when=when, enabled=judged.enabled, notes=judged.notes)
        self._source.tell("task", place, json.dumps(told, ensure_ascii=False))

    def told(self, kind: str) -> Iterator[dict[str, Any]]:
        """What became of each row, in order: of tasks, or of envs."""
        for text in self._source.told(kind):
            yield json.loads(text)

    def not_kept(self) -> Iterator[dict[str, object]]:
        """What an import leaves behind by its kind and name; never an address, which may hold a
        password."""
        for table, kind in _NOT_KEPT:
            if self._source.columns(table):
                for row in self._source.rows(table, ("id", "name"), ()):
                    name = row["name"]
                    text = name.decode("utf-8", "replace") if isinstance(name, bytes) else ""
                    yield {"kind": kind, "row": row["id"], "name": text}


def scripts_of(path: str) -> str:
    """The scripts directory beside a panel's database (`data/db/database.sqlite`)."""
    data = os.path.dirname(os.path.dirname(os.path.abspath(path)))
    return os.path.join(data, "scripts")
