"""A block device whose cache is volatile, served over NBD, with a record of what was written.

One `Server` is one disk. Writes that were not flushed stay in memory; `Journal` keeps every write
and flush in the order in which they were answered, so that a disk can be made again as it was after
any of them. Several servers may share a journal: a second, small disk carries the marks with which
a guest says in the same order what it has been told and what it has done.
"""

from __future__ import annotations

import itertools
import os
import random
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Self

SECTOR = 512
UNIT = 1_024  # what no cut tears: ext4 finds no file system behind half a superblock
WRITE, FLUSH, MARK = "write", "flush", "mark"
_OPTION, _REPLY, _REQUEST, _ANSWER = 0x49484156454F5054, 0x3E889045565A9, 0x25609513, 0x67446698
_FLAGS = 1 | 4 | 8  # has flags, FLUSH, FUA
_EXPORT_NAME, _ABORT, _INFO, _GO = 1, 2, 6, 7
_READ, _WRITE, _DISCONNECT, _FLUSH = 0, 1, 2, 3
_FUA = 1
_EINVAL = 22
_TWO = UNIT // SECTOR


class Entry(NamedTuple):
    """One thing that happened to the disk; a mark has its text as `data`."""

    kind: str
    offset: int = 0
    data: bytes = b""
    durable: bool = False  # written through the cache


@dataclass
class Journal:
    """What happened, in order."""

    entries: list[Entry] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, entry: Entry) -> None:
        """One more."""
        with self.lock:
            self.entries.append(entry)


Sectors = dict[int, bytes]


def sectors(entry: Entry) -> Iterator[tuple[int, bytes]]:
    """A write in the units that a disk does not tear."""
    for begin in range(0, len(entry.data), SECTOR):
        yield (entry.offset + begin) // SECTOR, entry.data[begin : begin + SECTOR]


