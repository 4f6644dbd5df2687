"""Secrets as the owner sees them: sealed rows in, sealed rows out (ADR-0024 section 3).

Owns the methods `secret.*`, `keyring.*` and `audit.list`. The owner of the state never opens the
keyring: what needs a key runs in a child or in the command that holds the plaintext.
"""

from __future__ import annotations

from qinglong_edge.core import secret
from qinglong_edge.core.errors import Invalid, Refused
from qinglong_edge.core.limits import NOTIFY_SETTING, PAGE_MAX, SECRET_PAGE_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qinglong_edge.app.params import Params
    from qinglong_edge.app.runtime import Runtime
    from qinglong_edge.core.secret import Envelope


def _envelope(params: Params, name: str) -> Envelope:
    return secret.from_document(params.document(name))


def _check_plain(runtime: Runtime, name: str) -> None:
    if runtime.store.setting(secret.ENV_SETTING + name) is not None:
        raise Refused("secret_is_env", "The secret holds an env's values; use the `env` commands.")


def append(runtime: Runtime, params: Params) -> dict[str, object]:
    """`secret.append`: the next version of a secret, sealed by the command that asks."""
    envelope = _envelope(params, "envelope")
    expected = params.number("expected_version") or 0
    params.end()
    _check_plain(runtime, envelope.name)
    with runtime.store.database.write():
        outcome = runtime.store.secrets.append(envelope, expected)
        if outcome == "inserted":
            runtime.record(
                params, envelope.name, version=envelope.version, mutation=envelope.mutation_id
            )
    return {"secret": envelope.name, "version": envelope.version, "status": outcome}


def find(runtime: Runtime, params: Params) -> dict[str, object]:
    """`secret.find`: the newest version, and the sealed rows of an earlier try of this mutation."""
    name, mutation = params.text("name"), params.text("mutation")
    params.end()
    store = runtime.store.secrets
    return {
        "version": store.version(name),
        "any": runtime.store.has_secrets(),
        "envelopes": [secret.document(each) for each in store.find_mutation(name, mutation)],
    }


def newest(runtime: Runtime, name: str) -> dict[str, object]:
    """The same of a secret that belongs to something else, with the rows of its newest version."""
    store = runtime.store.secrets
    copies = store.resolve((secret.make(name),))[0] or ()
    return {
        "version": store.version(name),
        "any": runtime.store.has_secrets(),
        "envelopes": [secret.document(each) for each in copies],
    }


def forget(runtime: Runtime, params: Params, name: str, *, setting: str, sealed: str) -> None:
    """Drop what stands in a setting with the secret that belongs to it, in one commit."""
    with runtime.store.database.write():
        runtime.store.drop_setting(setting)
        runtime.store.secrets.drop(sealed, runtime.parts.clock.wall_ms())
        runtime.record(params, name)


def page(runtime: Runtime, params: Params) -> dict[str, object]:
    """`secret.page`: sealed rows in order; with `missing_key` those without a copy under it."""
    after = params.maybe_text("after")
    limit = params.number("limit", lowest=1, highest=SECRET_PAGE_MAX) or SECRET_PAGE_MAX
    missing = params.maybe_text("missing_key")
    params.end()
    envelopes, following = runtime.store.secrets.page(after, limit, missing_key=missing)
    return {"envelopes": [secret.document(each) for each in envelopes], "next": following}


def copy(runtime: Runtime, params: Params) -> dict[str, object]:
    """`secret.copy`: versions sealed once more under another key; a repetition changes nothing."""
    envelopes = [secret.from_document(each) for each in params.documents("envelopes")]
    params.end()
    if len(envelopes) > SECRET_PAGE_MAX:
        raise Invalid("page_too_large", "More sealed rows than one request may carry.")
    with runtime.store.database.write():
        outcomes = [runtime.store.secrets.add_copy(each) for each in envelopes]
        if "inserted" in outcomes:
            runtime.record(params, envelopes[0].key_id)
    return {"inserted": outcomes.count("inserted")}


def listing(runtime: Runtime, params: Params) -> dict[str, object]:
    """`secret.list`: names, versions, keys and which tasks bind them; never a value."""
    params.end()
    return {"secrets": runtime.store.secrets.listing()}


def remove(runtime: Runtime, params: Params) -> dict[str, object]:
    """`secret.remove`: every version goes; refused while a task's newest revision binds it."""
    name = params.text("name")
    params.end()
    _check_plain(runtime, name)
    if name.startswith(NOTIFY_SETTING) and runtime.store.setting(name) is not None:
        raise Refused("secret_is_key", "The secret is the key of a channel; use `notify remove`.")
    with runtime.store.database.write():
        runtime.store.secrets.remove(name, runtime.parts.clock.wall_ms())
        runtime.record(params, name)
    return {"secret": name, "removed": True}


def usage(runtime: Runtime, params: Params) -> dict[str, object]:
    """`keyring.usage`: how many sealed rows each key has."""
    params.end()
    return {"usage": runtime.store.secrets.usage()}


_ACTIONS = frozenset({"init", "rotate", "rekey", "retire"})


def intent(runtime: Runtime, params: Params) -> dict[str, object]:
    """`keyring.intent`: who is about to change the key file, or what became of it."""
    action, key = params.text("action"), params.maybe_text("key") or ""
    outcome, code = params.maybe_text("outcome") or "intended", params.maybe_text("code")
    params.end()
    if action not in _ACTIONS or outcome not in ("intended", "done", "refused"):
        raise Invalid("param_invalid", "There is no such change of a keyring.", param="action")
    with runtime.store.database.write():
        runtime.record(params, key, action=f"keyring.{action}", outcome=outcome, code=code)
    if runtime.daemon:  # a command ends before a child of its own could answer
        runtime.secrets.examine()
    return {"action": action}


def retire(runtime: Runtime, params: Params) -> dict[str, object]:
    """`keyring.retire`: drop a key's rows, once each has a copy under another key that is known."""
    key, known = params.text("key"), params.texts("known") or ()
    params.end()
    with runtime.store.database.write():
        removed = runtime.store.secrets.retire(key, known)
        runtime.record(params, key)
    return {"key": key, "removed": removed}


def audit(runtime: Runtime, params: Params) -> dict[str, object]:
    """`audit.list`: who changed what, newest first; refusals too."""
    after = params.number("after", lowest=1)
    limit = params.number("limit", lowest=1, highest=PAGE_MAX) or 50
    params.end()
    entries, following = runtime.store.audit.page(after, limit)
    lines = [{name: getattr(each, name) for name in each._fields} for each in entries]
    return {"audit": lines, "next": following}
