"""What a control plane asks to be run: an immutable execution revision and its digest.

Owns the value and the proof that it is the revision it says it is:

    content digest = SHA-256("qinglong.cluster-task-execution-revision.v1" NUL, compact JSON of the
                     revision without createdAtMs and contentDigest, in the order of `_KEYS`)

A revision whose digest is another is refused whole. Its representation names no command and no
value.
"""

from __future__ import annotations

import re

from qinglong_edge.core import canonical, wire
from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.limits import (
    ARGUMENT_BYTES_MAX,
    ARGUMENTS_MAX,
    BINDINGS_MAX,
    COMMAND_BYTES_MAX,
    PATH_BYTES_MAX,
    SECRET_REF_BYTES_MAX,
    TIMEOUT_MS_MAX,
)
from qinglong_edge.core.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DOMAIN = b"qinglong.cluster-task-execution-revision.v1\0"
REMOTE_WORKER = "remote_worker"
PLAN_SCHEMA = "qinglong/command-execution@v1"
ENVIRONMENT_BYTES_MAX = 65_536
REVISION_BYTES_MAX = 98_304
SECRET_REF_PREFIX = "qlsecret:v1:"
BINDING_NAME = re.compile(r"(?!QL3_)[A-Za-z_][A-Za-z0-9_]{0,127}")
_SHELLS = ("/bin/sh", "/bin/bash")
_REQUIRED = (
    "projectId",
    "taskId",
    "taskRevision",
    "sourceRevision",
    "sourceContentDigest",
    "executorType",
    "planSchema",
    "command",
    "environment",
)
_OPTIONAL = ("environmentBundleRef", "workingDirectory", "timeoutMs", "placement")
_KEYS = _REQUIRED + _OPTIONAL
_SIGNED_OFF = ("createdAtMs", "contentDigest")


class Binding(Record):
    """One variable: a public value, or the reference of a secret."""

    name: str
    value: str | None
    secret_ref: str | None

    def __repr__(self) -> str:
        return f"Binding(name={self.name!r})"


class Revision(Record):
    """An execution revision; `argv` is what its command becomes."""

    project_id: str
    task_id: str
    task_revision: str
    argv: tuple[str, ...]
    bindings: tuple[Binding, ...]
    bundle_ref: str | None
    cwd: str | None
    timeout_ms: int | None
    content_digest: str
    document: dict[str, Any]  # exactly as it was delivered

    @property
    def secret_refs(self) -> tuple[str, ...]:
        """Every secret once, in the order of first use."""
        return tuple(dict.fromkeys(each.secret_ref for each in self.bindings if each.secret_ref))

    def __repr__(self) -> str:
        return f"Revision(content_digest={self.content_digest!r})"


def decode(value: object) -> Revision:
    """The revision in a parsed document; Invalid `wire_invalid` for anything else."""
    found = wire.members(value, "executionRevision", (*_REQUIRED, *_SIGNED_OFF), _OPTIONAL)
    project = wire.bounded_id(found["projectId"], "projectId")
    source = wire.whole(found["sourceRevision"], "sourceRevision", 1, wire.INT31_MAX)
    digest = wire.matching(found["sourceContentDigest"], "sourceContentDigest", wire.DIGEST)
    wire.same(found["taskRevision"], f"qltd:v1:{source}:{digest}", "taskRevision")
    wire.same(found["executorType"], REMOTE_WORKER, "executorType")
    wire.same(found["planSchema"], PLAN_SCHEMA, "planSchema")
    wire.whole(found["createdAtMs"], "createdAtMs")
    bundle = found.get("environmentBundleRef")
    if bundle is not None and not check_ref(bundle, project):
        wire.refuse("environmentBundleRef")  # without a pinned version it could change
    timeout = found.get("timeoutMs")
    if timeout is not None:
        wire.whole(timeout, "timeoutMs", 1, TIMEOUT_MS_MAX)
    _check_digest(found)
    return Revision(
        project_id=project,
        task_id=wire.bounded_id(found["taskId"], "taskId"),
        task_revision=found["taskRevision"],
        argv=_argv(found["command"]),
        bindings=_bindings(found["environment"], project),
        bundle_ref=bundle,
        cwd=None if "workingDirectory" not in found else _path(found["workingDirectory"], "cwd"),
        timeout_ms=timeout,
        content_digest=found["contentDigest"],
        document=found,
    )


