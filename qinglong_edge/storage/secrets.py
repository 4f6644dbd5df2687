"""Secrets as rows: sealed versions, and which key each is sealed under (ADR-0024 section 3).

Owns the only SQL of them. A version appears by compare-and-set and is never changed; a mutation
that is repeated is recognised by its id. Re-encryption adds a copy of a version under another key;
a copy goes only once every version has one under another key that is known (`retire`), and the
retired key then seals nothing more. `remove` deletes every copy and keeps the name's number, so
that a version is never given twice. A foreign project is refused before any row is read.
"""

from __future__ import annotations

from qinglong_edge.core import recipe as recipes
from qinglong_edge.core import secret
from qinglong_edge.core.errors import Corrupt, EdgeError, Invalid, Refused
from qinglong_edge.core.limits import BINDINGS_BYTES_MAX, PAGE_MAX
from qinglong_edge.core.secret import Envelope
from qinglong_edge.storage.connection import IDEMPOTENT, INSERTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from qinglong_edge.core.secret import SecretRef
    from qinglong_edge.storage.connection import Database, Row

_OWN = Envelope._fields[2:]  # the project and the name are the secret's
_COLUMNS = f"project, name, {', '.join(f'envelope.{column}' for column in _OWN)}"
_TABLES = "secret JOIN secret_envelope AS envelope ON envelope.secret_number = secret.number"
_INSERT = f"""
INSERT INTO secret_envelope (secret_number, {", ".join(_OWN)})
SELECT number, {", ".join("?" * len(_OWN))} FROM secret
WHERE project = ? AND name = ? AND NOT EXISTS (SELECT 1 FROM setting WHERE name = ?)
"""
_RETIRED = "retired_key:"


