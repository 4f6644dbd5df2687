"""Tasks and envs that were checked and wait for the commit of their import.

Owns a file without a name in the state directory: after a crash nothing of it is left, or but an
empty `.import` that the next import takes away.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


class Staged:
    """What one command has staged so far."""

    def __init__(self, directory: str, token: str) -> None:
        self.token = token
        path = os.path.join(directory, ".import")
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b")
        os.unlink(path)

    def add(self, kind: str, asked: dict[str, object], *, enabled: bool = True) -> None:
        """Keep a task or an env that was checked."""
        line = json.dumps([kind, asked, enabled], ensure_ascii=False, separators=(",", ":"))
        self._file.write(line.encode() + b"\n")

    def kept(self) -> Iterator[tuple[str, dict[str, object], bool]]:
        """What was kept, in order."""
        self._file.seek(0)
        for line in self._file:
            kind, asked, enabled = json.loads(line)
            yield kind, asked, enabled

    def close(self) -> None:
        """Drop it, also where a full disk keeps the last of it from being written."""
        try:
            self._file.close()
        except OSError:
            return
