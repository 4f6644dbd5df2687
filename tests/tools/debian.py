"""What the tests take from Debian: tools to install, and packages whose files are only read.

A package that is only read is downloaded and unpacked under ``.cache/debian``, never installed: its
programs do not start and its crontabs do not fire. A folder there is complete or absent.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence

TOOLS = (
    "bash",  # three of the shells that the wrapper is tested with
    "busybox",
    "dash",
    "e2fsprogs",  # small file systems that get full
    "mount",
    "tzdata",
    "util-linux",  # unshare
)
CRONTABS = (  # what Debian's packages put into /etc/crontab and /etc/cron.d
    "anacron",
    "awstats",
    "certbot",
    "cron-daemon-common",
    "e2fsprogs",
    "mdadm",
    "php-common",
    "sysstat",
)


class UnobtainableError(Exception):
    """A package cannot be had on this machine; the message is the reason for a skip."""


def missing(packages: Sequence[str] = TOOLS) -> list[str]:
    """The packages that are not installed."""
    return [name for name in packages if not _installed(name)]


def install(packages: Sequence[str]) -> None:
    """Install through apt; UnobtainableError without root or apt, or when apt refuses."""
    if os.geteuid() != 0:
        raise UnobtainableError(f"installing {' '.join(packages)} needs root")
    refresh()
    _apt("install", "--yes", "--no-install-recommends", *packages)


def refresh() -> None:
    """Bring apt's lists up to date."""
    _apt("update")


def unpacked(name: str, cache: str) -> str:
    """The folder with the files of a package, downloaded once into `cache`."""
    target = os.path.join(cache, name)
    if os.path.isdir(target):
        return target
    os.makedirs(cache, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as work:
        _apt("download", name, cwd=work)
        files = os.path.join(work, "files")
        for file in os.listdir(work):
            subprocess.run(["dpkg-deb", "-x", os.path.join(work, file), files], check=True)
        os.rename(files, target)
    return target


def _installed(name: str) -> bool:
    if shutil.which("dpkg-query") is None:
        return False
    asked = subprocess.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Status}", name], capture_output=True, text=True
    )
    return asked.stdout == "installed"


def _apt(command: str, *arguments: str, cwd: str | None = None) -> None:
    if shutil.which("apt-get") is None:
        raise UnobtainableError("there is no apt-get on this machine")
    done = subprocess.run(
        ["apt-get", "-q", "-o", "APT::Sandbox::User=root", command, *arguments],
        cwd=cwd,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
        raise UnobtainableError(f"apt-get {command} failed: {last}")
