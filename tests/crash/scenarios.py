"""The main job in small pieces; each is one function over a `Stage`, about 50 ms long.

Every scenario ends with no owner. Under a fault it goes as far as a person and a daemon would get:
a refused start is told to whoever asked, an owner that does not come up is `StoppedError`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from qinglong_edge.core import ids
from qinglong_edge.core.canonical import base64url
from qinglong_edge.core.errors import EdgeError
from qinglong_edge.core.receipt import Receipt
from qinglong_edge.core.run import RUNNING, Attempt, Run
from qinglong_edge.process.receipts import ReceiptStore
from tests.crash.stage import HOUR, Stage

UNBELIEVABLE = b'{"schemaVersion":1}'


@dataclass(frozen=True)
class Scenario:
    """A piece of the main job.

    `exact`: the command is never killed from outside, so what it did and what is recorded agree.
    """

    play: Callable[[Stage], None]
    tasks: tuple[str, ...]
    founded: bool = True  # the state directory is there already
    exact: bool = True
    publishes: bool = False  # the owner is the receipt's writer: its death leaves a temporary
    power: bool = False  # it writes files that a cut can tear

    @property
    def name(self) -> str:
        """The function's own."""
        return self.play.__name__


def heard(stage: Stage) -> None:
    """Admit, launch, finish; the receipt comes over the channel and is acknowledged."""
    with stage.owned():
        stage.start("plain")
        stage.drive(stage.ended)


def noisy(stage: Stage) -> None:
    """The same with a log that is cut at its quota."""
    with stage.owned():
        stage.start("noisy")
        stage.drive(stage.ended)


def due(stage: Stage) -> None:
    """A cron and an `every` occurrence are admitted with their cursors."""
    with stage.owned() as runtime:
        now_ms = runtime.parts.clock.wall_ms()
        stage.jump(HOUR - now_ms % HOUR + 50)
        stage.drive(lambda: len(stage.runs()) >= 1 and stage.ended(), jumps=1)


def again(stage: Stage) -> None:
    """A failed attempt is followed by another one after its delay."""
    with stage.owned():
        stage.start("again")
        stage.drive(stage.ended)


def _hold(stage: Stage) -> None:
    stage.start("held")
    stage.drive(stage.begun, jumps=0)


def left(stage: Stage) -> None:
    """The owner stops, the command ends, the wrapper leaves its file; the next owner finds it."""
    with stage.owned():
        _hold(stage)
    stage.release()
    stage.wait_for_processes()
    promise(stage)
    with stage.owned():
        stage.drive(stage.ended)


def adopted(stage: Stage) -> None:
    """The owner is killed, the next one adopts the task and learns its end."""
    stage.killed_owner(lambda: _hold(stage))
    with stage.owned():
        stage.release()
        stage.drive(stage.ended)


def stopped(stage: Stage) -> None:
    """A person stops a run."""
    with stage.owned() as runtime:
        _hold(stage)
        for active in runtime.coordinator.registry:
            try:
                runtime.control.stop(
                    active.run, actor="user:0", grace_ms=2_000, done=lambda _error: None
                )
            except EdgeError:
                continue
        stage.drive(stage.ended)


def unbelievable(stage: Stage) -> None:
    """A receipt that nobody can believe is quarantined, and purged when its time has come."""
    with stage.owned():
        _hold(stage)
    found = _running(stage)
    if found is not None:
        paths = ReceiptStore(stage.where.receipts, stage.parts().files).paths(found[1].id)
        with open(paths.target, "wb") as opened:
            opened.write(UNBELIEVABLE)
        if stage.plan.ops is not None:
            stage.plan.ops.append(("given", paths.target, UNBELIEVABLE))
    stage.release()
    stage.wait_for_processes()
    with stage.owned() as runtime:
        stage.drive(stage.ended)
        stage.jump(25 * HOUR)
        runtime.sweep.run_once()


def published(stage: Stage) -> None:
    """A receipt published by Python ends a run whose processes are gone."""
    with stage.owned():
        _hold(stage)
    found = _running(stage)
    if found is None:
        return
    run, attempt = found
    _kill_group(attempt.pid or 0)
    stage.wait_for_processes()
    token = next(
        token
        for token in (base64url(raw) for raw in stage.tokens if len(raw) == ids.TOKEN_BYTES)
        if ids.token_hash(token) == attempt.token_hash
    )
    at_ms = attempt.started_at_ms or 0
    receipt = Receipt(
        run_id=run.id,
        attempt_id=attempt.id,
        callback_sequence=1,
        token=token,
        started_at_ms=at_ms,
        finished_at_ms=at_ms + 1,
        exit_code=7,
    )
    store = ReceiptStore(stage.where.receipts, stage.parts().files)
    try:
        store.publish(receipt, "0" * 32)
    except OSError:
        return
    promise(stage)
    with stage.owned():
        stage.drive(stage.ended)


def founded(stage: Stage) -> None:
    """From nothing: `init`, a first owner, a first task, a first run."""
    stage.found()
    with stage.owned():
        stage.define("plain")
        stage.start("plain")
        stage.drive(stage.ended)


def _kill_group(pid: int) -> None:
    if pid > 1:
        os.killpg(pid, signal.SIGKILL)


def _running(stage: Stage) -> tuple[Run, Attempt] | None:
    """The one run at work, read while nobody owns the state."""
    armed, stage.plan.armed = stage.plan.armed, False
    try:
        with stage.owned() as runtime:
            for run in stage.runs():
                attempt = runtime.store.runs.latest_attempt(run.number)
                if run.status == RUNNING and attempt is not None:
                    return run, attempt
        return None
    finally:
        stage.plan.armed = armed


def promise(stage: Stage) -> None:
    """Whoever wrote the receipts that lie there has said that they are durable."""
    ops = stage.plan.ops
    if ops is None or os.getpid() != stage.plan.owner:
        return
    stage.plan.before_op()
    for folder, _folders, names in os.walk(stage.where.receipts):
        ops.extend(
            ("promise", os.path.join(folder, name))
            for name in names
            if name.endswith(".json") and ".quarantine" not in folder
        )


SCENARIOS = {
    each.name: each
    for each in (
        Scenario(founded, ("plain",), founded=False, power=True),
        Scenario(heard, ("plain",)),
        Scenario(noisy, ("plain", "noisy"), power=True),
        Scenario(due, ("plain", "hourly", "period")),
        Scenario(again, ("plain", "again")),
        Scenario(left, ("plain", "held"), power=True),
        Scenario(adopted, ("plain", "held")),
        Scenario(stopped, ("plain", "held"), exact=False),
        Scenario(unbelievable, ("plain", "held"), exact=False, power=True),
        Scenario(published, ("plain", "held"), exact=False, publishes=True, power=True),
    )
}
