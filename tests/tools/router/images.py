"""What a router boots: kernel, initial memory disk, read-only root; made from Debian's packages.

Kept under `.cache/routers`, a folder a recipe; a folder there is complete or absent. The root has
BusyBox and nothing else for a shell, Python with `cryptography`, and the kernel's modules that a
test may ask for. A kernel is hundreds of MB of modules; what is kept is its 5 MB that are used.
"""

from __future__ import annotations

import lzma
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from tests.tools import debian
from tests.tools.router.machines import MINOR, SUITE, Machine

CACHE = os.path.join(".cache", "routers")
_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGES = ("python3", "python3-cryptography", "busybox-static")
_BASE = ("virtio_pci", "virtio_mmio", "virtio_blk", "ext4", "crc32c_generic", "virtio_console")
_MORE = (
    *("9pnet_virtio", "9p", "overlay", "vfat", "nls_cp437", "nls_ascii", "crc32_generic", "f2fs"),
    *("mtd", "zstd", "deflate", "lzo", "jffs2", "ubi", "ubifs"),
)
_UNUSED = ("doc", "man", "locale", "info", "lintian", "perl", "zoneinfo/right", "zoneinfo/posix")
_PLACES = ("dev", "flash", "mnt", "overlay", "proc", "run", "share", "sys", "tmp")
_XZ = b"\xfd7zXZ\x00"
_IMAGE_MIB = 192


@dataclass(frozen=True)
class Image:
    """Three files of one machine."""

    machine: Machine
    folder: str

    @property
    def kernel(self) -> str:
        """Not compressed, so that no guest has to unpack it."""
        return os.path.join(self.folder, "kernel")

    @property
    def initrd(self) -> str:
        """BusyBox and the modules that reach the root."""
        return os.path.join(self.folder, "initrd")

    @property
    def root(self) -> str:
        """An ext4 that any number of guests read at once."""
        return os.path.join(self.folder, "root")


def image(root: str, machine: Machine) -> Image:
    """The machine's image, made when it is not there; UnobtainableError says why it cannot be."""
    parts = _parts(root, machine)
    recipe = [os.path.basename(parts)]
    for name in (__file__, os.path.join(_HERE, "init.sh"), os.path.join(_HERE, "agent.sh")):
        with open(name, encoding="utf-8") as opened:
            recipe.append(opened.read())
    folder = os.path.join(root, CACHE, f"{machine.name}-{_sum(recipe)}")
    if not os.path.isdir(folder):
        with debian.folder(folder) as made:
            _image(parts, made, machine)
    return Image(machine, folder)


def _sum(recipe: list[str]) -> str:
    return f"{zlib.crc32(chr(0).join(recipe).encode()):08x}"


# -- from packages to parts -----------------------------------------------------------------------


def _parts(root: str, machine: Machine) -> str:
    """A folder with `tree`, `kernel` and `modules`, as the packages bring them."""
    recipe = [SUITE, machine.architecture, *_PACKAGES, *_BASE, *_MORE, *_UNUSED]
    folder = os.path.join(root, CACHE, f"{machine.name}-parts-{_sum(recipe)}")
    if os.path.isdir(folder):
        return folder
    with debian.folder(folder) as made:
        tree = os.path.join(made, "tree")
        os.mkdir(tree)
        debian.tree(tree, SUITE, _PACKAGES, architecture=machine.architecture)
        for name in _UNUSED:
            shutil.rmtree(os.path.join(tree, "usr", "share", name), ignore_errors=True)
        shutil.rmtree(os.path.join(tree, "dev"))  # its /dev/zero is long to copy
        _compile(tree, machine)
        with tempfile.TemporaryDirectory(dir=os.path.dirname(made)) as away:
            package = f"linux-image-{machine.architecture}"
            debian.tree(away, SUITE, [package], architecture=machine.architecture)
            _take_kernel(away, made)
            _take_modules(away, os.path.join(made, "modules"))
    return folder


def _compile(tree: str, machine: Machine) -> None:
    """Byte code of the standard library, as routers have it; else each start would make it."""
    inside = os.path.join("usr", "lib", f"python3.{MINOR}")
    if sys.version_info.minor == MINOR:
        command, place = [sys.executable], os.path.join(tree, inside)
    elif machine.user is None:
        command, place = ["chroot", tree, f"python3.{MINOR}"], f"/{inside}"
    else:
        home = os.path.join(tree, "usr")
        python = os.path.join(home, "bin", f"python3.{MINOR}")
        command = [machine.user, "-L", tree, "-E", f"PYTHONHOME={home}", python]
        place = os.path.join(tree, inside)
    options = ("-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash")
    subprocess.run([*command, "-I", *options, "-s", tree, "-p", "/", place], check=True)


def _take_kernel(tree: str, target: str) -> None:
    """The kernel as qemu starts it soonest: an x86 one is unpacked here, not at each boot."""
    boot = os.path.join(tree, "boot")
    name = next(name for name in sorted(os.listdir(boot)) if name.startswith("vmlinuz"))
    with open(os.path.join(boot, name), "rb") as opened:
        content = opened.read()
    begins = content.find(_XZ)
    if begins >= 0 and content[:2] == b"MZ" and content[0x202:0x206] == b"HdrS":
        content = lzma.LZMADecompressor().decompress(content[begins:])
    with open(os.path.join(target, "kernel"), "wb") as written:
        written.write(content)


