"""What goes from a worker's journal, and when: by age, by want of room, by no clock's error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.core import inbox
from qinglong_edge.core.limits import CLOCK_FLOOR_MS
from qinglong_edge.storage.inbox import Inbox
from qinglong_edge.worker.retention import Retention
from tests.unit import offers
from tests.worker.test_session import Home, _delivered, claims, puller
from tests.worker.world import Receipts


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(str(tmp_path))
    yield made
    made.store.close()


def test_a_full_journal_asks_for_nothing_and_goes_on_once_it_is_not(home: Home) -> None:
    """Trap 3: retention makes room; nothing counts against the worker meanwhile."""
    home.steps()
    home.plane.offer = _delivered
    made, places = puller(home, runs_max=64)
    while made.pull() is not None:
        pass
    assert (home.store.count(), places.free(), len(claims(home))) == (8, 0, 8)
    receipts = Receipts()
    retention = _retention(home, receipts)
    for entry in home.store.holding():
        _fail(home.store, entry, 2_500)
    assert retention.step() == 0
    home.clock.turn(70_000)
    assert retention.step() == 8
    assert len(receipts.removed) == 8
    assert places.free() == 8


def test_a_clock_that_was_ahead_does_not_fill_the_journal_for_ever(home: Home) -> None:
    """A router that believed in another year keeps what it settled then while there is room."""
    year_ms = 365 * 86_400_000
    home.clock.wall = CLOCK_FLOOR_MS + 2 * year_ms
    for number in range(5):
        _settled(home, f"offer-{number}")
    home.clock.wall = CLOCK_FLOOR_MS + year_ms
    retention = _retention(home, Receipts())
    assert retention.step() == 0
    _settled(home, "offer-a")
    home.clock.boot += 60_000
    home.clock.wall -= 3 * year_ms  # not set after a boot: no date at all
    assert retention.step() == 0
    home.clock.boot += 60_000
    home.clock.wall += 3 * year_ms
    assert retention.step() == 5  # three quarters are full
    assert [entry.offer_id for entry in home.store.page()] == ["offer-a"]
    home.clock.turn(60_001)
    assert retention.step() == 1


def _retention(home: Home, receipts: Receipts) -> Retention:
    return Retention(
        store=home.store,
        receipt_store=receipts,
        artifacts=_Artifacts(),
        clock=home.clock,
        entries_max=8,
        retention_ms=60_000,
        lost_retention_ms=600_000,
        say=lambda _event, /, **_facts: None,
    )


def _settled(home: Home, offer_id: str) -> None:
    _outcome, entry = home.store.accept(offers.made(offer_id), None, home.clock.wall_ms())
    _fail(home.store, entry, home.clock.wall_ms())


class _Artifacts:
    def prepare(self, *_ids: str) -> Any:
        """Not asked here."""

    def open(self, *_ids: str) -> Any:
        """Not asked here."""

    def remove(self, _log_id: str) -> bool:
        return True


def _fail(store: Inbox, entry: inbox.Entry, at_ms: int) -> None:
    for state in (
        inbox.STARTING_ACKNOWLEDGED,
        inbox.START_FAILED,
        inbox.START_FAILURE_ACKNOWLEDGED,
    ):
        entry = store.replace(entry, entry.moved(state, at_ms))
