"""Run in a guest: file systems on its flash chips.

    python3 -m tests.tools.router.flash mount|unmount KIND [CHIP [PLACE]]

puts chip number CHIP, an erased one too, to PLACE or /flash as `jffs2` or `ubifs`, or takes it
away, and prints nothing. The kernel's modules have been loaded; the chips' driver is
/share/phram.ko.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
import time

from tests.tools.measure import Disk

PLACE = "/flash"
MODULES = ("zstd", "deflate", "lzo", "mtd", "jffs2", "ubi", "ubifs", "overlay")  # for the host
_DRIVER = "/share/phram.ko"
_PARAMETERS = "/sys/module/phram/parameters"
_PAGES = {"jffs2": 1, "ubifs": 2_048}
_BLOCK = 65_536
_IVSHMEM = ("0x1af4", "0x1110")
_ATTACH, _DETACH, _MAKE_VOLUME = 0x40186F40, 0x40046F41, 0x40986F00  # UBI's ioctls
_DYNAMIC = 3
_WITHIN_S = 60.0


class Chip(Disk):
    """The counters of the driver, as those of a disk are read."""

    def written(self) -> tuple[int, int | None]:
        """(bytes written to the chips so far, None: flash has no flushes)."""
        return int(_text(f"{_PARAMETERS}/written")), None

    @staticmethod
    def erased() -> int:
        """Blocks erased so far."""
        return int(_text(f"{_PARAMETERS}/erased"))


class Flash:
    """One chip with its file system; `mount` and `unmount` may take turns, on another content."""

    def __init__(self, kind: str, number: int = 0, place: str = PLACE) -> None:
        self.kind = kind
        self.place = place
        self._name = f"chip{number}"
        if not os.path.isdir(_PARAMETERS):
            subprocess.run(["insmod", _DRIVER], check=True)
        if self._found() is None:
            address, size = _bars()[number]
            _write(f"{_PARAMETERS}/wsize", str(_PAGES[kind]))
            _write(f"{_PARAMETERS}/phram", f"{self._name},{address},{size},{_BLOCK}")

    def mount(self) -> None:
        """RuntimeError with the kernel's last words when it cannot be."""
        source = f"mtd{self._number()}"
        if self.kind == "ubifs":
            source = f"ubi{self._attached()}:data"
        words = ["mount", "-t", self.kind, "-o", "noatime", source, self.place]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode != 0:
            told = subprocess.run(["dmesg"], capture_output=True, text=True).stdout
            raise RuntimeError(f"{done.stderr.strip()}: {told[-800:]}")

    def unmount(self) -> None:
        """Nothing of the chip is known to this machine afterwards."""
        deadline = time.monotonic() + _WITHIN_S
        while subprocess.run(["umount", self.place], capture_output=True).returncode != 0:
            if time.monotonic() > deadline:
                raise RuntimeError("the flash is held")
            time.sleep(0.05)
        number = self._device()
        if number is not None:
            _control(_DETACH, struct.pack("=i", number))

    def _found(self) -> int | None:
        for name in os.listdir("/sys/class/mtd"):
            path = f"/sys/class/mtd/{name}/name"
            if name.startswith("mtd") and not name.endswith("ro") and _text(path) == self._name:
                return int(name.removeprefix("mtd"))
        return None

    def _number(self) -> int:
        found = self._found()
        if found is None:
            raise RuntimeError(f"there is no {self._name}")
        return found

    def _device(self) -> int | None:
        """UBI's number of this chip, if it is attached."""
        for name in os.listdir("/sys/class/ubi"):
            path = f"/sys/class/ubi/{name}/mtd_num"
            if os.path.exists(path) and int(_text(path)) == self._number():
                return int(name.removeprefix("ubi"))
        return None

    def _attached(self) -> int:
        """UBI's number of the chip, with a volume `data` over all of it."""
        _control(_ATTACH, struct.pack("=iiih10x", -1, self._number(), 0, 0))
        number = self._device()
        if number is None:
            raise RuntimeError("UBI does not know what it attached")
        own = f"/sys/class/ubi/ubi{number}"
        if int(_text(f"{own}/volumes_count")) == 0:
            room = int(_text(f"{own}/avail_eraseblocks")) * int(_text(f"{own}/eraseblock_size"))
            name = b"data"
            head = struct.pack("=iiqbBh4x", -1, 1, room, _DYNAMIC, 0, len(name))
            _control(_MAKE_VOLUME, head + name.ljust(128, b"\0"), f"/dev/ubi{number}")
        return number


def _bars() -> list[tuple[int, int]]:
    """(address, bytes) of every chip's memory, in the order of their numbers."""
    found = []
    for name in sorted(os.listdir("/sys/bus/pci/devices")):
        own = f"/sys/bus/pci/devices/{name}"
        if (_text(f"{own}/vendor"), _text(f"{own}/device")) == _IVSHMEM:
            _write(f"{own}/enable", "1")
            first, last, _flags = _text(f"{own}/resource").split("\n")[2].split()
            found.append((int(first, 16), int(last, 16) - int(first, 16) + 1))
    return found


def _control(request: int, argument: bytes, device: str = "/dev/ubi_ctrl") -> None:
    descriptor = os.open(device, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, request, argument)
    finally:
        os.close(descriptor)


def _text(path: str) -> str:
    with open(path, encoding="ascii") as opened:
        return opened.read().rstrip("\n")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as opened:
        opened.write(text)


def main(what: str, kind: str, chip: str = "0", place: str = PLACE) -> None:
    """Do one of the two."""
    own = Flash(kind, int(chip), place)
    {"mount": own.mount, "unmount": own.unmount}[what]()


if __name__ == "__main__":
    main(*sys.argv[1:])
