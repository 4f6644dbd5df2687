"""Methods about the tasks there are: `task.list`, `task.show`, `task.enable` and their like.

Owns the finding of a task by its name. What defines one is in `app/definitions.py`.
"""

from __future__ import annotations

from qinglong_edge.app import views
from qinglong_edge.core.errors import Refused
from qinglong_edge.core.limits import PAGE_MAX
from qinglong_edge.core.task import check_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qinglong_edge.app.params import Params
    from qinglong_edge.app.runtime import Runtime
    from qinglong_edge.app.views import Document
    from qinglong_edge.core.task import Task


def require(runtime: Runtime, name: str) -> Task:
    """The task of that name, or `Refused` (`task_unknown`)."""
    task = runtime.store.tasks.find(name)
    if task is None:
        raise Refused("task_unknown", "There is no task of that name.")
    return task


def revision_document(runtime: Runtime, task: Task) -> Document:
    """What `task add` and `task set` answer."""
    revision = runtime.store.tasks.revision(task.number, task.revision)
    cursors = runtime.store.tasks.task_cursors(task.number)
    return {
        "task": task.name,
        "revision": task.revision,
        "context_ref": revision.context_ref,
        "triggers": [views.trigger_document(runtime, cursor) for cursor in cursors],
    }


def rename(runtime: Runtime, params: Params) -> Document:
    """`task.rename`: the history stays with the task."""
    task = require(runtime, params.text("name"))
    name = check_name(params.text("new_name"))
    params.end()
    if runtime.store.tasks.find(name) is not None:
        raise Refused("task_exists", "There is a task of that name already.")
    with runtime.store.database.write():
        runtime.store.tasks.rename(task, name)
        runtime.record(params, name)
    return revision_document(runtime, task.replace(name=name))


def listing(runtime: Runtime, params: Params) -> Document:
    """`task.list`: by name; `next` continues after the last one given."""
    after = params.maybe_text("after") or ""
    limit = params.number("limit", lowest=1, highest=PAGE_MAX) or PAGE_MAX
    params.end()
    last = runtime.store.runs.last_runs()
    page = [task for task in runtime.store.tasks.all() if task.name > after]
    return {
        "tasks": [
            views.task_document(runtime, task, last.get(task.number)) for task in page[:limit]
        ],
        "next": page[limit - 1].name if len(page) > limit else None,
    }


def show(runtime: Runtime, params: Params) -> Document:
    """`task.show`."""
    task = require(runtime, params.text("name"))
    params.end()
    return views.definition_document(runtime, task)


def _set_enabled(runtime: Runtime, params: Params, *, enabled: bool) -> Document:
    task = require(runtime, params.text("name"))
    params.end()
    if task.enabled != enabled:
        if enabled:  # first: a crash in between leaves nothing due that was due meanwhile
            runtime.scheduler.enable(task.number)
        with runtime.store.database.write():
            runtime.store.tasks.set_enabled(task, enabled=enabled)
            runtime.record(params, task.name)
    return views.newest_document(runtime, task.replace(enabled=enabled))


def enable(runtime: Runtime, params: Params) -> Document:
    """`task.enable`: triggers admit again; what was due meanwhile is not made up for."""
    return _set_enabled(runtime, params, enabled=True)


def disable(runtime: Runtime, params: Params) -> Document:
    """`task.disable`: triggers admit nothing; running attempts go on."""
    return _set_enabled(runtime, params, enabled=False)


def remove(runtime: Runtime, params: Params) -> Document:
    """`task.remove`: refused while a run of the task is waiting or running; history stays."""
    task = require(runtime, params.text("name"))
    params.end()
    if runtime.coordinator.registry.of_task(task.number) or runtime.dispatcher.holds(task.number):
        raise Refused(
            "task_active", "The task has a run that is waiting or running; stop it first."
        )
    with runtime.store.database.write():
        runtime.store.tasks.remove(task, runtime.parts.clock.wall_ms())
        runtime.record(params, task.name)
    return {"task": task.name, "removed": True}
