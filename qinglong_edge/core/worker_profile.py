"""A worker's profile: every number that differs between a router and a larger box.

Owns the value; the numbers themselves stand in ``profiles/worker-*.toml`` with a reason each. Code
never asks which profile it runs under, only for a number.
"""

from __future__ import annotations

from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.limits import LOG_QUOTA_BYTES_MIN
from qinglong_edge.core.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# field -> the least and the most that a worker accepts, wherever the number comes from
_BOUNDS = {
    "cadence_ms": (100, 60_000),
    "drain_timeout_ms": (1_000, 600_000),
    "request_timeout_ms": (1_000, 60_000),
    "session_lease_ms": (15_000, 600_000),
    "heartbeat_ms": (5_000, 300_000),
    "journal_entries_max": (1, 1_024),
    "records_per_tick": (1, 64),
    "supervision_per_tick": (1, 64),
    "runs_default": (1, 64),
    "runs_max": (1, 64),
    "log_quota_bytes": (LOG_QUOTA_BYTES_MIN, 67_108_864),  # a plane takes 64 MiB at once
    "reserve_bytes": (0, 1 << 40),
    "retention_ms": (60_000, 2_592_000_000),
    "lost_retention_ms": (60_000, 2_592_000_000),
    "stop_grace_ms": (0, 300_000),
    "page_bytes": (512, 65_536),
    "cache_kib": (16, 65_536),
    "wal_bytes": (0, 1 << 30),
    "oom_score_adj": (0, 1_000),
}


class WorkerProfile(Record):
    """The run-time numbers of one worker profile; units stand in the names."""

    name: str
    cadence_ms: int
    drain_timeout_ms: int
    request_timeout_ms: int
    session_lease_ms: int
    heartbeat_ms: int
    journal_entries_max: int
    records_per_tick: int
    supervision_per_tick: int
    runs_default: int
    runs_max: int
    log_quota_bytes: int
    reserve_bytes: int
    retention_ms: int
    lost_retention_ms: int
    stop_grace_ms: int
    page_bytes: int
    cache_kib: int
    wal_bytes: int
    oom_score_adj: int

    def _check(self) -> None:
        for field, (least, most) in _BOUNDS.items():
            number = getattr(self, field)
            if type(number) is not int or not least <= number <= most:
                _invalid(field)
        if self.heartbeat_ms * 2 > self.session_lease_ms:
            _invalid("heartbeat_ms")
        if self.runs_default > self.runs_max:
            _invalid("runs_default")


def from_mapping(name: str, given: dict[str, Any]) -> WorkerProfile:
    """The profile from its parsed file; an unknown or missing number is refused by name."""
    for field in sorted(set(_BOUNDS) ^ set(given)):
        _invalid(field)
    return WorkerProfile(name=name, **given)


def _invalid(field: str) -> None:
    raise Invalid("profile_invalid", "A worker's number is missing or out of bounds.", field=field)
