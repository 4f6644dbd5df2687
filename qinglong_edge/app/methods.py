"""The table of methods: everything any front end can do.

Owns the names. There is no second way to the state.
"""

from __future__ import annotations

from qinglong_edge.app import runs, system, tasks
from qinglong_edge.app.params import Params
from qinglong_edge.core.errors import EdgeError, Refused
from qinglong_edge.system.files import storage_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from qinglong_edge.app.rpc import Peer
    from qinglong_edge.app.runtime import Runtime

    Method = Callable[[Runtime, Params], object]


def _loaded(room: str) -> ModuleType:
    """The module behind a room's late methods, and no other: some bring much with them."""
    if room == "task":
        from qinglong_edge.app import definitions

        return definitions
    if room == "secret":
        from qinglong_edge.app import secrets

        return secrets
    if room == "env":
        from qinglong_edge.app import envs

        return envs
    if room == "notify":
        from qinglong_edge.app import notices

        return notices
    from qinglong_edge.app import imports

    return imports


def _late(room: str, name: str) -> Method:
    """A method that the daemon loads once somebody asks."""

    def method(runtime: Runtime, params: Params) -> object:
        found: Method = getattr(_loaded(room), name)
        return found(runtime, params)

    return method


_EDITED = {"list": "listing", "find": "find", "save": "save", "remove": "remove"}
METHODS: Mapping[str, Method] = {
    "task.add": _late("task", "add"),
    "task.set": _late("task", "change"),
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
    "import.crontab": _late("import", "import_crontab"),
    "import.stage": _late("import", "stage"),
    "import.commit": _late("import", "commit"),
    **{f"{room}.{n}": _late(room, _EDITED[n]) for room in ("env", "notify") for n in _EDITED},
    "secret.append": _late("secret", "append"),
    "secret.find": _late("secret", "find"),
    "secret.page": _late("secret", "page"),
    "secret.copy": _late("secret", "copy"),
    "secret.list": _late("secret", "listing"),
    "secret.remove": _late("secret", "remove"),
    "keyring.usage": _late("secret", "usage"),
    "keyring.intent": _late("secret", "intent"),
    "keyring.retire": _late("secret", "retire"),
    "audit.list": _late("secret", "audit"),
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
