"""The program's first lines: `python3 -m qinglong_edge` in a checkout, the root of the zipapp.

Owns one promise: what a started zipapp imports later (a launch, an adoption, a stop) comes from the
very file that it was started from, after that file was replaced or deleted by an upgrade as well.
So the zipapp opens itself and imports everything of ours through that descriptor; where the system
does not allow it (no /proc, few descriptors) the plain path stays. Nothing of ours may be imported
above that point.

Owns also the reading half of what a zipapp is (the builder has the writing half). A router's flash
is small, so all modules share one stream in which like lies beside like; as a zip of .pyc files the
same program takes nearly twice as much::

    #!/usr/bin/python3 -IS
    zip  __main__.py  __main__.pyc      this file
         code.TAG.MAGIC.zlib    whole   size | rows | index | words | heads | tables | texts
         source.bz2                     size | 0    | index | sources
         qinglong_edge/...              data: build.json, profiles.json, process/wrapper.sh

    whole   bytes of the code stream when inflated (4, little endian; not compressed itself)
    size    bytes of the index (4, little endian)
    rows    how many heads there are (4, little endian)
    index   marshalled {module: (is a package, where its words, heads, tables and texts begin)};
            for sources {module: (is a package, where its source begins, bytes of that)}
    words   a marshalled tuple per module. In it, for each code object: name, variables, cells, free
            variables, names, constants. A constant that is code is [], and stands for the next code
            object; those within it come before the one after it
    heads   a row of numbers per code object, see `HEAD`; first the first byte of every row, then
            the second of every row, and so on
    tables  the exception table of each code object
    texts   the instructions of each code object
    sources the modules as they are in the tree

TAG and MAGIC name the one Python whose code it is; every other Python compiles the sources. Both
streams carry a checksum of their own, so damage ends in one line and status 5. Nothing here holds
state that outlives the process.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import struct
import sys
import zipimport
import zlib
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, ModuleType
    from typing import Any

PACKAGE = "qinglong_edge"
CODE = f"code.{sys.implementation.cache_tag}.{int.from_bytes(MAGIC_NUMBER[:2], 'little')}.zlib"
SOURCE = "source.bz2"
_DESCRIPTOR_MIN = 64  # a launch child lays out a task's descriptors below this number
_EXIT_CORRUPT = 5  # as core.errors has it; that module is inside of what is damaged
_DAMAGED = b"qinglong-edge: program_damaged: The program's file is damaged; install it again.\n"
# joint, arguments, positional only, keyword only, code objects directly within, stack, flags, first
# line, bytes of instructions, bytes of exception table; then how many variables, cells, free
# variables, names, constants
HEAD = struct.Struct("<5BHI3H5H")
START = struct.Struct("<II")  # size, rows
WHOLE = struct.Struct("<I")  # bytes of the code stream when inflated
JOINTS = ("", ".", ".<locals>.")  # from the outer code's full name to the own; 0: the own alone
_LINE = b"\xef\x00"  # a line table's entry: the next 8 instructions are of the same line
_REST = (b"", *(bytes((_LINE[0] - 8 + rest, 0)) for rest in range(1, 8)))  # the last 1 to 7
_UNREADABLE = (
    *(EOFError, MemoryError, OSError, OverflowError, ValueError),
    *(struct.error, zipimport.ZipImportError, zlib.error),
)
_Code: type[CodeType] = type((lambda: None).__code__)


class Damaged(ImportError):
    """The zipapp's own file cannot be read back as it was built."""


class _Assembly:
    """Puts one module's code objects together, each from its row of numbers, words and bytes.

    Line tables are not carried: every instruction is of the line on which its function begins. (An
    empty table would do for the interpreter, but the `traceback` module fails on it.)
    """

    def __init__(self, stream: bytes, place: tuple[int, ...], *, rows: int, file: str) -> None:
        words, self._head, self._table, self._text = place
        self._stream = stream
        self._words: tuple[Any, ...] = marshal.loads(memoryview(stream)[words:])  # noqa: S302
        self._word = 0
        self._rows = rows
        self._file = file

    def code(self, outer: str = "") -> CodeType:
        """The next code object and those within it; `outer` is the surrounding one's full name.

        Runs a thousand times at a start, hence no helpers.
        """
        stream, words = self._stream, self._words
        row = HEAD.unpack(stream[self._head : self._head + self._rows * HEAD.size : self._rows])
        self._head += 1
        joint, arguments, positional, keywords, within, stack, flags, line = row[:8]
        instructions, exceptions, variables, cells, free, names, constants = row[8:]
        table = stream[self._table : self._table + exceptions]
        self._table += exceptions
        text = stream[self._text : self._text + instructions]
        self._text += instructions
        a = self._word + 1  # words[a:b] are the variables, and so on
        b = a + variables
        c = b + cells
        d = c + free
        e = d + names
        f = self._word = e + constants
        name = full = words[a - 1]
        if joint:
            full = outer + JOINTS[joint] + name
        values = words[e:f]
        if within:
            values = tuple([self.code(full) if type(v) is list else v for v in values])
        return _Code(
            arguments,
            positional,
            keywords,
            variables,
            stack,
            flags,
            text,
            values,
            words[d:e],
            words[a:b],
            self._file,
            name,
            full,
            line,
            _LINE * (instructions >> 4) + _REST[instructions >> 1 & 7],
            table,
            words[c:d],
            words[b:c],
        )


