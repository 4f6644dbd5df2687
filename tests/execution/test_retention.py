"""Which logs go, in which order, and which never do."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from qinglong_edge.app import profiles
from qinglong_edge.core.commit import AttemptKey
from qinglong_edge.core.errors import Corrupt, EdgeError, Unavailable
from qinglong_edge.core.handle import Handle
from qinglong_edge.core.run import QUEUED, RUNNING, SUCCEEDED, Attempt, Run
from qinglong_edge.core.tombstone import Tombstone
from qinglong_edge.execution.retention import LOG_PRESSURE, Retention

NOW_MS = 2_000_000_000_000
RETENTION_MS = 1_000_000
PRESSURE_MS = 100_000
PRESSURE_BYTES = 500
NEEDED_BYTES = 100
PAGE = 4
DELETIONS = 2
BOOT = "4f1c2d3e-0000-4000-8000-000000000001"


def identity(kind: int, number: int) -> str:
    return f"019f7200-0000-7000-800{kind}-{number:012x}"


class Gone(NamedTuple):
    """What a log was."""

    disposition: str = "deleted"
    bytes: int = 10
    truncated: bool | None = None
    maximum_bytes: int | None = None
    observed_at_ms: int | None = None


class Clock:
    """A clock that counts who asks."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS
        self.up_ms = 0
        self.asked = 0

    def wall_ms(self) -> int:
        self.asked += 1
        return self.now_ms

    def boot_ms(self) -> int:
        return self.up_ms


class House:
    """Runs, their logs, the disk, and the order of what happens to them."""

    def __init__(self, ages_ms: list[int], *, free_bytes: int = 1000) -> None:
        self.runs = {number: _run(number) for number in range(1, len(ages_ms) + 1)}
        self.attempts = {n: _attempt(n, NOW_MS - age) for n, age in enumerate(ages_ms, 1)}
        self.sizes = dict.fromkeys(self.runs, 10)
        self.answers: dict[int, Gone | Exception] = {}
        self.refuse: dict[int, Exception] = {}
        self.free = free_bytes
        self.looks = 0
        self.pages: list[int | None] = []
        self.order: list[str] = []
        self.tombstones: dict[int, Tombstone] = {}
        self.believed = True
        self.clock = Clock()

    def retention(self) -> Retention:
        return Retention(
            runs=self,
            logs=self,
            record=self.record,
            clock=self.clock,
            trusted=lambda: self.believed,
            boot_id=BOOT,
            retention_ms=RETENTION_MS,
            pressure_ms=PRESSURE_MS,
            pressure_bytes=PRESSURE_BYTES,
            needed_bytes=NEEDED_BYTES,
            page=PAGE,
            deletions=DELETIONS,
        )

    def launched(self, number: int, boot_id: str) -> None:
        found = self.attempts[number]
        handle = Handle(handle_id=found.id, boot_id=boot_id, pid=number, pgid=number, start_ticks=1)
        self.attempts[number] = found.replace(handle=handle.encode())

    def get(self, number: int) -> Run | None:
        return self.runs.get(number)

    def oldest_log(self, after: AttemptKey) -> AttemptKey:  # noqa: ARG002 - the port
        numbers = [number for number in self.attempts if number not in self.tombstones]
        return AttemptKey(run_number=min(numbers, default=1) - 1, attempt=1)

    def retirable(
        self, after: AttemptKey, *, finished_before_ms: int | None, limit: int
    ) -> list[Attempt]:
        self.pages.append(finished_before_ms)
        assert limit == PAGE
        return [
            attempt
            for number, attempt in self.attempts.items()
            if number not in self.tombstones
            and number > after.run_number
            and attempt.finished_at_ms is not None
            and (finished_before_ms is None or attempt.finished_at_ms < finished_before_ms)
        ][:limit]

    def free_bytes(self) -> int:
        self.looks += 1
        return self.free

    def retire(self, run_id: str, attempt_id: str) -> Gone:
        number = int(attempt_id[-12:], 16)
        assert run_id == identity(1, number)
        answer = self.answers.get(number, Gone(bytes=self.sizes[number]))
        if isinstance(answer, Exception):
            raise answer
        self.order.append(f"log {number}")
        if number not in self.sizes:
            return Gone(disposition="already_absent", bytes=0)
        self.free += self.sizes[number]
        return answer

    def record(self, tombstone: Tombstone) -> str:
        number = tombstone.key.run_number
        if number in self.refuse:
            raise self.refuse.pop(number)
        self.order.append(f"tombstone {number}")
        self.tombstones[number] = tombstone
        return "inserted"

    @property
    def gone(self) -> list[int]:
        return list(self.tombstones)


