"""The wrapper's way from the package to the shell: installed, verified at each launch, sealed."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from qinglong_edge.core.canonical import sha256_hex
from qinglong_edge.core.errors import Corrupt, Unavailable
from qinglong_edge.core.limits import WRAPPER_BYTES_MAX
from qinglong_edge.process import wrapper
from tests.process.harness import EVERY_SHELL, OPENWRT, TOOLS, WRAPPER, Bench

_PACKAGE = WRAPPER.parents[1]
_IMPOSTOR = b"exit 99\n"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The wrapper as a start of the daemon leaves it."""
    path = tmp_path / "wrapper.sh"
    wrapper.install(str(path))
    return path


def test_the_committed_digest_is_the_scripts() -> None:
    assert sha256_hex(WRAPPER.read_bytes()) == wrapper.WRAPPER_SHA256


def test_the_wrapper_is_installed_once_with_its_mode(installed: Path) -> None:
    before = installed.stat()
    assert before.st_mode & 0o7777 == wrapper.WRAPPER_FILE_MODE
    assert installed.read_bytes() == WRAPPER.read_bytes()
    wrapper.install(str(installed))
    after = installed.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert [path.name for path in installed.parent.iterdir()] == ["wrapper.sh"]


def test_a_wrapper_that_differs_is_replaced(installed: Path, tmp_path: Path) -> None:
    """A stale temporary of an interrupted start is no obstacle."""

    def drifted() -> None:
        installed.chmod(0o700)
        installed.write_bytes(_IMPOSTOR)

    def torn() -> None:
        installed.chmod(0o700)
        installed.write_bytes(WRAPPER.read_bytes()[:100])
        installed.chmod(0o500)

    def loose() -> None:
        installed.chmod(0o755)

    def missing() -> None:
        installed.unlink()

    def linked() -> None:
        installed.rename(tmp_path / "elsewhere")
        installed.symlink_to(tmp_path / "elsewhere")

    for spoil in (drifted, torn, loose, missing, linked):
        spoil()
        (tmp_path / "wrapper.sh.new").write_bytes(b"stale")
        wrapper.install(str(installed))
        found = installed.lstat()
        assert found.st_mode == 0o100_500, spoil
        assert installed.read_bytes() == WRAPPER.read_bytes()
        assert not (tmp_path / "wrapper.sh.new").exists()


def test_a_place_that_cannot_be_written_is_named_by_its_errno(tmp_path: Path) -> None:
    for place, name in ((tmp_path / "absent" / "wrapper.sh", "ENOENT"), (tmp_path, "EISDIR")):
        with pytest.raises(Unavailable) as caught:
            wrapper.install(str(place))
        assert caught.value.code == "wrapper_not_installed"
        assert caught.value.facts == {"errno": name}
        assert not Path(f"{place}.new").exists()


def test_a_damaged_package_installs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wrapper, "WRAPPER_SHA256", "0" * 64)
    with pytest.raises(Corrupt) as caught:
        wrapper.install(str(tmp_path / "wrapper.sh"))
    assert caught.value.code == "wrapper_drift"
    assert list(tmp_path.iterdir()) == []


def test_a_zipapp_installs_the_wrapper_from_inside_itself(tmp_path: Path) -> None:
    """From its path, and from an open descriptor after the file itself has gone."""
    archive = tmp_path / "edge.pyz"
    with zipfile.ZipFile(archive, "w") as written:
        for path in sorted(_PACKAGE.rglob("*")):
            if path.suffix in (".py", ".sh") and path.parent.name in (
                "core",
                "system",
                "process",
                _PACKAGE.name,
            ):
                written.write(path, path.relative_to(_PACKAGE.parent))
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "from qinglong_edge.process import wrapper; wrapper.install(sys.argv[2])"
    )
    with archive.open("rb") as opened:
        for place in (str(archive), f"/proc/self/fd/{opened.fileno()}"):
            target = tmp_path / "wrapper.sh"
            command = [sys.executable, "-I", "-S", "-c", code, place, str(target)]
            subprocess.run(command, pass_fds=[opened.fileno()], check=True)
            assert target.read_bytes() == WRAPPER.read_bytes()
            target.unlink()
            archive.unlink(missing_ok=True)


def test_an_opened_wrapper_is_sealed_whole_and_closed_on_exec(installed: Path) -> None:
    with _opened(installed) as fd:
        assert os.pread(fd, WRAPPER_BYTES_MAX, 0) == WRAPPER.read_bytes()
        assert not os.get_inheritable(fd)
        assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) == 15  # SEAL, SHRINK, GROW, WRITE
        path = f"/proc/self/fd/{fd}"
        for change in (
            lambda: os.write(fd, b"x"),
            lambda: os.truncate(path, 10),
            lambda: os.truncate(path, 100_000),
            lambda: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE),
        ):
            with pytest.raises(PermissionError):
                change()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EACCES])
def test_a_kernel_without_memory_files_gets_the_verified_file_itself(
    installed: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "memfd_create", refuse)
    with _opened(installed) as fd:
        assert os.path.samestat(os.fstat(fd), installed.stat())
        assert not os.get_inheritable(fd)
    monkeypatch.delattr(os, "memfd_create")
    with _opened(installed) as fd:
        assert os.path.samestat(os.fstat(fd), installed.stat())


def test_a_drifted_wrapper_is_refused(installed: Path) -> None:
    """ADR-0069 verification 2: nothing is registered, nothing spawned, at any launch."""
    with _opened(installed):
        pass
    installed.chmod(0o700)
    data = bytearray(WRAPPER.read_bytes())
    data[-2] ^= 1
    for changed in (bytes(data), WRAPPER.read_bytes() + b"\n", _IMPOSTOR):
        installed.write_bytes(changed)
        assert _refusal(installed) == (Corrupt, "wrapper_drift")


