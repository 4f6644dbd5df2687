"""The receipt files: what is read, kept, moved and removed, and in which order it is durable."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from qinglong_edge.core.errors import Corrupt, Invalid
from qinglong_edge.core.limits import PATH_BYTES_MAX, RECEIPT_BYTES_MAX
from qinglong_edge.core.receipt import Receipt, ReceiptInvalid
from qinglong_edge.process.receipts import ReceiptStore
from qinglong_edge.system.files import Files

_RUN = "019f70c0-0000-7000-8000-000000000001"
_ATTEMPT = "019f70c0-0000-7000-8000-000000000002"
_NONCE = "0" * 32


class Recorder(Files):
    """Writes down the effects whose order matters; `cut` raises at the effect of that number."""

    def __init__(self) -> None:
        self.effects: list[tuple[str, str]] = []
        self.cut = -1

    def _note(self, effect: str, path: str) -> None:
        if len(self.effects) == self.cut:
            raise OSError(errno.EIO, "the power went")
        self.effects.append((effect, os.path.basename(path)))

    def _write_new(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        self._note("write", path)
        super()._write_new(path, data, mode=mode)

    def sync_directory(self, path: str) -> None:
        self._note("sync", path)
        super().sync_directory(path)

    def link(self, source: str, target: str) -> bool:
        self._note("link", source)
        return super().link(source, target)

    def remove(self, path: str) -> bool:
        self._note("remove", path)
        return super().remove(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    found = tmp_path / "receipts"
    found.mkdir(mode=0o700)
    return found


@pytest.fixture
def store(root: Path) -> ReceiptStore:
    return ReceiptStore(str(root), Files())


def receipt(code: int = 0, attempt: str = _ATTEMPT, run: str = _RUN) -> Receipt:
    return Receipt(
        run_id=run,
        attempt_id=attempt,
        callback_sequence=1,
        token="A" * 32,
        started_at_ms=1,
        finished_at_ms=2,
        exit_code=code,
    )


def target(store: ReceiptStore, attempt: str = _ATTEMPT) -> Path:
    """The receipt's place, its shard prepared."""
    return Path(store.prepare(attempt).target)


# -- publish and read -----------------------------------------------------------------------------


def test_a_published_receipt_is_read_back_and_removed_once(store: ReceiptStore) -> None:
    assert store.read(_ATTEMPT) is None
    assert not store.exists(_ATTEMPT)
    assert store.publish(receipt(), _NONCE)
    assert store.exists(_ATTEMPT)
    assert store.read(_ATTEMPT) == receipt()
    assert store.remove(_ATTEMPT)
    assert store.read(_ATTEMPT) is None
    assert not store.remove(_ATTEMPT)


def test_a_receipt_published_twice_keeps_the_first(store: ReceiptStore) -> None:
    """ADR-0069 verification 4: nothing overwrites a receipt."""
    assert store.publish(receipt(0), _NONCE)
    assert not store.publish(receipt(9), "1" * 32)
    found = store.read(_ATTEMPT)
    assert found is not None
    assert found.exit_code == 0
    place = target(store)
    assert os.listdir(place.parent) == [place.name]


def test_receipts_stand_in_private_shards_under_exact_names(
    store: ReceiptStore, root: Path
) -> None:
    before = os.umask(0)
    try:
        store.publish(receipt(), _NONCE)
    finally:
        os.umask(before)
    place = root / "01" / f"{_ATTEMPT}.json"
    assert place.stat().st_mode & 0o7777 == 0o600
    assert place.parent.stat().st_mode & 0o7777 == 0o700
    paths = store.paths(_ATTEMPT)
    assert paths.temporary(_NONCE) == str(root / "01" / f".{_ATTEMPT}.{_NONCE}.tmp")
    assert paths.quarantined == str(root / ".quarantine" / "01" / f"{_ATTEMPT}.json")
    assert store.reference(_ATTEMPT) == f".quarantine/01/{_ATTEMPT}.json"


