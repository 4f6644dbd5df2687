"""What a box needs beside the program, written out and taken back: `openwrt install` and the like.

Owns the files of a kit below a root directory, and the list of what was put there. Promises:

* The list comes first, so after a crash at any moment `uninstall` (or `install` again) finds all of
  it. A file is there whole or not at all.
* A file that somebody else put there is never overwritten; a configuration that was edited is kept,
  by a later `install` and by `uninstall`.
* `uninstall` leaves the root as `install` found it. The state directory is never touched.

    kit.bz2 of the zipapp, or the folder `kit` of a checkout: KIT/path below the root
    <root>/.../KIT.json   {"version", "directories": [made here], "files": {path: SHA-256}}
"""

from __future__ import annotations

import json
import os

from qinglong_edge import __version__
from qinglong_edge.app import profiles, program
from qinglong_edge.core.canonical import decode, sha256_hex
from qinglong_edge.core.errors import Corrupt, EdgeError, Invalid, Refused
from qinglong_edge.core.record import Record
from qinglong_edge.system.files import Files, storage_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_LIST_BYTES_MAX = 262_144
_FILE_BYTES_MAX = 4_194_304
_TERM_MARGIN_MS = 2_000  # the profile's bound is for the tasks; the daemon still writes after it
_KEPT = "etc/config/"  # what people edit
_COMMON = "common"  # QingLong's own commands, for the kits that have a library directory
_OLD = ".old"


class Kit(Record):
    """Where a kit puts the program and its list; what to do afterwards, in words for a shell.

    `starts` is the link by which a boot starts the service, `ends` what takes it away and stops it.
    """

    program: str
    library: str | None
    list: str
    after: tuple[str, ...]
    starts: str = ""
    ends: str = ""


_LOCAL = "usr/local/bin/qinglong-edge"
_LOCAL_LIBRARY = "usr/local/lib/qinglong-edge"
KITS: dict[str, Kit] = {
    "openwrt": Kit(
        program="usr/bin/qinglong-edge",
        library="usr/lib/qinglong-edge",
        list="usr/lib/qinglong-edge/openwrt.json",
        after=(
            "qinglong-edge init",
            "/etc/init.d/qinglong-edge enable",
            "/etc/init.d/qinglong-edge restart",
            "/etc/init.d/rpcd reload",
        ),
        starts="etc/rc.d/S99qinglong-edge",
        ends="/etc/init.d/qinglong-edge disable; /etc/init.d/qinglong-edge stop",
    ),
    "systemd": Kit(
        program=_LOCAL,
        library=_LOCAL_LIBRARY,
        list=f"{_LOCAL_LIBRARY}/systemd.json",
        after=(
            "qinglong-edge init --profile standalone",
            "systemctl daemon-reload",
            "systemctl enable --now qinglong-edge",
        ),
        starts="etc/systemd/system/multi-user.target.wants/qinglong-edge.service",
        ends="systemctl disable --now qinglong-edge",
    ),
    "s6": Kit(
        program=_LOCAL,
        library=_LOCAL_LIBRARY,
        list=f"{_LOCAL_LIBRARY}/s6.json",
        after=("qinglong-edge init --profile standalone",),
    ),
    "docker": Kit(
        program="qinglong-edge",
        library=None,
        list=".qinglong-edge.json",
        after=("docker build -t qinglong-edge .",),
    ),
    "feed": Kit(
        program="qinglong-edge/files/qinglong-edge",
        library=None,
        list="qinglong-edge/files/feed.json",
        after=(),
    ),
    "program": Kit(
        program=_LOCAL,
        library=_LOCAL_LIBRARY,
        list=f"{_LOCAL_LIBRARY}/program.json",
        after=("qinglong-edge init",),
    ),
}


def install(name: str, root: str) -> dict[str, Any]:
    """Write a kit below `root`, or bring it up to date; unchanged files are not written again.

    `Refused`: `program_not_packed` from a checkout, `file_foreign` if a name is taken.
    """
    kit, files = KITS[name], Files()
    wanted = contents(name)
    wanted[kit.program] = _program()
    try:
        return _install(kit, os.path.abspath(root), wanted, files)
    except OSError as error:
        raise storage_error(error, "files of the kit") from None


def _install(kit: Kit, root: str, wanted: dict[str, bytes], files: Files) -> dict[str, Any]:
    listed = _listed(root, kit, files)
    known: dict[str, str] = listed["files"]
    found = {path: _digest(os.path.join(root, path), files) for path in {**known, **wanted}}
    kept, written = [], []
    for path, content in wanted.items():
        new, there, old = sha256_hex(content), found[path], known.get(path)
        if there is None or there == new:
            continue
        if path.startswith(_KEPT) and there != old:
            kept.append(path)
        elif old is None and path != kit.program:
            raise Refused("file_foreign", "A file of that name is there already.", file=path)
    gone = [path for path in known if path not in wanted and not path.endswith(_OLD)]
    directories = listed["directories"] + _missing(root, [*wanted, kit.list])
    future = {path: sha256_hex(content) for path, content in wanted.items() if path not in kept}
    future.update({path: known[path] for path in (*kept, kit.program + _OLD) if path in known})
    previous = found[kit.program]
    if previous not in (None, future[kit.program]) and previous == known.get(kit.program):
        future[kit.program + _OLD] = str(previous)
    document = {"version": __version__, "directories": directories, "files": future}
    for path in directories:
        _make(os.path.join(root, path))
    files.replace(os.path.join(root, kit.list), _text({**document, "files": {**known, **future}}))
    if previous is not None and future.get(kit.program + _OLD) == previous:
        _keep_previous(os.path.join(root, kit.program), files)
    for path, content in wanted.items():
        if path not in kept and found[path] != future[path]:
            files.replace(os.path.join(root, path), content, mode=_mode(path, content))
            written.append(path)
    for path in gone:
        files.remove(os.path.join(root, path))
    files.replace(os.path.join(root, kit.list), _text(document))
    return {"root": root, "written": sorted(written), "kept": kept, "next": list(kit.after)}


