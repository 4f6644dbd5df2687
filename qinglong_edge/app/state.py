"""The state directory: its layout, its configuration, its one owner.

Owns the opening of a place. Promises: a state that is not there is never made by opening it (a disk
that is not mounted never becomes a new, empty store); one owner: an flock held for life, never the
contents of a pid file; a second one is refused.

    <state>/ 0700   config.json  owner.lock  edge.db  keyring.json  receipts/  logs/
    <runtime>/ 0700 control.sock  wrapper.sh  ntp.stamp          (default <state>/run)
"""

from __future__ import annotations

import errno
import os
import stat
import time

from qinglong_edge.app import profiles
from qinglong_edge.core.canonical import decode
from qinglong_edge.core.errors import Corrupt, EdgeError, Invalid, Refused, Unavailable
from qinglong_edge.core.limits import OWNER_LOCK_RETRY_MS, PATH_BYTES_MAX
from qinglong_edge.core.profile import Profile
from qinglong_edge.core.record import Record
from qinglong_edge.storage.connection import Layout
from qinglong_edge.system.files import VOLATILE, Files, storage_error

CONFIG = "config.json"
_CONFIG_BYTES_MAX = 65_536
DEFAULT_STATE = "/srv/qinglong-edge"
_RUNTIME = frozenset({"control.sock", "wrapper.sh", "wrapper.sh.new", "ntp.stamp"})
_STAMPS = ("/run/systemd/timesync/synchronized",)


class Place(Record):
    """Where a state lives."""

    state: str
    runtime: str

    @property
    def socket(self) -> str:
        """The control socket."""
        return os.path.join(self.runtime, "control.sock")

    @property
    def wrapper(self) -> str:
        """The installed wrapper script."""
        return os.path.join(self.runtime, "wrapper.sh")

    @property
    def config(self) -> str:
        """The settings that are read before the database."""
        return os.path.join(self.state, CONFIG)

    @property
    def stamps(self) -> tuple[str, ...]:
        """Files a time service touches once the clock is right."""
        return (os.path.join(self.runtime, "ntp.stamp"), *_STAMPS)

    @property
    def keyring(self) -> str:
        """The key file; only launching children and one-shot commands open it."""
        return os.path.join(self.state, "keyring.json")

    @property
    def receipts(self) -> str:
        """The receipt root."""
        return os.path.join(self.state, "receipts")

    @property
    def logs(self) -> str:
        """The log root, unless the configuration names another one."""
        return os.path.join(self.state, "logs")


class Config(Record):
    """`config.json`: the few settings that are read before the database is opened."""

    profile: str
    enabled: bool
    logs: str | None  # another log root (a tmpfs, a USB disk), or None
    limits: dict[str, int]  # numbers of the profile that are different on this box


def place(state: str, runtime: str | None) -> Place:
    """The place for a command line's paths, made absolute; a link to a disk is followed."""
    for path in (state, runtime):
        if path is not None and ("\0" in path or not path):
            raise Invalid("path_invalid", "A directory's path is empty or holds a NUL character.")
        if path is not None and len(os.fsencode(path)) > PATH_BYTES_MAX:
            raise Invalid("path_invalid", "A directory's path is longer than 4096 bytes.")
    state = os.path.realpath(state)
    if state == "/":
        raise Invalid("path_invalid", "The root directory cannot be a state directory.")
    return Place(
        state=state,
        runtime=os.path.join(state, "run") if runtime is None else os.path.abspath(runtime),
    )


def layout(profile: Profile) -> Layout:
    """The database numbers of a profile."""
    return Layout(
        page_bytes=profile.page_bytes, cache_kib=profile.cache_kib, wal_bytes=profile.wal_bytes
    )


def check_directory(path: str) -> None:
    """Refuse a state path that is no directory of this user; OSError where there is none."""
    found = os.stat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise Invalid("state_not_directory", "The state path is not a directory.")
    if found.st_uid != os.geteuid():
        raise Refused("state_forbidden", "The state directory belongs to another user.")


def identity(where: Place) -> str | None:
    """By which a command and the owner of a control socket know that they mean one state."""
    try:
        found = os.stat(where.state)
    except OSError:
        return None
    return f"{found.st_dev}:{found.st_ino}"


