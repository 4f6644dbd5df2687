"""What the tests take from Debian: tools to install, and packages whose files are only read.

A package that is only read is downloaded and unpacked under ``.cache/debian``, never installed: its
programs do not start and its crontabs do not fire. A folder there is complete or absent. Whole
small trees of other releases are unpacked too, under this machine's own settings of apt.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence

TOOLS = (
    "bash",  # three of the shells that the wrapper is tested with
    "busybox",
    "chromium",  # shows the router's web page
    "dash",
    "e2fsprogs",  # small file systems that get full
    "fonts-wqy-microhei",  # its Chinese words
    "make",  # reads the package file of a feed
    "mount",
    "tzdata",
    "util-linux",  # unshare
)
EMULATORS = (  # whole machines, single programs of other machines, and what makes their disks
    "dosfstools",
    "f2fs-tools",
    "mmdebstrap",
    "qemu-system-arm",
    "qemu-system-x86",
    "qemu-user-static",
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
_RELEASE_ALONE = "sed -i '/-updates\\|-security/d' \"$1\"/etc/apt/sources.list"
READ = (*CRONTABS, "busybox-static")  # with its crond the reading of BusyBox crontabs is compared


class UnobtainableError(Exception):
    """A package cannot be had on this machine; the message is the reason for a skip."""


def missing(packages: Sequence[str] = (*TOOLS, *EMULATORS)) -> list[str]:
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
    with folder(target) as files, tempfile.TemporaryDirectory() as work:
        _apt("download", name, cwd=work)
        for file in os.listdir(work):
            subprocess.run(["dpkg-deb", "-x", os.path.join(work, file), files], check=True)
    return target


@contextlib.contextmanager
def folder(target: str) -> Iterator[str]:
    """A folder to fill; it becomes `target` when the block ends well, else it goes."""
    above = os.path.dirname(target)
    os.makedirs(above, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=above) as work:
        files = os.path.join(work, "files")
        os.mkdir(files)
        yield files
        os.rename(files, target)


def tree(
    files: str,
    suite: str,
    packages: Sequence[str],
    *,
    architecture: str | None = None,
    updates: bool = True,
) -> None:
    """Unpack packages of another release and all that they depend on, configuring nothing.

    The release comes from where mmdebstrap looks for it, under this machine's own settings of apt.
    `architecture` is another machine's, as Debian calls it. Without `updates` it is the release
    alone: a mirror may have lists of the updates that do not belong together yet.
    """
    if os.geteuid() != 0:
        raise UnobtainableError(f"unpacking a tree of Debian {suite} needs root")
    if shutil.which("mmdebstrap") is None:
        install(["mmdebstrap"])
    settings = subprocess.run(["apt-config", "dump", "Acquire"], stdout=subprocess.PIPE, check=True)
    with tempfile.NamedTemporaryFile() as written:
        written.write(settings.stdout)
        written.flush()
        run(
            "mmdebstrap",
            "--variant=extract",
            f"--aptopt={written.name}",
            f"--include={','.join(packages)}",
            *([] if architecture is None else [f"--architectures={architecture}"]),
            *([] if updates else [f"--setup-hook={_RELEASE_ALONE}"]),
            suite,
            files,
        )
    # Nothing is installed there later, and this machine's settings do not stay.
    shutil.rmtree(os.path.join(files, "etc", "apt"), ignore_errors=True)


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
    run("apt-get", "-q", "-o", "APT::Sandbox::User=root", command, *arguments, cwd=cwd)


def run(program: str, *arguments: str, cwd: str | None = None) -> None:
    """Run it with no questions asked; UnobtainableError with its first error."""
    done = subprocess.run(
        [program, *arguments],
        cwd=cwd,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        told = (done.stderr.strip() or done.stdout.strip()).splitlines()
        reason = next((line for line in told if line.startswith("E: ")), "".join(told[-1:]))
        raise UnobtainableError(f"{program} {arguments[-1]} failed: {reason}")
