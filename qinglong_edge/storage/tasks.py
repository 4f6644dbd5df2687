"""Tasks, their immutable revisions, recipes, triggers and cursors as rows.

Owns the only SQL of the definitions. A recipe is written before the revision that cites it, in the
same transaction; neither is ever changed, and each is read back against its own digests. Editing a
task appends a revision and re-pins its triggers: one that means the same keeps its row and its
cursor, so an edit loses no occurrence.

What nothing cites goes in pages, each statement its own proof: a revision that is neither a task's
newest nor a run's; a recipe of no revision and no run; a removed task without either. All are older
than the window that the caller gives, and the newest task stays: its number is not given twice.
"""

from __future__ import annotations

from qinglong_edge.core import recipe as recipes
from qinglong_edge.core.commit import Cursor, CursorMove
from qinglong_edge.core.errors import Corrupt, Refused
from qinglong_edge.core.run import BOOT
from qinglong_edge.core.task import (
    Revision,
    Task,
    Trigger,
    decode_definition,
    digest,
    record_digest,
)
from qinglong_edge.storage.connection import IDEMPOTENT, INSERTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from qinglong_edge.core.recipe import Recipe
    from qinglong_edge.core.task import Definition
    from qinglong_edge.storage.connection import Database, Row

_TASK_COLUMNS = "number, name, revision, enabled, created_at_ms, removed_at_ms"
_CURSOR_COLUMNS = """
task_trigger.number, task_trigger.task_number, task_trigger.kind, task_trigger.expression,
task_trigger.zone, task_trigger.misfire, task.enabled, cursor.next_at_ms, cursor.boot_id,
cursor.last_scheduled_ms, cursor.skipped, cursor.parked
"""
_CURSOR_TABLES = """
task_trigger JOIN task ON task.number = task_trigger.task_number
JOIN cursor ON cursor.trigger_number = task_trigger.number
"""
_ORPHANS = (
    (
        "revision",
        "(task_number, revision)",
        """
        SELECT task_number, revision.revision FROM revision JOIN task ON task.number = task_number
        WHERE max(revision.created_at_ms, coalesce(task.removed_at_ms, 0)) < ?
          AND (revision.revision < task.revision OR task.removed_at_ms IS NOT NULL)
          AND (task_number, revision.revision) NOT IN (SELECT task_number, revision FROM run)
        LIMIT ?
        """,
    ),
    (
        "recipe",
        "number",
        """
        SELECT number FROM recipe
        WHERE created_at_ms < ? AND number NOT IN (SELECT recipe_number FROM revision)
          AND number NOT IN (SELECT recipe_number FROM run)
        LIMIT ?
        """,
    ),
    (
        "task",
        "number",
        """
        SELECT number FROM task
        WHERE removed_at_ms < ? AND number < (SELECT max(number) FROM task)
          AND number NOT IN (SELECT task_number FROM revision)
          AND number NOT IN (SELECT task_number FROM task_trigger)
          AND number NOT IN (SELECT task_number FROM run)
        LIMIT ?
        """,
    ),
)


