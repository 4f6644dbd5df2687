"""What is wrong with this box, in words, and what to do about it.

Owns the checks behind `doctor`. It works without a daemon and without a state directory, and it
changes nothing but a probe file of its own in a state directory that is there.
"""

from __future__ import annotations

import os
import stat
import sys
import time

from qinglong_edge.app import making, preview, profiles, state, troubles
from qinglong_edge.app.client import Client
from qinglong_edge.app.troubles import (
    LOOK_AT_DISK,
    MORE_MEMORY,
    MORE_ROOM,
    OTHER_PLACE,
    SET_CLOCK,
)
from qinglong_edge.core import crontab
from qinglong_edge.core.errors import EdgeError, Unavailable, module_missing
from qinglong_edge.core.limits import CLOCK_FLOOR_MS, IMPORT_BYTES_MAX, LOG_QUOTA_BYTES_MIN
from qinglong_edge.system import aead, memory, users, zonefile
from qinglong_edge.system.files import VOLATILE, Files
from qinglong_edge.system.process import Processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from qinglong_edge.app.state import Config, Place
    from qinglong_edge.core.profile import Profile

    Check = dict[str, str | None]

OK, WARN, FAIL = "ok", "warn", "fail"
_NEWEST = (3, 14)
_CRYPTOGRAPHY = "python3-cryptography"
_NO_LINKS = frozenset({"vfat", "exfat", "msdos", "fuseblk", "ntfs3", "ntfs"})
_KIB = 1024
_FREE_KIB_MIN = 32_768
CRONTABS = ("/etc/crontab", "/etc/cron.d", "/etc/crontabs", "/var/spool/cron/crontabs")
MOUNTS = "/proc/self/mounts"
_ROOM_MIN = 1_048_576
_INODES_MIN = 64
_CITIES = ("Asia/Shanghai", "Europe/London", "America/New_York", "Australia/Sydney", "Africa/Cairo")
_KEYRING = {
    "keyring_missing": "Restore it with its backup; no new key opens what an old one sealed.",
    "keyring_unsafe": "Make it a regular file of the daemon's user: chmod 600 {0}",
    "keyring_corrupt": "Restore it from its backup.",
}


def examine(where: Place, *, environment_tz: str | None) -> list[Check]:
    """Every check in a fixed order: {check, status, message, fix}."""
    files = Files()
    told = _ask(where)
    checks = [_python(), _cryptography(told), _tls(told)]
    config: Config | None = None
    try:
        config = state.read_config(where, files)
        checks.append(_said("state", OK, where.state))
    except EdgeError as error:
        fix = {
            "state_missing": "qinglong-edge init (after its disk is mounted)",
            "state_forbidden": "Run this as the user of the daemon.",
        }.get(error.code)
        where_wrong = "".join(f" ({name}={fact})" for name, fact in error.facts.items())
        checks.append(_said("state", FAIL, error.message + where_wrong, fix))
    checks.append(_filesystem(where.state, files, made=config is not None))
    if config is not None:
        profile = profiles.load(config.profile).replace(**config.limits)
        logs = config.logs or where.logs
        places = {"space": where.state} | ({"log space": logs} if config.logs else {})
        written = os.path.join(where.state, state.CONFIG)
        checks += [_space(check, path, profile, written, files) for check, path in places.items()]
        checks += [_database(where, told), _keyring(where, files, told), _schedulers(told)]
    checks += [_runtime(where), _memory(), _processes()]
    return [*checks, _clock(told), _zone(environment_tz)]


def _said(check: str, status: str, message: str, fix: str | None = None) -> Check:
    return {"check": check, "status": status, "message": message, "fix": fix}


def _ask(where: Place) -> dict[str, Any]:
    """What the owner of the state says; an `error` where nobody can."""
    try:
        with Client(where) as client:
            told: dict[str, Any] = client.call("status", {})
            told["usage"] = client.call("keyring.usage", {})["usage"]
            told["channels"] = client.call("notify.list", {})["channels"]
            named = {path: found for path in _crontabs() if (found := _named(path))}
            tasks = _tasks(client) if named else set()
            told["doubled"] = {
                path: len(names & tasks) for path, names in named.items() if names & tasks
            }
            return told
    except EdgeError as error:
        return {"error": error}


def _install(openwrt: str, debian: str) -> str:
    if os.path.exists("/etc/openwrt_release"):
        return f"{'apk add' if os.path.exists('/usr/bin/apk') else 'opkg install'} {openwrt}"
    return f"apt-get install {debian}" + ("" if openwrt == debian else f" (OpenWrt: {openwrt})")


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] > _NEWEST:
        return _said("python", WARN, f"Python {version} is newer than what was tested.")
    return _said("python", OK, f"Python {version}")


