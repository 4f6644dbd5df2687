"""Run in a guest: what cron does while the wall clock is wrong, set, set back, moved by law, old.

    python3 -m tests.tools.router.clocks ZIPAPP STORY

STORY is `battery` (the guest was booted in 1970) or `century` (just before 2^31 seconds). One line
of JSON: `broken` has a sentence for each broken promise, the rest is what was seen. Tasks that are
due each second make any storm, gap, repetition or negative time visible within seconds.
"""

from __future__ import annotations

import calendar
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.tools import measure
from tests.tools.measure import Daemon, Product

SECOND = "* * * * * *"
ZONE = "EST5EDT,M3.2.0,M11.1.0"  # 02:00 on 2027-03-14 and on 2027-11-07
_WITHIN_S = 60.0
_LOOK_S = 3.0
_HOUR_S = 3_600
_PAGE = 200


def utc(text: str) -> int:
    """Seconds of a moment such as `2027-03-14 07:30:00`."""
    return calendar.timegm(time.strptime(text, "%Y-%m-%d %H:%M:%S"))


class Story:
    """A daemon, the wall clock, and what was broken."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.broken: list[str] = []
        self.seen: dict[str, Any] = {}

    # -- doing ------------------------------------------------------------------------------------

    def add(self, name: str, text: str = "true", **fields: object) -> None:
        """A task without a log."""
        self.daemon.call("task.add", name=name, shell=text, log=False, zone="UTC", **fields)

    def set(self, to: float) -> None:
        """The wall clock as NTP sets it."""
        time.clock_settime(time.CLOCK_REALTIME, to)

    def until(self, ready: Callable[[], bool], what: str) -> None:
        """Wait with a bound; each question also wakes the daemon, as a person would."""
        deadline = time.monotonic() + _WITHIN_S
        while not ready():
            if time.monotonic() > deadline:
                self.broken.append(f"{what} did not come")
                return
            time.sleep(0.2)

    # -- looking ----------------------------------------------------------------------------------

    def runs(self, task: str) -> list[dict[str, Any]]:
        """All runs of a task, oldest first."""
        found: list[dict[str, Any]] = []
        after = None
        while True:
            answer = self.daemon.call("runs.list", task=task, limit=_PAGE, after=after)
            found += answer["runs"]
            after = answer["next"]
            if after is None:
                return sorted(found, key=lambda run: int(run["number"]))

    def count(self, task: str) -> int:
        """How many runs it has."""
        return len(self.runs(task))

    def clock(self) -> Any:
        """What the program thinks of the clock."""
        return self.daemon.call("status")["clock"]

    def wants(self, held: bool, sentence: str) -> None:
        """A promise."""
        if not held:
            self.broken.append(sentence)

    def nothing_starts(self, when: str) -> None:
        """No cron occurrence is admitted for a while, and the program says why."""
        before = self.count("second")
        reason = self.clock()["reason"]
        time.sleep(_LOOK_S)
        self.wants(self.count("second") == before, f"{when}: a cron occurrence was admitted")
        self.wants(reason is not None, f"{when}: the clock is believed")
        self.seen[when] = reason

    def no_storm(self, when: str, to: float, *, tasks: tuple[str, ...]) -> None:
        """After a step each trigger has at most one occurrence of the time before it."""
        before = {task: self.count(task) for task in tasks}
        begun = time.monotonic()
        self.set(to)
        self.until(lambda: self.count("second") >= before["second"] + 3, f"{when}: a tick")
        more = {task: self.count(task) - before[task] for task in tasks}
        passed = time.monotonic() - begun  # a slow router has ticked on while it counted
        for task, count in more.items():
            self.wants(count <= passed + 2, f"{when}: {task} ran {count} times in {passed:.1f} s")
        self.seen[when] = more

    def once(self, when: str, task: str, begin: float, due: float, *, times: int = 1) -> None:
        """From `begin` on a task's occurrence at `due` comes exactly so often."""
        self.set(begin)
        self.until(lambda: time.time() > due + _LOOK_S, f"{when}: the time")
        found = [run for run in self.runs(task) if run["scheduled_for_ms"] == due * 1_000]
        self.wants(len(found) == times, f"{when}: {len(found)} runs at {due:.0f}, not {times}")
        self.seen[when] = len(found)

    def at_the_end(self, tasks: tuple[str, ...]) -> None:
        """No occurrence twice, nothing of negative length, nothing before its time."""
        for task in tasks:
            runs = self.runs(task)
            labels = Counter(run["scheduled_for_ms"] for run in runs)
            twice = [label for label, count in labels.items() if count > 1]
            self.wants(not twice, f"{task} ran twice for {twice}")
            for run in runs:
                length = run["duration_ms"]
                self.wants(length is None or length >= 0, f"{task} took {length} ms")
            self.wants(all(label is not None for label in labels), f"{task} has no label")


# -- a router without a clock battery -------------------------------------------------------------


