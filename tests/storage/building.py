"""A state to test with: its layout, a task, runs that are told by the one table of transitions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from qinglong_edge.core.commit import AttemptKey, Commit
from qinglong_edge.core.recipe import Recipe, from_bindings, public
from qinglong_edge.core.run import (
    CLAIMED,
    DISPATCHING,
    ENDED,
    FAILED,
    QUEUED,
    RUNNING,
    STARTING,
    SUCCEEDED,
    Attempt,
    Change,
    Run,
    Story,
)
from qinglong_edge.core.task import Definition, Task, Trigger
from qinglong_edge.storage import migrations, schema, store
from qinglong_edge.storage.connection import Layout
from qinglong_edge.storage.store import Store

LAYOUT = Layout(page_bytes=512, cache_kib=256, wal_bytes=1_048_576)
DEFINITION = Definition(argv=("/bin/true",))
TOKEN_HASH = "ab" * 32
HANDLE = "ql3lp1.handle"


def identity(number: int) -> str:
    return f"019f7200-0000-7000-8000-{number:012x}"


def key(number: int, attempt: int = 1) -> AttemptKey:
    return AttemptKey(run_number=number, attempt=attempt)


def environment(**values: str) -> Recipe:
    return from_bindings(public(name, value) for name, value in values.items())


def opened(folder: Path) -> Store:
    return Store(str(folder), layout=LAYOUT, at_ms=1)


@contextmanager
def state(folder: Path) -> Iterator[Store]:
    """A new, open state in `folder`."""
    store.create(str(folder), profile="edge", layout=LAYOUT, at_ms=1)
    made = opened(folder)
    try:
        yield made
    finally:
        made.close()


def add_task(
    target: Store,
    name: str = "one",
    triggers: tuple[Trigger, ...] = (),
    *,
    boot_id: str = "boot-1",
    recipe: Recipe | None = None,
) -> Task:
    with target.database.write():
        head = target.tasks.insert(name, 1)
        return append(target, head, triggers, boot_id=boot_id, recipe=recipe)


def append(
    target: Store,
    head: Task,
    triggers: tuple[Trigger, ...] = (),
    *,
    definition: Definition = DEFINITION,
    boot_id: str = "boot-1",
    recipe: Recipe | None = None,
) -> Task:
    return target.tasks.append(
        head,
        definition,
        triggers,
        environment(PATH="/bin") if recipe is None else recipe,
        at_ms=1,
        boot_id=boot_id,
    )


def queued(task: Task, number: int, *, at_ms: int = 10) -> Story:
    """A new run in the line, with its claim."""
    run = Run(
        number=number,
        id=identity(number),
        task_number=task.number,
        revision=task.revision,
        status=QUEUED,
        version=0,
        trigger_kind="manual",
        recipe_number=1,
        created_at_ms=at_ms,
    )
    claim = Attempt(
        run_number=number,
        attempt=1,
        id=identity(1000 + number),
        status=CLAIMED,
        created_at_ms=at_ms,
    )
    story = Story(run, claim, stored=False)
    story.note("run.created")
    story.note("run.queued")
    return story


def running(task: Task, number: int, *, at_ms: int = 10) -> Story:
    """A new run whose process is there."""
    story = queued(task, number, at_ms=at_ms)
    story.move_run(DISPATCHING)
    story.move_attempt(STARTING, {}, token_hash=TOKEN_HASH)
    story.move_attempt(RUNNING, {"pid": 7}, handle=HANDLE, pid=7, started_at_ms=at_ms)
    story.move_run(RUNNING, started_at_ms=at_ms)
    return story


def ended(
    task: Task, number: int, status: str = SUCCEEDED, *, at_ms: int = 10, finished_ms: int = 20
) -> Story:
    """A new run that has ended."""
    story = running(task, number, at_ms=at_ms)
    code = "EXECUTION_FAILED" if status == FAILED else None
    story.move_attempt(
        status, {}, callback_sequence=1, finished_at_ms=finished_ms, evidence="receipt"
    )
    story.move_run(status, finished_at_ms=finished_ms, error_code=code)
    return story


def put(target: Store, *stories: Story, at_ms: int = 10, journal: bool = False) -> None:
    """Commit runs, each with its journal row if it is asked for."""
    changes = tuple(story.change() for story in stories)
    register = tuple(key(each.run.number) for each in changes) if journal else ()
    target.commit(Commit(at_ms=at_ms, actor="test", changes=changes, register=register))


def end(target: Store, number: int, status: str = SUCCEEDED, *, at_ms: int = 20) -> Change:
    """The change that ends a stored running run."""
    run, attempt = target.runs.get(number), target.runs.attempt(key(number))
    assert run is not None
    assert attempt is not None
    story = Story(run, attempt, stored=True)
    story.move_attempt(
        status, {}, callback_sequence=1, finished_at_ms=at_ms, exit_code=0, evidence="receipt"
    )
    story.move_run(status, finished_at_ms=at_ms)
    return story.change()


def fields(status: str) -> dict[str, int | None]:
    """The times that a run of this status has."""
    return {
        "finished_at_ms": 20 if status in ENDED else None,
        "retry_at_ms": 30 if status == "retry_wait" else None,
    }


def program_knows(patch: pytest.MonkeyPatch, *scripts: tuple[int, str, str]) -> None:
    """Let the program know these migrations and no others."""
    sums = {number: migrations.checksum(script) for number, _name, script in scripts}
    patch.setattr(schema, "MIGRATIONS", scripts)
    patch.setattr(migrations, "CHECKSUMS", sums)
    patch.setattr(migrations, "NEWEST", max(sums))
