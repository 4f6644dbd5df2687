"""File effects: private, durable in the right order, never followed, never overwritten."""

from __future__ import annotations

import errno
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qinglong_edge.core.errors import Corrupt, Unavailable
from qinglong_edge.system.files import Files, Space, storage_error
from tests.support import ROOT, nearby

STRANGER = 54_321
_HOLDER = """
import sys
sys.path.insert(0, sys.argv[1])
from qinglong_edge.system.files import Files
print(Files().lock_owner(sys.argv[2]) is not None, flush=True)
sys.stdin.read()
"""
pytestmark = pytest.mark.usefixtures("open_umask", "no_descriptor_stays")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


@pytest.fixture
def files() -> Files:
    return Files()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def listener(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock, nearby(path) as name:
        sock.bind(name)


def link_to_file(path: Path) -> None:
    target = path.with_name("elsewhere")
    target.write_bytes(b"elsewhere")
    path.symlink_to(target)


NOT_REGULAR: list[Callable[[Path], object]] = [
    link_to_file,
    lambda path: path.symlink_to("nowhere"),
    lambda path: path.mkdir(),
    lambda path: os.mkfifo(path),
    listener,
]


class Counting(Files):
    """Tells every effect; fails at one of them, or while writing, if it is asked to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fail: str = "") -> None:
        self.told: list[str] = []
        self._fail = fail
        for name in ("open", "write", "fsync", "link", "rename", "unlink"):
            monkeypatch.setattr(os, name, self._counted(name, getattr(os, name)))

    def _counted(self, name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*given: object, **options: object) -> object:
            told = name
            if name == "fsync":
                assert isinstance(given[0], int)
                told = "fsync-dir" if stat.S_ISDIR(os.fstat(given[0]).st_mode) else "fsync"
            self.told.append(told)
            if told == self._fail:
                raise OSError(errno.ENOSPC, "no space")
            return real(*given, **options)

        return call


def test_a_private_directory_is_private_whatever_the_umask_says(
    tmp_path: Path, files: Files
) -> None:
    for umask in (0, 0o077, 0o777):
        os.umask(umask)
        path = tmp_path / f"d{umask}"
        files.make_private_directory(str(path))
        files.make_private_directory(str(path))
        assert mode(path) == 0o700


def test_a_directory_that_others_may_enter_is_closed_to_them(tmp_path: Path, files: Files) -> None:
    path = tmp_path / "d"
    path.mkdir()
    path.chmod(0o755)
    files.check_private_directory(str(path))
    assert mode(path) == 0o700


def test_a_directory_is_closed_to_others_only_where_all_in_it_is_ours(
    tmp_path: Path, files: Files
) -> None:
    path, ours = tmp_path / "d", {"a", "b"}
    path.mkdir()
    for name, closed in (("a", True), ("b", True), ("c", False)):
        (path / name).touch()
        path.chmod(0o1777)
        if closed:
            files.make_private_directory(str(path), ours.__contains__)
        else:
            with pytest.raises(Corrupt) as error:
                files.make_private_directory(str(path), ours.__contains__)
            assert error.value.code == "directory_shared"
        assert (mode(path) == 0o700) is closed
    path.chmod(0o700)
    files.make_private_directory(str(path), ours.__contains__)  # nothing is to be closed


@pytest.mark.parametrize("kind", [link_to_file, os.mkfifo, Path.touch, listener])
def test_what_is_no_directory_is_never_taken_for_one(
    tmp_path: Path, files: Files, kind: Callable[[Path], object]
) -> None:
    path = tmp_path / "d"
    kind(path)
    with pytest.raises(Corrupt) as error:
        files.make_private_directory(str(path))
    assert error.value.code == "directory_unsafe"


def test_a_link_to_a_directory_is_no_directory_of_ours(tmp_path: Path, files: Files) -> None:
    (tmp_path / "real").mkdir(0o755)
    (tmp_path / "d").symlink_to(tmp_path / "real")
    with pytest.raises(Corrupt):
        files.check_private_directory(str(tmp_path / "d"))
    assert mode(tmp_path / "real") == 0o755


@needs_root
def test_a_directory_of_another_user_is_refused_unchanged(tmp_path: Path, files: Files) -> None:
    path = tmp_path / "d"
    path.mkdir(0o755)
    os.chown(path, STRANGER, -1)
    with pytest.raises(Corrupt) as error:
        files.check_private_directory(str(path))
    assert error.value.code == "directory_foreign"
    assert mode(path) == 0o755


def test_a_missing_file_is_none(tmp_path: Path, files: Files) -> None:
    missing = str(tmp_path / "missing")
    assert files.read_private(missing, 9) is None
    assert files.read_range(missing, 0, 9) is None
    assert files.size(missing) is None
    assert files.sync(missing) is None
    assert files.exists(missing) is False
    assert files.remove(missing) is False
    assert files.link(missing, str(tmp_path / "b")) is False


@pytest.mark.parametrize("kind", NOT_REGULAR)
def test_only_a_regular_file_is_read(
    tmp_path: Path, files: Files, kind: Callable[[Path], object]
) -> None:
    """A link is not followed, a FIFO does not block."""
    path = tmp_path / "f"
    kind(path)
    for read in (
        lambda: files.read_private(str(path), 9),
        lambda: files.read_range(str(path), 0, 9),
    ):
        with pytest.raises(Corrupt) as error:
            read()
        assert error.value.code == "file_unsafe"
    assert files.exists(str(path)) is True


@pytest.mark.parametrize(("size", "seen"), [(0, 0), (9, 9), (10, 10), (11, 10), (300_000, 10)])
def test_one_byte_over_the_bound_is_read_so_that_the_excess_shows(
    tmp_path: Path, files: Files, size: int, seen: int
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * size)
    assert files.read_private(str(path), 9) == b"x" * seen


@pytest.mark.parametrize(
    ("offset", "length", "seen"),
    [(0, 4, b"0123"), (8, 4, b"89"), (10, 4, b""), (99, 4, b""), (0, 0, b"")],
)
def test_a_range_comes_with_the_size_of_the_file(
    tmp_path: Path, files: Files, offset: int, length: int, seen: bytes
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    path.chmod(0o600)
    assert files.read_range(str(path), offset, length) == (seen, min(offset, 10), 10)


def test_publishing_syncs_the_bytes_before_the_name_and_the_name_before_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        files = Counting(patch)
        assert files.publish(str(tmp_path / ".t"), str(tmp_path / "f"), b"data") is True
    assert files.told == ["open", "write", "fsync", "link", "open", "fsync-dir", "unlink"]
    assert (tmp_path / "f").read_bytes() == b"data"
    assert mode(tmp_path / "f") == 0o600
    assert (tmp_path / "f").stat().st_nlink == 1
    assert os.listdir(tmp_path) == ["f"]


def test_publishing_never_overwrites(tmp_path: Path, files: Files) -> None:
    assert files.publish(str(tmp_path / ".t"), str(tmp_path / "f"), b"first") is True
    assert files.publish(str(tmp_path / ".t"), str(tmp_path / "f"), b"second") is False
    assert (tmp_path / "f").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize("kind", NOT_REGULAR)
def test_publishing_never_replaces_or_follows_what_has_the_name(
    tmp_path: Path, files: Files, kind: Callable[[Path], object]
) -> None:
    path = tmp_path / "f"
    kind(path)
    before = path.lstat()
    assert files.publish(str(tmp_path / ".t"), str(path), b"data") is False
    assert path.lstat().st_ino == before.st_ino
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("fail", ["write", "fsync", "link"])
def test_a_publication_that_fails_leaves_neither_name_nor_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail: str
) -> None:
    with monkeypatch.context() as patch:
        files = Counting(patch, fail)
        with pytest.raises(OSError, match="no space"):
            files.publish(str(tmp_path / ".t"), str(tmp_path / "f"), b"data")
    assert os.listdir(tmp_path) == []


def test_replacing_syncs_the_bytes_before_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    with monkeypatch.context() as patch:
        files = Counting(patch)
        files.replace(str(path), b"new", mode=0o500)
    effects = [each for each in files.told if each != "unlink"]
    assert effects == ["open", "write", "fsync", "rename", "open", "fsync-dir"]
    assert (path.read_bytes(), mode(path)) == (b"new", 0o500)
    assert os.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize("fail", ["write", "fsync", "rename"])
def test_a_replacement_that_fails_keeps_the_old_file_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail: str
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    with monkeypatch.context() as patch:
        files = Counting(patch, fail)
        with pytest.raises(OSError, match="no space"):
            files.replace(str(path), b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


def test_replacing_goes_on_after_a_cut_and_follows_no_link(tmp_path: Path, files: Files) -> None:
    (tmp_path / "f.new").symlink_to(tmp_path / "victim")
    link_to_file(tmp_path / "f")
    files.replace(str(tmp_path / "f"), b"new")
    assert (tmp_path / "f").read_bytes() == b"new"
    assert not (tmp_path / "f").is_symlink()
    assert (tmp_path / "elsewhere").read_bytes() == b"elsewhere"
    assert not (tmp_path / "victim").exists()


def test_a_second_name_keeps_an_existing_one(tmp_path: Path, files: Files) -> None:
    one, two = tmp_path / "1", tmp_path / "2"
    one.write_bytes(b"one")
    assert files.link(str(one), str(two)) is True
    assert one.stat().st_ino == two.stat().st_ino
    two.unlink()
    two.write_bytes(b"two")
    assert files.link(str(one), str(two)) is True
    assert two.read_bytes() == b"two"
    assert files.remove(str(one)) is True
    assert files.link(str(one), str(two)) is False


def test_appending_creates_a_private_file_and_only_ever_appends(
    tmp_path: Path, files: Files
) -> None:
    path = tmp_path / "f"
    for umask, text in ((0, b"one"), (0o777, b"two")):
        os.umask(umask)
        fd = files.open_append(str(path))
        os.lseek(fd, 0, os.SEEK_SET)
        os.write(fd, text)
        assert files.descriptor_size(fd) == path.stat().st_size
        assert os.get_blocking(fd) is True
        assert os.get_inheritable(fd) is False
        files.close(fd)
    assert path.read_bytes() == b"onetwo"
    assert mode(path) == 0o600


def test_a_file_that_others_may_read_is_closed_to_them(tmp_path: Path, files: Files) -> None:
    path = tmp_path / "f"
    path.touch(0o666)
    files.close(files.open_append(str(path)))
    assert mode(path) == 0o600


@pytest.mark.parametrize("kind", NOT_REGULAR)
def test_appending_refuses_what_is_no_regular_file(
    tmp_path: Path, files: Files, kind: Callable[[Path], object]
) -> None:
    path = tmp_path / "f"
    kind(path)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(Corrupt) as error:
        files.open_append(str(path))
    assert error.value.code == "file_unsafe"
    assert sorted(os.listdir(tmp_path)) == before


def test_appending_refuses_a_fifo_that_somebody_reads(tmp_path: Path, files: Files) -> None:
    path = tmp_path / "f"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(Corrupt):
        files.open_append(str(path))
    os.close(reader)


def test_appending_refuses_a_file_with_another_name(tmp_path: Path, files: Files) -> None:
    (tmp_path / "other").write_bytes(b"mine")
    (tmp_path / "other").chmod(0o644)
    os.link(tmp_path / "other", tmp_path / "f")
    with pytest.raises(Corrupt):
        files.open_append(str(tmp_path / "f"))
    assert mode(tmp_path / "other") == 0o644


@needs_root
def test_appending_refuses_a_file_of_another_user(tmp_path: Path, files: Files) -> None:
    path = tmp_path / "f"
    path.touch(0o644)
    os.chown(path, STRANGER, -1)
    with pytest.raises(Corrupt) as error:
        files.open_append(str(path))
    assert error.value.code == "file_foreign"
    assert mode(path) == 0o644


def test_appending_refuses_a_file_that_was_swapped_under_the_open(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "f", tmp_path / "other"
    path.touch()
    other.touch()
    real = os.fstat

    def swap(fd: int) -> os.stat_result:
        other.replace(path)
        return real(fd)

    keep = os.open(path, os.O_RDONLY)  # the swapped-out file keeps its one link by this name
    os.link(path, tmp_path / "kept")
    monkeypatch.setattr(os, "fstat", swap)
    with pytest.raises(Corrupt):
        files.open_append(str(path))
    monkeypatch.undo()
    os.close(keep)


@pytest.mark.parametrize(("total", "favail", "inodes"), [(0, 0, None), (10, 3, 3), (10, 0, 0)])
def test_a_file_system_that_counts_no_inodes_has_an_unknown_number_of_them(
    files: Files, monkeypatch: pytest.MonkeyPatch, total: int, favail: int, inodes: int | None
) -> None:
    answer = os.statvfs_result((4096, 1024, 100, 50, 40, total, favail, favail, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _path: answer)
    assert files.space("/") == Space(bytes=40 * 1024, inodes=inodes, size=100 * 1024)


def test_one_owner_and_a_second_is_refused(tmp_path: Path, files: Files) -> None:
    path = tmp_path / "owner.lock"
    first = files.lock_owner(str(path))
    assert first is not None
    assert files.lock_owner(str(path)) is None
    assert mode(path) == 0o600
    os.close(first)
    again = files.lock_owner(str(path))
    assert again is not None
    os.close(again)


def test_the_lock_holds_across_processes_and_goes_with_a_killed_holder(
    tmp_path: Path, files: Files
) -> None:
    path = str(tmp_path / "owner.lock")
    command = [sys.executable, "-I", "-S", "-c", _HOLDER, ROOT, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"True\n"
        assert files.lock_owner(path) is None
        holder.send_signal(signal.SIGKILL)
    mine = files.lock_owner(path)
    assert mine is not None
    os.close(mine)


def test_a_lock_behind_a_link_or_on_a_file_system_without_locks_is_an_error(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    link_to_file(tmp_path / "owner.lock")
    with pytest.raises(OSError) as caught:
        files.lock_owner(str(tmp_path / "owner.lock"))
    assert caught.value.errno == errno.ELOOP

    def refuse(_fd: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(OSError, match="no locks"):
        files.lock_owner(str(tmp_path / "other.lock"))


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOSPC, "no_space"),
        (errno.EDQUOT, "no_space"),
        (errno.EROFS, "state_read_only"),
        (errno.EIO, "storage_unavailable"),
        (None, "storage_unavailable"),
    ],
)
def test_a_failed_effect_is_told_without_its_path(number: int | None, code: str) -> None:
    error = OSError() if number is None else OSError(number, "text", "/private/path")
    found = storage_error(error, "log")
    assert (type(found), found.code) == (Unavailable, code)
    assert "private" not in str(found.document())


def test_a_file_s_bytes_are_made_durable_and_counted(tmp_path: Path, files: Files) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"12345")
    assert files.sync(str(path)) == 5
    with pytest.raises(Corrupt) as error:
        files.sync(str(tmp_path))
    assert error.value.code == "file_unsafe"