def find_config(where: Place, files: Files) -> Config | None:
    """The configuration, or None where there is no file; Corrupt `config_corrupt`."""
    data = files.read_private(where.config, _CONFIG_BYTES_MAX)
    return None if data is None else parse_config(data)


def parse_config(data: bytes) -> Config:
    """The configuration of a file's bytes; Corrupt `config_corrupt`, which says what is wrong."""
    try:
        document = decode(data, bytes_max=_CONFIG_BYTES_MAX)
        if not isinstance(document, dict):
            raise Invalid("config_invalid", "The document is not an object.")
        profile, enabled, logs = (document.get(key) for key in ("profile", "enabled", "logs"))
        limits = document.get("limits", {})
        if not isinstance(profile, str) or type(enabled) is not bool or type(limits) is not dict:
            raise Invalid("config_invalid", "profile, enabled or limits is not there or is wrong.")
        unknown = set(document) - {"version", "profile", "enabled", "logs", "limits"}
        for name in unknown | (set(limits) - (set(Profile._fields) - {"name"})):
            raise Invalid("config_invalid", "There is no such entry.", field=ascii(name)[:80])
        if logs is not None and not (isinstance(logs, str) and logs.startswith("/")):
            raise Invalid("config_invalid", "logs is not an absolute path.")
        profiles.load(profile).replace(**limits)
    except EdgeError as error:  # a person writes this file
        raise Corrupt("config_corrupt", f"config.json: {error.message}", **error.facts) from None
    return Config(profile=profile, enabled=enabled, logs=logs, limits=limits)


def read_config(where: Place, files: Files) -> Config:
    """The configuration of an existing state; nothing is made or changed.

    `Refused` (`state_missing`), `Invalid` (`state_not_directory`), `Corrupt` for a damaged one.
    """
    try:
        check_directory(where.state)
        found = find_config(where, files)
        if found is not None:  # else it is somebody's own, and stays as it is
            files.check_private_directory(where.state)
    except FileNotFoundError:
        raise Refused(
            "state_missing", "There is no state directory; `init` makes one.", state=where.state
        ) from None
    except OSError as error:
        raise place_error(error) from None
    if found is None:
        raise Refused(
            "state_missing",
            "There is no state in this directory; `init` makes one.",
            state=where.state,
        )
    return found


def lock(where: Place, files: Files, *, wait_ms: int = OWNER_LOCK_RETRY_MS) -> int:
    """Become the owner; retried for a moment, since a dying launch child may still hold it."""
    give_up_ms = time.monotonic_ns() // 1_000_000 + wait_ms
    while True:
        try:
            fd = files.lock_owner(os.path.join(where.state, "owner.lock"))
        except OSError as error:
            raise place_error(error) from None
        if fd is not None:
            return fd
        if time.monotonic_ns() // 1_000_000 >= give_up_ms:
            raise Unavailable(
                "state_owned",
                "Another process owns this state directory; a daemon under another --runtime?",
            )
        time.sleep(0.05)


def prepare_runtime(where: Place, files: Files) -> None:
    """Make the runtime directory, which may be on a tmpfs and gone after every boot."""
    try:
        os.makedirs(os.path.dirname(where.runtime), exist_ok=True)
        files.make_private_directory(where.runtime, _RUNTIME.__contains__)
    except OSError as error:
        raise place_error(error) from None


def prepare_folders(where: Place, files: Files, *, logs: bool) -> None:
    """Make the folders of a state where a router's own backup brought back its files only."""
    try:
        for path in (where.receipts, where.logs) if logs else (where.receipts,):
            if not files.exists(path):
                files.make_private_directory(path)
    except OSError as error:
        raise storage_error(error, "state directory") from None


def is_volatile(where: Place, files: Files) -> bool:
    """True if the state would not survive a reboot."""
    try:
        return files.filesystem(where.state) in VOLATILE
    except OSError:
        return False


def place_error(error: OSError) -> EdgeError:
    """The typed error of a failed look at the state's place."""
    if error.errno in (errno.EACCES, errno.EPERM):
        return Refused("state_forbidden", "The state directory may not be used by this user.")
    if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG):
        return Invalid("state_not_directory", "The state path does not lead to a directory.")
    return storage_error(error, "state directory")
