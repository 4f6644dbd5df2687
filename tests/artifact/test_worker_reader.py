"""Reading a worker's log back, with what its fact says."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qinglong_edge.artifact import worker
from qinglong_edge.artifact.worker import policy
from qinglong_edge.core import fact as facts
from qinglong_edge.core.errors import EdgeError
from tests.artifact.place import FOR_FILE, needs_root, to_open, write
from tests.artifact.spool import IDS, Spool, code_of

FUZZ_S = int(os.environ.get("EDGE_FUZZ_S", "0"))  # about how long each property may take
FUZZ = settings(
    max_examples=max(100, 100 * FUZZ_S),
    deadline=None,
    derandomize=not FUZZ_S,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


# -- the bytes ------------------------------------------------------------------------------------


def test_a_log_is_read_whole_in_pieces_and_the_lease_closes_itself(tmp_path: Path) -> None:
    spool = Spool(tmp_path, policy("edge"))
    whole = os.urandom(150_000)
    output = spool.prepare().take_output()
    output.write("stdout", whole, 1)
    output.close()
    lease = spool.open()
    assert lease is not None
    pieces = list(lease.chunks())
    assert b"".join(pieces) == whole
    assert [len(piece) for piece in pieces] == [65_536, 65_536, 18_928]
    assert code_of(lambda: lease.chunks()) == "closed"
    lease.close()


def test_pieces_are_no_larger_than_the_policys_writes(spool: Spool) -> None:
    spool.written(b"x" * 100)
    lease = spool.open()
    assert lease is not None
    assert [len(piece) for piece in lease.chunks()] == [64, 36]


def test_a_lease_is_used_once_and_may_be_given_up_on_the_way(spool: Spool) -> None:
    spool.written(b"x" * 100)
    lease = spool.open()
    assert lease is not None
    pieces = lease.chunks()
    assert code_of(lease.chunks) == "closed"
    next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    lease.close()
    other = spool.open()
    assert other is not None
    other.close()
    other.close()
    assert code_of(other.chunks) == "closed"


def test_what_is_appended_later_is_not_in_the_lease(spool: Spool) -> None:
    spool.written(b"before")
    lease = spool.open()
    spool.written(b"later")
    assert lease is not None
    assert b"".join(lease.chunks()) == b"before"


def test_a_log_that_shrinks_under_its_lease_is_no_output(spool: Spool) -> None:
    spool.written(b"x" * 100)
    lease = spool.open()
    assert lease is not None
    os.truncate(spool.log, 64)
    assert code_of(lambda: list(lease.chunks())) == "invalid_output"


def test_without_a_log_there_is_nothing_and_nothing_is_made(spool: Spool) -> None:
    assert spool.open() is None
    assert not spool.root.exists()
    spool.written()
    spool.log.unlink()
    assert spool.open() is None
    assert list(spool.shard.iterdir()) == []


def test_asking_for_a_log_makes_neither_root_nor_shard_nor_file(spool: Spool) -> None:
    """Trap 13: a reader only looks, whatever is missing on the way."""
    home = spool.root.parent
    spool.open()
    assert list(home.rglob("*")) == []
    spool.written(b"log")
    for gone in (spool.log, spool.shard, spool.root):
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
        before = sorted((path, path.stat().st_mtime_ns) for path in [home, *home.rglob("*")])
        assert spool.open() is None
        after = sorted((path, path.stat().st_mtime_ns) for path in [home, *home.rglob("*")])
        assert after == before


@pytest.mark.parametrize("bits", [0o644, 0o640, 0o400, 0o700])
def test_only_mode_0600_is_read(spool: Spool, bits: int) -> None:
    spool.written()
    spool.log.chmod(bits)
    assert code_of(spool.open) == "invalid_output"


def test_a_log_beyond_its_quota_is_not_read(spool: Spool) -> None:
    spool.written(b"x" * 100)
    assert spool.read() == (b"x" * 100, None)
    write(spool.log, b"x" * 101)
    assert code_of(spool.open) == "invalid_output"


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        (0, ""),
        (1, "\n"),
        (2, "../x"),
        (2, "local-" + "0" * 30),
        (2, "wlog-" + "0" * 29),
        (2, None),
    ],
)
def test_what_is_no_request_is_refused(spool: Spool, field: int, bad: Any) -> None:
    given_ids: list[Any] = [IDS[1], IDS[2], spool.id]
    given_ids[field] = bad
    assert code_of(lambda: spool.allocator.open(*given_ids)) == "invalid_request"


# -- truncation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [True, False])
def test_a_log_was_cut_or_whole_as_its_fact_says(spool: Spool, cut: bool) -> None:
    spool.written()
    spool.told(quotaReached=cut)
    assert spool.read() == (b"0123456789", cut)


def test_without_a_fact_it_is_unknown(spool: Spool) -> None:
    spool.written()
    assert spool.read()[1] is None


def test_a_fact_of_the_launcher_is_believed(tmp_path: Path) -> None:
    spool = Spool(tmp_path, policy("edge"))
    spool.written()
    head = facts.head(
        run_id=IDS[1], attempt_id=IDS[2], log_artifact_id=spool.id, maximum_bytes=4 << 20
    )
    write(spool.fact, f"{head}1800000000000}}".encode())
    assert spool.read()[1] is True


def test_the_temporary_name_that_a_crash_left_changes_nothing(spool: Spool) -> None:
    """The name is removed after the link; dying between the two leaves both."""
    spool.written()
    spool.told()
    os.link(spool.fact, spool.temporary)
    assert spool.read()[1] is True
    os.link(spool.fact, spool.root / "third")
    assert code_of(spool.open) == "unsafe_path"


def test_a_temporary_without_its_fact_says_nothing(spool: Spool) -> None:
    spool.written()
    write(spool.temporary, b'{"schemaVersion":1,')
    assert spool.read()[1] is None


@pytest.mark.parametrize(
    "changes",
    [
        {"schemaVersion": 2},
        {"schemaVersion": True},
        {"runId": "run-2"},
        {"attemptId": "attempt-2"},
        {"logArtifactId": "wlog-" + "0" * 30},
        {"maximumBytes": 99},
        {"maximumBytes": 100.0},
        {"quotaReached": 1},
        {"observedAtMs": -1},
        {"observedAtMs": True},
        {"observedAtMs": 2**53},
        {"more": 1},
    ],
)
def test_a_fact_that_is_not_this_logs_is_no_output(spool: Spool, changes: dict[str, Any]) -> None:
    spool.written()
    spool.told(**changes)
    assert code_of(spool.open) == "invalid_output"


@pytest.mark.parametrize("size", [0, 4_097])
def test_a_fact_of_no_size_or_too_large_is_no_output(spool: Spool, size: int) -> None:
    spool.written()
    write(spool.fact, json.dumps(spool.document()).encode().ljust(size)[:size])
    assert code_of(spool.open) == "invalid_output"
    write(spool.fact, json.dumps(spool.document()).encode().ljust(4_096))
    assert spool.read()[1] is True


@needs_root
@pytest.mark.parametrize("spoil", FOR_FILE)
def test_a_fact_that_is_not_the_workers_alone_is_refused(
    spool: Spool, spoil: Callable[[Path], None]
) -> None:
    spool.written()
    spool.told()
    spoil(spool.fact)
    assert code_of(spool.open) == "unsafe_path"


def test_a_fact_that_others_can_read_is_no_output(spool: Spool) -> None:
    spool.written()
    spool.told()
    to_open(spool.fact)
    assert code_of(spool.open) == "invalid_output"


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 101), st.floats(), st.text(max_size=9), st.just([])
)


@FUZZ
@given(
    st.one_of(
        st.binary(max_size=300),
        st.dictionaries(st.sampled_from(sorted(worker._FACT_KEYS)), VALUES, max_size=3),
    )
)
def test_whatever_a_fact_holds_the_answer_is_typed(
    tmp_path: Path, content: bytes | dict[str, Any]
) -> None:
    spool = Spool(tmp_path)
    if not spool.log.exists():
        spool.written()
    document = content if isinstance(content, bytes) else json.dumps(spool.document(**content))
    write(spool.fact, document.encode() if isinstance(document, str) else document)
    try:
        lease = spool.open()
    except EdgeError as error:
        if error.code != "invalid_output":
            raise
    else:
        assert lease is not None
        lease.close()
        assert json.loads(spool.fact.read_bytes())["quotaReached"] is lease.truncated