def test_only_a_plain_file_of_a_possible_size_is_read(installed: Path, tmp_path: Path) -> None:
    """A FIFO in its place must not block the daemon."""
    link, fifo, empty, large = (tmp_path / name for name in ("link", "fifo", "empty", "large"))
    link.symlink_to(installed)
    os.mkfifo(fifo)
    empty.touch()
    large.write_bytes(b"\n" * (WRAPPER_BYTES_MAX + 1))
    for path in (link, fifo, empty, large, tmp_path, Path(os.devnull)):
        assert _refusal(path) == (Corrupt, "wrapper_unsafe"), path
    assert _refusal(tmp_path / "absent") == (Unavailable, "wrapper_missing")
    assert _refusal(installed / "below") == (Unavailable, "wrapper_unreadable")


def test_a_wrapper_of_another_user_is_refused(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = installed.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert _refusal(installed) == (Corrupt, "wrapper_unsafe")


def test_a_file_that_shrinks_while_it_is_read_is_refused(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = os.read
    monkeypatch.setattr(os, "read", lambda fd, length: read(fd, min(length, 100)))
    with _opened(installed) as fd:  # short reads alone are no change
        assert os.pread(fd, WRAPPER_BYTES_MAX, 0) == WRAPPER.read_bytes()
    pieces = iter([b"short", b""])
    monkeypatch.setattr(os, "read", lambda _fd, _length: next(pieces))
    assert _refusal(installed) == (Corrupt, "wrapper_unsafe")


@EVERY_SHELL
def test_a_change_after_the_verification_does_not_change_what_runs(
    shell: str, tmp_path: Path
) -> None:
    """ADR-0069 verification 2, and beyond it the rewrite of the very inode that was hashed."""
    bench = Bench(shell, tmp_path)

    def rewritten(path: Path) -> None:
        path.chmod(0o700)
        with path.open("r+b") as opened:
            opened.write(_IMPOSTOR)
            opened.truncate()

    def renamed(path: Path) -> None:
        impostor = tmp_path / "impostor"
        impostor.write_bytes(_IMPOSTOR)
        impostor.rename(path)

    for change in (rewritten, renamed, Path.unlink):
        path = tmp_path / "wrapper.sh"
        wrapper.install(str(path))
        with _opened(path) as fd:
            change(path)
            assert bench.task("exit 0", script=fd).codes == (0, 0)


def test_the_sync_tool_is_one_that_cares_for_its_operand(tmp_path: Path) -> None:
    """`fsync` first; a `sync` that succeeds on a missing path syncs everything instead."""
    careful = '#!/bin/sh\ntest -e "$1"\n'
    for tools, expected in (
        ({"fsync": careful, "sync": careful}, "fsync"),
        ({"fsync": careful, "sync": "#!/bin/sh\n"}, "fsync"),
        ({"sync": careful}, "sync"),
        ({"sync": "#!/bin/sh\n"}, "sync"),  # nothing better: the whole system is synced
        ({"fsync": "#!/bin/sh\nexit 1\n", "sync": careful}, "sync"),
        ({"fsync": "#!/nonexistent\n", "sync": careful}, "sync"),
        ({"fsync": "#!/bin/sh\n", "sync": careful}, "sync"),
    ):
        assert wrapper.probe_sync(_tools(tmp_path, tools)) == expected, tools
    for none in ({}, {"sync": "#!/bin/sh\nexit 1\n"}):
        with pytest.raises(Unavailable) as caught:
            wrapper.probe_sync(_tools(tmp_path, none))
        assert caught.value.code == "sync_tool_missing"


def test_a_sync_that_never_ends_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that hangs: it syncs everything, and the daemon goes on."""
    hung = '#!/bin/sh\necho $$ >>"${0%/*}/pids"\nwhile :; do :; done\n'
    tools = _tools(tmp_path, {"sync": hung})
    found = Path(tools) / "pids"
    for patience_ms in (50, 500, 5_000):  # a slow machine has not even started it
        monkeypatch.setattr(wrapper, "_SYNC_MS", patience_ms)
        assert wrapper.probe_sync(tools) == "sync"
        if found.exists():
            break
    for pid in map(int, found.read_text().split()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_the_sync_tools_of_this_system_and_of_each_busybox_are_found(tmp_path: Path) -> None:
    assert wrapper.probe_sync(f"/nonexistent::{TOOLS}") in ("fsync", "sync")
    farm = tmp_path / "debian"
    farm.mkdir()
    (farm / "sync").symlink_to(shutil.which("busybox") or pytest.fail("busybox is not installed"))
    assert wrapper.probe_sync(str(farm)) == "sync"
    if OPENWRT:
        (farm / "fsync").symlink_to(OPENWRT)
        assert wrapper.probe_sync(str(farm)) == "fsync"


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = wrapper.open_verified(str(path))
    try:
        yield fd
    finally:
        os.close(fd)


def _refusal(path: Path) -> tuple[type[Exception], str]:
    """What `open_verified` raises; the leak check of every test sees a descriptor left open."""
    with pytest.raises((Corrupt, Unavailable)) as caught:
        wrapper.open_verified(str(path))
    return caught.type, caught.value.code


def _tools(tmp_path: Path, scripts: dict[str, str]) -> str:
    folder = tmp_path / f"tools-{len(list(tmp_path.iterdir()))}"
    folder.mkdir()
    for name, text in scripts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o700)
    return str(folder)
