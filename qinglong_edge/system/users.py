"""Users as the machine knows them.

Owns the reading of the user database; a router may know no name for a uid.
"""

from __future__ import annotations

import os
import pwd


def home() -> str:
    """The home directory of the user this process works for; the root where none is known."""
    try:
        found = pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return "/"
    return found if found.startswith("/") else "/"


def name(uid: int) -> str:
    """The name of a uid, or its digits."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
