"""A launch plan: everything a process needs, validated before anything exists.

Owns the value that travels from the coordinator to the launcher. Its representation names the run
and nothing else: no path, no variable, no token.
"""

from __future__ import annotations

from qinglong_edge.core.record import Record


class LaunchPlan(Record):
    """What one attempt's process will be (ADR-0069 section 2)."""

    run_id: str
    attempt_id: str
    callback_sequence: int
    token: str
    started_at_ms: int
    argv: tuple[str, ...]
    environment: dict[str, str]
    cwd: str
    nice: int
    log_quota_bytes: int  # 0 = no log
    umask: int = 0o022
    log_artifact_id: str | None = None  # a log that does not follow from run and attempt alone

    def __repr__(self) -> str:
        return f"LaunchPlan(run_id={self.run_id!r}, attempt_id={self.attempt_id!r})"


class Identity(Record):
    """A captured process: its durable handle and the pid namespace its numbers belong to."""

    handle: str
    pid: int
    pid_namespace: int | None
