"""What the machine refuses for a moment is named as passing and leaves nothing half done."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from qinglong_edge.app import rpc
from qinglong_edge.app.runtime import Parts
from qinglong_edge.core.audit import Audit
from qinglong_edge.core.canonical import decode
from qinglong_edge.core.errors import Unavailable
from tests.e2e.kit import Kit
from tests.e2e.resident import Moved, Resident, collect
from tests.e2e.test_socket import code

PATIENT = 'echo $$ >> "{0}/pid"; while [ ! -e "{0}/go" ]; do sleep 0.05; done'
LATE: dict[str, dict[str, object]] = {  # loaded, or opened, only once somebody asks
    "import.crontab": {"data": ""},
    "import.stage": {"tasks": [{"task": {"name": "x", "argv": ["true"]}, "enabled": True}]},
    "env.list": {},
    "notify.list": {},
    "log.read": {"run": "1"},
    "cron.next": {"expression": "0 0 * * *", "zone": "CST-8"},
}


class Packed(Kit):
    """The program as it is delivered."""

    zipapp = ""

    def command(self, *arguments: str | bytes) -> list[str | bytes]:
        mine = super().command(*arguments)
        return [sys.executable, "-IS", self.zipapp, *mine[mine.index("--state") :]]


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    yield
    collect()


@pytest.fixture(params=["checkout", "zipapp"])
def either(request: pytest.FixtureRequest, bare: Kit) -> Kit:
    """A state, served by the program in either of its forms."""
    if request.param == "zipapp":
        bare = Packed(bare.place)
        bare.zipapp = request.getfixturevalue("zipapp")
    bare.ok("init")
    return bare


def test_without_a_descriptor_nothing_is_called_a_bug_or_damage(either: Kit) -> None:
    either.ok("task", "add", "t", "--", "echo", "hi")
    with either.daemon() as daemon:
        either.ended(either.ask("run.start", name="t")["result"]["number"])
        with either.connect() as sock, sock.makefile("rb") as lines:

            def ask(method: str) -> Any:
                sock.sendall(rpc.call_line(1, method, LATE[method]))
                return decode(lines.readline(), bytes_max=1_048_576)

            before = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
            taken = set(map(int, os.listdir(f"/proc/{daemon.pid}/fd")))
            free = min(set(range(len(taken) + 1)) - taken)
            resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (free, before[1]))
            refused = [code(answer) for method in LATE if "error" in (answer := ask(method))]
            resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, before)
            assert {status for _code, status in refused} == {4}, refused
            assert ("storage_unavailable", 4) in refused, "the log cannot be opened"
            assert [method for method in LATE if "error" in ask(method)] == []
        assert daemon.stop() == 0
        assert " bug " not in daemon.said()


class Unread:
    """A database whose rows of tasks cannot be read while `failing`."""

    def __init__(self, owner: Resident) -> None:
        self.failing = False
        self._execute = owner.runtime.store.database.execute
        owner.runtime.store.database.execute = self._fail  # type: ignore[method-assign]

    def _fail(self, statement: str, values: Sequence[object] = ()) -> Any:
        if self.failing and "FROM task WHERE number" in statement:
            raise Unavailable("database_failed", "injected")
        return self._execute(statement, values)


@pytest.mark.parametrize("method", ["run.wait", "run.stop"])
def test_an_end_whose_story_cannot_be_read_is_no_end_of_the_daemon(kit: Kit, method: str) -> None:
    told: list[tuple[Any, BaseException | None]] = []
    with Resident(kit.state) as owner:
        owner.runtime.settled.append(owner._daemon._run_settled)
        owner.task("t", shell=PATIENT.format(kit.place))
        number = owner.start("t")
        owner.until(kit.file("pid").exists, what="it runs")
        disk = Unread(owner)
        pending = owner.begin(method, run=str(number))
        pending.listen(lambda result, error: told.append((result, error)))
        disk.failing = True
        kit.file("go").touch()
        owner.until(lambda: told, what="who waits is told")
        disk.failing = False
        assert owner.run(number)["finished_at_ms"] is not None
    ((result, error),) = told
    assert (result, getattr(error, "code", None)) == (None, "database_failed")


def test_who_asks_for_a_stop_and_goes_is_kept_by_nobody(kit: Kit) -> None:
    """Thousands may ask within one long grace."""
    with Resident(kit.state) as owner:
        owner.task("t", shell=f"trap '' TERM; {PATIENT.format(kit.place)}")
        number = owner.start("t")
        active = owner.active(number)
        owner.until(kit.file("pid").exists, what="it ignores the signal")
        stays = owner.begin("run.stop", run=str(number), grace_ms=60_000)
        for _ in range(100):
            owner.begin("run.stop", run=str(number)).on_abandoned()
        assert len(active.stopped) == 1
        kit.file("go").touch()
        owner.until(lambda: stays.settled, what="the stop is proven")


def test_a_task_that_cannot_be_enabled_whole_stays_as_it_was(kit: Kit) -> None:
    """What was due while it was disabled is never made up for, whichever commit fails."""
    parts = Parts()
    parts.clock = clock = Moved()
    with Resident(kit.state, parts) as owner:
        execute = owner.runtime.store.database.execute
        for name in ("cursor", "task"):
            owner.task(name, every=["1h"], misfire="fire_once", argv=["true"])
            owner.call("task.disable", name=name)
        clock.pass_by(5 * 3_600_000)
        for table in ("cursor", "task"):

            def fail(statement: str, values: Sequence[object] = (), table: str = table) -> Any:
                if statement.split()[:2] == ["UPDATE", table]:
                    raise Unavailable("no_space", "injected")
                return execute(statement, values)

            owner.runtime.store.database.execute = fail  # type: ignore[method-assign]
            assert owner.refused("task.enable", name=table) == "no_space"
            owner.runtime.store.database.execute = execute  # type: ignore[method-assign]
            assert owner.call("task.show", name=table)["enabled"] is False
        clock.pass_by(60_000)
        for _ in range(20):
            owner.turn()
        assert owner.call("runs.list")["runs"] == []


def test_a_word_that_cannot_be_audited_settles_nothing(kit: Kit) -> None:
    with Resident(kit.state) as owner:
        owner.task("t", shell=PATIENT.format(kit.place))
        number = owner.start("t")
        active = owner.active(number)
        active.attempt = active.attempt.replace(pid_namespace=1)  # it cannot be told any more
        store = owner.runtime.store
        record, said = store.audit.record, {"run": str(number), "as": "lost", "reason": "x"}

        def full(entry: Audit) -> None:
            raise Unavailable("no_space", "injected")

        store.audit.record = full  # type: ignore[method-assign]
        owner.refused("run.settle", **said)
        store.audit.record = record  # type: ignore[method-assign]
        assert owner.run(number)["status"] == "running"
        assert owner.call("run.settle", **said)["status"] == "lost"
        told = [each for each in owner.call("audit.list")["audit"] if each["action"] != "task.add"]
        assert [(each["action"], each["target"]) for each in told] == [("run.settle", str(number))]
        kit.file("go").touch()
