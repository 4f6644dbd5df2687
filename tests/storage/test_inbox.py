"""The worker's journal on a real disk: claims, offers, compare-and-set, what a crash leaves."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.core import inbox
from qinglong_edge.core.errors import Corrupt, Invalid, Refused, Unavailable
from qinglong_edge.core.inbox import Ended, Settled
from qinglong_edge.storage import inbox_schema, migrations
from qinglong_edge.storage.connection import Database, Layout
from qinglong_edge.storage.inbox import CHECKSUMS, Inbox
from tests.unit import offers

LAYOUT = Layout(page_bytes=512, cache_kib=64, wal_bytes=65_536)
WORK = {
    "started_at_ms": 100,
    "log_id": "wlog-" + "1" * 30,
    "callback_sequence": 1,
    "token_digest": "b" * 64,
}
RUNS = {**WORK, "handle": "ql3lp1.x", "pid": 9, "pid_namespace": 5}


def opened(folder: Path, **given: Any) -> Inbox:
    return Inbox(str(folder), layout=LAYOUT, at_ms=1, **{"entries_max": 8, **given})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Inbox]:
    made = opened(tmp_path)
    yield made
    made.close()


def reopened(store: Inbox, folder: Path) -> Inbox:
    store.close()
    return opened(folder)


def test_the_file_is_private_and_of_one_program(store: Inbox, tmp_path: Path) -> None:
    path = tmp_path / "worker.db"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    store.close()
    other = tmp_path / "other"
    other.mkdir()
    foreign = Database(str(other / "worker.db"), LAYOUT, mode="wal")
    migrations.migrate(foreign, 1)
    foreign.close()
    with pytest.raises(Corrupt) as caught:
        opened(other)
    assert caught.value.code in ("schema_changed", "schema_too_new")


def test_an_offer_and_the_next_claim_are_one_step(store: Inbox, tmp_path: Path) -> None:
    store.put_claim(offers.CLAIM)
    following = offers.CLAIM.replace(offer_id="offer-2")
    outcome, entry = store.accept(offers.made(), following, 10)
    assert (outcome, entry.revision, entry.state) == ("accepted", 0, inbox.ACCEPTED)
    again = reopened(store, tmp_path)
    assert again.claim() == following
    assert again.get("offer-1") == entry
    again.close()


def test_a_delivery_again_is_a_replay_and_a_newer_lease_is_kept(store: Inbox) -> None:
    store.accept(offers.made(), None, 10)
    again = offers.made(deliveryKind="lease_recovery")
    assert store.accept(again, None, 11)[0] == "replayed"
    lease = {"version": 2, "renewedAtMs": 2_000, "expiresAtMs": 40_000, "updatedAtMs": 2_000}
    outcome, entry = store.accept(offers.made(lease=lease), None, 12)
    assert (outcome, entry.revision, entry.offer.lease.version) == ("renewed", 1, 2)
    assert store.get("offer-1") == entry
    with pytest.raises(Refused) as caught:
        store.accept(offers.made(executionRevision=offers.plan(timeoutMs=9)), None, 13)
    assert caught.value.code == "offer_conflict"


def test_a_whole_walk_keeps_every_field_and_survives_a_restart(
    store: Inbox, tmp_path: Path
) -> None:
    _outcome, entry = store.accept(offers.made(), None, 10)
    ended = Ended(exit_code=3, finished_at_ms=300, evidence="receipt", truncated=True, log_bytes=17)
    steps: list[tuple[str, dict[str, Any]]] = [
        (inbox.STARTING_ACKNOWLEDGED, {}),
        (inbox.LAUNCHING, WORK),
        (inbox.STARTED, RUNS),
        (inbox.RUNNING_ACKNOWLEDGED, {}),
        (inbox.RUNNING_ACKNOWLEDGED, {"ended": ended}),
        (inbox.COMPLETION_ACKNOWLEDGED, {"completed_at_ms": 400}),
    ]
    for state, changes in steps:
        entry = store.replace(entry, entry.moved(state, 20, **changes))
        store = reopened(store, tmp_path)
        assert store.get("offer-1") == entry
    assert (entry.revision, entry.ended, entry.pid_namespace) == (6, ended, 5)
    with pytest.raises(Refused) as caught:
        store.replace(entry, entry.moved(inbox.STARTED, 21, completed_at_ms=None))
    assert caught.value.code == "invalid_transition"
    store.close()


def test_of_two_who_change_one_record_the_second_is_refused(store: Inbox) -> None:
    _outcome, entry = store.accept(offers.made(), None, 10)
    store.replace(entry, entry.moved(inbox.STARTING_ACKNOWLEDGED, 20))
    with pytest.raises(Refused) as caught:
        store.replace(
            entry, entry.moved(inbox.RECOVERY_REQUIRED, 20, recovery_reason=inbox.PLANE_TERMINAL)
        )
    assert caught.value.code == "offer_revision_conflict"


def test_pages_go_by_id_and_are_bounded(store: Inbox) -> None:
    for name in ("b", "c", "a"):
        store.accept(offers.made(name), None, 10)
    assert [entry.offer_id for entry in store.page(limit=2)] == ["a", "b"]
    assert [entry.offer_id for entry in store.page(after="b", limit=2)] == ["c"]
    for limit in (0, 65):
        with pytest.raises(Invalid):
            store.page(limit=limit)


def test_a_full_journal_takes_no_more_and_every_record_counts(tmp_path: Path) -> None:
    store = opened(tmp_path, entries_max=2)
    _outcome, entry = store.accept(offers.made("a"), None, 10)
    _settled(store, entry)
    store.accept(offers.made("b"), None, 10)
    assert (store.count(), store.places_held()) == (2, 1)
    with pytest.raises(Unavailable) as caught:
        store.accept(offers.made("c"), offers.CLAIM, 10)
    assert caught.value.code == "capacity_exhausted"
    assert store.claim() is None
    assert store.accept(offers.made("b"), None, 11)[0] == "replayed"
    store.close()


def _settled(store: Inbox, entry: inbox.Entry, at_ms: int = 20) -> inbox.Entry:
    settled = Settled(at_ms=at_ms, by="evidence", reason="gone")
    reason = inbox.LEASE_LOST_STOPPED
    after = entry.moved(inbox.RECOVERY_REQUIRED, at_ms, recovery_reason=reason, settled=settled)
    return store.replace(entry, after)


def test_only_settled_records_go_and_only_as_they_were_seen(store: Inbox) -> None:
    _outcome, open_one = store.accept(offers.made("a"), None, 10)
    _outcome, entry = store.accept(offers.made("b"), None, 10)
    done = _settled(store, entry)
    assert [each.offer_id for each in store.holding()] == ["a"]
    assert store.retirable(before_ms=99, lost_before_ms=20, limit=8) == []
    assert store.retirable(before_ms=0, lost_before_ms=21, limit=8) == [done]
    with pytest.raises(Refused):
        store.remove(open_one)
    assert not store.remove(done.replace(revision=done.revision + 1))
    assert store.remove(done)
    assert store.get("b") is None
    assert store.count() == 1


def test_the_database_itself_refuses_a_record_without_the_fields_of_its_state(
    store: Inbox,
) -> None:
    store.accept(offers.made(), None, 10)
    for statement in (
        "UPDATE inbox SET state = 'started'",
        "UPDATE inbox SET state = 'nowhere'",
        "UPDATE inbox SET state = 'recovery_required'",
        "UPDATE inbox SET handle = 'x', started_at_ms = 1",
        "UPDATE inbox SET exit_code = 1",
        "UPDATE inbox SET settled_by = 'operator', settled_at_ms = 1",
        "UPDATE lease SET expires_at_ms = renewed_at_ms",
    ):
        with pytest.raises(Corrupt) as caught, store.database.write():
            store.database.execute(statement)
        assert caught.value.code == "constraint", statement


def test_a_row_that_cannot_be_read_is_named_and_kept(store: Inbox) -> None:
    store.accept(offers.made(), None, 10)
    with store.database.write():
        store.database.execute("UPDATE offer SET body = replace(body, 'true', 'evil')")
    with pytest.raises(Corrupt) as caught:
        store.get("offer-1")
    assert caught.value.code == "row_corrupt"
    assert store.count() == 1


def test_a_renewal_rewrites_the_lease_and_little_else(store: Inbox) -> None:
    """Trap 10: what changes with every renewal is narrow; the offer is written once."""
    _outcome, entry = store.accept(offers.made(), None, 10)
    lease = entry.offer.lease.replace(version=1, renewed_at_ms=5_000, expires_at_ms=35_000)
    before = os.path.getsize(f"{_path(store)}-wal")
    store.replace(entry, entry.renewed(lease, 20))
    assert os.path.getsize(f"{_path(store)}-wal") - before <= 4 * (512 + 24)


def test_the_pinned_checksums_are_those_of_the_texts() -> None:
    found = {number: migrations.checksum(text) for number, _name, text in inbox_schema.MIGRATIONS}
    assert found == CHECKSUMS


def _path(store: Inbox) -> str:
    row = store.database.row("SELECT file FROM pragma_database_list")
    assert row is not None
    return str(row[0])
