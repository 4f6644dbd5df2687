"""A worker's log: derived, proven, handed over once, removed at the end."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.artifact.worker import (
    WorkerLogAllocator,
    policy,
    worker_log_id,
)
from qinglong_edge.core import fact as facts
from qinglong_edge.core.errors import Invalid, Unavailable
from qinglong_edge.system.files import Space
from tests.artifact.place import FOR_FILE, FOR_FOLDER, Disk, mode, needs_root, swap, to_open, write
from tests.artifact.spool import IDS, SMALL, Spool, code_of
from tests.support import ROOT
from tests.tools import builder

VECTORS = json.loads(
    (Path(__file__).parents[1] / "vectors" / "worker_log.json").read_text(encoding="utf-8")
)


# -- identity -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", VECTORS["log_ids"], ids=lambda case: case["offer_id"])
def test_an_offers_log_has_the_known_id(case: dict[str, str]) -> None:
    """ADR-0115 verification 1"""
    log_id = worker_log_id(case["project_id"], case["run_id"], case["attempt_id"], case["offer_id"])
    assert log_id == case["log_artifact_id"]
    assert len(log_id) == 35
    assert facts.is_log_artifact_id(log_id)
    assert facts.log_shard(log_id) == case["shard"]


def test_each_part_of_the_authority_makes_another_id() -> None:
    """ADR-0115 verification 1"""
    others = [(*IDS[:n], "other", *IDS[n + 1 :]) for n in range(4)]
    assert len({worker_log_id(*given_ids) for given_ids in [IDS, *others]}) == 5
    assert worker_log_id("a", "b", "c", "dd") != worker_log_id("a", "b", "cd", "d")


def test_no_part_of_the_authority_stands_in_a_name_or_a_text(spool: Spool) -> None:
    """ADR-0115 verification 1: inputs stay hidden."""
    spool.written()
    made = spool.prepare()
    lease = spool.open()
    told = "".join(map(str, spool.root.rglob("*"))).replace(str(spool.root), "")
    told += f"{made!r} {lease!r} {spool.allocator!r}"
    assert not any(each in told for each in (*IDS, str(spool.root)))
    made.release()
    assert lease is not None
    lease.close()


@pytest.mark.parametrize("bad", ["", "a\0b", "\n", "\x7f", "x" * 129, "\U0001f600" * 65, "\ud800"])
@pytest.mark.parametrize("place", range(4))
def test_what_is_no_bounded_id_is_refused_and_leaves_nothing(
    spool: Spool, bad: str, place: int
) -> None:
    given_ids = [*IDS]
    given_ids[place] = bad
    assert code_of(lambda: spool.allocator.prepare(*given_ids)) == "invalid_request"
    assert not spool.root.exists()


def test_ids_are_counted_as_the_control_plane_counts_them() -> None:
    for good in ("x" * 128, "\U0001f600" * 64, "../..", " ", "\u00e9"):
        assert len(worker_log_id(good, *IDS[1:])) == 35
    assert code_of(lambda: worker_log_id(1, *IDS[1:])) == "invalid_request"  # type: ignore[arg-type]


# -- policy ---------------------------------------------------------------------------------------


def test_the_policies_are_those_of_the_decision() -> None:
    edge, node = policy("edge"), policy("node")
    assert (edge.maximum_attempt_bytes, edge.minimum_free_bytes) == (4 << 20, 32 << 20)
    assert (node.maximum_attempt_bytes, node.minimum_free_bytes) == (64 << 20, 256 << 20)
    assert edge.maximum_write_chunk_bytes == node.maximum_write_chunk_bytes == 1 << 20
    assert code_of(lambda: policy("cluster")) == "invalid_configuration"


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("maximum_attempt_bytes", [1, 1 << 30], [0, (1 << 30) + 1, True, None, 1.0]),
        ("minimum_free_bytes", [0, 1 << 40], [-1, (1 << 40) + 1, True, "1"]),
        ("maximum_write_chunk_bytes", [1, 1 << 20], [0, (1 << 20) + 1, None]),
    ],
)
def test_each_number_of_a_policy_has_its_bounds(
    field: str, good: list[Any], bad: list[Any]
) -> None:
    for value in good:
        assert getattr(SMALL.replace(**{field: value}), field) == value
    for value in bad:
        with pytest.raises(Invalid) as caught:
            SMALL.replace(**{field: value})
        assert (caught.value.code, caught.value.facts) == (
            "invalid_configuration",
            {"field": field},
        )


@pytest.mark.parametrize("root", ["spool", "", "/a\0b", b"/a", None])
def test_only_an_absolute_root_is_taken(root: Any) -> None:
    assert code_of(lambda: WorkerLogAllocator(root, Disk(), SMALL)) == "invalid_configuration"


# -- room -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("free", [1_100, 1 << 40])
def test_exactly_the_reserve_and_one_log_are_room_enough(spool: Spool, free: int) -> None:
    spool.disk.room = Space(bytes=free, inodes=None)
    spool.prepare().release()


@pytest.mark.parametrize(
    "answer", [1_099, 0, -1, None, "2000", 2000.0, True, OSError(5, "x"), Unavailable("x", "y")]
)
def test_without_proven_room_the_root_stays_empty(tmp_path: Path, answer: object) -> None:
    """ADR-0115 verification 5"""

    def available(_root: str) -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    root = tmp_path / "spool"
    allocator = WorkerLogAllocator(str(root), Disk(), SMALL, available_bytes=available)
    with pytest.raises(Unavailable) as caught:
        allocator.prepare(*IDS)
    assert caught.value.code == "capacity_unavailable"
    assert not allocator.has_room()
    assert list(root.iterdir()) == []


def test_whether_there_is_room_can_be_asked_before_anything_is_begun(spool: Spool) -> None:
    spool.disk.room = Space(bytes=1_100, inodes=None)
    assert spool.allocator.has_room()
    assert list(spool.root.iterdir()) == []
    spool.disk.room = Space(bytes=1_099, inodes=None)
    assert not spool.allocator.has_room()


def test_without_an_inode_there_is_no_room(spool: Spool) -> None:
    spool.disk.room = Space(bytes=1 << 40, inodes=0)
    assert code_of(spool.prepare) == "capacity_unavailable"


# -- places ---------------------------------------------------------------------------------------


def test_root_shard_and_file_are_private_whatever_the_umask_says(spool: Spool) -> None:
    """ADR-0115 verification 2"""
    os.umask(0)
    spool.root.mkdir(0o755)
    spool.root.chmod(0o755)
    spool.written()
    assert [mode(path) for path in (spool.root, spool.shard, spool.log)] == [0o700, 0o700, 0o600]
    to_open(spool.log)
    spool.written()
    assert mode(spool.log) == 0o600


def test_a_root_below_missing_directories_is_made(tmp_path: Path) -> None:
    allocator = WorkerLogAllocator(str(tmp_path / "a" / "b" / "spool"), Disk(), SMALL)
    allocator.prepare(*IDS).release()
    assert mode(tmp_path / "a" / "b" / "spool") == 0o700


@needs_root
@pytest.mark.parametrize("spoil", FOR_FOLDER)
@pytest.mark.parametrize("which", ["root", "shard"])
def test_a_directory_that_is_not_the_workers_is_refused(
    spool: Spool, which: str, spoil: Callable[[Path], None]
) -> None:
    """ADR-0115 verification 2"""
    spool.written()
    spoil(getattr(spool, which))
    assert code_of(spool.prepare) == "unsafe_path"
    assert code_of(spool.open) == "unsafe_path"


@needs_root
@pytest.mark.parametrize("spoil", FOR_FILE)
def test_a_log_that_is_not_the_workers_alone_is_refused(
    spool: Spool, spoil: Callable[[Path], None]
) -> None:
    """ADR-0115 verification 2: a symlink is refused, and so are its kin."""
    spool.written()
    spoil(spool.log)
    assert code_of(spool.prepare) == "unsafe_path"
    assert code_of(spool.open) == "unsafe_path"


def test_a_link_that_leads_nowhere_makes_no_file_there(spool: Spool, tmp_path: Path) -> None:
    spool.written()
    spool.log.unlink()
    spool.log.symlink_to(tmp_path / "nowhere")
    assert code_of(spool.prepare) == "unsafe_path"
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("which", ["root", "shard"])
def test_a_directory_that_changes_while_a_log_is_opened_is_refused(
    spool: Spool, which: str
) -> None:
    spool.written()
    spool.disk.after_look = lambda _path: swap(getattr(spool, which))
    assert code_of(spool.prepare) == "unsafe_path"


def test_a_log_that_changes_while_it_is_opened_is_refused(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ADR-0115 section 1: path and descriptor lead to one device and inode."""
    spool.written()
    real = os.fstat

    def fstat(fd: int) -> os.stat_result:
        found = real(fd)
        swap(spool.log)
        return found

    for use in (spool.prepare, spool.open):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fstat", fstat)
            assert code_of(use) == "unsafe_path"


