"""A backup is one checked file, and a restore of it a fresh state, or nothing at all."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.app import backup, state
from qinglong_edge.core.errors import Corrupt, Refused, Unavailable
from qinglong_edge.system import aead
from qinglong_edge.system.files import Files
from tests.disks import small_disk
from tests.e2e.kit import Kit

SECRET = b"hush, hush"


@pytest.fixture
def other(tmp_path: Path) -> Kit:
    """A fresh device."""
    (tmp_path / "other").mkdir()
    return Kit(tmp_path / "other")


def saved(kit: Kit, *flags: str, name: str = "backup") -> tuple[str, Any]:
    """A backup's path and what the command said."""
    path = str(kit.file(name))
    return path, kit.ok("backup", path, *flags)


def names(kit: Kit) -> set[str]:
    """What lies beside the state directory."""
    return set(os.listdir(kit.place)) - {"s", "other"}


def with_secret(kit: Kit) -> Kit:
    """A state with a task that writes its secret's digest."""
    kit.ok("secret", "set", "S", stdin=SECRET)
    kit.ok("task", "add", "t", "--secret", "S=S", "--shell", 'printf %s "$S" | sha256sum')
    return kit


def test_a_backup_under_a_running_daemon_restores_on_a_fresh_device(kit: Kit, other: Kit) -> None:
    kit.ok("task", "add", "t", "--cron", "0 3 * * *", "--env", "A=1", "--", "true")
    with kit.daemon():
        kit.ok("start", "t", "--wait")
        path, told = saved(kit)
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    size = Path(path).stat().st_size
    assert told == {"file": path, "sha256": digest, "bytes": size, "envelopes": 0, "keyring": None}
    assert Path(path).stat().st_mode & 0o777 == 0o600
    assert names(kit) == {"backup", "daemon1.err"}
    assert other.ok("restore", path) == {
        "state": str(other.state),
        "profile": "edge",
        "sha256": digest,
        "bytes": size,
        "envelopes": 0,
        "keyring": None,
    }
    assert other.ok("task", "show", "t") == kit.ok("task", "show", "t")
    assert other.ok("runs") == kit.ok("runs")
    assert (other.state / "config.json").read_bytes() == (kit.state / "config.json").read_bytes()
    assert sorted(os.listdir(other.state)) == [
        *("config.json", "edge.db", "logs", "owner.lock", "receipts")
    ]
    assert not any("backup" in line for line in other.dump())
    with other.daemon():
        assert other.ok("start", "t", "--wait")["number"] == 2


def test_a_name_that_is_taken_is_never_written_over(kit: Kit) -> None:
    path, _told = saved(kit)
    before = Path(path).read_bytes()
    kit.no("backup", path, status=3, code="file_exists")
    Path(f"{path}2.keyring").write_bytes(b"mine")
    kit.no("backup", f"{path}2", "--with-keyring", status=3, code="file_exists")
    kit.no("backup", str(kit.place / "nowhere" / "b"), status=2, code="folder_missing")
    kit.no("backup", f"{path}3", "--with-keyring", status=4, code="secret_provider_unavailable")
    assert names(kit) == {"backup", "backup2.keyring"}
    assert Path(path).read_bytes() == before


def test_the_owner_writes_to_new_absolute_names_only(kit: Kit) -> None:
    path = kit.file("mine")
    path.write_bytes(b"mine")
    with kit.daemon():
        for file, code in ((str(path), "file_exists"), ("relative", "path_invalid")):
            assert kit.ask("backup.write", file=file)["error"]["data"]["code"] == code
    assert path.read_bytes() == b"mine"


def test_a_backup_with_secrets_needs_the_keyring_that_opens_it(kit: Kit, other: Kit) -> None:
    with_secret(kit)
    path, told = saved(kit, "--with-keyring")
    keys = Path(told["keyring"])
    assert (keys.stat().st_mode & 0o777, told["envelopes"]) == (0o600, 1)
    assert keys.read_bytes() == (kit.state / "keyring.json").read_bytes()
    assert SECRET not in Path(path).read_bytes()
    kit.ok("keyring", "rotate")
    kit.ok("keyring", "rekey")
    first = kit.ok("keyring", "status")["keys"]
    (old,) = [each["key"] for each in first if each["key"].encode() in keys.read_bytes()]
    kit.ok("keyring", "retire", old)
    new = kit.state / "keyring.json"
    other.no("restore", path, status=3, code="keyring_needed")
    other.no("restore", path, "--keyring", str(new), status=3, code="keyring_mismatch")
    other.no("restore", path, "--keyring", path, status=4, code="secret_provider_unavailable")
    other.no("restore", path, "--keyring", str(other.file("x")), status=2, code="file_unreadable")
    other.no("task", "list", status=3, code="state_missing")
    assert sorted(os.listdir(other.state)) == ["logs", "owner.lock", "receipts"]
    assert other.ok("restore", path, "--keyring", str(keys))["keyring"] == "same"
    assert (other.state / "keyring.json").stat().st_mode & 0o777 == 0o600
    assert other.ok("start", "t", "--wait")["status"] == "succeeded"
    assert other.ok("log", "1")["text"].split()[0] == hashlib.sha256(SECRET).hexdigest()