class Contents:
    """One of the two streams, inflated from its member `packed`."""

    def __init__(self, member: str, packed: bytes) -> None:
        self.member = member
        self.stream = _inflated(packed) if member == CODE else _inflated_source(packed)
        size, self._rows = START.unpack_from(self.stream)
        index = memoryview(self.stream)[START.size : START.size + size]
        self.index: dict[str, tuple[int, ...]] = marshal.loads(index)  # noqa: S302

    def code(self, name: str, file: str) -> CodeType:
        """The code of a module in the index; tracebacks call it `file`."""
        if self.member == CODE:
            place = self.index[name][1:]
            return _Assembly(self.stream, place, rows=self._rows, file=file).code()
        code: CodeType = compile(self.text(name), file, "exec", dont_inherit=True, optimize=2)
        return code

    def text(self, name: str) -> bytes:
        """The source of a module in the index; for the source stream only."""
        _, begin, size = self.index[name]
        return self.stream[begin : begin + size]


class Bundle:
    """Finder and loader of the modules that the zip `archive` carries.

    Every import reads through the path `archive`; with /proc/self/fd/N that is always the same
    file. The inflated stream is kept from the first import until `release`.
    """

    def __init__(self, archive: str) -> None:
        self._zip = zipimport.zipimporter(archive)
        self._archive = archive
        self._keeping = True
        self._kept: Contents | None = None

    def find_spec(
        self, name: str, _path: object = None, _target: object = None
    ) -> ModuleSpec | None:
        """Answer the import system; None for what is not carried, `Damaged` if unreadable."""
        if name.partition(".")[0] != PACKAGE:
            return None
        contents = self._contents()
        if name not in contents.index:
            return None
        package = bool(contents.index[name][0])
        stem = f"{self._archive}/{name.replace('.', '/')}"
        file = f"{stem}/__init__.py" if package else f"{stem}.py"
        spec = ModuleSpec(name, self, origin=file, is_package=package)  # type: ignore[arg-type]
        spec.has_location = True
        spec.cached = f"{self._archive}/{contents.member}"
        spec.loader_state = contents  # after `release` nothing else holds it until it is run
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(stem)
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """The import system makes the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run a found module's code in it."""
        exec(_code(module.__spec__), module.__dict__)  # noqa: S102 - it is what a loader does

    def is_package(self, name: str) -> bool:
        """Whether a carried module is a package; ImportError for any other name."""
        index = self._contents().index
        if name not in index:
            raise ImportError(f"{name} is not carried", name=name)
        return bool(index[name][0])

    def get_data(self, path: str) -> bytes:
        """A data file by its path below the archive; OSError where it does not exist."""
        return self._zip.get_data(path)

    def release(self) -> None:
        """Keep nothing inflated from now on: each later import reads the stream again."""
        self._keeping = False
        self._kept = None

    def _contents(self) -> Contents:
        if self._kept is not None:
            return self._kept
        try:
            contents = self._read()
        except _UNREADABLE as error:
            raise Damaged("the program's file is damaged", path=self._archive) from error
        if self._keeping:
            self._kept = contents
        return contents

    def _read(self) -> Contents:
        try:
            member, packed = CODE, self._zip.get_data(CODE)
        except OSError:  # not this Python's
            member, packed = SOURCE, self._zip.get_data(SOURCE)
        return Contents(member, packed)


def _inflated(packed: bytes) -> bytes:
    """The code stream.

    In one piece of the right size: the C library may answer the freeing of a larger one by keeping
    what is freed later, for the life of the process.
    """
    (whole,) = WHOLE.unpack_from(packed)
    return zlib.decompress(memoryview(packed)[WHOLE.size :], bufsize=whole)


def _inflated_source(packed: bytes) -> bytes:
    import bz2

    return bz2.decompress(packed)


def _code(spec: ModuleSpec | None) -> CodeType:
    """A found module's code; the stream is let go of before the module runs."""
    if spec is None or spec.origin is None or spec.loader_state is None:
        raise ImportError("a module is run once, after it was found")
    contents: Contents = spec.loader_state
    spec.loader_state = None
    return contents.code(spec.name, spec.origin)


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


def _start() -> int:
    loader = None if __spec__ is None else __spec__.loader
    archive = getattr(loader, "archive", None)
    if not __package__ and archive in sys.path:
        sys.path.remove(archive)
        sys.meta_path.insert(0, Bundle(_hold(archive)))
    try:
        from qinglong_edge.cli.main import main
    except Damaged:
        os.write(2, _DAMAGED)
        return _EXIT_CORRUPT
    return main()


if __name__ == "__main__":
    sys.exit(_start())
