"""Where a log and its fact stand, and what must be true of both (ADR-0024 section 4, ADR-0115).

Owns the names below a log root and the checks around each use of them:

    <root>/<first two hex of id>/<id>.log
    <root>/<first two hex>/.<id>.log.truncated.json     the truncation fact
    <root>/<first two hex>/.<id>.log.truncated.tmp      while the fact is written

Root and shard are real directories of our own uid, mode 0700, and the same ones before and after
a use. Files are regular, our own, private, and have one name; only a fact may still have its
temporary name beside it, if a crash came between link and removal. Nothing tells a path.
"""

from __future__ import annotations

import os

from qinglong_edge.core import fact as facts
from qinglong_edge.core.errors import Corrupt
from qinglong_edge.core.limits import FACT_BYTES_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qinglong_edge.core.fact import Fact
    from qinglong_edge.system.files import Files

_SHARD_DIGITS = 2


class LogPaths:
    """Every path of one log."""

    __slots__ = ("fact", "fact_temporary", "file", "id", "root", "shard", "starting")

    def __init__(self, root: str, log_id: str) -> None:
        self.id = log_id
        self.root = root
        self.shard = os.path.join(root, facts.log_shard(log_id))
        self.file = os.path.join(self.shard, f"{log_id}.log")
        self.starting = os.path.join(self.shard, ".starting.log")
        self.fact = os.path.join(self.shard, f".{log_id}.log.truncated.json")
        self.fact_temporary = os.path.join(self.shard, f".{log_id}.log.truncated.tmp")


class Guard:
    """Root and shard of a log as they were found; `check` refuses others in their place."""

    def __init__(self, files: Files, paths: LogPaths) -> None:
        self._files = files
        self._paths = paths
        self._found: list[tuple[int, int]] = []

    def check_root(self) -> None:
        """Refuse an unsafe root, or another than before; a missing one is an OSError."""
        found = [self._files.check_private_directory(self._paths.root, _is_shard)]
        if self._found not in ([], found):
            raise Corrupt("directory_unsafe", "A log's directory was replaced while it was used.")
        self._found = found

    def make_shard(self) -> None:
        """Make the shard if it is missing, once its root is checked."""
        self._found.append(self._files.make_private_directory(self._paths.shard))

    def find(self) -> bool:
        """Look at root and shard, change nothing; False if one is missing."""
        try:
            self._found = self._look()
        except FileNotFoundError:
            return False
        return True

    def check(self) -> None:
        """`Corrupt` unless root and shard are still those that were found."""
        if self._look() != self._found:
            raise Corrupt("directory_unsafe", "A log's directory was replaced while it was used.")

    def _look(self) -> list[tuple[int, int]]:
        return [
            self._files.check_private_directory(path, repair=False)
            for path in (self._paths.root, self._paths.shard)
        ]


def _is_shard(name: str) -> bool:
    return len(name) == _SHARD_DIGITS or name == "lost+found"


def read_fact(files: Files, paths: LogPaths, run_id: str, attempt_id: str) -> Fact | None:
    """The fact beside a log, None without one; OSError, `Corrupt` or `Invalid` if it is not its."""
    data = files.read_own(paths.fact, FACT_BYTES_MAX, twin=paths.fact_temporary)
    if data is None:
        return None
    fact = facts.decode(data)
    if (fact.run_id, fact.attempt_id, fact.log_artifact_id) != (run_id, attempt_id, paths.id):
        raise Corrupt("fact_foreign", "A truncation fact tells of another log.")
    return fact