def test_a_keyring_that_does_not_open_the_store_makes_no_pair(kit: Kit, other: Kit) -> None:
    with_secret(kit)
    with_secret_of_other = Kit(other.place)
    with_secret_of_other.ok("init")
    with_secret_of_other.ok("keyring", "init")
    shutil.copy(other.state / "keyring.json", kit.state / "keyring.json")
    kit.no(*("backup", str(kit.file("b")), "--with-keyring"), status=3, code="keyring_mismatch")
    assert names(kit) == set()
    kit.ok("backup", str(kit.file("b")))


def test_a_keyring_is_not_blamed_where_secrets_cannot_be_opened_at_all(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*_arguments: object) -> bytes:
        code, sentence = "secret_provider_unavailable", "Secrets need 24 MiB of free memory."
        raise Unavailable(code, sentence, reason="memory_low")

    with_secret(kit)
    monkeypatch.setattr(aead, "unseal", short)
    with pytest.raises(Unavailable) as caught:
        backup.write(state.place(str(kit.state), None), str(kit.file("b")), with_keyring=True)
    assert caught.value.facts["reason"] == "memory_low"
    assert names(kit) == set()


def test_nothing_but_a_whole_backup_becomes_a_state(kit: Kit, other: Kit) -> None:
    path, _told = saved(kit)
    whole = Path(path).read_bytes()
    bad = kit.file("bad")
    for data in (b"", b"x" * 4096, whole[:4096], whole[:5000] + b"\xff" * 600 + whole[5600:]):
        bad.write_bytes(data)
        status, told = other("restore", str(bad))
        assert (status, told["error"]["code"]) in {
            *((5, "database_corrupt"), (3, "not_a_backup"), (5, "schema_foreign")),
            (4, "database_failed"),
        }, told
        other.no("task", "list", status=3, code="state_missing")
    other.no("restore", str(kit.state / "edge.db"), status=3, code="not_a_backup")
    for missing in (kit.file("none"), kit.place):
        other.no("restore", str(missing), status=2, code="file_unreadable")
    assert other.ok("restore", path)["profile"] == "edge"


def test_a_state_or_foreign_files_are_never_restored_over(kit: Kit, other: Kit) -> None:
    path, _told = saved(kit)
    with kit.unchanged():
        kit.no("restore", path, status=3, code="state_exists")
    other.state.mkdir()
    (other.state / "mine").touch()
    other.no("restore", path, status=3, code="state_not_empty")
    (other.state / "mine").rename(other.state / "edge.db")
    other.no("restore", path, status=3, code="state_not_empty")
    assert (other.state / "edge.db").read_bytes() == b""


def test_settings_of_a_backup_are_checked_too(kit: Kit, other: Kit) -> None:
    path, _told = saved(kit)
    changed = Kit(kit.file("changed"))
    changed.state.mkdir(parents=True)
    shutil.copy(path, changed.state / "edge.db")
    changed.sql("UPDATE backup SET value = '{}' WHERE name = 'config'")
    other.no("restore", str(changed.state / "edge.db"), status=5, code="config_corrupt")
    changed.sql("UPDATE migration SET number = number + 100")
    other.no("restore", str(changed.state / "edge.db"), status=5, code="schema_too_new")


@pytest.mark.parametrize("call", ["replace", "sync_directory", "publish"])
def test_a_restore_that_was_cut_short_leaves_no_state_and_goes_on(
    kit: Kit, other: Kit, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    with_secret(kit)
    path, told = saved(kit, "--with-keyring")
    where = state.place(str(other.state), None)
    calls, at = 0, 0
    real = getattr(Files, call)

    def cut(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(Files, call, cut)
    for attempt in range(1, 20):
        calls, at = 0, attempt
        try:
            backup.restore(where, path, keyring_file=told["keyring"])
        except KeyboardInterrupt:
            assert not (other.state / "config.json").exists()
        else:
            break
    assert attempt > 1
    monkeypatch.undo()
    assert not list(other.state.glob("*.restore*"))
    assert other.ok("start", "t", "--wait")["status"] == "succeeded"


def test_a_full_disk_keeps_no_half_backup(kit: Kit) -> None:
    with small_disk(kit.file("disk"), "size=64k") as disk:
        (disk / "filler").write_bytes(b"x" * 49_152)
        where = state.place(str(kit.state), None)
        with pytest.raises(Unavailable) as caught:
            backup.write(where, str(disk / "b"), with_keyring=False)
        assert caught.value.code == "no_space"
        assert os.listdir(disk) == ["filler"]
        with pytest.raises((Unavailable, Corrupt, Refused)):
            backup.restore(state.place(str(disk / "s"), None), saved(kit)[0], keyring_file=None)
        assert not (disk / "s" / "config.json").exists()


def test_a_stick_without_hard_links_takes_a_backup(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_arguments: object, **_options: object) -> None:
        raise PermissionError(1, "no links")

    monkeypatch.setattr(os, "link", refused)
    where = state.place(str(kit.state), None)
    told = backup.write(where, str(kit.file("b")), with_keyring=False)
    assert hashlib.sha256(kit.file("b").read_bytes()).hexdigest() == told["sha256"]
    with pytest.raises(Refused):
        backup.write(where, str(kit.file("b")), with_keyring=False)
    assert names(kit) == {"b"}
