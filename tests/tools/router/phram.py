"""The driver that makes flash of a guest's memory, built for its kernel from Debian's packages.

Debian's arm64 kernel has no driver that could stand for a flash chip, and the x86-64 one's offers
UBI no write buffer. So `phram` is taken from the kernel's source, given a page size and two
counters, and built with the headers of exactly the kernel that the image boots. What is kept under
`.cache/routers` is the module of a few KiB, a folder a recipe, complete or absent.

`wsize` is the page of the chips added after it was set: 1 is NOR, 2048 a NAND-like page. `written`
counts bytes and `erased` counts blocks, over all chips.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import zlib

from tests.tools import debian
from tests.tools.router.images import CACHE, Image
from tests.tools.router.machines import SUITE, Machine

NAME = "phram.ko"
_SOURCE = os.path.join("drivers", "mtd", "devices", "phram.c")
_COMPILERS = {"arm64": "gcc-aarch64-linux-gnu", "amd64": "gcc-x86-64-linux-gnu"}
_TARGETS = {"arm64": ("arm64", "aarch64-linux-gnu-"), "amd64": ("x86_64", "x86_64-linux-gnu-")}
_TOOLS = (
    *("bash", "coreutils", "findutils", "gawk", "grep", "kmod", "make", "perl-base", "sed"),
    *("tar", "xz-utils"),
)
_PARAMETERS = """
static unsigned int wsize = 1;
module_param(wsize, uint, 0600);
static unsigned long written;
module_param(written, ulong, 0400);
static unsigned long erased;
module_param(erased, ulong, 0400);
"""
_CHANGES = (  # (a line, what takes its place); each is there once
    ("static LIST_HEAD(phram_list);", f"{_PARAMETERS}\nstatic LIST_HEAD(phram_list);"),
    (
        "new->mtd.writesize = 1;",
        "new->mtd.writesize = wsize; new->mtd.writebufsize = max(64u, wsize);",
    ),
    ("memset(start + instr->addr, 0xff, instr->len);", "\\g<0> erased++;"),
    ("memcpy(start + to, buf, len);", "\\g<0> written += len;"),
)


def module(root: str, image: Image) -> str:
    """The file; UnobtainableError says why it cannot be had."""
    release = _release(image)
    machine = image.machine
    recipe = " ".join([release, *_TOOLS, *(word for pair in _CHANGES for word in pair)])
    name = f"{machine.name}-flash-{zlib.crc32(recipe.encode()):08x}"
    folder = os.path.join(root, CACHE, name)
    if not os.path.isdir(folder):
        with debian.folder(folder) as made, tempfile.TemporaryDirectory() as work:
            shutil.copy(_built(work, release, machine), os.path.join(made, NAME))
    return os.path.join(folder, NAME)


def _release(image: Image) -> str:
    """The kernel's own, so that the module can never be another one's."""
    with open(image.kernel, "rb") as opened:
        found = re.search(rb"Linux version (\S+)", opened.read())
    if found is None:
        raise debian.UnobtainableError("the guest's kernel does not say its release")
    return found[1].decode("ascii")


def _built(work: str, release: str, machine: Machine) -> str:
    """Build in a tree of tools of its own; the module's path there."""
    tools = os.path.join(work, "tools")
    os.mkdir(tools)
    series = ".".join(release.split(".")[:2])
    native = _native() == machine.architecture
    compiler = "gcc" if native else _COMPILERS[machine.architecture]
    sources = (f"linux-kbuild-{series}", f"linux-source-{series}")
    debian.tree(tools, SUITE, (*_TOOLS, compiler, *sources))
    _give_headers(work, tools, release, machine)
    for link, target in (("bin/sh", "bash"), ("usr/bin/awk", "gawk")):
        path = os.path.join(tools, link)
        if not os.path.lexists(path):
            os.symlink(target, path)
    place = os.path.join(tools, "build")
    os.mkdir(place)
    _give_source(tools, place, series)
    architecture, prefix = _TARGETS[machine.architecture]
    prefix = "" if native else prefix
    headers = f"/usr/src/linux-headers-{release}"
    words = (f"ARCH={architecture}", f"CROSS_COMPILE={prefix}", "M=/build", "modules")
    _inside(tools, "make", "-s", "-C", headers, *words)
    _inside(tools, f"{prefix}strip", "--strip-debug", f"/build/{NAME}")
    return os.path.join(place, NAME)


def _give_headers(work: str, tools: str, release: str, machine: Machine) -> None:
    """The headers of that kernel; what is built with them runs on this machine."""
    away = os.path.join(work, "headers")
    os.mkdir(away)
    debian.tree(away, SUITE, [f"linux-headers-{release}"], architecture=machine.architecture)
    sources = os.path.join(away, "usr", "src")
    for name in os.listdir(sources):
        if name.startswith("linux-headers-"):
            target = os.path.join(tools, "usr", "src", name)
            shutil.copytree(os.path.join(sources, name), target, symlinks=True, dirs_exist_ok=True)


def _give_source(tools: str, place: str, series: str) -> None:
    archive, member = f"linux-source-{series}", f"linux-source-{series}/{_SOURCE}"
    _inside(tools, "tar", "-xf", f"/usr/src/{archive}.tar.xz", "-C", "/build", member)
    with open(os.path.join(place, member), encoding="utf-8") as opened:
        text = opened.read()
    for line, instead in _CHANGES:
        text, count = re.subn(re.escape(line), instead, text)
        if count != 1:
            raise debian.UnobtainableError(f"the driver's source has changed: {line}")
    for name, content in (("phram.c", text), ("Makefile", "obj-m := phram.o\n")):
        with open(os.path.join(place, name), "w", encoding="utf-8") as written:
            written.write(content)


def _native() -> str:
    asked = ["dpkg", "--print-architecture"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def _inside(tools: str, *command: str) -> None:
    done = subprocess.run(["chroot", tools, *command], capture_output=True, text=True)
    if done.returncode != 0:
        told = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise debian.UnobtainableError(f"{command[0]} failed: {' '.join(told[-2:])}")
