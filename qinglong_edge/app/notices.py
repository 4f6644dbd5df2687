"""Channels as the owner sees them: `notify.*`; their keys are secrets that it never opens.

Owns the one commit in which a channel and its key appear or go together.
"""

from __future__ import annotations

from qinglong_edge.app.secrets import forget, newest
from qinglong_edge.core import channel as channels
from qinglong_edge.core import secret
from qinglong_edge.core.errors import Invalid, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qinglong_edge.app.params import Params
    from qinglong_edge.app.runtime import Runtime
    from qinglong_edge.app.views import Document


def listing(runtime: Runtime, params: Params) -> Document:
    """`notify.list`: every channel, and how its last message went, as far as the daemon knows."""
    params.end()
    last = {} if runtime.notifier is None else runtime.notifier.last
    found: list[Document] = []
    for name, text in list(runtime.store.settings(channels.SETTING)):
        document = channels.decode(name, text).document()
        tasks = [runtime.store.tasks.get(number) for number in document["tasks"]]
        document["tasks"] = [each.name for each in tasks if each is not None]
        found.append({"channel": name, **document, "last": last.get(name)})
    return {"channels": found}


def find(runtime: Runtime, params: Params) -> Document:
    """`notify.find`: a channel with the sealed rows of its key, for who changes or tests it."""
    name = params.text("name")
    params.end()
    text = runtime.store.setting(channels.SETTING + name)
    channel = None if text is None else channels.decode(name, text).document()
    return {"channel": channel, **newest(runtime, channels.SETTING + name)}


def save(runtime: Runtime, params: Params) -> Document:
    """`notify.save`: a channel and its sealed key; an existing one only with `replace`."""
    name, document = params.text("name"), params.document("channel")
    replace = params.flag("replace") or False
    tasks = [runtime.store.tasks.find(each) for each in params.texts("tasks") or ()]
    sealed = params.document("envelope") if params.has("envelope") else None
    expected = params.number("expected_version") or 0
    params.end()
    if None in tasks:
        raise Refused("task_unknown", "There is no task of that name.")
    numbers = [each.number for each in tasks if each is not None]
    channel = channels.from_document(name, {**document, "tasks": numbers})
    runtime.zones.open(channel.zone)
    envelope = None if sealed is None else secret.from_document(sealed)
    setting = channels.SETTING + name
    if envelope is not None and envelope.name != setting:
        raise Invalid("notify_invalid", "The sealed key is not that of the channel.")
    if runtime.store.setting(setting) is not None and not replace:
        raise Refused("channel_exists", "There is a channel of that name; --replace it.")
    with runtime.store.database.write():
        runtime.store.put_setting(setting, channels.encode(channel))
        if envelope is None:
            runtime.store.secrets.drop(setting, runtime.parts.clock.wall_ms())
        else:
            runtime.store.secrets.append(envelope, expected)
        runtime.record(params, name, version=None if envelope is None else envelope.version)
    return {"channel": name, "kind": channel.kind, "tasks": len(numbers)}


def remove(runtime: Runtime, params: Params) -> Document:
    """`notify.remove`: a channel with its key."""
    name = params.text("name")
    params.end()
    setting = channels.SETTING + name
    if runtime.store.setting(setting) is None:
        raise unknown()
    forget(runtime, params, name, setting=setting, sealed=setting)
    return {"channel": name, "removed": True}


def unknown() -> Refused:
    """There is no such channel."""
    return Refused("channel_unknown", "There is no channel of that name.")
