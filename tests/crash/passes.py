"""The passes: every effect refused, every effect a death, deaths again, every cut of the power.

    python -m tests.crash.passes PASS [SCENARIO ...] [--sample N] [--seed S]

PASS is refuse, die, compound or power. Without `--sample` everything is tried. One line for each
broken case, with the effect list and an arrow; the last line is the figures as JSON. The status is
1 if a promise was broken. This process has one thread and little memory, so that forking is cheap.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import pickle
import random
import select
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tests.crash import cases, power
from tests.crash.cases import Outcome
from tests.crash.scenarios import SCENARIOS, Scenario
from tests.crash.seam import Effect, Plan
from tests.crash.stage import Slot

PASSES = ("refuse", "die", "compound", "power")
_BEYOND = 3  # numbers tried after the last known effect, since lists differ a little by timing


class Case(NamedTuple):
    """A case that is still to be played on some slot."""

    name: str
    play: Callable[[Slot], Outcome]


class Figures(NamedTuple):
    """What a pass came to; `effects` is the length of the scenarios' lists together."""

    cases: int = 0
    effects: int = 0
    faults: int = 0
    deaths: int = 0
    compound_deaths: int = 0
    states: int = 0

    def plus(self, outcome: Outcome) -> Figures:
        """With one more case."""
        return self._replace(
            cases=self.cases + 1,
            faults=self.faults + outcome.fired,
            deaths=self.deaths + outcome.died,
            compound_deaths=self.compound_deaths + outcome.died_again,
            states=self.states + outcome.states,
        )


class Pool:
    """Slots, each with one guardian at a time."""

    def __init__(self, folder: str, size: int) -> None:
        self.slots = [Slot(os.path.join(folder, f"slot{number}")) for number in range(size)]

    def prepare(self, scenario: Scenario) -> None:
        """The templates of a scenario."""
        for slot in self.slots:
            cases.apart(functools.partial(cases.make_template, slot, scenario))

    def run(self, waiting: Sequence[Case]) -> Iterator[tuple[Case, Outcome]]:
        """Every case with its outcome, in the order in which they end."""
        left = list(waiting)[::-1]
        free = list(self.slots)
        busy: dict[int, tuple[Case, Slot, int]] = {}
        while left or busy:
            while left and free:
                case, slot = left.pop(), free.pop()
                reading, pid = _guardian(functools.partial(case.play, slot))
                busy[reading] = (case, slot, pid)
            for reading in select.select(list(busy), [], [])[0]:
                case, slot, pid = busy.pop(reading)
                with os.fdopen(reading, "rb") as opened:
                    told = opened.read()
                os.waitpid(pid, 0)
                free.append(slot)
                value, failure = pickle.loads(told) if told else (None, "no word")  # noqa: S301
                yield case, value if value is not None else Outcome(broken=[str(failure)])


def _guardian(work: Callable[[], Outcome]) -> tuple[int, int]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            cases.tell(writing, work)
        finally:
            os._exit(0)
    os.close(writing)
    return reading, pid


# -- what there is to try -------------------------------------------------------------------------


def refusals(scenario: Scenario, effects: Sequence[Effect]) -> Iterator[Case]:
    """Each effect with each of its errors, once and for ever."""
    for number, effect in enumerate(effects, 1):
        for code in effect.possible:
            for for_ever in (False, True):
                yield Case(
                    f"{scenario.name}: {effect.name} gives {code}{' for ever' * for_ever}",
                    functools.partial(_refuse, scenario, number, code, for_ever),
                )


def deaths(scenario: Scenario, effects: Sequence[Effect]) -> Iterator[Case]:
    """Before and after each effect that lasts."""
    for number in _lasting(effects):
        for after in (False, True):
            yield Case(
                f"{scenario.name}: dies {'after' if after else 'before'} {number}",
                functools.partial(_die, scenario, (number, after), None),
            )


def _lasting(effects: Sequence[Effect]) -> list[int]:
    found = [number for number, effect in enumerate(effects, 1) if effect.lasting]
    return found + [len(effects) + 1 + more for more in range(_BEYOND)]


def second_deaths(
    scenario: Scenario, first: tuple[int, bool], effects: Sequence[Effect]
) -> Iterator[Case]:
    """The same, with the next owner dying too at each lasting effect of its recovery."""
    for number in _lasting(effects)[:-_BEYOND]:
        for after in (False, True):
            yield Case(
                f"{scenario.name}: dies {'after' if first[1] else 'before'} {first[0]}, "
                f"the next owner {'after' if after else 'before'} {number}",
                functools.partial(_die, scenario, first, (number, after)),
            )


