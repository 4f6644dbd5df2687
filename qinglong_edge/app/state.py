"""The state directory: its layout, its making, its one owner.

Owns `init` and the opening of a place. Promises:

* Only `init` makes a state directory: a disk that is not mounted never becomes a new, empty store.
* `init` is idempotent; `config.json` is written last, so an interrupted one is simply run again.
* One owner: an flock held for life, never the contents of a pid file. A second one is refused.

    <state>/ 0700   config.json  owner.lock  edge.db  keyring.json  receipts/  logs/
    <runtime>/ 0700 control.sock  wrapper.sh  ntp.stamp          (default <state>/run)
"""

from __future__ import annotations

import errno
import json
import os
import stat
import time

from qinglong_edge.app import profiles
from qinglong_edge.core.canonical import decode
from qinglong_edge.core.errors import Corrupt, EdgeError, Invalid, Refused, Unavailable
from qinglong_edge.core.limits import OWNER_LOCK_RETRY_MS, PATH_BYTES_MAX
from qinglong_edge.core.profile import Profile
from qinglong_edge.core.record import Record
from qinglong_edge.storage import store
from qinglong_edge.storage.connection import Layout
from qinglong_edge.system.files import Files, storage_error

_CONFIG = "config.json"
_CONFIG_BYTES_MAX = 65_536
_SHARED = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs"})
_VOLATILE = frozenset({"tmpfs", "ramfs"})
DEFAULT_STATE = "/srv/qinglong-edge"
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
    def stamps(self) -> tuple[str, ...]:
        """Files a time service touches once the clock is right."""
        return (os.path.join(self.runtime, "ntp.stamp"), *_STAMPS)

    @property
    def receipts(self) -> str:
        """The receipt root."""
        return os.path.join(self.state, "receipts")


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


def initialise(where: Place, profile_name: str, *, at_ms: int, files: Files | None = None) -> bool:
    """Make the state directory; False if it is there already with this profile.

    `Refused`: `profile_mismatch`, `state_not_empty`, `state_shared_mount`, `no_hard_links`.
    """
    profile = profiles.load(profile_name)
    files = Files() if files is None else files
    try:
        _make_directory(where.state, files)
        found = _config(where, files)
        if found is not None:
            if found.profile != profile_name:
                raise Refused(
                    "profile_mismatch",
                    "The state directory was made for another profile.",
                    found=found.profile,
                )
            return False
        _check_empty(where)
        _check_filesystem(where.state, files)
        for name in ("receipts", "logs"):
            files.make_private_directory(os.path.join(where.state, name))
        store.create(where.state, profile=profile_name, layout=layout(profile), at_ms=at_ms)
        document = {
            "version": 1,
            "profile": profile_name,
            "enabled": True,
            "logs": None,
            "limits": {},
        }
        text = json.dumps(document, indent=2) + "\n"
        files.replace(os.path.join(where.state, _CONFIG), text.encode("utf-8"))
    except OSError as error:
        raise _place_error(error) from None
    return True


def _make_directory(path: str, files: Files) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.lexists(path):
        _check_directory(path)
    files.make_private_directory(path)


def _check_directory(path: str) -> None:
    found = os.stat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise Invalid("state_not_directory", "The state path is not a directory.")
    if found.st_uid != os.geteuid():
        raise Refused("state_forbidden", "The state directory belongs to another user.")


def _check_empty(where: Place) -> None:
    """A directory with foreign content is never taken over; an interrupted `init` goes on."""
    ours = {"receipts", "logs", "run", "lost+found", "owner.lock", f"{_CONFIG}.new"}
    for name in os.listdir(where.state):
        if name not in ours and not name.startswith(store.NAME) and not name.startswith(".probe"):
            raise Refused("state_not_empty", "The directory holds files of something else.")


