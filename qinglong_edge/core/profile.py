"""A profile: every number that differs between a router and a larger box.

Owns the value; the numbers themselves stand in ``profiles/*.toml`` with a reason each. Code never
asks which profile it runs under, only for a number.
"""

from __future__ import annotations

from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.limits import JOURNAL_PAGE_MAX, LOG_QUOTA_BYTES_MAX, LOG_QUOTA_BYTES_MIN
from qinglong_edge.core.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LOG_AGE_MS_MIN = 60_000  # so long a log can be read, whatever its run came to


class Profile(Record):
    """The run-time numbers of one profile; units stand in the names."""

    name: str
    active_runs_max: int
    log_quota_bytes: int
    reserve_bytes: int
    log_retention_ms: int
    log_pressure_ms: int
    log_pressure_bytes: int
    log_page: int
    log_deletions: int
    misfire_grace_ms: int
    cleanup_interval_ms: int
    cleanup_page: int
    receipt_retention_ms: int
    stop_bound_ms: int
    history_runs_max: int
    history_age_ms: int
    audit_rows_max: int
    sweep_page: int
    stop_grace_ms: int
    page_bytes: int
    cache_kib: int
    wal_bytes: int
    oom_score_adj: int

    def _check(self) -> None:
        for field in self._fields:
            number = getattr(self, field)
            if field != "name" and (type(number) is not int or number < 0):
                raise Invalid(
                    "profile_invalid", "A profile number is not a whole number.", field=field
                )
        if not LOG_QUOTA_BYTES_MIN <= self.log_quota_bytes <= LOG_QUOTA_BYTES_MAX:
            raise Invalid("profile_invalid", "A log quota is 64 KiB to 1 GiB.")
        if not _LOG_AGE_MS_MIN <= self.log_pressure_ms <= self.log_retention_ms:
            raise Invalid(
                "profile_invalid", "Logs stay at least a minute, under pressure no longer."
            )
        if not 1 <= self.log_deletions <= self.log_page <= JOURNAL_PAGE_MAX:
            raise Invalid("profile_invalid", "A page of logs is 1 to 64, deletions are within it.")
        if not self.active_runs_max or not 1 <= self.cleanup_page <= JOURNAL_PAGE_MAX:
            raise Invalid("profile_invalid", "A profile allows no run, or an unbounded page.")


def from_mapping(name: str, given: dict[str, Any]) -> Profile:
    """The profile from its parsed file; an unknown or missing number is refused by name."""
    known = set(Profile._fields) - {"name"}
    for field in sorted(known ^ set(given)):
        raise Invalid(
            "profile_invalid", "A profile file lacks a number or has an unknown one.", field=field
        )
    return Profile(name=name, **given)
