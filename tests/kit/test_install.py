"""What `openwrt install` and the like write, and that `uninstall` leaves the root as it was."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge import __main__ as first
from qinglong_edge.app import kit
from qinglong_edge.core.errors import Corrupt, Invalid, Refused, Unavailable
from qinglong_edge.system.files import Files

PROGRAM = b"#!/usr/bin/python3 -IS\nprogram 1"
CONFIG = "etc/config/qinglong-edge"


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this checkout were a zipapp whose bytes are PROGRAM."""
    monkeypatch.setattr(kit, "_program", lambda: PROGRAM)


def tree(root: Path) -> dict[str, tuple[int, bytes | None]]:
    """Everything below a root: mode, and bytes of what is a file."""
    return {
        str(path.relative_to(root)): (
            path.stat().st_mode,
            path.read_bytes() if path.is_file() else None,
        )
        for path in root.rglob("*")
    }


def router(root: Path) -> Path:
    """A root that has some directories already, one of them empty, and somebody's file."""
    for name in ("etc/config", "etc/init.d", "usr/bin", "lib/upgrade/keep.d"):
        (root / name).mkdir(parents=True)
    (root / "etc/config/system").write_text("config system\n", encoding="utf-8")
    return root


@pytest.mark.usefixtures("packed")
@pytest.mark.parametrize("name", sorted(kit.KITS))
def test_uninstall_leaves_the_root_as_it_was(tmp_path: Path, name: str) -> None:
    root = router(tmp_path)
    before = tree(root)
    old = os.umask(0o077)
    try:
        told = kit.install(name, str(root))
    finally:
        os.umask(old)
    assert kit.KITS[name].program in told["written"]
    assert (root / kit.KITS[name].program).read_bytes() == PROGRAM
    assert (root / kit.KITS[name].program).stat().st_mode & 0o777 == 0o755
    made = [path for path in root.rglob("*") if str(path.relative_to(root)) not in before]
    assert {path.stat().st_mode & 0o777 for path in made if path.is_dir()} <= {0o755}
    assert not [path for path in made if path.is_file() and b"@TERM" in path.read_bytes()]
    assert kit.uninstall(name, str(root))["kept"] == []
    assert tree(root) == before


@pytest.mark.usefixtures("packed")
@pytest.mark.parametrize(
    ("name", "link", "first"),
    [
        ("openwrt", "etc/rc.d/S99qinglong-edge", "/etc/init.d/qinglong-edge disable; "),
        (
            "systemd",
            "etc/systemd/system/multi-user.target.wants/qinglong-edge.service",
            "systemctl disable --now qinglong-edge",
        ),
    ],
)
def test_a_service_that_a_boot_would_start_is_not_uninstalled(
    tmp_path: Path, name: str, link: str, first: str
) -> None:
    """It may run: without its script nothing would stop it, and procd would try it for ever."""
    root = router(tmp_path)
    kit.install(name, str(root))
    (root / link).parent.mkdir(parents=True)
    (root / link).symlink_to(root / "etc/config/system")
    before = tree(root)
    with pytest.raises(Refused) as caught:
        kit.uninstall(name, str(root))
    assert caught.value.code == "service_enabled"
    assert first in caught.value.message
    assert tree(root) == before
    (root / link).unlink()
    assert kit.KITS[name].program in kit.uninstall(name, str(root))["removed"]


@pytest.mark.usefixtures("packed")
def test_a_second_install_writes_nothing(tmp_path: Path) -> None:
    kit.install("openwrt", str(tmp_path))
    before = tree(tmp_path)
    assert kit.install("openwrt", str(tmp_path))["written"] == []
    assert tree(tmp_path) == before


@pytest.mark.usefixtures("packed")
def test_an_upgrade_keeps_the_old_program_beside_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "usr/bin/qinglong-edge"
    before = tree(tmp_path)
    kit.install("openwrt", str(tmp_path))
    monkeypatch.setattr(kit, "_program", lambda: PROGRAM + b"2")
    assert kit.install("openwrt", str(tmp_path))["written"] == ["usr/bin/qinglong-edge"]
    assert program.read_bytes() == PROGRAM + b"2"
    program.with_suffix(".old").replace(program)  # the way back
    assert program.read_bytes() == PROGRAM
    monkeypatch.setattr(kit, "_program", lambda: PROGRAM + b"3")
    kit.install("openwrt", str(tmp_path))
    assert program.read_bytes() == PROGRAM + b"3"
    kit.uninstall("openwrt", str(tmp_path))
    assert tree(tmp_path) == before


@pytest.mark.usefixtures("packed")
def test_an_edited_configuration_is_kept_by_an_upgrade_and_by_uninstall(tmp_path: Path) -> None:
    kit.install("openwrt", str(tmp_path))
    assert (tmp_path / CONFIG).stat().st_mode & 0o777 == 0o600
    (tmp_path / CONFIG).write_text("config qinglong-edge 'main'\n", encoding="utf-8")
    assert kit.install("openwrt", str(tmp_path))["kept"] == [CONFIG]
    assert kit.uninstall("openwrt", str(tmp_path))["kept"] == [CONFIG]
    assert [name for name in tree(tmp_path) if (tmp_path / name).is_file()] == [CONFIG]
    assert kit.install("openwrt", str(tmp_path))["kept"] == [CONFIG]  # as after a sysupgrade


@pytest.mark.usefixtures("packed")
def test_a_file_of_somebody_else_is_never_overwritten(tmp_path: Path) -> None:
    there = tmp_path / "etc/init.d/qinglong-edge"
    there.parent.mkdir(parents=True)
    there.write_text("#!/bin/sh\n", encoding="utf-8")
    before = tree(tmp_path)
    with pytest.raises(Refused) as caught:
        kit.install("openwrt", str(tmp_path))
    assert (caught.value.code, caught.value.facts) == (
        "file_foreign",
        {"file": "etc/init.d/qinglong-edge"},
    )
    assert tree(tmp_path) == before


