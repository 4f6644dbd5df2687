"""What a contract suite asks of a store: connections to one state, and a way to damage it.

A suite takes a fixture `connect`, which opens a further connection to the same state each time. It
knows no SQL, so that another store runs it unchanged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from qinglong_edge.core.recipe import Recipe
from qinglong_edge.core.secret import Envelope, SecretRef
from qinglong_edge.core.task import Definition, Revision, Task, Trigger

CONNECTIONS = 12
T = TypeVar("T")


class Definitions(Protocol):
    """Recipes, and the revisions that pin them."""

    def insert_recipe(self, recipe: Recipe, at_ms: int) -> tuple[int, str]: ...
    def recipe(self, number: int) -> Recipe: ...
    def insert(self, name: str, at_ms: int) -> Task: ...
    def find(self, name: str) -> Task | None: ...
    def publish(
        self,
        task: Task,
        definition: Definition,
        triggers: tuple[Trigger, ...],
        recipe: Recipe,
        *,
        at_ms: int,
        boot_id: str | None,
    ) -> tuple[Task, str]: ...
    def revision(self, task_number: int, revision: int) -> Revision: ...


class Secrets(Protocol):
    """Sealed secrets."""

    def append(self, envelope: Envelope, expected_version: int) -> str: ...
    def add_copy(self, envelope: Envelope) -> str: ...
    def resolve(self, refs: Sequence[SecretRef]) -> tuple[tuple[Envelope, ...] | None, ...]: ...
    def find_mutation(self, name: str, mutation_id: str) -> tuple[Envelope, ...]: ...
    def version(self, name: str) -> int | None: ...
    def page(
        self, after: str | None, limit: int, *, missing_key: str | None
    ) -> tuple[list[Envelope], str | None]: ...
    def usage(self) -> dict[str, int]: ...
    def retire(self, key_id: str, known_keys: Sequence[str]) -> int: ...
    def remove(self, name: str, at_ms: int) -> None: ...


class Subject(Protocol):
    """One connection."""

    @property
    def definitions(self) -> Definitions: ...
    @property
    def secrets(self) -> Secrets: ...
    def write(self) -> AbstractContextManager[object]: ...
    def count(self, kind: str) -> int:
        """How many records of a kind there are: recipe, revision, task or envelope."""

    def alter(self, field: str, change: Callable[[Any], Any]) -> None:
        """Change one field of every record behind the store's back: `recipe.digest` and so on."""

    def close(self) -> None: ...


Connect = Callable[[], Subject]


def at_once(connect: Connect, deed: Callable[[Subject, int], T]) -> list[T]:
    """What twelve connections come to, each in a thread of its own, all beginning together."""
    gate = threading.Barrier(CONNECTIONS)
    answers: list[T] = []

    def live(number: int) -> None:
        subject = connect()
        try:
            gate.wait(30)
            answers.append(deed(subject, number))
        finally:
            subject.close()

    threads = [threading.Thread(target=live, args=(number,)) for number in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == CONNECTIONS
    return answers


def flipped(value: Any, place: int = 0) -> Any:
    """The value with one bit of one byte changed; doing it twice changes nothing."""
    if isinstance(value, int):
        return value ^ 1
    data = bytearray(value if isinstance(value, bytes) else value.encode("utf-8"))
    data[place % len(data)] ^= 1
    return bytes(data) if isinstance(value, bytes) else data.decode("utf-8", "replace")


def damage(subject: Subject, field: str, place: int = 0) -> None:
    """Flip one bit of a field; once more repairs it."""
    subject.alter(field, lambda value: flipped(value, place))
