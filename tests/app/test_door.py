"""The small values behind the front end: parameters, places, pending answers."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest

from qinglong_edge import __main__ as first
from qinglong_edge.app import preview, rpc, state
from qinglong_edge.app.params import Params
from qinglong_edge.cli import logs, render
from qinglong_edge.core.errors import EdgeError, Invalid
from tests.support import read_zone

PEER = rpc.Peer(0, "test")


def params(**given: object) -> Params:
    """The parameters of a request."""
    return Params(given, PEER)


@pytest.mark.parametrize(
    ("method", "value"),
    [
        ("text", 1),
        ("text", []),
        ("maybe_text", True),
        ("number", "1"),
        ("number", True),
        ("number", -1),
        ("number", 2**53),
        ("flag", 1),
        ("flag", "true"),
        ("texts", "a"),
        ("texts", [1]),
        ("mapping", []),
        ("mapping", {"a": 1}),
    ],
)
def test_a_parameter_of_another_type_is_refused(method: str, value: object) -> None:
    with pytest.raises(Invalid) as caught:
        getattr(params(x=value), method)("x")
    assert caught.value.code == "param_invalid"


def test_null_is_absent_and_an_unknown_parameter_is_refused() -> None:
    given = params(a=None, b=2, c="x")
    assert given.maybe_text("a") is None
    assert given.number("b") == 2
    assert not given.has("a")
    with pytest.raises(Invalid) as caught:
        given.end()
    assert (caught.value.code, caught.value.facts) == ("param_unknown", {"param": "c"})
    with pytest.raises(Invalid) as caught:
        params().text("name")
    assert caught.value.code == "param_missing"


def test_a_pending_answer_is_told_once() -> None:
    told: list[Any] = []
    pending = rpc.Pending()
    pending.listen(lambda result, error: told.append((result, error)))
    pending.settle("first")
    pending.settle("second")
    assert told == [("first", None)]
    late: list[Any] = []
    pending.listen(lambda result, error: late.append(result))
    assert late == ["first"]


def test_an_unexpected_exception_is_told_by_kind_only() -> None:
    line = rpc.error_line(3, ValueError("token=hunter2"))
    assert b"hunter2" not in line
    assert b'"kind":"ValueError"' in line
    assert b'"exit":70' in line


def test_an_interrupt_while_the_program_still_loads_ends_with_130_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Impatient:
        def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
            if name == "qinglong_edge.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "qinglong_edge.cli.main", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Impatient(), *sys.meta_path])
    assert first._start() == 130


@pytest.mark.parametrize("path", ["", "/", "a\0b", "/" + "x" * 5_000])
def test_a_place_that_cannot_be_is_refused(path: str) -> None:
    with pytest.raises(EdgeError) as caught:
        state.place(path, None)
    assert caught.value.code == "path_invalid"


def test_a_place_has_its_runtime_directory_below_it_unless_told() -> None:
    assert state.place("/x/../y", None).runtime == "/y/run"
    assert state.place("/y", "/z").socket == "/z/control.sock"


@pytest.mark.parametrize("text", ["你好", "é", "𝄞", "a", ""])
def test_bytes_are_split_at_whole_characters_only(text: str) -> None:
    data = text.encode()
    for cut in range(len(data) + 1):
        shown, kept = logs._split(data[:cut])
        shown.decode()
        assert shown + kept == data[:cut]
        assert len(kept) < 4


def test_bytes_that_never_become_a_character_are_not_held_back() -> None:
    for data in (b"\xff", b"a\x80\x80\x80\x80", b"\xe4a", b"\xc3\xa9"):
        assert logs._split(data) == (data, b"")
    assert logs._split(b"a\r") == (b"a", b"\r")


def test_a_moment_is_written_where_times_end_in_2038_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with glibc on 32-bit ARM until Debian 12: local time as far as it is known, then UTC."""
    localtime, moments = time.localtime, (0, 2**31 * 1000 - 1, 2**31 * 1000)

    def of_32_bits(second: int) -> time.struct_time:
        if second >= 2**31:
            raise OverflowError
        return localtime(second)

    with monkeypatch.context() as patch:
        patch.setenv("TZ", "XST-8:30")
        read_zone()
        shown = [render.moment(ms) for ms in moments]
        patch.setattr(time, "localtime", of_32_bits)
        patch.setattr(time, "gmtime", of_32_bits)
        narrow = [render.moment(ms) for ms in moments]
        zoned = [preview.local_text(ms, "CST-8") for ms in moments[1:]]
    read_zone()
    known = ["1970-01-01 08:30:00+0830", "2038-01-19 11:44:07+0830"]
    assert shown == [*known, "2038-01-19 11:44:08+0830"]
    assert narrow == [*known, "2038-01-19 03:14:08+0000"]
    assert zoned == ["2038-01-19 11:14:07+0800", "2038-01-19 11:14:08+0800"]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (None, "-"),
        (0, "0"),
        (3, "3"),
        (126, "126 (found, but not executable)"),
        (127, "127 (not found: the command, or what the first line of its file names)"),
        (128, "128"),
        (137, "137 (as by signal 9: Killed)"),
        (143, "143 (as by signal 15: Terminated)"),
        (255, "255"),
    ],
)
def test_an_exit_code_says_what_a_shell_means_by_it(code: int | None, said: str) -> None:
    assert render.exit_code(code) == said


def test_text_for_people() -> None:
    assert render.output(b"a\r\nb\x1b[0m\x07\xff") == "a\nb\u241b[0m\u2407\\xff"
    assert render.inline("a\nb\tc") == "a\u240ab\u2409c"
    assert render.duration(None) == "-"
    assert render.duration(59_999) == "60.0s"
    assert render.duration(61_000) == "1m01s"
    assert render.duration(7_260_000) == "2h01m"
    assert render.moment(None) == "-"
    zones = ("Asia/Shanghai", "CST-8", "UTC+8", "GMT-8", "UTC", "Etc/GMT+8")
    whens = [{"kind": "cron", "expression": "*", "zone": each, "parked": None} for each in zones]
    assert [render.trigger(each).partition(" ")[2] for each in whens] == [
        *("Asia/Shanghai", "CST-8", "UTC+8 (behind UTC)", "GMT-8 (ahead of UTC)"),
        *("UTC", "Etc/GMT+8"),
    ]
    assert [render.names(list("abcdefg"[:count]), "-") for count in (0, 1, 4, 5, 7)] == [
        *("-", "a", "a, b, c, d", "a, b, c and 2 more", "a, b, c and 4 more")
    ]
    assert render.table(("A", "B"), [("你", 1), ("xyz", 2)]) == "A    B\n你   1\nxyz  2\n"
    assert render.wrapped("", 5) == [""]
    assert render.wrapped("one two three", 7) == ["one two", "three"]
    assert render.wrapped("a " + "x" * 9 + " 你好 b", 6) == ["a", "x" * 9, "你好 b"]
    assert render.advice([]) == ""
    assert render.advice([f"a:{' word' * 20}", "b"]) == (f"\na:{' word' * 15}\n {' word' * 5}\nb\n")
