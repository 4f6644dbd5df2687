"""What a worker proves itself with, read again whenever a file of it has changed.

Owns the checks: private key and token, and the directories that hold them, are open to nobody
else; none of the files is a link; the token has its exact form. A certificate that was renewed on
the disk serves the next request. Nothing of the content is told by any error.
"""

from __future__ import annotations

import os
import re
import stat

from qinglong_edge.core.errors import EdgeError, Unavailable
from qinglong_edge.worker.transport import Material

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qinglong_edge.app.worker_config import WorkerConfig
    from qinglong_edge.system.files import Files

_TOKEN_BYTES_MAX = 256
_TRUST_BYTES_MAX = 1_048_576
_TOKEN = re.compile(r"ql3w_([A-Za-z0-9][A-Za-z0-9._:-]{0,63})_([A-Za-z0-9_-]{43})")


class Credentials:
    """The credential files of one worker."""

    def __init__(self, config: WorkerConfig, files: Files) -> None:
        self._config = config
        self._files = files
        self._material: Material | None = None

    def load(self) -> Material:
        """The material as it is now; Unavailable `credentials_unavailable` naming the entry."""
        config = self._config
        stamp = tuple(
            part
            for name in ("token", "key", "certificate", "trust")
            for part in self._stamp(name, private=name in ("token", "key"))
        )
        if self._material is None or self._material.stamp != stamp:
            self._material = Material(
                certificate=config.certificate,
                key=config.key,
                trust=config.trust,
                token=self._token(),
                stamp=stamp,
            )
        return self._material

    def _stamp(self, name: str, *, private: bool) -> tuple[int, ...]:
        path = getattr(self._config, name)
        try:
            found = os.lstat(path)
            above = os.stat(os.path.dirname(path))
        except OSError:
            raise _unavailable(name) from None
        forbidden = 0o077 if private else 0o022
        if (
            not stat.S_ISREG(found.st_mode)
            or found.st_mode & forbidden
            or found.st_uid not in (0, os.geteuid())
            or (private and above.st_mode & 0o077)
            or found.st_size > _TRUST_BYTES_MAX
        ):
            raise _unavailable(name)
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def _token(self) -> str:
        try:
            data = self._files.read_private(self._config.token, _TOKEN_BYTES_MAX) or b""
        except (OSError, EdgeError):
            raise _unavailable("token") from None
        text = data.removesuffix(b"\n").decode("ascii", "replace")
        matched = _TOKEN.fullmatch(text)
        wanted = self._config.credential_id
        if len(data) > _TOKEN_BYTES_MAX or matched is None:
            raise _unavailable("token")
        if wanted is not None and matched[1] != wanted:
            raise _unavailable("credentialId")
        return text


def _unavailable(field: str) -> Unavailable:
    return Unavailable(
        "credentials_unavailable", "A credential is missing, unsafe or malformed.", field=field
    )
