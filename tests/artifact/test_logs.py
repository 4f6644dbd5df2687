"""The local allocator on real files: what it makes, what it refuses, what it never touches."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from qinglong_edge.core.errors import Corrupt, EdgeError, Invalid, Unavailable
from qinglong_edge.core.limits import LOG_QUOTA_BYTES_MAX, LOG_QUOTA_BYTES_MIN
from qinglong_edge.system.files import Space
from tests.artifact.place import (
    ATTEMPT,
    FOR_FILE,
    FOR_FOLDER,
    QUOTA,
    RESERVE,
    RUN,
    Place,
    mode,
    needs_root,
    swap,
    to_link,
    to_open,
    write,
)


def refusal(place: Place) -> EdgeError:
    with pytest.raises(EdgeError) as caught:
        place.logs.prepare(RUN, ATTEMPT, QUOTA)
    return caught.value


def test_a_log_and_its_directories_are_private_whatever_the_umask_says(place: Place) -> None:
    """ADR-0115 verification 2, ADR-0024 verification 8"""
    os.umask(0)
    place.root.chmod(0o755)
    place.written()
    os.umask(0o777)
    place.written()
    assert [mode(path) for path in (place.root, place.shard, place.log)] == [0o700, 0o700, 0o600]
    assert place.log.lstat().st_nlink == 1
    assert place.log.read_bytes() == b"0123456789" * 2


def test_a_new_log_has_its_own_name_only_once_it_is_adopted(place: Place) -> None:
    log = place.logs.prepare(RUN, ATTEMPT, QUOTA)
    assert (log.size, log.named) == (0, False)
    assert place.names() == {place.shard.name, f"{place.shard.name}/.starting.log"}
    place.logs.adopt(log, RUN, ATTEMPT)
    os.write(log.fd, b"x")
    place.logs.release(log)
    assert place.names() == {place.shard.name, f"{place.shard.name}/{place.id}.log"}
    assert place.log.read_bytes() == b"x"


def test_a_launch_that_never_crossed_its_barrier_leaves_no_bytes_to_the_next(place: Place) -> None:
    place.logs.release(place.logs.prepare(RUN, ATTEMPT, QUOTA))
    write(place.starting, b"left by a power cut")
    place.written(b"new")
    assert place.log.read_bytes() == b"new"


def test_a_replayed_attempt_appends_behind_its_bytes_and_keeps_them(place: Place) -> None:
    """ADR-0024 verification 8, ADR-0115 verification 3"""
    place.written(b"first ")
    log = place.logs.prepare(RUN, ATTEMPT, QUOTA)
    assert (log.size, log.named) == (6, True)
    os.lseek(log.fd, 0, os.SEEK_SET)
    os.write(log.fd, b"second")
    place.logs.adopt(log, RUN, ATTEMPT)
    place.logs.release(log)
    assert place.log.read_bytes() == b"first second"
    assert place.names() == {place.shard.name, f"{place.shard.name}/{place.id}.log"}


def test_releasing_a_log_deletes_nothing(place: Place) -> None:
    """ADR-0024 verification 8: dispose gives the descriptor back."""
    place.written(b"kept")
    assert place.log.read_bytes() == b"kept"


def test_the_descriptor_only_appends_and_is_not_inherited(place: Place) -> None:
    fd = place.begun()
    os.write(fd, b"one")
    os.pwrite(fd, b"two", 0)
    assert os.get_inheritable(fd) is False
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.read(fd, 1)
    os.close(fd)
    assert place.log.read_bytes() == b"onetwo"


@pytest.mark.parametrize("size", [QUOTA - 1, QUOTA])
def test_a_log_within_its_quota_is_opened_again(place: Place, size: int) -> None:
    place.written(b"x" * size)
    log = place.logs.prepare(RUN, ATTEMPT, QUOTA)
    assert log.size == size
    place.logs.release(log)


def test_a_log_one_byte_beyond_its_quota_is_refused_unchanged(place: Place) -> None:
    place.written(b"x" * (QUOTA + 1))
    error = refusal(place)
    assert isinstance(error, Corrupt)
    assert (error.code, error.facts) == ("log_over_quota", {"bytes": QUOTA + 1})
    assert place.log.stat().st_size == QUOTA + 1


@pytest.mark.parametrize(
    "quota",
    [0, -1, LOG_QUOTA_BYTES_MIN - 1, LOG_QUOTA_BYTES_MAX + 1],
)
def test_a_quota_out_of_bounds_makes_nothing(place: Place, quota: int) -> None:
    with pytest.raises(Invalid):
        place.logs.prepare(RUN, ATTEMPT, quota)
    assert place.names() == set()


@pytest.mark.parametrize("quota", [LOG_QUOTA_BYTES_MIN, LOG_QUOTA_BYTES_MAX])
def test_the_least_and_the_largest_quota_are_given(place: Place, quota: int) -> None:
    place.logs.release(place.logs.prepare(RUN, ATTEMPT, quota))


@pytest.mark.parametrize("run_id", ["", "../escape", "a/b", "a\0b", "r" * 37])
def test_what_is_no_id_has_no_log_and_leaves_nothing(place: Place, run_id: str) -> None:
    """ADR-0024 verification 9: a bad identity is refused before anything happens."""
    for given in ((run_id, ATTEMPT), (RUN, run_id)):
        with pytest.raises(Invalid):
            place.logs.prepare(*given, QUOTA)
    assert place.names() == set()


# -- room -----------------------------------------------------------------------------------------


def test_exactly_the_reserve_and_one_log_are_room_enough(place: Place) -> None:
    place.disk.room = Space(bytes=RESERVE + QUOTA, inodes=1)
    place.written()


@pytest.mark.parametrize(
    "room",
    [
        Space(bytes=RESERVE + QUOTA - 1, inodes=9),
        Space(bytes=0, inodes=None),
        Space(bytes=1 << 40, inodes=0),
    ],
)
def test_without_room_neither_directory_nor_file_appears(place: Place, room: Space) -> None:
    """ADR-0115 verification 5"""
    place.disk.room = room
    error = refusal(place)
    assert isinstance(error, Unavailable)
    assert (error.code, error.facts["needed_bytes"]) == ("log_capacity", RESERVE + QUOTA)
    assert place.names() == set()


def test_a_file_system_that_counts_no_inodes_is_not_out_of_them(place: Place) -> None:
    place.disk.room = Space(bytes=1 << 40, inodes=None)
    place.written()


def test_the_real_disk_has_room_as_the_kernel_says(place: Place) -> None:
    found = os.statvfs(place.root)
    seen = super(type(place.disk), place.disk).space(str(place.root))
    assert abs(seen.bytes - found.f_bavail * found.f_frsize) < 1 << 30


# -- places that are not ours ---------------------------------------------------------------------


def test_a_missing_root_is_not_made(place: Place) -> None:
    """Its disk may be unplugged: a log would fill the one below its mount point."""
    place.root.rmdir()
    assert refusal(place).code == "storage_unavailable"
    assert not place.root.exists()


@needs_root
@pytest.mark.parametrize("spoil", FOR_FOLDER)
@pytest.mark.parametrize("which", ["root", "shard"])
def test_a_directory_that_is_not_ours_is_refused(
    place: Place, which: str, spoil: Callable[[Path], None]
) -> None:
    """ADR-0115 verification 2"""
    place.written()
    folder: Path = getattr(place, which)
    spoil(folder)
    error = refusal(place)
    assert isinstance(error, Corrupt)
    assert error.code in {"directory_unsafe", "directory_foreign"}


@needs_root
@pytest.mark.parametrize("spoil", FOR_FILE)
def test_a_log_that_is_not_ours_alone_is_refused_untouched(
    place: Place, spoil: Callable[[Path], None], tmp_path: Path
) -> None:
    """ADR-0024 verification 8"""
    place.written(b"somebody's")
    spoil(place.log)
    error = refusal(place)
    assert isinstance(error, Corrupt)
    assert error.code in {"file_unsafe", "file_foreign"}
    for path in tmp_path.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert path.read_bytes() == b"somebody's"


def test_a_link_that_leads_nowhere_makes_no_file_there(place: Place, tmp_path: Path) -> None:
    place.shard.mkdir(0o700)
    place.log.symlink_to(tmp_path / "nowhere")
    assert refusal(place).code == "file_unsafe"
    assert not (tmp_path / "nowhere").exists()


def test_a_link_in_the_place_of_a_starting_log_is_replaced_and_not_followed(
    place: Place, tmp_path: Path
) -> None:
    place.shard.mkdir(0o700)
    place.starting.symlink_to(tmp_path / "nowhere")
    place.written()
    assert not (tmp_path / "nowhere").exists()


def test_a_log_that_others_could_read_is_closed_to_them(place: Place) -> None:
    place.written()
    to_open(place.log)
    place.written()
    assert mode(place.log) == 0o600


def test_a_root_that_others_use_is_refused_as_it_is(place: Place) -> None:
    (place.root / "photo").touch()
    place.root.chmod(0o1777)
    error = refusal(place)
    assert (type(error), error.code) == (Corrupt, "directory_shared")
    assert place.root.stat().st_mode & 0o7777 == 0o1777


@pytest.mark.parametrize("which", ["root", "shard"])
def test_a_directory_that_changes_while_a_log_is_opened_is_refused(
    place: Place, which: str
) -> None:
    place.disk.after_look = lambda _path: swap(getattr(place, which))
    error = refusal(place)
    assert (type(error), error.code) == (Corrupt, "directory_unsafe")


def test_a_log_that_changes_while_it_is_opened_is_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.written()
    real = os.fstat

    def fstat(fd: int) -> os.stat_result:
        found = real(fd)
        swap(place.log)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", fstat)
        error = refusal(place)
    assert (type(error), error.code) == (Corrupt, "file_unsafe")


@pytest.mark.parametrize("name", ["chmod", "lstat", "open", "fchmod", "mkdir", "statvfs"])
def test_a_disk_that_fails_is_a_typed_error(
    place: Place, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_given: object, **_named: object) -> None:
        raise OSError(5, "injected")

    place.root.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setattr(os, name, fail)
        error = refusal(place)
    assert (error.code, error.facts) == ("storage_unavailable", {"errno": "EIO"})


# -- what it tells --------------------------------------------------------------------------------


def test_neither_text_nor_json_of_a_log_shows_a_path(place: Place) -> None:
    """ADR-0024 section 4: serialising shows no path."""
    place.written()
    log = place.logs.prepare(RUN, ATTEMPT, QUOTA)
    paths = place.logs.paths(RUN, ATTEMPT)
    told = f"{place.logs!r} {log!r} {paths!r} {place.logs.retire(RUN, ATTEMPT)!r}"
    place.logs.release(log)
    assert str(place.root) not in told
    assert place.id not in told
    for value in (log, paths, place.logs):
        with pytest.raises(TypeError):
            json.dumps(value)
    with pytest.raises(TypeError):
        vars(paths)


def test_the_name_of_a_log_tells_neither_run_nor_attempt(place: Place) -> None:
    """ADR-0024 verification 7"""
    place.written()
    told = "".join(place.names())
    assert RUN not in told
    assert ATTEMPT not in told
    assert len(place.id) == 36


def test_errors_tell_no_path(place: Place) -> None:
    place.written()
    to_link(place.log)
    error = refusal(place)
    assert str(place.root) not in f"{error} {error!r} {error.document()}"


def test_what_an_attempt_is_known_by_leads_to_its_facts_paths(place: Place) -> None:
    found = place.logs.fact_paths(RUN, ATTEMPT)
    assert found == (str(place.temporary), str(place.fact))
    assert place.names() == set()


def test_the_size_of_a_log_is_told_or_none(place: Place) -> None:
    assert place.logs.size(RUN, ATTEMPT) is None
    place.written(b"12345")
    assert place.logs.size(RUN, ATTEMPT) == 5
