"""When a channel is told: once at a time, ever rarer in a storm, not at night."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from qinglong_edge.app import sending
from qinglong_edge.app.notifier import Notifier
from qinglong_edge.app.preview import Zones
from qinglong_edge.core import channel as channels
from qinglong_edge.core.channel import Channel
from qinglong_edge.core.errors import Corrupt, Invalid, Refused
from tests.execution.machine import START_MS, Clock, Loop

MINUTE = 60_000


class Store:
    """A state of channels and runs; the run's task has the number 1."""

    def __init__(self) -> None:
        self.channels: dict[str, str] = {}
        self.history: list[Any] = []
        self.attempt = 1
        self.tasks = SimpleNamespace(get=lambda number: SimpleNamespace(name=f"t{number}"))
        self.runs = self
        self.secrets = self

    def settings(self, _prefix: str) -> Iterator[tuple[str, str]]:
        return iter(self.channels.items())

    def setting(self, name: str) -> str | None:
        return self.channels.get(name.removeprefix(channels.SETTING))

    def resolve(self, _refs: object) -> tuple[None]:
        return (None,)

    def latest_attempt(self, _number: int) -> Any:
        return SimpleNamespace(attempt=self.attempt, exit_code=3)

    def page(self, **_wanted: object) -> list[Any]:
        return self.history[1:]


class Box:
    """A notifier on a machine that is turned by hand; `children` are the sends under way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.store = Clock(), Store()
        self.loop = Loop(self.clock)
        self.children: list[int] = []
        self.told: list[tuple[int, int]] = []  # (events, more) of each message
        self.refusal: OSError | MemoryError | None = None
        self.said: list[tuple[str, dict[str, object]]] = []
        parts = SimpleNamespace(
            clock=self.clock,
            spawner=self,
            processes=SimpleNamespace(signal_pid=lambda *_: True, reap=lambda _pid: None),
        )
        runtime: Any = SimpleNamespace(
            store=self.store,
            loop=self.loop,
            parts=parts,
            zones=Zones(),
            where=SimpleNamespace(keyring="/none"),
        )
        self.notifier = Notifier(runtime, lambda event, **facts: self.said.append((event, facts)))
        monkeypatch.setattr(sending, "message", lambda facts, more, _: (len(facts), more))
        monkeypatch.setattr(sending, "send", lambda _channel, _key, told: self.told.append(told))
        monkeypatch.setattr("qinglong_edge.app.notifier.signal", SimpleNamespace(
            alarm=lambda _seconds: None, SIGKILL=9))  # fmt: skip
        self.channel()

    def channel(self, **fields: Any) -> None:
        """The channel `a`."""
        wanted = Channel(name="a", kind="ntfy", **fields)
        self.store.channels["a"] = channels.encode(wanted)

    def consult(self, ask: Callable[[], bytes], _kept: object) -> tuple[int, int]:
        """A child that has asked already, and whose answer comes with `answer`."""
        if self.refusal is not None:
            raise self.refusal
        ask()
        read, write = os.pipe()
        self.children.append(write)
        return 77, read

    def answer(self, word: bytes = b"sent") -> None:
        """The child under way ends."""
        (write,) = self.children
        self.children.clear()
        os.write(write, word)
        os.close(write)
        for call in list(self.loop.watched.values()):
            call()

    def end(self, status: str = "failed", task: int = 1) -> None:
        """A run's end."""
        ended = status != "retry_wait"
        run = SimpleNamespace(
            number=len(self.store.history) + 1,
            task_number=task,
            status=status,
            ended=ended,
            error_code=None,
            finished_at_ms=START_MS,
            created_at_ms=START_MS,
        )
        self.store.history.insert(0, run)
        self.notifier.settled(run)  # type: ignore[arg-type]


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    """A machine with one channel."""
    made = Box(monkeypatch)
    yield made
    made.notifier.close()
    for write in made.children:
        os.close(write)


def test_news_that_comes_together_goes_together(box: Box) -> None:
    for _ in range(3):
        box.end()
    box.loop.run_for(1_900)
    assert box.told == []
    box.loop.run_for(200)
    assert box.told == [(3, 0)]
    box.answer()
    assert box.said == [("notified", {"channel": "a", "code": "-"})]


