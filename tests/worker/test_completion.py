"""Evidence, log, completion, receipt: in this order, whatever fails between."""

from __future__ import annotations

import pytest

from qinglong_edge.core import inbox
from qinglong_edge.core.errors import Refused, Unavailable
from qinglong_edge.core.evidence import Stopped
from qinglong_edge.core.exchange import Control
from qinglong_edge.worker.executor import End
from qinglong_edge.worker.leases import Leases
from tests.unit import offers
from tests.worker.world import World

END = End(exit_code=0, finished_at_ms=2_500, evidence=inbox.RECEIPT, word="whole")


def test_the_log_is_stored_before_the_completion_and_the_receipt_goes_last(world: World) -> None:
    world.at(inbox.RUNNING_ACKNOWLEDGED)
    world.executor.end = END
    assert world.completion.recover("offer-1") == "completed"
    assert [what for what, _state in world.plane.asked] == ["upload", "complete"]
    length, sent = world.plane.uploaded[0]
    assert len(sent) == length
    assert sent.endswith(b"worker-log")
    assert world.state == inbox.COMPLETION_ACKNOWLEDGED
    assert world.receipts.removed == [offers.ATTEMPT]
    assert world.logs.opened == 0
    assert world.completion.recover("offer-1") == "already_completed"
    assert len(world.plane.asked) == 2


def test_the_log_s_bytes_are_durable_before_their_number_is(world: World) -> None:
    """Else a power cut between the two leaves a log that is too short for ever."""
    world.at(inbox.RUNNING_ACKNOWLEDGED)
    assert world.completion.end_told("offer-1", END)
    assert world.logs.settled == [True]
    ended = world.entry.ended
    assert (ended and ended.log_bytes) == len(b"worker-log")
    assert world.completion.recover("offer-1") == "completed"
    assert world.logs.settled == [True]


def test_an_end_completes_a_record_that_never_heard_of_running(world: World) -> None:
    for state in (inbox.LAUNCHING, inbox.STARTED):
        world.at(state)
        world.executor.end = END
        assert world.completion.recover("offer-1") == "completed"
        world.store.remove(world.entry)


def test_an_upload_that_fails_changes_nothing_and_keeps_the_receipt(world: World) -> None:
    world.at(inbox.RUNNING_ACKNOWLEDGED)
    world.executor.end = END
    world.plane.answers["upload"] = [Unavailable("response_invalid", "another digest")]
    with pytest.raises(Unavailable):
        world.completion.recover("offer-1")
    assert world.state == inbox.RUNNING_ACKNOWLEDGED
    assert (world.receipts.removed, world.logs.opened) == ([], 0)
    assert world.completion.recover("offer-1") == "completed"


def test_the_same_bytes_are_uploaded_again_though_the_log_has_grown(world: World) -> None:
    """A grandchild may write on; what was said to be the log stays what it was."""
    world.at(inbox.RUNNING_ACKNOWLEDGED)
    world.executor.end = END.replace(word="late")
    world.plane.answers["complete"] = [Unavailable("transport_unavailable", "lost")]
    with pytest.raises(Unavailable):
        world.completion.recover("offer-1")
    world.logs.content = b"worker-log and more of it"
    assert world.completion.recover("offer-1") == "completed"
    assert world.plane.uploaded[0] == world.plane.uploaded[1]
    assert world.entry.ended is not None
    assert world.entry.ended.truncated is None


@pytest.mark.parametrize(
    ("word", "fact", "truncated"),
    [
        ("whole", None, False),
        ("cut", None, True),
        ("late", None, None),
        ("", True, True),
        ("", None, None),
    ],
)
def test_truncation_is_what_was_seen_and_never_inferred(
    world: World, word: str, fact: bool | None, truncated: bool | None
) -> None:
    world.at(inbox.STARTED)
    world.logs.truncated = fact
    world.executor.end = END.replace(word=word)
    assert world.completion.recover("offer-1") == "completed"
    assert world.entry.ended is not None
    assert world.entry.ended.truncated is truncated


def test_a_log_that_is_gone_is_sent_as_nothing_of_which_nobody_knows(world: World) -> None:
    world.at(inbox.STARTED)
    world.executor.end = END
    world.logs.content = None
    assert world.completion.recover("offer-1") == "completed"
    assert world.entry.ended is not None
    assert (world.entry.ended.log_bytes, world.entry.ended.truncated) == (0, None)


