"""Identities: grammar, order, and what a moving clock does to them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qinglong_edge.core.errors import Invalid, Unavailable
from qinglong_edge.core.ids import (
    IdSource,
    from_blob,
    is_callback_token,
    is_portable_id,
    new_token,
    portable_id,
    to_blob,
    token_hash,
    uuid7,
    uuid7_ms,
)

FUZZ = settings(max_examples=300, deadline=None, derandomize=True, database=None)
VECTORS = json.loads(
    (Path(__file__).parents[1] / "vectors" / "ids.json").read_text(encoding="utf-8")
)
MS_MAX = 2**48 - 1


def zeros(count: int) -> bytes:
    return bytes(count)


def ones(count: int) -> bytes:
    return b"\xff" * count


def source(*times_ms: int, random: Callable[[int], bytes] = zeros) -> IdSource:
    """A source whose clock shows these times, one a call."""
    clock = iter(times_ms)
    return IdSource(lambda: next(clock), random)


def counter(text: str) -> int:
    number = int(text.replace("-", ""), 16)
    return (number >> 64 & 0xFFF) << 62 | number & 2**62 - 1


@pytest.mark.parametrize("text", VECTORS["portable"])
def test_a_portable_id_is_accepted(text: str) -> None:
    assert is_portable_id(text)
    assert portable_id(text) == text


@pytest.mark.parametrize("text", [*VECTORS["not_portable"], None, 1, b"a", True, ["a"]])
def test_what_is_no_portable_id_is_refused_by_the_name_of_its_field(text: object) -> None:
    assert not is_portable_id(text)
    with pytest.raises(Invalid) as caught:
        portable_id(text, "attempt_id")
    assert caught.value.code == "id_invalid"
    assert caught.value.facts == {"field": "attempt_id"}


@pytest.mark.parametrize("length", [0, 1, 35, 36, 37])
def test_a_portable_id_has_1_to_36_characters(length: int) -> None:
    assert is_portable_id("a" * length) == (1 <= length <= 36)


@pytest.mark.parametrize("case", VECTORS["uuid7"], ids=lambda case: case["text"])
def test_a_uuid7_shows_its_time_and_travels_as_16_bytes(case: dict[str, object]) -> None:
    text = str(case["text"])
    assert uuid7(text) == text
    assert uuid7_ms(text) == case["ms"]
    assert to_blob(text).hex() == case["blob"]
    assert from_blob(to_blob(text)) == text
    assert is_portable_id(text)


@pytest.mark.parametrize("text", [*VECTORS["not_uuid7"], None, 7, b"x"])
def test_what_is_no_uuid7_is_refused(text: object) -> None:
    for action in (uuid7, uuid7_ms, to_blob):
        with pytest.raises(Invalid) as caught:
            action(text)  # type: ignore[arg-type]
        assert caught.value.code == "id_invalid"


@pytest.mark.parametrize(
    "blob",
    [b"", bytes(15), bytes(17), bytes(16), bytes.fromhex("017f22e279b04cc398c4dc0c0c07398f")],
)
def test_bytes_that_are_no_uuid7_are_refused(blob: bytes) -> None:
    with pytest.raises(Invalid) as caught:
        from_blob(blob)
    assert caught.value.code == "id_invalid"


@FUZZ
@given(st.binary(max_size=20))
def test_any_bytes_are_a_uuid7_or_refused(blob: bytes) -> None:
    try:
        text = from_blob(blob)
    except Invalid:
        return
    assert to_blob(text) == blob


@FUZZ
@given(st.text("0123456789abcdefAF-7\n", max_size=40))
def test_any_text_is_a_uuid7_or_refused(text: str) -> None:
    try:
        blob = to_blob(text)
    except Invalid:
        return
    assert from_blob(blob) == text


def test_the_source_gives_the_known_sequence() -> None:
    steps = VECTORS["sequence"]["steps"]
    ids = source(*(step["wall_ms"] for step in steps))
    assert [ids.next() for _ in steps] == [step["text"] for step in steps]


def test_a_new_id_carries_the_wall_time_and_random_bits() -> None:
    text = source(1_645_557_742_000, random=ones).next()
    assert uuid7_ms(text) == 1_645_557_742_000
    assert text == "017f22e2-79b0-77ff-bfff-ffffffffffff"


def test_two_sources_of_the_same_millisecond_differ() -> None:
    one, two = random.Random(1), random.Random(2)
    assert source(5, random=one.randbytes).next() != source(5, random=two.randbytes).next()


@FUZZ
@given(st.lists(st.integers(-5, 40), min_size=2, max_size=60), st.integers(0, 2**32))
def test_ids_ascend_strictly_whatever_the_clock_does(times_ms: list[int], seed: int) -> None:
    ids = source(*times_ms, random=random.Random(seed).randbytes)
    made = [ids.next() for _ in times_ms]
    assert made == sorted(set(made))
    assert [to_blob(text) for text in made] == sorted({to_blob(text) for text in made})
    for text, time_ms in zip(made, times_ms, strict=True):
        assert uuid7(text) == text
        assert uuid7_ms(text) >= time_ms


@pytest.mark.parametrize("random_bytes", [zeros, ones])
def test_ids_of_one_millisecond_ascend_with_extreme_random_bytes(
    random_bytes: Callable[[int], bytes],
) -> None:
    ids = source(*([7] * 2000), random=random_bytes)
    made = [ids.next() for _ in range(2000)]
    assert made == sorted(set(made))
    assert uuid7_ms(made[-1]) == 7


def test_a_clock_that_steps_back_keeps_the_last_time() -> None:
    ids = source(1000, 10, 999, 1001)
    assert [uuid7_ms(ids.next()) for _ in range(4)] == [1000, 1000, 1000, 1001]


def test_a_full_counter_moves_on_to_the_next_millisecond() -> None:
    ids = source(7, 7)
    ids.resume_after("00000000-0007-7fff-bfff-ffffffffffff")
    assert ids.next() == "00000000-0008-7000-8000-000000000000"
    assert counter(ids.next()) == 1


@pytest.mark.parametrize("time_ms", [-(2**63), -1, 0])
def test_a_clock_before_1970_counts_as_1970(time_ms: int) -> None:
    assert uuid7_ms(source(time_ms).next()) == 0


@pytest.mark.parametrize(
    ("time_ms", "shown_ms"), [(MS_MAX - 1, MS_MAX - 1), (MS_MAX, MS_MAX), (MS_MAX + 1, MS_MAX)]
)
def test_the_time_of_an_id_has_48_bits(time_ms: int, shown_ms: int) -> None:
    assert uuid7_ms(source(time_ms).next()) == shown_ms


def test_no_id_comes_after_the_last_one() -> None:
    ids = source(5, 5)
    ids.resume_after("ffffffff-ffff-7fff-bfff-ffffffffffff")
    for _ in range(2):
        with pytest.raises(Unavailable) as caught:
            ids.next()
        assert caught.value.code == "ids_exhausted"


def test_ids_go_on_behind_the_last_durable_one() -> None:
    before = source(1000, random=random.Random(3).randbytes).next()
    ids = source(10, 1000, random=random.Random(4).randbytes)
    ids.resume_after(before)
    assert before < ids.next() < ids.next()


def test_resuming_behind_an_older_id_changes_nothing() -> None:
    ids = source(1000, 1000)
    first = ids.next()
    ids.resume_after("00000000-0001-7fff-bfff-ffffffffffff")
    ids.resume_after(first)
    assert counter(ids.next()) == 1


def test_resuming_behind_no_id_is_refused() -> None:
    with pytest.raises(Invalid):
        source(1).resume_after("run-1")


@pytest.mark.parametrize("case", VECTORS["random_tokens"], ids=lambda case: case["token"])
def test_a_token_is_32_random_bytes_in_base64url(case: dict[str, str]) -> None:
    asked: list[int] = []

    def given_bytes(count: int) -> bytes:
        asked.append(count)
        return bytes.fromhex(case["random"])

    assert new_token(given_bytes) == case["token"]
    assert asked == [32]
    assert is_callback_token(case["token"])


@pytest.mark.parametrize("count", [0, 31, 33])
def test_a_random_source_that_gives_another_amount_makes_no_token(count: int) -> None:
    with pytest.raises(Unavailable) as caught:
        new_token(lambda _count: bytes(count))
    assert caught.value.code == "random_short"


@FUZZ
@given(st.binary(min_size=32, max_size=32))
def test_every_token_has_43_characters_of_base64url(data: bytes) -> None:
    assert re.fullmatch("[A-Za-z0-9_-]{43}", new_token(lambda _count: data))


@pytest.mark.parametrize("case", VECTORS["tokens"], ids=lambda case: case["token"])
def test_the_stored_hash_is_that_of_the_tokens_text(case: dict[str, str]) -> None:
    assert token_hash(case["token"]) == case["hash"]


@pytest.mark.parametrize("length", [31, 32, 33, 127, 128, 129])
def test_a_callback_token_has_32_to_128_characters(length: int) -> None:
    assert is_callback_token("A" * length) == (32 <= length <= 128)


@pytest.mark.parametrize(
    "token", [None, 1, b"a" * 43, "a" * 42 + "+", "a" * 42 + "=", "a" * 42 + "\n", "\u00e9" * 43]
)
def test_another_alphabet_is_no_callback_token(token: object) -> None:
    assert not is_callback_token(token)
