"""What this program is made of.

Owns the answer to `--version`: program, interpreter, SQLite, and the build's digest.
"""

from __future__ import annotations

import sys

from qinglong_edge import __version__
from qinglong_edge.app import program
from qinglong_edge.storage.connection import SQLITE_VERSION


def versions() -> dict[str, str | None]:
    """The versions by name; the digest is None in a checkout."""
    made = program.build()
    return {
        "version": __version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "sqlite": SQLITE_VERSION,
        "digest": None if made is None else made.digest,
    }


def selftest() -> list[dict[str, object]]:
    """Each known answer by name; `ok` is None for the cipher on a machine that has none."""
    from qinglong_edge.core import vectors
    from qinglong_edge.system import aead

    known = aead.available()
    ok = vectors.holds(lambda: vectors.aes_gcm(aead.seal, aead.unseal)) if known else None
    return [*vectors.run(), {"name": "aes_gcm", "ok": ok}]
