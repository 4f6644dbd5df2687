"""Retention over a real database and real logs: whoever dies where, the next sweep converges."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from qinglong_edge.artifact.logs import LogStore
from qinglong_edge.core.commit import Commit
from qinglong_edge.core.run import LOST, Story
from qinglong_edge.core.tombstone import Tombstone
from qinglong_edge.execution.retention import Retention
from qinglong_edge.storage.store import Store
from qinglong_edge.system.files import Files, Space
from tests.storage.building import add_task, ended, identity, key, put, queued, running, state

QUOTA = 65_536
RESERVE = 1_000_000


class Dead(BaseException):
    """The owner dies here."""


class Disk(Files):
    """A small disk on which an owner may die."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.room = RESERVE + QUOTA
        self.die_at = 0
        self.effects = 0

    def effect(self) -> None:
        self.effects += 1
        if self.effects == self.die_at:
            raise Dead

    def space(self, path: str) -> Space:  # noqa: ARG002
        held = sum(each.stat().st_size for each in self.root.rglob("*.log"))
        return Space(bytes=max(0, self.room - held), inodes=None)

    def remove(self, path: str) -> bool:
        there = os.path.lexists(path)
        if there:
            self.effect()
        return super().remove(path)

    def sync_directory(self, path: str) -> None:
        self.effect()
        super().sync_directory(path)


class Clock:
    """A clock that stands."""

    def wall_ms(self) -> int:
        return 1_000

    def boot_ms(self) -> int:
        return 0


class House:
    """One owner's state with logs."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        root = folder / "logs"
        root.mkdir(0o700)
        self.disk = Disk(root)
        self.logs = LogStore(str(root), self.disk, reserve_bytes=RESERVE)
        self.task = add_task(store)

    def add(self, story: Story, data: bytes = b"0123456789", *, journal: bool = False) -> None:
        assert story.attempt is not None
        story.attempt = story.attempt.replace(log_quota_bytes=QUOTA)
        room, self.disk.room = self.disk.room, 1 << 40
        log = self.logs.prepare(story.run.id, story.attempt.id, QUOTA)
        self.logs.adopt(log, story.run.id, story.attempt.id)
        os.write(log.fd, data)
        self.logs.release(log)
        self.disk.room = room
        put(self.store, story, journal=journal)

    def retention(self, *, retention_ms: int = 1 << 40) -> Retention:
        def record(tombstone: Tombstone) -> None:
            self.disk.effect()
            self.store.bury([tombstone])
            self.disk.effect()

        return Retention(
            runs=self.store.runs,
            logs=self.logs,
            record=record,
            clock=Clock(),
            trusted=lambda: True,
            boot_id="another",
            retention_ms=retention_ms,
            pressure_ms=retention_ms,
            pressure_bytes=0,
            needed_bytes=RESERVE + QUOTA,
            page=2,
            deletions=2,
        )

    def kept(self, number: int) -> bool:
        return self.logs.size(identity(number), identity(1000 + number)) is not None

    def buried(self, number: int) -> Tombstone | None:
        return self.store.tombstones.get(key(number))


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with _house(tmp_path) as made:
        yield made


class _house:  # noqa: N801 - a context, not a noun
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._state = state(folder)

    def __enter__(self) -> House:
        return House(self._state.__enter__(), self._folder)

    def __exit__(self, *_error: object) -> None:
        self._state.__exit__(None, None, None)


def test_only_settled_logs_make_room_whatever_else_is_there(house: House) -> None:
    """Waiting, running and journalled runs keep their logs; a lost one is settled."""
    house.add(ended(house.task, 1), journal=True)
    house.add(running(house.task, 2), journal=True)
    house.add(queued(house.task, 3))
    house.add(ended(house.task, 4, LOST))
    house.add(ended(house.task, 5))
    assert house.retention().make_room(RESERVE + QUOTA) is True
    assert [house.kept(number) for number in range(1, 6)] == [True, True, True, False, False]
    assert house.retention().make_room(RESERVE + QUOTA) is False
    house.store.commit(Commit(at_ms=30, actor="test", changes=(), resolve=(key(1),)))
    assert house.retention().make_room(RESERVE + QUOTA) is True
    assert [house.kept(number) for number in (1, 2, 3)] == [False, True, True]


def test_room_is_made_for_exactly_one_log_more(house: House) -> None:
    for number in range(1, 6):
        house.add(ended(house.task, number), b"x" * 100)
    house.disk.room = RESERVE + QUOTA + 250
    assert house.retention().sweep() == 3
    assert [house.kept(number) for number in range(1, 6)] == [False] * 3 + [True] * 2
    house.logs.prove_capacity(QUOTA)


def test_a_tombstone_is_read_back_as_it_was_written(house: House) -> None:
    house.add(ended(house.task, 1))
    house.retention(retention_ms=60).sweep()
    found = house.buried(1)
    assert found is not None
    assert (found.disposition, found.bytes, found.truncated) == ("deleted", 10, None)
    assert (found.finished_at_ms, found.eligible_at_ms, found.retired_at_ms) == (20, 20, 1_000)


def test_wherever_the_owner_dies_no_tombstone_stands_over_a_log(tmp_path: Path) -> None:
    """Log first, tombstone last; what is left over goes with the next sweep."""
    for die_at in itertools.count(1):
        folder = tmp_path / str(die_at)
        folder.mkdir()
        with _house(folder) as house:
            for number in (1, 2, 3):
                house.add(ended(house.task, number))
            house.disk.effects, house.disk.die_at = 0, die_at
            try:
                house.retention().sweep()
                died = False
            except Dead:
                died = True
            for number in (1, 2, 3):
                assert not (house.kept(number) and house.buried(number)), die_at
            house.retention().sweep()
            house.disk.room = 0
            house.retention().sweep()
            for number in (1, 2, 3):
                found = house.buried(number)
                assert found is not None
                assert not house.kept(number)
                assert found.bytes == (10 if found.disposition == "deleted" else 0)
        if not died:
            break
    assert die_at == 13  # three logs: an unlink, a sync, before and after the commit
