"""How long each lease holds, on a clock that never steps.

Owns the reckoning. A plane's times are those of its own clock; what counts here is how long a lease
lasts, from the moment its request was sent. A router whose wall clock is wrong by a minute neither
drops a living lease nor keeps a dead one. A lease that a restart finds has only its wall time, by
the plane's clock as it was when the offer came, or by one that was set since: what is more, up to
its own length. It is renewed at once.
"""

from __future__ import annotations

from qinglong_edge.core.offer import NEW_CLAIM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from qinglong_edge.core.inbox import Entry
    from qinglong_edge.worker.ports import ClockPort


_CHANCE_MS = 1_000  # of a renewal that is on its way when its lease ends


class Leases:
    """Ends and next renewals by offer, in boottime ms."""

    def __init__(self, clock: ClockPort) -> None:
        self._clock = clock
        self._ends: dict[str, int] = {}
        self._due: dict[str, int] = {}

    def learned(self, entry: Entry, sent_boot_ms: int, *, known_before: bool = False) -> None:
        """A plane has told of this lease; an already running one is renewed at once."""
        duration_ms = entry.offer.lease.duration_ms
        self._ends[entry.offer_id] = sent_boot_ms + duration_ms
        self._due[entry.offer_id] = sent_boot_ms + (0 if known_before else duration_ms // 3)

    def ends_boot_ms(self, entry: Entry) -> int:
        """When the lease is over."""
        if entry.offer_id not in self._ends:
            lease = entry.offer.lease
            fresh = entry.offer.delivery_kind == NEW_CLAIM  # then it had just been acquired
            ahead_ms = max(0, entry.accepted_at_ms - lease.acquired_at_ms) if fresh else 0
            left_ms = lease.expires_at_ms - self._clock.wall_ms() + ahead_ms
            left_ms = min(left_ms, lease.duration_ms)
            now_ms = self._clock.boot_ms()
            self._ends[entry.offer_id] = now_ms + left_ms
            self._due[entry.offer_id] = now_ms
        return self._ends[entry.offer_id]

    def expired(self, entry: Entry) -> bool:
        """True once nothing may be done under the lease."""
        return self._clock.boot_ms() >= self.ends_boot_ms(entry)

    def outlived(self, offer_id: str) -> bool:
        """True once a lease has been over for so long that no request may be waited for."""
        end_ms = self._ends.get(offer_id)
        return end_ms is not None and self._clock.boot_ms() >= end_ms + _CHANCE_MS

    def due_boot_ms(self, entry: Entry) -> int:
        """When it is renewed next: at a third of its length, or earlier if `hasten` said so."""
        self.ends_boot_ms(entry)
        return self._due[entry.offer_id]

    def next_end(self) -> int | None:
        """When the first of those leases is over that are not over yet."""
        now_ms = self._clock.boot_ms()
        return min((end_ms for end_ms in self._ends.values() if end_ms > now_ms), default=None)

    def dues(self) -> Iterable[int]:
        """When each is renewed next."""
        return self._due.values()

    def hasten(self, offer_id: str, boot_ms: int) -> None:
        """Ask the plane by then: a deadline that it alone declares is over."""
        if offer_id in self._due:
            self._due[offer_id] = min(self._due[offer_id], boot_ms)

    def delay(self, offer_id: str, boot_ms: int) -> None:
        """Not before then: a renewal did not get through."""
        self._due[offer_id] = boot_ms

    def forget(self, offer_id: str) -> None:
        """The record needs no lease any more."""
        self._ends.pop(offer_id, None)
        self._due.pop(offer_id, None)
