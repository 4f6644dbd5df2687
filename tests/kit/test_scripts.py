"""The scripts of the kits: every shell reads them, their hosts are asked for the right things."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from qinglong_edge.app import kit, profiles

SHELLS = (["dash"], ["bash"], ["busybox", "ash"])
SCRIPTS = (
    ("openwrt", "etc/init.d/qinglong-edge"),
    ("openwrt", "etc/hotplug.d/ntp/90-qinglong-edge"),
    ("openwrt", "usr/libexec/rpcd/luci.qinglong-edge"),
    ("openwrt", "usr/lib/qinglong-edge/bin/ql"),
    ("openwrt", "usr/lib/qinglong-edge/bin/task"),
    ("s6", "etc/s6-overlay/s6-rc.d/qinglong-edge/run"),
)
# What /etc/rc.common and procd's functions are told, one line a call.
PROCD = """
config_load() { echo "config_load $*"; }
config_get() { eval "$1=\\${UCI_$3:-$4}"; }
config_get_bool() { config_get "$@"; }
logger() { echo "logger $*"; }
for name in open_instance close_instance set_param add_reload_trigger add_restart_mount_trigger; do
	eval "procd_$name() { echo \\"$name \\$*\\"; }"
done
"""


def text(name: str, path: str) -> str:
    """A file of a kit, ready."""
    return kit.contents(name)[path].decode("utf-8")


def sh(shell: list[str], script: str, **environment: str) -> list[str]:
    """The lines that a script prints in a shell."""
    done = subprocess.run(
        [*shell, "-uc", script],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
    )
    assert done.stderr == "", done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[-1])
@pytest.mark.parametrize(("name", "path"), SCRIPTS)
def test_every_shell_reads_every_script(shell: list[str], name: str, path: str) -> None:
    subprocess.run([*shell, "-n", "-c", text(name, path)], check=True)


def test_no_script_is_forgotten_here() -> None:
    found = {
        (name, path)
        for name in kit.KITS
        for path, content in kit.contents(name).items()
        if content.startswith(b"#!") or "/hotplug.d/" in path
        if not path.startswith("usr/local/lib/")  # the same ones
    }
    assert found == set(SCRIPTS)


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[-1])
def test_procd_is_told_to_run_to_respawn_for_ever_and_to_wait(
    shell: list[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    script = PROCD + text("openwrt", "etc/init.d/qinglong-edge") + "\nstart_service\n"
    told = sh(shell, script, UCI_state=str(tmp_path), UCI_on_stop="cancel")
    slowest = max(profiles.load(name).stop_bound_ms for name in profiles.names())
    wait = next(line for line in told if line.startswith("set_param term_timeout"))
    assert int(wait.rpartition(" ")[2]) * 1000 > slowest
    directories = f"--state {tmp_path} --runtime /var/run/qinglong-edge"
    command = f"set_param command /usr/bin/qinglong-edge {directories} run --on-stop cancel"
    assert told == [
        "config_load qinglong-edge",
        "open_instance ",
        command,
        f"set_param file {tmp_path}/config.json",
        "set_param respawn 60 10 0",
        wait,
        "set_param pidfile /var/run/qinglong-edge.pid",
        "set_param limits core=0",
        "set_param stderr 1",
        "close_instance ",
    ]
    triggers = sh(shell, script.replace("\nstart_service\n", "\nservice_triggers\n"))
    assert triggers[1:] == [
        "add_reload_trigger qinglong-edge",
        "add_restart_mount_trigger /srv/qinglong-edge",
    ]


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[-1])
def test_a_disk_that_is_not_there_opens_no_instance_and_is_told(
    shell: list[str], tmp_path: Path
) -> None:
    init = PROCD + text("openwrt", "etc/init.d/qinglong-edge")
    told = sh(shell, init + "\nstart_service || echo failed\n", UCI_state=str(tmp_path))
    assert told[1].startswith(f"logger -t qinglong-edge -p daemon.err no state in {tmp_path}")
    assert told[2:] == ["failed"]
    told = sh(shell, init + "\nstart_service\n", UCI_state=str(tmp_path), UCI_enabled="0")
    assert told == ["config_load qinglong-edge"]


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[-1])
def test_a_stop_waits_for_the_daemon_and_not_for_ever(shell: list[str], tmp_path: Path) -> None:
    init = re.sub(r"TERM_TIMEOUT=\d+", "TERM_TIMEOUT=2", text("openwrt", SCRIPTS[0][1]))
    pidfile = tmp_path / "pid"
    script = f"{PROCD}{init}\nPIDFILE={pidfile}\nstop_service\nservice_stopped\necho left=$left\n"
    script = script.replace("\tlocal left=", "\tleft=")
    assert sh(shell, script.replace("left=$left", "none")) == ["none"]
    with subprocess.Popen(["sleep", "30"]) as sleeper:
        pidfile.write_text(f"{sleeper.pid}\n", encoding="utf-8")
        assert sh(shell, script) == ["left=0"]
        sleeper.kill()
    assert sh(shell, script) == ["left=2"]


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[-1])
@pytest.mark.parametrize(
    ("action", "stratum", "stamped"),
    [
        ("stratum", "2", True),
        ("periodic", "15", True),
        ("stratum", "16", False),
        ("step", "2", False),
        ("unsync", "16", False),
    ],
)
def test_the_ntp_hook_leaves_a_stamp_only_when_the_clock_is_right(
    shell: list[str], tmp_path: Path, action: str, stratum: str, stamped: bool
) -> None:
    runtime = tmp_path / "run"
    script = f"uci() {{ echo {runtime}; }}\n(\n{text(*SCRIPTS[1])}\n)\n"
    sh(shell, script, ACTION=action, stratum=stratum)
    assert (runtime / "ntp.stamp").exists() == stamped
    if stamped:
        assert runtime.stat().st_mode & 0o777 == 0o700


def test_what_survives_a_sysupgrade_is_what_was_installed_and_the_state() -> None:
    lines = text("openwrt", "lib/upgrade/keep.d/qinglong-edge").splitlines()
    for path in [*kit.contents("openwrt"), kit.KITS["openwrt"].program, kit.KITS["openwrt"].list]:
        assert any(f"/{path}" == line or f"/{path}".startswith(f"{line}/") for line in lines), path
    state = [line.rpartition("/")[2] for line in lines if line.startswith("/srv/")]
    assert state == ["config.json", "edge.db", "edge.db-journal", "edge.db-wal", "keyring.json"]


def test_a_scheduler_that_was_enabled_is_so_after_a_sysupgrade() -> None:
    """Only packages of the image are enabled by it."""
    init = text("openwrt", "etc/init.d/qinglong-edge")
    numbers = re.findall(r"^(S)TART=(\d+)$|^ST(?:O)P=(\d+)$", init, re.MULTILINE)
    links = {
        f"/etc/rc.d/{'S' if each[0] else 'K'}{each[1] or each[2]}qinglong-edge" for each in numbers
    }
    assert len(links) == 2
    assert links <= set(text("openwrt", "lib/upgrade/keep.d/qinglong-edge").splitlines())


def test_the_web_page_may_only_do_what_the_plugin_lists() -> None:
    done = subprocess.run(
        ["sh", "-c", text(*SCRIPTS[2]), "plugin", "list"], capture_output=True, check=True
    )
    listed = json.loads(done.stdout)
    acl = json.loads(text("openwrt", "usr/share/rpcd/acl.d/luci-app-qinglong-edge.json"))
    granted = acl["luci-app-qinglong-edge"]
    reading = granted["read"]["ubus"]["luci.qinglong-edge"]
    writing = granted["write"]["ubus"]["luci.qinglong-edge"]
    assert sorted(listed) == sorted(reading + writing)
    assert sorted(reading) == ["log", "overview", "tasks"]
    menu = json.loads(text("openwrt", "usr/share/luci/menu.d/luci-app-qinglong-edge.json"))
    page = menu["admin/services/qinglong-edge"]
    view = f"www/luci-static/resources/view/{page['action']['path']}.js"
    assert view in kit.contents("openwrt")
    called = re.findall(r"declared\('(\w+)', \[([^\]]*)\]", text("openwrt", view))
    for method, names in called:
        assert set(re.findall(r"'(\w+)'", names)) == set(listed[method])


def test_a_feed_of_openwrt_builds_the_package(tmp_path: Path, zipapp: str) -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    program = [sys.executable, "-I", "-S", zipapp]
    subprocess.run([*program, "openwrt", "feed", "--root", str(tmp_path)], check=True)
    for name, content in {
        "top/rules.mk": "",
        "include/package.mk": (
            "define BuildPackage\nall:\n\t$$(call Package/$(1)/install,$$(OUT))\nendef\n"
        ),
        "top/feeds/packages/lang/python/python3-host.mk": f"HOST_PYTHON3_BIN:={sys.executable}\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    out = tmp_path / "out"
    out.mkdir()
    given = (f"TOPDIR={tmp_path}/top", f"INCLUDE_DIR={tmp_path}/include", f"OUT={out}", "RM=rm -f")
    subprocess.run(["make", "-s", "-C", str(tmp_path / "qinglong-edge"), *given], check=True)
    packed = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert packed == {*kit.contents("openwrt"), "usr/bin/qinglong-edge"}
