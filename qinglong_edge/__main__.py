"""The program's first lines: `python3 -m qinglong_edge` in a checkout, the root of the zipapp.

Owns one promise: what a started zipapp imports later (a launch, an adoption, a stop) comes from the
very file that it was started from, after an upgrade replaced or deleted that file as well. So it
opens itself and imports everything of ours through that descriptor, or by the plain path where the
system allows no other; nothing of ours may be imported above that point. A start of the daemon
inflates the code that it starts with and no other (`app/installed.py` draws the members). Damage
ends in one line and status 5. No state outlives the process.
"""

from __future__ import annotations

import errno
import fcntl
import marshal
import os
import struct
import sys
import zipimport
from _bz2 import BZ2Decompressor
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, ModuleType

PACKAGE = "qinglong_edge"
_PYTHON = f"{sys.implementation.cache_tag}.{int.from_bytes(MAGIC_NUMBER[:2], 'little')}"
CODE = f"code.{_PYTHON}.bz2"
MORE = f"more.{_PYTHON}.bz2"
SOURCE = "source.bz2"
DATA = "data.bz2"
SIZE = struct.Struct("<I")
_DESCRIPTOR_MIN = 64  # a launch child lays out a task's descriptors below this number
_EXIT_CORRUPT = 5  # as core.errors has it; that module may be inside of what is damaged
_DAMAGED = ("program_damaged", "The program's file is damaged; install it again.")
_OLDEST = (3, 11)
_EXIT_UNAVAILABLE = 4
_EXIT_INTERRUPTED = 130
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # the file is as it was
_TOO_OLD = ("python_too_old", "Python 3.11 or later is needed.")


class Damaged(ImportError):
    """The zipapp's own file cannot be read back as it was built."""


class Contents:
    """One of the streams, inflated from its member `packed`."""

    def __init__(self, member: str, packed: bytes) -> None:
        unpacking = BZ2Decompressor()
        self.member = member
        self._stream = memoryview(unpacking.decompress(packed))
        begin = SIZE.size + SIZE.unpack_from(self._stream)[0]
        if not unpacking.eof:
            raise EOFError
        self._pieces = self._stream[begin:]
        self.index: dict[str, tuple[int, int]] = marshal.loads(  # noqa: S302
            self._stream[SIZE.size : begin]
        )

    def piece(self, file: str) -> memoryview:
        """A carried file: marshalled code, source or data."""
        begin, end = self.index[file]
        return self._pieces[begin:end]

    def code(self, file: str, path: str) -> CodeType:
        """A carried module's code; tracebacks of compiled sources call it `path`."""
        if self.member != SOURCE:
            made: CodeType = marshal.loads(self.piece(file))  # noqa: S302
            return made
        text = bytes(self.piece(file))
        compiled: CodeType = compile(text, path, "exec", dont_inherit=True, optimize=2)
        return compiled


class Bundle:
    """Finder and loader of what the zip `archive` carries, always read through that path."""

    def __init__(self, archive: str) -> None:
        self._zip = zipimport.zipimporter(archive)
        self._archive = archive
        self._data = self._read(DATA)
        self._order = (CODE, MORE)
        self._kept: dict[str, Contents] = {}

    def find_spec(
        self, name: str, _path: object = None, _target: object = None
    ) -> ModuleSpec | None:
        """None for what is not carried, `Damaged` if unreadable."""
        if name.partition(".")[0] != PACKAGE:
            return None
        _stream, file = self._found(name)
        if not file:
            return None
        path = f"{self._archive}/{file}"
        above, package, _ = path.rpartition("/__init__.py")
        spec = ModuleSpec(name, self, origin=path, is_package=bool(package))  # type: ignore[arg-type]
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(above)
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """The import system makes the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run a found module's code in it.

        The name is set here: for a spec with a location Python works out a .pyc's name as well.
        """
        stream, file = self._found(module.__name__)
        path = module.__file__ = f"{self._archive}/{file}"
        exec(stream.code(file, path), module.__dict__)  # noqa: S102 - it is what a loader does

    def get_data(self, path: str) -> bytes:
        """A data file by its path below the archive; OSError where it does not exist."""
        file = self._below(path)
        if file not in self._data.index:
            raise FileNotFoundError(path)
        return bytes(self._data.piece(file))

    def release(self) -> bool:
        """Let go of the inflated streams, if any; a later import asks the other one first."""
        held, self._kept, self._order = bool(self._kept), {}, (MORE, CODE)
        return held

    def _below(self, path: str) -> str:
        return path.removeprefix(f"{self._archive}/")

    def _found(self, name: str) -> tuple[Contents, str]:
        """The stream of a module and its file in there, or "" if no stream has it."""
        stem = name.replace(".", "/")
        for member in (*self._order, SOURCE):  # what is used seldom has no code here
            if member not in self._kept:
                self._kept[member] = self._read(member, SOURCE)
            stream = self._kept[member]
            for file in (f"{stem}.py", f"{stem}/__init__.py"):
                if file in stream.index:
                    return stream, file
        return stream, ""

    def _read(self, member: str, otherwise: str | None = None) -> Contents:
        try:
            try:
                packed = self._zip.get_data(member)
            except OSError as error:  # not there: the code is another Python's
                if otherwise is None or error.errno in _PASSING:
                    raise
                member, packed = otherwise, self._zip.get_data(otherwise)
            return Contents(member, packed)
        except (OSError, EOFError, ValueError, TypeError, struct.error, ImportError) as error:
            if getattr(error, "errno", None) in _PASSING:
                raise
            raise _damaged(self._archive) from error


def _damaged(archive: str) -> Exception:
    """What an import raises: `Corrupt`, which every front end tells, once there is one."""
    corrupt = getattr(sys.modules.get(f"{PACKAGE}.core.errors"), "Corrupt", None)
    error: Exception = corrupt(*_DAMAGED) if corrupt else Damaged(_DAMAGED[1], path=archive)
    return error


def _hold(archive: str) -> str:
    """`archive` by way of an own close-on-exec descriptor; itself where that cannot be had."""
    try:
        opened = os.open(archive, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return archive
    try:
        held = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, _DESCRIPTOR_MIN)
    except OSError:
        return archive
    finally:
        os.close(opened)
    path = f"/proc/self/fd/{held}"
    try:
        if os.path.samestat(os.stat(path), os.fstat(held)):
            return path
    except OSError:
        pass
    os.close(held)
    return archive


def _too_old() -> int:
    """Said here: what comes next uses what an older Python has not, and would look like a bug."""
    code, message = _TOO_OLD
    if "--json" in sys.argv:
        told = f'{{"error": {{"code": "{code}", "message": "{message}", "facts": {{}}}}}}\n'
        os.write(1, told.encode())
    else:
        os.write(2, f"qinglong-edge: {code}: {message}\n".encode())
    return _EXIT_UNAVAILABLE


def _start() -> int:
    if sys.version_info[:2] < _OLDEST:
        return _too_old()
    loader = None if __spec__ is None else __spec__.loader
    archive = getattr(loader, "archive", None)
    try:
        if not __package__ and archive in sys.path:
            sys.path.remove(archive)
            sys.meta_path.insert(0, Bundle(_hold(archive)))
        from qinglong_edge.cli.main import main

        return main()
    except Damaged:
        os.write(2, f"qinglong-edge: {': '.join(_DAMAGED)}\n".encode())
        return _EXIT_CORRUPT
    except KeyboardInterrupt:  # a router takes a second to load all this
        return _EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(_start())
