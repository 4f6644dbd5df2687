"""The keyring file: read only if nobody else could have touched it, changed whole or not at all."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qinglong_edge.core.canonical import base64url
from qinglong_edge.core.errors import EdgeError, Unavailable
from qinglong_edge.core.limits import KEYRING_BYTES_MAX, KEYRING_KEYS_MAX
from qinglong_edge.secret import keyring
from qinglong_edge.secret.keyring import Keyring
from qinglong_edge.system.files import Files
from tests.secret.making import KNOWN, VECTORS, refused
from tests.support import ROOT, nearby
from tests.unit.zones import FUZZ

STRANGER = 54_321
CORRUPT = ("secret_provider_unavailable", "keyring_corrupt")
UNSAFE = ("secret_provider_unavailable", "keyring_unsafe")
MISSING = ("secret_provider_unavailable", "keyring_missing")
TEXT: str = VECTORS["keyring"]["text"]
_HOLDER = """
import sys
sys.path.insert(0, sys.argv[1])
from qinglong_edge.system.files import Files
print(Files().lock_owner(sys.argv[2]) is not None, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def files() -> Files:
    return Files()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a keyring may stand; its directory is private."""
    folder = tmp_path / "state"
    folder.mkdir(0o700)
    return folder / "keyring.json"


@pytest.fixture
def ring(path: Path) -> str:
    """A keyring that is there."""
    path.write_text(TEXT, encoding="ascii")
    path.chmod(0o600)
    return str(path)


@pytest.fixture(autouse=True)
def _no_descriptor_stays() -> Iterator[None]:
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) == before


def keys(count: int) -> tuple[tuple[str, bytes], ...]:
    return tuple((f"k{number:02}", bytes([number]) * 32) for number in range(count))


def changed(**changes: Any) -> bytes:
    return json.dumps({**json.loads(TEXT), **changes}).encode()


# Content -----------------------------------------------------------------------------------------


def test_the_file_has_exactly_the_known_bytes() -> None:
    assert KNOWN.encode() == TEXT.encode()
    assert keyring.decode(TEXT.encode()) == KNOWN
    assert KNOWN.digest == VECTORS["keyring"]["digest"]
    assert KNOWN.ids == ("edge-key-1", "edge-key-2")
    assert (KNOWN.key("edge-key-1"), KNOWN.key("none")) == (b"\x11" * 32, None)


def test_any_formatting_and_order_is_read_as_the_same_keyring() -> None:
    document = json.loads(TEXT)
    turned = {name: document[name] for name in reversed(document)}
    turned["keys"] = dict(reversed(turned["keys"].items()))
    for text in (json.dumps(turned, indent=4), f"\n\t{json.dumps(turned)}\r\n  "):
        assert keyring.decode(text.encode()) == KNOWN
    assert keyring.decode(json.dumps(turned).encode()).digest == KNOWN.digest


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"[]",
        b"null",
        b"\xef\xbb\xbf" + TEXT.encode(),
        TEXT.encode() + b"{}",
        b" " * (KEYRING_BYTES_MAX + 1 - len(TEXT)) + TEXT.encode(),
        b"[" * 16_000,
        changed(version=2),
        changed(version=True),
        changed(version=1.0),
        changed(version="1"),
        changed(activeKeyId="edge-key-3"),
        changed(activeKeyId=None),
        changed(activeKeyId=["edge-key-1"]),
        changed(comment="mine"),
        changed(keys={}),
        changed(keys=[]),
        changed(keys={**dict.fromkeys(map(str, range(17)), "A" * 43)}, activeKeyId="0"),
        changed(keys={"edge-key-2": "A" * 42}),
        changed(keys={"edge-key-2": "A" * 44}),
        changed(keys={"edge-key-2": "A" * 43 + "="}),
        changed(keys={"edge-key-2": "A" * 42 + "B"}),  # stray bits
        changed(keys={"edge-key-2": "+" * 43}),
        changed(keys={"edge-key-2": None}),
        changed(keys={"edge-key-2": {"k": 1}}),
        changed(keys={"edge-key-2": "A" * 43, "bad id": "A" * 43}),
        changed(keys={"edge-key-2": "A" * 43, "": "A" * 43}),
        changed(keys={"edge-key-2": "A" * 43, "k" * 129: "A" * 43}),
        TEXT.replace('"edge-key-1"', '"edge-key-2"').encode(),
        json.dumps({"version": 1, "keys": json.loads(TEXT)["keys"]}).encode(),
    ],
    ids=range(31),
)
def test_anything_else_is_no_keyring(data: bytes) -> None:
    assert refused(keyring.decode, data) == CORRUPT


def test_one_to_sixteen_keys_under_the_longest_ids_fit_the_file() -> None:
    for count in (1, KEYRING_KEYS_MAX):
        long = tuple((f"{each}{'x' * 125}", key) for each, key in keys(count))
        made = Keyring(active=long[0][0], keys=long)
        assert len(made.encode()) <= KEYRING_BYTES_MAX
        assert keyring.decode(made.encode()) == made
    padded = TEXT.encode() + b" " * (KEYRING_BYTES_MAX - len(TEXT))
    assert keyring.decode(padded) == KNOWN


@pytest.mark.parametrize(
    "wrong",
    [
        {"keys": keys(0)},
        {"keys": keys(17)},
        {"keys": keys(2)[::-1]},
        {"keys": (keys(1)[0], keys(1)[0])},
        {"active": "k09"},
        {"keys": (("k00", b"x" * 31),)},
        {"keys": (("k/", b"x" * 32),), "active": "k/"},
    ],
    ids=range(7),
)
def test_a_keyring_that_exists_is_valid(wrong: dict[str, Any]) -> None:
    assert refused(Keyring, **{"active": "k00", "keys": keys(2), **wrong}) == CORRUPT


@FUZZ
@given(st.binary(max_size=400))
def test_no_bytes_give_anything_but_a_keyring_or_its_error(noise: bytes) -> None:
    _decodes_or_refuses(noise)


@FUZZ
@given(st.integers(0, len(TEXT) - 1), st.integers(0, len(TEXT)), st.binary(max_size=4))
def test_no_damage_to_a_file_gives_anything_but_a_keyring_or_its_error(
    start: int, length: int, noise: bytes
) -> None:
    data = TEXT.encode()
    _decodes_or_refuses(data[:start] + noise + data[start + length :])


def _decodes_or_refuses(data: bytes) -> None:
    try:
        found = keyring.decode(data)
    except Unavailable as error:
        if error.facts != {"reason": "keyring_corrupt"}:
            raise
    else:
        assert keyring.decode(found.encode()) == found


# Reading -----------------------------------------------------------------------------------------


def test_a_file_cut_at_any_byte_is_damaged_and_stays_as_it_is(ring: str, files: Files) -> None:
    for length in range(len(TEXT) - 1):  # the newline alone may lack
        os.truncate(ring, 0)
        Path(ring).write_bytes(TEXT.encode()[:length])
        assert refused(keyring.read, ring, files) == CORRUPT
        assert refused(keyring.rotate, ring, files, expected_active="edge-key-2") == CORRUPT
        assert Path(ring).read_bytes() == TEXT.encode()[:length]
    Path(ring).write_bytes(TEXT.encode()[:-1])
    assert keyring.read(ring, files) == KNOWN


def test_the_size_is_one_to_sixteen_kibibytes(ring: str, files: Files) -> None:
    for size, good in ((KEYRING_BYTES_MAX, True), (KEYRING_BYTES_MAX + 1, False), (0, False)):
        Path(ring).write_bytes((TEXT.encode() + b" " * KEYRING_BYTES_MAX * 2)[:size])
        if good:
            assert keyring.read(ring, files) == KNOWN
        else:
            assert refused(keyring.read, ring, files) == CORRUPT


def test_it_is_read_anew_each_time(ring: str, files: Files) -> None:
    assert keyring.read(ring, files).active == "edge-key-2"
    files.replace(ring, KNOWN.replace(active="edge-key-1").encode())
    assert keyring.read(ring, files).active == "edge-key-1"
    os.unlink(ring)
    assert refused(keyring.read, ring, files) == MISSING


def test_only_a_file_without_a_bit_for_others_is_read(ring: str, files: Files) -> None:
    """ADR-0024 verification 6: every mode, on a real file."""
    unreadable = ("secret_provider_unavailable", "keyring_unreadable")  # by us too, if not root
    for mode in range(0o1000):
        os.chmod(ring, mode)
        if mode & 0o077:
            assert refused(keyring.read, ring, files) in (UNSAFE, unreadable), oct(mode)
        elif mode & 0o400:
            assert keyring.read(ring, files) == KNOWN
        assert stat.S_IMODE(os.stat(ring).st_mode) == mode


def link_to_ring(path: Path) -> None:
    target = path.with_name("elsewhere")
    target.write_text(TEXT, encoding="ascii")
    target.chmod(0o600)
    path.symlink_to(target)


def second_name(path: Path) -> None:
    target = path.with_name("elsewhere")
    target.write_text(TEXT, encoding="ascii")
    target.chmod(0o600)
    path.hardlink_to(target)


def listener(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock, nearby(path) as name:
        sock.bind(name)


@pytest.mark.parametrize(
    "place",
    [
        link_to_ring,
        second_name,
        listener,
        lambda path: path.symlink_to("nowhere"),
        lambda path: path.mkdir(0o700),
        lambda path: os.mkfifo(path, 0o600),
        lambda path: path.symlink_to("/dev/zero"),
    ],
)
def test_what_is_no_private_file_of_one_name_is_not_read_and_not_changed(
    place: Callable[[Path], object], path: Path, files: Files
) -> None:
    place(path)
    before = os.lstat(path)
    assert refused(keyring.read, str(path), files) == UNSAFE
    assert refused(keyring.rotate, str(path), files, expected_active="edge-key-2") == UNSAFE
    assert refused(keyring.retire, str(path), files, key_id="edge-key-1") == UNSAFE
    assert refused(keyring.provision, str(path), files)[0] == "keyring_exists"
    assert os.path.samestat(os.lstat(path), before)


def test_another_owners_file_is_not_read(
    ring: str, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: STRANGER)
        assert refused(keyring.read, ring, files) == UNSAFE
    if os.geteuid() == 0:  # only root can give a file away
        os.chown(ring, STRANGER, -1)
        assert refused(keyring.read, ring, files) == UNSAFE


def test_a_file_swapped_while_it_is_opened_is_not_read(ring: str) -> None:
    class Swapping(Files):
        def _open_regular(self, path: str) -> int | None:
            fd = super()._open_regular(path)
            self.replace(path, KNOWN.encode())
            return fd

    assert refused(keyring.read, ring, Swapping()) == UNSAFE


def test_a_file_that_changes_while_it_is_read_is_not_believed(ring: str) -> None:
    class Growing(Files):
        def _read_up_to(self, fd: int, bytes_max: int) -> bytes:
            with open(ring, "ab") as opened:
                opened.write(b"\n")
            return super()._read_up_to(fd, bytes_max)

    assert refused(keyring.read, ring, Growing()) == UNSAFE


def test_a_place_that_cannot_be_reached_is_told_as_such(path: Path, files: Files) -> None:
    path.parent.joinpath("file").touch()
    said = refused(keyring.read, str(path.parent / "file" / "keyring.json"), files)
    assert said == ("secret_provider_unavailable", "keyring_unreadable")
    gone = str(path.parent / "gone" / "keyring.json")
    assert refused(keyring.read, gone, files) == MISSING
    assert refused(keyring.provision, gone, files)[0] == "storage_unavailable"


# Changing ----------------------------------------------------------------------------------------


def test_the_first_keyring_is_private_and_never_replaced(path: Path, files: Files) -> None:
    before = os.umask(0)
    try:
        made = keyring.provision(str(path), files)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert keyring.read(str(path), files) == made
    assert path.read_bytes() == made.encode()
    assert (len(made.active), made.active[:5], made.ids) == (21, "qlsk-", (made.active,))
    assert refused(keyring.provision, str(path), files)[0] == "keyring_exists"
    assert path.read_bytes() == made.encode()
    assert sorted(os.listdir(path.parent)) == ["keyring.json", "keyring.json.lock"]


def test_keys_and_ids_come_whole_from_the_source_of_random_bytes(path: Path, files: Files) -> None:
    asked: list[int] = []

    def random(size: int) -> bytes:
        asked.append(size)
        return bytes(range(size))

    made = keyring.provision(str(path), files, random=random)
    assert (asked, made.active) == ([12, 32], f"qlsk-{base64url(bytes(range(12)))}")
    assert made.key(made.active) == bytes(range(32))


def test_a_rotation_adds_a_key_and_keeps_the_others(path: Path, files: Files) -> None:
    made = keyring.provision(str(path), files)
    rings = [made]
    while len(rings) < KEYRING_KEYS_MAX:
        rings.append(keyring.rotate(str(path), files, expected_active=rings[-1].active))
    for before, after in itertools.pairwise(rings):
        assert set(after.keys) - set(before.keys) == {(after.active, after.key(after.active))}
        assert set(before.keys) < set(after.keys)
    last = rings[-1]
    assert keyring.read(str(path), files) == last
    full = refused(keyring.rotate, str(path), files, expected_active=last.active)
    assert full[0] == "keyring_full"
    keyring.retire(str(path), files, key_id=made.active)
    assert len(keyring.rotate(str(path), files, expected_active=last.active).keys) == 16


def test_a_rotation_from_another_key_than_the_active_one_conflicts(ring: str, files: Files) -> None:
    for stale in ("edge-key-1", "edge-key-3", ""):
        assert refused(keyring.rotate, ring, files, expected_active=stale)[0] == "keyring_conflict"
    assert keyring.read(ring, files) == KNOWN


def test_a_retired_key_is_gone_and_only_that_one(ring: str, files: Files) -> None:
    assert refused(keyring.retire, ring, files, key_id="edge-key-2")[0] == "keyring_key_active"
    assert refused(keyring.retire, ring, files, key_id="edge-key-3")[0] == "keyring_key_unknown"
    assert keyring.read(ring, files) == KNOWN
    left = keyring.retire(ring, files, key_id="edge-key-1")
    assert (left.ids, left.active) == (("edge-key-2",), "edge-key-2")
    assert keyring.read(ring, files) == left
    assert refused(keyring.retire, ring, files, key_id="edge-key-1")[0] == "keyring_key_unknown"
    assert "ERER" not in Path(ring).read_text(encoding="ascii")


def test_without_a_keyring_no_change_makes_one(path: Path, files: Files) -> None:
    assert refused(keyring.rotate, str(path), files, expected_active="k") == MISSING
    assert refused(keyring.retire, str(path), files, key_id="k") == MISSING
    assert os.listdir(path.parent) == ["keyring.json.lock"]


def test_of_concurrent_changes_one_wins(ring: str, path: Path) -> None:
    """ADR-0024 verification 6: compare and set, by the key that is active."""
    outcomes: list[object] = []
    ready = threading.Barrier(12)

    def rotate() -> None:
        ready.wait()
        try:
            outcomes.append(keyring.rotate(ring, Files(), expected_active="edge-key-2"))
        except EdgeError as error:
            outcomes.append(error.code)

    threads = [threading.Thread(target=rotate) for _ in range(12)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    won = [each for each in outcomes if isinstance(each, Keyring)]
    assert len(won) == 1
    assert {each for each in outcomes if each not in won} <= {"keyring_conflict", "keyring_busy"}
    assert keyring.read(ring, Files()) == won[0]
    assert sorted(os.listdir(path.parent)) == ["keyring.json", "keyring.json.lock"]


def test_a_change_waits_for_nobody_and_a_killed_one_locks_nobody_out(
    ring: str, files: Files
) -> None:
    command = [sys.executable, "-c", _HOLDER, ROOT, f"{ring}.lock"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"True\n"
        said = refused(keyring.rotate, ring, files, expected_active="edge-key-2")
        assert said[0] == "keyring_busy"
        assert keyring.read(ring, files) == KNOWN  # reading asks for no lock
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert os.path.exists(f"{ring}.lock")
    assert keyring.rotate(ring, files, expected_active="edge-key-2").active != "edge-key-2"


def test_a_lock_that_is_no_file_of_ours_refuses_the_change(ring: str, files: Files) -> None:
    target = Path(ring).with_name("elsewhere")
    target.write_bytes(b"elsewhere")
    os.symlink(target, f"{ring}.lock")
    said = refused(keyring.rotate, ring, files, expected_active="edge-key-2")
    assert said[0] == "storage_unavailable"
    assert (target.read_bytes(), keyring.read(ring, files)) == (b"elsewhere", KNOWN)


def test_what_an_interrupted_change_left_disturbs_nobody(ring: str, files: Files) -> None:
    left = KNOWN.replace(active="edge-key-1").encode()
    for length in (0, 1, len(left) // 2, len(left)):
        Path(f"{ring}.new").write_bytes(left[:length])
        before = keyring.read(ring, files)
        after = keyring.rotate(ring, files, expected_active=before.active)
        assert set(before.keys) < set(after.keys)
        assert not os.path.exists(f"{ring}.new")


def test_a_keyring_whose_first_publication_was_cut_short_is_whole(path: Path, files: Files) -> None:
    temporary = f"{path}.new"
    files.publish(temporary, str(path), KNOWN.encode())
    os.link(path, temporary)
    assert keyring.read(str(path), files) == KNOWN
    assert refused(keyring.provision, str(path), files)[0] == "keyring_exists"
    assert path.stat().st_nlink == 1


@pytest.mark.parametrize("fails", ["_write_new", "sync_directory"])
def test_a_change_that_fails_leaves_the_old_keyring_or_the_new_one(
    fails: str, ring: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_given: object, **_named: object) -> None:
        raise OSError(28, "No space left on device")

    files = Files()
    monkeypatch.setattr(files, fails, full)
    said = refused(keyring.rotate, ring, files, expected_active="edge-key-2")
    assert said[0] == "no_space"
    found = keyring.read(ring, Files())
    assert set(KNOWN.keys) <= set(found.keys)
    assert (found == KNOWN) == (fails == "_write_new")
    assert not os.path.exists(f"{ring}.new")