def _check_filesystem(path: str, files: Files) -> None:
    kind = files.filesystem(path)
    if kind in _SHARED:
        raise Refused(
            "state_shared_mount", "A shared file system cannot hold the state.", filesystem=kind
        )
    probe, second = os.path.join(path, ".probe"), os.path.join(path, ".probe.link")
    for leftover in (probe, second):
        files.remove(leftover)
    files.replace(probe, b"")
    try:
        files.link(probe, second)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EACCES, errno.EMLINK):
            raise
        raise Refused(
            "no_hard_links", "The file system has no hard links (vfat, exfat).", filesystem=kind
        ) from None
    finally:
        for leftover in (probe, second):
            files.remove(leftover)


def _config(where: Place, files: Files) -> Config | None:
    data = files.read_private(os.path.join(where.state, _CONFIG), _CONFIG_BYTES_MAX)
    if data is None:
        return None
    try:
        document = decode(data, bytes_max=_CONFIG_BYTES_MAX)
        if not isinstance(document, dict):
            raise Invalid("config_invalid", "The configuration is not an object.")
        profile, enabled, logs = (document.get(key) for key in ("profile", "enabled", "logs"))
        limits = document.get("limits", {})
        known = {"version", "profile", "enabled", "logs", "limits"}
        if not isinstance(profile, str) or type(enabled) is not bool or set(document) - known:
            raise Invalid("config_invalid", "The configuration has an unknown or wrong entry.")
        if logs is not None and not (isinstance(logs, str) and logs.startswith("/")):
            raise Invalid("config_invalid", "The log directory is not an absolute path.")
        if not isinstance(limits, dict) or not set(limits) <= set(Profile._fields) - {"name"}:
            raise Invalid("config_invalid", "The limits name a number that no profile has.")
        profiles.load(profile).replace(**limits)
    except EdgeError:
        raise Corrupt("config_corrupt", "config.json is damaged or has unknown entries.") from None
    return Config(profile=profile, enabled=enabled, logs=logs, limits=limits)


def read_config(where: Place, files: Files) -> Config:
    """The configuration of an existing state; nothing is made or changed.

    `Refused` (`state_missing`), `Invalid` (`state_not_directory`), `Corrupt` for a damaged one.
    """
    try:
        _check_directory(where.state)
        files.check_private_directory(where.state)
        found = _config(where, files)
    except FileNotFoundError:
        raise Refused(
            "state_missing", "There is no state directory here; `init` makes one."
        ) from None
    except OSError as error:
        raise _place_error(error) from None
    if found is None:
        raise Refused("state_missing", "There is no state in this directory; `init` makes one.")
    return found


def lock(where: Place, files: Files, *, wait_ms: int = OWNER_LOCK_RETRY_MS) -> int:
    """Become the owner; retried for a moment, since a dying launch child may still hold it."""
    give_up_ms = time.monotonic_ns() // 1_000_000 + wait_ms
    while True:
        try:
            fd = files.lock_owner(os.path.join(where.state, "owner.lock"))
        except OSError as error:
            raise _place_error(error) from None
        if fd is not None:
            return fd
        if time.monotonic_ns() // 1_000_000 >= give_up_ms:
            raise Unavailable("state_owned", "Another process owns this state directory.")
        time.sleep(0.05)


def prepare_runtime(where: Place, files: Files) -> None:
    """Make the runtime directory, which may be on a tmpfs and gone after every boot."""
    try:
        os.makedirs(os.path.dirname(where.runtime), exist_ok=True)
        files.make_private_directory(where.runtime)
    except OSError as error:
        raise _place_error(error) from None


def is_volatile(where: Place, files: Files) -> bool:
    """True if the state would not survive a reboot."""
    try:
        return files.filesystem(where.state) in _VOLATILE
    except OSError:
        return False


def _place_error(error: OSError) -> EdgeError:
    if error.errno in (errno.EACCES, errno.EPERM):
        return Refused("state_forbidden", "The state directory may not be used by this user.")
    if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG):
        return Invalid("state_not_directory", "The state path does not lead to a directory.")
    if error.errno == errno.EROFS:
        return Unavailable("state_read_only", "The state directory's file system is read-only.")
    return storage_error(error, "state directory")
