"""The wrapper's receipt: one line to a living daemon, else one file, never over another."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from qinglong_edge.core import receipt
from tests.disks import small_disk
from tests.process.harness import (
    ATTEMPT,
    EVERY_SHELL,
    OK,
    RUN,
    SHELLS,
    SILENCE_S,
    TOKEN,
    WRAPPER,
    Bench,
    Ended,
    uptime_cs,
)
from tests.support import say_to, until

_UPTIMES = (  # /proc/uptime, started at (cs), elapsed ms
    ("0.08 0.08\n", 0, 80),
    ("0.09 0.00\n", 8, 10),
    ("8.09 1.00\n", 800, 90),
    ("100.00 1.00\n", 9_999, 10),
    ("0.00 0.00\n", 0, 0),
    ("7.00 1.00\n", 701, 0),  # never before the start
    ("4294967296.12 1.00\n", 12, 4_294_967_296_000),
    ("", 0, 0),
)
_WATCHING_SYNC = """#!/bin/sh
test -e "$1" && object=there || object=gone
test -e "{target}" && target=visible || target=hidden
echo "${{1##*/}} $object $target $(ls -A "{shard}" | wc -l)" >>"{diary}"
exit {status}
"""


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A device on which a name can be made, but not one byte written."""
    with small_disk(tmp_path / "disk", "size=64k") as disk:
        (disk / "filler").write_bytes(b"f" * 65_536)
        yield disk


@pytest.fixture
def linkless_disk(tmp_path: Path) -> Iterator[Path]:
    """A device with room for one more name: the temporary, but not its link."""
    with small_disk(tmp_path / "disk", "size=64k,nr_inodes=3") as disk:
        (disk / "filler").touch()
        yield disk


@pytest.fixture
def read_only_disk(tmp_path: Path) -> Iterator[Path]:
    """A device that was remounted for reading, as a damaged one is."""
    with small_disk(tmp_path / "disk", "size=64k") as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        yield disk


@EVERY_SHELL
def test_a_receipt_is_one_canonical_line(shell: str, tmp_path: Path) -> None:
    """The codec accepts nothing but the canonical bytes; keys, order and values are checked too."""
    ended = Bench(shell, tmp_path).task("exit 5")
    found = ended.receipt
    assert ended.said == b"whole %s\n" % found.encode()
    assert found == receipt.Receipt(
        run_id=RUN,
        attempt_id=ATTEMPT,
        callback_sequence=1,
        token=TOKEN,
        started_at_ms=found.started_at_ms,
        finished_at_ms=found.finished_at_ms,
        exit_code=5,
    )


@EVERY_SHELL
def test_the_finish_is_the_start_plus_the_monotonic_time(shell: str, tmp_path: Path) -> None:
    before = uptime_cs()
    found = Bench(shell, tmp_path).task("exit 0").receipt
    assert 0 <= found.finished_at_ms - found.started_at_ms <= (uptime_cs() - before) * 10


@EVERY_SHELL
def test_elapsed_time_is_exact_and_never_negative(shell: str, tmp_path: Path) -> None:
    """`008` is no octal number, and 64 bits suffice."""
    clock = tmp_path / "uptime"
    script = WRAPPER.read_bytes().replace(b"/proc/uptime", str(clock).encode())
    bench = Bench(shell, tmp_path, script)
    for uptime, started_cs, elapsed_ms in _UPTIMES:
        clock.write_text(uptime)
        found = bench.task("exit 0", changed={"START_CS": str(started_cs)}).receipt
        assert found.finished_at_ms - found.started_at_ms == elapsed_ms
    clock.unlink()
    found = bench.task("exit 0").receipt
    assert found.finished_at_ms == found.started_at_ms


@EVERY_SHELL
def test_an_acknowledged_receipt_leaves_no_file(shell: str, tmp_path: Path) -> None:
    ended = Bench(shell, tmp_path).task("exit 7")
    assert (ended.codes, ended.published, ended.left) == ((7, 7), None, ())
    assert list((tmp_path / "receipts").iterdir()) == []


@EVERY_SHELL
@pytest.mark.parametrize("moment", ["before", "during"])
def test_without_a_daemon_the_receipt_is_a_file_at_once(
    shell: str, moment: str, tmp_path: Path
) -> None:
    """The write to a closed socket must not end the wrapper by SIGPIPE."""
    bench = Bench(shell, tmp_path)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    running = bench.start(
        ["/bin/sh", "-c", f"read go <'{gate}'; exit 7"], daemon=moment == "during"
    )
    if running.channel is not None:
        running.channel.close()
        running.channel = None
    say_to(gate)
    ended = running.wait()
    assert (ended.codes, ended.left) == ((7, 7), ())
    assert running.receipt.stat().st_nlink == 1


@EVERY_SHELL
def test_any_other_answer_means_a_file_with_the_bytes_of_the_line(
    shell: str, tmp_path: Path
) -> None:
    bench = Bench(shell, tmp_path)
    for answer in (b"no\n", b"\n", b"okay\n", b"OK\n", b"\0\n"):
        ended = bench.start(["/bin/sh", "-c", "exit 7"]).wait(answer)
        assert ended.published == ended.receipt.encode()
        assert ended.said == b"whole %s\n" % ended.published
        assert (ended.codes, ended.left) == ((7, 7), ())


@EVERY_SHELL
def test_a_daemon_that_dies_over_its_answer_has_not_committed(shell: str, tmp_path: Path) -> None:
    running = Bench(shell, tmp_path).start(["/bin/sh", "-c", "exit 7"])
    running.hear()
    if running.channel is not None:
        running.channel.sendall(OK[:2])
        running.channel.close()
        running.channel = None
    ended = running.wait()
    assert (ended.codes, ended.published is not None) == ((7, 7), True)


