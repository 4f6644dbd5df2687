"""Full, read-only, slow: runs end truly, the daemon lives, `status` names it, room heals it.

Real file systems where this user may mount them (they need root); what no kernel does on request
(a quota, a disk that comes back) is done by failing effects.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qinglong_edge.app import daemon, state
from qinglong_edge.app.runtime import Parts
from qinglong_edge.core.errors import Unavailable
from qinglong_edge.core.limits import ESCAPED_POLL_MS, LAUNCH_READY_MS, WRAPPER_SILENCE_MS
from qinglong_edge.storage.connection import Database
from qinglong_edge.system import sockets
from qinglong_edge.system.files import Files
from tests.disks import small_disk
from tests.e2e.kit import Kit, gone, pids
from tests.e2e.resident import Moved, Resident, collect
from tests.support import until
from tests.tools import measure

PATIENT = 'echo $$ >> "{0}/pid"; while [ ! -e "{0}/go" ]; do sleep 0.02; done; exit 7'
MIB = 1_048_576


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    yield
    collect()


def fill_bytes(place: Path) -> Callable[[], None]:
    """Take every byte that is left; the answer gives them back."""
    path = place / "filler"
    filler = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        for size in (MIB, 4096, 1):
            with contextlib.suppress(OSError):
                while os.write(filler, b"x" * size):
                    pass
    finally:
        os.close(filler)
    return path.unlink


def fill_inodes(place: Path) -> Callable[[], None]:
    """Take every inode that is left; the answer gives them back."""
    folder = place / "filler"
    folder.mkdir()
    with contextlib.suppress(OSError):
        for number in range(1_000_000):
            (folder / str(number)).touch()
    return lambda: shutil.rmtree(folder)


FULL = {
    "bytes": ("size=48m", fill_bytes),
    "inodes": ("size=48m,nr_inodes=300", fill_inodes),
}


def tasks(kit: Kit, **more: str) -> None:
    """`t` waits for the file `go`, `u` is short."""
    kit.ok("task", "add", "t", "--shell", PATIENT.format(kit.place))
    kit.ok("task", "add", "u", "--shell", "echo heard; exit 4")


# -- a disk that is really full -------------------------------------------------------------------


@pytest.mark.parametrize("kind", FULL)
def test_a_disk_that_fills_under_a_daemon_loses_nothing_and_heals(bare: Kit, kind: str) -> None:
    kit = bare
    options, fill = FULL[kind]
    with small_disk(kit.state, options):
        kit.ok("init")
        tasks(kit)
        with kit.daemon() as daemon:
            kit.ask("run.start", name="t")
            (task,) = pids(kit.file("pid"))
            make_room = fill(kit.state)
            assert "log_capacity" in kit.ask("status")["result"]["degraded"]
            waiting = kit.ask("run.start", name="u")["result"]
            assert waiting["status"] == "queued"
            kit.file("go").touch()
            run = kit.ended(1)
            assert (run["status"], run["exit_code"]) == ("failed", 7)
            assert run["evidence"] in ("receipt", "wait_status")
            gone(task)
            told = kit.ask("status")["result"]
            assert (told["waiting"], told["active"]) == (1, [])
            make_room()
            run = kit.ended(2)
            assert (run["status"], run["exit_code"], run["evidence"]) == ("failed", 4, "receipt")
            assert kit.ask("status")["result"]["degraded"] == ["state_volatile"]
            assert daemon.stop() == 0
            assert " bug " not in daemon.said()
        assert kit.sql("PRAGMA integrity_check") == [("ok",)]
        assert not list(kit.state.glob("receipts/??/*"))


def test_a_daemon_starts_on_a_full_disk_and_admits_when_there_is_room(bare: Kit) -> None:
    kit = bare
    with small_disk(kit.state, "size=48m"):
        kit.ok("init")
        tasks(kit)
        kit.ok("task", "add", "v", "--every", "1s", "--shell", "exit 0")
        with kit.daemon() as daemon:
            kit.ask("run.start", name="t")
            (task,) = pids(kit.file("pid"))
            daemon.kill()
        make_room = fill_bytes(kit.state)
        with kit.daemon() as daemon:
            told = kit.ask("status")["result"]
            assert "log_capacity" in told["degraded"]
            assert [each["hold"] for each in told["active"] if each["number"] == 1] == [None]
            make_room()
            kit.file("go").touch()
            run = kit.ended(1)
            assert (run["status"], run["exit_code"], run["evidence"]) == ("failed", 7, "receipt")
            until(
                lambda: kit.ask("runs.list", task="v")["result"]["runs"], what="the trigger admits"
            )
            assert daemon.stop() == 0
            assert " bug " not in daemon.said()
        gone(task)


def test_a_full_disk_that_takes_no_new_name_is_named_and_not_the_socket(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full jffs2 under the runtime directory: what has to be done is to make room."""

    def full(_path: str) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(sockets, "bind", full)
    with pytest.raises(Unavailable) as caught:
        daemon.serve(state.place(str(kit.state), None), on_stop="leave")
    assert caught.value.code == "no_space"


