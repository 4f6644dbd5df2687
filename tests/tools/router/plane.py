"""Run in a guest: a control plane whose books outlive a power cut.

    python3 -m tests.tools.router.plane ...    as tests.worker.peer

Where a disk of marks is attached, each change of the books is heard there before it is answered:
what the worker was told is what the plane knows after the cut.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
from typing import Any

from tests.tools.router.marks import DEVICE, Snapshots
from tests.worker import peer
from tests.worker.books import Books
from tests.worker.ledger import now_ms
from tests.worker.peer import Plane


class Kept(Plane):
    """A plane that writes down what it says."""

    def __init__(self, books: Books, token: str) -> None:
        super().__init__(books, token)
        self._snapshots = Snapshots() if _attached() else None
        self._writing = threading.Lock()
        self._last = ""

    def answer(self, path: str, token: str, body: bytes) -> dict[str, Any]:
        """The reply to one request, once what it changed is written down."""
        try:
            return super().answer(path, token, body)
        finally:
            if self._snapshots is not None:
                self._keep(self._snapshots)

    def _keep(self, snapshots: Snapshots) -> None:
        with self._writing:  # a later snapshot is never under an earlier one
            with self.lock:
                text = self.snapshot()
            if text != self._last:
                snapshots.say(books=text, at_ms=now_ms())
                self._last = text


def _attached() -> bool:
    try:
        return stat.S_ISBLK(os.stat(DEVICE).st_mode)
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    sys.exit(peer.main(sys.argv[1:], Kept))