def test_a_daemon_that_is_silent_for_two_seconds_finds_a_file(tmp_path: Path) -> None:
    """All shells at once; the late answer to half of them changes nothing any more."""
    started = []
    for shell in SHELLS:
        (tmp_path / shell).mkdir()
        bench = Bench(shell, tmp_path / shell, silence_s=SILENCE_S)
        started += [bench.start(["/bin/sh", "-c", "exit 7"]) for _ in range(2)]
    for late, running in enumerate(started):
        running.hear()
        until(running.receipt.exists)
        if late % 2 and running.channel is not None:
            try:
                running.channel.sendall(OK)
            except BrokenPipeError:
                continue
    for running in started:
        ended = running.wait(b"")
        assert (ended.codes, ended.left) == ((7, 7), ())
        assert ended.said == b"whole %s\n" % ended.receipt.encode()
        assert ended.published == ended.receipt.encode()
        assert ended.seconds > 1.5


@EVERY_SHELL
def test_a_file_is_visible_only_when_it_is_on_the_device(shell: str, tmp_path: Path) -> None:
    """Temporary synced while the target is hidden; then the directory, the temporary gone."""
    ended, diary = _watched(Bench(shell, tmp_path), 0)
    (first, *state), second = (line.split() for line in diary)
    assert first.startswith(f".{ATTEMPT}-1.")
    assert state == ["there", "hidden", "1"]
    assert second == ["receipts", "there", "visible", "1"]
    assert (ended.codes, ended.left) == ((7, 7), ())


@EVERY_SHELL
def test_a_failed_sync_publishes_nothing(shell: str, tmp_path: Path) -> None:
    ended, diary = _watched(Bench(shell, tmp_path), 1)
    assert [line.split()[2] for line in diary] == ["hidden", "hidden"]
    assert (ended.code, ended.published, ended.left) == (7, None, ())


@EVERY_SHELL
def test_an_existing_receipt_is_never_overwritten(shell: str, tmp_path: Path) -> None:
    """ADR-0069 verification 4."""
    bench = Bench(shell, tmp_path)
    earlier = tmp_path / "earlier.json"
    earlier.write_bytes(b"earlier")
    ended = bench.task("exit 19", daemon=False, changed={"TARGET": str(earlier)})
    assert (ended.code, ended.left, earlier.read_bytes()) == (19, (), b"earlier")


@EVERY_SHELL
def test_a_target_that_is_a_directory_is_not_entered(shell: str, tmp_path: Path) -> None:
    bench = Bench(shell, tmp_path)
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    for target in (folder, link):
        ended = bench.task("exit 19", daemon=False, changed={"TARGET": str(target)})
        assert (ended.code, ended.left, list(folder.iterdir())) == (19, (), [])


@EVERY_SHELL
def test_a_temporary_is_never_written_through(shell: str, tmp_path: Path) -> None:
    bench = Bench(shell, tmp_path)
    victim, dangling = tmp_path / "victim", tmp_path / "dangling"
    victim.write_bytes(b"theirs")
    for place in (victim, dangling):
        link = tmp_path / "link"
        link.symlink_to(place)
        ended = bench.task("exit 19", daemon=False, changed={"TEMPORARY": str(link)})
        assert (ended.code, ended.published) == (19, None)
        assert not link.is_symlink()
    assert victim.read_bytes() == b"theirs"
    assert not dangling.exists()


@EVERY_SHELL
def test_an_impossible_place_keeps_the_exit_code(shell: str, tmp_path: Path) -> None:
    bench = Bench(shell, tmp_path)
    for place in ("/nonexistent/receipts", "/proc/sys/kernel", "/etc/passwd"):
        ended = bench.task("exit 17", daemon=False, receipts=Path(place))
        assert (ended.code, ended.published) == (17, None)


@EVERY_SHELL
def test_a_full_device_publishes_nothing_and_keeps_the_exit_code(
    shell: str, tmp_path: Path, full_disk: Path
) -> None:
    _publishes_nothing(Bench(shell, tmp_path), full_disk)


@EVERY_SHELL
def test_a_device_without_a_name_to_spare_publishes_nothing_and_keeps_the_exit_code(
    shell: str, tmp_path: Path, linkless_disk: Path
) -> None:
    _publishes_nothing(Bench(shell, tmp_path), linkless_disk)


@EVERY_SHELL
def test_a_read_only_device_publishes_nothing_and_keeps_the_exit_code(
    shell: str, tmp_path: Path, read_only_disk: Path
) -> None:
    _publishes_nothing(Bench(shell, tmp_path), read_only_disk)


def _publishes_nothing(bench: Bench, disk: Path) -> None:
    before = sorted(disk.iterdir())
    ended = bench.task("exit 17", daemon=False, receipts=disk)
    assert (ended.code, ended.published) == (17, None)
    assert sorted(disk.iterdir()) == before


def _watched(bench: Bench, status: int) -> tuple[Ended, list[str]]:
    """A run without a daemon, and what the sync tool saw at each call."""
    diary, shard = bench.folder / "diary", bench.folder / "receipts"
    tools = bench.folder / "watching"
    tools.mkdir()
    text = _WATCHING_SYNC.format(
        target=shard / f"{ATTEMPT}-1.json", shard=shard, diary=diary, status=status
    )
    (tools / "watching-sync").write_text(text)
    (tools / "watching-sync").chmod(0o700)
    tool_path = f"{bench.tools}:{tools}:/usr/bin:/bin"
    ended = bench.task(
        "exit 7", daemon=False, changed={"TOOLS": tool_path, "SYNC": "watching-sync"}
    )
    return ended, diary.read_text().splitlines()
