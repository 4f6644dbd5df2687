"""What waits for the commit of an import: it leaves nothing behind, and never stands in the way."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from qinglong_edge.app.staging import Staged


def test_what_was_kept_comes_back_in_order_and_has_no_name(tmp_path: Path) -> None:
    staged = Staged(str(tmp_path), "a")
    staged.add("env", {"name": "A"})
    staged.add("task", {"name": "t"}, enabled=False)
    assert os.listdir(tmp_path) == []
    told = [("env", {"name": "A"}, True), ("task", {"name": "t"}, False)]
    assert list(staged.kept()) == told
    staged.close()


def test_a_command_that_was_killed_between_making_and_unnaming_leaves_no_growing_heap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for token in ("a", "b"):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdopen", _killed)
            with pytest.raises(KeyboardInterrupt):
                Staged(str(tmp_path), token)
        assert len(os.listdir(tmp_path)) == 1
    Staged(str(tmp_path), "c").close()
    assert os.listdir(tmp_path) == []


def _killed(fd: int, *_rest: object) -> None:
    os.close(fd)
    raise KeyboardInterrupt


def test_a_full_disk_does_not_keep_it_from_being_dropped(tmp_path: Path) -> None:
    """Else the daemon's own end would stop there, before the database is closed."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    staged = Staged(str(tmp_path), "a")
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        staged.add("task", {"name": "long enough"})
        with pytest.raises(OSError) as caught:
            next(staged.kept())
        assert caught.value.errno == errno.EFBIG
        staged.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
