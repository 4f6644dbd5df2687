"""AES-256-GCM, by way of the package `cryptography`.

Owns the only import of that package, late: it maps megabytes, so the launching child of a task with
secrets and the one-shot commands pay for it, never the daemon. Where it is missing everything else
works, and what needs a secret fails closed; so it does where too little memory is left: without
swap a box would read its programs' pages again and again and stand still for minutes. Nothing here
outlives the call.
"""

from __future__ import annotations

import os
import sys

from qinglong_edge.core.errors import Unavailable
from qinglong_edge.system import memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_TAG_BYTES = 16
_NO_LEGACY = "CRYPTOGRAPHY_OPENSSL_NO_LEGACY"  # a library of old ciphers that need not be there
_NEEDED_KIB = 24_576  # its 11 MiB, and the pages of the programs that go on running


def require() -> None:
    """Refuse a box without cipher or room for it: Unavailable `secret_provider_unavailable`."""
    _aesgcm()


def available() -> bool:
    """Whether secrets can be sealed and opened here."""
    try:
        require()
    except Unavailable:
        return False
    return True


def seal(key: bytes, nonce: bytes, aad: bytes, plaintext: bytes) -> tuple[bytes, bytes]:
    """Ciphertext and tag under a key of 32 bytes and a nonce of 12 that is never used again.

    Unavailable: `secret_provider_unavailable`.
    """
    sealed = _aesgcm()(key).encrypt(nonce, plaintext, aad)
    return sealed[:-_TAG_BYTES], sealed[-_TAG_BYTES:]


def unseal(key: bytes, nonce: bytes, aad: bytes, ciphertext: bytes, tag: bytes) -> bytes:
    """The plaintext, if every byte is what was sealed under this key with this `aad`.

    Unavailable: `secret_unavailable` (anything differs), `secret_provider_unavailable`.
    """
    cipher = _aesgcm()(key)
    from cryptography.exceptions import InvalidTag

    try:
        return cipher.decrypt(nonce, ciphertext + tag, aad)
    except InvalidTag:
        raise Unavailable(
            "secret_unavailable", "A secret is not available.", reason="not_authentic"
        ) from None


def _aesgcm() -> type[AESGCM]:
    free = None if "cryptography" in sys.modules else memory.free_kib()
    if free is not None and free < _NEEDED_KIB:
        raise Unavailable(
            "secret_provider_unavailable",
            "Secrets need 24 MiB of free memory.",
            reason="memory_low",
            free_kib=free,
        )
    if sys.flags.no_site:
        _reach_packages()
    os.environ.setdefault(_NO_LEGACY, "1")
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise Unavailable(
            "secret_provider_unavailable",
            "Secrets need the Python package cryptography.",
            reason="cryptography_missing",
            module=error.name or "cryptography",
        ) from None
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a package raises that finds no OpenSSL
        raise Unavailable(
            "secret_provider_unavailable",
            "The Python package cryptography does not work here.",
            reason="cryptography_broken",
            module="cryptography",
            kind=type(error).__name__,
        ) from None
    return AESGCM


def _reach_packages() -> None:
    """Put the machine's packages last on the path: the program runs without them (``-S``)."""
    import site

    home = os.path.dirname(os.path.dirname(sys.executable or ""))
    virtual = bool(home) and os.path.exists(os.path.join(home, "pyvenv.cfg"))
    for folder in site.getsitepackages([home] if virtual else None):
        if folder not in sys.path and os.path.isdir(folder):
            sys.path.append(folder)