def _cryptography(told: dict[str, Any]) -> Check:
    try:
        aead.require()
    except Unavailable as error:
        reason, fix = error.message, MORE_MEMORY
        lacking = error.facts.get("module")
        if lacking is not None:
            package = str(module_missing(str(lacking)).facts["package"])
            fix = _install(package, _CRYPTOGRAPHY)
            if package != _CRYPTOGRAPHY:
                reason = f"The Python package cryptography lacks the module {lacking}."
        message = f"{reason} Tasks with a secret do not start."
        return _said("cryptography", FAIL if told.get("usage") else WARN, message, fix)
    return _said("cryptography", OK, "Secrets can be sealed and opened.")


def _tls(told: dict[str, Any]) -> Check:
    try:
        import _ssl
    except ImportError:
        if not told.get("channels"):
            return _said("tls", OK, "Python has no TLS; only `notify` would need it.")
        message = "Python has no TLS: channels of `notify` cannot be reached."
        return _said("tls", FAIL, message, _install("python3-openssl", "libpython3-stdlib"))
    return _said("tls", OK, _ssl.OPENSSL_VERSION)


def _crontabs() -> Iterator[str]:
    for place in CRONTABS:
        try:
            names = [""] if os.path.isfile(place) else sorted(os.listdir(place))
        except OSError:
            continue
        yield from (os.path.join(place, name).rstrip("/") for name in names)


def _named(path: str) -> set[str]:
    """What tasks the lines of a crontab would be; none of a file that cannot be read.

    Read here and not by the owner, which would keep for good what it loads for that.
    """
    try:
        with open(path, "rb") as opened:
            data = opened.read(IMPORT_BYTES_MAX)
        dialect, column = crontab.usual(path)
        user = users.name(os.geteuid())
        plan = crontab.parse(data, dialect=dialect, user_column=column, user=user, zone="UTC")
    except (OSError, EdgeError):
        return set()
    return {each.name for each in plan.tasks}


def _tasks(client: Client) -> set[str]:
    """Every task's name."""
    names: set[str] = set()
    after: str | None = None
    while True:
        page = client.call("task.list", {"after": after})
        names.update(each["task"] for each in page["tasks"])
        after = page["next"]
        if after is None:
            return names


def _schedulers(told: dict[str, Any]) -> Check:
    doubled: dict[str, int] = told.get("doubled") or {}
    if not doubled:
        return _said("schedulers", OK, "No crontab holds lines that are tasks here.")
    message = "; ".join(
        f"{path}: {count} lines are tasks here too" for path, count in doubled.items()
    )
    fix = f"Take those lines out of {', '.join(doubled)}, or everything runs twice."
    return _said("schedulers", WARN, message, fix)


def _memory() -> Check:
    free = memory.free_kib()
    if free is None:
        return _said("memory", OK, "The kernel does not say how much memory is free.")
    message = f"{free // _KIB} MiB of memory are free."
    if free >= _FREE_KIB_MIN:
        return _said("memory", OK, message)
    message += " The scheduler takes about 16 MiB, a run about 4 and what its command needs."
    return _said("memory", WARN, message, MORE_MEMORY)


def _processes() -> Check:
    """What the proof of a run's end can rely on; without it the runtime looks more often."""
    probes = {
        "pidfd": Processes().open_pid(os.getpid()),
        "memfd": memory.memory_file("qle-probe"),
    }
    lacking = [name for name, fd in probes.items() if fd is None]
    for fd in probes.values():
        if fd is not None:
            os.close(fd)
    hidden = any(
        line.split()[1:3] == ["/proc", "proc"] and "hidepid=" in line and "hidepid=0" not in line
        for line in _lines(MOUNTS)
    )
    if hidden and os.geteuid():
        message = "/proc hides processes of others; a run that changes its user stays unproven."
        return _said("processes", WARN, message, "Run as root, or mount /proc with hidepid=0.")
    if lacking:
        return _said(
            "processes", OK, f"The kernel has no {' and no '.join(lacking)}; it goes without."
        )
    return _said("processes", OK, "Runs can be watched exactly.")


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as opened:
            return opened.read().splitlines()
    except OSError:
        return []


def _filesystem(path: str, files: Files, *, made: bool) -> Check:
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    try:
        kind = files.filesystem(path)
        if kind in VOLATILE:
            message = f"The place is in memory ({kind}) and does not survive a reboot."
            return _said("file system", WARN, message, OTHER_PLACE)
        if kind in _NO_LINKS:
            message = f"The file system ({kind}) has no hard links."
            return _said("file system", FAIL, message, "Format the disk as ext4 or f2fs.")
        if made:
            making.check_filesystem(path, files)
        elif kind in making.SHARED:
            message = "A shared file system cannot hold the state."
            return _said("file system", FAIL, message, "Use a disk of this machine.")
    except EdgeError as error:
        return _said("file system", FAIL, error.message, "Use ext4, f2fs, ubifs or jffs2.")
    except OSError as error:
        found = state.place_error(error)
        fix = MORE_ROOM if found.code == "no_space" else LOOK_AT_DISK
        return _said("file system", FAIL, found.message, fix)
    return _said("file system", OK, f"{kind or 'unknown'} at {path}")


