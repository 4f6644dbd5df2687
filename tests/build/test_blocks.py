"""The disk of the power cuts: what it loses, what it keeps, and that it speaks NBD."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import pytest

from tests.tools.router import blocks
from tests.tools.router.blocks import FLUSH, MARK, WRITE, Cut, Entry, Journal, Server

A, B, C = (letter * 2_048 for letter in (b"a", b"b", b"c"))
ENTRIES = [
    Entry(WRITE, 0, A),
    Entry(FLUSH),
    Entry(MARK, 0, b'{"ack": 1}'),
    Entry(WRITE, 0, B),
    Entry(WRITE, 4_096, C),
    Entry(FLUSH),
]


@pytest.mark.parametrize(
    ("cut", "first", "other"),
    [
        (Cut(1, blocks.LOST), None, None),
        (Cut(1, blocks.KEPT), b"a", None),
        (Cut(2, blocks.LOST), b"a", None),
        (Cut(4, blocks.LOST), b"a", None),
        (Cut(4, blocks.KEPT), b"b", None),
        (Cut(5, blocks.KEPT), b"b", b"c"),
        (Cut(6, blocks.LOST), b"b", b"c"),
    ],
)
def test_what_was_flushed_stays_and_of_the_rest_what_the_cut_says(
    cut: Cut, first: bytes | None, other: bytes | None
) -> None:
    disk = blocks.disk(ENTRIES, cut)
    assert disk.get(0, b"")[:1] == (first or b"")
    assert disk.get(8, b"")[:1] == (other or b"")


def test_a_torn_write_begins_new_and_ends_old() -> None:
    disk = blocks.disk(ENTRIES, Cut(4, blocks.TORN, 1))
    assert [disk[sector][:1] for sector in range(4)] == [b"b", b"b", b"a", b"a"]


def test_a_mixed_tail_is_any_part_of_it_and_the_same_one_each_time() -> None:
    seen = {
        (disk[0][:1], disk[2][:1], 8 in disk, 10 in disk)
        for disk in (blocks.disk(ENTRIES, Cut(5, blocks.MIXED, seed)) for seed in range(200))
    }
    assert len(seen) == 16
    for seed in range(200):
        disk = blocks.disk(ENTRIES, Cut(5, blocks.MIXED, seed))
        assert disk[0][:1] == disk[1][:1], "a unit is torn"
        assert (8 in disk) == (9 in disk), "a unit is torn"
    cut = Cut(5, blocks.MIXED, 3)
    assert blocks.disk(ENTRIES, cut) == blocks.disk(ENTRIES, cut)


def test_a_disk_that_forgets_its_flushes_has_nothing() -> None:
    assert blocks.disk(ENTRIES, Cut(6, blocks.LOST), honest=False) == {}


def test_a_write_through_the_cache_outlives_what_was_written_before_it() -> None:
    entries = [Entry(WRITE, 0, A), Entry(WRITE, 0, B, durable=True), Entry(FLUSH)]
    assert blocks.disk(entries, Cut(2, blocks.LOST))[0][:1] == b"b"
    assert blocks.disk(entries, Cut(3, blocks.LOST))[0][:1] == b"b"


def test_every_cut_is_there_once_and_marks_are_told_as_of_then() -> None:
    cuts = blocks.cuts(ENTRIES, mixed=2)
    assert len(set(cuts)) == len(cuts)
    assert {cut.after for cut in cuts} == set(range(7))
    assert [cut.tail for cut in cuts if cut.after == 5] == [
        "lost",
        "kept",
        "torn",
        "mixed",
        "mixed",
    ]
    assert blocks.marks(ENTRIES, Cut(2, blocks.LOST)) == []
    assert blocks.marks(ENTRIES, Cut(3, blocks.LOST)) == ['{"ack": 1}']


def test_a_served_disk_is_read_written_and_recorded_and_its_image_stays(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(b"i" * 8_192)
    journal = Journal()
    with Server(str(image), journal) as server:
        port = int(server.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), 10) as client:
            assert client.recv(18, socket.MSG_WAITALL)[:16] == b"NBDMAGICIHAVEOPT"
            client.sendall(struct.pack(">I8sII", 3, b"IHAVEOPT", 1, 0))
            size, _flags = struct.unpack(">QH", client.recv(10, socket.MSG_WAITALL))
            assert size == 8_192
            for kind, data in ((1, A), (3, b""), (0, b"")):
                length = 3_072 if kind == 0 else len(data)
                request = struct.pack(">IHHQQI", 0x25609513, 0, kind, 7, 512, length)
                client.sendall(request + data)
                assert client.recv(16, socket.MSG_WAITALL)[4:8] == bytes(4)
            assert client.recv(3_072, socket.MSG_WAITALL) == A + b"i" * 1_024
    assert journal.entries == [Entry(WRITE, 512, A), Entry(FLUSH, 0, b"")]
    assert image.read_bytes() == b"i" * 8_192
