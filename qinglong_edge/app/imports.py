"""Methods that take over many tasks and envs: `import.crontab`, `import.stage`, `import.commit`.

Owns the staging. Pages of tasks are checked as they come and kept in a file without a name; one
commit then writes them all, or none. A command that goes away leaves nothing behind: the next one's
first page drops what was staged.
"""

from __future__ import annotations

import binascii
import os

from qinglong_edge.app import envs
from qinglong_edge.app.definitions import DEFAULT_PATH, Wanted, prepare, publish, publish_all
from qinglong_edge.app.params import Params
from qinglong_edge.app.staging import Staged
from qinglong_edge.core.errors import EdgeError, Invalid, Refused
from qinglong_edge.core.limits import IMPORT_BYTES_MAX, IMPORT_PAGE_MAX
from qinglong_edge.core.qinglong import SOURCE_LABEL
from qinglong_edge.core.secret import ENV_SETTING
from qinglong_edge.system import users
from qinglong_edge.system.files import storage_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from qinglong_edge.app.runtime import Runtime
    from qinglong_edge.app.views import Document
    from qinglong_edge.core.crontab import Imported


def stage(runtime: Runtime, params: Params) -> Document:
    """`import.stage`: check a page of tasks and keep it; {token, outcomes}.

    A page may hold envs as `env.save` takes them; `arriving` names those of the whole import.
    An outcome is inserted, idempotent (an earlier import made it) or {code, message}. Nothing is
    kept with `dry_run`. Refused: `import_gone` if another import began meanwhile.
    """
    token, dry_run = params.maybe_text("token"), params.flag("dry_run") or False
    pages, sets = (params.documents(name) if params.has(name) else [] for name in ("tasks", "envs"))
    arriving = frozenset(params.texts("arriving") or ())
    params.end()
    if len(pages) > IMPORT_PAGE_MAX or len(sets) > IMPORT_PAGE_MAX:
        raise Invalid("page_too_large", "More tasks than one request may carry.")
    try:
        staged = _staged(runtime, token, dry_run=dry_run)
        for env in sets:
            envs.check(env)
            if staged is not None:
                staged.add("env", env)
        outcomes = [_check(runtime, params, each, staged, arriving) for each in pages]
    except OSError as error:
        drop(runtime)
        raise storage_error(error, "staged import") from None
    return {"token": None if staged is None else staged.token, "outcomes": outcomes}


def _staged(runtime: Runtime, token: str | None, *, dry_run: bool) -> Staged | None:
    if dry_run:
        return None
    if token is None:
        drop(runtime)
        token = binascii.hexlify(runtime.parts.random(8)).decode()
        runtime.staged = Staged(runtime.where.state, token)
    elif runtime.staged is None or runtime.staged.token != token:
        raise Refused("import_gone", "Another import began meanwhile; nothing was imported.")
    return runtime.staged


def drop(runtime: Runtime) -> None:
    """Forget what is staged."""
    if runtime.staged is not None:
        runtime.staged.close()
        runtime.staged = None


def _check(
    runtime: Runtime,
    params: Params,
    document: dict[str, object],
    staged: Staged | None,
    arriving: frozenset[str],
) -> object:
    asked, enabled = document.get("task"), document.get("enabled")
    if not isinstance(asked, dict) or type(enabled) is not bool:
        raise Invalid("param_invalid", "A staged task is not {task, enabled}.", param="tasks")
    try:
        given = Params({**asked, "replace": True}, params.peer)
        wanted = prepare(runtime, given, arriving=arriving)
        if wanted.existing is not None:
            if _there(runtime, wanted, enabled=enabled):
                return "idempotent"
            raise Refused("task_exists", "There is a task of that name already.")
    except EdgeError as error:
        return {"code": error.code, "message": error.message}
    if staged is not None:
        staged.add("task", asked, enabled=enabled)
    return "inserted"


def _there(runtime: Runtime, wanted: Wanted, *, enabled: bool) -> bool:
    """True if the task of that name is this one: made by an earlier import, or just the same."""
    tasks, task = runtime.store.tasks, wanted.existing
    if task is None:
        return False
    revision = tasks.revision(task.number, task.revision)
    if any(each.startswith(SOURCE_LABEL) for each in wanted.definition.labels):
        return bool(set(wanted.definition.labels) & set(revision.definition.labels))
    triggers = [each.identity for each in tasks.triggers(task.number)]
    return (
        task.enabled == enabled
        and revision.definition == wanted.definition
        and revision.context_ref == wanted.environment.context_ref
        and triggers == [each.identity for each in wanted.triggers]
    )


