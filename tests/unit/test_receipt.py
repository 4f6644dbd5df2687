"""The completion receipt: bytes, rules, and the text the wrapper completes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qinglong_edge.core import receipt
from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.ids import token_hash
from qinglong_edge.core.limits import RECEIPT_BYTES_MAX, SAFE_INTEGER_MAX
from qinglong_edge.core.receipt import Receipt, ReceiptInvalid

FUZZ = settings(max_examples=300, deadline=None, derandomize=True, database=None)
VECTORS = json.loads(
    (Path(__file__).parents[1] / "vectors" / "receipt.json").read_text(encoding="utf-8")
)
FIELDS = (
    "run_id",
    "attempt_id",
    "callback_sequence",
    "token",
    "started_at_ms",
    "finished_at_ms",
    "exit_code",
)
IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,35}", fullmatch=True)
TIMES = st.integers(0, SAFE_INTEGER_MAX)


def name(case: dict[str, Any]) -> str:
    return str(case["name"])


def known(number: int = 0, **changes: Any) -> Receipt:
    given_fields = {field: VECTORS["valid"][number][field] for field in FIELDS}
    return Receipt(**{**given_fields, **changes})


def refused(data: bytes) -> ReceiptInvalid:
    with pytest.raises(ReceiptInvalid) as caught:
        receipt.decode(data)
    return caught.value


@st.composite
def receipts(draw: st.DrawFn) -> Receipt:
    started_ms, finished_ms = sorted((draw(TIMES), draw(TIMES)))
    return Receipt(
        run_id=draw(IDS),
        attempt_id=draw(IDS),
        callback_sequence=draw(st.integers(1, SAFE_INTEGER_MAX)),
        token=draw(st.from_regex(r"[A-Za-z0-9_-]{32,128}", fullmatch=True)),
        started_at_ms=started_ms,
        finished_at_ms=finished_ms,
        exit_code=draw(st.integers(0, 255)),
    )


@pytest.mark.parametrize("case", VECTORS["valid"], ids=name)
def test_a_receipt_has_exactly_the_known_bytes(case: dict[str, Any]) -> None:
    """ADR-0069 section 2."""
    value = Receipt(**{field: case[field] for field in FIELDS})
    data = value.encode()
    assert data == case["text"].encode()
    assert len(data) == case["bytes"]
    assert hashlib.sha256(data).hexdigest() == case["sha256"]
    assert receipt.decode(data) == value


@pytest.mark.parametrize("case", VECTORS["same_value"], ids=name)
def test_layout_does_not_change_a_receipt(case: dict[str, Any]) -> None:
    assert receipt.decode(case["text"].encode()) == known(case["of"])


@pytest.mark.parametrize("case", VECTORS["invalid"], ids=name)
def test_what_is_not_exactly_a_receipt_is_refused(case: dict[str, Any]) -> None:
    error = refused(case["text"].encode("utf-8"))
    assert error.code == "receipt_invalid"
    assert isinstance(error, Invalid)


@pytest.mark.parametrize("data", [b"\xff", b'{"runId":"\xed\xa0\x80"}', b"\xc0\x80", b"\x00"])
def test_a_receipt_that_is_not_utf8_is_refused(data: bytes) -> None:
    refused(data)


@pytest.mark.parametrize("size", [RECEIPT_BYTES_MAX - 1, RECEIPT_BYTES_MAX, RECEIPT_BYTES_MAX + 1])
def test_a_receipt_has_at_most_4096_bytes(size: int) -> None:
    """The 4 KiB of ADR-0069 verification 4."""
    data = known().encode().ljust(size)
    if size <= RECEIPT_BYTES_MAX:
        assert receipt.decode(data) == known()
    else:
        assert refused(data).facts["reason"] == "json_too_large"


def test_the_largest_receipt_fits_its_bound() -> None:
    assert len(known(2).encode()) < RECEIPT_BYTES_MAX


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("run_id", ["", "x" * 37, "a/b", "a\n", None, 1]),
        ("attempt_id", ["", "x" * 37, "../a", "a\x00", None, b"a"]),
        ("callback_sequence", [0, -1, SAFE_INTEGER_MAX + 1, True, 1.0, "1", None]),
        ("token", ["a" * 31, "a" * 129, "a" * 42 + "=", "a" * 43 + "\n", None, b"a" * 43]),
        ("started_at_ms", [-1, SAFE_INTEGER_MAX + 1, True, 1.0, "1", None]),
        ("finished_at_ms", [1_750_199_999_999, SAFE_INTEGER_MAX + 1, True, 2e12, "1", None]),
        ("exit_code", [-1, 256, False, 0.0, "0", None]),
    ],
)
def test_a_value_out_of_its_bounds_is_never_a_receipt(field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ReceiptInvalid) as caught:
            known(**{field: value})
        assert str(caught.value.facts["key"]).lower() == field.replace("_", "")


@pytest.mark.parametrize("code", [0, 1, 125, 126, 127, 137, 254, 255])
def test_every_exit_code_of_a_byte_is_kept(code: int) -> None:
    assert receipt.decode(known(exit_code=code).encode()).exit_code == code


def test_a_run_may_finish_in_the_millisecond_it_started() -> None:
    moment_ms = known().started_at_ms
    assert known(finished_at_ms=moment_ms).finished_at_ms == moment_ms
    with pytest.raises(ReceiptInvalid):
        known(finished_at_ms=moment_ms - 1)


@FUZZ
@given(receipts())
def test_what_is_encoded_is_decoded(value: Receipt) -> None:
    data = value.encode()
    assert len(data) <= RECEIPT_BYTES_MAX
    assert receipt.decode(data) == value


@FUZZ
@given(receipts())
def test_the_wrapper_completes_the_head_to_the_canonical_bytes(value: Receipt) -> None:
    head = receipt.head(
        run_id=value.run_id,
        attempt_id=value.attempt_id,
        callback_sequence=value.callback_sequence,
        token=value.token,
        started_at_ms=value.started_at_ms,
    )
    assert head.endswith('"finishedAtMs":')
    tail = f'{value.finished_at_ms},"exitCode":{value.exit_code}}}'
    assert (head + tail).encode() == value.encode()


@pytest.mark.parametrize(
    "changes",
    [{"run_id": 'a","x":"'}, {"attempt_id": "a/b"}, {"token": '"'}, {"started_at_ms": -1}],
)
def test_no_head_is_made_of_values_that_a_receipt_refuses(changes: dict[str, Any]) -> None:
    given_fields = {field: VECTORS["valid"][0][field] for field in FIELDS[:5]}
    with pytest.raises(ReceiptInvalid):
        receipt.head(**{**given_fields, **changes})


@FUZZ
@given(st.binary(max_size=300))
def test_any_bytes_are_a_receipt_or_refused(data: bytes) -> None:
    try:
        receipt.decode(data)
    except ReceiptInvalid:
        return


@FUZZ
@given(receipts(), st.data())
def test_a_receipt_with_changed_bytes_is_a_receipt_or_refused(
    value: Receipt, data: st.DataObject
) -> None:
    changed = bytearray(value.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = receipt.decode(bytes(changed))
    except ReceiptInvalid:
        return
    assert receipt.decode(found.encode()) == found


@FUZZ
@given(
    st.dictionaries(
        st.sampled_from([*VECTORS["valid"][0]["text"].split('"')[1::2], "command"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    )
)
def test_any_object_is_a_receipt_or_refused(document: dict[str, object]) -> None:
    refused(json.dumps(document).encode())


def test_the_token_of_the_stored_hash_matches() -> None:
    assert receipt.token_matches(known(), token_hash("a" * 43))


@pytest.mark.parametrize(
    "stored",
    [
        token_hash("b" * 43),
        token_hash("a" * 43).upper(),
        token_hash("a" * 43)[:-1],
        token_hash("a" * 43) + "\n",
        "a" * 43,
        "",
        "\u00e9" * 64,
    ],
)
def test_another_hash_does_not_match(stored: str) -> None:
    assert not receipt.token_matches(known(), stored)


def test_the_token_stays_out_of_every_text_for_people() -> None:
    assert "aaaa" not in repr(known())
    error = refused(known().encode().replace(b'"exitCode":0', b'"exitCode":256'))
    assert "aaaa" not in f"{error} {error!r} {error.document()}"


def test_a_line_of_the_wrapper_is_heard_once_it_is_whole() -> None:
    value = known()
    line = b"whole " + value.encode() + b"\n"
    for end in range(len(line)):
        assert receipt.heard(line[:end], over=False) is None
        assert receipt.heard(line[:end], over=True) == ("", None)
    assert receipt.heard(line, over=False) == receipt.heard(line, over=True) == ("whole", value)
    assert receipt.heard(line + b"and more", over=False) == ("whole", value)


@pytest.mark.parametrize(
    "said", [b"\n", b"whole\n", b"whole {}\n", b"{}\n", b"\xff\xfe\n", b"x" * 8_193]
)
def test_what_is_no_receipt_is_heard_as_none(said: bytes) -> None:
    assert receipt.heard(said, over=False) == ("", None)