class SecretStore:
    """The repository of sealed secrets; every write method runs inside the caller's block.

    Where copies are given, they are of one version, the newest copy first.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def append(self, envelope: Envelope, expected_version: int) -> str:
        """A new version behind `expected_version` (0: none yet): inserted, or idempotent.

        Idempotent means that the mutation is known; whether it meant the same value, only who holds
        the key can tell. Refused: `secret_mutation_conflict` (known for another version),
        `secret_version_conflict`, `keyring_key_retired`. Unavailable: a foreign project.
        """
        if envelope.project != secret.PROJECT:
            raise secret.unavailable("foreign_project")
        known = self.find_mutation(envelope.name, envelope.mutation_id)
        version = expected_version + 1
        if known and known[0].version == envelope.version == version:
            return IDEMPOTENT
        if known:
            raise Refused("secret_mutation_conflict", "The mutation made another version.")
        if envelope.version != version or not self._advance(envelope):
            raise Refused(
                "secret_version_conflict",
                "The secret has another newest version.",
                version=self.version(envelope.name),
            )
        self._insert(envelope)
        return INSERTED

    def _advance(self, envelope: Envelope) -> bool:
        """The compare-and-set; the number of the expected version is one below the new one."""
        statement = """
            UPDATE secret SET version = ?, removed_at_ms = NULL
            WHERE project = ? AND name = ? AND version = ? - 1
        """
        values = [envelope.version, envelope.project, envelope.name, envelope.version]
        if envelope.version == 1:
            statement = """
                INSERT INTO secret (version, project, name) VALUES (?, ?, ?)
                ON CONFLICT (project, name) DO NOTHING
            """
            values.pop()
        return self._database.execute(statement, values).rowcount == 1

    def _insert(self, envelope: Envelope) -> None:
        values = [getattr(envelope, column) for column in _OWN]
        which = (envelope.project, envelope.name, _RETIRED + envelope.key_id)
        if self._database.execute(_INSERT, (*values, *which)).rowcount != 1:
            raise Refused("keyring_key_retired", "The key was retired; it seals nothing more.")

    def add_copy(self, envelope: Envelope) -> str:
        """The same version under another key: inserted, or idempotent if that key has one.

        Refused: `secret_unknown` (no such version of that mutation), `keyring_key_retired`.
        """
        copies = self._copies(
            "project = ? AND name = ? AND envelope.version = ? AND mutation_id = ?",
            (envelope.project, envelope.name, envelope.version, envelope.mutation_id),
        )
        if not copies:
            raise Refused("secret_unknown", "There is no such version of a secret.")
        if any(copy.key_id == envelope.key_id for copy in copies):
            return IDEMPOTENT
        self._insert(envelope)
        return INSERTED

    def resolve(self, refs: Sequence[SecretRef]) -> tuple[tuple[Envelope, ...] | None, ...]:
        """The copies of what each reference means now, each in its place, None where nothing is.

        Unavailable `secret_unavailable`: one of another project, or more than a task may be given.
        """
        if any(ref.project != secret.PROJECT for ref in refs):
            raise secret.unavailable("foreign_project")
        found: list[tuple[Envelope, ...] | None] = []
        size = 0
        for ref in refs:
            copies = self._copies(
                "project = ? AND name = ? AND envelope.version = coalesce(?, secret.version)",
                (ref.project, ref.name, ref.version),
            )
            size += len(copies[0].ciphertext) if copies else 0
            if size > BINDINGS_BYTES_MAX:
                raise secret.unavailable("too_large")
            found.append(copies or None)
        return tuple(found)

    def size(self, ref: SecretRef) -> int:
        """The bytes of the value that a reference means now; 0 where nothing is."""
        row = self._database.row(
            f"""
            SELECT length(ciphertext) FROM {_TABLES} AND project = ? AND name = ?
              AND envelope.version = coalesce(?, secret.version)
            LIMIT 1
            """,
            (ref.project, ref.name, ref.version),
        )
        return 0 if row is None else int(row[0])

    def largest(self) -> int:
        """The bytes of the largest value that is kept, of any version; 0 without one."""
        row = self._database.row("SELECT coalesce(max(length(ciphertext)), 0) FROM secret_envelope")
        return 0 if row is None else int(row[0])

    def find_mutation(self, name: str, mutation_id: str) -> tuple[Envelope, ...]:
        """The copies of the version that a mutation made; empty if it made none."""
        return self._copies(
            "project = ? AND name = ? AND mutation_id = ?", (secret.PROJECT, name, mutation_id)
        )

    def version(self, name: str) -> int | None:
        """The newest version that the name ever had, a removed one too; None if it had none."""
        row = self._database.row(
            "SELECT version FROM secret WHERE project = ? AND name = ?", (secret.PROJECT, name)
        )
        return None if row is None else int(row[0])

    def page(
        self, after: str | None, limit: int, *, missing_key: str | None
    ) -> tuple[list[Envelope], str | None]:
        """The newest copy of each version that has none under `missing_key`, and where to go on.

        A page ends early once it holds 256 KiB, so that it fits into an answer. Invalid
        `cursor_invalid`.
        """
        if after is not None and not (after.isdecimal() and len(after) <= 18):
            raise Invalid("cursor_invalid", "A page goes on from where one ended.")
        statement = f"""
            SELECT {_COLUMNS}, envelope.number FROM {_TABLES}
            WHERE envelope.number > ? AND NOT EXISTS (
              SELECT 1 FROM secret_envelope AS other
              WHERE other.secret_number = secret.number AND other.version = envelope.version
                AND (other.key_id = ? OR other.number > envelope.number))
            ORDER BY envelope.number LIMIT ?
        """
        limit = max(1, min(limit, PAGE_MAX))
        found: list[Envelope] = []
        size, place = 0, after
        for *row, number in self._database.rows(
            statement, (int(after or 0), missing_key, limit + 1)
        ):
            if len(found) == limit or size >= BINDINGS_BYTES_MAX:
                return found, place
            found.append(_envelope(tuple(row)))
            size, place = size + len(found[-1].ciphertext), str(number)
        return found, None

    def usage(self) -> dict[str, int]:
        """Key id -> how many envelopes are sealed under it."""
        statement = "SELECT key_id, count(*) FROM secret_envelope GROUP BY key_id ORDER BY key_id"
        return dict(self._database.rows(statement))

    def retire(self, key_id: str, known_keys: Sequence[str]) -> int:
        """Delete every copy under a key, which seals nothing from now on; returns how many went.

        Refused `keyring_key_needed` while a version has no copy under another of `known_keys`.
        """
        others = [known for known in known_keys if known != key_id]
        needing = self._database.row(
            f"""
            SELECT count(*) FROM secret_envelope AS old WHERE key_id = ? AND NOT EXISTS (
              SELECT 1 FROM secret_envelope AS other
              WHERE other.secret_number = old.secret_number AND other.version = old.version
                AND other.key_id IN ({", ".join("?" * len(others))}))
            """,
            (key_id, *others),
        )
        if needing is not None and needing[0]:
            raise Refused(
                "keyring_key_needed", "Secrets are sealed under this key only.", versions=needing[0]
            )
        self._database.execute(
            "INSERT INTO setting (name, value) VALUES (?, '') ON CONFLICT (name) DO NOTHING",
            (_RETIRED + key_id,),
        )
        gone = self._database.execute("DELETE FROM secret_envelope WHERE key_id = ?", (key_id,))
        return gone.rowcount

    def remove(self, name: str, at_ms: int) -> None:
        """Delete a secret with every version.

        Refused: `secret_unknown`, `secret_bound` (a task's newest revision binds it).
        """
        if name in self.bound():
            raise Refused("secret_bound", "A task binds the secret.")
        if not self.drop(name, at_ms):
            raise Refused("secret_unknown", "There is no such secret.")

    def drop(self, name: str, at_ms: int) -> bool:
        """Delete a secret with every version, bound or not; False if there is none."""
        marked = self._database.execute(
            """
            UPDATE secret SET removed_at_ms = ?
            WHERE project = ? AND name = ? AND removed_at_ms IS NULL
            """,
            (at_ms, secret.PROJECT, name),
        )
        if marked.rowcount != 1:
            return False
        self._database.execute(
            """
            DELETE FROM secret_envelope WHERE secret_number =
              (SELECT number FROM secret WHERE project = ? AND name = ?)
            """,
            (secret.PROJECT, name),
        )
        return True

    def listing(self) -> list[dict[str, object]]:
        """Every secret that is there, by name: newest version, its newest key, who binds it."""
        bound = self.bound()
        rows = self._database.rows(
            f"""
            SELECT name, secret.version, key_id, created_at_ms, max(envelope.number)
            FROM {_TABLES} AND envelope.version = secret.version
            GROUP BY secret.number ORDER BY name
            """
        )
        return [
            {
                "secret": name,
                "version": version,
                "key": key,
                "created_at_ms": created_at_ms,
                "bound_by": bound.get(name, []),
            }
            for name, version, key, created_at_ms, _number in rows
        ]

    def bound(self) -> dict[str, list[str]]:
        """Secret -> the tasks whose newest revision binds it; a damaged recipe binds nothing."""
        bound: dict[str, list[str]] = {}
        rows = self._database.rows(
            """
            SELECT task.name, context_ref, body FROM task
            JOIN revision ON task_number = task.number AND revision.revision = task.revision
            JOIN recipe ON recipe.number = recipe_number
            WHERE removed_at_ms IS NULL AND instr(body, 'qlsecret:') ORDER BY task.name
            """
        )
        for task, context_ref, body in rows:
            try:
                refs = recipes.decode(str(body).encode("utf-8"), context_ref).secret_refs
                names = {secret.parse(ref).name for ref in refs}
            except (Corrupt, Invalid):
                continue
            for name in names:
                bound.setdefault(name, []).append(task)
        return bound

    def _copies(self, condition: str, values: Sequence[object]) -> tuple[Envelope, ...]:
        statement = (
            f"SELECT {_COLUMNS} FROM {_TABLES} WHERE {condition} ORDER BY envelope.number DESC"
        )
        return tuple(map(_envelope, self._database.rows(statement, values)))


def _envelope(row: Row) -> Envelope:
    try:
        return Envelope(**dict(zip(Envelope._fields, row, strict=True)))
    except EdgeError:
        raise Corrupt("row_corrupt", "A stored secret is damaged.") from None
