"""The control socket under want: a client costs its own connection and never the worker."""

from __future__ import annotations

import errno
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.app import rpc, worker_control
from qinglong_edge.app.worker_control import ControlServer
from qinglong_edge.system import sockets
from qinglong_edge.system.clock import Clock
from qinglong_edge.system.loop import Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop(Clock())
    yield made
    made.close()


def server(loop: Loop, folder: Path) -> ControlServer:
    config = types.SimpleNamespace(socket=str(folder / "worker.sock"))
    worker: Any = types.SimpleNamespace(config=config, loop=loop, say=lambda _event, **_facts: None)
    return ControlServer(worker)


def test_a_client_for_whom_no_descriptor_is_left_waits_and_the_loop_does_not_spin(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = server(loop, tmp_path)
    tries = 0

    def accept(_listener: object) -> None:
        nonlocal tries
        tries += 1
        raise OSError(errno.EMFILE, "EMFILE")

    with monkeypatch.context() as patch:
        patch.setattr(sockets, "accept", accept)
        client = sockets.connect(str(tmp_path / "worker.sock"), 5.0)
        begun = Clock().boot_ms()
        while Clock().boot_ms() - begun < 500:
            loop.run_once(50)
    assert tries == 1
    monkeypatch.setattr(worker_control, "call", lambda *_given: {"well": True})
    client.sendall(rpc.call_line(1, "status", {}))
    client.setblocking(False)
    answer = b""
    while not answer.endswith(b"\n"):
        assert Clock().boot_ms() - begun < 10_000
        loop.run_once(50)
        try:
            answer += client.recv(4_096)
        except BlockingIOError:
            continue
    assert b"well" in answer
    client.close()
    made.close()


def test_a_request_that_hits_a_fault_is_answered_and_the_worker_goes_on(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = server(loop, tmp_path)

    def fail(*_given: object) -> None:
        raise OSError(errno.EIO, "EIO")

    monkeypatch.setattr(worker_control, "call", fail)
    client = sockets.connect(str(tmp_path / "worker.sock"), 5.0)
    client.sendall(rpc.call_line(1, "settle", {}))
    for _ in range(3):
        loop.run_once(200)
    client.settimeout(5)
    assert b'"error"' in client.recv(4_096)
    client.close()
    made.close()