class Server:
    """One disk: an image that is never written, and what was written over it."""

    def __init__(self, image: str, journal: Journal | None = None, *, marks: bool = False) -> None:
        self._image = os.open(image, os.O_RDONLY)
        self._size = os.fstat(self._image).st_size
        self._over: Sectors = {}
        self._journal = journal
        self._marks = marks
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"nbd://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def put(self, over: Sectors) -> None:
        """The disk is from now on its image with these sectors over it."""
        with self._lock:
            self._over = dict(over)

    def close(self) -> None:
        """No more guests."""
        self._listener.shutdown(socket.SHUT_RDWR)  # closing alone wakes nobody who accepts
        self._listener.close()
        self._thread.join(5)
        os.close(self._image)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    # -- the protocol -----------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                try:
                    if self._negotiate(connection):
                        self._serve(connection)
                except (EOFError, ConnectionError):
                    continue

    def _negotiate(self, connection: socket.socket) -> bool:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(struct.pack(">8sQH", b"NBDMAGIC", _OPTION, 3))
        _receive(connection, 4)
        while True:
            _magic, option, length = struct.unpack(">QII", _receive(connection, 16))
            _receive(connection, length)
            if option == _EXPORT_NAME:
                connection.sendall(struct.pack(">QH", self._size, _FLAGS))
                return True
            if option in (_INFO, _GO):
                info = struct.pack(">HQH", 0, self._size, _FLAGS)
                block = struct.pack(">HIII", 3, SECTOR, 4_096, 32 << 20)
                for kind, data in ((3, info), (3, block), (1, b"")):
                    head = struct.pack(">QIII", _REPLY, option, kind, len(data))
                    connection.sendall(head + data)
                if option == _GO:
                    return True
                continue
            answer = 1 if option == _ABORT else 0x80000001
            connection.sendall(struct.pack(">QIII", _REPLY, option, answer, 0))
            if option == _ABORT:
                return False

    def _serve(self, connection: socket.socket) -> None:
        while True:
            head = _receive(connection, 28)
            magic, flags, kind, handle, offset, length = struct.unpack(">IHHQQI", head)
            if magic != _REQUEST or kind == _DISCONNECT:
                return
            answer, error = b"", 0
            if kind == _READ:
                answer = self._read(offset, length)
            elif kind == _WRITE:
                data = _receive(connection, length)
                self._write(Entry(WRITE, offset, data, bool(flags & _FUA)))
            elif kind == _FLUSH:
                self._note(Entry(FLUSH))
            else:
                error = _EINVAL
            connection.sendall(struct.pack(">IIQ", _ANSWER, error, handle) + answer)

    def _read(self, offset: int, length: int) -> bytes:
        found = bytearray(os.pread(self._image, length, offset))
        with self._lock:
            over = self._over
            for sector in range(offset // SECTOR, (offset + length) // SECTOR):
                data = over.get(sector)
                if data is not None:
                    begin = sector * SECTOR - offset
                    found[begin : begin + SECTOR] = data
        return bytes(found)

    def _write(self, entry: Entry) -> None:
        with self._lock:
            self._over.update(sectors(entry))
        if self._marks:
            entry = Entry(MARK, entry.offset, entry.data.rstrip(b"\0\n"))
        self._note(entry)

    def _note(self, entry: Entry) -> None:
        if self._journal is not None and not (self._marks and entry.kind == FLUSH):
            self._journal.add(entry)


def _receive(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return bytes(data)


# -- disks after a cut ----------------------------------------------------------------------------

LOST, KEPT, MIXED, TORN = "lost", "kept", "mixed", "torn"


class Cut(NamedTuple):
    """A disk as a cut after so many entries leaves it, and how much of what was unflushed stays.

    `lost`: nothing of it; `kept`: all; `mixed`: any of its units, in whatever order they were
    written; `torn`: all but the end of the last write.
    """

    after: int
    tail: str
    seed: int = 0

    def __str__(self) -> str:
        return f"after {self.after}, unflushed {self.tail}" + (f" {self.seed}" * (self.seed > 0))


def cuts(entries: list[Entry], *, mixed: int) -> list[Cut]:
    """Every different disk that a cut may leave, each unflushed tail `mixed` times at random."""
    found = [Cut(0, LOST)]
    pending = 0
    for number, entry in enumerate(entries, 1):
        if entry.kind == FLUSH:
            if pending:
                found.append(Cut(number, LOST))
            pending = 0
        elif entry.kind == WRITE and not entry.durable:
            pending += 1
            found += [Cut(number, LOST), Cut(number, KEPT)]
            if len(entry.data) > UNIT:
                found.append(Cut(number, TORN, 1))
            if pending > 1:
                found += [Cut(number, MIXED, seed) for seed in range(1, mixed + 1)]
        else:
            found.append(Cut(number, LOST))
    return found


def disk(entries: list[Entry], cut: Cut, *, honest: bool = True) -> Sectors:
    """What lies over the image after a cut; a disk that is not honest ignores every flush."""
    durable: Sectors = {}
    pending: list[list[tuple[int, bytes]]] = []
    for entry in entries[: cut.after]:
        if entry.kind == WRITE and entry.durable and honest:
            through = dict(sectors(entry))
            pending = [[pair for pair in each if pair[0] not in through] for each in pending]
            durable.update(through)
        elif entry.kind == WRITE:
            pending.append(list(sectors(entry)))
        elif entry.kind == FLUSH and honest:
            for each in pending:
                durable.update(each)
            pending.clear()
    chance = random.Random(f"{cut.after} {cut.seed}")
    share = {LOST: 0.0, MIXED: chance.choice((0.2, 0.5, 0.9))}.get(cut.tail, 1.0)
    for number, each in enumerate(pending, 1):
        units = [list(unit) for _, unit in itertools.groupby(each, lambda pair: pair[0] // _TWO)]
        if cut.tail == TORN and number == len(pending):
            del units[chance.randrange(1, len(units)) :]
        for unit in units:
            if chance.random() < share:
                durable.update(unit)
    return durable


def marks(entries: list[Entry], cut: Cut) -> list[str]:
    """What the guest had said before a cut."""
    return [
        entry.data.decode("utf-8", "replace")
        for entry in entries[: cut.after]
        if entry.kind == MARK
    ]
