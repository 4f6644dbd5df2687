"""Canonical JSON, base64url and SHA-256."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qinglong_edge.core.canonical import (
    base64url,
    decode,
    digest,
    encode,
    from_base64url,
    new_sha256,
    sha256_bytes,
    sha256_hex,
)
from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.limits import JSON_DEPTH_MAX, SAFE_INTEGER_MAX
from tests.support import cpu_s

FUZZ = settings(max_examples=300, deadline=None, derandomize=True, database=None)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-SAFE_INTEGER_MAX, SAFE_INTEGER_MAX)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
KEYS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=20
)


def refused(data: bytes, *, bytes_max: int = 1_000_000, **options: Any) -> str:
    with pytest.raises(Invalid) as caught:
        decode(data, bytes_max=bytes_max, **options)
    return caught.value.code


def outcome(data: bytes, *, floats: bool = False) -> str:
    """The code of the refusal; `read` if the value can be written again where it has to be."""
    try:
        value = decode(data, bytes_max=10_000, floats=floats)
    except Invalid as error:
        return error.code
    if not floats:
        encode(value)
    return "read"


def unencodable(value: object) -> str:
    with pytest.raises(Invalid) as caught:
        encode(value)
    return caught.value.code


# SHA-256 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        (b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        (b"a" * 1_000_000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),
    ],
)
def test_sha256_gives_the_published_answers(data: bytes, answer: str) -> None:
    """The three messages of FIPS 180-4's examples."""
    assert sha256_hex(data) == answer
    assert sha256_bytes(data).hex() == answer


def test_a_digest_in_pieces_is_the_digest_of_the_whole() -> None:
    running = new_sha256()
    for piece in (b"", b"ab", b"c"):
        running.update(piece)
    assert running.hexdigest() == sha256_hex(b"abc")
    assert running.digest() == sha256_bytes(b"abc")


@FUZZ
@given(st.binary())
def test_any_data_has_the_digest_that_hashlib_gives(data: bytes) -> None:
    assert sha256_hex(data) == hashlib.sha256(data).hexdigest()


def test_the_digest_does_not_come_from_libcrypto() -> None:
    kind = type(new_sha256())
    assert kind.__module__ in {"_sha256", "_sha2"}


def test_the_interpreter_has_the_digest_in_the_module_that_is_asked_first() -> None:
    assert ("_sha2" if sys.version_info >= (3, 12) else "_sha256") in sys.modules


# Encoding ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (0, "0"),
        (SAFE_INTEGER_MAX, "9007199254740991"),
        (-SAFE_INTEGER_MAX, "-9007199254740991"),
        ([], "[]"),
        ({}, "{}"),
        ((1, 2), "[1,2]"),
        ({"b": 1, "a": [None, "x"]}, '{"b":1,"a":[null,"x"]}'),
        ("\b\f\n\r\t", '"\\b\\f\\n\\r\\t"'),
        ("\x00\x01\x1b\x1f", '"\\u0000\\u0001\\u001b\\u001f"'),
        ('"\\/', '"\\"\\\\/"'),
        ("\x7f\u0080\u00e9\u4e2d\u2028\u2029\ufeff\U0001f600", None),
    ],
)
def test_a_value_has_the_bytes_that_javascript_writes(value: object, text: str | None) -> None:
    raw = f'"{value}"' if text is None else text
    assert encode(value) == raw.encode("utf-8")


def test_keys_keep_the_order_that_is_given() -> None:
    assert encode({"z": 1, "a": 2}) != encode({"a": 2, "z": 1})


def test_the_digest_is_that_of_the_canonical_bytes() -> None:
    assert digest([]) == "4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945"


@pytest.mark.parametrize(
    "value", [1.0, 0.5, float("nan"), float("inf"), -float("inf"), 2**53, -(2**53), 2**64]
)
def test_a_number_that_readers_could_disagree_on_is_not_written(value: object) -> None:
    assert unencodable(value) == "json_number"
    assert unencodable({"a": [value]}) == "json_number"


