"""Envs as the owner sees them: `env.*`, ordered items whose values may be sealed.

Owns the one commit in which an order and its sealed values change together. The owner never sees a
sealed value: the command that asks opens, changes and seals it.
"""

from __future__ import annotations

from qinglong_edge.app.params import Params
from qinglong_edge.app.secrets import forget, newest
from qinglong_edge.core import envset, secret
from qinglong_edge.core.errors import Invalid, Refused
from qinglong_edge.storage.connection import IDEMPOTENT, INSERTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qinglong_edge.app.runtime import Runtime
    from qinglong_edge.app.views import Document
    from qinglong_edge.core.envset import EnvSet

_PARTS = ("set", "envelope")
_PAGE_BYTES = 524_288  # of one answer, well below what a client takes


def stored(runtime: Runtime, name: str) -> EnvSet | None:
    """The set of that name; Corrupt `env_corrupt`."""
    text = runtime.store.setting(envset.SETTING + name)
    return None if text is None else envset.decode(name, text)


def listing(runtime: Runtime, params: Params) -> Document:
    """`env.list`: by name, with public values and the tasks that bind each; never a sealed one."""
    after = params.maybe_text("after") or ""
    params.end()
    bound = runtime.store.secrets.bound()
    envs: list[Document] = []
    size = 0
    for name, text in list(runtime.store.settings(envset.SETTING, after)):
        if size > _PAGE_BYTES:
            return {"envs": envs, "next": envs[-1]["env"]}
        size += len(text)
        envs.append({**_shown(envset.decode(name, text)), "bound_by": bound.get(name, [])})
    return {"envs": envs, "next": None}


def _shown(env: EnvSet) -> Document:
    ref = secret.make(env.name).text
    items: list[Document] = []
    for each in env.items:
        content = {"secret_ref": ref} if each.value is None else {"value": each.value}
        kind = "secret" if each.value is None else "public"
        more = {"enabled": each.enabled, "remarks": each.remarks, "labels": list(each.labels)}
        items.append({"id": each.id, "kind": kind, **content, **more})
    return {"env": env.name, "items": items}


def find(runtime: Runtime, params: Params) -> Document:
    """`env.find`: a set as it is stored, and the sealed rows of its values, for who changes it."""
    name = params.text("name")
    params.end()
    env, found = stored(runtime, name), newest(runtime, name)
    if env is None and found["envelopes"]:
        raise _exists()
    return {"set": None if env is None else env.document(), **found}


def save(runtime: Runtime, params: Params) -> Document:
    """`env.save`: the set as it is from now on, with its newly sealed values if those changed.

    Refused: `env_conflict` (another command was faster), `secret_exists`, as `secret.append`.
    """
    document: Document = {"name": params.text("name")}
    document.update((each, params.document(each)) for each in _PARTS if params.has(each))
    document["expected_version"] = params.number("expected_version")
    params.end()
    with runtime.store.database.write():
        return apply(runtime, params, document)


def apply(runtime: Runtime, params: Params, document: Document) -> Document:
    """The same inside the caller's transaction."""
    env, envelope = check(document)
    before, secrets = stored(runtime, env.name), runtime.store.secrets
    if before == env and (
        envelope is None or secrets.find_mutation(env.name, envelope.mutation_id)
    ):
        return _told(env, IDEMPOTENT)
    if (0 if before is None else before.revision) + 1 != env.revision:
        raise Refused("env_conflict", "Another command changed the env; try again.")
    if before is None and secrets.resolve((secret.make(env.name),)) != (None,):
        raise _exists()
    if envelope is not None:
        expected = document.get("expected_version") or 0
        secrets.append(envelope, expected if type(expected) is int else 0)
    elif not env.sealed:
        secrets.drop(env.name, runtime.parts.clock.wall_ms())
    elif before is None or not env.sealed <= before.sealed:
        raise Invalid("env_values_missing", "A sealed value was not given.")
    runtime.store.put_setting(envset.SETTING + env.name, envset.encode(env))
    version = None if envelope is None else envelope.version
    runtime.record(params, env.name, action="env.save", version=version)
    return _told(env, INSERTED)


def check(document: Document) -> tuple[EnvSet, secret.Envelope | None]:
    """The parts of a request to save; Invalid where they are none, or not of one another."""
    name, sealed = document.get("name"), document.get("envelope")
    env = envset.from_document(str(name), document.get("set"))
    envelope = None if sealed is None else secret.from_document(sealed)
    if envelope is not None and (envelope.name != env.name or not env.sealed):
        raise Invalid("env_invalid", "The sealed values are not those of the env.")
    return env, envelope


def _told(env: EnvSet, outcome: str) -> Document:
    return {"env": env.name, "items": len(env.items), "status": outcome}


def remove(runtime: Runtime, params: Params) -> Document:
    """`env.remove`: a whole set; refused while a task's newest revision binds it."""
    name = params.text("name")
    params.end()
    setting = envset.SETTING + name
    if runtime.store.setting(setting) is None:
        raise secret.env_unknown()
    if name in runtime.store.secrets.bound():
        raise Refused("env_bound", "A task binds the env.")
    forget(runtime, params, name, setting=setting, sealed=name)
    return {"env": name, "removed": True}


def _exists() -> Refused:
    return Refused("secret_exists", "There is a secret of that name, which is no env.")
