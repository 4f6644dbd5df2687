"""The bench's columns of emulated routers, both kinds at once.

A guest's time passes with its instructions, so that this machine's other work is not in its
figures. A guest that cannot be had, or a part that fails in it, gives rows without a figure and the
reason; it stops nothing else.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tests.tools import bench_parts, debian, measure, peers
from tests.tools.bench_rows import EFFORTS, Found
from tests.tools.measure import UnmeasurableError
from tests.tools.router import images, share
from tests.tools.router.alone import ALONE, Say
from tests.tools.router.guest import Guest, GuestError, Options, overlay
from tests.tools.router.images import Image
from tests.tools.router.machines import MACHINES, Machine

_MODULE = "tests.tools.bench_parts"
_MAKERS = {
    "ext4": ("mkfs.ext4", "-q", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0"),
    "f2fs": ("mkfs.f2fs", "-q"),
}
_DISK_BYTES = 192 << 20  # the edge reserve of 32 MiB and one log, beside what f2fs keeps back
_PART_S = 2_400.0
_TRIES = 4
_UNOBTAINABLE = (debian.UnobtainableError, OSError, subprocess.CalledProcessError)
_LINE = "\n"
# Kind: where it is mounted, the disk that gets its bytes, and how it gets there.
_MOUNTS = {
    "ext4": ("/flash", "vdb", "mount -t ext4 -o noatime /dev/vdb /flash"),
    "f2fs": ("/mnt", "vdc", "mount -t f2fs -o noatime /dev/vdc /mnt"),
    "overlay": ("/overlay", "vdb", overlay("/flash", "/overlay")),
    "tmpfs": ("/tmp", "", ":"),
}


@dataclass(frozen=True)
class _Router:
    """What one kind of router is started from."""

    root: str  # of the tree
    home: str
    image: Image
    share: str
    disks: tuple[str, ...]
    setting: dict[str, Any]

    def measured(self, parts: list[str], say: Say) -> Found:
        """What was found for each part."""
        found = self._together([part for part in parts if part not in ALONE], say)
        for part in parts:
            if part in ALONE:
                found |= self._alone(part, say)
        return found

    def _alone(self, part: str, say: Say) -> Found:
        """A part that boots its own."""
        folder = os.path.join(self.home, part)
        os.mkdir(folder)
        say(f"{self.image.machine.name}: {part}")
        try:
            return ALONE[part](self.root, self.image, self.share, folder, say)
        except GuestError as error:
            return _without(part, _failure(error))
        except (UnmeasurableError, *_UNOBTAINABLE) as error:
            return _without(part, str(error))

    def _together(self, parts: list[str], say: Say) -> Found:
        """The parts, one after the other in one guest; where one fails the next gets a new one.

        A router that fails too often gives up what is left.
        """
        found: Found = {}
        left = list(parts)
        reason, tries = "", _TRIES
        while left and tries:
            tries -= 1
            part = None  # a router that does not boot has failed in none
            try:
                with self._booted() as guest:
                    while left:
                        part = left[0]
                        say(f"{self.image.machine.name}: {part}")
                        found |= self._part(guest, part)
                        del left[0]
            except GuestError as error:
                reason = _failure(error)
                if part is not None:
                    found |= _without(left.pop(0), reason)
        for part in left:
            found |= _without(part, reason)
        return found

    def _booted(self) -> Guest:
        """A guest with its disks mounted."""
        guest = Guest(self.image, Options(share=self.share, disks=self.disks, counted=True))
        try:
            guest.load("crc32_generic", "f2fs", "overlay")
            for _folder, _device, command in _MOUNTS.values():
                guest.check(command)
        except BaseException:
            guest.kill()
            raise
        return guest

    def _part(self, guest: Guest, part: str) -> Found:
        words = (part, "router", json.dumps(self.setting))
        zipapp = f"/share/{share.ZIPAPP}"
        found: Found = guest.python(_MODULE, zipapp, *words, timeout_s=_PART_S)
        return found


def _failure(error: GuestError) -> str:
    return f"the router failed: {str(error).strip().rpartition(_LINE)[2][-200:]}"


def _without(part: str, reason: str) -> Found:
    return dict.fromkeys(bench_parts.PARTS[part].rows(EFFORTS["router"]), reason)


def columns(
    root: str, parts: list[str], say: Say, *, states: str | None = None
) -> dict[str, Found]:
    """What was found in each kind of router, by its name.

    `states` has those of the part `scale`: made in a router they would take it half an hour.
    """
    with measure.folder() as home:

        def work(name: str) -> Found:
            try:
                router = _router(root, MACHINES[name], os.path.join(home, name), states)
            except _UNOBTAINABLE as error:
                reason = f"no such router here: {error}"
                return {key: reason for part in parts for key in _without(part, reason)}
            return router.measured(parts, say)

        with ThreadPoolExecutor(len(MACHINES)) as pool:
            return dict(zip(MACHINES, pool.map(work, MACHINES), strict=True))


def _able() -> str | None:
    """What this machine lacks for any router; None if nothing."""
    programs = [machine.emulator for machine in MACHINES.values()]
    programs += [command[0] for command in _MAKERS.values()]
    missing = [name for name in programs if shutil.which(name) is None]
    return f"{', '.join(missing)} not installed" if missing else None


def _router(root: str, machine: Machine, home: str, states: str | None) -> _Router:
    """Its image, its share and its disks; `home` is to be made."""
    lacking = _able()
    if lacking is not None:
        raise debian.UnobtainableError(lacking)
    image = images.image(root, machine)
    shared = os.path.join(home, "share")
    os.makedirs(shared)
    share.fill(root, shared)
    tools, without = peers.found(root, machine)
    for peer, path in tools.items():
        if path.startswith(root):
            inside = os.path.join(shared, "peers")
            shutil.copytree(path, inside, dirs_exist_ok=True)
            tools[peer] = "/share/peers"
    setting: dict[str, Any] = {"tools": tools, "without": without}
    setting["mounted"] = {kind: mount[:2] for kind, mount in _MOUNTS.items()}
    if states is not None:
        shutil.copytree(states, os.path.join(shared, "states"))
        setting["prepared"] = "/share/states"
    return _Router(root, home, image, shared, tuple(_disk(home, kind) for kind in _MAKERS), setting)


def _disk(home: str, kind: str) -> str:
    """A fresh disk of this kind, as qemu is told; every guest gets it as it is now."""
    path = os.path.join(home, kind)
    with open(path, "wb") as opened:
        opened.truncate(_DISK_BYTES)
    subprocess.run([*_MAKERS[kind], path], check=True, capture_output=True)
    return f"file={path},cache=unsafe,snapshot=on"
