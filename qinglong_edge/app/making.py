"""The making of a state directory, by `init` and by `restore`; nothing else ever makes one.

Owns what a fresh place must be: a directory of this user, empty, on a file system of one machine
with hard links. `config.json` is written last, so that an interrupted making is simply done again.
"""

from __future__ import annotations

import errno
import os

from qinglong_edge.app import profiles, state
from qinglong_edge.core.errors import Corrupt, Refused
from qinglong_edge.storage import store as storage
from qinglong_edge.system.files import Files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qinglong_edge.app.state import Config, Place

SHARED = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs"})


def initialise(where: Place, profile_name: str, *, at_ms: int, files: Files | None = None) -> bool:
    """Make the state directory; False if it is there already with this profile.

    `Refused`: `profile_mismatch`, `state_not_empty`, `state_shared_mount`, `no_hard_links`.
    """
    import json  # only `init` writes a document that is laid out for a person to edit

    profile = profiles.load(profile_name)
    files = Files() if files is None else files
    try:
        found = begin(where, files)
        if found is not None:
            if found.profile != profile_name:
                raise Refused(
                    "profile_mismatch",
                    "The state directory was made for another profile.",
                    found=found.profile,
                )
            return False
        furnish(where, files)
        storage.create(where.state, profile=profile_name, layout=state.layout(profile), at_ms=at_ms)
        document = {
            "version": 1,
            "profile": profile_name,
            "enabled": True,
            "logs": None,
            "limits": {},
        }
        text = json.dumps(document, indent=2) + "\n"
        files.replace(where.config, text.encode("utf-8"))
    except OSError as error:
        raise state.place_error(error) from None
    return True


def volatile(where: Place) -> bool:
    """True if what was made would not survive a reboot."""
    return state.is_volatile(where, Files())


def begin(where: Place, files: Files, *kept: str) -> Config | None:
    """Make the state directory if it is missing; the configuration of a state that is there.

    One that holds more than the files `kept` is somebody's own, and stays as it is: Refused.
    """
    os.makedirs(os.path.dirname(where.state), exist_ok=True)
    found = None
    if os.path.lexists(where.state):
        state.check_directory(where.state)
        found = state.find_config(where, files)
        if found is None:
            _check_empty(where, kept)
    _make_private(where.state, files)
    return found


def furnish(where: Place, files: Files, *kept: str) -> None:
    """Make the folders of a new state, beside the files `kept`; Refused as `initialise`."""
    _check_empty(where, kept)
    check_filesystem(where.state, files)
    for path in (where.receipts, where.logs):
        files.make_private_directory(path)


def _make_private(path: str, files: Files) -> None:
    try:
        files.make_private_directory(path)
    except Corrupt:  # as on vfat, which keeps no modes: say first what no setting can mend
        check_filesystem(path, files)
        raise


def _check_empty(where: Place, kept: tuple[str, ...]) -> None:
    """A directory with foreign content is never taken over; an interrupted `init` goes on."""
    ours = {"receipts", "logs", "run", "lost+found", "owner.lock", f"{state.CONFIG}.new", *kept}
    for name in os.listdir(where.state):
        if name not in ours and not name.startswith(storage.NAME) and not name.startswith(".probe"):
            raise Refused("state_not_empty", "The directory holds files of something else.")


def check_filesystem(path: str, files: Files) -> None:
    """Refuse a place without hard links, or that machines share; with a probe file in it."""
    kind = files.filesystem(path)
    if kind in SHARED:
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
