"""`doctor` says what is wrong with a place, and what to do; it needs neither state nor daemon."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.app import doctor, making, state
from qinglong_edge.app.client import Client
from qinglong_edge.cli.main import main
from qinglong_edge.core.errors import Unavailable
from qinglong_edge.system import aead, memory, zonefile
from qinglong_edge.system.files import Files, Space
from tests.disks import small_disk
from tests.e2e.kit import Kit
from tests.unit import zones

ALL = ["python", "cryptography", "tls", "state", "file system", "space", "database", "keyring"]
ALL += ["schedulers", "runtime", "memory", "processes", "clock", "zone"]
WITH_STATE = ("space", "database", "keyring", "schedulers")


def told(kit: Kit, check: str, *arguments: str) -> Any:
    """One check of the command."""
    _status, document = kit(*arguments, "doctor")
    (found,) = [each for each in document["checks"] if each["check"] == check]
    return found


def seen(kit: Kit, check: str) -> Any:
    """One check, looked at from within the test."""
    where = state.place(str(kit.state), None)
    checks = doctor.examine(where, environment_tz=None)
    (found,) = [each for each in checks if each["check"] == check]
    return found


def test_a_good_place_passes_every_check_with_and_without_a_daemon(kit: Kit) -> None:
    with kit.unchanged():
        status, document = kit("doctor")
    assert status == 0
    assert [each["check"] for each in document["checks"]] == ALL
    for each in document["checks"]:
        assert set(each) == {"check", "status", "message", "fix"}
        assert each["status"] == "ok", each
    with kit.daemon():
        assert "The daemon runs" in told(kit, "database")["message"]
        text = kit.run("doctor")
    assert text.status == 0
    rows = [line for line in text.out.splitlines() if line.startswith("ok")]
    assert len(rows) == len(ALL)
    start = (
        f"No daemon runs; the database answers. To start one: qinglong-edge --state {kit.state} run"
    )
    assert told(kit, "database")["message"] == start


def test_every_line_fits_a_terminal_of_80_columns(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What does not fit goes on below itself, and no word is lost; a path is one, however long."""

    def missing() -> None:
        sentence = "Secrets need the Python package cryptography."
        raise Unavailable("secret_provider_unavailable", sentence, module="cryptography")

    monkeypatch.setattr(aead, "require", missing)
    monkeypatch.setattr(zonefile, "read_tzif", lambda _key, _roots=(): None)
    assert main(["--state", str(kit.state), "doctor"]) == 0
    text = capfd.readouterr().out
    lines = [line for line in text.splitlines() if str(kit.state) not in line]
    assert [line for line in lines if len(line) > 80] == []
    sentence = "Secrets need the Python package cryptography. Tasks with a secret do not start."
    assert sentence in " ".join(text.split())
    assert "no names of cities." in text
    assert "\ncryptography: apt-get install python3-cryptography\n" in text


def test_without_a_state_it_says_so_and_makes_none(bare: Kit) -> None:
    status, document = bare("doctor")
    assert status == 1
    checks = {each["check"]: each for each in document["checks"]}
    assert checks["state"]["status"] == "fail"
    assert "init" in checks["state"]["fix"]
    assert list(checks) == [each for each in ALL if each not in WITH_STATE]
    assert not bare.state.exists()
    assert "state: qinglong-edge init" in bare.run("doctor").out


def test_a_place_that_is_no_directory_or_of_others_is_named(bare: Kit) -> None:
    bare.state.write_text("")
    assert told(bare, "state")["status"] == "fail"
    bare.state.unlink()
    bare.ok("init")
    config = bare.state / "config.json"
    config.write_text(config.read_text().replace("limits", "limit"))
    said = told(bare, "state")["message"]
    assert said == "config.json: There is no such entry. (field='limit')"