@pytest.mark.usefixtures("packed")
def test_after_a_crash_at_any_write_both_ways_lead_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Files.replace
    for writes in range(14):
        root = router(tmp_path / str(writes))
        before, left = tree(root), [writes]

        def replace(
            files: Files, path: str, data: bytes, *, mode: int = 0o600, left: list[int] = left
        ) -> None:
            if left[0] == 0:
                raise OSError(28, "full")
            left[0] -= 1
            real(files, path, data, mode=mode)

        with monkeypatch.context() as patch:
            patch.setattr(Files, "replace", replace)
            with contextlib.suppress(Unavailable):
                kit.install("openwrt", str(root))
        if left[0] == 0 and writes:
            kit.uninstall("openwrt", str(root))
            assert tree(root) == before, writes
        kit.install("openwrt", str(root))
        kit.uninstall("openwrt", str(root))
        assert {name for name in tree(root) if (root / name).is_file()} == {"etc/config/system"}


def test_a_checkout_a_missing_root_and_a_damaged_list_are_told(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="build the zipapp"):
        kit.install("openwrt", str(tmp_path))
    with pytest.raises(Refused) as missing:
        kit.uninstall("openwrt", str(tmp_path))
    assert missing.value.code == "kit_missing"
    listed = tmp_path / kit.KITS["openwrt"].list
    listed.parent.mkdir(parents=True)
    for text in ("", "[]", '{"files":{"../x":""},"directories":[]}', '{"files":{"/x":""}}'):
        listed.write_text(text, encoding="utf-8")
        with pytest.raises(Corrupt):
            kit.uninstall("openwrt", str(tmp_path))


@pytest.mark.usefixtures("packed")
def test_a_root_that_is_no_directory_is_invalid(tmp_path: Path) -> None:
    with pytest.raises(Invalid):
        kit.install("openwrt", str(tmp_path / "nowhere"))


def run(zipapp: Path | str, *arguments: str) -> Any:
    """The document of a command of a zipapp."""
    command = [sys.executable, "-I", "-S", str(zipapp), "--json", *arguments]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def test_the_installed_copy_is_the_program_itself_where_its_code_fits(
    tmp_path: Path, zipapp: str
) -> None:
    run(zipapp, "openwrt", "install", "--root", str(tmp_path))
    assert (tmp_path / "usr/bin/qinglong-edge").read_bytes() == Path(zipapp).read_bytes()


def test_the_installed_copy_gets_the_byte_code_of_the_python_that_runs_there(
    tmp_path: Path, zipapp: str
) -> None:
    """One zipapp carries one minor's byte code; what is installed carries the device's own."""
    foreign = tmp_path / "foreign.pyz"
    foreign_names = {first.CODE: "code.other-1.1.bz2", first.MORE: "more.other-1.1.bz2"}
    with zipfile.ZipFile(zipapp) as archive, zipfile.ZipFile(foreign, "w") as written:
        for name in archive.namelist():
            member = foreign_names.get(name, name)
            written.writestr(member, archive.read(name))
    run(foreign, "openwrt", "install", "--root", str(tmp_path))
    copy = tmp_path / "usr/bin/qinglong-edge"
    assert copy.read_bytes().startswith(b"#!/usr/bin/python3 -IS\n")
    with zipfile.ZipFile(copy) as made, zipfile.ZipFile(zipapp) as archive:
        assert made.testzip() is None
        assert set(made.namelist()) == set(archive.namelist())
        for name in ("__main__.py", "source.bz2", "data.bz2", "kit.bz2"):
            assert made.read(name) == archive.read(name)
        for name in (first.CODE, first.MORE):
            again = first.Contents(name, made.read(name))
            assert again.index.keys() == first.Contents(name, archive.read(name)).index.keys()
            assert {again.code(file, "").co_filename for file in again.index} == set(again.index)
    assert run(copy, "--version") == run(zipapp, "--version")
    assert run(copy, "selftest")["failed"] == 0
    loaded = subprocess.run(
        [sys.executable, "-v", "-IS", str(copy), "--version"], capture_output=True, text=True
    ).stderr
    assert "matches" in loaded or f"{copy}/__main__.pyc" in loaded
    again = run(copy, "openwrt", "install", "--root", str(tmp_path))
    assert again["written"] == []


def test_a_damaged_kit_is_told_and_nothing_is_written(tmp_path: Path, zipapp: str) -> None:
    broken = tmp_path / "broken.pyz"
    with zipfile.ZipFile(zipapp) as archive, zipfile.ZipFile(broken, "w") as written:
        for name in archive.namelist():
            written.writestr(name, b"BZh9" if name == "kit.bz2" else archive.read(name))
    root = tmp_path / "root"
    root.mkdir()
    command = [sys.executable, "-IS", str(broken), "openwrt", "install", "--root", str(root)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 5
    assert "program_damaged" in done.stderr
    assert not any(root.iterdir())


def test_what_an_install_says_is_what_a_person_types_next(tmp_path: Path, zipapp: str) -> None:
    command = [sys.executable, "-IS", zipapp, "openwrt", "install", "--root", str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-4:] == [f"  {line}" for line in kit.KITS["openwrt"].after]
    digest = hashlib.sha256((tmp_path / CONFIG).read_bytes()).hexdigest()
    listed = json.loads((tmp_path / kit.KITS["openwrt"].list).read_bytes())
    assert listed["files"][CONFIG] == digest
    command[4] = "uninstall"
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.endswith("the state directory was not touched\n")