def commit(runtime: Runtime, params: Params) -> Document:
    """`import.commit`: everything staged in one transaction; {imported}, counting tasks."""
    token = params.text("token")
    params.end()
    staged = runtime.staged
    if staged is None or staged.token != token:
        raise Refused("import_gone", "Another import began meanwhile; nothing was imported.")

    def wanted() -> Iterator[tuple[Wanted, bool]]:
        there: set[str] = set()  # so that many tasks do not look for the same envs
        for kind, asked, enabled in staged.kept():
            if kind == "env":
                envs.apply(runtime, params, asked)
                continue
            bound = asked.get("env_sets")
            for name in bound if isinstance(bound, list) else []:
                if name not in there and runtime.store.setting(ENV_SETTING + name) is not None:
                    there.add(name)
            yield prepare(runtime, Params(asked, params.peer), arriving=there), enabled

    try:
        count = publish_all(runtime, wanted(), params)
    finally:
        drop(runtime)
    return {"imported": count}


def import_crontab(runtime: Runtime, params: Params) -> Document:
    """`import.crontab`: judged line by line, written in one commit; again it changes nothing."""
    from qinglong_edge.core import crontab

    try:
        data = binascii.a2b_base64(params.text("data"), strict_mode=True)
    except ValueError:
        raise Invalid("param_invalid", "A parameter is not base64.", param="data") from None
    if len(data) > IMPORT_BYTES_MAX:
        raise Invalid("crontab_too_large", "The crontab is larger than 1 MiB.", bytes=len(data))
    dialect = params.maybe_text("dialect") or "vixie"
    user = users.name(os.geteuid())  # as whom its tasks will run
    zone = params.maybe_text("zone") or runtime.zones.own()
    user_column, dry_run = params.flag("user_column") or False, params.flag("dry_run") or False
    params.end()
    plan = crontab.parse(
        data,
        dialect=dialect,
        user_column=user_column,
        user=user,
        zone=runtime.zones.open(zone).text,
    )
    imported: list[Document] = []
    refused = list(plan.refused)
    wanted: dict[str, Wanted] = {}
    for line in plan.tasks:
        there = line.name in wanted or runtime.store.tasks.find(line.name) is not None
        try:
            if not there:
                asked = _asked(line, user=user, dialect=dialect)
                wanted[line.name] = prepare(runtime, Params(asked, params.peer))
        except EdgeError as error:
            refused.append({"line": line.line, "code": error.code, "message": error.message})
            continue
        imported.append(
            {
                "line": line.line,
                "task": line.name,
                "kind": "boot" if line.boot else "cron",
                "expression": line.expression,
                "zone": None if line.boot else line.zone,
                "outcome": "idempotent" if there else "inserted",
            }
        )
    if not dry_run:
        publish(runtime, list(wanted.values()), params)
    warnings = list(plan.warnings)
    if imported:
        warnings.append(
            {
                "line": 0,
                "code": "still_in_crontab",
                "message": "The cron daemon still runs these lines; remove them there.",
            }
        )
    refused.sort(key=lambda each: int(str(each["line"])))
    return {"imported": imported, "refused": refused, "warnings": warnings, "dry_run": dry_run}


def _asked(line: Imported, *, user: str, dialect: str) -> dict[str, object]:
    """The parameters of `task.add` that a line stands for."""
    from qinglong_edge.core.crontab import DEFAULT_PATHS

    environment = {
        "HOME": users.home(),
        "LOGNAME": user,
        "USER": user,
        "PATH": DEFAULT_PATHS.get(dialect, DEFAULT_PATH),
        **dict(line.environment),
        "SHELL": line.shell,
    }
    return {
        "name": line.name,
        "argv": [line.shell, "-c", line.command],
        "environment": environment,
        "cwd": environment["HOME"],
        "zone": line.zone,
        "boot": line.boot,
        "cron": [] if line.boot else [line.expression],
    }