@pytest.mark.parametrize(
    "value",
    [b"x", {1: "x"}, {None: 1}, {True: 1}, {1, 2}, object(), "\ud800", {"\udfff": 1}, ["a\udc80"]],
)
def test_a_value_without_a_json_form_is_not_written(value: object) -> None:
    assert unencodable(value) == "json_invalid"


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_nesting_is_written_up_to_its_bound() -> None:
    assert encode(nested(JSON_DEPTH_MAX - 1))
    assert encode(nested(JSON_DEPTH_MAX)) == b"[" * JSON_DEPTH_MAX + b"]" * JSON_DEPTH_MAX
    assert unencodable(nested(JSON_DEPTH_MAX + 1)) == "json_too_deep"


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert unencodable(loop) == "json_too_deep"


# Decoding ----------------------------------------------------------------------------------------


@FUZZ
@given(VALUES)
def test_what_is_written_is_read_back(value: object) -> None:
    data = encode(value)
    assert decode(data, bytes_max=len(data)) == value
    assert encode(decode(data, bytes_max=len(data))) == data
    assert json.loads(data) == value


@FUZZ
@given(st.binary(max_size=200))
def test_any_bytes_give_a_value_or_a_typed_refusal(data: bytes) -> None:
    assert outcome(data).startswith(("json_", "read"))


@FUZZ
@given(st.text('[]{}":,\\u d8019.-eEtrufalsn\n', max_size=40), st.booleans())
def test_anything_like_json_gives_a_value_or_a_typed_refusal(text: str, floats: bool) -> None:
    assert outcome(text.encode("utf-8"), floats=floats).startswith(("json_", "read"))


@FUZZ
@given(VALUES, st.integers(0, 40), st.binary(min_size=1, max_size=1))
def test_a_document_with_a_changed_byte_gives_a_value_or_a_typed_refusal(
    value: object, place: int, byte: bytes
) -> None:
    data = bytearray(encode(value))
    data[place % len(data)] = byte[0]
    assert outcome(bytes(data)).startswith(("json_", "read"))


@pytest.mark.parametrize("size", [9, 10, 11])
def test_a_document_is_read_up_to_its_size(size: int) -> None:
    data = b'"' + b"x" * (size - 2) + b'"'
    if size <= 10:
        assert decode(data, bytes_max=10) == "x" * (size - 2)
    else:
        assert refused(data, bytes_max=10) == "json_too_large"


@pytest.mark.parametrize("depth_max", [1, 2, JSON_DEPTH_MAX])
@pytest.mark.parametrize(("opened", "closed"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_nesting_is_read_up_to_its_bound(depth_max: int, opened: bytes, closed: bytes) -> None:
    for depth in (depth_max - 1, depth_max):
        data = opened * depth + b"1" + closed * depth
        decode(data, bytes_max=len(data), depth_max=depth_max)
    data = opened * (depth_max + 1) + b"1" + closed * (depth_max + 1)
    assert refused(data, depth_max=depth_max) == "json_too_deep"


def test_a_wide_document_is_not_a_deep_one() -> None:
    data = b"[" + b"[1]," * 1000 + b'{"[":"{"}]'
    value = decode(data, bytes_max=len(data), depth_max=2)
    assert isinstance(value, list)
    assert len(value) == 1001


@pytest.mark.parametrize(
    "inside",
    [
        b"[" * 100,
        b"{" * 100 + b"]" * 100,
        b'\\"' + b"[" * 100,
        b"\\\\" * 3 + b"[" * 100,
        b"\\\\\\" + b'"' + b"[" * 100,
        "\u4e2d[".encode() * 50,
    ],
)
def test_brackets_inside_a_string_are_no_nesting(inside: bytes) -> None:
    data = b'["' + inside + b'",{"' + inside + b'":1}]'
    assert decode(data, bytes_max=len(data), depth_max=2) == json.loads(data)


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b'"',
        b'["\\\\",',
        b'["\\\\\\\\",',
        b'["\\"",',
        b'["a\\\\\\"b",',
        b'{"\\\\":',
        b"\\",
        b'\\"',
        b"[1]",
        b"]",
        b'["]"]',
    ],
)
def test_deep_nesting_never_reaches_the_parser(start: bytes) -> None:
    """A prefix that closes or opens a string must not hide what stands behind it."""
    code = refused(start + b"[" * 100_000)
    assert code in {"json_too_deep", "json_invalid"}


def test_deep_nesting_is_found_behind_every_kind_of_string() -> None:
    assert refused(b'["\\\\","\\"","[",' + b"[" * 40 + b"]" * 41) == "json_too_deep"


