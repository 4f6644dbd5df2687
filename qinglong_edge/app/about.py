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
