"""One worker's spool on the real disk, and where the log of the known offer stands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.artifact.worker import (
    LogLease,
    Policy,
    Preparation,
    WorkerLogAllocator,
    worker_log_id,
)
from qinglong_edge.core.errors import EdgeError
from tests.artifact.place import Disk, write

IDS = ("project-1", "run-1", "attempt-1", "offer-1")
SMALL = Policy(maximum_attempt_bytes=100, minimum_free_bytes=1_000, maximum_write_chunk_bytes=64)


class Spool:
    """One worker's root, not made yet, and where the log of the known offer will stand."""

    def __init__(self, folder: Path, limits: Policy = SMALL) -> None:
        self.root = folder / "spool"
        self.limits = limits
        self.disk = Disk()
        self.allocator = WorkerLogAllocator(str(self.root), self.disk, limits)
        self.id = worker_log_id(*IDS)
        self.shard = self.root / self.id[5:7]
        self.log = self.shard / f"{self.id}.log"
        self.fact = self.shard / f".{self.id}.log.truncated.json"
        self.temporary = self.shard / f".{self.id}.log.truncated.tmp"

    def prepare(self) -> Preparation:
        return self.allocator.prepare(*IDS)

    def written(self, data: bytes = b"0123456789") -> None:
        output = self.prepare().take_output()
        for start in range(0, len(data), 64):
            output.write("stdout", data[start : start + 64], 1)
        output.close()

    def open(self) -> LogLease | None:
        return self.allocator.open(IDS[1], IDS[2], self.id)

    def read(self) -> tuple[bytes, bool | None]:
        lease = self.open()
        assert lease is not None
        data = b"".join(lease.chunks())
        assert len(data) == lease.byte_length
        return data, lease.truncated

    def document(self, **changes: Any) -> dict[str, Any]:
        return {
            "schemaVersion": 1,
            "runId": IDS[1],
            "attemptId": IDS[2],
            "logArtifactId": self.id,
            "maximumBytes": self.limits.maximum_attempt_bytes,
            "quotaReached": True,
            "observedAtMs": 7,
            **changes,
        }

    def told(self, **changes: Any) -> None:
        write(self.fact, json.dumps(self.document(**changes)).encode())


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(EdgeError) as caught:
        call()
    return caught.value.code