class TaskStore:
    """The repository of definitions; every write method runs inside the caller's block."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._count: int | None = None

    def find(self, name: str) -> Task | None:
        """The task of that name that was not removed."""
        row = self._database.row(
            f"SELECT {_TASK_COLUMNS} FROM task WHERE name = ? AND removed_at_ms IS NULL", (name,)
        )
        return None if row is None else _task(row)

    def get(self, number: int) -> Task | None:
        """A task by its number, removed or not."""
        row = self._database.row(f"SELECT {_TASK_COLUMNS} FROM task WHERE number = ?", (number,))
        return None if row is None else _task(row)

    def all(self) -> Iterator[Task]:
        """Every task that was not removed, by name."""
        statement = f"SELECT {_TASK_COLUMNS} FROM task WHERE removed_at_ms IS NULL ORDER BY name"
        for row in self._database.rows(statement):
            yield _task(row)

    def count(self) -> int:
        """How many tasks there are; counted again only after one came or went."""
        if self._count is None:
            row = self._database.row("SELECT count(*) FROM task WHERE removed_at_ms IS NULL")
            self._count = 0 if row is None else int(row[0])
        return self._count

    def insert_recipe(self, recipe: Recipe, at_ms: int) -> tuple[int, str]:
        """Store a recipe by its content address: (number, inserted | idempotent)."""
        reference = recipe.context_ref
        row = self._database.row("SELECT number FROM recipe WHERE context_ref = ?", (reference,))
        if row is not None:
            self.recipe(int(row[0]))  # a damaged one is never confirmed
            return int(row[0]), IDEMPOTENT
        cursor = self._database.execute(
            """
            INSERT INTO recipe (context_ref, body, record_digest, created_at_ms)
            VALUES (?, ?, ?, ?)
            """,
            (reference, recipe.canonical().decode("utf-8"), recipe.record_digest, at_ms),
        )
        return int(cursor.lastrowid or 0), INSERTED

    def recipe(self, number: int) -> Recipe:
        """A stored recipe, checked against both its digests; `Corrupt` on any deviation."""
        row = self._database.row(
            "SELECT context_ref, body, record_digest FROM recipe WHERE number = ?", (number,)
        )
        if row is None:
            raise Refused("recipe_unknown", "There is no such recipe.", recipe=number)
        recipe = recipes.decode(str(row[1]).encode("utf-8"), str(row[0]))
        if recipe.record_digest != row[2]:
            raise Corrupt("recipe_corrupt", "A recipe's record is damaged.", reason="record_digest")
        return recipe

    def insert(self, name: str, at_ms: int) -> Task:
        """A new task without a revision yet; `append` follows in the same block."""
        self._count = None
        cursor = self._database.execute(
            "INSERT INTO task (name, revision, enabled, created_at_ms) VALUES (?, 1, 1, ?)",
            (name, at_ms),
        )
        return Task(
            number=int(cursor.lastrowid or 0),
            name=name,
            revision=0,
            enabled=True,
            created_at_ms=at_ms,
            removed_at_ms=None,
        )

    def append(
        self,
        task: Task,
        definition: Definition,
        triggers: tuple[Trigger, ...],
        recipe: Recipe,
        *,
        at_ms: int,
        boot_id: str | None,
    ) -> Task:
        """`publish` for whoever needs only the task's new head."""
        return self.publish(task, definition, triggers, recipe, at_ms=at_ms, boot_id=boot_id)[0]

    def publish(
        self,
        task: Task,
        definition: Definition,
        triggers: tuple[Trigger, ...],
        recipe: Recipe,
        *,
        at_ms: int,
        boot_id: str | None,
    ) -> tuple[Task, str]:
        """Append a revision and re-pin the triggers; the same content again appends nothing.

        The order of the triggers is no content: a kept one keeps its place among the rows. A new
        `boot` trigger counts as done for this boot: it waits for the next one. `Refused`
        (`revision_conflict`) if another edit came first, `Corrupt` if the equal one is damaged.
        """
        ordered = tuple(sorted(triggers, key=lambda trigger: trigger.identity))
        content = digest(definition, ordered, recipe.context_ref)
        for revision in (task.revision, task.revision + 1):
            if self._content(task.number, revision) == content:
                self.revision(task.number, revision)
                return task.replace(revision=revision), IDEMPOTENT
        recipe_number, _outcome = self.insert_recipe(recipe, at_ms)
        moved = self._database.execute(
            "UPDATE task SET revision = ? WHERE number = ? AND revision = ?",
            (revision, task.number, max(task.revision, 1)),
        )
        if moved.rowcount != 1 or self._content(task.number, revision) is not None:
            raise Refused("revision_conflict", "The task has been edited.", revision=revision)
        text = definition.encode()
        record = record_digest(
            task.number, revision, context_ref=recipe.context_ref, content=content, definition=text
        )
        self._database.execute(
            """
            INSERT INTO revision (task_number, revision, recipe_number, definition, digest,
                                  record_digest, created_at_ms)
            VALUES (?, ?, ?, ?, ?, ?, ?)
            """,
            (task.number, revision, recipe_number, text, content, record, at_ms),
        )
        self._pin_triggers(task.number, triggers, boot_id)
        return task.replace(revision=revision), INSERTED

    def _content(self, task_number: int, revision: int) -> str | None:
        row = self._database.row(
            "SELECT digest FROM revision WHERE task_number = ? AND revision = ?",
            (task_number, revision),
        )
        return None if row is None else str(row[0])

    def _pin_triggers(
        self, task_number: int, triggers: tuple[Trigger, ...], boot_id: str | None
    ) -> None:
        wanted = [trigger.identity for trigger in triggers]
        for stored in self.triggers(task_number):
            if stored.identity in wanted:
                wanted.remove(stored.identity)
            else:
                self._database.execute(
                    "DELETE FROM task_trigger WHERE number = ?", (stored.number,)
                )
        for kind, expression, zone, misfire in wanted:
            cursor = self._database.execute(
                """
                INSERT INTO task_trigger (task_number, kind, expression, zone, misfire)
                VALUES (?, ?, ?, ?, ?)
                """,
                (task_number, kind, expression, zone, misfire),
            )
            self._database.execute(
                "INSERT INTO cursor (trigger_number, boot_id) VALUES (?, ?)",
                (cursor.lastrowid, boot_id if kind == BOOT else None),
            )

    def triggers(self, task_number: int) -> list[Trigger]:
        """The pinned triggers of a task, oldest first."""
        rows = self._database.rows(
            """
            SELECT number, kind, expression, zone, misfire FROM task_trigger
            WHERE task_number = ? ORDER BY number
            """,
            (task_number,),
        )
        return [Trigger(**dict(zip(Trigger._fields, row, strict=True))) for row in rows]

    def revision(self, task_number: int, revision: int) -> Revision:
        """An immutable revision; `Refused` if there is none, `Corrupt` if it is damaged."""
        row = self._database.row(
            """
            SELECT revision.recipe_number, recipe.context_ref, revision.definition,
                   revision.digest, revision.record_digest
            FROM revision JOIN recipe ON recipe.number = revision.recipe_number
            WHERE revision.task_number = ? AND revision.revision = ?
            """,
            (task_number, revision),
        )
        if row is None:
            raise Refused("revision_unknown", "There is no such revision.", revision=revision)
        told = {"context_ref": str(row[1]), "definition": str(row[2]), "content": str(row[3])}
        if record_digest(task_number, revision, **told) != row[4]:
            raise Corrupt(
                "definition_corrupt", "A revision's record is damaged.", revision=revision
            )
        return Revision(
            task_number=task_number,
            revision=revision,
            recipe_number=int(row[0]),
            context_ref=str(row[1]),
            definition=decode_definition(str(row[2])),
        )

    def rename(self, task: Task, name: str) -> None:
        """Give a task another name; the caller has checked that it is free."""
        self._database.execute("UPDATE task SET name = ? WHERE number = ?", (name, task.number))

    def set_enabled(self, task: Task, *, enabled: bool) -> None:
        """Let triggers admit runs of the task, or stop them."""
        self._database.execute(
            "UPDATE task SET enabled = ? WHERE number = ?", (int(enabled), task.number)
        )

    def remove(self, task: Task, at_ms: int) -> None:
        """Mark a task removed and drop its triggers; its history stays."""
        self._count = None
        self._database.execute("DELETE FROM task_trigger WHERE task_number = ?", (task.number,))
        self._database.execute(
            "UPDATE task SET removed_at_ms = ?, enabled = 0 WHERE number = ?", (at_ms, task.number)
        )

    def orphaned(self, before_ms: int) -> bool:
        """Whether a row older than `before_ms` is cited by nothing."""
        return any(self._database.row(proof, (before_ms, 1)) for _table, _key, proof in _ORPHANS)

    def sweep(self, before_ms: int, limit: int) -> int:
        """Delete at most `limit` such rows of each kind; returns how many went."""
        return sum(
            self._database.execute(
                f"DELETE FROM {table} WHERE {key} IN ({proof})", (before_ms, limit)
            ).rowcount
            for table, key, proof in _ORPHANS
        )

    def cursors(self) -> Iterator[Cursor]:
        """Every trigger with its cursor."""
        statement = f"SELECT {_CURSOR_COLUMNS} FROM {_CURSOR_TABLES} ORDER BY task_trigger.number"
        for row in self._database.rows(statement):
            yield _cursor(row)

    def task_cursors(self, task_number: int) -> list[Cursor]:
        """The triggers of one task with their cursors."""
        statement = f"""
            SELECT {_CURSOR_COLUMNS} FROM {_CURSOR_TABLES}
            WHERE task.number = ? ORDER BY task_trigger.number
        """
        return [_cursor(row) for row in self._database.rows(statement, (task_number,))]

    def cursor(self, trigger_number: int) -> Cursor | None:
        """One trigger with its cursor."""
        statement = f"""
            SELECT {_CURSOR_COLUMNS} FROM {_CURSOR_TABLES} WHERE task_trigger.number = ?
        """
        row = self._database.row(statement, (trigger_number,))
        return None if row is None else _cursor(row)

    def move_cursor(self, move: CursorMove) -> None:
        """Compare-and-set a cursor; `Refused` (`stale`) if the trigger is gone or has moved."""
        changed = self._database.execute(
            """
            UPDATE cursor
            SET next_at_ms = ?, boot_id = ?, skipped = skipped + ?, parked = ?,
                last_scheduled_ms = coalesce(?, last_scheduled_ms)
            WHERE trigger_number = ? AND next_at_ms IS ?
            """,
            (
                move.next_at_ms,
                move.boot_id,
                move.skipped,
                move.parked,
                move.scheduled_ms,
                move.trigger_number,
                move.expected_ms,
            ),
        )
        if changed.rowcount != 1:
            raise Refused("stale", "The trigger has changed.", trigger=move.trigger_number)


def _task(row: Row) -> Task:
    given = dict(zip(Task._fields, row, strict=True))
    given["enabled"] = bool(given["enabled"])
    return Task(**given)


def _cursor(row: Row) -> Cursor:
    given = dict(zip(Cursor._fields, row, strict=True))
    given["enabled"] = bool(given["enabled"])
    return Cursor(**given)
