"""Dotenv files byte for byte: what each line gives, what it is refused for, and never a value."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qinglong_edge.core import dotenv
from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.limits import BINDING_VALUE_BYTES_MAX, IMPORT_BYTES_MAX
from tests.unit.zones import FUZZ


def values(text: str) -> dict[str, str]:
    """The variables of a file in which every line counts."""
    parsed = dotenv.parse(text.encode("utf-8", "surrogateescape"))
    assert parsed.refused == []
    return parsed.values


def refused(data: bytes) -> list[tuple[int | str, int | str]]:
    """Line and code of each refusal."""
    return [(each["line"], each["code"]) for each in dotenv.parse(data).refused]


def warned(text: str) -> list[tuple[int | str, int | str]]:
    """Line and code of each warning."""
    return [(each["line"], each["code"]) for each in dotenv.parse(text.encode()).warnings]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("A=b", "b"),
        ("A=", ""),
        ("A=b=c==", "b=c=="),
        ("  A =  b c\t", "b c"),
        ("export A=b", "b"),
        ("export\t A=b", "b"),
        ("A=b # note", "b"),
        ("A=b\t# note", "b"),
        ("A=b#c", "b#c"),
        ("A=#b", "#b"),
        ("A= # note", ""),
        ("A=a\\nb", "a\\nb"),
        ("A=it's", "it's"),
        ("A=b 'c'", "b 'c'"),
        ("A='b'", "b"),
        ("A=''", ""),
        ('A=""', ""),
        ("A=' b  '", " b  "),
        ("A=' b ' # note", " b "),
        ("A='b'   ", "b"),
        ("A='a\nb\n'", "a\nb\n"),
        ("A='a\r\nb'", "a\r\nb"),
        ("A='\\n$HOME\"'", '\\n$HOME"'),
        ('A="b # c"', "b # c"),
        ('A="a\nb"', "a\nb"),
        ('A="\\n\\r\\t\\"\\\\\\$"', '\n\r\t"\\$'),
        ('A="\\x\\\\n\\\'"', "\\x\\n\\'"),
        ('A="it\'s" ', "it's"),
        ("A=pt_key=é;pt_pin=签到🚀;", "pt_key=é;pt_pin=签到🚀;"),
        ('A="🚀 "', "🚀 "),
        ("\ufeffA=b", "b"),
        ("A=b\u00a0", "b\u00a0"),
        ("A=a\rb", "a\rb"),
    ],
)
@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\r\nB='c'\r\n", "\n\n# note\n \n"])
def test_a_value_is_kept_byte_for_byte(text: str, value: str, end: str) -> None:
    assert values(text + end)["A"] == value


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"A\n", [(1, "assignment_missing")]),
        (b"A=1\nexport B\nC: 3\n", [(2, "assignment_missing"), (3, "assignment_missing")]),
        (b"=1", [(1, "binding_name_invalid")]),
        (b"A B=1", [(1, "binding_name_invalid")]),
        (b"A-B=1", [(1, "binding_name_invalid")]),
        ("Ä=1".encode(), [(1, "binding_name_invalid")]),
        (b"\nQL3_X=1", [(2, "binding_name_refused")]),
        (b"IFS=1", [(1, "binding_name_refused")]),
        (b"A=\xff", [(1, "value_not_utf8")]),
        (b"A='\xc3'", [(1, "value_not_utf8")]),
        (b"A=a\0b", [(1, "value_has_nul")]),
        (b'A="a\0b"', [(1, "value_has_nul")]),
        (b"A=" + b"x" * (BINDING_VALUE_BYTES_MAX + 1), [(1, "value_too_large")]),
        (b"A='x\nB=1\nC\n", [(1, "quote_open"), (3, "assignment_missing")]),
        (b'A="x\\"', [(1, "quote_open")]),
        (b"A='x'y", [(1, "quote_followed")]),
        (b"A='x'#y", [(1, "quote_followed")]),
        (b"A='x'\\''y'", [(1, "quote_followed")]),
        (b'A="x\nB="y"', [(1, "quote_followed")]),
        (b"A='1\n2\n3'\nB\n", [(4, "assignment_missing")]),
    ],
)
def test_a_line_that_cannot_be_kept_is_refused_by_its_number(
    data: bytes, found: list[tuple[int, str]]
) -> None:
    assert refused(data) == found


def test_of_a_name_given_twice_the_last_counts_and_says_so() -> None:
    assert values("A=1\nB=2\nA=3\n") == {"B": "2", "A": "3"}
    assert warned("A=1\nB=2\nA=3\n") == [(3, "variable_repeated")]


def test_what_other_readers_would_expand_is_kept_and_told() -> None:
    for text in ("A=$HOME", 'A="${HOME}"', "A=$(id)"):
        assert warned(text) == [(1, "not_expanded")]
    assert warned("A='$HOME'\nB=5$\nC=\"\\$HOME\"\n") == []


def test_line_ends_of_windows_inside_of_a_value_are_told() -> None:
    assert warned("A='a\r\nb'\r\nB=c\r\n") == [(1, "line_ends_kept")]


def test_a_file_over_a_mebibyte_is_refused() -> None:
    with pytest.raises(Invalid) as caught:
        dotenv.parse(b"#" * (IMPORT_BYTES_MAX + 1))
    assert caught.value.code == "dotenv_too_large"


def test_many_open_quotes_take_no_time_worth_telling() -> None:
    for line in (b"A='x\n", b'A="\\\n', b"A='" + b" " * 60 + b"\n", b"A" + b" " * 60 + b"\n"):
        dotenv.parse(line * (IMPORT_BYTES_MAX // len(line)))


def test_neither_report_nor_repr_says_a_value() -> None:
    text = "A=hush1\nB='hush2\nA='hush3'hush3\nA=hush4\nhush5\nhush6 7=hush8\n"
    parsed = dotenv.parse(text.encode())
    assert "hush" not in json.dumps({**parsed.report(), "imported": []}) + repr(parsed)


@FUZZ
@given(st.dictionaries(st.from_regex(r"V[A-Z0-9]{0,8}", fullmatch=True), st.text()))
def test_what_is_written_quoted_is_read_again(given_values: dict[str, str]) -> None:
    kept = {name: text.replace("\0", "") for name, text in given_values.items()}
    single = {name: text for name, text in kept.items() if "'" not in text}
    assert values("".join(f"{k}='{v}'\n" for k, v in single.items())) == single
    escaped = {k: v.replace("\\", "\\\\").replace('"', '\\"') for k, v in kept.items()}
    assert values("".join(f'export {k}="{v}" # x\r\n' for k, v in escaped.items())) == kept


_PIECES = st.sampled_from(
    [b"A", b"=", b"'", b'"', b"\\", b"\n", b"\r\n", b" ", b"#", b"$", b"\xff", b"\0", b"export "]
)


@FUZZ
@given(st.one_of(st.binary(), st.lists(_PIECES).map(b"".join)))
def test_any_bytes_end_in_a_report(data: bytes) -> None:
    parsed = dotenv.parse(data)
    lines = data.count(b"\n") + 1
    for each in (*parsed.refused, *parsed.warnings):
        assert 1 <= int(each["line"]) <= lines
    for value in parsed.values.values():
        assert value.encode("utf-8") in data.replace(b"\\", b"") or b"\\" in data
    json.dumps(parsed.report())
