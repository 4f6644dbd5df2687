"""The one writer in this process: serial, exact to the byte, and closed once."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.artifact import writer as module
from qinglong_edge.artifact.writer import LogWriter, OutputPlan
from qinglong_edge.core.errors import EdgeError, Invalid, Refused, Unavailable
from qinglong_edge.core.limits import LOG_WRITE_BYTES_MAX, SAFE_INTEGER_MAX
from tests.artifact.place import ATTEMPT, QUOTA, RUN, SEEN_MS, Place
from tests.support import until


class Seam:
    """The descriptor calls of the writer, as a test wants them."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.before_write: Callable[[], None] = lambda: None
        self.most: int | None = None
        self.sync: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, fd: int, data: memoryview) -> int:
        self.order.append(f"write {len(data)}")
        self.before_write()
        return os.write(fd, data if self.most is None else data[: self.most])

    def fdatasync(self, fd: int) -> None:
        self.order.append("fdatasync")
        if self.sync is not None:
            raise self.sync
        os.fdatasync(fd)

    def close(self, fd: int) -> None:
        self.order.append("close")
        os.close(fd)


@pytest.fixture
def seam(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seam]:
    with monkeypatch.context() as patch:
        made = Seam()
        patch.setattr(module, "os", made)
        yield made


def writer(path: Path, quota: int = QUOTA, **given: Any) -> LogWriter:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    return LogWriter("wlog-" + "0" * 30, fd, remaining_bytes=quota, **given)


def put(log: LogWriter, data: bytes | bytearray | memoryview, stream: str = "stdout") -> None:
    log.write(stream, data, SEEN_MS)


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(EdgeError) as caught:
        call()
    return caught.value.code


def test_both_streams_share_the_file_in_the_order_of_the_calls(tmp_path: Path) -> None:
    log = writer(tmp_path / "log")
    put(log, b"one ")
    put(log, bytearray(b"two "), "stderr")
    put(log, memoryview(b"three"))
    log.close()
    assert (tmp_path / "log").read_bytes() == b"one two three"


@pytest.mark.parametrize(
    ("sizes", "kept", "refused"),
    [
        ([9], 9, 0),
        ([10], 10, 0),
        ([11], 10, 1),
        ([4, 6], 10, 0),
        ([4, 7, 1], 10, 2),
        ([10, 1], 10, 1),
        ([10, 0], 10, 0),
        ([30, 30], 10, 2),
    ],
)
def test_exactly_the_quota_is_kept_and_the_rest_is_refused(
    tmp_path: Path, sizes: list[int], kept: int, refused: int
) -> None:
    """ADR-0115 verification 4"""
    log, codes = writer(tmp_path / "log", 10), []
    whole = bytes(range(65, 65 + sum(sizes)))
    for start, size in zip((sum(sizes[:n]) for n in range(len(sizes))), sizes, strict=True):
        try:
            put(log, whole[start : start + size])
        except Refused as error:
            codes.append(error.code)
    log.close()
    assert (tmp_path / "log").read_bytes() == whole[:kept]
    assert codes == ["quota_exceeded"] * refused


def test_a_chunk_that_is_too_large_writes_nothing_and_stops_nothing(tmp_path: Path) -> None:
    """ADR-0115 verification 4"""
    log = writer(tmp_path / "log", 1 << 30)
    assert code_of(lambda: put(log, bytes(LOG_WRITE_BYTES_MAX + 1))) == "invalid_output"
    assert (tmp_path / "log").stat().st_size == 0
    put(log, bytes(LOG_WRITE_BYTES_MAX))
    log.close()
    assert (tmp_path / "log").stat().st_size == LOG_WRITE_BYTES_MAX


def test_a_buffer_of_wide_items_is_measured_in_bytes(tmp_path: Path) -> None:
    log = writer(tmp_path / "log", chunk_bytes_max=8)
    assert code_of(lambda: put(log, memoryview(bytes(16)).cast("Q"))) == "invalid_output"
    put(log, memoryview(bytes(8)).cast("Q"))
    log.close()
    assert (tmp_path / "log").read_bytes() == bytes(8)


