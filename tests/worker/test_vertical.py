"""From an offer of a real plane to a completion, and every worker that dies on the way."""

from __future__ import annotations

import base64
import os
from pathlib import Path

from tests.support import until
from tests.worker.kit import Plane, WorkerHome


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="ascii").split() if path.exists() else []


def test_an_offer_becomes_a_process_once_and_its_log_is_stored_before_it_completes(
    plane: Plane, home: WorkerHome, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    run = plane.add(f"echo hello; echo x >> {marker}; exit 3")
    home.start()
    attempt = plane.await_end(run)
    assert attempt["end"] == "failed", home.said()
    assert attempt["result"]["exitCode"] == 3
    assert base64.b64decode(attempt["content"]) == b"hello\n"
    assert attempt["artifact"]["truncated"] is False
    assert attempt["completions"] == 1
    assert lines(marker) == ["x"]
    looked = plane.look()
    assert looked["refused"] == []
    until(lambda: home.status()["offers"] == [])
    assert home.end() == 0
    assert plane.look()["session"]["status"] == "offline"
    receipts = [name for _, _, files in os.walk(f"{home.state}/receipts") for name in files]
    assert receipts == []