def _run(number: int, status: str = SUCCEEDED) -> Run:
    return Run(
        number=number,
        id=identity(1, number),
        task_number=1,
        revision=1,
        status=status,
        version=3,
        trigger_kind="manual",
        recipe_number=1,
        created_at_ms=1,
    )


def _attempt(number: int, finished_ms: int) -> Attempt:
    return Attempt(
        run_number=number,
        attempt=1,
        id=identity(2, number),
        status=SUCCEEDED,
        log_quota_bytes=65_536,
        created_at_ms=1,
        finished_at_ms=finished_ms,
    )


OLD, MIDDLE, YOUNG = RETENTION_MS + 1, PRESSURE_MS + 1, 1


def test_with_room_only_what_is_older_than_the_retention_goes() -> None:
    house = House([OLD, RETENTION_MS, RETENTION_MS - 1, MIDDLE, YOUNG])
    retention = house.retention()
    assert retention.sweep() == 2
    assert house.gone == [1, 2]
    assert retention.sweep() == 0
    assert (retention.reason, retention.failed) == (None, 0)


def test_under_pressure_the_shorter_age_counts_and_is_told() -> None:
    house = House([OLD, MIDDLE, PRESSURE_MS - 1, YOUNG], free_bytes=PRESSURE_BYTES - 1)
    retention = house.retention()
    assert retention.sweep() == 2
    assert retention.reason == LOG_PRESSURE
    assert house.gone == [1, 2]


def test_exactly_the_pressure_is_no_pressure() -> None:
    house = House([MIDDLE], free_bytes=PRESSURE_BYTES)
    retention = house.retention()
    assert (retention.sweep(), retention.reason) == (0, None)


def test_below_the_reserve_settled_logs_go_oldest_first_whatever_their_age() -> None:
    house = House([YOUNG] * 9, free_bytes=NEEDED_BYTES - 45)
    retention = house.retention()
    assert retention.sweep() == 5
    assert house.gone == [1, 2, 3, 4, 5]
    assert retention.reason == LOG_PRESSURE
    assert house.free >= NEEDED_BYTES


def test_exactly_the_needed_room_touches_no_young_log() -> None:
    house = House([YOUNG], free_bytes=NEEDED_BYTES)
    assert house.retention().sweep() == 0


def test_the_log_goes_first_and_its_tombstone_last() -> None:
    house = House([OLD, OLD])
    house.retention().sweep()
    assert house.order == ["log 1", "tombstone 1", "log 2", "tombstone 2"]


def test_a_sweep_looks_once_at_the_clock_and_once_at_the_room() -> None:
    house = House([OLD] * 3)
    house.retention().sweep()
    assert (house.clock.asked, house.looks, len(house.pages)) == (1, 1, 1)


def test_a_sweep_that_finds_nothing_writes_nothing() -> None:
    house = House([])
    retention = house.retention()
    assert [retention.sweep() for _ in range(3)] == [0, 0, 0]
    assert house.order == []


def test_the_deletions_of_a_sweep_are_bounded_and_the_next_goes_on() -> None:
    house = House([OLD] * 9)
    retention = house.retention()
    for count in (2, 4, 6, 8, 9):
        retention.sweep()
        assert house.gone == list(range(1, count + 1))


def test_without_a_believed_clock_no_log_goes_by_age() -> None:
    house = House([OLD], free_bytes=NEEDED_BYTES)
    house.believed = False
    retention = house.retention()
    assert (retention.sweep(), house.clock.asked) == (0, 0)
    assert retention.reason == LOG_PRESSURE


