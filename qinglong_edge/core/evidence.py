"""What was proven about a process: verdicts, exits, the end of a stop.

Owns the values in which the process room answers the policies. `unknown` is never read as dead.
"""

from __future__ import annotations

from qinglong_edge.core.record import Record

ALIVE, GONE, UNKNOWN = "alive", "gone", "unknown"


class Verdict(Record):
    """What an identity inspection found, and why it could not tell."""

    state: str
    reason: str | None = None


class Exit(Record):
    """How an own child ended: a code, or the signal that ended it."""

    code: int | None
    signal: int | None


class Target(Record):
    """A process by its durable handle."""

    handle: str
    pid: int
    pid_namespace: int | None


class Stopped(Record):
    """How a stop ended; `signal` is what it took, None if nothing had to be sent.

    Conclusive means that the session is empty: the proof of death. `survivors` counts members that
    were left alive.
    """

    conclusive: bool
    signal: int | None = None
    survivors: int = 0
    reason: str | None = None
