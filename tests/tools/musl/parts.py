"""The compiled parts of the musl tree: three libraries, CPython and BusyBox, from Debian's sources.

Cross-compiled by a compiler that brings musl itself, so nothing of this machine's libc gets in.
There is no OpenSSL, libffi, ncurses, readline or xz to be found, hence no `_ssl`, `_hashlib`,
`ctypes`, `_curses`, `readline` and `_lzma`, as in OpenWrt's python3-light.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterable, Mapping

from tests.tools import debian, pythons
from tests.tools.musl import packages

MINOR = 11  # the oldest that routers have, and the one that the zipapp's byte code is made for
_HERE = os.path.dirname(os.path.abspath(__file__))
CONFIG = os.path.join(_HERE, "busybox.config")
_TARGET = "x86_64-linux-musl"
_SHARED = ("-fPIC", "-shared", "-s")
_ZLIB = ("-D_LARGEFILE64_SOURCE=1", "-DHAVE_HIDDEN", "-DHAVE_UNISTD_H", "-DHAVE_STDARG_H")
_BZIP2 = ("blocksort", "huffman", "crctable", "randtable", "compress", "decompress", "bzlib")
_SQLITE = (  # threadsafe, what OpenWrt's has that a program can see
    *("-DSQLITE_THREADSAFE=1", "-DSQLITE_ENABLE_UNLOCK_NOTIFY", "-DSQLITE_ENABLE_DBSTAT_VTAB=1"),
    *("-DSQLITE_ENABLE_COLUMN_METADATA", "-DSQLITE_SECURE_DELETE", "-DSQLITE_OMIT_LOAD_EXTENSION"),
)
_CONFIGURE = (
    f"--host={_TARGET}",
    "--build=x86_64-build-linux-musl",  # 3.11 takes the names of its modules from it
    *("--prefix=/usr", "--enable-shared", "--without-ensurepip", "--disable-test-modules"),
    # As OpenWrt says what cannot be tried when cross-compiling.
    *("ac_cv_buggy_getaddrinfo=no", "ac_cv_file__dev_ptmx=yes", "ac_cv_file__dev_ptc=no"),
)
_NO_LIMITED_API = "PY3LIBRARY="  # its link goes to this machine's linker
_GNU_STACK = 0x6474E551
_SYMBOL = re.compile(r"^\s*config (\w+)\n(?:\s*depends.*\n)*\s*bool", re.MULTILINE)


def build(sources: str, made: str) -> None:
    """Fill `made` with `lib` (three libraries), `python` (an installation) and `busybox`."""
    host = pythons.on_this_machine(MINOR)
    if host is None:
        raise debian.UnobtainableError(f"building CPython needs a Python 3.{MINOR} here")
    with tempfile.TemporaryDirectory(dir=os.path.dirname(made)) as work:
        packages.install(os.path.join(work, "pip"), [packages.COMPILER])
        tools = _Tools(work, host)
        system = os.path.join(work, "system")
        _libraries(tools, sources, system)
        shutil.copytree(os.path.join(system, "lib"), os.path.join(made, "lib"), symlinks=True)
        _python(tools, sources, system, os.path.join(made, "python"))
        _busybox(tools, sources, made)


class _Tools:
    """The compiler of a build, whose caches go with it."""

    def __init__(self, work: str, host: str) -> None:
        self.work = work
        self.host = host
        self.zig = os.path.join(work, "pip", "ziglang", "zig")
        door = os.path.join(_HERE, "cc.py")
        self.compile = (host, "-IS", door, self.zig, _TARGET)
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": work,
            "LC_ALL": "C",
            "ZIG_GLOBAL_CACHE_DIR": os.path.join(work, "cache"),
            "ZIG_LOCAL_CACHE_DIR": os.path.join(work, "cache"),
        }
        self.variables = {
            "CC": " ".join(self.compile),
            "CXX": " ".join(self.compile),
            "AR": f"{self.zig} ar",
            "RANLIB": f"{self.zig} ranlib",
            "READELF": shutil.which("readelf") or "readelf",
            "PKG_CONFIG": "false",
        }

    def run(
        self, command: Iterable[str], folder: str, variables: Mapping[str, str] | None = None
    ) -> None:
        """One step of a build; a RuntimeError carries the end of what it said."""
        done = subprocess.run(
            list(command),
            cwd=folder,
            env={**self.environment, **(variables or {})},
            input="\n" * 10_000,  # whatever is asked gets its default
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        if done.returncode != 0:
            raise RuntimeError(f"building in {folder} failed: {done.stdout[-2_000:]}")


def _libraries(tools: _Tools, sources: str, system: str) -> None:
    lib, include = os.path.join(system, "lib"), os.path.join(system, "include")
    os.makedirs(lib)
    os.makedirs(include)

    def library(folder: str, name: str, options: Iterable[str], files: list[str]) -> None:
        target = os.path.join(lib, name)
        command = [*tools.compile, *_SHARED, *options, f"-Wl,-soname,{name}", "-o", target, *files]
        tools.run(command, folder)
        os.symlink(name, os.path.join(lib, f"{name.partition('.so')[0]}.so"))
        for header in glob.glob(os.path.join(folder, "*.h")):
            shutil.copy(header, include)

    zlib = os.path.join(sources, "zlib")
    library(zlib, "libz.so.1", _ZLIB, sorted(glob.glob(os.path.join(zlib, "*.c"))))
    bzip2 = [f"{name}.c" for name in _BZIP2]
    library(os.path.join(sources, "bzip2"), "libbz2.so.1.0", ("-D_FILE_OFFSET_BITS=64",), bzip2)
    sqlite = os.path.join(tools.work, "sqlite")
    shutil.copytree(os.path.join(sources, "sqlite3"), sqlite, symlinks=True)
    tools.run(["./configure", "--disable-tcl"], sqlite, tools.variables)
    tools.run(["make", "sqlite3.c", "sqlite3.h"], sqlite)  # of many files
    library(sqlite, "libsqlite3.so.0", _SQLITE, ["sqlite3.c"])


def _python(tools: _Tools, sources: str, system: str, target: str) -> None:
    """Beside its source, with this machine's Python of the same version for its own steps."""
    folder = os.path.join(tools.work, "cpython")
    os.mkdir(folder)
    variables = {
        **tools.variables,
        "OPT": "-DNDEBUG -fwrapv",
        "CFLAGS": "-fno-sanitize=undefined -Wno-date-time",
        "CPPFLAGS": f"-I{system}/include",
        "LDFLAGS": f"-L{system}/lib -s",
    }
    source = os.path.join(sources, f"python3.{MINOR}", "configure")
    told = f"--with-build-python={tools.host}"
    tools.run([source, *_CONFIGURE, told], folder, variables)
    tools.run(["make", "-j2", _NO_LIMITED_API], folder, variables)
    # Debian's install step looks for it under the name that its own cross build gives it.
    for found in glob.glob(os.path.join(folder, "build", "*", "_sysconfigdata__linux_*.py")):
        shutil.copy(found, found.replace("__linux_", "__"))
    place = f"DESTDIR={target}"
    tools.run(["make", "install", _NO_LIMITED_API, place], folder, variables)
    own_stack(os.path.join(target, "usr", "bin", f"python3.{MINOR}"))