def test_what_this_boot_launched_is_no_older_than_this_boot() -> None:
    """A box without a clock of its own: the boot task's log, dated months back until NTP came."""
    house = House([OLD, 90 * OLD, OLD, MIDDLE, OLD])
    for number in (2, 5):
        house.launched(number, BOOT)
    house.launched(3, BOOT.replace("1", "2"))
    retention = house.retention()
    house.clock.up_ms = RETENTION_MS - 1
    assert [retention.sweep() for _ in range(3)] == [1, 1, 0]
    assert (house.gone, retention.failed) == ([1, 3], 0)
    house.clock.up_ms = RETENTION_MS
    assert retention.sweep() == 2
    assert house.gone == [1, 3, 2, 5]


def test_below_the_reserve_this_boots_logs_go_as_well() -> None:
    house = House([OLD, OLD], free_bytes=0)
    for number in (1, 2):
        house.launched(number, BOOT)
    assert house.retention().sweep() == 2


def test_below_the_reserve_the_clock_does_not_matter() -> None:
    house = House([OLD, YOUNG], free_bytes=NEEDED_BYTES - 10)
    house.believed = False
    assert house.retention().sweep() == 1
    assert house.gone == [1]


@pytest.mark.parametrize("error", [OSError(5, "injected"), Corrupt("file_unsafe", "No.")])
def test_a_log_that_cannot_go_is_counted_passed_over_and_tried_again(error: Exception) -> None:
    house = House([OLD] * 7)
    house.answers[1] = house.answers[3] = error
    retention = house.retention()
    failures = []
    for _ in range(5):
        retention.sweep()
        failures.append(retention.failed)
    assert house.gone == [2, 4, 5, 6, 7]
    assert failures[:2] == [1, 1]
    house.answers.clear()
    for _ in range(3):
        retention.sweep()
    assert sorted(house.gone) == [1, 2, 3, 4, 5, 6, 7]
    assert retention.failed == 0


def test_logs_that_cannot_go_do_not_stop_those_behind_them_below_the_reserve() -> None:
    house = House([YOUNG] * 12, free_bytes=NEEDED_BYTES - 10)
    for number in range(1, 6):
        house.answers[number] = Corrupt("file_unsafe", "No.")
    retention = house.retention()
    assert (retention.sweep(), retention.failed) == (1, 5)
    assert house.gone == [6]


def test_a_tombstone_that_cannot_be_written_is_written_when_its_log_is_found_absent() -> None:
    house = House([OLD, OLD])
    house.refuse[1] = Unavailable("no_space", "There is no room.")
    retention = house.retention()
    assert (retention.sweep(), retention.failed) == (1, 1)
    house.answers[1] = Gone(disposition="already_absent", bytes=0)
    retention.sweep()
    assert sorted(house.gone) == [1, 2]
    assert (house.tombstones[1].disposition, house.tombstones[1].bytes) == ("already_absent", 0)


@pytest.mark.parametrize("status", [QUEUED, RUNNING, "retry_wait"])
def test_a_log_of_a_run_that_is_not_settled_is_never_touched(status: str) -> None:
    house = House([OLD, OLD], free_bytes=0)
    house.runs[1] = _run(1, status)
    del house.runs[2]
    retention = house.retention()
    assert (retention.sweep(), retention.failed) == (0, 2)
    assert retention.make_room(NEEDED_BYTES) is False
    assert house.order == []


def test_room_that_cannot_be_seen_touches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House([OLD])
    monkeypatch.setattr(house, "free_bytes", _broken)
    for call in (house.retention().sweep, lambda: house.retention().make_room(9)):
        with pytest.raises(OSError, match="injected"):
            call()
    assert (house.order, house.pages) == ([], [])


def _broken() -> int:
    raise OSError(5, "injected")


# -- room for a launch ----------------------------------------------------------------------------


