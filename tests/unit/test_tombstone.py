"""The tombstone of a log: known bytes, known bounds, never believed when it is damaged."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qinglong_edge.core import tombstone
from qinglong_edge.core.commit import AttemptKey
from qinglong_edge.core.errors import Corrupt, Invalid
from qinglong_edge.core.limits import LOG_QUOTA_BYTES_MAX, SAFE_INTEGER_MAX
from qinglong_edge.core.tombstone import ALREADY_ABSENT, DELETED, Tombstone

FUZZ_S = int(os.environ.get("EDGE_FUZZ_S", "0"))  # about how long each property may take
FUZZ = settings(
    max_examples=max(200, 1_000 * FUZZ_S), deadline=None, derandomize=not FUZZ_S, database=None
)
VECTORS = json.loads(
    (Path(__file__).parents[1] / "vectors" / "tombstone.json").read_text(encoding="utf-8")
)
KEY = AttemptKey(run_number=7, attempt=2)


def stored(number: int = 0, **changes: Any) -> dict[str, Any]:
    given_values = {**VECTORS["valid"][number], "key": KEY, **changes}
    return {name: value for name, value in given_values.items() if name not in {"name", "digest"}}


@pytest.mark.parametrize("number", range(len(VECTORS["valid"])))
def test_a_tombstone_has_exactly_the_known_digest(number: int) -> None:
    """ADR-0026: the record's digest, bit for bit."""
    digest = bytes.fromhex(VECTORS["valid"][number]["digest"])
    made = Tombstone(**stored(number))
    assert made.digest() == digest
    assert tombstone.verified(digest, **stored(number)) == made


def test_what_is_not_said_is_the_local_runtimes() -> None:
    values = stored(1)
    del values["project_id"], values["executor_type"]
    assert Tombstone(**values) == Tombstone(**stored(1))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("project_id", "prj_other"),
        ("run_id", "run_2"),
        ("attempt_id", "attempt_2"),
        ("log_artifact_id", "local-" + "a" * 30),
        ("executor_type", "docker"),
        ("finished_at_ms", 0),
        ("eligible_at_ms", 1),
        ("retired_at_ms", 4),
        ("bytes", 9),
        ("truncated", False),
        ("maximum_bytes", 65),
        ("observed_at_ms", 2),
    ],
)
def test_a_value_that_was_changed_no_longer_matches(field: str, value: object) -> None:
    digest = Tombstone(**stored()).digest()
    with pytest.raises(Corrupt) as caught:
        tombstone.verified(digest, **{**stored(), field: value})
    assert caught.value.code == "tombstone_corrupt"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"run_id": "../x"}, "run_id"),
        ({"attempt_id": None}, "attempt_id"),
        ({"log_artifact_id": "local-x"}, "log_artifact_id"),
        ({"finished_at_ms": -1}, "finished_at_ms"),
        ({"finished_at_ms": True}, "finished_at_ms"),
        ({"eligible_at_ms": 0}, "eligible_at_ms"),
        ({"retired_at_ms": 1}, "retired_at_ms"),
        ({"retired_at_ms": SAFE_INTEGER_MAX + 1}, "retired_at_ms"),
        ({"disposition": "kept"}, "disposition"),
        ({"bytes": -1}, "bytes"),
        ({"bytes": LOG_QUOTA_BYTES_MAX + 1}, "bytes"),
        ({"disposition": ALREADY_ABSENT, "bytes": 1}, "bytes"),
        ({"truncated": 1}, "truncated"),
        ({"truncated": None}, "maximum_bytes"),
        ({"truncated": None, "maximum_bytes": None}, "observed_at_ms"),
        ({"maximum_bytes": None}, "observed_at_ms"),
        ({"observed_at_ms": None}, "observed_at_ms"),
        ({"maximum_bytes": 0}, "maximum_bytes"),
        ({"maximum_bytes": LOG_QUOTA_BYTES_MAX + 1}, "maximum_bytes"),
    ],
)
def test_each_value_has_its_bounds(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as caught:
        Tombstone(**stored(**changes))
    assert (caught.value.code, caught.value.facts) == ("tombstone_invalid", {"field": field})


@pytest.mark.parametrize("cut", [True, False])
def test_truncation_may_be_known_without_a_fact(cut: object) -> None:
    made = Tombstone(**stored(truncated=cut, maximum_bytes=None, observed_at_ms=None))
    assert (
        tombstone.verified(
            made.digest(), **stored(truncated=cut, maximum_bytes=None, observed_at_ms=None)
        )
        == made
    )


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 3),
    st.integers(),
    st.floats(),
    st.text(max_size=40),
    st.binary(max_size=40),
    st.sampled_from([DELETED, ALREADY_ABSENT, "local-" + "0" * 30, "run_1"]),
    st.lists(st.integers(), max_size=2),
)
FIELDS = sorted(set(Tombstone._fields) - {"key"})


@FUZZ
@given(
    st.dictionaries(st.sampled_from([*FIELDS, "unknown"]), ANYTHING),
    st.one_of(ANYTHING, st.binary(min_size=32, max_size=32)),
    st.booleans(),
)
def test_any_row_is_a_tombstone_or_damaged(
    changes: dict[str, Any],
    digest: object,
    whole: bool,
) -> None:
    try:
        found = tombstone.verified(digest, **stored(**changes) if whole else changes)
    except Corrupt:
        return
    assert found.digest() == digest


@FUZZ
@given(st.data())
def test_every_legal_tombstone_is_read_as_it_was_written(data: st.DataObject) -> None:
    finished = data.draw(st.integers(0, SAFE_INTEGER_MAX))
    eligible = data.draw(st.integers(finished, SAFE_INTEGER_MAX))
    known = data.draw(st.booleans())
    deleted = data.draw(st.booleans())
    values = stored(
        finished_at_ms=finished,
        eligible_at_ms=eligible,
        retired_at_ms=data.draw(st.integers(eligible, SAFE_INTEGER_MAX)),
        disposition=DELETED if deleted else ALREADY_ABSENT,
        bytes=data.draw(st.integers(0, LOG_QUOTA_BYTES_MAX)) if deleted else 0,
        truncated=data.draw(st.booleans()) if known else None,
        maximum_bytes=data.draw(st.integers(1, LOG_QUOTA_BYTES_MAX)) if known else None,
        observed_at_ms=data.draw(st.integers(0, SAFE_INTEGER_MAX)) if known else None,
    )
    made = Tombstone(**values)
    assert len(made.digest()) == 32
    assert tombstone.verified(made.digest(), **values) == made
