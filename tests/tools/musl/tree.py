"""A router's userland to enter: musl, BusyBox's shell and tools, python3-light, python3-sqlite3.

Kept under `.cache/musl`, a folder a recipe; a folder there is complete or absent. As on OpenWrt the
standard library is byte code alone, and what stands in its other packages is not there. Beside the
root, under /opt, lies what a command may be given in addition: `crypto`, `older` (cryptography as
two releases have it), `rest` (the other modules of the standard library) and `site` (pytest); and
`bare`, which is less.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tests.tools import debian, pythons
from tests.tools.musl import packages, parts
from tests.tools.pythons import Python

CACHE = os.path.join(".cache", "musl")
MACHINE = "musl"
_PYTHON = f"python3.{parts.MINOR}"
_LIB = f"/usr/lib/{_PYTHON}"
_SITE = "/usr/lib/python3/dist-packages"  # Debian's name for OpenWrt's site-packages
CRYPTO, OLDER = (f"/opt/crypto:{_SITE}", f"/opt/older:{_SITE}")  # what is bound, and where
NO_SQLITE = f"/opt/bare:{_LIB}/lib-dynload"  # before python3-sqlite3 is installed
ZONES = "/opt/share:/usr/share"  # what OpenWrt's packages of zones bring
_FOLDERS = (
    *("bin", "dev", "etc", "lib", "mnt", "opt", "overlay", "proc", "rom", "root", "sbin", "sys"),
    *("tmp", "usr/bin", "usr/lib/python3/dist-packages", "usr/sbin", "usr/share"),
)
_RELEASE = """\
DISTRIB_ID='OpenWrt'
DISTRIB_RELEASE='23.05.5'
DISTRIB_TARGET='x86/64'
DISTRIB_ARCH='x86_64'
"""
_USERS = """\
root:x:0:0:root:/root:/bin/ash
daemon:*:1:1:daemon:/var:/bin/false
nobody:*:65534:65534:nobody:/var:/bin/false
"""
_GROUPS = "root:x:0:\ndaemon:x:1:\nnogroup:x:65534:\n"
# In OpenWrt's packages of the same names, and what none of its packages has.
_OTHERS = (
    *("asyncio", "cgi.py", "cgitb.py", "ctypes", "curses", "dbm", "decimal.py", "distutils"),
    *("doctest.py", "email", "ensurepip", "lib2to3", "logging", "lzma.py", "multiprocessing"),
    *("pydoc.py", "pydoc_data", "unittest", "urllib", "uuid.py", "venv", "xml", "xmlrpc"),
)
_OTHER_EXTENSIONS = (
    *("_codecs_cn", "_codecs_hk", "_codecs_iso2022", "_codecs_jp", "_codecs_kr", "_codecs_tw"),
    *("_ctypes", "_curses", "_curses_panel", "_dbm", "_decimal", "_elementtree", "_gdbm"),
    *("_hashlib", "_lzma", "_multiprocessing", "_ssl", "_uuid", "pyexpat", "readline"),
    "unicodedata",
)
_NOWHERE = (
    *("config-*", "idlelib", "test", "tkinter", "turtle.py", "turtledemo", "webbrowser.py"),
    *("_osx_support.py", "site-packages/*", "lib-dynload/_test*", "lib-dynload/xx*"),
    *("lib-dynload/_crypt_test*", "lib-dynload/_ctypes_test*", "lib-dynload/nis.*"),
)
_PLATFORMS = ("musllinux_1_2_x86_64", "any")


@dataclass(frozen=True)
class Tree:
    """The root folder, and the tree of the repository that keeps its path in it."""

    folder: str
    root: str

    def entering(self, *binds: str) -> tuple[str, ...]:
        """The words before a command that make this its root, with folders of /opt in place."""
        return pythons.entering(self.folder, self.root, binds=binds)

    @property
    def python(self) -> Python:
        """The interpreter for pytest, which alone is shown the rest of the standard library.

        The programs that tests start with `-I` see what a router has, with cryptography and zones.
        """
        command = (*self.entering(CRYPTO, ZONES), f"/usr/bin/{_PYTHON}")
        origin = "musl and BusyBox as on OpenWrt"
        path = ("/opt/rest", "/opt/site")
        return Python(parts.MINOR, command, origin, machine=MACHINE, path=path)


def made(root: str) -> Tree:
    """The tree, made when it is not there; UnobtainableError says why it cannot be."""
    if os.geteuid() != 0 or os.uname().machine != "x86_64":
        raise debian.UnobtainableError("the musl tree is entered by root on x86-64 alone")
    cache = os.path.join(root, CACHE)
    compiled = _kept(cache, "parts", [*_texts("parts.py", "cc.py", "busybox.config")], _compiled)
    pins = pythons.pins(root, without=(*pythons.CHECKERS, "cryptography"))
    recipe = [compiled, *_texts("tree.py"), *pins]
    return Tree(_kept(cache, "tree", recipe, lambda files: _fill(files, compiled, pins)), root)


def _texts(*names: str) -> list[str]:
    here = os.path.dirname(os.path.abspath(__file__))
    found = [packages.RECIPE]
    for name in names:
        with open(os.path.join(here, name), encoding="utf-8") as opened:
            found.append(opened.read())
    return found


def _kept(cache: str, name: str, recipe: Iterable[str], make: Callable[[str], None]) -> str:
    """The folder of a recipe, made when it is not there; others of its name go."""
    number = zlib.crc32("\0".join(recipe).encode())
    target = os.path.join(cache, f"{name}-{number:08x}")
    if not os.path.isdir(target):
        print(f"== {os.path.basename(target)}", flush=True)
        with debian.folder(target) as made:
            make(made)
        for other in glob.glob(os.path.join(cache, f"{name}-????????")):
            if other != target:
                shutil.rmtree(other, ignore_errors=True)
    return target


def _compiled(made: str) -> None:
    """The parts, and the loader; neither the sources nor the compiler stay."""
    with tempfile.TemporaryDirectory(dir=os.path.dirname(made)) as sources:
        packages.fetch(sources)
        parts.build(sources, made)
        loader = os.path.join(sources, "musl", "usr", "lib", "ld-musl-x86_64.so.1")
        shutil.copy(loader, os.path.join(made, "lib"))


def _fill(made: str, compiled: str, pins: Sequence[str]) -> None:
    for name in _FOLDERS:
        os.makedirs(os.path.join(made, name))
    os.chmod(os.path.join(made, "tmp"), 0o1777)
    os.symlink("tmp", os.path.join(made, "var"))
    texts = {"openwrt_release": _RELEASE, "passwd": _USERS, "group": _GROUPS}
    for name, text in texts.items():
        with open(os.path.join(made, "etc", name), "w", encoding="ascii") as opened:
            opened.write(text)
    for name in os.listdir(os.path.join(compiled, "lib")):
        path = os.path.join(compiled, "lib", name)
        if not os.path.islink(path):
            place = "lib" if name.startswith("ld-") else os.path.join("usr", "lib")
            shutil.copy(path, os.path.join(made, place))
    _busybox(compiled, made)
    _python(os.path.join(compiled, "python", "usr"), made)
    for name, wheels in (("crypto", packages.WHEELS), ("older", packages.OLDER_WHEELS)):
        folder = os.path.join(made, "opt", name)
        packages.wheels(folder, parts.MINOR, wheels)
        for unused in glob.glob(os.path.join(folder, "cffi*")):
            shutil.rmtree(unused)  # at run time only its extension is asked for
        _only_code(made, folder)
    site = os.path.join(made, "opt", "site")
    pythons.install(site, parts.MINOR, pins, platforms=_PLATFORMS)
    os.mkdir(os.path.join(made, "opt", "share"))
    os.symlink("/opt/site/tzdata/zoneinfo", os.path.join(made, "opt", "share", "zoneinfo"))


def _busybox(compiled: str, made: str) -> None:
    """Under each name of its own, where OpenWrt has it; there is no list of them."""
    shutil.copy(os.path.join(compiled, "busybox"), os.path.join(made, "bin"))
    with open(os.path.join(compiled, "busybox.links"), encoding="ascii") as opened:
        links = opened.read().split()
    for link in links:
        os.symlink("/bin/busybox", os.path.join(made, link.lstrip("/")))


def _python(installed: str, made: str) -> None:
    """The interpreter, its own package and SQLite's; the other modules for pytest alone."""
    shutil.copy(os.path.join(installed, "bin", _PYTHON), os.path.join(made, "usr", "bin"))
    for name in ("python3", "python"):
        os.symlink(_PYTHON, os.path.join(made, "usr", "bin", name))
    (library,) = glob.glob(os.path.join(installed, "lib", f"lib{_PYTHON}.so.*"))
    shutil.copy(library, os.path.join(made, "usr", "lib"))
    light, rest = f"{made}{_LIB}", os.path.join(made, "opt", "rest")
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(os.path.join(installed, "lib", _PYTHON), light, ignore=unwanted)
    for pattern in _NOWHERE:
        for path in glob.glob(os.path.join(light, pattern)):
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
    os.mkdir(rest)
    for name in _OTHERS:
        shutil.move(os.path.join(light, name), rest)
    for name in _OTHER_EXTENSIONS:
        for path in glob.glob(os.path.join(light, "lib-dynload", f"{name}.*")):
            shutil.move(path, rest)
    _only_code(made, light)
    bare = os.path.join(made, "opt", "bare")
    without = shutil.ignore_patterns("_sqlite3.*")
    shutil.copytree(os.path.join(light, "lib-dynload"), bare, ignore=without)


def _only_code(made: str, folder: str) -> None:
    """Byte code where the source stood, as OpenWrt ships it."""
    host = pythons.on_this_machine(parts.MINOR) or "python3"
    options = ("-I", "-m", "compileall", "-q", "-b", "--invalidation-mode", "unchecked-hash")
    subprocess.run([host, *options, "-s", made, "-p", "/", folder], stdout=subprocess.DEVNULL)
    for path in glob.glob(os.path.join(folder, "**", "*.py"), recursive=True):
        os.unlink(path)
