"""Which other Pythons the suite runs under, and how each is started.

One that stands on this machine gets a virtual environment of its own. Else Debian's is unpacked
with its own libc, shells and tools, and entered as the root of a private mount namespace, in which
the repository keeps its path. All of it lies under `.cache/pythons`; a tree there is complete or
absent. One tree is another machine's: an arm64 one with BusyBox for its shell and tools, whose
programs qemu runs one by one for as long as the namespace is there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from tests.tools import debian

PINS = ".requirements-dev.txt"
CHECKERS = ("mypy", "ruff")  # they check the tree once, not under every Python
MINORS = (11, 12, 13, 14)
_SUITES = {11: "bookworm", 13: "trixie", 14: "forky"}  # no release of Debian carries 3.12
_PACKAGES = (
    "libpython3.{minor}-stdlib",
    "python3.{minor}-minimal",
    *(name for name in debian.TOOLS if name != "busybox"),
    "coreutils",
    "findutils",
    "grep",
    "libc-bin",  # the locale C.UTF-8
    "procps",
    "sed",
)
FOREIGN = "arm64"
_FOREIGN_MINOR = 11
_FOREIGN_PACKAGES = ("busybox", "libc-bin", "python3", "python3-cryptography", "tzdata")
_FOREIGN_PLATFORMS = ("manylinux2014_aarch64", "manylinux_2_28_aarch64", "any")
_EMULATOR = "qemu-aarch64"
# 1 the tree, 2 the repository, 3 the emulator of its programs or nothing, 4 words FROM:TO, its
# own folders shown in another place too, then the command. /tmp is the tree's own and so on a
# disk, as tests of what a state survives expect. The emulator is known to the kernel only while
# something has binfmt_misc mounted; of two that enter at once one is told that it is known.
_ENTER = """
tree=$1 root=$2 emulator=$3 binds=$4
shift 4
mount --bind "$tree" "$tree"
for folder in dev proc sys; do
  mount --rbind "/$folder" "$tree/$folder"
done
if [ -n "$emulator" ]; then
  known=$tree/proc/sys/fs/binfmt_misc
  mount -t binfmt_misc binfmt_misc "$known"
  [ -e "$known/$emulator" ] ||
    cat "/usr/lib/binfmt.d/$emulator.conf" 2>/dev/null >"$known/register" ||
    [ -e "$known/$emulator" ]
fi
for bind in $binds; do
  mount --bind "$tree${bind%%:*}" "$tree${bind#*:}"
done
mkdir -p "$tree$root"
mount --bind "$root" "$tree$root"
cd "$tree"
pivot_root . mnt
PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
export PATH HOME
umount -l /mnt
cd "$root"
exec "$@"
"""
# True for a Python that can run the tests; a Debian one may lack these modules.
_PROBE = "import sys, ensurepip, sqlite3, venv, zlib; print(*sys.version_info[:2], sys.executable)"


@dataclass(frozen=True)
class Python:
    """A Python with pytest: the words before `-m pytest`, and where it comes from."""

    minor: int
    command: tuple[str, ...]
    origin: str
    machine: str = ""  # the name of one that is not like this, with its own list of skips
    path: tuple[str, ...] = ()  # where it finds pytest, if nowhere of itself

    @property
    def foreign(self) -> bool:
        """Whether each of its programs is emulated."""
        return self.machine == FOREIGN

    @property
    def environment(self) -> dict[str, str]:
        """What the tests are told about it."""
        told = {"EDGE_MACHINE": self.machine, "PYTHONPATH": os.pathsep.join(self.path)}
        return {name: value for name, value in told.items() if value}


def pins(root: str, without: tuple[str, ...] = ()) -> list[str]:
    """What the tests are given, as pip takes it."""
    with open(os.path.join(root, PINS), encoding="utf-8") as opened:
        lines = [line.strip() for line in opened]
    found = [line for line in lines if line and not line.startswith("#")]
    return [pin for pin in found if pin.partition("==")[0] not in without]


def on_this_machine(minor: int) -> str | None:
    """The path of a Python 3.`minor`: first on PATH, then beside a stand-in on PATH.

    A version manager puts a small program of that name on PATH; it may refuse to start versions
    that are nevertheless there, in the folder `versions` beside its own.
    """
    name = f"python3.{minor}"
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        versions = os.path.join(os.path.dirname(folder), "versions")
        for path in (os.path.join(folder, name), *_installed(versions, name)):
            if os.access(path, os.X_OK) and (real := _real(path, minor)) is not None:
                return real
    return None


def _installed(versions: str, name: str) -> list[str]:
    try:
        found = os.listdir(versions)
    except OSError:
        return []
    return [os.path.join(versions, version, "bin", name) for version in sorted(found, reverse=True)]


def _real(path: str, minor: int) -> str | None:
    asked = subprocess.run([path, "-I", "-c", _PROBE], capture_output=True, text=True)
    major, _, rest = asked.stdout.strip().partition(" ")
    told, _, executable = rest.partition(" ")
    return executable if (asked.returncode, major, told) == (0, "3", str(minor)) else None


def unpacked(root: str, minor: int, cache: str, pins: list[str]) -> Python:
    """Debian's Python 3.`minor` with the pinned packages; UnobtainableError says why not."""
    suite = _SUITES.get(minor)
    if suite is None:
        raise debian.UnobtainableError("this machine has none, and no Debian release carries it")
    content = " ".join((suite, *_PACKAGES, *pins))
    tree = os.path.join(cache, f"tree-3.{minor}-{zlib.crc32(content.encode()):08x}")
    name = f"python3.{minor}"
    if not os.path.isdir(tree):
        with debian.folder(tree) as made:
            debian.tree(made, suite, [one.format(minor=minor) for one in _PACKAGES])
            _complete(made, minor, pins)
    return tried(Python(minor, (*entering(tree, root), name), f"Debian {suite}"))