def test_portable_ids_are_names_too(store: ReceiptStore) -> None:
    attempt = "wta:0123456789abcdef0123456789abcdef"
    assert store.publish(receipt(3, attempt, "workflow-run-1"), _NONCE)
    assert store.read(attempt) == receipt(3, attempt, "workflow-run-1")
    assert store.publish(receipt(4, "a"), _NONCE)
    assert store.read("a") == receipt(4, "a")


@pytest.mark.parametrize(
    "attempt",
    [
        "",
        ".",
        "..",
        "../attempt-1",
        "attempt/1",
        "attempt\\1",
        "attempt-" + "a" * 36,
        "a\0b",
        "a\n",
    ],
)
def test_an_id_that_could_lead_elsewhere_names_nothing(store: ReceiptStore, attempt: str) -> None:
    for call in (store.read, store.remove, store.quarantine, store.purge, store.exists):
        with pytest.raises(Invalid):
            call(attempt)
    with pytest.raises(Invalid):
        store.prepare(attempt)


def test_the_shard_of_an_id_never_is_a_dot_name(store: ReceiptStore, root: Path) -> None:
    shards = {Path(store.paths(attempt).shard).name for attempt in ("a.", "a..", "A:b", "1-", "x")}
    assert shards == {"a.", "A:", "1-", "x"}
    assert Path(store.paths("a.").target).parent.parent == root


@pytest.mark.parametrize("path", ["/", "", "receipts", "/" + "a" * PATH_BYTES_MAX])
def test_a_root_is_a_bounded_absolute_path(path: str) -> None:
    with pytest.raises(Invalid) as raised:
        ReceiptStore(path, Files())
    assert raised.value.code == "path_invalid"


# -- what is no receipt ---------------------------------------------------------------------------


def test_anything_but_a_regular_file_is_no_receipt(store: ReceiptStore, tmp_path: Path) -> None:
    """ADR-0069 verification 4: O_NOFOLLOW."""
    place = target(store)
    real = tmp_path / "real"
    real.write_bytes(receipt().encode())
    makes: list[Callable[[], None]] = [
        lambda: place.symlink_to(real),
        lambda: place.symlink_to(tmp_path / "nowhere"),
        lambda: os.mkfifo(place),
        place.mkdir,
    ]
    for make in makes:
        place.unlink(missing_ok=True)
        make()
        with pytest.raises(ReceiptInvalid):
            store.read(_ATTEMPT)
        assert store.exists(_ATTEMPT)
    assert real.read_bytes() == receipt().encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        receipt().encode()[:-1],
        receipt().encode() + b" " * RECEIPT_BYTES_MAX,
        receipt().encode().replace(b'"exitCode":0', b'"exitCode":256'),
        receipt().encode().replace(b'"exitCode":0', b'"exitCode":0,"command":"x"'),
        receipt(attempt="another").encode(),
    ],
)
def test_other_bytes_are_no_receipt(store: ReceiptStore, data: bytes) -> None:
    target(store).write_bytes(data)
    with pytest.raises(ReceiptInvalid):
        store.read(_ATTEMPT)


def test_a_receipt_may_have_4096_bytes_and_not_one_more(store: ReceiptStore) -> None:
    """ADR-0069 verification 4: 4 KiB."""
    place, data = target(store), receipt().encode()
    place.write_bytes(data.ljust(RECEIPT_BYTES_MAX))
    assert store.read(_ATTEMPT) == receipt()
    place.write_bytes(data.ljust(RECEIPT_BYTES_MAX + 1))
    with pytest.raises(ReceiptInvalid):
        store.read(_ATTEMPT)


def test_a_place_that_cannot_be_read_is_not_an_invalid_receipt(
    store: ReceiptStore, root: Path
) -> None:
    target(store).parent.rmdir()
    (root / "01").touch()
    with pytest.raises(NotADirectoryError):
        store.read(_ATTEMPT)


def test_a_shard_that_is_a_link_is_refused(store: ReceiptStore, root: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (root / "01").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Corrupt):
        store.prepare(_ATTEMPT)
    with pytest.raises(Corrupt):
        store.publish(receipt(), _NONCE)
    assert os.listdir(tmp_path / "elsewhere") == []


# -- quarantine -----------------------------------------------------------------------------------