def test_an_end_that_cannot_be_stored_is_kept_until_it_can(bare: Kit) -> None:
    """Neither database nor receipt file: the daemon saw the end itself, and remembers it."""
    kit = bare
    with small_disk(kit.state, "size=48m"):
        kit.ok("init")
        tasks(kit)
        parts = Parts()
        parts.clock = clock = Moved()
        with Resident(kit.state, parts) as resident:
            number = resident.start("t")
            task = resident.until(lambda: _pid(kit))
            make_room = fill_bytes(kit.state)
            kit.file("go").touch()
            resident.until(lambda: resident.hold(number), what="the run is held")
            assert resident.hold(number) == "storage"
            assert f"run_unproven:{number}:storage" in resident.degraded()
            gone(task)
            assert resident.run(number)["status"] == "running", "nothing is said that is not stored"
            make_room()
            clock.pass_by(ESCAPED_POLL_MS)
            run = resident.end(number)
            assert (run["status"], run["exit_code"]) == ("failed", 7)
            assert run["evidence"] in ("receipt", "wait_status")


def test_a_file_system_that_turns_read_only_after_an_error_ends_no_daemon(bare: Kit) -> None:
    """What ext4 does on a dying flash: nothing can be written until it is checked and mounted."""
    kit = bare
    with contextlib.ExitStack() as undo:
        try:
            disk = undo.enter_context(measure.disk())
        except measure.UnmeasurableError as error:
            pytest.skip(str(error))
        kit.state = Path(disk.path) / "s"
        _tool("mount", "-o", "remount,errors=remount-ro", disk.path)
        kit.ok("init")
        tasks(kit)
        with kit.daemon() as daemon:
            kit.ask("run.start", name="t")
            (task,) = pids(kit.file("pid"))
            trigger = f"/sys/fs/ext4/{os.path.basename(disk.device)}/trigger_fs_error"
            if not os.path.exists(trigger):
                pytest.skip("this kernel does not play a broken file system")
            Path(trigger).write_text("test")
            answer = kit.ask("run.start", name="u")["error"]["data"]
            assert answer["exit"] == 4, answer
            kit.file("go").touch()
            gone(task)
            degraded = until(
                lambda: [
                    each
                    for each in kit.ask("status")["result"]["degraded"]
                    if each.startswith("run_unproven:1:")
                ],
                what="the end that cannot be stored is named",
            )
            assert degraded == ["run_unproven:1:storage"]
            assert daemon.stop() == 0
            assert " bug " not in daemon.said()
        _tool("umount", disk.path)
        subprocess.run(["e2fsck", "-fy", disk.device], capture_output=True)
        _tool("mount", "-t", "ext4", disk.device, disk.path)
        with kit.daemon() as daemon:
            run = kit.ended(1)
            assert (run["status"], run["exit_code"]) == ("lost", None), "no code is invented"
            assert kit.ask("run.start", name="u")["result"]["number"] == 2
            assert kit.ended(2)["exit_code"] == 4
            assert daemon.stop() == 0


# -- effects that fail and come back --------------------------------------------------------------


