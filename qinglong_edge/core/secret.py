"""Secrets as the daemon may know them: references and sealed envelopes (ADR-0024 section 3).

Owns two forms; neither holds a plaintext or a key, and neither shows a name in an error.

    qlsecret:v1:<base64url of {"projectId":P,"name":N[,"version":V]}>

A reference: without a version it means the newest one, with a version exactly that one, for ever.
There is one text for each reference; any other spelling is refused.

An envelope is one version of a secret, sealed with AES-256-GCM under one key. What it claims to be
(project, name, version, mutation, key, algorithm) is authenticated with it, so an envelope that was
moved to another name or version does not open. Envelopes are append-only.
"""

from __future__ import annotations

from qinglong_edge.core import canonical
from qinglong_edge.core.characters import ALPHANUMERIC, consists_of, has_control
from qinglong_edge.core.errors import Invalid, Refused, Unavailable
from qinglong_edge.core.limits import (
    BINDINGS_MAX,
    SAFE_INTEGER_MAX,
    SECRET_MUTATION_BYTES_MAX,
    SECRET_NAME_BYTES_MAX,
    SECRET_PROJECT_BYTES_MAX,
    SECRET_REF_BYTES_MAX,
    SECRET_VALUE_BYTES_MAX,
    SECRET_VERSION_MAX,
)
from qinglong_edge.core.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

PROJECT = "default"  # the only project of an edge; the forms carry one all the same
PREFIX = "qlsecret:v1:"
ALGORITHM = "aes-256-gcm"
ENV_SETTING = "env:"  # before the name of a secret that has several values
NONCE_BYTES = 12
TAG_BYTES = 16
_KEY_ID = ALPHANUMERIC + "._-"
_DOCUMENT_KEYS = frozenset(
    (
        *("projectId", "name", "version", "mutationId", "keyId", "algorithm"),
        *("nonce", "ciphertext", "authTag", "createdAtMs"),
    )
)


class SecretRef(Record):
    """A reference to a secret; `version` None is the newest. Invalid: `secret_ref_invalid`."""

    project: str
    name: str
    version: int | None

    def _check(self) -> None:
        if not (
            _is_text(self.project, SECRET_PROJECT_BYTES_MAX)
            and _is_text(self.name, SECRET_NAME_BYTES_MAX)
            and (self.version is None or _is_whole(self.version, 1, SECRET_VERSION_MAX))
            and len(self.text) <= SECRET_REF_BYTES_MAX  # quotes take two bytes in JSON
        ):
            raise _ref_invalid()

    @property
    def text(self) -> str:
        """The reference as a recipe carries it, at most 512 bytes of ASCII."""
        document: dict[str, object] = {"projectId": self.project, "name": self.name}
        if self.version is not None:
            document["version"] = self.version
        return PREFIX + canonical.base64url(canonical.encode(document))

    def __repr__(self) -> str:
        return "SecretRef(...)"


class Envelope(Record):
    """One version of a secret, sealed under one key. Invalid: `envelope_invalid`."""

    project: str
    name: str
    version: int
    mutation_id: str
    key_id: str
    nonce: bytes
    ciphertext: bytes
    auth_tag: bytes
    created_at_ms: int

    def _check(self) -> None:
        if not (
            _is_text(self.project, SECRET_PROJECT_BYTES_MAX)
            and _is_text(self.name, SECRET_NAME_BYTES_MAX)
            and _is_whole(self.version, 1, SECRET_VERSION_MAX)
            and _is_text(self.mutation_id, SECRET_MUTATION_BYTES_MAX)
            and is_key_id(self.key_id)
            and _is_bytes(self.nonce, NONCE_BYTES, NONCE_BYTES)
            and _is_bytes(self.ciphertext, 0, SECRET_VALUE_BYTES_MAX)
            and _is_bytes(self.auth_tag, TAG_BYTES, TAG_BYTES)
            and _is_whole(self.created_at_ms, 0, SAFE_INTEGER_MAX)
        ):
            raise _envelope_invalid()

    def aad(self) -> bytes:
        """What is authenticated besides the ciphertext; the time of creation is not."""
        return canonical.encode(self.identity())

    def identity(self) -> dict[str, object]:
        """What the envelope claims to be, in the order that is authenticated."""
        return {
            "projectId": self.project,
            "name": self.name,
            "version": self.version,
            "mutationId": self.mutation_id,
            "keyId": self.key_id,
            "algorithm": ALGORITHM,
        }

    def __repr__(self) -> str:
        return "Envelope(...)"


