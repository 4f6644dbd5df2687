"""The options of a router's configuration file that concern this program.

Owns the reading of /etc/config/qinglong-edge (UCI) without UCI's own tools. What is malformed is
passed over: the defaults then hold, as they do for the init script.
"""

from __future__ import annotations

import re

_BYTES_MAX = 65_536
_OPTION = re.compile(r"""\s*option\s+(\S+)\s+(?:'([^']*)'|"([^"]*)"|([^'"\s]+))\s*""")


def options(path: str) -> dict[str, str]:
    """The options by name; empty if the file cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read(_BYTES_MAX).splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        match = _OPTION.fullmatch(line)
        if match is not None:
            name, *quoted = match.groups()
            found[name] = next((text for text in quoted if text), "")
    return found
