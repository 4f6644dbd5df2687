"""The installed copy of the zipapp: the same program with the byte code of this box's own Python.

Owns the rewriting of a zipapp's file and the reading of what only one-shot commands need of it. A
router's flash is small, so modules share streams in which like lies beside like; as a zip of .py
and .pyc files the same program takes nearly twice as much::

    #!/usr/bin/python3 -IS
    zip  __main__.py  __main__.pyc      the first lines
         code.TAG.MAGIC.bz2             code of each module that the daemon starts with, marshalled
         more.TAG.MAGIC.bz2             code of every other module
         source.bz2                     source of each module
         data.bz2                       build.json, profiles.json, process/wrapper.sh
         kit.bz2                        what `openwrt install` and the like write out

    stream  size of the index (4, little endian) | index | pieces; all of it bzip2
    index   marshalled {file below the archive: (where its piece begins, where it ends)}

TAG and MAGIC name the one Python whose code it is; every other Python compiles the sources. A copy
takes the sources and data over to the byte, so the build's digest stays; only the code streams and
the first lines' .pyc are made anew, with the same modules in each as before. On a slow router this
takes half a minute once and saves seconds at every start. Needs no `zipfile`, which small boxes
lack. Nothing here touches a file: the caller publishes what `copy` returns.
"""

from __future__ import annotations

import binascii
import sys

from qinglong_edge.core.errors import Corrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType

_FIRST = "__main__.py"
_SHEBANG = b"#!/usr/bin/python3 -IS\n"
_DATE = 0x21  # 1980-01-01, the oldest that a zip can say
_BLOCK = 100_000
_STORED, _DEFLATED = 0, 8
_UNIX, _VERSION = 3, 20
_MODE = 0o100644 << 16


def members(archive: str, name: str) -> list[tuple[str, bytes]]:
    """(file, bytes) of a stream of the zipapp; `Corrupt` (`program_damaged`) if unreadable."""
    import marshal
    from _bz2 import BZ2Decompressor

    packed = _member(archive, name)
    try:
        stream = BZ2Decompressor().decompress(packed)
        begins = 4 + int.from_bytes(stream[:4], "little")
        index = marshal.loads(stream[4:begins])  # noqa: S302 - our own file
        return [(file, stream[begins + a : begins + b]) for file, (a, b) in index.items()]
    except (OSError, EOFError, ValueError, TypeError, AttributeError):
        raise _damaged() from None


def copy(archive: str) -> bytes:
    """The bytes of the zipapp to install: as it is if its code is this Python's already."""
    from _frozen_importlib_external import MAGIC_NUMBER

    python = f"{sys.implementation.cache_tag}.{int.from_bytes(MAGIC_NUMBER[:2], 'little')}"
    try:
        with open(archive, "rb") as file:
            whole = file.read()
    except OSError:
        raise _damaged() from None
    names = _names(whole)
    if f"code.{python}.bz2" in names:
        return whole
    made = {name: _member(archive, name) for name in ("data.bz2", "kit.bz2", "source.bz2")}
    made[_FIRST] = _member(archive, _FIRST)
    made[f"{_FIRST}c"] = _pyc(made[_FIRST], MAGIC_NUMBER)
    sources = dict(members(archive, "source.bz2"))
    for kind in ("code", "more"):
        other = next((name for name in names if name.startswith(f"{kind}.")), "")
        files = [file for file, _code_of_another in members(archive, other)]
        made[f"{kind}.{python}.bz2"] = _stream(
            [(file, _code(file, sources[file])) for file in files]
        )
    return _zip(made)


def _names(whole: bytes) -> list[str]:
    """The members' names, from the zip's directory: head (46 bytes), name, extra, comment each."""
    import struct

    found = []
    try:
        count, _size, place = struct.unpack("<H2L", whole[-12:-2])
        for _ in range(count):
            lengths = struct.unpack_from("<3H", whole, place + 28)
            found.append(whole[place + 46 : place + 46 + lengths[0]].decode())
            place += 46 + sum(lengths)
    except (struct.error, UnicodeDecodeError):
        raise _damaged() from None
    return found


def _member(archive: str, name: str) -> bytes:
    import zipimport

    try:
        return zipimport.zipimporter(archive).get_data(name)
    except (OSError, EOFError, ImportError, ValueError):
        raise _damaged() from None


def _damaged() -> Corrupt:
    return Corrupt("program_damaged", "The program's file is damaged; install it again.")


def _compiled(name: str, text: bytes) -> CodeType:
    code: CodeType = compile(text, name, "exec", dont_inherit=True, optimize=2)
    return code


def _code(name: str, text: bytes) -> bytes:
    import marshal

    return marshal.dumps(_compiled(name, text))


def _pyc(text: bytes, magic: bytes) -> bytes:
    """Hash-based and unchecked, as the build makes it."""
    from _imp import source_hash

    name = f"qinglong_edge/{_FIRST}"
    hashed: bytes = source_hash(int.from_bytes(magic, "little"), text)
    return magic + (1).to_bytes(4, "little") + hashed + _code(name, text)


def _stream(pieces: list[tuple[str, bytes]]) -> bytes:
    import marshal
    from _bz2 import BZ2Compressor

    index, begin = {}, 0
    for file, piece in pieces:
        index[file] = (begin, begin + len(piece))
        begin += len(piece)
    head = marshal.dumps(index, 2)
    size = len(head) + begin
    packer = BZ2Compressor(min(9, 1 + size // _BLOCK))  # one block, as the build makes it
    parts = [packer.compress(len(head).to_bytes(4, "little") + head)]
    parts += [packer.compress(piece) for _file, piece in pieces]
    return b"".join([*parts, packer.flush()])


def _zip(entries: dict[str, bytes]) -> bytes:
    """Shebang and zip as the build makes it; offsets count from the start of the file."""
    import struct
    import zlib

    body, central = bytearray(_SHEBANG), bytearray()
    for name in sorted(entries):
        content, file = entries[name], name.encode()
        crc, size, offset = binascii.crc32(content), len(content), len(body)
        way = _STORED
        if name == _FIRST:
            way, packer = _DEFLATED, zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
            content = packer.compress(content) + packer.flush()
        common = struct.pack(
            *("<5H3L2H", _VERSION, 0, way, 0, _DATE),
            *(crc, len(content), size, len(file), 0),
        )
        body += b"PK\3\4" + common + file + content
        head = struct.pack("<BB", _VERSION, _UNIX) + common
        tail = struct.pack("<3H2L", 0, 0, 0, _MODE, offset)
        central += b"PK\1\2" + head + tail + file
    count, begins = len(entries), len(body)
    end = struct.pack("<4H2LH", 0, 0, count, count, len(central), begins, 0)
    return bytes(body + central + b"PK\5\6" + end)
