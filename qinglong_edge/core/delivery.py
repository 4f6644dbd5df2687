"""Secrets and environment bundles on their way into one launch child (ADR-0115 section 3).

Owns the request and the strict reading of its reply. These values exist in the launching child and
in nothing else: no record, no exception and no message here carries one.
"""

from __future__ import annotations

from qinglong_edge.core import canonical, wire
from qinglong_edge.core.errors import Invalid, Refused
from qinglong_edge.core.exchange import fence
from qinglong_edge.core.recipe import RESERVED_NAMES
from qinglong_edge.core.revision import BINDING_NAME, ENVIRONMENT_BYTES_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from qinglong_edge.core.inbox import Entry
    from qinglong_edge.core.revision import Revision

SECRETS_MAX = 64
VALUE_BYTES_MAX = 16_384
BUNDLE_BYTES_MAX = 98_304
ENTRIES_MAX = 256
_SCHEMA = "qinglong/remote-secret-delivery@v2"
_BUNDLE = "qinglong/environment-bundle@v1"


def wanted(revision: Revision) -> bool:
    """True if a launch has anything to fetch."""
    return bool(revision.secret_refs or revision.bundle_ref)


def request(entry: Entry) -> dict[str, Any]:
    """One batch: every secret once, in the order of first use."""
    offer = entry.offer
    refs = offer.revision.secret_refs
    if len(refs) > SECRETS_MAX or offer.revision.bundle_ref in refs:
        raise Refused("secret_unavailable", "A revision asks for too many secrets.")
    given = fence(entry)
    ids = {key: given.pop(key) for key in ("runId", "attemptId")}
    return {
        "schema": _SCHEMA,
        **ids,
        "projectId": offer.project_id,
        "taskId": offer.task_id,
        "taskRevision": offer.task_revision,
        "executionDigest": offer.execution_digest,
        **given,
        "secretRefs": list(refs),
        "environmentBundleRefs": [offer.revision.bundle_ref] if offer.revision.bundle_ref else [],
    }


def environment(value: object, sent: dict[str, Any], revision: Revision) -> dict[str, str]:
    """The variables that a reply gives; Refused `secret_value_invalid` unless all of it is right.

    The whole environment, public values included, has at most 256 variables and 64 KiB.
    """
    try:
        found = _values(value, sent)
        made = {
            each.name: found[each.secret_ref]
            for each in revision.bindings
            if each.secret_ref is not None
        }
        for ref in sent["environmentBundleRefs"]:
            _join(made, found[ref], {each.name for each in revision.bindings})
        public = {each.name: each.value for each in revision.bindings if each.value is not None}
        whole = {**public, **made}
        size = sum(len(f"{name}{text}".encode()) for name, text in whole.items())
        if size > ENVIRONMENT_BYTES_MAX or len(whole) > ENTRIES_MAX:
            wire.refuse("environment")
    except Invalid:
        raise Refused("secret_value_invalid", "A delivered secret cannot be used.") from None
    return made


def _values(value: object, sent: dict[str, Any]) -> dict[str, str]:
    same = ("schema", "runId", "attemptId", "offerId", "executionDigest")
    found = wire.members(value, "secrets", (*same, "values", "environmentBundles"))
    for key in same:
        wire.same(found[key], sent[key], key)
    made = _positions(found["values"], sent["secretRefs"], VALUE_BYTES_MAX)
    made.update(
        _positions(found["environmentBundles"], sent["environmentBundleRefs"], BUNDLE_BYTES_MAX)
    )
    return made


def _positions(value: object, refs: list[str], most: int) -> dict[str, str]:
    if not isinstance(value, list) or len(value) != len(refs):
        wire.refuse("values")
    made = {}
    for each, ref in zip(value, refs, strict=True):
        found = wire.members(each, "values", ("secretRef", "value"))
        wire.same(found["secretRef"], ref, "secretRef")
        made[ref] = wire.text(found["value"], "value", 0, most)
    return made


def _join(made: dict[str, str], bundle: str, taken: set[str]) -> None:
    """Add a bundle's entries; a name that a binding has already, or a shell, is a conflict."""
    document = canonical.decode(bundle.encode("utf-8"), bytes_max=BUNDLE_BYTES_MAX, depth_max=3)
    found = wire.members(document, "bundle", ("schema", "entries"))
    wire.same(found["schema"], _BUNDLE, "schema")
    entries = found["entries"]
    if not isinstance(entries, list) or not 1 <= len(entries) <= ENTRIES_MAX:
        wire.refuse("entries")
    for each in entries:
        entry = wire.members(each, "entries", ("name", "value"))
        name = wire.matching(entry["name"], "entries", BINDING_NAME)
        if name in taken or name in made or name in RESERVED_NAMES:
            wire.refuse("entries")
        made[name] = wire.text(entry["value"], "entries", 0, VALUE_BYTES_MAX)