class Failing(Files):
    """Whatever would change the disk fails while `number` is an errno."""

    number: int | None = None

    def _refuse(self) -> None:
        if self.number is not None:
            raise OSError(self.number, os.strerror(self.number))

    def make_private_directory(
        self, path: str, ours: Callable[[str], bool] | None = None
    ) -> tuple[int, int]:
        if not os.path.isdir(path):
            self._refuse()
        return super().make_private_directory(path, ours)

    def publish(self, temporary: str, target: str, data: bytes) -> bool:
        self._refuse()
        return super().publish(temporary, target, data)

    def replace(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        self._refuse()
        super().replace(path, data, mode=mode)

    def link(self, source: str, target: str) -> bool:
        self._refuse()
        return super().link(source, target)

    def rename(self, source: str, target: str) -> None:
        self._refuse()
        super().rename(source, target)

    def remove(self, path: str) -> bool:
        if os.path.lexists(path):
            self._refuse()
        return super().remove(path)

    def open_append(self, path: str) -> int:
        self._refuse()
        return super().open_append(path)


CODES = {
    errno.EROFS: "state_read_only",
    errno.EDQUOT: "database_failed",
    errno.ENOSPC: "no_space",
    errno.EIO: "database_failed",
}


@pytest.mark.parametrize("number", CODES, ids=errno.errorcode.get)
def test_whatever_a_disk_says_no_with_everything_goes_on_when_it_says_yes(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    tasks(kit)
    kit.ok("task", "add", "v", "--every", "10s", "--misfire", "fire_once", "--shell", "exit 0")
    parts = Parts()
    parts.files = files = Failing()
    parts.clock = clock = Moved()
    with Resident(kit.state, parts) as resident:
        database, code = resident.runtime.store.database, CODES[number]
        begin = database.begin

        def refused() -> None:
            if files.number is not None:
                raise Unavailable(code, "The disk says no.")
            begin()

        monkeypatch.setattr(database, "begin", refused)
        run_number = resident.start("t")
        task = resident.until(lambda: _pid(kit))
        files.number = number
        assert resident.refused("run.start", name="u") in (code, "no_space", "storage_unavailable")
        assert resident.refused("task.add", name="w", shell="true") == code
        clock.pass_by(11_000)  # the trigger is due, and must not be lost
        resident.turn()
        kit.file("go").touch()
        resident.until(lambda: resident.hold(run_number), what="the run is held")
        gone(task)
        resident.runtime.sweep.run_once()
        degraded = resident.degraded()
        assert f"run_unproven:{run_number}:storage" in degraded
        before = [run.number for run in resident.ended]
        files.number = None
        clock.pass_by(ESCAPED_POLL_MS)
        run = resident.end(run_number)
        assert (run["status"], run["exit_code"]) == ("failed", 7)
        resident.until(
            lambda: resident.call("runs.list", task="v")["runs"], what="the trigger admits again"
        )
        assert before == []
        assert resident.end(resident.start("u"))["exit_code"] == 4
        resident.runtime.sweep.run_once()
        assert resident.degraded() == []


def test_a_database_that_may_not_grow_refuses_and_goes_on_when_it_may(kit: Kit) -> None:
    """SQLite's own word for a full disk, at whatever statement it comes."""
    tasks(kit)
    with Resident(kit.state) as resident:
        database = resident.runtime.store.database
        number = resident.start("t")
        resident.until(lambda: _pid(kit))
        pages = database.row("PRAGMA page_count")
        assert pages is not None
        database.execute(f"PRAGMA max_page_count={pages[0]}")
        refused = 0
        for each in range(200):
            answer = resident.answer("task.add", name=f"n{each}", shell="x" * 4_000)
            refused += answer == "no_space"
            assert answer in (None, "no_space")
        assert refused >= 190
        database.execute("PRAGMA max_page_count=1000000")
        kit.file("go").touch()
        assert resident.end(number)["exit_code"] == 7
        resident.task("after", shell="exit 0")
    assert kit.sql("PRAGMA integrity_check") == [("ok",)]


# -- a disk that is slow --------------------------------------------------------------------------


def _slow(monkeypatch: pytest.MonkeyPatch, database: Database, wait: Callable[[], object]) -> None:
    commit = database.commit

    def slowly() -> None:
        wait()
        commit()

    monkeypatch.setattr(database, "commit", slowly)


def test_a_commit_that_outlasts_the_wrappers_patience_leaves_one_end_and_no_file(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wrapper gives up and publishes; the daemon commits after it, and cleans up behind it."""
    tasks(kit)
    with Resident(kit.state) as resident:
        number = resident.start("u")
        patience_s = WRAPPER_SILENCE_MS / 1000 + 0.5
        _slow(monkeypatch, resident.runtime.store.database, lambda: time.sleep(patience_s))
        run = resident.end(number)
        assert (run["status"], run["exit_code"], run["evidence"]) == ("failed", 4, "receipt")
        told = resident.call("run.show", run=str(number))
        assert [event["type"] for event in told["events"]].count("run.failed") == 1
        monkeypatch.undo()
        resident.until(lambda: all(each.released for each in resident.started), what="released")
        assert not list(kit.state.glob("receipts/??/*"))
    assert kit.sql("SELECT count(*) FROM receipt_journal") == [(0,)]


def test_a_commit_that_outlasts_a_launch_starts_nothing_twice(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time passes in the fsync: no launch times out behind its own barrier, none is repeated."""
    kit.ok("task", "add", "t", "--every", "10s", "--shell", f'echo x >> "{kit.place}/ran"')
    parts = Parts()
    parts.clock = clock = Moved()
    with Resident(kit.state, parts) as resident:
        commit_ms = LAUNCH_READY_MS + 5_000
        _slow(monkeypatch, resident.runtime.store.database, lambda: clock.pass_by(commit_ms))
        clock.pass_by(10_000)
        resident.until(lambda: len(resident.ended) >= 3, what="three runs end")
        resident.call("scheduler.pause")
        resident.until(lambda: not resident.runtime.coordinator.registry.busy, what="rest")
        ended = [(run.status, run.number) for run in resident.ended]
        assert {status for status, _number in ended} == {"succeeded"}
        assert len(kit.file("ran").read_text().split()) == len(ended) == len(set(ended))


def test_triggers_that_are_due_faster_than_the_disk_commits_leave_the_others_a_turn(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each skipped occurrence is a commit, and the next one is due before it returns."""
    tasks(kit)
    kit.ok("task", "set", "t", "--every", "1s")
    parts = Parts()
    parts.clock = clock = Moved()
    with Resident(kit.state, parts) as resident:
        number = resident.start("t")
        resident.until(lambda: _pid(kit))
        _slow(monkeypatch, resident.runtime.store.database, lambda: clock.pass_by(3_000))
        clock.pass_by(1_000)
        for _ in range(5):
            resident.turn()
        kit.file("go").touch()
        assert resident.end(number)["exit_code"] == 7


def _pid(kit: Kit) -> int:
    path = kit.file("pid")
    words = path.read_text().split() if path.exists() else []
    return int(words[-1]) if words else 0


def _tool(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