def foreign(root: str, cache: str, pins: list[str]) -> Python:
    """Debian's arm64 Python with its own cryptography; UnobtainableError says why not.

    The pins are without what its own packages bring.
    """
    suite = _SUITES[_FOREIGN_MINOR]
    content = " ".join((suite, *_FOREIGN_PACKAGES, *pins))
    tree = os.path.join(cache, f"tree-{FOREIGN}-{zlib.crc32(content.encode()):08x}")
    if not os.path.isdir(tree):
        with debian.folder(tree) as made:
            debian.tree(made, suite, _FOREIGN_PACKAGES, architecture=FOREIGN)
            folders(made)
            applets(made, _EMULATOR)
            install(_site(made, _FOREIGN_MINOR), _FOREIGN_MINOR, pins, platforms=_FOREIGN_PLATFORMS)
    command = (*entering(tree, root, emulator=_EMULATOR), f"python3.{_FOREIGN_MINOR}")
    origin = f"Debian {suite} {FOREIGN}, each program emulated"
    return tried(Python(_FOREIGN_MINOR, command, origin, machine=FOREIGN))


def entering(
    tree: str, root: str, *, emulator: str = "", binds: Sequence[str] = ()
) -> tuple[str, ...]:
    """The words before a command that make `tree` its root, in which the repository stands too."""
    enter = ("unshare", "--mount", "--propagation", "private", "sh", "-euc", _ENTER, "sh")
    return (*enter, tree, root, emulator, " ".join(binds))


def tried(python: Python) -> Python:
    """The same Python, once it has started; else UnobtainableError with what it said."""
    command = [*python.command, "-c", "import pytest"]
    environment = {**os.environ, **python.environment}
    tried = subprocess.run(command, env=environment, capture_output=True, text=True)
    if tried.returncode != 0:
        last = tried.stderr.strip().rpartition("\n")[2]
        raise debian.UnobtainableError(f"{python.origin}: Python does not start here: {last}")
    return python


def applets(tree: str, emulator: str) -> None:
    """BusyBox under each of its names that nothing else in the tree has, the shell among them."""
    program = os.path.join(tree, "bin", "busybox")
    asked = [f"{emulator}-static", "-L", tree, program, "--list"]
    told = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    places = [os.path.join(tree, name) for name in ("bin", "sbin", "usr/bin", "usr/sbin")]
    taken = {name for place in places for name in os.listdir(place)}
    homes = {os.path.realpath(os.path.join(tree, name)) for name in ("bin", "usr/bin")}
    for name in frozenset(told) - taken:
        for folder in homes:
            os.symlink("/bin/busybox", os.path.join(folder, name))


def _complete(tree: str, minor: int, pins: list[str]) -> None:
    """What no package brings when nothing is configured: users, folders, links, pytest."""
    folders(tree)
    # This machine's own: in BusyBox 1.38 (forky) no `read` returns after a signal was caught.
    shutil.copy(shutil.which("busybox") or "busybox", os.path.join(tree, "usr", "bin", "busybox"))
    install(_site(tree, minor), minor, pins)


def folders(tree: str) -> None:
    """What no package brings when nothing is configured: places to mount and write, users."""
    for name in ("dev", "mnt", "proc", "root", "sys", "tmp"):
        os.makedirs(os.path.join(tree, name), exist_ok=True)
    os.chmod(os.path.join(tree, "tmp"), 0o1777)
    for name in ("bin", "lib", "lib64", "sbin"):
        if not os.path.lexists(os.path.join(tree, name)):
            os.symlink(f"usr/{name}", os.path.join(tree, name))
    for name in ("passwd", "group"):
        shutil.copy(f"/etc/{name}", os.path.join(tree, "etc", name))


def _site(tree: str, minor: int) -> str:
    return os.path.join(tree, "usr", "local", "lib", f"python3.{minor}", "dist-packages")


def install(site: str, minor: int, pins: Sequence[str], platforms: tuple[str, ...] = ()) -> None:
    """Put the pinned packages and what they need into a folder for another Python than this."""
    chosen = ["--target", site, "--python-version", f"3.{minor}", "--only-binary=:all:"]
    chosen += [f"--platform={name}" for name in platforms]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-qq"]
    done = subprocess.run([*command, *chosen, *pins], capture_output=True, text=True)
    if done.returncode != 0:
        last = done.stderr.strip().rpartition("\n")[2]
        raise debian.UnobtainableError(f"pip has nothing for Python 3.{minor}: {last}")
