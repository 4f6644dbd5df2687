"""Reading ranges of a log, and what its fact says."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from qinglong_edge.artifact.logs import LogRange
from qinglong_edge.core.errors import Corrupt, EdgeError
from qinglong_edge.core.limits import LOG_RANGE_BYTES_MAX
from tests.artifact.place import (
    ATTEMPT,
    FOR_FILE,
    FOR_FOLDER,
    RUN,
    Place,
    fact,
    needs_root,
    swap,
    to_open,
    write,
)


def read(place: Place, offset: int = 0, length: int = LOG_RANGE_BYTES_MAX) -> LogRange | None:
    return place.logs.read(RUN, ATTEMPT, offset=offset, length=length)


def refusal(place: Place) -> EdgeError:
    with pytest.raises(EdgeError) as caught:
        read(place)
    return caught.value


@pytest.mark.parametrize(
    ("offset", "length", "data", "start"),
    [
        (0, 1, b"0", 0),
        (2, 4, b"2345", 2),
        (9, 9, b"9", 9),
        (10, 1, b"", 10),
        (99, 1, b"", 10),
        (-1, 9, b"9", 9),
        (-10, 99, b"0123456789", 0),
        (-99, 2, b"01", 0),
        (0, 0, b"", 0),
    ],
)
def test_a_range_of_a_log(place: Place, offset: int, length: int, data: bytes, start: int) -> None:
    """An offset beyond the end gives nothing, at the end."""
    place.written(b"0123456789")
    wanted = LogRange(data=data, offset=start, end=start + len(data), total=10)
    assert read(place, offset, length) == wanted


def test_an_empty_log_is_a_log(place: Place) -> None:
    place.written(b"")
    assert read(place) == LogRange(data=b"", offset=0, end=0, total=0)


def test_no_answer_is_larger_than_its_bound(place: Place) -> None:
    whole = os.urandom(LOG_RANGE_BYTES_MAX + 1)
    place.written(whole)
    found = read(place, 0, 1 << 50)
    assert found is not None
    assert found.data == whole[:-1]
    assert (found.end, found.total) == (LOG_RANGE_BYTES_MAX, LOG_RANGE_BYTES_MAX + 1)


def test_the_ranges_of_a_growing_log_join_without_gap_or_overlap(place: Place) -> None:
    fd = place.begun()
    seen, sent = b"", b""
    for number in range(50):
        sent += b"%d;" % number
        os.pwrite(fd, b"%d;" % number, 0)  # appends, wherever it says
        found = read(place, len(seen), 7)
        assert found is not None
        assert found.offset == len(seen)
        seen += found.data
    while (found := read(place, len(seen), 7)) and found.data:
        seen += found.data
    os.close(fd)
    assert seen == sent


def test_what_is_appended_while_it_is_read_is_not_in_the_answer(place: Place) -> None:
    place.written(b"0123456789")

    def append(_path: str) -> None:
        with open(place.log, "ab") as opened:
            opened.write(b"later")

    found = read(place)
    assert found is not None
    assert found.total == 10
    place.disk.after_look = append  # after the open, before the one look at the size
    found = read(place)
    assert found is not None
    assert found.end == found.total == 15


def test_a_log_that_shrinks_while_it_is_read_is_corrupt(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.written(b"0123456789")
    real = os.pread

    def pread(fd: int, length: int, offset: int) -> bytes:
        os.truncate(place.log, 4)
        return real(fd, length, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", pread)
        assert refusal(place).code == "file_unsafe"


def test_a_disk_that_gives_bytes_one_by_one_gives_them_all(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.written(b"0123456789")
    real = os.pread
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", lambda fd, length, offset: real(fd, min(length, 1), offset))
        found = read(place, 3, 5)
    assert found is not None
    assert found.data == b"34567"


def test_without_a_log_there_is_nothing_to_read_and_nothing_is_made(place: Place) -> None:
    assert read(place) is None
    place.shard.mkdir(0o700)
    assert read(place) is None
    place.shard.rmdir()
    place.root.rmdir()
    assert read(place) is None
    assert not place.root.exists()


@needs_root
@pytest.mark.parametrize("spoil", [*FOR_FILE, to_open])
def test_a_log_that_is_not_ours_alone_is_not_read(
    place: Place, spoil: Callable[[Path], None]
) -> None:
    place.written()
    spoil(place.log)
    assert refusal(place).code in {"file_unsafe", "file_foreign", "file_exposed"}


@needs_root
@pytest.mark.parametrize("spoil", [*FOR_FOLDER, to_open])
@pytest.mark.parametrize("which", ["root", "shard"])
def test_from_a_directory_that_is_not_ours_nothing_is_read(
    place: Place, which: str, spoil: Callable[[Path], None]
) -> None:
    place.written()
    spoil(getattr(place, which))
    assert refusal(place).code in {"directory_unsafe", "directory_foreign"}


@pytest.mark.parametrize("which", ["root", "shard"])
def test_a_directory_that_changes_while_it_is_read_is_corrupt(place: Place, which: str) -> None:
    place.written()
    place.disk.after_look = lambda _path: swap(getattr(place, which))
    error = refusal(place)
    assert (type(error), error.code) == (Corrupt, "directory_unsafe")


# -- truncation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [True, False])
def test_a_log_was_cut_or_whole_as_its_fact_says(place: Place, cut: bool) -> None:
    place.written(b"x" * 10)
    place.told(quota_reached=cut)
    assert place.logs.truncated(RUN, ATTEMPT) is cut


def test_without_a_fact_truncation_is_unknown_whatever_the_size(place: Place) -> None:
    assert place.logs.truncated(RUN, ATTEMPT) is None
    place.written(b"x" * 65_536)
    assert place.logs.truncated(RUN, ATTEMPT) is None


def test_a_fact_that_a_crash_left_with_two_names_is_believed(place: Place) -> None:
    place.written()
    place.told()
    os.link(place.fact, place.temporary)
    assert place.logs.truncated(RUN, ATTEMPT) is True
    os.link(place.fact, place.root / "third")
    assert place.logs.truncated(RUN, ATTEMPT) is None


def test_a_temporary_that_is_another_file_hides_no_second_name(place: Place) -> None:
    place.written()
    place.told()
    write(place.temporary, place.fact.read_bytes())
    assert place.logs.truncated(RUN, ATTEMPT) is True
    os.link(place.fact, place.root / "second")
    assert place.logs.truncated(RUN, ATTEMPT) is None


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"\0" * 9, b"[" * 2000, fact("local-" + "1" * 30), b"\xff"]
)
def test_a_fact_that_is_not_believed_says_nothing(place: Place, data: bytes) -> None:
    place.written()
    place.told(data)
    assert place.logs.truncated(RUN, ATTEMPT) is None


@needs_root
@pytest.mark.parametrize("spoil", [*FOR_FILE, to_open])
def test_a_fact_that_is_not_ours_alone_says_nothing(
    place: Place, spoil: Callable[[Path], None]
) -> None:
    place.written()
    place.told()
    spoil(place.fact)
    assert place.logs.truncated(RUN, ATTEMPT) is None
