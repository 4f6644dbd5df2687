"""Methods about the runtime itself: `status`, pause, clock, cron preview, backup.

Owns the answers to "how is it, and what will happen".
"""

from __future__ import annotations

import os

from qinglong_edge.app import preview
from qinglong_edge.app.runtime import PAUSED_SETTING
from qinglong_edge.core.commit import Commit
from qinglong_edge.core.errors import Invalid
from qinglong_edge.execution.trust import RESET, STEADY
from qinglong_edge.system.files import storage_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qinglong_edge.app.params import Params
    from qinglong_edge.app.runtime import Runtime
    from qinglong_edge.app.views import Document


def status(runtime: Runtime, params: Params) -> Document:
    """`status`: owner, counts, what is next, clock, storage, what is not well."""
    params.end()
    clock, trust = runtime.parts.clock, runtime.trust
    due = runtime.scheduler.next_due() if runtime.daemon else None
    upcoming = None
    if due is not None:
        cursor = runtime.store.tasks.cursor(due[1])
        task = None if cursor is None else runtime.store.tasks.get(cursor.task_number)
        upcoming = {"at_ms": due[0], "task": None if task is None else task.name}
    return {
        "owner": "daemon" if runtime.daemon else "command",
        "pid": os.getpid() if runtime.daemon else None,
        "profile": runtime.profile.name,
        "tasks": runtime.store.tasks.count(),
        "active": [
            {"run": active.run.id, "number": active.run.number, "hold": active.hold}
            for active in runtime.coordinator.registry
        ],
        "waiting": runtime.dispatcher.waiting,
        "paused": runtime.scheduler.paused,
        "next": upcoming,
        "clock": clock_document(runtime),
        "storage": {
            "mode": runtime.store.database.mode,
            "filesystem": runtime.parts.files.filesystem(runtime.where.state),
            "free_bytes": runtime.parts.files.space(runtime.where.state).bytes,
        },
        "rss_bytes": runtime.parts.processes.resident_bytes(),
        "uptime_ms": clock.boot_ms() - runtime.started_boot_ms,
        "counters": {"wakes": runtime.loop.wakes, "commits": runtime.store.database.commits},
        "degraded": runtime.degraded(),
        "clock_trusted": trust.trusted,
    }


def clock_document(runtime: Runtime) -> Document:
    """The clock as the scheduler sees it."""
    return {
        "trusted": runtime.trust.trusted,
        "reason": runtime.trust.reason,
        "wall_ms": runtime.parts.clock.wall_ms(),
    }


def _pause(runtime: Runtime, params: Params, *, paused: bool) -> Document:
    params.end()
    if runtime.scheduler.paused != paused:
        with runtime.store.database.write():
            runtime.store.put_setting(PAUSED_SETTING, "true" if paused else "false")
        runtime.scheduler.pause(paused=paused)
    return {"paused": paused}


def pause(runtime: Runtime, params: Params) -> Document:
    """`scheduler.pause`: no trigger admits anything until `resume`; survives restarts."""
    return _pause(runtime, params, paused=True)


def resume(runtime: Runtime, params: Params) -> Document:
    """`scheduler.resume`: what was due meanwhile is a misfire like any other."""
    return _pause(runtime, params, paused=False)


def trust_clock(runtime: Runtime, params: Params) -> Document:
    """`clock.trust`: the operator's word that the wall clock is right."""
    params.end()
    change = runtime.trust.believe()
    if change == RESET:
        runtime.scheduler.recompute()
    elif change != STEADY and runtime.daemon:
        runtime.scheduler.load()
    if change != STEADY:
        now_ms = runtime.parts.clock.wall_ms()
        runtime.coordinator.save(Commit(at_ms=now_ms, actor=params.peer.actor))
    if runtime.daemon:
        runtime.scheduler.look()
    return {"clock": clock_document(runtime)}


def cron_next(runtime: Runtime, params: Params) -> Document:
    """`cron.next`: the parser's own answer."""
    text, zone = params.text("expression"), params.maybe_text("zone")
    after_ms, count = params.number("after_ms"), params.number("count")
    params.end()
    if zone is None:
        zone = runtime.zones.own()
    return preview.cron_next(
        text, zone=zone, after_ms=after_ms, count=5 if count is None else count
    )


def write_backup(runtime: Runtime, params: Params) -> Document:
    """`backup.write`: a new private file with all of the database; the caller makes it durable."""
    path = params.text("file")
    params.end()
    if not os.path.isabs(path) or "\0" in path:
        raise Invalid("path_invalid", "A backup's path is not absolute.")
    try:
        runtime.store.database.copy_to(path)
    except OSError as error:
        raise storage_error(error, "backup") from None
    return {"file": path}