def test_a_log_that_a_power_cut_has_shortened_is_sent_as_it_is(world: World) -> None:
    """The record of its length was on the device and its last bytes were not: that run would hold
    its place and its lease for ever."""
    world.at(inbox.RUNNING_ACKNOWLEDGED)
    assert world.completion.end_told("offer-1", END)
    world.logs.content = b"worker"
    assert world.completion.recover("offer-1") == "completed"
    length, sent = world.plane.uploaded[0]
    assert (len(sent), sent[-6:]) == (length, b"worker")
    assert b'"truncated":null' in sent
    assert world.logs.opened == 0
    assert "log_shrunk" in [event for event, _facts in world.said]


def test_nothing_is_sent_without_the_session_or_the_lease(world: World) -> None:
    world.at(inbox.STARTED)
    world.executor.end = END
    world.session.current = None
    assert world.completion.recover("offer-1") == "deferred"
    world.session.current = offers.WORKER
    world.clock.turn(30_000)
    assert world.completion.recover("offer-1") == "deferred"
    assert world.plane.asked == []
    assert world.entry.ended is not None  # the evidence is kept all the same


def test_a_receipt_that_stays_is_removed_later(world: World) -> None:
    world.at(inbox.STARTED)
    world.executor.end = END
    world.receipts.fails = True
    assert world.completion.recover("offer-1") == "completed"
    world.receipts.fails = False
    assert world.completion.recover("offer-1") == "already_completed"
    assert world.receipts.removed == [offers.ATTEMPT]


# -- supervision ----------------------------------------------------------------------------------


def test_a_lease_is_renewed_at_a_third_and_not_before(world: World) -> None:
    """Trap 10: ten seconds of thirty, not every tick."""
    world.at(inbox.RUNNING_ACKNOWLEDGED)
    for _ in range(5):
        assert world.supervisor.step(world.entry) == "running"
        world.clock.turn(1_900)
    before = world.store.database.commits
    world.clock.turn(500)
    assert world.supervisor.step(world.entry) == "renewed"
    assert world.entry.offer.lease.version == 1
    assert world.store.database.commits == before + 1


def test_a_restart_under_a_clock_that_is_ahead_keeps_a_living_lease(world: World) -> None:
    """Trap 12: the plane's times are those of its own clock, here 26 s behind this one."""
    world.clock.turn(25_000)
    entry = world.at(inbox.RUNNING_ACKNOWLEDGED)
    world.clock.turn(5_000)
    leases = Leases(world.clock)
    assert not leases.expired(entry)
    assert leases.due_boot_ms(entry) <= world.clock.boot_ms()
    world.clock.turn(24_999)
    assert not leases.expired(entry)
    world.clock.turn(1)
    assert leases.expired(entry)


def test_a_restart_under_a_clock_that_was_set_meanwhile_keeps_a_living_lease(world: World) -> None:
    """It was a minute behind when the offer came, and is right now."""
    world.clock.wall = 600
    entry = world.at(inbox.RUNNING_ACKNOWLEDGED)
    world.clock.turn(5_000)
    world.clock.wall = 6_000
    leases = Leases(world.clock)
    assert not leases.expired(entry)
    world.clock.turn(25_000)
    assert leases.expired(entry)


def test_a_requested_stop_comes_after_the_new_lease_is_durable(world: World) -> None:
    world.at(inbox.RUNNING_ACKNOWLEDGED)
    lease = world.entry.offer.lease.replace(version=1)
    world.plane.answers["control"] = Control(status="stop_requested", lease=lease, reason="user")
    world.clock.turn(10_000)
    assert world.supervisor.step(world.entry) == "stop_requested"
    assert world.entry.offer.lease.version == 1
    assert world.executor.stops == ["offer-1"]
    assert world.state == inbox.RUNNING_ACKNOWLEDGED  # its receipt ends it, not the stop


def test_an_over_lease_stops_asks_nothing_and_settles_by_proof(world: World) -> None:
    world.at(inbox.RUNNING_ACKNOWLEDGED)
    world.clock.turn(30_000)
    world.supervisor.step(world.entry)
    assert world.plane.asked == []
    assert world.executor.stops == ["offer-1"]
    assert world.entry.recovery_reason == inbox.LEASE_LOST_STOPPED
    assert not world.entry.holds_place