def _refuse(scenario: Scenario, number: int, code: str, for_ever: bool, slot: Slot) -> Outcome:
    return cases.refuse(slot, scenario, Plan(fail_at=number, code=code, for_ever=for_ever))


def _die(
    scenario: Scenario, first: tuple[int, bool], second: tuple[int, bool] | None, slot: Slot
) -> Outcome:
    return cases.die(slot, scenario, _death(first), None if second is None else _death(second))


def _death(where: tuple[int, bool]) -> Plan:
    number, after = where
    return Plan(die_after=number) if after else Plan(die_before=number)


# -- one pass -------------------------------------------------------------------------------------


class Run:
    """One pass over scenarios."""

    def __init__(self, pool: Pool, *, sample: int | None, seed: int) -> None:
        self.pool = pool
        self.sample = sample
        self.random = random.Random(seed)
        self.figures = Figures()
        self.broken: list[str] = []

    def chosen(self, found: Iterator[Case]) -> list[Case]:
        """All, or a sample in the order in which they came."""
        every = list(found)
        if self.sample is None or self.sample >= len(every):
            return every
        numbers = sorted(self.random.sample(range(len(every)), self.sample))
        return [every[number] for number in numbers]

    def play(self, chosen: Sequence[Case]) -> list[tuple[Case, Outcome]]:
        """Play cases, collecting what they break."""
        done = []
        for case, outcome in self.pool.run(chosen):
            self.figures = self.figures.plus(outcome)
            if outcome.broken:
                told = "\n".join(f"  {each}" for each in outcome.broken)
                self.broken.append(f"BROKEN {case.name}\n{told}\n{outcome.report}")
            done.append((case, outcome))
        return done

    def effects(self, scenario: Scenario) -> list[Effect]:
        """The list of a scenario without a fault."""
        case = Case(f"{scenario.name}: nothing happens", functools.partial(_undisturbed, scenario))
        effects = self.play([case])[0][1].effects
        self.figures = self.figures._replace(effects=self.figures.effects + len(effects))
        return effects

    def scenario(self, what: str, scenario: Scenario) -> None:
        """One pass over one scenario."""
        self.pool.prepare(scenario)
        if what == "power":
            if scenario.power:
                play = functools.partial(power.cut, scenario, self.sample, self.random.random())
                self.play([Case(f"{scenario.name}: the power goes", play)])
            return
        effects = self.effects(scenario)
        if what == "refuse":
            self.play(self.chosen(refusals(scenario, effects)))
        elif what == "die":
            self.play(self.chosen(deaths(scenario, effects)))
        else:
            self.compound(scenario, effects)

    def compound(self, scenario: Scenario, effects: Sequence[Effect]) -> None:
        """First deaths tell how long their recovery is; then each is played with a second one."""
        firsts = [(number, after) for number in _lasting(effects) for after in (False, True)]
        found: list[Case] = []
        told = self.play(
            [Case(str(first), functools.partial(_die, scenario, first, None)) for first in firsts]
            if self.sample is None
            else [
                Case(str(first), functools.partial(_die, scenario, first, None))
                for first in self.random.sample(firsts, min(2, len(firsts)))
            ]
        )
        by_name = {str(first): first for first in firsts}
        for case, outcome in told:
            if outcome.died:
                found += second_deaths(scenario, by_name[case.name], outcome.recovery)
        self.play(self.chosen(iter(found)))


def _undisturbed(scenario: Scenario, slot: Slot) -> Outcome:
    return cases.refuse(slot, scenario, Plan())


def place() -> str:
    """A new folder for slots, in memory where that is possible: fsync costs nothing there."""
    shared = "/dev/shm"
    usable = os.path.isdir(shared) and os.access(shared, os.W_OK | os.X_OK)
    if usable and os.statvfs(shared).f_flag & os.ST_NOEXEC:
        usable = False  # the traced tools are programs
    return tempfile.mkdtemp(prefix="edge-crash-", dir=shared if usable else None)


def main(argv: Sequence[str]) -> int:
    """Run one pass."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.passes")
    parser.add_argument("what", choices=PASSES)
    parser.add_argument("scenarios", nargs="*", default=[])
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)
    folder = place()
    try:
        pool = Pool(folder, min(2, os.cpu_count() or 1))
        run = Run(pool, sample=given.sample, seed=given.seed)
        for name in given.scenarios or SCENARIOS:
            run.scenario(given.what, SCENARIOS[name])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    figures = {"pass": given.what, "broken": len(run.broken), **run.figures._asdict()}
    sys.stdout.write("\n".join([*run.broken, json.dumps(figures)]) + "\n")
    return 1 if run.broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
