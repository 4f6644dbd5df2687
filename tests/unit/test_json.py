"""Canonical JSON against the whole of `json`: what is read, what is written, what is loaded."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qinglong_edge.core.canonical import decode, encode, plain_text
from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.limits import SAFE_INTEGER_MAX
from tests.support import ROOT
from tests.unit.test_canonical import FUZZ, VALUES

PIECES = st.sampled_from(
    (
        *("[", "]", "{", "}", ",", ":", '"', '"a"', '"b":', "1", "-0", ".5", "e2", "0"),
        *("9007199254740993", "null", "true", "fals", "NaN", "-Infinity"),
        *("\\ud800", "\\ud83d\\ude00", "\\n", "\\x", "\\u00e9", "\\"),
        *(" ", "\t", "\r\n", "\x0b", "\u00a0", "\ufeff", "\x00", "\u4e2d"),
    )
)
LIKE_JSON = (
    st.lists(PIECES, max_size=12).map("".join)
    | st.lists(PIECES, max_size=6).map(lambda pieces: f"[{''.join(pieces)}]")
    | st.lists(PIECES, max_size=5).map(lambda pieces: f'{{"k":{"".join(pieces)}}}')
    | VALUES.map(lambda value: json.dumps(value, indent=1))
)


def by_json(text: str, *, floats: bool) -> object:
    """What `json` reads under the same rules; ValueError for anything else."""

    def whole(number: str) -> int:
        if abs(int(number)) > SAFE_INTEGER_MAX:
            raise ValueError(number)
        return int(number)

    def fraction(number: str) -> float:
        if not floats or not math.isfinite(float(number)):
            raise ValueError(number)
        return float(number)

    def members(pairs: list[tuple[str, object]]) -> dict[str, object]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError(pairs)
        return dict(pairs)

    def constant(name: str) -> object:
        raise ValueError(name)

    try:
        value: object = json.loads(
            text,
            parse_int=whole,
            parse_float=fraction,
            parse_constant=constant,
            object_pairs_hook=members,
        )
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except ValueError:
        return ValueError
    return value


def read(text: str, *, floats: bool) -> object:
    try:
        return decode(text.encode("utf-8"), bytes_max=100_000, floats=floats)
    except Invalid:
        return ValueError


@settings(FUZZ, max_examples=1_000)
@given(LIKE_JSON, st.booleans())
def test_what_json_reads_is_read_and_nothing_else(text: str, floats: bool) -> None:
    """Repr tells 1 from 1.0 and -0.0 from 0.0."""
    assert repr(read(text, floats=floats)) == repr(by_json(text, floats=floats))


@FUZZ
@given(VALUES)
def test_what_is_written_is_what_json_writes(value: object) -> None:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert encode(value) == text.encode("utf-8")
    assert plain_text(value) == text
    assert plain_text(value, spaced=True) == json.dumps(value, ensure_ascii=False)


@pytest.mark.parametrize("value", ["\ud800", 0.1, -0.0, 1e300, 2**70, (1, [2]), {"a": ("\udfff",)}])
def test_a_plain_text_is_not_checked(value: object) -> None:
    assert plain_text(value) == json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@pytest.mark.parametrize("value", [b"x", {1, 2}, [object()]])
def test_a_value_without_a_form_has_no_plain_text(value: object) -> None:
    with pytest.raises(TypeError):
        plain_text(value)


def elsewhere(program: str) -> list[str]:
    """The lines of an interpreter that has loaded nothing but what this program needs."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-X", "utf8", "-c", program, ROOT, *READ],
        capture_output=True,
        check=True,
        encoding="utf-8",
    )
    return done.stdout.splitlines()


_READ = """
import sys
sys.path.insert(0, sys.argv[1])
from qinglong_edge.core.canonical import decode, plain_text
from qinglong_edge.core.errors import Invalid
for text in sys.argv[2:]:
    try:
        print(plain_text(decode(text.encode(), bytes_max=99)))
    except Invalid as error:
        print(error.code)
"""
READ = {
    "[1,": "json_invalid",
    '"a': "json_invalid",
    "{1}": "json_invalid",
    '{"a" 1}': "json_invalid",
    "[1 2]": "json_invalid",
    '"\\x"': "json_invalid",
    "[1]x": "json_invalid",
    "nul": "json_invalid",
    "": "json_invalid",
    "[1,2.0]": "json_number",
    '{"a":1,"a":2}': "json_duplicate_key",
    '\t{"a":[1,null,"\\u00e9"]}\n': '{"a":[1,null,"\u00e9"]}',
}


def test_what_is_no_json_is_refused_before_json_itself_was_ever_loaded() -> None:
    assert elsewhere(_READ) == list(READ.values())


def test_an_interpreter_without_the_c_half_of_json_reads_and_writes_the_same() -> None:
    assert elsewhere(f"import sys\nsys.modules['_json'] = None\n{_READ}") == list(READ.values())


def test_no_json_document_loads_the_heavy_half_of_json() -> None:
    valid = f"{_READ}\nprint({{'json', 're', 'enum'}} & set(sys.modules))"
    program = valid.replace("sys.argv[2:]", "['[1]', '{}', '2.5', '[1,']")
    assert elsewhere(program) == ["[1]", "{}", "json_number", "json_invalid", "set()"]
