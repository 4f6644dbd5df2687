"""The profiles this program carries.

Owns the way from a name to the numbers: the zipapp carries ``profiles.json`` (made at build time),
a checkout reads ``profiles/NAME.toml`` beside the package. Budgets of the build are not run-time
numbers and never leave the TOML file.
"""

from __future__ import annotations

import os

from qinglong_edge.app.program import resource
from qinglong_edge.core.canonical import decode
from qinglong_edge.core.errors import Invalid, Refused
from qinglong_edge.core.profile import Profile, from_mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CLUSTER = "cluster-"


def names() -> tuple[str, ...]:
    """Every profile by name, sorted."""
    return tuple(sorted(_tables()))


def load(name: str) -> Profile:
    """The profile of that name.

    Refused `profile_cluster` for a cluster's profile: many nodes never share one state directory.
    Invalid `profile_unknown` for any other name that is not carried.
    """
    if name.startswith(_CLUSTER):
        raise Refused("profile_cluster", "A cluster's profile cannot run on one box's own store.")
    tables = _tables()
    if name not in tables:
        raise Invalid(
            "profile_unknown", "There is no profile of that name.", known=" ".join(sorted(tables))
        )
    return from_mapping(name, tables[name])


def _tables() -> dict[str, dict[str, object]]:
    try:
        data = resource("profiles.json")
    except OSError:
        return _checkout()
    carried: Any = decode(data, bytes_max=len(data))
    return {name: profile["runtime"] for name, profile in carried.items()}


def _checkout() -> dict[str, dict[str, object]]:
    import tomllib

    folder = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "profiles")
    tables = {}
    for file in os.listdir(folder):
        name, suffix = os.path.splitext(file)
        if suffix == ".toml" and not name.startswith("worker-"):
            with open(os.path.join(folder, file), "rb") as opened:
                tables[name] = tomllib.load(opened)["runtime"]
    return tables