@pytest.mark.parametrize(
    "given",
    [
        ("stdin", b"x", 1),
        ("", b"x", 1),
        (None, b"x", 1),
        ("stdout", "x", 1),
        ("stdout", None, 1),
        ("stdout", [1], 1),
        ("stdout", b"x", -1),
        ("stdout", b"x", SAFE_INTEGER_MAX + 1),
        ("stdout", b"x", True),
        ("stdout", b"x", 1.0),
        ("stdout", b"x", None),
    ],
)
def test_what_is_no_output_is_refused_before_anything_is_accepted(
    tmp_path: Path, given: tuple[Any, Any, Any]
) -> None:
    log = writer(tmp_path / "log")
    with pytest.raises(Invalid) as caught:
        log.write(*given)
    assert caught.value.code == "invalid_output"
    log.close()
    assert (tmp_path / "log").read_bytes() == b""


def test_the_bytes_of_a_call_are_those_it_was_made_with(tmp_path: Path, seam: Seam) -> None:
    """The caller's buffer is copied before anything is written."""
    log = writer(tmp_path / "log")
    buffer = bytearray(b"kept")
    seam.before_write = lambda: buffer.__setitem__(slice(None), b"gone")
    put(log, buffer)
    log.close()
    assert (tmp_path / "log").read_bytes() == b"kept"


def test_a_disk_that_takes_bytes_one_by_one_takes_them_all(tmp_path: Path, seam: Seam) -> None:
    log = writer(tmp_path / "log", 4)
    seam.most = 1
    assert code_of(lambda: put(log, b"abcdef")) == "quota_exceeded"
    log.close()
    assert (tmp_path / "log").read_bytes() == b"abcd"
    assert seam.order == ["write 4", "write 3", "write 2", "write 1", "fdatasync", "close"]


def test_a_write_that_makes_no_progress_is_an_error_and_not_a_loop(
    tmp_path: Path, seam: Seam
) -> None:
    log = writer(tmp_path / "log")
    seam.most = 0
    assert code_of(lambda: put(log, b"x")) == "storage_unavailable"
    assert seam.order == ["write 1"]
    log.close()


def test_a_write_that_fails_takes_nothing_from_those_behind_it(tmp_path: Path, seam: Seam) -> None:
    log = writer(tmp_path / "log", 10)

    def full() -> None:
        raise OSError(errno.ENOSPC, "injected")

    seam.before_write = full
    with pytest.raises(Unavailable) as caught:
        put(log, b"lost")
    assert caught.value.code == "no_space"
    seam.before_write = lambda: None
    put(log, b"0123456789")
    log.close()
    assert (tmp_path / "log").read_bytes() == b"0123456789"


def test_what_landed_before_a_failure_counts_against_the_quota(tmp_path: Path, seam: Seam) -> None:
    log = writer(tmp_path / "log", 6)
    seam.most = 2
    calls = iter([None, OSError(errno.EIO, "injected")])

    def second() -> None:
        error = next(calls, None)
        if error is not None:
            raise error

    seam.before_write = second
    assert code_of(lambda: put(log, b"abcdef")) == "storage_unavailable"
    assert code_of(lambda: put(log, b"ABCDEF")) == "quota_exceeded"
    log.close()
    assert (tmp_path / "log").read_bytes() == b"abABCD"


