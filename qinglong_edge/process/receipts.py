"""The receipt files: what a process left when no daemon was there to hear it (ADR-0069 section 2).

Owns the paths and the file operations; the wrapper is the usual writer.

    <root>/<first two of attempt id>/<attempt id>.json
    <root>/<first two>/.<attempt id>.<32 hex>.tmp            while it is written
    <root>/.quarantine/<first two>/<attempt id>.json         a receipt nobody could believe

A receipt appears whole or not at all and is never overwritten. Nothing lists a directory: the name
under which a wrapper writes follows from its attempt, so what a killed one left is found again.
"""

from __future__ import annotations

import os

from qinglong_edge.core import receipt as receipts
from qinglong_edge.core.canonical import sha256_hex
from qinglong_edge.core.errors import Corrupt, Invalid
from qinglong_edge.core.ids import portable_id
from qinglong_edge.core.limits import PATH_BYTES_MAX, RECEIPT_BYTES_MAX
from qinglong_edge.core.receipt import Receipt, ReceiptInvalid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qinglong_edge.system.files import Files

_QUARANTINE = ".quarantine"


class ReceiptPaths:
    """Where one attempt's receipt stands."""

    def __init__(self, root: str, attempt_id: str) -> None:
        shard = portable_id(attempt_id, "attempt_id")[:2]
        if "/" in shard or shard in (".", ".."):
            raise Invalid("id_invalid", "An id does not name a receipt.", field="attempt_id")
        self._name = f"{attempt_id}.json"
        self._stem = f".{attempt_id}"
        self.shard = os.path.join(root, shard)
        self.target = os.path.join(self.shard, self._name)
        self.quarantine_shard = os.path.join(root, _QUARANTINE, shard)
        self.quarantined = os.path.join(self.quarantine_shard, self._name)
        self.reference = f"{_QUARANTINE}/{shard}/{self._name}"
        self.unfinished = self.temporary(sha256_hex(attempt_id.encode("ascii"))[:32])

    def temporary(self, nonce: str) -> str:
        """The name under which a receipt is written before it is linked."""
        return os.path.join(self.shard, f"{self._stem}.{nonce}.tmp")


class ReceiptStore:
    """The receipt root of one state directory."""

    def __init__(self, root: str, files: Files) -> None:
        if not root.startswith("/") or root == "/" or len(os.fsencode(root)) > PATH_BYTES_MAX:
            raise Invalid("path_invalid", "The receipt root is not a bounded absolute path.")
        self._root = root
        self._files = files

    def paths(self, attempt_id: str) -> ReceiptPaths:
        """Every path of one attempt."""
        return ReceiptPaths(self._root, attempt_id)

    def prepare(self, attempt_id: str) -> ReceiptPaths:
        """Make the attempt's shard; durable before a process can publish into it."""
        paths = self.paths(attempt_id)
        self._files.make_private_directory(paths.shard)
        return paths

    def publish(self, receipt: Receipt, nonce: str) -> bool:
        """Publish a receipt; False if one is there already (it is kept)."""
        paths = self.prepare(receipt.attempt_id)
        return self._files.publish(paths.temporary(nonce), paths.target, receipt.encode())

    def read(self, attempt_id: str) -> Receipt | None:
        """The receipt of an attempt, or None; `ReceiptInvalid` for anything but its exact bytes."""
        try:
            data = self._files.read_private(self.paths(attempt_id).target, RECEIPT_BYTES_MAX)
        except Corrupt:
            raise ReceiptInvalid("receipt_invalid", "A receipt is not a regular file.") from None
        if data is None:
            return None
        receipt = receipts.decode(data)
        if receipt.attempt_id != attempt_id:
            raise ReceiptInvalid("receipt_invalid", "A receipt names another attempt.")
        return receipt

    def exists(self, attempt_id: str) -> bool:
        """True if a file (of whatever kind) has the receipt's name."""
        return self._files.exists(self.paths(attempt_id).target)

    def reference(self, attempt_id: str) -> str:
        """The stored name of an attempt's place in quarantine."""
        return self.paths(attempt_id).reference

    def remove(self, attempt_id: str) -> bool:
        """Remove a receipt, durably; False if there was none.

        What a wrapper wrote that was killed before it had published goes too.
        """
        paths = self.paths(attempt_id)
        self._files.remove(paths.unfinished)
        if not self._files.remove(paths.target):
            return False
        self._files.sync_directory(paths.shard)
        return True

    def quarantine(self, attempt_id: str) -> bool:
        """Move an unbelievable receipt away; True if it is in quarantine afterwards. Idempotent.

        What cannot have a second name (a directory, a file system without links) stays in its place
        and is no receipt all the same.
        """
        paths = self.paths(attempt_id)
        for directory in (os.path.dirname(paths.quarantine_shard), paths.quarantine_shard):
            self._files.make_private_directory(directory)
        try:
            linked = self._files.link(paths.target, paths.quarantined)
        except PermissionError:
            return False
        if not linked:
            return self._files.exists(paths.quarantined)
        self._files.sync_directory(paths.quarantine_shard)
        self._files.remove(paths.target)
        self._files.sync_directory(paths.shard)
        return True

    def purge(self, attempt_id: str) -> bool:
        """Delete a quarantined receipt; False if there was none."""
        paths = self.paths(attempt_id)
        if not self._files.remove(paths.quarantined):
            return False
        self._files.sync_directory(paths.quarantine_shard)
        return True
