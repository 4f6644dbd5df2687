"""The build's own gates: what an artifact may weigh, and who is to blame when it weighs more.

The numbers stand in ``profiles/edge.toml`` under ``[budget]``, each with its reason.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass

from tests.tools.builder import Artifact

_NAMED = 8  # so many of the largest modules are worth reading


@dataclass(frozen=True)
class Gate:
    """One measured number against its limit; equal is still good."""

    name: str
    measured: float
    limit: float

    @property
    def held(self) -> bool:
        """Whether the number is within its limit."""
        return self.measured <= self.limit

    def __str__(self) -> str:
        verdict = "" if self.held else "  MISSED"
        return f"{self.name} {self.measured:,} of {self.limit:,}{verdict}"


def budget(root: str, profile: str = "edge") -> dict[str, float]:
    """The budget numbers of one profile by name."""
    with open(os.path.join(root, "profiles", f"{profile}.toml"), "rb") as opened:
        table: dict[str, float] = tomllib.load(opened)["budget"]
    return table


def artifact_gates(artifact: Artifact, limits: dict[str, float]) -> list[Gate]:
    """Bytes and members of an artifact."""
    return [
        Gate("bytes", artifact.size, limits["zipapp_bytes"]),
        Gate("members", len(artifact.entries), limits["zipapp_files"]),
    ]


def largest(artifact: Artifact) -> list[tuple[str, int]]:
    """The modules that take most of the file, source and byte code together, largest first.

    An estimate: modules share their streams, and each gets its share by its size packed alone.
    """
    return sorted(artifact.modules.items(), key=lambda pair: (-pair[1], pair[0]))[:_NAMED]


def report(artifact: Artifact, gates: list[Gate]) -> str:
    """What a build prints; on a miss the members and the largest modules are named."""
    lines = [artifact.path, *(f"  {gate}" for gate in gates)]
    lines.append(f"  {len(artifact.modules)} modules, byte code of Python {artifact.python}")
    lines.append(f"  digest {artifact.digest[:16]}")
    if not all(gate.held for gate in gates):
        lines.append("  members:")
        lines += [f"    {size:7,}  {name}" for name, size in artifact.entries.items()]
        lines.append("  the largest modules by their share, source and byte code together:")
        lines += [f"    {size:7,}  {name}" for name, size in largest(artifact)]
    return "\n".join(lines)