def own_stack(program: str) -> None:
    """Let the program's threads have musl's own 128 KiB of stack, as on OpenWrt.

    musl takes what PT_GNU_STACK says, and zig's linker says 16 MiB there, which would hide a crash.
    """
    with open(program, "r+b") as opened:
        content = bytearray(opened.read())
        (table,) = struct.unpack_from("<Q", content, 32)
        size, count = struct.unpack_from("<HH", content, 54)
        for begins in range(table, table + size * count, size):
            if struct.unpack_from("<I", content, begins) == (_GNU_STACK,):
                struct.pack_into("<Q", content, begins + 40, 0)
        opened.seek(0)
        opened.write(content)


def _busybox(tools: _Tools, sources: str, made: str) -> None:
    folder = os.path.join(tools.work, "busybox")
    shutil.copytree(os.path.join(sources, "busybox"), folder, symlinks=True)
    # Its own tools run here too: what is linked with musl needs nothing of the machine.
    names = {"HOSTCC": "CC", "CC": "CC", "AR": "AR"}
    variables = [f"{name}={tools.variables[ours]}" for name, ours in names.items()]
    tools.run(["make", *variables, "allnoconfig"], folder)
    wanted, values = configured()
    path = os.path.join(folder, ".config")
    with open(path, "w", encoding="ascii") as opened:
        opened.writelines(f"CONFIG_{name}={value}\n" for name, value in values.items())
        for name in _symbols(folder) - values.keys():
            line = f"CONFIG_{name}=y" if name in wanted else f"# CONFIG_{name} is not set"
            opened.write(f"{line}\n")
    tools.run(["make", *variables, "oldconfig"], folder)
    with open(path, encoding="ascii") as opened:
        chosen = set(re.findall(r"^CONFIG_(\w+)=y$", opened.read(), re.MULTILINE))
    if chosen ^ wanted != {"HAVE_DOT_CONFIG", "PLATFORM_LINUX"}:  # what it says of itself
        raise RuntimeError(f"BusyBox is configured otherwise: {sorted(chosen ^ wanted)}")
    tools.run(["make", "-j2", "SKIP_STRIP=y", *variables, "busybox", "busybox.links"], folder)
    for name in ("busybox", "busybox.links"):
        shutil.copy(os.path.join(folder, name), made)


def configured() -> tuple[set[str], dict[str, str]]:
    """What of BusyBox is on, and what has a value."""
    with open(CONFIG, encoding="ascii") as opened:
        words = " ".join(line for line in opened if not line.startswith("#")).split()
    values = dict(word.split("=", 1) for word in words if "=" in word)
    return {"STATIC", *(word for word in words if "=" not in word)}, values


def _symbols(folder: str) -> set[str]:
    """Everything in BusyBox that can be on or off."""
    found: set[str] = set()
    for path in glob.glob(os.path.join(folder, "**", "Config.in"), recursive=True):
        with open(path, encoding="utf-8", errors="replace") as opened:
            text = opened.read()
        found |= set(
            re.findall(r"^\s*config (\w+)\n(?:\s*depends.*\n)*\s*bool", text, re.MULTILINE)
        )
    return found
