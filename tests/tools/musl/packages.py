"""What the musl tree is made from: Debian's sources and its musl, a compiler and wheels from PyPI.

apt gets lists and folders of its own, so that this machine's stay as they are, and takes them from
where this machine takes Debian's, under its own settings; what it downloads it verifies against
signed lists. A pinned version that is no longer there gives way to the suite's own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from tests.tools import debian

NEEDED = (
    "dpkg-dev",
    "make",
    "tcl",
)  # unpack sources, build them, make one file of SQLite
_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


@dataclass(frozen=True)
class Source:
    """A source package, from a stable release: those stay."""

    name: str
    suite: str
    version: str


SOURCES = (
    Source("python3.11", "bookworm", "3.11.2-6+deb12u8"),
    Source("sqlite3", "trixie", "3.46.1-7+deb13u2"),
    Source("zlib", "trixie", "1:1.3.dfsg+really1.3.1-1"),
    Source("bzip2", "trixie", "1.0.8-6"),
    Source("busybox", "trixie", "1:1.37.0-6"),
)
LOADER = ("musl", "trixie", "1.2.5-3.1~deb13u1")  # the musl of OpenWrt 24.10 and 25.12
COMPILER = "ziglang==0.17.1"
WHEELS = ("cryptography==46.0.6", "cffi==2.0.0")  # OpenWrt 25.12's; it needs python3-light alone
OLDER_WHEELS = ("cryptography==41.0.7", "cffi==1.17.1")  # 23.05's and 24.10's; it needs more
RECIPE = repr((SOURCES, LOADER, COMPILER, WHEELS, OLDER_WHEELS))


def fetch(folder: str) -> None:
    """Fill `folder`: each source unpacked and patched under its name, and the files of `musl`."""
    missing = debian.missing(NEEDED)
    if missing:
        debian.install(missing)
    apt = _Apt(os.path.join(folder, "apt"))
    apt.run("update")
    for source in SOURCES:
        work = os.path.join(folder, f"{source.name}.work")
        os.mkdir(work)
        apt.either("source", source.name, source.suite, source.version, work)
        (tree,) = (entry.path for entry in os.scandir(work) if entry.is_dir())
        os.rename(tree, os.path.join(folder, source.name))
        shutil.rmtree(work)
    work = os.path.join(folder, "musl.work")
    os.mkdir(work)
    apt.either("download", *LOADER, work)
    (file,) = os.listdir(work)
    done = ["dpkg-deb", "-x", os.path.join(work, file), os.path.join(folder, "musl")]
    subprocess.run(done, check=True)


class _Apt:
    """apt with sources, lists and downloads of its own."""

    def __init__(self, home: str) -> None:
        for name in ("lists/partial", "cache/archives/partial"):
            os.makedirs(os.path.join(home, name))
        signed = f"[signed-by={_KEYS}] " if os.path.exists(_KEYS) else ""
        kinds = {("deb", LOADER[1]), *(("deb-src", source.suite) for source in SOURCES)}
        place = _place()
        with open(os.path.join(home, "sources.list"), "w", encoding="utf-8") as opened:
            opened.writelines(f"{kind} {signed}{place} {suite} main\n" for kind, suite in kinds)
        options = {
            "Dir::Etc::SourceList": os.path.join(home, "sources.list"),
            "Dir::Etc::SourceParts": "-",
            "Dir::State::Lists": os.path.join(home, "lists"),
            "Dir::Cache": os.path.join(home, "cache"),
            "APT::Sandbox::User": "root",
            "Acquire::Languages": "none",
        }
        self._options = [f"-o{name}={value}" for name, value in options.items()]

    def run(self, command: str, *arguments: str, cwd: str | None = None) -> None:
        """One command; UnobtainableError with apt's first error."""
        debian.run("apt-get", "-q", *self._options, command, *arguments, cwd=cwd)

    def either(self, command: str, name: str, suite: str, version: str, work: str) -> None:
        """The pinned version, or the one that the suite has by now."""
        try:
            self.run(command, f"{name}={version}", cwd=work)
        except debian.UnobtainableError:
            shutil.rmtree(work)
            os.mkdir(work)
            self.run(command, f"{name}/{suite}", cwd=work)


def _place() -> str:
    """Where this machine's apt finds Debian."""
    if shutil.which("apt-get") is None:
        raise debian.UnobtainableError("there is no apt-get on this machine")
    told = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(ORIGIN) $(COMPONENT) $(LABEL) $(REPO_URI)"],
        capture_output=True,
        text=True,
    ).stdout
    for line in told.splitlines():
        origin, _, rest = line.partition(" ")
        component, _, rest = rest.partition(" ")
        label, _, place = rest.partition(" ")
        if (origin, component, label) == ("Debian", "main", "Debian"):
            return place
    raise debian.UnobtainableError("apt on this machine knows no Debian")


def install(folder: str, pins: Sequence[str]) -> None:
    """Put packages of PyPI with nothing that they ask for into a folder of their own."""
    _pip("install", "--target", folder, *pins)


def wheels(folder: str, minor: int, pins: Sequence[str]) -> None:
    """The same with wheels for a Python on musl."""
    platforms = [f"--platform=musllinux_1_{minor}_x86_64" for minor in (2, 1)]
    version = (f"--python-version=3.{minor}", "--implementation=cp", f"--abi=cp3{minor}")
    only = (*platforms, *version, "--abi=abi3", "--only-binary=:all:")
    _pip("install", "--target", folder, *only, *pins)


def _pip(command: str, *arguments: str) -> None:
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    told = subprocess.run(
        [*pip, command, "-qq", "--no-deps", "--no-compile", *arguments],
        capture_output=True,
        text=True,
    )
    if told.returncode != 0:
        last = told.stderr.strip().rpartition("\n")[2]
        raise debian.UnobtainableError(f"pip cannot get {arguments[-1]}: {last}")