def test_the_bound_of_nesting_costs_linear_time() -> None:
    def cost(size: int) -> float:
        documents = (b'"' * size, b'\\"' * (size // 2), b"[]" * (size // 2), b'["' + b"\\" * size)
        return cpu_s(lambda: [refused(data + b"[" * 40, bytes_max=2 * size) for data in documents])

    small = min(cost(20_000) for _ in range(3))
    large = min(cost(200_000) for _ in range(3))
    assert large < 60 * small + 0.05  # 10 in theory, 100 if it were quadratic


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"[",
        b"[1,]",
        b"{1:2}",
        b"{'a':1}",
        b"[01]",
        b"[+1]",
        b"[.5]",
        b"[1.]",
        b"// x\n1",
        b"1 2",
        b"nul",
        b'"\n"',
        b'"\\x"',
        b'"\\u12"',
        b"\xef\xbb\xbf1",
        "\ufeff1".encode("utf-16"),
        b'"\xff"',
        b'"\xc0\x80"',
        b'"\xed\xa0\x80"',
        b'"\\ud800"',
        b'"\\udc00x"',
        b'{"\\uDFFF":1}',
        b'["x",{"a":["\\ud83d "]}]',
        b"\x00",
    ],
)
def test_what_is_no_json_in_utf8_is_refused(data: bytes) -> None:
    assert refused(data) == "json_invalid"


def test_a_surrogate_pair_is_one_character() -> None:
    assert decode(b'"\\ud83d\\ude00"', bytes_max=20) == "\U0001f600"
    assert decode(b'"\\\\ud800"', bytes_max=20) == "\\ud800"


@pytest.mark.parametrize(
    "data",
    [b'{"a":1,"a":1}', b'{"a":1,"\\u0061":2}', b'[{"b":{"x":1,"y":2,"x":3}}]', b'{"":1,"":2}'],
)
def test_a_key_given_twice_is_refused(data: bytes) -> None:
    assert refused(data) == "json_duplicate_key"


@pytest.mark.parametrize(
    "number",
    [
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"1.0",
        b"1e0",
        b"-0.5",
        b"9007199254740992",
        b"-9007199254740992",
        b"1" * 18,
        b"1" * 100_000,
        b"-" + b"9" * 5_000,
        b"1" * 5_000 + b".5",
    ],
)
def test_only_whole_numbers_that_every_reader_keeps_are_read(number: bytes) -> None:
    assert refused(number) == "json_number"
    assert refused(b'{"a":[' + number + b"]}") == "json_number"


def test_the_largest_whole_numbers_are_read() -> None:
    largest = SAFE_INTEGER_MAX
    data = f"[{largest - 1},{largest},-{largest}]".encode()
    assert decode(data, bytes_max=99) == [largest - 1, largest, -largest]


@pytest.mark.parametrize(("text", "number"), [(b"1.5", 1.5), (b"-1e3", -1000.0), (b"2", 2)])
def test_fractions_are_read_where_they_are_asked_for(text: bytes, number: float) -> None:
    value = decode(text, bytes_max=20, floats=True)
    assert value == number
    assert type(value) is type(number)


@pytest.mark.parametrize("text", [b"1e999", b"-1e999", b"NaN", b"Infinity", b"0." + b"1" * 63])
def test_a_fraction_beyond_a_double_is_refused(text: bytes) -> None:
    assert refused(text, floats=True) == "json_number"


@given(st.floats(allow_nan=False, allow_infinity=False))
@FUZZ
def test_every_double_is_read_where_fractions_are_asked_for(number: float) -> None:
    assert decode(repr(number).encode(), bytes_max=64, floats=True) == number


# base64url ---------------------------------------------------------------------------------------


@FUZZ
@given(st.binary())
def test_base64url_is_what_rfc_4648_says_without_padding(data: bytes) -> None:
    text = base64url(data)
    assert text == base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")
    assert from_base64url(text) == data


@pytest.mark.parametrize(
    "text",
    ["_w==", "_w=", "=", "_x", "AB", "+w", "/w", "A", "AAAAA", "_w\n", " _w", "A\u00e9", "\x00"],
)
def test_another_text_for_the_same_bytes_is_refused(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        from_base64url(text)
    assert caught.value.code == "base64url_invalid"


@FUZZ
@given(st.text("ABab01-_=+/\n\u00e9", max_size=12))
def test_any_text_is_canonical_base64url_or_refused(text: str) -> None:
    try:
        data = from_base64url(text)
    except Invalid:
        return
    assert base64url(data) == text
