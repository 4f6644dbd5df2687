"""P8 on a small disk: old logs make room for new ones, and nothing else ever lacks it."""

from __future__ import annotations

import functools
from typing import Any

from tests.disks import small_disk
from tests.e2e.kit import Kit
from tests.support import until

MIB = 1 << 20
RUNS = 200


def test_two_hundred_logs_of_a_mebibyte_pass_through_a_disk_of_sixty_four(bare: Kit) -> None:
    """ADR-0024 section 5: below the reserve the oldest settled logs go, whatever their age."""
    kit = bare
    with small_disk(kit.state, "size=64m"):
        kit.ok("init")
        noisy = f"head -c {MIB} /dev/zero"
        kit.ok("task", "add", "noisy", "--overlap", "parallel", "--shell", noisy)
        with kit.daemon():
            for number in range(1, RUNS + 1):
                started = kit.ask("run.start", name="noisy")
                assert "result" in started, (number, started)
                ended = kit.ended(number)
                assert (ended["status"], ended["log_bytes"]) == ("succeeded", MIB), ended
            told = kit.ask("status")["result"]
            assert "log_pressure" in told["degraded"]
            assert "no_space" not in told["degraded"]
            assert told["storage"]["free_bytes"] >= 32 * MIB - 64 * 1024
            kept = [_log(kit, number) for number in range(1, RUNS + 1)]
        gone = [each for each in kept if "retired_at_ms" in each]
        assert len(gone) > RUNS - 36
        assert kept[: len(gone)] == gone  # the oldest, in order
        assert all((each["bytes"], each["truncated"]) == (MIB, False) for each in gone)
        assert all(each["total"] == MIB for each in kept[len(gone) :])
        document = kit.ok("log", "1")
        assert set(document) == {"retired_at_ms", "bytes", "truncated"}
        told_text = kit.run("log", "1")
        assert (told_text.status, told_text.out) == (3, "")
        assert "log_retired" in told_text.err
        logs = [path for path in (kit.state / "logs").rglob("*.log") if path.stat().st_size]
        assert len(logs) == RUNS - len(gone)


def _is_full(kit: Kit, number: int) -> bool:
    return bool(_log(kit, number)["total"] == 4 * MIB)


def _log(kit: Kit, number: int) -> dict[str, Any]:
    answer: dict[str, Any] = kit.ask("log.read", run=str(number), tail=0)
    assert "result" in answer, answer
    found: dict[str, Any] = answer["result"]
    return found


def test_a_log_of_a_run_that_goes_on_is_never_touched(bare: Kit) -> None:
    """What is left has no settled log: the third launch waits until there is one."""
    kit = bare
    go = kit.file("go")
    with small_disk(kit.state, "size=44m"):
        kit.ok("init")
        text = f"head -c {4 * MIB} /dev/zero; while ! test -e {go}; do sleep 0.05; done"
        kit.ok("task", "add", "t", "--overlap", "parallel", "--max-parallel", "4", "--shell", text)
        try:
            with kit.daemon():
                for number in (1, 2):
                    kit.ask("run.start", name="t")
                    until(functools.partial(_is_full, kit, number), what="a full log")
                kit.ask("run.start", name="t")
                told = kit.ask("status")["result"]
                assert (len(told["active"]), told["waiting"]) == (2, 1)
                assert {"log_capacity", "log_pressure"} <= set(told["degraded"])
                assert [_log(kit, number)["total"] for number in (1, 2)] == [4 * MIB] * 2
                go.touch()
                ended = [kit.ended(number)["status"] for number in (1, 2, 3)]
                assert ended == ["succeeded"] * 3
                assert "retired_at_ms" in _log(kit, 1)
        finally:
            go.touch()