def test_what_cannot_be_proven_stopped_keeps_its_place_until_it_is(world: World) -> None:
    world.at(inbox.RUNNING_ACKNOWLEDGED)
    world.executor.stop_result = Stopped(conclusive=False, reason="provider_unavailable")
    world.clock.turn(30_000)
    world.supervisor.step(world.entry)
    assert world.entry.recovery_reason == inbox.LEASE_LOST_UNVERIFIED
    assert world.entry.holds_place
    world.supervisor.step(world.entry)
    assert world.entry.holds_place
    world.executor.is_gone = True
    world.clock.turn(5_000)
    assert world.supervisor.step(world.entry) == "settled"
    assert not world.entry.holds_place


def test_a_refused_renewal_asks_how_the_lease_stands_before_it_is_lost(world: World) -> None:
    """Trap 7: the reply to the renewal before may have been lost."""
    world.at(inbox.RUNNING_ACKNOWLEDGED)
    world.clock.turn(10_000)
    newer = {"version": 3, "renewedAtMs": 2_000, "expiresAtMs": 32_000, "updatedAtMs": 2_000}
    world.plane.answers["control"] = [Refused("fenced", "version")]
    world.plane.answers["offers"] = [offers.made(deliveryKind="lease_recovery", lease=newer)]
    assert world.supervisor.step(world.entry) == "lease_recovered"
    assert world.entry.offer.lease.version == 3
    assert world.supervisor.step(world.entry) == "renewed"
    assert world.entry.offer.lease.version == 4


def test_a_renewal_refused_for_good_stops_the_process(world: World) -> None:
    world.at(inbox.RUNNING_ACKNOWLEDGED)
    world.clock.turn(10_000)
    world.plane.answers["control"] = [Refused("fenced", "lease")]
    world.plane.answers["offers"] = [Refused("fenced", "lease")]
    world.supervisor.step(world.entry)
    assert world.executor.stops == ["offer-1"]
    assert not world.entry.holds_place


def test_a_process_that_vanished_is_not_renewed_and_settles_with_its_lease(world: World) -> None:
    """Trap 14: gone is no end; a lease that nobody renews tells the plane."""
    world.at(inbox.RUNNING_ACKNOWLEDGED)
    world.executor.is_gone = True
    world.clock.turn(10_000)
    world.supervisor.step(world.entry)
    assert world.entry.recovery_reason == inbox.LAUNCH_OUTCOME_UNKNOWN
    assert world.entry.holds_place
    world.clock.turn(20_000)
    assert world.supervisor.step(world.entry) == "settled"
    assert world.plane.asked == []


def test_a_late_receipt_still_completes_what_nobody_knew(world: World) -> None:
    world.at(inbox.RUNNING_ACKNOWLEDGED)
    world.executor.is_gone = True
    world.supervisor.step(world.entry)
    world.executor.end = END
    world.clock.turn(6_000)
    assert world.supervisor.step(world.entry) == "completed"
    assert world.state == inbox.COMPLETION_ACKNOWLEDGED


@pytest.mark.parametrize("what", ["upload", "complete"])
def test_a_late_receipt_is_sent_again_while_the_lease_lasts(world: World, what: str) -> None:
    """One busy moment of the plane must not turn a known end into an unknown one."""
    world.at(inbox.RUNNING_ACKNOWLEDGED)
    world.executor.is_gone = True
    world.supervisor.step(world.entry)
    world.executor.end = END
    world.plane.answers[what] = [Unavailable("plane_unavailable", "503")]
    world.clock.turn(6_000)
    world.supervisor.step(world.entry)
    assert world.entry.holds_place
    world.clock.turn(6_000)
    assert world.supervisor.step(world.entry) == "completed"


def test_a_late_receipt_of_what_the_plane_has_ended_otherwise_frees_its_place(
    world: World,
) -> None:
    world.at(inbox.RUNNING_ACKNOWLEDGED)
    world.executor.is_gone = True
    world.supervisor.step(world.entry)
    world.executor.end = END
    world.plane.answers["complete"] = "already_terminal"
    world.clock.turn(6_000)
    assert world.supervisor.step(world.entry) == "settled"