def content_digest(document: dict[str, Any]) -> str:
    """The digest that a revision's document has by its content."""
    ordered = {key: document[key] for key in _KEYS if key in document}
    return canonical.sha256_hex(DOMAIN + canonical.encode(ordered))


def check_ref(value: object, project: str) -> int | None:
    """A secret's reference of this project; the version that it pins, or None."""
    try:
        ref = wire.text(value, "secretRef", 1, SECRET_REF_BYTES_MAX)
        if not ref.startswith(SECRET_REF_PREFIX):
            wire.refuse("secretRef")
        data = canonical.from_base64url(ref.removeprefix(SECRET_REF_PREFIX))
        found = canonical.decode(data, bytes_max=SECRET_REF_BYTES_MAX, depth_max=1)
        found = wire.members(found, "secretRef", ("projectId", "name"), ("version",))
    except Invalid:
        wire.refuse("secretRef")
    wire.same(found["projectId"], project, "secretRef")
    wire.bounded_id(found["name"], "secretRef")
    version = found.get("version")
    if version is not None:
        wire.whole(version, "secretRef", 1, wire.INT31_MAX)
    ordered = {key: found[key] for key in ("projectId", "name", "version") if key in found}
    if canonical.encode(ordered) != data:
        wire.refuse("secretRef")
    return version


def _check_digest(found: dict[str, Any]) -> None:
    if len(canonical.encode(found)) > REVISION_BYTES_MAX:
        wire.refuse("executionRevision")
    wire.same(found["contentDigest"], content_digest(found), "contentDigest")


def _argv(value: object) -> tuple[str, ...]:
    if isinstance(value, dict) and value.get("kind") == "shell":
        command = wire.members(value, "command", ("kind", "command"), ("shell",))
        shell = wire.one_of(command.get("shell", "/bin/sh"), "shell", _SHELLS)
        return (shell, "-c", wire.text(command["command"], "command", 1, COMMAND_BYTES_MAX))
    command = wire.members(value, "command", ("kind", "file", "args"))
    wire.same(command["kind"], "argv", "command")
    args = command["args"]
    if not isinstance(args, list) or len(args) > ARGUMENTS_MAX:
        wire.refuse("args")
    argv = (_path(command["file"], "file"), *(_argument(each) for each in args))
    if sum(len(each.encode("utf-8")) for each in argv) > COMMAND_BYTES_MAX:
        wire.refuse("args")
    return argv


def _argument(value: object) -> str:
    return wire.text(value, "args", 0, ARGUMENT_BYTES_MAX)


def _path(value: object, field: str) -> str:
    path = wire.text(value, field, 1, PATH_BYTES_MAX)
    if not path.startswith("/"):
        wire.refuse(field)
    return path


def _bindings(value: object, project: str) -> tuple[Binding, ...]:
    if not isinstance(value, list) or len(value) > BINDINGS_MAX:
        wire.refuse("environment")
    made = tuple(_binding(each, project) for each in value)
    names = [each.name for each in made]
    if len(set(names)) != len(names) or names != sorted(names, key=_place):
        wire.refuse("environment")
    size = sum(len(f"{b.name}{b.value or ''}{b.secret_ref or ''}".encode()) for b in made)
    if size > ENVIRONMENT_BYTES_MAX:
        wire.refuse("environment")
    return made


def _binding(value: object, project: str) -> Binding:
    kind = value.get("kind") if isinstance(value, dict) else None
    key = {"public": "value", "secret": "secretRef"}.get(str(kind), "kind")
    found = wire.members(value, "environment", {"name", "kind", key})
    name = wire.matching(found["name"], "environment", BINDING_NAME)
    if kind == "public":
        content = wire.text(found[key], "environment", 0, ENVIRONMENT_BYTES_MAX)
        return Binding(name=name, value=content, secret_ref=None)
    check_ref(found.get(key), project)
    return Binding(name=name, value=None, secret_ref=found[key])


def _place(name: str) -> tuple[list[str], list[bool]]:
    """The plane's order of names: _ before digits before letters whatever their case; of names
    that differ in case only, the lower one first."""
    folded = [" " if each == "_" else each.lower() for each in name]
    return folded, [each.isupper() for each in name]