def uninstall(name: str, root: str) -> dict[str, Any]:
    """Take a kit back; edited configuration stays, and so does every directory that is not empty.

    `Refused`: `kit_missing` if its list is not there, `service_enabled` while a boot would start
    it: it may run now, and with these files goes what stops it.
    """
    kit, files, root = KITS[name], Files(), os.path.abspath(root)
    removed, kept = [], []
    try:
        if not files.exists(os.path.join(root, kit.list)):
            raise Refused("kit_missing", "Nothing is installed below this root.")
        if kit.starts and files.exists(os.path.join(root, kit.starts)):
            raise Refused("service_enabled", f"The service is enabled. First: {kit.ends}")
        listed = _listed(root, kit, files)
        for path, old in listed["files"].items():
            there = _digest(os.path.join(root, path), files)
            if path.startswith(_KEPT) and there not in (None, old):
                kept.append(path)
            elif files.remove(os.path.join(root, path)):
                removed.append(path)
        files.remove(os.path.join(root, kit.list))
        for path in sorted(listed["directories"], key=len, reverse=True):
            try:
                os.rmdir(os.path.join(root, path))
            except OSError:  # somebody keeps something in it, or it went already
                continue
    except OSError as error:
        raise storage_error(error, "files of the kit") from None
    return {"root": root, "removed": sorted(removed), "kept": kept}


def contents(name: str) -> dict[str, bytes]:
    """The files of a kit by their path below the root, ready to be written."""
    longest = max(profiles.load(each).stop_bound_ms for each in profiles.names())
    told = {
        b"@TERM_TIMEOUT@": str((longest + _TERM_MARGIN_MS) // 1000).encode(),
        b"@VERSION@": __version__.encode(),
    }
    found = {}
    for path, content in _carried():
        kit, _, below = path.partition("/")
        library = KITS[name].library
        if kit == name:
            found[below] = content
            for mark, text in told.items():
                found[below] = found[below].replace(mark, text)
        elif kit == _COMMON and library is not None:
            found[f"{library}/{below}"] = content
    return found


def _carried() -> Iterable[tuple[str, bytes]]:
    archive = program.archive()
    if archive is not None:
        from qinglong_edge.app import installed

        return installed.members(archive, "kit.bz2")
    top = os.path.join(os.path.dirname(os.path.dirname(__file__)), "kit")
    return [
        (os.path.relpath(os.path.join(folder, name), top), _read(os.path.join(folder, name)))
        for folder, _folders, names in os.walk(top)
        for name in names
    ]


def _program() -> bytes:
    """This program with the byte code of the Python that runs it."""
    archive = program.archive()
    if archive is None:
        raise Refused("program_not_packed", "A checkout cannot be installed; build the zipapp.")
    from qinglong_edge.app import installed

    return installed.copy(archive)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _mode(path: str, content: bytes) -> int:
    if content.startswith(b"#!"):
        return 0o755
    return 0o600 if path.startswith(_KEPT) else 0o644


def _digest(path: str, files: Files) -> str | None:
    data = files.read_private(path, _FILE_BYTES_MAX)
    return None if data is None else sha256_hex(data)


def _keep_previous(path: str, files: Files) -> None:
    """A second name for the program that is about to be replaced: the way back is one `mv`."""
    files.remove(path + _OLD)
    files.link(path, path + _OLD)


def _make(path: str) -> None:
    if not os.path.isdir(path):
        os.mkdir(path)
        os.chmod(path, 0o755)  # noqa: S103 - whatever the umask said: others read a unit or a page


def _missing(root: str, paths: Iterable[str]) -> list[str]:
    """The directories above some files that are not there yet, upper ones first."""
    found: set[str] = set()
    for path in paths:
        while path := os.path.dirname(path):
            if not os.path.isdir(os.path.join(root, path)):
                found.add(path)
    return sorted(found)


def _text(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def _listed(root: str, kit: Kit, files: Files) -> dict[str, Any]:
    """The list that an `install` left; an empty one where there was none."""
    if not os.path.isdir(root):
        raise Invalid("root_missing", "The root is not a directory.")
    data = files.read_private(os.path.join(root, kit.list), _LIST_BYTES_MAX)
    if data is None:
        return {"directories": [], "files": {}}
    try:
        document = decode(data, bytes_max=_LIST_BYTES_MAX)
        if not isinstance(document, dict):
            raise Invalid("kit_list", "A list is an object.")
        directories, listed = document["directories"], document["files"]
        for path in [*directories, *listed]:
            if path.startswith("/") or ".." in path.split("/"):
                raise Invalid("kit_list", "A list's path leaves the root.")
    except (EdgeError, KeyError, TypeError, AttributeError):
        raise Corrupt("kit_list_corrupt", "The list of installed files is damaged.") from None
    return {"directories": list(directories), "files": dict(listed)}