@pytest.mark.parametrize("unknown", [False, True])
def test_a_log_that_is_refused_for_good_settles_once_and_asks_no_more(
    world: World, unknown: bool
) -> None:
    world.at(inbox.RUNNING_ACKNOWLEDGED)
    if unknown:
        world.executor.is_gone = True
        world.supervisor.step(world.entry)
        world.clock.turn(6_000)
    world.executor.end = END
    world.executor.is_gone = True
    world.clock.turn(10_000)
    world.plane.answers = {what: Refused("fenced", "lost") for what in ("upload", "offers")}
    assert world.supervisor.step(world.entry) == "settled"
    assert [what for what, _state in world.plane.asked] == ["upload", "offers"]
    events = [event for event, _facts in world.said]
    assert (events.count("lease_lost"), events.count("settled")) == (1, 1)
    assert (vars(world.leases)["_ends"], vars(world.supervisor)["_told"]) == ({}, {})


def test_a_completion_whose_reply_was_lost_is_not_taken_for_another_end(world: World) -> None:
    world.at(inbox.RUNNING_ACKNOWLEDGED)
    world.executor.end = END
    world.plane.answers["complete"] = [Unavailable("plane_unavailable", "504"), "already_completed"]
    world.plane.answers["control"] = [Control(status="terminal", lease=None, reason="succeeded")]
    world.clock.turn(10_000)
    world.supervisor.step(world.entry)
    assert world.state == inbox.RUNNING_ACKNOWLEDGED
    assert world.supervisor.step(world.entry) == "completed"


def test_an_operator_frees_a_place_but_not_under_a_living_process(world: World) -> None:
    world.at(inbox.RUNNING_ACKNOWLEDGED)
    world.executor.is_alive = True
    with pytest.raises(Refused) as caught:
        world.supervisor.settle_by_operator("offer-1", "seen")
    assert caught.value.code == "process_alive"
    world.executor.is_alive = False
    entry = world.supervisor.settle_by_operator("offer-1", "seen")
    assert entry.settled is not None
    assert (entry.settled.by, entry.settled.reason) == ("operator", "seen")


def test_a_lease_is_kept_before_another_log_is_sent(world: World) -> None:
    """Trap 11: what is due of a running offer goes first, and nothing else of it does."""
    world.at(inbox.RUNNING_ACKNOWLEDGED)
    world.supervisor.keep(world.entry)
    assert world.plane.asked == []
    world.clock.turn(10_000)
    world.plane.down = True
    world.supervisor.keep(world.entry)
    assert world.plane.asked == []
    world.plane.down = False
    world.supervisor.keep(world.entry)
    assert [what for what, _state in world.plane.asked] == ["control"]
    world.supervisor.keep(world.entry)
    assert len(world.plane.asked) == 1
    assert world.state == inbox.RUNNING_ACKNOWLEDGED


@pytest.mark.parametrize("why", ["gone", "fenced", "over", "started"])
def test_a_lease_that_is_not_to_be_renewed_is_not_kept(world: World, why: str) -> None:
    world.at(inbox.STARTED if why == "started" else inbox.RUNNING_ACKNOWLEDGED)
    world.clock.turn(30_000 if why == "over" else 10_000)
    world.executor.is_gone = why == "gone"
    if why == "fenced":
        world.session.current = None
    world.supervisor.keep(world.entry)
    assert world.plane.asked == []


def test_a_renewal_that_does_not_get_through_is_said_and_stops_nothing(world: World) -> None:
    world.at(inbox.RUNNING_ACKNOWLEDGED)
    world.clock.turn(10_000)
    world.plane.answers["control"] = Unavailable("transport_unavailable", "away")
    world.supervisor.keep(world.entry)
    assert world.said[-1] == (
        "offer_waits",
        {"offer": "offer-1", "code": "transport_unavailable"},
    )
    assert world.executor.stops == []


def test_an_end_that_the_journal_cannot_take_is_not_acknowledged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wrapper then leaves its file; the worker goes on."""
    world.at(inbox.RUNNING_ACKNOWLEDGED)

    def fail(_offer_id: str) -> None:
        raise Unavailable("database_failed", "EIO")

    end = End(exit_code=0, finished_at_ms=3_000, evidence=inbox.RECEIPT, word="whole")
    with monkeypatch.context() as patch:
        patch.setattr(world.store, "get", fail)
        assert not world.completion.end_told("offer-1", end)
    assert world.entry.ended is None
    assert world.completion.end_told("offer-1", end)
