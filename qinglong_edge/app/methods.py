"""The table of methods: everything any front end can do.

Owns the names. There is no second way to the state.
"""

from __future__ import annotations

from qinglong_edge.app import runs, secrets, system, tasks
from qinglong_edge.app.params import Params
from qinglong_edge.core.errors import EdgeError, Refused
from qinglong_edge.system.files import storage_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from qinglong_edge.app.rpc import Peer
    from qinglong_edge.app.runtime import Runtime

    Method = Callable[[Runtime, Params], object]


def _late(room: str, name: str) -> Method:
    """A method that the daemon loads once somebody asks."""

    def method(runtime: Runtime, params: Params) -> object:
        from qinglong_edge.app import envs, imports, notices

        module = {"import": imports, "env": envs, "notify": notices}[room]
        return getattr(module, name)(runtime, params)

    return method


_EDITED = {"list": "listing", "find": "find", "save": "save", "remove": "remove"}
METHODS: Mapping[str, Method] = {
    "task.add": tasks.add,
    "task.set": tasks.change,
    "task.rename": tasks.rename,
    "task.list": tasks.listing,
    "task.show": tasks.show,
    "task.enable": tasks.enable,
    "task.disable": tasks.disable,
    "task.remove": tasks.remove,
    "run.start": runs.start,
    "run.wait": runs.wait,
    "run.stop": runs.stop,
    "run.settle": runs.settle,
    "run.show": runs.show,
    "runs.list": runs.listing,
    "log.read": runs.read_log,
    "status": system.status,
    "scheduler.pause": system.pause,
    "scheduler.resume": system.resume,
    "clock.trust": system.trust_clock,
    "cron.next": system.cron_next,
    "import.crontab": system.import_crontab,
    "import.stage": _late("import", "stage"),
    "import.commit": _late("import", "commit"),
    **{f"{room}.{n}": _late(room, _EDITED[n]) for room in ("env", "notify") for n in _EDITED},
    "secret.append": secrets.append,
    "secret.find": secrets.find,
    "secret.page": secrets.page,
    "secret.copy": secrets.copy,
    "secret.list": secrets.listing,
    "secret.remove": secrets.remove,
    "keyring.usage": secrets.usage,
    "keyring.intent": secrets.intent,
    "keyring.retire": secrets.retire,
    "audit.list": secrets.audit,
    "backup.write": system.write_backup,
}

# What changes tasks, secrets or keys: done or refused, it leaves an audit event.
AUDITED = frozenset(
    {
        *("task.add", "task.set", "task.rename", "task.enable", "task.disable", "task.remove"),
        *(
            "import.crontab",
            "import.commit",
            "run.settle",
            "secret.append",
            "secret.copy",
            "secret.remove",
        ),
        *("keyring.intent", "keyring.retire", "env.save", "env.remove"),
        *("notify.save", "notify.remove"),
    }
)
LATER = frozenset({"run.start", "run.wait", "run.stop"})  # may keep a client waiting


def call(runtime: Runtime, name: str, params: Mapping[str, object], peer: Peer) -> object:
    """Do one method; its result, or a `Pending` that will have it."""
    method = METHODS.get(name)
    if method is None:
        raise Refused("method_unknown", "There is no such method.")
    taken = Params(params, peer, name)
    try:
        return _done(method, runtime, taken)
    except EdgeError as error:
        if name in AUDITED:
            runtime.record_refusal(taken, params.get("name"), error.code)
        raise


def _done(method: Method, runtime: Runtime, taken: Params) -> object:
    """Whatever the machine refuses meanwhile (a descriptor, a late import, a read) passes."""
    try:
        return method(runtime, taken)
    except OSError as error:
        raise storage_error(error, "state") from None