@pytest.mark.parametrize(
    ("kind", "status", "said"),
    [
        ("tmpfs", "warn", "does not survive a reboot"),
        ("vfat", "fail", "no hard links"),
        ("exfat", "fail", "no hard links"),
        ("nfs4", "fail", "shared"),
        ("ubifs", "ok", "ubifs"),
    ],
)
@pytest.mark.parametrize("made", [True, False])
def test_a_file_system_that_cannot_hold_a_state_is_named(
    bare: Kit, monkeypatch: pytest.MonkeyPatch, kind: str, status: str, said: str, made: bool
) -> None:
    if made:
        bare.ok("init")
    monkeypatch.setattr(Files, "filesystem", lambda *_: kind)
    found = seen(bare, "file system")
    assert (found["status"], said in found["message"]) == (status, True), found
    assert (found["fix"] is None) == (status == "ok")


def test_a_file_system_whose_links_fail_is_found_by_trying(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_arguments: object, **_options: object) -> None:
        raise PermissionError(1, "no links")

    monkeypatch.setattr(os, "link", refused)
    assert seen(kit, "file system")["status"] == "fail"
    assert sorted(os.listdir(kit.state)) == [
        *("config.json", "edge.db", "logs", "owner.lock", "receipts")
    ]


def test_a_read_only_place_is_named(bare: Kit) -> None:
    with small_disk(bare.file("disk"), "size=4m") as disk:
        kit = Kit(disk)
        kit.ok("init")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        bare.state = kit.state
        status, told = bare("doctor")
        found = {each["check"]: each for each in told["checks"]}
        assert (status, found["state"]["status"]) == (1, "ok")
        assert found["database"]["status"] == "fail"
        assert "writable" in found["database"]["fix"]


def test_a_small_place_gets_the_settings_that_fit(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Files, "space", lambda *_: Space(bytes=8_000_000, inodes=None))
    found = seen(kit, "space")
    assert found["status"] == "warn"
    assert str(kit.state / "config.json") in found["fix"]
    limits = json.loads("{" + found["fix"].partition(": ")[2] + "}")
    config = json.loads((kit.state / "config.json").read_bytes()) | limits
    (kit.state / "config.json").write_text(json.dumps(config))
    assert seen(kit, "space")["status"] == "ok"
    assert kit.ok("status")["profile"] == "edge"
    monkeypatch.setattr(Files, "space", lambda *_: Space(bytes=500_000, inodes=None))
    assert seen(kit, "space")["status"] == "fail"
    monkeypatch.setattr(Files, "space", lambda *_: Space(bytes=1 << 40, inodes=3))
    assert seen(kit, "space")["status"] == "fail"