def test_a_storm_costs_ever_rarer_digests_and_calm_forgets_it(box: Box) -> None:
    sent: list[int] = []
    begun = box.clock.boot
    while box.clock.boot - begun < 40 * MINUTE:
        box.end()
        box.loop.run_for(3_000)
        if box.children:
            sent.append((box.clock.boot - begun) // MINUTE)
            box.answer()
    assert sent == [0, 1, 3, 7, 15, 31]
    assert box.told[1] == (20, 0)
    events, more = box.told[-1]
    assert events == 40
    assert more > 200
    box.loop.run_for(200 * MINUTE)
    box.answer()
    box.loop.run_for(200 * MINUTE)
    box.end()
    box.loop.run_for(2_000)
    assert box.told[-1] == (1, 0)
    box.answer()


@pytest.mark.parametrize(
    ("before", "status", "attempt", "event"),
    [
        ("succeeded", "failed", 1, "failed"),
        ("succeeded", "timed_out", 1, "failed"),
        ("succeeded", "failed", 3, "exhausted"),
        ("succeeded", "lost", 1, "lost"),
        ("failed", "succeeded", 1, "recovered"),
        ("lost", "succeeded", 1, "recovered"),
        ("succeeded", "succeeded", 1, None),
        (None, "succeeded", 1, None),
        ("failed", "cancelled", 1, None),
        ("failed", "retry_wait", 1, None),
    ],
)
def test_an_end_is_an_event_or_none(
    box: Box, before: str | None, status: str, attempt: int, event: str | None
) -> None:
    box.channel(on=(event,) if event else channels.EVENTS)
    box.store.channels, kept = {}, box.store.channels
    if before is not None:
        box.end(before)
        box.end("cancelled")  # by hand: neither bad news nor good
    box.store.channels, box.store.attempt = kept, attempt
    box.end(status)
    box.loop.run_for(2_000)
    assert box.told == ([(1, 0)] if event else [])


def test_a_channel_of_some_tasks_hears_of_no_other(box: Box) -> None:
    box.channel(tasks=(2,))
    box.end(task=1)
    box.end(task=2)
    box.loop.run_for(2_000)
    assert box.told == [(1, 0)]


def test_quiet_hours_hold_back_and_end_with_one_digest(box: Box) -> None:
    """It is 14:13 UTC, so 22:13 in the channel's zone."""
    box.channel(quiet="22:00-07:00", zone="CST-8")
    for _ in range(5):
        box.end()
        box.loop.run_for(60 * MINUTE)
    assert box.told == []
    box.loop.run_for(3 * 60 * MINUTE + 46 * MINUTE)
    assert box.told == []
    box.loop.run_for(2 * MINUTE)
    assert box.told == [(5, 0)]


def test_what_failed_goes_with_the_next_message_and_not_for_ever(box: Box) -> None:
    box.end()
    box.loop.run_for(2_000)
    box.answer(b"notify_unreachable")
    assert list(box.notifier.reasons()) == ["notify_failed:a"]
    box.end()
    box.loop.run_for(MINUTE)
    assert box.told[-1] == (2, 0)
    box.answer(b"")
    assert box.notifier.last["a"]["code"] == "notify_timeout"
    for _ in range(20):
        box.loop.run_for(61 * MINUTE)
        if box.children:
            box.answer(b"notify_refused")
    assert len(box.told) == 8
    box.end()
    box.loop.run_for(2 * MINUTE)
    assert box.told[-1] == (1, 0)
    box.answer()
    assert list(box.notifier.reasons()) == []


@pytest.mark.parametrize("refusal", [OSError(11, "no process"), MemoryError()])
def test_one_child_at_a_time_and_a_full_machine_only_delays(
    box: Box, refusal: OSError | MemoryError
) -> None:
    box.store.channels["b"] = box.store.channels["a"]
    box.end()
    box.loop.run_for(30_000)
    assert len(box.children) == 1
    box.answer()
    box.loop.run_for(2_000)
    assert len(box.children) == 1
    box.answer()
    box.refusal = refusal
    box.end()
    box.loop.run_for(2 * MINUTE)
    assert set(box.notifier.reasons()) == {"notify_failed:a", "notify_failed:b"}
    box.refusal = None
    box.loop.run_for(10 * MINUTE)
    box.answer()


def test_a_channel_that_was_removed_is_forgotten(box: Box) -> None:
    box.end()
    box.store.channels.clear()
    box.loop.run_for(10 * MINUTE)
    assert box.told == []
    assert box.said == []


def test_a_channel_that_was_removed_after_it_had_failed_is_no_reason_to_worry(box: Box) -> None:
    box.end()
    for _ in range(8):
        box.loop.run_for(61 * MINUTE)
        box.answer(b"notify_refused")
    assert list(box.notifier.reasons()) == ["notify_failed:a"]
    box.store.channels.clear()
    assert list(box.notifier.reasons()) == []


def test_a_closing_owner_leaves_no_child(box: Box) -> None:
    box.end()
    box.loop.run_for(2_000)
    box.notifier.close()
    assert box.loop.watched == {}


@pytest.mark.parametrize(
    ("quiet", "minute", "left"),
    [
        (None, 0, 0),
        ("22:00-07:00", 1_320, 540),
        ("22:00-07:00", 0, 420),
        ("22:00-07:00", 419, 1),
        ("22:00-07:00", 420, 0),
        ("12:00-13:30", 719, 0),
        ("12:00-13:30", 720, 90),
        ("12:00-13:30", 810, 0),
    ],
)
def test_quiet_hours_end_when_they_say(quiet: str | None, minute: int, left: int) -> None:
    assert Channel(name="a", kind="bark", quiet=quiet).quiet_for(minute) == left


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""},
        {"name": "a b"},
        {"kind": "pigeon"},
        {"on": ()},
        {"on": ("luck",)},
        {"quiet": "24:00-01:00"},
        {"quiet": "22:00"},
        {"url": ""},
        {"zone": "ü"},
        {"tasks": ("t",)},
    ],
)
def test_a_channel_out_of_bounds_is_none(fields: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        Channel(**{"name": "a", "kind": "ntfy", **fields})


def test_a_stored_channel_reads_back_and_a_damaged_one_does_not() -> None:
    made = Channel(name="a", kind="smtp", sender="a@x", to="b@x", tasks=(1, 2), on=("lost",))
    assert channels.decode("a", channels.encode(made)) == made
    for text in ("", "[]", "{}", channels.encode(made).replace("[1,2]", "null")):
        with pytest.raises(Corrupt):
            channels.decode("a", text)
    for kind, url, key, code in (
        ("ntfy", "ftp://x", "t", "notify_address"),
        ("ntfy", "smtp://x", "t", "notify_address"),
        ("smtp", "http://x", "", "notify_address"),
        ("smtp", "smtp://x", "", "notify_mailbox"),
        ("webhook", None, "x", "notify_address"),
        ("telegram", None, "one", "notify_key"),
    ):
        with pytest.raises((Invalid, Refused)) as caught:
            sending.check(Channel(name="a", kind=kind, url=url), key)
        assert caught.value.code == code
