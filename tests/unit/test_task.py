"""A task's definition: its bounds, its stored form, its digest."""

from __future__ import annotations

from typing import Any

import pytest

from qinglong_edge.core import limits
from qinglong_edge.core.errors import Corrupt, Invalid
from qinglong_edge.core.task import (
    Definition,
    Trigger,
    check_command,
    check_name,
    check_path,
    decode_definition,
    digest,
)

_ARGV = ("/bin/echo", "")


def _definition(**fields: Any) -> Definition:
    return Definition(**{"argv": _ARGV, **fields})


def _code(fields: dict[str, Any]) -> str | None:
    try:
        _definition(**fields)
    except Invalid as error:
        return error.code
    return None


@pytest.mark.parametrize(
    ("field", "lowest", "highest"),
    [
        ("nice", -20, 19),
        ("timeout_ms", 1, limits.TIMEOUT_MS_MAX),
        ("grace_ms", 0, limits.GRACE_MS_MAX),
        ("parallel_max", 1, limits.PARALLEL_MAX),
        ("retry", 0, limits.RETRY_MAX),
        ("backoff_ms", 0, limits.BACKOFF_MS_MAX),
    ],
)
def test_a_number_has_its_bounds_and_is_a_number(field: str, lowest: int, highest: int) -> None:
    assert _code({field: lowest}) is None
    assert _code({field: highest}) is None
    for wrong in (lowest - 1, highest + 1, True, 1.0, "1"):
        assert _code({field: wrong}) == "number_out_of_range"


@pytest.mark.parametrize(
    "fields", [{"overlap": "allow"}, {"overlap": ""}, {"retry_on": ("succeeded",)}]
)
def test_a_choice_is_one_of_its_words(fields: dict[str, Any]) -> None:
    assert _code(fields) == "choice_unknown"


def test_a_lost_run_is_repeated_only_by_a_task_that_says_it_is_safe() -> None:
    assert _code({"retry": 1, "retry_on": ("lost",)}) == "retry_unsafe"
    assert _code({"retry": 1, "retry_on": ("lost",), "repeatable": True}) is None
    assert _code({"retry": 0, "retry_on": ("lost",)}) is None


@pytest.mark.parametrize(
    ("argv", "shell", "code"),
    [
        ((), False, "command_empty"),
        (("",), False, "command_empty"),
        (("/bin/true", ""), False, None),
        (("/bin/true", "a\0b"), False, "command_has_nul"),
        (("a",) * 256, False, None),
        (("a",) * 257, False, "command_too_large"),
        (("a", "b" * 16_384), False, None),
        (("a", "b" * 16_385), False, "command_too_large"),
        (("/bin/sh", "-c", "b" * 60_000), True, None),
        (("/bin/sh", "-c", "b" * 65_536), True, "command_too_large"),
        (("a", "ä" * 8_193), False, "command_too_large"),
        (("a", "\ud800"), False, "not_utf8"),
        (("a", 7), False, "not_text"),
    ],
)
def test_a_command_keeps_its_budget(argv: tuple[Any, ...], shell: bool, code: str | None) -> None:
    found = None
    try:
        check_command(argv, shell=shell)
    except Invalid as error:
        found = error.code
    except TypeError:
        found = "not_text"
    assert found == code


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("backup", None),
        ("日志 备份", None),
        ("a" * 128, None),
        ("a" * 129, "name_too_long"),
        ("\U0001f600" * 128, None),
        ("", "name_empty"),
        (None, "name_empty"),
        ("a\nb", "name_control"),
        ("a\u2028b", "name_control"),
        ("a\x7f", "name_control"),
        (" a", "name_edge"),
        ("-a", "name_edge"),
        ("17", "name_is_number"),
        ("17a", None),
        ("\ud800", "not_utf8"),
    ],
)
def test_a_name_is_readable_and_no_number(name: Any, code: str | None) -> None:
    found = None
    try:
        assert check_name(name) == name
    except Invalid as error:
        found = error.code
    assert found == code


@pytest.mark.parametrize("path", ["", "relative", "/a\0b", "/" + "a" * 4_096, None, 7])
def test_a_path_is_absolute_and_bounded(path: Any) -> None:
    with pytest.raises(Invalid) as caught:
        check_path(path, "cwd")
    assert caught.value.code == "path_invalid"
    assert caught.value.facts == {"field": "cwd"}


def test_a_definition_is_read_back_as_it_was_written() -> None:
    definition = _definition(
        shell=True, cwd="/tmp", nice=5, timeout_ms=1, retry=2, retry_on=("failed",), log=False
    )
    assert decode_definition(definition.encode()) == definition


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-1],
        lambda text: text.replace('"nice":0', '"nice":99'),
        lambda text: text.replace('"nice":0', '"nicer":0'),
        lambda text: text.replace('"argv":["/bin/echo",""]', '"argv":7'),
        lambda text: "[]",
        lambda text: "{}",
        lambda text: "",
    ],
)
def test_a_damaged_definition_is_corrupt(change: Any) -> None:
    with pytest.raises(Corrupt) as caught:
        decode_definition(change(_definition().encode()))
    assert caught.value.code == "definition_corrupt"


def test_a_digest_tells_definition_triggers_and_recipe_apart() -> None:
    trigger = Trigger(kind="cron", expression="* * * * *", zone="UTC")
    one = digest(_definition(), (trigger,), "localctx:a")
    assert one == digest(_definition(), (trigger.replace(number=7),), "localctx:a")
    others = {
        digest(_definition(nice=1), (trigger,), "localctx:a"),
        digest(_definition(), (), "localctx:a"),
        digest(_definition(), (trigger.replace(misfire="fire_once"),), "localctx:a"),
        digest(_definition(), (trigger,), "localctx:b"),
    }
    assert len(others) == 4
    assert one not in others
