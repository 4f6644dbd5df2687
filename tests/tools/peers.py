"""Installs what the bench compares the program with: yacron and APScheduler from PyPI, at one pin.

A folder below `.cache/peers` is complete or absent, one for this Python and one for each router's.
Nothing of it is imported by the program, its build or its tests.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zlib

from tests.tools import debian
from tests.tools.router.machines import MINOR, Machine

CACHE = os.path.join(".cache", "peers")
PINS = ".requirements-peers.txt"
_PLATFORMS = {"arm64": "manylinux2014_aarch64", "amd64": "manylinux2014_x86_64"}
_PACKAGED = ("yacron", "apscheduler")
_INSTALL_S = 600.0


def found(root: str, machine: Machine | None = None) -> tuple[dict[str, str], dict[str, str]]:
    """(what each peer needs, why one cannot be had), here or for an emulated router.

    A router has BusyBox already, at the place named here.
    """
    tools: dict[str, str] = {}
    without: dict[str, str] = {}
    try:
        packages = _packages(root, machine)
        tools |= dict.fromkeys(_PACKAGED, packages)
    except debian.UnobtainableError as error:
        without |= dict.fromkeys(_PACKAGED, str(error))
    try:
        tools["crond"] = "/bin/busybox" if machine is not None else _busybox(root)
    except debian.UnobtainableError as error:
        without["crond"] = str(error)
    return tools, without


def _busybox(root: str) -> str:
    """One with crond, which Debian's ordinary one lacks."""
    if os.geteuid() != 0:
        raise debian.UnobtainableError("crond needs root")
    folder = debian.unpacked("busybox-static", os.path.join(root, ".cache", "debian"))
    return os.path.join(folder, "bin", "busybox")


def _packages(root: str, machine: Machine | None) -> str:
    """The folder with the packages; UnobtainableError without pip, or when it refuses."""
    with open(os.path.join(root, PINS), encoding="utf-8") as opened:
        text = opened.read()
    name = f"3.{sys.version_info.minor}" if machine is None else machine.architecture
    target = os.path.join(root, CACHE, f"{name}-{zlib.crc32(text.encode()):08x}")
    if os.path.isdir(target):
        return target
    if importlib.util.find_spec("pip") is None:
        raise debian.UnobtainableError("this Python has no pip")
    options = ["--quiet", "--no-input", "--no-deps", "--disable-pip-version-check"]
    if machine is not None:
        options += ["--platform", _PLATFORMS[machine.architecture]]
        options += ["--python-version", f"3.{MINOR}", "--implementation", "cp"]
    with debian.folder(target) as files:
        inside = os.path.join(files, "packages")
        command = [sys.executable, "-m", "pip", "install", *options, "--target", inside]
        done = subprocess.run(
            [*command, "-r", os.path.join(root, PINS)],
            capture_output=True,
            text=True,
            timeout=_INSTALL_S,
        )
        if done.returncode != 0:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            raise debian.UnobtainableError(f"pip failed: {' '.join(said[-1:])}")
        for entry in os.listdir(inside):
            os.rename(os.path.join(inside, entry), os.path.join(files, entry))
        shutil.rmtree(inside)
    return target
