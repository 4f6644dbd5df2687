"""The truncation fact and the name of an attempt's log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qinglong_edge.core import fact
from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.fact import Fact, is_log_artifact_id, log_artifact_id, log_shard
from qinglong_edge.core.limits import (
    FACT_BYTES_MAX,
    LOG_QUOTA_BYTES_MAX,
    LOG_QUOTA_BYTES_MIN,
    SAFE_INTEGER_MAX,
)

FUZZ = settings(max_examples=300, deadline=None, derandomize=True, database=None)
VECTORS = json.loads(
    (Path(__file__).parents[1] / "vectors" / "fact.json").read_text(encoding="utf-8")
)
FIELDS = (
    "run_id",
    "attempt_id",
    "log_artifact_id",
    "maximum_bytes",
    "quota_reached",
    "observed_at_ms",
)
IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,35}", fullmatch=True)


def name(case: dict[str, Any]) -> str:
    return str(case["name"])


def known(number: int = 0, **changes: Any) -> Fact:
    given_fields = {field: VECTORS["valid"][number][field] for field in FIELDS}
    return Fact(**{**given_fields, **changes})


def refused(data: bytes) -> Invalid:
    with pytest.raises(Invalid) as caught:
        fact.decode(data)
    return caught.value


facts = st.builds(
    Fact,
    run_id=IDS,
    attempt_id=IDS,
    log_artifact_id=st.from_regex(r"(local|wlog)-[0-9a-f]{30}", fullmatch=True),
    maximum_bytes=st.integers(LOG_QUOTA_BYTES_MIN, LOG_QUOTA_BYTES_MAX),
    quota_reached=st.booleans(),
    observed_at_ms=st.integers(0, SAFE_INTEGER_MAX),
)


@pytest.mark.parametrize("case", VECTORS["valid"], ids=name)
def test_a_fact_has_exactly_the_known_bytes(case: dict[str, Any]) -> None:
    value = Fact(**{field: case[field] for field in FIELDS})
    data = value.encode()
    assert data == case["text"].encode()
    assert len(data) == case["bytes"]
    assert fact.decode(data) == value


@pytest.mark.parametrize("case", VECTORS["invalid"], ids=name)
def test_what_is_not_exactly_a_fact_is_refused(case: dict[str, Any]) -> None:
    assert refused(case["text"].encode("utf-8")).code == "fact_invalid"


@pytest.mark.parametrize("data", [b"\xff", b"\x00", b"[" * 600, b" " * (FACT_BYTES_MAX + 1)])
def test_bytes_that_are_no_document_are_refused(data: bytes) -> None:
    assert refused(data).code == "fact_invalid"


@pytest.mark.parametrize("size", [FACT_BYTES_MAX - 1, FACT_BYTES_MAX, FACT_BYTES_MAX + 1])
def test_no_padding_makes_a_fact_of_any_size(size: int) -> None:
    assert refused(known().encode().ljust(size)).code == "fact_invalid"


def test_the_largest_fact_fits_its_bound() -> None:
    largest = known(2, run_id="r" * 36, attempt_id="a" * 36, log_artifact_id="local-" + "f" * 30)
    assert len(largest.encode()) < FACT_BYTES_MAX


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("run_id", ["r", "r" * 36], ["", "r" * 37, "a/b", None, 1]),
        ("attempt_id", ["a", "a" * 36], ["", "a" * 37, "a\n", None, 1]),
        ("log_artifact_id", ["wlog-" + "0" * 30], ["", "../x", "local-" + "A" * 30, None, 1]),
        (
            "maximum_bytes",
            [65_536, 65_537, 1_073_741_823, 1_073_741_824],
            [65_535, 1_073_741_825, 0, -1, True, 65_536.0, "65536", None],
        ),
        ("quota_reached", [True, False], [0, 1, "true", None]),
        (
            "observed_at_ms",
            [0, 1, SAFE_INTEGER_MAX],
            [-1, SAFE_INTEGER_MAX + 1, True, 1.0, "1", None],
        ),
    ],
)
def test_each_value_of_a_fact_has_its_bounds(field: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        made = known(**{field: value})
        assert fact.decode(made.encode()) == made
    for value in bad:
        with pytest.raises(Invalid) as caught:
            known(**{field: value})
        assert caught.value.code == "fact_invalid"
        assert str(caught.value.facts["key"]).lower() == field.replace("_", "")


@FUZZ
@given(facts)
def test_the_wrapper_completes_the_head_to_the_canonical_bytes(value: Fact) -> None:
    head = fact.head(
        run_id=value.run_id,
        attempt_id=value.attempt_id,
        log_artifact_id=value.log_artifact_id,
        maximum_bytes=value.maximum_bytes,
        quota_reached=value.quota_reached,
    )
    assert head.endswith('"observedAtMs":')
    assert (head + f"{value.observed_at_ms}}}").encode() == value.encode()
    assert fact.decode(value.encode()) == value


def test_the_head_tells_of_a_log_that_was_cut() -> None:
    head = fact.head(
        run_id="r", attempt_id="a", log_artifact_id="local-" + "0" * 30, maximum_bytes=65_536
    )
    assert fact.decode((head + "1}").encode()).quota_reached


def test_no_head_is_made_of_values_that_a_fact_refuses() -> None:
    with pytest.raises(Invalid):
        fact.head(run_id="r", attempt_id="a", log_artifact_id="../x", maximum_bytes=65_536)


@FUZZ
@given(st.binary(max_size=300))
def test_any_bytes_are_a_fact_or_refused(data: bytes) -> None:
    refused(data)


@FUZZ
@given(facts, st.data())
def test_a_fact_with_changed_bytes_is_another_fact_or_refused(
    value: Fact, data: st.DataObject
) -> None:
    changed = bytearray(value.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = fact.decode(bytes(changed))
    except Invalid as error:
        if error.code != "fact_invalid":
            raise
        return
    assert found.encode() == bytes(changed)


@pytest.mark.parametrize("case", VECTORS["log_ids"], ids=lambda case: case["attempt_id"])
def test_the_log_of_an_attempt_has_the_known_id(case: dict[str, str]) -> None:
    """ADR-0024 verification 7: 36 characters, derived from run and attempt."""
    log_id = log_artifact_id(case["run_id"], case["attempt_id"])
    assert log_id == case["log_artifact_id"]
    assert len(log_id) == 36
    assert is_log_artifact_id(log_id)
    assert log_shard(log_id) == case["shard"]


def test_two_attempts_of_a_run_have_different_logs() -> None:
    assert log_artifact_id("run-1", "a") != log_artifact_id("run-1", "b")
    assert log_artifact_id("a", "b") != log_artifact_id("b", "a")


@pytest.mark.parametrize(
    ("run_id", "attempt_id"), [("", "a"), ("r", ""), ("r", "a/b"), ("\0", "a")]
)
def test_no_log_id_is_derived_from_what_is_no_id(run_id: str, attempt_id: str) -> None:
    with pytest.raises(Invalid) as caught:
        log_artifact_id(run_id, attempt_id)
    assert caught.value.code == "id_invalid"


@FUZZ
@given(IDS, IDS)
def test_a_log_id_tells_nothing_of_its_run(run_id: str, attempt_id: str) -> None:
    log_id = log_artifact_id(run_id, attempt_id)
    assert is_log_artifact_id(log_id)
    assert log_id == log_artifact_id(run_id, attempt_id)


def test_a_workers_log_has_its_shard_too() -> None:
    assert log_shard("wlog-68cd94391d043410683fabcde45b2a") == "68"


@pytest.mark.parametrize(
    "log_id",
    [
        "",
        "local-",
        "../escape",
        "local-" + "a" * 29,
        "local-" + "a" * 31,
        "local-" + "A" * 30,
        "local-" + "g" * 30,
        "local-" + "a" * 30 + "\n",
        "rlog-" + "a" * 30,
        "local-../" + "a" * 27,
        "local-" + "\u0661" * 30,
    ],
)
def test_what_is_no_log_id_has_no_directory(log_id: str) -> None:
    assert not is_log_artifact_id(log_id)
    with pytest.raises(Invalid) as caught:
        log_shard(log_id)
    assert caught.value.code == "log_id_invalid"
