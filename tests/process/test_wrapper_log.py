"""The wrapper's log: its quota to the byte, the truncation fact, a task that never notices."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from qinglong_edge.core import fact
from tests.disks import small_disk
from tests.process.harness import (
    ATTEMPT,
    EVERY_SHELL,
    PYTHON,
    QUOTA,
    RUN,
    SHELLS,
    SILENCE_S,
    Bench,
    uptime_cs,
)
from tests.support import say_to, until

# (bytes in the log before, bytes produced); contract vectors and their neighbours
_AMOUNTS = (
    *((0, 0), (0, 65_536), (0, 65_537), (65_513, 31), (65_536, 23), (65_536, 0)),
    *((0, 200_000), (65_535, 1), (65_535, 2), (1, 65_535), (1, 65_536)),
)
_PRODUCE = """
import os, sys
left = int(sys.argv[1])
while left:
    left -= os.write(1, b"o" * min(left, 997))
os._exit(9)
"""
_DEAF_TO = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE),
    *(signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXFSZ),
)
_STUBBORN = pytest.mark.parametrize(
    "shell", ["dash", "bash", "busybox"]
)  # OpenWrt prefers its applets


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A device with room for 64 KiB."""
    with small_disk(tmp_path / "disk", "size=64k") as disk:
        yield disk


@EVERY_SHELL
def test_the_log_ends_at_the_quota_and_only_a_cut_is_a_fact(shell: str, tmp_path: Path) -> None:
    bench = Bench(shell, tmp_path)
    started = [
        bench.start([*PYTHON, _PRODUCE, str(produced)], before=b"i" * before)
        for before, produced in _AMOUNTS
    ]
    for running, (before, produced) in zip(started, _AMOUNTS, strict=True):
        ended = running.wait()
        cut = before + produced > QUOTA
        assert ended.log == (b"i" * before + b"o" * produced)[:QUOTA]
        assert (ended.word, ended.fact is not None) == ("cut" if cut else "whole", cut)
        assert ended.codes == (9, 9)
        assert ended.left == ()


@EVERY_SHELL
def test_a_fact_is_canonical_and_no_earlier_than_the_start(shell: str, tmp_path: Path) -> None:
    before = uptime_cs()
    ended = Bench(shell, tmp_path).task("head -c 70000 /dev/zero")
    passed_ms = (uptime_cs() - before) * 10
    assert ended.fact is not None
    found = fact.decode(ended.fact)
    assert (found.run_id, found.attempt_id, found.quota_reached) == (RUN, ATTEMPT, True)
    assert found.maximum_bytes == QUOTA
    assert 0 <= found.observed_at_ms - ended.receipt.started_at_ms <= passed_ms


@EVERY_SHELL
def test_a_quota_need_not_be_a_multiple_of_a_block(shell: str, tmp_path: Path) -> None:
    ended = Bench(shell, tmp_path).task("head -c 100000 /dev/zero; exit 1", quota=70_001)
    assert (len(ended.log), ended.word, ended.codes) == (70_001, "cut", (1, 1))


@EVERY_SHELL
def test_a_large_writer_over_its_quota_keeps_its_exit_code(shell: str, tmp_path: Path) -> None:
    ended = Bench(shell, tmp_path).task("head -c 20000000 /dev/zero && exit 9")
    assert (len(ended.log), ended.word, ended.codes) == (QUOTA, "cut", (9, 9))


@EVERY_SHELL
def test_both_outputs_go_to_one_log_in_order(shell: str, tmp_path: Path) -> None:
    ended = Bench(shell, tmp_path).task("echo one; echo two >&2; echo three; exit 7")
    assert (ended.log, ended.word, ended.codes) == (b"one\ntwo\nthree\n", "whole", (7, 7))


