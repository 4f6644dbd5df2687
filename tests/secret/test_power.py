"""The power goes while the keyring changes: there is the one from before, or the one from after."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from qinglong_edge.core.errors import EdgeError
from qinglong_edge.secret import keyring
from qinglong_edge.secret.keyring import Keyring
from qinglong_edge.system.files import Files
from tests.crash.power import Disk
from tests.crash.seam import Plan, guard
from tests.secret.making import KNOWN

Tree = dict[str, bytes | None]


class Change(NamedTuple):
    """One command on the keyring file."""

    before: Keyring | None
    make: Callable[[str], Keyring]
    again: str  # what a repetition is refused with, once the change is there


CHANGES = {
    "provision": Change(None, lambda path: keyring.provision(path, Files()), "keyring_exists"),
    "rotate": Change(
        KNOWN,
        lambda path: keyring.rotate(path, Files(), expected_active="edge-key-2"),
        "keyring_conflict",
    ),
    "retire": Change(
        KNOWN,
        lambda path: keyring.retire(path, Files(), key_id="edge-key-1"),
        "keyring_key_unknown",
    ),
}


def cuts(folder: Path, change: Change) -> Iterator[tuple[Tree, bool, Keyring]]:
    """Every disk that a cut leaves, whether the command had returned, and what it returned."""
    folder.mkdir(0o700)
    path = folder / "keyring.json"
    if change.before is not None:
        Files().replace(str(path), change.before.encode())
    disk = Disk(str(folder))
    disk.begin()
    plan = Plan()
    plan.ops = []
    with guard(plan):
        made = change.make(str(path))
    seen: list[tuple[Tree, bool]] = []
    for number, op in enumerate([("begin",), *plan.ops]):
        disk.apply(op)
        done = number == len(plan.ops)
        seen += [(state, done) for state in disk.states() if (state, done) not in seen]
    yield from ((state, done, made) for state, done in seen)


@contextmanager
def rebuilt(folder: Path, tree: Tree) -> Iterator[str]:
    """The place as the cut leaves it; equal bytes under two names are one file."""
    folder.mkdir(0o700)
    path = folder / "keyring.json"
    by_data: dict[bytes, Path] = {}
    for name, data in tree.items():
        target = folder / os.path.basename(name)
        if data and data in by_data:
            target.hardlink_to(by_data[data])
        else:
            target.write_bytes(data or b"")
            target.chmod(0o600)
            by_data[data or b""] = target
    yield str(path)


def found(path: str) -> Keyring | None:
    try:
        return keyring.read(path, Files())
    except EdgeError as error:
        if error.facts != {"reason": "keyring_missing"}:
            raise
        return None


@pytest.mark.parametrize("what", CHANGES)
def test_a_power_cut_leaves_the_keyring_from_before_or_from_after(
    what: str, tmp_path: Path
) -> None:
    """P5: and a repetition of the command ends in one true keyring, with nothing left over."""
    change = CHANGES[what]
    states = 0
    outcomes = set()
    for states, (tree, done, made) in enumerate(cuts(tmp_path / "played", change), 1):
        with rebuilt(tmp_path / f"cut{states}", tree) as path:
            left = found(path)
            assert left in (change.before, made)
            assert left == made or not done, "the command had returned"
            outcomes.add(left == made)
            if left == made:
                with pytest.raises(EdgeError) as caught:
                    change.make(path)
                assert caught.value.code == change.again
            else:
                change.make(path)
            after = keyring.read(path, Files())
            assert left is None or left.active in after.ids
            assert sorted(os.listdir(os.path.dirname(path))) == [
                "keyring.json",
                "keyring.json.lock",
            ]
            assert os.stat(path).st_nlink == 1
    assert states >= 10
    assert outcomes == {False, True}