def test_a_full_place_is_to_get_room_and_its_disk_is_not_suspected(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_given: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(making, "check_filesystem", full)
    monkeypatch.setattr(Files, "space", lambda *_: Space(bytes=180_000, inodes=None))
    found = [seen(kit, check) for check in ("file system", "space")]
    assert {each["status"] for each in found} == {"fail"}
    assert len({each["fix"] for each in found}) == 1


def test_the_place_of_the_logs_is_looked_at_too(kit: Kit) -> None:
    logs = kit.file("elsewhere")
    config = json.loads((kit.state / "config.json").read_bytes()) | {"logs": str(logs)}
    (kit.state / "config.json").write_text(json.dumps(config))
    found = told(kit, "log space")
    assert (found["status"], found["message"]) == ("fail", f"{logs} is not there.")
    assert "Mount its disk" in found["fix"]
    logs.mkdir()
    assert told(kit, "log space")["status"] == "ok"


def test_a_keyring_that_is_lost_open_or_damaged_is_named(kit: Kit) -> None:
    kit.ok("secret", "set", "S", stdin=b"x")
    assert told(kit, "keyring")["status"] == "ok"
    file = kit.state / "keyring.json"
    kept = file.read_bytes()
    file.chmod(0o644)
    found = told(kit, "keyring")
    assert (found["status"], found["message"][:14]) == ("fail", "keyring_unsafe")
    assert found["fix"].endswith(f"chmod 600 {file}")
    file.chmod(0o600)
    file.write_bytes(b"{}")
    assert told(kit, "keyring")["message"].startswith("keyring_corrupt")
    file.unlink()
    assert told(kit, "keyring")["message"].startswith("keyring_missing")
    with kit.daemon():
        assert told(kit, "keyring")["status"] == "fail"
    kit.ok("secret", "remove", "S")
    assert told(kit, "keyring")["status"] == "ok"
    file.write_bytes(kept)
    file.chmod(0o600)
    kit.ok("secret", "set", "S", stdin=b"x")
    file.unlink()
    shutil.copy(_other_keyring(kit), file)
    assert told(kit, "keyring")["status"] == "warn"


def _other_keyring(kit: Kit) -> Path:
    other = Kit(kit.file("other"))
    other.place.mkdir()
    other.ok("init")
    other.ok("keyring", "init")
    return other.state / "keyring.json"


def test_missing_cryptography_is_named_with_its_package(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.ok("secret", "set", "S", stdin=b"x")
    facts: dict[str, str] = {"reason": "memory_low"}

    def refused() -> None:
        sentence = "Secrets need the Python package cryptography."
        raise Unavailable("secret_provider_unavailable", sentence, **facts)

    monkeypatch.setattr(aead, "require", refused)
    found = seen(kit, "cryptography")
    assert (found["status"], "swap" in found["fix"]) == ("fail", True)
    # An older one needs what a newer does not.
    facts = {"reason": "cryptography_missing", "module": "email"}
    found = seen(kit, "cryptography")
    assert (found["status"], "lacks the module email" in found["message"]) == ("fail", True)
    assert "python3-email" in found["fix"]
    facts["module"] = "cryptography.hazmat"
    found = seen(kit, "cryptography")
    assert "need the Python package" in found["message"]
    assert "python3-cryptography" in found["fix"]
    real = os.path.exists
    monkeypatch.setattr(
        os.path, "exists", lambda path: path == "/etc/openwrt_release" or real(path)
    )
    assert "python3-cryptography" in seen(kit, "cryptography")["fix"]
    kit.ok("secret", "remove", "S")
    assert seen(kit, "cryptography")["status"] == "warn"


def test_an_interpreter_without_sqlite_is_told_what_to_install(kit: Kit) -> None:
    code = (
        "import sys; sys.modules['_sqlite3'] = None; sys.argv = ['x', '--json', 'doctor']; "
        "from qinglong_edge.cli.main import main; sys.exit(main())"
    )
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(command, capture_output=True, env=kit.environment)
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (4, "module_missing")
    assert error["facts"] == {"module": "_sqlite3", "package": "python3-sqlite3"}


def test_a_damaged_database_is_named_and_a_state_in_use_waits(kit: Kit) -> None:
    with (kit.state / "edge.db").open("r+b") as opened:
        opened.write(b"x" * 512)
    found = told(kit, "database")
    assert (found["status"], found["message"].partition(":")[0]) == ("fail", "database_corrupt")


def test_runtime_clock_and_zone_are_looked_at(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    (kit.state / "run").write_text("")
    assert told(kit, "runtime")["status"] == "fail"
    assert told(kit, "runtime", "--runtime", "/dev/null/x")["status"] == "fail"
    monkeypatch.setattr(time, "time_ns", lambda: 10**15)
    assert seen(kit, "clock")["status"] == "warn"


def test_the_machines_zone_is_opened_and_not_only_looked_for(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders of zone data may be there and hold nothing that a schedule can use."""
    where = state.place(str(kit.state), None)

    def zone(environment_tz: str | None) -> tuple[str | None, str | None]:
        found = doctor.examine(where, environment_tz=environment_tz)[-1]
        assert found["check"] == "zone"
        assert (found["fix"] is None) == (found["status"] == "ok")
        return found["status"], found["message"]

    data = {"Europe/Berlin": zones.data("Europe/Berlin")}
    monkeypatch.setattr(zonefile, "read_tzif", lambda key, _roots=(): data.get(key))
    monkeypatch.setattr(zonefile, "_localtime", lambda _root: "")
    monkeypatch.setattr(zonefile, "_line", lambda _path: "")
    assert zone("Europe/Berlin") == ("ok", "Europe/Berlin")
    assert zone("Asia/Tokyo") == (
        "warn",
        "The machine's zone is Asia/Tokyo, which cannot be used here; UTC is.",
    )
    status, message = zone("CST-8")
    assert (status, str(message).startswith("CST-8; without zone data")) == ("warn", True)
    data["Asia/Shanghai"] = zones.data("Asia/Shanghai")
    assert zone("CST-8") == ("ok", "CST-8")
    assert zone(":/etc/localtime") == ("ok", "UTC")
    data["Europe/Berlin"] = b"TZif2 but damaged"
    status, message = zone("Europe/Berlin")
    assert (status, "cannot be used here" in str(message)) == ("warn", True)


def test_lines_that_a_crontab_still_runs_are_named(
    kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "*/5 * * * * echo one\n0 3 * * * echo two\n0 4 * * * echo three\n0 3 * * * echo two\n"
    crontab = tmp_path / "crontabs" / "root"
    crontab.parent.mkdir()
    crontab.write_text(lines, encoding="utf-8")
    first = tmp_path / "first"
    first.write_text("".join(lines.splitlines(keepends=True)[:2]), encoding="utf-8")
    monkeypatch.setattr(doctor, "CRONTABS", (str(tmp_path / "none"), str(crontab.parent)))
    assert seen(kit, "schedulers")["status"] == "ok"
    kit.ok("import", "crontab", str(first))
    asked: list[str] = []
    call = Client.call

    def told_of(client: Client, method: str, params: dict[str, object]) -> object:
        asked.append(method)
        return call(client, method, params)

    with kit.unchanged(), monkeypatch.context() as patch:
        patch.setattr(Client, "call", told_of)
        found = seen(kit, "schedulers")
    # The owner reads no crontab for this: what it loads it keeps, megabytes with some C libraries.
    assert set(asked) == {"status", "keyring.usage", "notify.list", "task.list"}
    assert found["status"] == "warn"
    assert f"{crontab}: 2 lines" in found["message"]
    assert str(crontab) in found["fix"]


def test_little_memory_and_a_hidden_proc_are_named(
    bare: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meminfo, mounts = tmp_path / "meminfo", tmp_path / "mounts"
    meminfo.write_text("MemTotal:  65536 kB\nMemAvailable:   16384 kB\nSwapFree:  4096 kB\n")
    mounts.write_text("proc /proc proc rw,nosuid,hidepid=2 0 0\n")
    monkeypatch.setattr(memory, "MEMINFO", str(meminfo))
    monkeypatch.setattr(doctor, "MOUNTS", str(mounts))
    found = seen(bare, "memory")
    assert (found["status"], "20 MiB" in found["message"]) == ("warn", True)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert seen(bare, "processes")["status"] == "warn"
    mounts.write_text("proc /proc proc rw,hidepid=0 0 0\n")
    assert seen(bare, "processes")["status"] == "ok"
    meminfo.write_text("MemTotal:  65536 kB\n")
    assert seen(bare, "memory")["status"] == "ok"


def test_an_old_kernel_is_told_of_and_suffices(bare: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.delattr(os, "memfd_create")
    found = seen(bare, "processes")
    assert (found["status"], found["message"]) == (
        "ok",
        "The kernel has no pidfd and no memfd; it goes without.",
    )


def test_python_without_tls_matters_once_there_are_channels(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "_ssl", None)
    assert seen(kit, "tls")["status"] == "ok"
    kit.ok("notify", "add", "bark", stdin=b"key")
    found = seen(kit, "tls")
    assert found["status"] == "fail"
    assert "python3-openssl" in found["fix"]