def test_a_launch_that_lacks_room_gets_it_from_the_oldest_logs() -> None:
    house = House([YOUNG] * 9, free_bytes=30)
    assert house.retention().make_room(NEEDED_BYTES) is True
    assert house.gone == [1, 2, 3, 4, 5, 6, 7]


def test_a_launch_that_has_room_deletes_nothing() -> None:
    house = House([YOUNG], free_bytes=NEEDED_BYTES)
    assert house.retention().make_room(NEEDED_BYTES) is False
    assert house.order == []


def test_a_launch_is_told_when_nothing_could_go() -> None:
    house = House([], free_bytes=0)
    retention = house.retention()
    assert retention.make_room(NEEDED_BYTES) is False
    assert retention.reason == LOG_PRESSURE


def test_a_launch_does_not_wait_for_a_whole_history_to_go() -> None:
    house = House([YOUNG] * 100, free_bytes=0)
    house.sizes = dict.fromkeys(house.sizes, 0)
    assert house.retention().make_room(NEEDED_BYTES) is True
    assert len(house.gone) == 8 * PAGE


def test_room_that_another_has_made_meanwhile_is_seen_before_each_page() -> None:
    house = House([YOUNG] * 9, free_bytes=0)
    house.sizes = dict.fromkeys(house.sizes, 0)
    looks = iter([0, NEEDED_BYTES])
    house.free_bytes = lambda: next(looks)  # type: ignore[method-assign]
    assert house.retention().make_room(NEEDED_BYTES) is True
    assert len(house.gone) == PAGE


# -- what a tombstone says ------------------------------------------------------------------------


def test_a_tombstone_says_when_and_why_the_log_went() -> None:
    house = House([OLD])
    house.answers[1] = Gone(truncated=True, maximum_bytes=65_536, observed_at_ms=7)
    house.retention().sweep()
    told = house.tombstones[1]
    assert (told.run_id, told.attempt_id) == (identity(1, 1), identity(2, 1))
    assert told.finished_at_ms == NOW_MS - OLD
    assert told.eligible_at_ms == NOW_MS - OLD + RETENTION_MS
    assert told.retired_at_ms == NOW_MS
    assert (told.truncated, told.maximum_bytes, told.observed_at_ms) == (True, 65_536, 7)


def test_without_a_fact_the_attempts_own_record_of_truncation_counts() -> None:
    house = House([OLD])
    house.attempts[1] = house.attempts[1].replace(log_truncated=False)
    house.retention().sweep()
    assert (house.tombstones[1].truncated, house.tombstones[1].maximum_bytes) == (False, None)


def test_a_clock_that_stepped_back_makes_no_tombstone_older_than_its_end() -> None:
    house = House([YOUNG], free_bytes=0)
    house.clock.now_ms = 5
    house.retention().sweep()
    told = house.tombstones[1]
    assert told.retired_at_ms == told.eligible_at_ms == told.finished_at_ms == NOW_MS - YOUNG


# -- profiles -------------------------------------------------------------------------------------


def test_the_profiles_keep_the_numbers_of_the_decision() -> None:
    edge, standalone = profiles.load("edge"), profiles.load("standalone")
    day_ms = 86_400_000
    assert (edge.log_retention_ms, standalone.log_retention_ms) == (7 * day_ms, 30 * day_ms)
    assert (edge.log_pressure_ms, standalone.log_pressure_ms) == (day_ms, day_ms)
    assert (edge.log_pressure_bytes, standalone.log_pressure_bytes) == (64 << 20, 256 << 20)
    assert (edge.log_page, edge.log_deletions) == (4, 2)
    assert (standalone.log_page, standalone.log_deletions) == (16, 8)


@pytest.mark.parametrize(
    "changes",
    [
        {"log_pressure_ms": 59_999},
        {"log_pressure_ms": 8 * 86_400_000},
        {"log_page": 0, "log_deletions": 0},
        {"log_page": 65},
        {"log_deletions": 0},
        {"log_deletions": 5},
    ],
)
def test_a_profile_out_of_bounds_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(EdgeError) as caught:
        profiles.load("edge").replace(**changes)
    assert caught.value.code == "profile_invalid"