def battery(product: Product, state: str) -> Story:
    """1970, the step to now, a restart in 1970, an hour back, summer time and its end."""
    with product.daemon(state) as daemon:
        story = Story(daemon)
        story.seen["booted at"] = int(time.time())
        story.add("second", cron=[SECOND])
        story.add("once", cron=[SECOND], misfire="fire_once")
        story.add("hourly", cron=["0 * * * *"], misfire="fire_once")
        story.add("interval", every=["1s"])
        story.until(lambda: story.count("interval") >= 2, "an interval, which needs no wall clock")
        story.nothing_starts("in 1970")
        now = utc("2026-12-01 10:20:30")
        ticks = ("second", "once", "hourly")
        story.no_storm("the step to now", now, tasks=ticks)
        story.wants(story.count("hourly") == 0, "the step to now: an hour was made up")
    story.set(100)  # the plug was pulled: no battery, and the state knows better
    with product.daemon(state) as story.daemon:
        story.nothing_starts("1970 again, after a restart")
        story.no_storm("the second step to now", now + 2 * _HOUR_S, tasks=ticks)
        story.wants(story.count("hourly") == 1, "two hours later fire_once is one run")
        _an_hour_back(story)
        _by_law(story)
        story.at_the_end(ticks)
    return story


def _an_hour_back(story: Story) -> None:
    """A command runs across the step; cron waits for somebody's word and repeats no label."""
    story.add("long", "sleep 2")
    run = str(story.daemon.call("run.start", name="long")["number"])
    newest = max(run["scheduled_for_ms"] for run in story.runs("second"))
    story.set(time.time() - _HOUR_S)
    story.nothing_starts("an hour back")
    ended = story.daemon.call("run.wait", run=run)
    story.wants(ended["duration_ms"] >= 0, f"across the step: {ended['duration_ms']} ms")
    story.seen["across the step"] = ended["duration_ms"]
    story.daemon.call("clock.trust")
    story.wants(story.clock()["trusted"], "an operator's word is not enough")
    time.sleep(_LOOK_S)
    labels = [run["scheduled_for_ms"] for run in story.runs("second")]
    story.wants(len(labels) == len(set(labels)), "an hour back: a label came again")
    story.seen["after the word"] = sum(label > newest for label in labels)


def _by_law(story: Story) -> None:
    """02:30 on a day that has none is 03:30; 01:30 on a day that has two is the first."""
    for name, expression in (("gap", "30 2 * * *"), ("twice", "30 1 * * *")):
        story.daemon.call(
            "task.add", name=name, shell="true", log=False, cron=[expression], zone=ZONE
        )
    spring, autumn = utc("2027-03-14 07:30:00"), utc("2027-11-07 05:30:00")
    story.once("into the gap", "gap", spring - 3, spring)
    story.once("the first of two", "twice", autumn - 3, autumn)
    story.once("the second of two", "twice", autumn + _HOUR_S - 3, autumn + _HOUR_S, times=0)


# -- 2^31 seconds ---------------------------------------------------------------------------------


def century(product: Product, state: str) -> Story:
    """The second after which 32 bits are negative is one like any other."""
    edge = 1 << 31
    with product.daemon(state) as daemon:
        story = Story(daemon)
        story.seen["booted at"] = int(time.time())
        story.set(edge - 6)
        story.add("second", cron=[SECOND])
        story.daemon.call("task.add", name="logged", shell="sleep 4; echo after", zone="UTC")
        story.until(lambda: time.time() >= edge - 3, "the time")
        across = daemon.run("logged")
        story.wants(across["status"] == "succeeded", f"across 2^31: {across['status']}")
        story.wants(across["duration_ms"] >= 0, f"across 2^31: {across['duration_ms']} ms")
        story.wants(across["finished_at_ms"] > edge * 1_000, "a run ended before 2^31")
        story.until(lambda: time.time() >= edge + 4, "the time after")
        labels = [run["scheduled_for_ms"] // 1_000 - edge for run in story.runs("second")]
        story.wants(min(labels, default=0) < 0, f"no run before 2^31: {labels}")
        story.wants(max(labels, default=0) > 0, f"no run after 2^31: {labels}")
        story.at_the_end(("second",))
    with product.daemon(state) as story.daemon:
        story.until(lambda: max(_labels(story)) > labels[-1], "a tick after a restart")
        story.wants(story.clock()["trusted"], "after a restart the clock is not believed")
    story.seen["ticks"] = len(labels)
    return story


def _labels(story: Story) -> list[int]:
    return [run["scheduled_for_ms"] // 1_000 - (1 << 31) for run in story.runs("second")]


def main(zipapp: str, name: str) -> None:
    """Tell one story."""
    product = Product(zipapp)
    told: dict[str, Callable[[Product, str], Story]] = {"battery": battery, "century": century}
    with measure.folder(on_memory=True) as home:
        state = os.path.join(home, "state")
        product.init(state)
        story = told[name](product, state)
    print(json.dumps({"broken": story.broken, **story.seen}))


if __name__ == "__main__":
    main(*sys.argv[1:])