def make(name: str, version: int | None = None) -> SecretRef:
    """A reference of this edge's project; Invalid `secret_name_invalid`, `secret_ref_invalid`."""
    return SecretRef(project=PROJECT, name=check_name(name), version=version)


def check_name(name: object) -> str:
    """A secret's name of 1 to 128 bytes without control characters; Invalid otherwise."""
    if isinstance(name, str) and _is_text(name, SECRET_NAME_BYTES_MAX):
        return name
    raise Invalid(
        "secret_name_invalid", "A secret's name is not 1 to 128 bytes without control characters."
    )


def parse(text: object) -> SecretRef:
    """The reference that this very text is; Invalid `secret_ref_invalid`, which says no more."""
    if isinstance(text, str) and len(text) <= SECRET_REF_BYTES_MAX and text.startswith(PREFIX):
        try:
            data = canonical.from_base64url(text[len(PREFIX) :])
            found = canonical.decode(data, bytes_max=SECRET_REF_BYTES_MAX, depth_max=1)
            if isinstance(found, dict):
                ref = SecretRef(
                    project=found.get("projectId", ""),
                    name=found.get("name", ""),
                    version=found.get("version"),
                )
                if ref.text == text:
                    return ref
        except Invalid:
            pass
    raise _ref_invalid()


def parse_all(texts: Sequence[str]) -> tuple[SecretRef, ...]:
    """Up to 256 references of this edge, each in its place; to be asked before anything is read.

    Invalid: `secret_ref_invalid`. Unavailable: `secret_unavailable`, if any is another project's.
    """
    if len(texts) > BINDINGS_MAX:
        raise unavailable("too_many")
    refs = tuple(map(parse, texts))
    if any(ref.project != PROJECT for ref in refs):
        raise unavailable("foreign_project")
    return refs


def document(envelope: Envelope) -> dict[str, object]:
    """The envelope as JSON carries it; `from_document` reads it back."""
    return {
        **envelope.identity(),
        "nonce": canonical.base64url(envelope.nonce),
        "ciphertext": canonical.base64url(envelope.ciphertext),
        "authTag": canonical.base64url(envelope.auth_tag),
        "createdAtMs": envelope.created_at_ms,
    }


def from_document(found: object) -> Envelope:
    """The envelope that a JSON object carries, exact keys only; Invalid `envelope_invalid`."""
    if (
        not isinstance(found, dict)
        or found.keys() != _DOCUMENT_KEYS
        or found["algorithm"] != ALGORITHM
    ):
        raise _envelope_invalid()
    return Envelope(
        project=found["projectId"],
        name=found["name"],
        version=found["version"],
        mutation_id=found["mutationId"],
        key_id=found["keyId"],
        nonce=_bytes(found["nonce"]),
        ciphertext=_bytes(found["ciphertext"]),
        auth_tag=_bytes(found["authTag"]),
        created_at_ms=found["createdAtMs"],
    )


def is_key_id(text: object) -> bool:
    """Whether `text` may name a key: 1 to 128 letters, digits or . _ -"""
    return isinstance(text, str) and 1 <= len(text) <= 128 and consists_of(text, _KEY_ID)


def unavailable(reason: str) -> Unavailable:
    """A secret that cannot be had; `reason` names a rule, never a secret."""
    return Unavailable("secret_unavailable", "A secret is not available.", reason=reason)


def env_unknown() -> Refused:
    """There is no such env."""
    return Refused("env_unknown", "There is no env of that name; `env set` first.")


def _bytes(text: object) -> bytes:
    try:
        return canonical.from_base64url(text if isinstance(text, str) else "=")
    except Invalid:
        raise _envelope_invalid() from None


def _is_text(value: object, bytes_max: int) -> bool:
    try:
        size = len(value.encode()) if isinstance(value, str) else 0
    except UnicodeEncodeError:
        return False
    return 1 <= size <= bytes_max and not has_control(str(value))


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_bytes(value: object, least: int, most: int) -> bool:
    return isinstance(value, bytes) and least <= len(value) <= most


def _ref_invalid() -> Invalid:
    return Invalid("secret_ref_invalid", "A reference to a secret is not one.")


def _envelope_invalid() -> Invalid:
    return Invalid("envelope_invalid", "A sealed secret is not of its form.")
