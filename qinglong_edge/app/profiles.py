"""The profiles this program carries.

Owns the way from a name to its numbers, of those that a daemon may have.
"""

from __future__ import annotations

from qinglong_edge.app import program
from qinglong_edge.core.errors import Invalid, Refused
from qinglong_edge.core.profile import Profile, from_mapping

_CLUSTER = "cluster-"


def names() -> tuple[str, ...]:
    """Every profile by name, sorted."""
    return tuple(sorted(program.profiles(worker=False)))


def load(name: str) -> Profile:
    """The profile of that name.

    Refused `profile_cluster` for a cluster's profile: many nodes never share one state directory.
    Invalid `profile_unknown` for any other name that is not carried.
    """
    if name.startswith(_CLUSTER):
        raise Refused("profile_cluster", "A cluster's profile cannot run on one box's own store.")
    tables = program.profiles(worker=False)
    if name not in tables:
        raise Invalid(
            "profile_unknown", "There is no profile of that name.", known=" ".join(sorted(tables))
        )
    return from_mapping(name, tables[name])