def _space(check: str, path: str, profile: Profile, config: str, files: Files) -> Check:
    try:
        room = files.space(path)
    except FileNotFoundError:
        return _said(check, FAIL, f"{path} is not there.", "Mount its disk, or make the folder.")
    except OSError as error:
        return _said(check, FAIL, state.place_error(error).message)
    needed = profile.reserve_bytes + profile.log_quota_bytes
    message = f"{room.bytes // _KIB} KiB are free"
    if room.inodes is not None and room.inodes < _INODES_MIN:
        return _said(check, FAIL, f"Only {room.inodes} inodes are free.", "Remove files.")
    if room.bytes >= needed:
        return _said(check, OK, f"{message}.")
    message += f"; a run with a log needs {needed // _KIB} KiB (reserve and quota)."
    if room.bytes < _ROOM_MIN:
        return _said(check, FAIL, message, MORE_ROOM)
    reserve = room.bytes // 2 // _KIB * _KIB
    quota = max(LOG_QUOTA_BYTES_MIN, min(profile.log_quota_bytes, reserve // 4 // _KIB * _KIB))
    fits = f'"limits": {{"reserve_bytes": {reserve}, "log_quota_bytes": {quota}}}'
    return _said(check, WARN, message, f"Write what fits into {config} and start anew: {fits}")


def _database(where: Place, told: dict[str, Any]) -> Check:
    error = told.get("error")
    if error is not None:
        message = f"{error.code}: {error.message}"
        if error.code == "state_read_only":
            fix = "Mount it writable; if the kernel made it so, look for the disk's errors: dmesg"
            return _said("database", FAIL, message, fix)
        return _said("database", WARN if isinstance(error, Unavailable) else FAIL, message)
    degraded = ", ".join(told["degraded"])
    owner = "The daemon runs" if told["pid"] else "No daemon runs"
    start = "" if told["pid"] else f" To start one: {troubles.start_command(where)}"
    if degraded:
        fix = " ".join(troubles.told(told["degraded"]))
        return _said("database", WARN, f"{owner}; degraded: {degraded}.{start}", fix)
    return _said("database", OK, f"{owner}; the database answers.{start}")


def _keyring(where: Place, files: Files, told: dict[str, Any]) -> Check:
    from qinglong_edge.secret import keyring

    try:
        found = keyring.read(where.keyring, files)
    except EdgeError as error:
        reason = str(error.facts.get("reason") or error.code)
        if reason == "keyring_missing" and not told.get("usage"):
            return _said("keyring", OK, "There are no secrets yet.")
        fix = _KEYRING.get(reason, "").format(where.keyring) or None
        message = f"{reason}: tasks with a secret do not start."
        return _said("keyring", FAIL, message, fix)
    lost = set(told.get("usage", ())) - set(found.ids)
    if lost:
        message = f"Rows are sealed under keys that the keyring lacks: {', '.join(sorted(lost))}"
        fix = "Restore the keyring, or drop what another key opens too: keyring retire KEY"
        return _said("keyring", WARN, message, fix)
    return _said("keyring", OK, f"Keys: {len(found.ids)}; only this user can read them.")


def _runtime(where: Place) -> Check:
    try:
        found = os.lstat(where.runtime)
    except FileNotFoundError:
        return _said("runtime", OK, f"{where.runtime} will be made at the start.")
    except OSError as error:
        return _said("runtime", FAIL, state.place_error(error).message)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        fix = "Name another one with --runtime."
        return _said("runtime", FAIL, "The runtime path is no directory of this user.", fix)
    return _said("runtime", OK, where.runtime)


def _clock(told: dict[str, Any]) -> Check:
    now_ms = time.time_ns() // 1_000_000
    reason = told["clock"]["reason"] if told.get("pid") else None
    if now_ms >= CLOCK_FLOOR_MS and reason is None:
        return _said("clock", OK, "The wall clock is set.")
    message = f"The wall clock is not trusted: {reason or 'it is before 2026'}."
    return _said("clock", WARN, message, SET_CLOCK)


def _zone(environment_tz: str | None) -> Check:
    """The zone that a schedule gets here is opened as a schedule opens it."""
    install = _install("zoneinfo-core zoneinfo-asia", "tzdata")
    try:
        name = preview.machine_zone(environment_tz)
        preview.Zones().open(name).offset_ms_at(time.time_ns() // 1_000_000)
        said = [each for each in zonefile.candidates(environment_tz) if each and each[0] != "/"]
        cities = any(map(zonefile.read_tzif, (*_CITIES, name if "/" in name else "")))
    except EdgeError as error:
        return _said("zone", WARN, error.message, LOOK_AT_DISK)
    if said and said[0].replace(" ", "_") != name:
        message = f"The machine's zone is {said[0]}, which cannot be used here; {name} is."
        return _said("zone", WARN, message, install)
    if cities:
        return _said("zone", OK, name)
    message = f"{name}; without zone data only rules like CST-8 are known, no names of cities."
    return _said("zone", WARN, message, install)
