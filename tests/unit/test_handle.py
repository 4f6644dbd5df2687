"""The durable process handle and the kernel's stat line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qinglong_edge.core import handle
from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.handle import Handle, Stat, parse_stat
from qinglong_edge.core.limits import HANDLE_BYTES_MAX, SAFE_INTEGER_MAX

FUZZ = settings(max_examples=300, deadline=None, derandomize=True, database=None)
VECTORS = json.loads(
    (Path(__file__).parents[1] / "vectors" / "handle.json").read_text(encoding="utf-8")
)
STAT = VECTORS["stat"]
FIELDS = ("handle_id", "boot_id", "pid", "pgid", "start_ticks")
BOOT_IDS = st.from_regex(r"[A-Za-z0-9-]{1,64}", fullmatch=True)


def name(case: dict[str, Any]) -> str:
    return str(case["name"])


def known(number: int = 0, **changes: Any) -> Handle:
    given_fields = {field: VECTORS["valid"][number][field] for field in FIELDS}
    return Handle(**{**given_fields, **changes})


@st.composite
def handles(draw: st.DrawFn) -> Handle:
    return Handle(
        handle_id=draw(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
        )[:30],
        boot_id=draw(BOOT_IDS),
        pid=draw(st.integers(1, SAFE_INTEGER_MAX)),
        pgid=draw(st.integers(1, SAFE_INTEGER_MAX)),
        start_ticks=draw(st.integers(1, 10**32 - 1)),
    )


@pytest.mark.parametrize("case", VECTORS["valid"], ids=name)
def test_a_handle_has_exactly_the_known_text(case: dict[str, Any]) -> None:
    """ADR-0069 section 2."""
    value = Handle(**{field: case[field] for field in FIELDS})
    assert value.encode() == case["text"]
    assert handle.decode(case["text"]) == value


@pytest.mark.parametrize("case", VECTORS["invalid"], ids=name)
def test_what_is_not_exactly_a_handle_is_unknown(case: dict[str, Any]) -> None:
    assert handle.decode(case["text"]) is None


def test_another_text_of_the_same_identity_is_unknown() -> None:
    text = known().encode()
    for other in (text + "=", text + "A", text[:-1], text.swapcase(), " " + text):
        assert handle.decode(other) is None


def test_a_handle_beyond_512_bytes_is_refused() -> None:
    case = VECTORS["too_long"]
    assert case["bytes"] > HANDLE_BYTES_MAX
    with pytest.raises(Invalid) as caught:
        Handle(**{field: case[field] for field in FIELDS})
    assert caught.value.code == "handle_invalid"


@pytest.mark.parametrize(("more", "fits"), [(-1, True), (0, True), (1, False)])
def test_a_handle_holds_378_bytes_of_json(more: int, fits: bool) -> None:
    """378 bytes are 504 characters behind the prefix of 7; the next byte makes 513."""
    others = len(f'{{"v":1,"h":"","b":"","p":{10**15},"g":{10**15},"s":"456"}}') + 64
    fields: dict[str, Any] = {
        "handle_id": "h" * (378 - others + more),
        "boot_id": "b" * 64,
        "pid": 10**15,
        "pgid": 10**15,
    }
    if fits:
        text = known(**fields).encode()
        assert len(text) == 511 + min(more, 0)
        assert handle.decode(text) == known(**fields)
    else:
        with pytest.raises(Invalid) as caught:
            known(**fields)
        assert caught.value.facts == {"field": "bytes"}


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("handle_id", ["h", "h" * 255, "\u4e2d\n"], ["", "h" * 256, "a\0b", "\ud800", None, 1]),
        ("boot_id", ["b", "b" * 64, "0-A-z"], ["", "b" * 65, "b\n", "b b", "\u00e9", None, 1]),
        ("pid", [1, 2, SAFE_INTEGER_MAX], [0, -1, SAFE_INTEGER_MAX + 1, True, 1.0, "1", None]),
        ("pgid", [1, 2, SAFE_INTEGER_MAX], [0, -1, SAFE_INTEGER_MAX + 1, True, 1.0, "1", None]),
        ("start_ticks", [1, 2, 10**32 - 1], [0, -1, 10**32, True, 1.0, "456", None]),
    ],
)
def test_each_value_of_a_handle_has_its_bounds(field: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        made = known(**{field: value})
        assert handle.decode(made.encode()) == made
    for value in bad:
        with pytest.raises(Invalid) as caught:
            known(**{field: value})
        assert caught.value.code == "handle_invalid"
        assert caught.value.facts == {"field": field}


@FUZZ
@given(handles())
def test_what_is_encoded_is_decoded(value: Handle) -> None:
    text = value.encode()
    assert text.isascii()
    assert len(text) <= HANDLE_BYTES_MAX
    assert handle.decode(text) == value


@FUZZ
@given(st.text(max_size=40), st.sampled_from(["", "ql3lp1."]))
def test_any_text_is_a_handle_or_unknown(text: str, prefix: str) -> None:
    found = handle.decode(prefix + text)
    assert found is None or found.encode() == prefix + text


@FUZZ
@given(handles(), st.data())
def test_a_handle_with_a_changed_character_is_another_handle_or_unknown(
    value: Handle, data: st.DataObject
) -> None:
    text = value.encode()
    place = data.draw(st.integers(0, len(text) - 1))
    character = data.draw(st.characters())
    changed = text[:place] + character + text[place + 1 :]
    found = handle.decode(changed)
    assert found is None or found.encode() == changed


@pytest.mark.parametrize("case", STAT["valid"], ids=name)
def test_a_stat_line_is_read_around_its_command(case: dict[str, Any]) -> None:
    stat = parse_stat(case["text"].encode(), STAT["pid"])
    fields = ("state", "comm", "pgrp", "session", "start_ticks")
    assert stat == Stat(**{field: case[field] for field in fields})


@pytest.mark.parametrize("case", STAT["invalid"], ids=name)
def test_what_is_not_the_stat_line_of_the_process_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as caught:
        parse_stat(case["text"].encode(), STAT["pid"])
    assert caught.value.code == "stat_invalid"


@pytest.mark.parametrize("state", ["R", "S", "D", "T", "t", "Z", "X", "x", "I"])
def test_every_state_of_a_process_is_kept(state: str) -> None:
    line = b"9 (sh) " + state.encode() + b" 1 9 9" + b" 0" * 15 + b" 77 0\n"
    assert parse_stat(line, 9).state == state


def test_a_line_cut_anywhere_never_gives_another_identity() -> None:
    line = b"9 (a) b) S 1 9 9" + b" 0" * 15 + b" 7700 12345\n"
    whole = parse_stat(line, 9)
    for size in range(len(line)):
        try:
            found = parse_stat(line[:size], 9)
        except Invalid:
            continue
        assert found.pgrp == whole.pgrp
        assert str(whole.start_ticks).startswith(str(found.start_ticks))


def test_a_command_that_is_not_utf8_does_not_hide_its_process() -> None:
    line = b"9 (\xff\xfe) S 1 9 9" + b" 0" * 15 + b" 77 0\n"
    assert parse_stat(line, 9).start_ticks == 77


def test_the_line_of_this_very_process_is_read() -> None:
    pid = os.getpid()
    stat = parse_stat(Path(f"/proc/{pid}/stat").read_bytes(), pid)
    assert (stat.pgrp, stat.session) == (os.getpgid(0), os.getsid(0))
    assert stat.state == "R"
    assert stat.start_ticks > 0


@FUZZ
@given(st.binary(max_size=200), st.integers(0, 99))
def test_any_line_is_a_stat_or_refused(line: bytes, pid: int) -> None:
    for text in (line, b"%d (" % pid + line + b") S" + b" 1" * 19, b"%d (x) " % pid + line):
        try:
            parse_stat(text, pid)
        except Invalid as error:
            if error.code != "stat_invalid":
                raise