def test_quarantine_moves_once_and_may_be_said_again(store: ReceiptStore, root: Path) -> None:
    target(store).write_bytes(b"nonsense")
    for _ in range(2):
        assert store.quarantine(_ATTEMPT)
        assert store.read(_ATTEMPT) is None
    moved = root / store.reference(_ATTEMPT)
    assert moved.read_bytes() == b"nonsense"
    for folder in (moved.parent, moved.parent.parent):
        assert folder.stat().st_mode & 0o7777 == 0o700
    assert store.purge(_ATTEMPT)
    assert not store.purge(_ATTEMPT)
    assert not store.quarantine(_ATTEMPT)


def test_a_move_that_was_cut_at_any_point_is_finished_by_the_next(root: Path) -> None:
    for cut in range(20):
        files = Recorder()
        store = ReceiptStore(str(root), files)
        target(store).write_bytes(b"nonsense")
        files.effects.clear()
        files.cut = cut
        try:
            done = store.quarantine(_ATTEMPT)
        except OSError:
            done = False
        moved = root / store.reference(_ATTEMPT)
        assert moved.exists() or target(ReceiptStore(str(root), Files())).exists()  # never neither
        plain = ReceiptStore(str(root), Files())
        assert plain.quarantine(_ATTEMPT)
        assert not plain.exists(_ATTEMPT)
        assert moved.read_bytes() == b"nonsense"
        assert plain.purge(_ATTEMPT)
        if done:
            assert cut >= 4
            return
    pytest.fail("the move never came to its end")


def test_the_first_of_two_bad_receipts_stays_in_quarantine(store: ReceiptStore, root: Path) -> None:
    for data in (b"first", b"second"):
        target(store).write_bytes(data)
        assert store.quarantine(_ATTEMPT)
        assert not store.exists(_ATTEMPT)
    assert (root / store.reference(_ATTEMPT)).read_bytes() == b"first"


def test_a_link_is_moved_as_a_link(store: ReceiptStore, root: Path, tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_bytes(b"x")
    target(store).symlink_to(real)
    assert store.quarantine(_ATTEMPT)
    assert not store.exists(_ATTEMPT)
    assert (root / store.reference(_ATTEMPT)).is_symlink()
    assert store.purge(_ATTEMPT)
    assert real.read_bytes() == b"x"


def test_a_directory_in_a_receipts_place_stays_and_hinders_nobody(store: ReceiptStore) -> None:
    target(store).mkdir()
    assert not store.quarantine(_ATTEMPT)
    assert not store.purge(_ATTEMPT)
    assert store.exists(_ATTEMPT)


# -- order ----------------------------------------------------------------------------------------


def test_every_step_is_durable_before_the_next(root: Path) -> None:
    files = Recorder()
    store = ReceiptStore(str(root), files)
    name, temporary = f"{_ATTEMPT}.json", f".{_ATTEMPT}.{_NONCE}.tmp"
    store.publish(receipt(), _NONCE)
    assert files.effects == [
        ("sync", "receipts"),  # the new shard's name
        ("write", temporary),  # with its fsync
        ("sync", "01"),  # the linked name
        ("remove", temporary),
    ]
    files.effects.clear()
    store.quarantine(_ATTEMPT)
    assert files.effects == [
        ("sync", "receipts"),
        ("sync", ".quarantine"),
        ("link", name),
        ("sync", "01"),
        ("remove", name),
        ("sync", "01"),
    ]
    files.effects.clear()
    store.purge(_ATTEMPT)
    store.remove(_ATTEMPT)
    unfinished = os.path.basename(store.paths(_ATTEMPT).unfinished)
    assert files.effects == [
        ("remove", name),
        ("sync", "01"),
        ("remove", unfinished),
        ("remove", name),
    ]


def test_what_a_killed_wrapper_had_begun_to_write_goes_with_its_receipt(
    root: Path, store: ReceiptStore
) -> None:
    """Its name follows from the attempt, because nobody lists a directory."""
    unfinished = Path(store.prepare(_ATTEMPT).unfinished)
    unfinished.write_bytes(b"{")
    assert not store.remove(_ATTEMPT), "there was no receipt"
    assert list(unfinished.parent.iterdir()) == []