def test_writes_of_many_callers_stand_whole_beside_each_other(tmp_path: Path) -> None:
    log = writer(tmp_path / "log", 1 << 20)

    def many(letter: bytes) -> None:
        for _ in range(200):
            put(log, letter * 97 + b"\n")

    threads = [threading.Thread(target=many, args=(b"%c" % code,)) for code in range(65, 73)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    lines = (tmp_path / "log").read_bytes().splitlines()
    assert len(lines) == 1600
    assert all(line == line[:1] * 97 for line in lines)


# -- the end --------------------------------------------------------------------------------------


def test_closing_syncs_then_gives_the_descriptor_back_and_deletes_nothing(
    tmp_path: Path, seam: Seam
) -> None:
    log = writer(tmp_path / "log")
    put(log, b"kept")
    log.close()
    assert seam.order == ["write 4", "fdatasync", "close"]
    assert (tmp_path / "log").read_bytes() == b"kept"


def test_closing_again_does_nothing(tmp_path: Path, seam: Seam) -> None:
    """ADR-0115 verification 8: a defensive second close is idempotent."""
    log = writer(tmp_path / "log")
    log.close()
    log.close()
    assert seam.order == ["fdatasync", "close"]


def test_a_late_write_is_refused(tmp_path: Path) -> None:
    """ADR-0024 verification 8"""
    log = writer(tmp_path / "log")
    log.close()
    assert code_of(lambda: put(log, b"late")) == "closed"
    assert (tmp_path / "log").read_bytes() == b""


def test_a_sync_that_fails_is_told_each_time_and_closes_anyway(tmp_path: Path, seam: Seam) -> None:
    log = writer(tmp_path / "log")
    seam.sync = OSError(errno.EIO, "injected")
    assert code_of(log.close) == "storage_unavailable"
    assert code_of(log.close) == "storage_unavailable"
    assert seam.order == ["fdatasync", "close"]


def test_closing_waits_for_what_was_accepted_and_refuses_what_comes_later(
    tmp_path: Path, seam: Seam
) -> None:
    """ADR-0024 verification 8"""
    log = writer(tmp_path / "log")
    writing, go = threading.Event(), threading.Event()

    def wait() -> None:
        writing.set()
        go.wait(30)

    seam.before_write = wait
    first = threading.Thread(target=put, args=(log, b"accepted"))
    first.start()
    assert writing.wait(30)
    closing = threading.Thread(target=log.close)
    closing.start()
    until(lambda: log._closing, what="close has begun")
    assert code_of(lambda: put(log, b"late")) == "closed"
    closing.join(0.1)  # it has every chance to go on
    assert (closing.is_alive(), seam.order) == (True, ["write 8"])
    go.set()
    for thread in (first, closing):
        thread.join(30)
    assert (tmp_path / "log").read_bytes() == b"accepted"
    assert seam.order == ["write 8", "fdatasync", "close"]


def test_a_write_that_loses_the_race_against_a_close_is_late(tmp_path: Path) -> None:
    log = writer(tmp_path / "log")
    log.close()
    log._closing = False  # as if it had asked just before
    assert code_of(lambda: put(log, b"late")) == "closed"


# -- replay, and the way past this process --------------------------------------------------------


def test_a_replayed_local_attempt_is_written_on_behind_its_bytes(place: Place) -> None:
    """ADR-0024 verification 8"""
    place.written(b"x" * (QUOTA - 3))
    log = place.logs.prepare(RUN, ATTEMPT, QUOTA)
    made = LogWriter(place.id, log.fd, remaining_bytes=QUOTA - log.size)
    assert code_of(lambda: put(made, b"12345")) == "quota_exceeded"
    made.close()
    assert place.log.read_bytes() == b"x" * (QUOTA - 3) + b"123"


def test_the_plan_is_for_the_launcher_and_for_no_text(tmp_path: Path) -> None:
    told = (str(tmp_path / "t"), str(tmp_path / "f"))
    plan = OutputPlan("wlog-" + "0" * 30, fd=7, maximum_bytes=QUOTA, fact_paths=told)
    log = writer(tmp_path / "log", plan=plan)
    found = log.output_plan()
    assert found is not None
    assert (found.log_artifact_id, found.maximum_bytes) == ("wlog-" + "0" * 30, QUOTA)
    assert (found.fd, found.fact_paths) == (7, told)
    for value in (plan, log):
        assert str(tmp_path) not in repr(value)
        for show in (json.dumps, vars):
            with pytest.raises(TypeError):
                show(value)
    log.close()
    assert code_of(log.output_plan) == "closed"


def test_a_writer_without_a_plan_gives_none(tmp_path: Path) -> None:
    log = writer(tmp_path / "log")
    assert log.output_plan() is None
    log.close()
