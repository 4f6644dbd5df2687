"""Forgetting: settled records go with their receipt and their log, in bounded pages.

Owns the order: receipt, log, then the record that names them, if it is still the same. A log stays
until its completion was acknowledged and its window has passed, however little room there is. A
record that was settled here, whose log no plane will ever take, keeps it for a longer window, which
only a journal near its end shortens. What a wrong clock has dated far ahead would stay for years: a
journal near its end lets that go too. Works inside the tick: no timer, no listing.
"""

from __future__ import annotations

from qinglong_edge.core.errors import EdgeError
from qinglong_edge.core.limits import CLOCK_FLOOR_MS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qinglong_edge.core.inbox import Entry
    from qinglong_edge.worker.ports import (
        ArtifactsPort,
        ClockPort,
        InboxPort,
        ReceiptsPort,
        SayPort,
    )

_EVERY_MS = 30_000
_PAGE = 8


class Retention:
    """Takes a page of settled records now and then."""

    def __init__(
        self,
        *,
        store: InboxPort,
        receipt_store: ReceiptsPort,
        artifacts: ArtifactsPort,
        clock: ClockPort,
        entries_max: int,
        retention_ms: int,
        lost_retention_ms: int,
        say: SayPort,
    ) -> None:
        self._store = store
        self._receipts = receipt_store
        self._artifacts = artifacts
        self._clock = clock
        self._entries_max = entries_max
        self._retention_ms = retention_ms
        self._lost_retention_ms = lost_retention_ms
        self._say = say
        self._next_ms = 0

    def step(self) -> int:
        """How many records went; at most one page, and not more often than every 30 s."""
        now_ms = self._clock.boot_ms()
        if now_ms < self._next_ms:
            return 0
        self._next_ms = now_ms + _EVERY_MS
        gone = self._page()
        if gone == _PAGE:
            self._next_ms = now_ms  # more are due
        return gone

    def _page(self) -> int:
        now_ms = self._clock.wall_ms()
        before_ms = now_ms - self._retention_ms
        full = self._store.count() * 4 >= self._entries_max * 3
        dated = full and now_ms >= CLOCK_FLOOR_MS  # a clock that is not set yet tells no date
        found = self._store.retirable(
            before_ms=before_ms,
            lost_before_ms=before_ms if full else now_ms - self._lost_retention_ms,
            ahead_ms=now_ms + self._retention_ms if dated else None,
            limit=_PAGE,
        )
        return sum(self._forget(entry) for entry in found)

    def _forget(self, entry: Entry) -> bool:
        try:
            self._receipts.remove(entry.offer.attempt_id)
            if entry.log_id is not None:
                self._artifacts.remove(entry.log_id)
            return self._store.remove(entry)
        except (EdgeError, OSError) as error:
            code = error.code if isinstance(error, EdgeError) else "storage_unavailable"
            self._say("retention_failed", offer=entry.offer_id, code=code)
            return False
