"""A small file system to fill up or to make read-only; it is gone when its block ends."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import until


@contextlib.contextmanager
def small_disk(folder: Path, options: str) -> Iterator[Path]:
    """A tmpfs on `folder`; the test is skipped where mounting one is not allowed."""
    folder.mkdir(mode=0o700, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"mode=700,{options}", "edge-test", str(folder)]
    done = subprocess.run(command, capture_output=True)
    if done.returncode != 0:
        told = done.stderr.decode(errors="replace").strip()
        pytest.skip(f"a small file system may not be mounted here: {told}")
    try:
        yield folder
    finally:
        # The last process of a run may still be on its way out.
        until(lambda: subprocess.run(["umount", str(folder)]).returncode == 0, what="umount")