def _take_modules(tree: str, target: str) -> None:
    """Every wanted module with what it depends on; `base` and `order` list them, first one first.

    A line of `order` is a module and all that has to be loaded before it.
    """
    found = {}
    for folder, _folders, files in os.walk(os.path.join(tree, "lib", "modules")):
        for file in files:
            if file.endswith(".ko"):
                found[file.removesuffix(".ko").replace("-", "_")] = os.path.join(folder, file)
    os.mkdir(target)
    base = list(dict.fromkeys(each for name in _BASE for each in _closure(name, found)))
    lines = []
    for name in (*base, *_MORE):
        closure = list(_closure(name, found))
        for each in closure:
            shutil.copy(found[each], os.path.join(target, f"{each}.ko"))
        lines.append(f"{name}: {' '.join(each for each in closure if each not in base)}\n")
    for file, text in (("base", "\n".join(base)), ("order", "".join(lines))):
        with open(os.path.join(target, file), "w", encoding="ascii") as opened:
            opened.write(text)


def _closure(name: str, found: dict[str, str]) -> Iterator[str]:
    """The modules that a module needs, in the order of their loading, itself last.

    One that is not there is built into this architecture's kernel.
    """
    if name not in found:
        return
    with open(found[name], "rb") as opened:
        content = opened.read()
    begins = content.index(b"\0depends=") + 9
    for each in content[begins : content.index(b"\0", begins)].decode("ascii").split(","):
        if each:
            yield from _closure(each.replace("-", "_"), found)
    yield name


# -- from parts to an image -----------------------------------------------------------------------


def _image(parts: str, made: str, machine: Machine) -> None:
    os.link(os.path.join(parts, "kernel"), os.path.join(made, "kernel"))
    with tempfile.TemporaryDirectory(dir=os.path.dirname(made)) as work:
        _initrd(parts, os.path.join(work, "initrd"), os.path.join(made, "initrd"))
        tree = os.path.join(work, "tree")
        shutil.copytree(os.path.join(parts, "tree"), tree, symlinks=True)
        shutil.copytree(os.path.join(parts, "modules"), os.path.join(tree, "modules"))
        shutil.copy(os.path.join(_HERE, "agent.sh"), os.path.join(tree, "agent"))
        os.chmod(os.path.join(tree, "agent"), 0o755)
        _applets(tree, machine)
        for name in _PLACES:
            os.makedirs(os.path.join(tree, name), exist_ok=True)
        with open(os.path.join(tree, "etc", "passwd"), "w", encoding="ascii") as opened:
            opened.write("root:x:0:0:root:/tmp:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n")
        image = os.path.join(made, "root")
        options = ("-q", "-F", "-t", "ext4", "-O", "^has_journal", "-d", tree)
        command = ["mke2fs", *options, image, f"{_IMAGE_MIB}M"]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


def _applets(tree: str, machine: Machine) -> None:
    """BusyBox under each of its names that nothing else in the tree has."""
    program = os.path.join(tree, "bin", "busybox")
    command = [program, "--list"] if machine.user is None else [machine.user, program, "--list"]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    taken = {
        name
        for place in ("bin", "sbin", "usr/bin", "usr/sbin")
        for name in os.listdir(os.path.join(tree, place))
    }
    for name in told.stdout.split():
        if name not in taken:
            os.symlink("busybox", os.path.join(tree, "bin", name))


def _initrd(parts: str, work: str, target: str) -> None:
    for name in ("bin", "dev", "proc", "sys", "router", "modules"):
        os.makedirs(os.path.join(work, name))
    shutil.copy(os.path.join(parts, "tree", "bin", "busybox"), os.path.join(work, "bin"))
    modules = os.path.join(parts, "modules")
    with open(os.path.join(modules, "base"), encoding="ascii") as opened:
        base = opened.read().split()
    for name in ("base", *(f"{name}.ko" for name in base)):
        shutil.copy(os.path.join(modules, name), os.path.join(work, "modules"))
    shutil.copy(os.path.join(_HERE, "init.sh"), os.path.join(work, "init"))
    os.chmod(os.path.join(work, "init"), 0o755)
    with open(target, "wb") as opened:
        opened.write(zlib.compress(_archive(work), 6, wbits=31))


def _archive(folder: str) -> bytes:
    """The folder as a newc archive, the format of an initial memory disk."""
    entries = []
    for above, folders, files in os.walk(folder):
        entries += [os.path.relpath(os.path.join(above, name), folder) for name in folders + files]
    pieces = []
    for number, name in enumerate([*sorted(entries), "TRAILER!!!"], 1):
        path = os.path.join(folder, name)
        content, mode, links = b"", 0, 1
        if number <= len(entries):
            mode = os.stat(path).st_mode
            links = 2 if os.path.isdir(path) else 1
        if os.path.isfile(path):
            with open(path, "rb") as opened:
                content = opened.read()
        label = name.encode() + b"\0"
        fields = (number, mode, 0, 0, links, 0, len(content), 0, 0, 0, 0, len(label), 0)
        head = b"070701" + "".join(f"{field:08x}" for field in fields).encode() + label
        pieces += [head, bytes(-len(head) % 4), content, bytes(-len(content) % 4)]
    return b"".join(pieces)