@EVERY_SHELL
@pytest.mark.parametrize("kind", ["argv", "shell"])
def test_output_can_be_read_while_the_command_still_runs(
    shell: str, kind: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    text = f"printf '\\000\\377ql3'; read go <'{gate}'; printf tail >&2; exit 7"
    command = ["/bin/sh", "-c", text] if kind == "shell" else ["/usr/bin/env", "sh", "-c", text]
    running = Bench(shell, tmp_path).start(command)
    until(lambda: running.log.read_bytes() == b"\x00\xffql3")
    assert not running.ended()
    say_to(gate)
    ended = running.wait()
    assert (ended.log, ended.codes, ended.fact) == (b"\x00\xffql3tail", (7, 7), None)


def test_a_grandchild_holds_the_receipt_two_seconds_and_its_output_is_kept(
    tmp_path: Path,
) -> None:
    """All shells at once, for each of them waits; the cut is found after the receipt has gone."""
    started, gates = [], [tmp_path / shell / "gate" for shell in SHELLS]
    for shell, gate in zip(SHELLS, gates, strict=True):
        (tmp_path / shell).mkdir()
        os.mkfifo(gate)
        text = f"(read go <'{gate}'; head -c 70000 /dev/zero) & echo now; exit 7"
        bench = Bench(shell, tmp_path / shell, silence_s=SILENCE_S)
        started.append(bench.start(["/bin/sh", "-c", text]))
    for running in started:
        ended = running.wait()  # the grandchild still waits at the gate
        assert (ended.codes, ended.word, ended.log) == ((7, 7), "late", b"now\n")
        assert ended.closed  # a daemon must not wait for the capture
        assert ended.seconds > 1.5
        assert ended.fact is None
    for running, gate in zip(started, gates, strict=True):
        say_to(gate)
        until(running.fact.exists)
        assert len(running.log.read_bytes()) == QUOTA
        until(lambda: not running.fact.with_suffix(".tmp").exists())  # noqa: B023
        assert fact.decode(running.fact.read_bytes()).quota_reached


@EVERY_SHELL
def test_a_full_device_is_not_a_cut(shell: str, tmp_path: Path) -> None:
    bench = Bench(shell, tmp_path)
    ended = bench.task("head -c 200000 /dev/zero && exit 9", log=Path("/dev/full"))
    assert (ended.codes, ended.word, ended.fact) == ((9, 9), "late", None)


@EVERY_SHELL
def test_a_device_that_fills_up_is_not_a_cut(shell: str, tmp_path: Path, disk: Path) -> None:
    bench = Bench(shell, tmp_path)
    ended = bench.task("head -c 200000 /dev/zero && exit 9", log=disk / "log", quota=131_072)
    assert (ended.codes, ended.word, ended.fact) == ((9, 9), "late", None)
    assert len(ended.log) == 65_536


@_STUBBORN
def test_a_copier_that_fails_disturbs_nobody(shell: str, tmp_path: Path) -> None:
    bench = Bench(shell, tmp_path)
    tools = tmp_path / "failing"
    tools.mkdir()
    (tools / "cat").write_text("#!/bin/sh\necho complaint >&2; exit 1\n")
    (tools / "cat").chmod(0o700)
    ended = bench.task(
        "head -c 200000 /dev/zero && exit 9", changed={"TOOLS": f"{tools}:{bench.tools}"}
    )
    assert (ended.codes, ended.word, ended.log, ended.fact) == ((9, 9), "late", b"", None)


@_STUBBORN
def test_nothing_that_a_command_or_its_quota_sends_ends_the_copier(
    shell: str, tmp_path: Path
) -> None:
    """SIGXFSZ too: its default would call a core dump handler for every log that is cut."""
    bench = Bench(shell, tmp_path)
    tools, diary = tmp_path / "telling", tmp_path / "diary"
    tools.mkdir()
    (tools / "cat").write_text(
        f"#!/bin/sh\n/bin/grep ^SigIgn /proc/self/status >>'{diary}'\nexec /bin/cat\n"
    )
    (tools / "cat").chmod(0o700)
    ended = bench.task("echo text", changed={"TOOLS": f"{tools}:{bench.tools}"})
    assert (ended.codes, ended.log) == ((0, 0), b"text\n")
    ignored = int(diary.read_text().split()[1], 16)
    assert all(ignored >> (number - 1) & 1 for number in _DEAF_TO)


@EVERY_SHELL
def test_a_fact_is_never_overwritten_and_a_stale_temporary_is_cleared(
    shell: str, tmp_path: Path
) -> None:
    bench = Bench(shell, tmp_path)
    kept, temporary, fresh = (tmp_path / name for name in ("kept", "temporary", "fresh"))
    kept.write_bytes(b"earlier")
    for target in (kept, fresh):
        temporary.write_bytes(b"stale")
        ended = bench.task(
            "head -c 70000 /dev/zero; exit 3",
            changed={"FACT_TARGET": str(target), "FACT_TEMPORARY": str(temporary)},
        )
        assert (ended.codes, ended.word) == ((3, 3), "cut")
        assert not temporary.exists()
    assert kept.read_bytes() == b"earlier"
    assert fact.decode(fresh.read_bytes()).quota_reached


@EVERY_SHELL
def test_a_fact_that_cannot_be_written_changes_nothing_else(shell: str, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    ended = Bench(shell, tmp_path).task(
        "head -c 70000 /dev/zero; exit 3",
        changed={"FACT_TARGET": str(nowhere / "fact"), "FACT_TEMPORARY": str(nowhere / "tmp")},
    )
    assert (ended.codes, ended.word, len(ended.log)) == ((3, 3), "cut", QUOTA)


@EVERY_SHELL
def test_without_a_log_output_goes_nowhere_and_the_receipt_says_whole(
    shell: str, tmp_path: Path
) -> None:
    ended = Bench(shell, tmp_path).task("echo text; exit 4", capture=False)
    assert (ended.codes, ended.word, ended.log, ended.fact) == ((4, 4), "whole", b"", None)
