"""Sealing a value into an envelope and opening it again (ADR-0024 section 3).

Owns which key is taken and what a value may be: UTF-8 of at most 64 KiB without NUL, for it becomes
a variable of a process; an empty one is a value. Plaintext lives in the memory of the process that
calls, which ends in an exec or an exit. No error names a secret, a key or a value.
"""

from __future__ import annotations

import os

from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.limits import SECRET_VALUE_BYTES_MAX
from qinglong_edge.core.secret import NONCE_BYTES, PROJECT, TAG_BYTES, Envelope, unavailable
from qinglong_edge.system import aead

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from qinglong_edge.secret.keyring import Keyring


def seal_secret(
    keyring: Keyring,
    *,
    name: str,
    version: int,
    mutation_id: str,
    plaintext: bytes,
    created_at_ms: int,
    random: Callable[[int], bytes] = os.urandom,
) -> Envelope:
    """The envelope of a new version, under the active key.

    Invalid: `secret_value_invalid`, `envelope_invalid` (name, version, mutation or time).
    Unavailable: `secret_provider_unavailable`, `secret_unavailable` (no random bytes).
    """
    check_value(plaintext)
    blank = Envelope(
        project=PROJECT,
        name=name,
        version=version,
        mutation_id=mutation_id,
        key_id=keyring.active,
        nonce=bytes(NONCE_BYTES),
        ciphertext=b"",
        auth_tag=bytes(TAG_BYTES),
        created_at_ms=created_at_ms,
    )
    return _sealed(keyring, blank, plaintext=plaintext, random=random)


def open_envelope(keyring: Keyring, envelope: Envelope) -> bytes:
    """The plaintext; Unavailable `secret_unavailable`, `secret_provider_unavailable`."""
    key = keyring.key(envelope.key_id)
    if key is None:
        raise unavailable("key_missing")
    return aead.unseal(key, envelope.nonce, envelope.aad(), envelope.ciphertext, envelope.auth_tag)


def reseal(
    keyring: Keyring, envelope: Envelope, *, random: Callable[[int], bytes] = os.urandom
) -> Envelope:
    """The same version and mutation under the active key; the very envelope if it is already.

    Unavailable: as `open_envelope`.
    """
    if envelope.key_id == keyring.active:
        return envelope
    plaintext = open_envelope(keyring, envelope)
    moved = envelope.replace(key_id=keyring.active)
    return _sealed(keyring, moved, plaintext=plaintext, random=random)


def check_value(plaintext: bytes) -> str:
    """The text of a value that may become a variable; Invalid `secret_value_invalid`."""
    if len(plaintext) > SECRET_VALUE_BYTES_MAX:
        raise value_invalid(
            "too_large", f"A secret's value has at most {SECRET_VALUE_BYTES_MAX} bytes."
        )
    if b"\0" in plaintext:
        raise value_invalid("nul", "A secret's value holds a NUL character.")
    try:
        return plaintext.decode("utf-8")
    except UnicodeDecodeError:
        raise value_invalid("not_utf8", "A secret's value is not UTF-8.") from None


def value_invalid(reason: str, message: str) -> Invalid:
    """A value that no variable can take."""
    return Invalid("secret_value_invalid", message, reason=reason)


def _sealed(
    keyring: Keyring, envelope: Envelope, *, plaintext: bytes, random: Callable[[int], bytes]
) -> Envelope:
    key, nonce = keyring.key(envelope.key_id), random(NONCE_BYTES)
    if key is None or len(nonce) != NONCE_BYTES:
        raise unavailable("not_sealed")
    ciphertext, tag = aead.seal(key, nonce, envelope.aad(), plaintext)
    return envelope.replace(nonce=nonce, ciphertext=ciphertext, auth_tag=tag)