@pytest.mark.parametrize("which", ["root", "shard"])
def test_a_directory_that_changes_while_a_log_is_read_is_refused(spool: Spool, which: str) -> None:
    spool.written()
    spool.disk.after_look = lambda _path: swap(getattr(spool, which))
    assert code_of(spool.open) == "unsafe_path"


def test_a_root_that_changes_while_its_room_is_asked_for_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "spool"

    def available(_root: str) -> int:
        swap(root)
        return 1 << 40

    allocator = WorkerLogAllocator(str(root), Disk(), SMALL, available_bytes=available)
    assert code_of(lambda: allocator.prepare(*IDS)) == "unsafe_path"
    assert list(root.iterdir()) == []


def test_a_disk_that_fails_is_a_typed_error(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_given: object, **_named: object) -> None:
        raise OSError(30, "injected")

    spool.written()
    for name in ("open", "lstat"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            codes = {code_of(spool.prepare), code_of(spool.open)}
        assert codes == {"state_read_only"}


# -- hand-over ------------------------------------------------------------------------------------


def test_output_is_taken_once_and_then_belongs_to_whoever_took_it(spool: Spool) -> None:
    """ADR-0115 verification 6: after the hand-over a release closes nothing."""
    made = spool.prepare()
    output = made.take_output()
    assert made.log_artifact_id == output.log_artifact_id == spool.id
    assert code_of(made.take_output) == "closed"
    made.release()
    made.release()
    output.write("stdout", b"still open", 1)
    output.close()
    assert spool.log.read_bytes() == b"still open"


def test_a_release_of_what_nobody_took_closes_it_and_keeps_the_file(spool: Spool) -> None:
    """ADR-0115 verification 6"""
    made = spool.prepare()
    made.release()
    made.release()
    assert code_of(made.take_output) == "closed"
    assert spool.log.read_bytes() == b""
    assert [name for name in dir(made) if not name.startswith("_")] == [
        "log_artifact_id",
        "release",
        "take_output",
    ]


def test_the_same_offer_goes_on_behind_its_bytes(spool: Spool) -> None:
    """ADR-0115 verification 3"""
    spool.written(b"first ")
    spool.written(b"second")
    assert spool.log.read_bytes() == b"first second"


@pytest.mark.parametrize(("there", "kept"), [(98, 100), (99, 100), (100, 100)])
def test_what_is_there_counts_against_the_quota(spool: Spool, there: int, kept: int) -> None:
    """ADR-0115 verification 3 and 4"""
    spool.written(b"x" * there)
    output = spool.prepare().take_output()
    assert code_of(lambda: output.write("stderr", b"yyy", 1)) == "quota_exceeded"
    output.close()
    assert spool.log.read_bytes() == b"x" * there + b"y" * (kept - there)


def test_a_log_that_is_already_beyond_its_quota_is_refused_unchanged(spool: Spool) -> None:
    spool.written(b"x" * 100)
    write(spool.log, b"x" * 101)
    assert code_of(spool.prepare) == "quota_exceeded"
    assert spool.log.stat().st_size == 101


def test_a_chunk_beyond_the_policy_writes_nothing(spool: Spool) -> None:
    """ADR-0115 verification 4"""
    output = spool.prepare().take_output()
    assert code_of(lambda: output.write("stdout", b"x" * 65, 1)) == "invalid_output"
    output.write("stdout", b"x" * 64, 1)
    output.close()
    assert spool.log.stat().st_size == 64


def test_two_preparations_of_one_offer_both_append(spool: Spool) -> None:
    one, two = spool.prepare().take_output(), spool.prepare().take_output()
    one.write("stdout", b"1", 1)
    two.write("stdout", b"2", 1)
    one.write("stdout", b"3", 1)
    one.close()
    two.close()
    assert spool.log.read_bytes() == b"123"


def test_the_launcher_gets_the_log_itself_and_where_its_fact_goes(spool: Spool) -> None:
    output = spool.prepare().take_output()
    plan = output.output_plan()
    assert plan is not None
    assert (plan.log_artifact_id, plan.maximum_bytes) == (spool.id, 100)
    assert plan.fact_paths == (str(spool.temporary), str(spool.fact))
    os.write(plan.fd, b"by the process")
    output.close()
    assert spool.log.read_bytes() == b"by the process"


# -- the end --------------------------------------------------------------------------------------


def test_removing_a_log_takes_its_fact_and_its_temporary(spool: Spool) -> None:
    assert spool.allocator.remove(spool.id) is False
    spool.written()
    spool.told()
    os.link(spool.fact, spool.temporary)
    write(spool.shard / "other", b"")
    assert spool.allocator.remove(spool.id) is True
    assert [path.name for path in spool.shard.iterdir()] == ["other"]
    assert spool.allocator.remove(spool.id) is False
    assert code_of(lambda: spool.allocator.remove("../x")) == "invalid_request"


def test_the_local_runtime_carries_neither_writer_nor_spool() -> None:
    """ADR-0115 verification 9: the local runtime does not grow."""
    local, worker = (builder.carried(ROOT, kind) for kind in (builder.RUNTIME, builder.WORKER))
    for name in ("writer", "worker"):
        assert f"qinglong_edge/artifact/{name}.py" in worker
        assert f"qinglong_edge/artifact/{name}.py" not in local
