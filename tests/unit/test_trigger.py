"""Durations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.limits import EVERY_MS_MAX, EVERY_MS_MIN, SAFE_INTEGER_MAX
from qinglong_edge.core.trigger import format_duration, parse_duration_ms, parse_every_ms
from tests.unit.zones import FUZZ

LENGTHS = st.integers(0, SAFE_INTEGER_MAX)


def refusal(text: str, **bounds: int) -> Invalid:
    """The error."""
    with pytest.raises(Invalid) as caught:
        parse_duration_ms(text, **bounds)
    return caught.value


@pytest.mark.parametrize(
    ("text", "ms", "canonical"),
    [
        ("0", 0, "0"),
        ("0s", 0, "0"),
        ("0ms", 0, "0"),
        ("500ms", 500, "500ms"),
        ("30s", 30_000, "30s"),
        ("5m", 300_000, "5m"),
        ("2h", 7_200_000, "2h"),
        ("1d", 86_400_000, "1d"),
        ("1h30m", 5_400_000, "1h30m"),
        ("90m", 5_400_000, "1h30m"),
        ("005s", 5_000, "5s"),
        ("1500ms", 1_500, "1s500ms"),
        ("1d2h3m4s5ms", 93_784_005, "1d2h3m4s5ms"),
        ("1d1ms", 86_400_001, "1d1ms"),
        ("24h", 86_400_000, "1d"),
    ],
)
def test_a_duration_is_read_and_written(text: str, ms: int, canonical: str) -> None:
    assert parse_duration_ms(text) == ms
    assert format_duration(ms) == canonical


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "5", "00", "60", "-5s", "+5s", "1.5h", "5 m", " 5m", "5m ", "5m\n", "5M", "s"),
        *("30m1h", "1m1m", "1h30", "1_0s", "\u0665s", "\uff15s", "5s5", "1w", "0x5s", "5min"),
        "9" * 17 + "s",
    ],
)
def test_what_is_not_a_number_with_a_unit_is_refused(text: str) -> None:
    error = refusal(text)
    assert (error.code, error.facts) == ("duration_invalid", {})


def test_bounds_are_inclusive_and_named() -> None:
    for text in ("1s", "2s"):
        assert parse_duration_ms(text, minimum=1_000, maximum=2_000)
    for text in ("999ms", "2s1ms", "0"):
        error = refusal(text, minimum=1_000, maximum=2_000)
        assert error.code == "duration_range"
        assert error.facts == {"minimum_ms": 1_000, "maximum_ms": 2_000}
    assert refusal("9999999999999999d").code == "duration_range"


def test_every_has_its_own_bounds() -> None:
    assert parse_every_ms("1s") == EVERY_MS_MIN
    assert parse_every_ms("365d") == EVERY_MS_MAX
    for text in ("0", "999ms", "365d1ms"):
        with pytest.raises(Invalid) as caught:
            parse_every_ms(text)
        assert caught.value.code == "duration_range"


def test_a_negative_duration_is_not_written() -> None:
    with pytest.raises(Invalid) as caught:
        format_duration(-1)
    assert caught.value.code == "duration_range"


@FUZZ
@given(LENGTHS)
def test_what_is_written_is_read_back(ms: int) -> None:
    assert parse_duration_ms(format_duration(ms)) == ms


@FUZZ
@given(st.text(max_size=20) | st.text(alphabet="0123456789dhms", max_size=20))
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    try:
        ms = parse_duration_ms(text)
    except Invalid as refused:
        if refused.code not in ("duration_invalid", "duration_range"):
            raise
    else:
        assert parse_duration_ms(format_duration(ms)) == ms
