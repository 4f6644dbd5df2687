"""Who changed what: every mutation and refusal is a line of the audit, and none has a value."""

from __future__ import annotations

import json
import os
from typing import Any

from tests.e2e.kit import Kit

KEYS = {"number", "at_ms", "uid", "front_end", "mutation_id", "action", "target", "version"}
KEYS |= {"outcome", "code"}


def lines(kit: Kit, *arguments: str) -> list[tuple[Any, ...]]:
    """(action, target, version, outcome, code), oldest first."""
    told = kit.ok("audit", *arguments)["audit"]
    names = ("action", "target", "version", "outcome", "code")
    return [tuple(each[name] for name in names) for each in reversed(told)]


def test_each_change_of_a_task_is_told_with_who_and_how(kit: Kit) -> None:
    kit.ok("task", "add", "t", "--", "true")
    kit.no("task", "add", "t", "--", "true", status=3, code="task_exists")
    with kit.daemon():
        kit.ok("task", "set", "t", "--env", "A=hush")
        kit.no("task", "set", "t", "--env", "IFS=1", status=2, code="binding_name_refused")
        kit.ok("task", "disable", "t")
        kit.ok("task", "rename", "t", "u")
        kit.ok("task", "remove", "u")
        kit.no("task", "enable", "u", status=3, code="task_unknown")
    assert lines(kit) == [
        ("task.add", "t", 1, "done", None),
        ("task.add", "t", None, "refused", "task_exists"),
        ("task.set", "t", 2, "done", None),
        ("task.set", "t", None, "refused", "binding_name_refused"),
        ("task.disable", "t", None, "done", None),
        ("task.rename", "u", None, "done", None),
        ("task.remove", "u", None, "done", None),
        ("task.enable", "u", None, "refused", "task_unknown"),
    ]
    told = kit.ok("audit")["audit"]
    assert all(set(each) == KEYS for each in told)
    assert {each["uid"] for each in told} == {os.geteuid()}
    assert [each["front_end"] for each in told] == ["socket"] * 6 + ["command"] * 2
    assert len({each["mutation_id"] for each in told}) == len(told)
    assert "hush" not in json.dumps(told)


def test_secrets_and_keys_are_told_with_the_intent_before_the_effect(kit: Kit) -> None:
    kit.ok("secret", "set", "S", stdin=b"hush")
    (old,) = [each["key"] for each in kit.ok("keyring", "status")["keys"]]
    new = kit.ok("keyring", "rotate")["active"]
    kit.ok("keyring", "rekey")
    kit.no("keyring", "retire", new, status=3, code="keyring_key_active")
    kit.ok("keyring", "retire", old)
    kit.ok("secret", "remove", "S")
    told = [line for line in lines(kit) if line[0] != "secret.copy"]
    assert told == [
        ("keyring.init", "", None, "intended", None),
        ("keyring.init", old, None, "done", None),
        ("secret.append", "S", 1, "done", None),
        ("keyring.rotate", old, None, "intended", None),
        ("keyring.rotate", old, None, "done", None),
        ("keyring.rekey", new, None, "intended", None),
        ("keyring.rekey", new, None, "done", None),
        ("keyring.retire", new, None, "intended", None),
        ("keyring.retire", new, None, "refused", "keyring_key_active"),
        ("keyring.retire", old, None, "intended", None),
        ("keyring.retire", old, None, "done", None),
        ("keyring.retire", old, None, "done", None),
        ("secret.remove", "S", None, "done", None),
    ]


def test_a_page_goes_on_where_the_one_before_ended(kit: Kit) -> None:
    for number in range(7):
        kit.ok("task", "add", f"t{number}", "--", "true")
    seen: list[str] = []
    words: tuple[str, ...] = ("--limit", "3")
    for _page in range(3):
        told = kit.ok("audit", *words)
        seen += [each["target"] for each in told["audit"]]
        words = ("--limit", "3", "--after", str(told["next"]))
    assert seen == [f"t{number}" for number in reversed(range(7))]
    assert told["next"] is None
    kit.no("audit", "--limit", "0", status=2, code="param_invalid")


def test_the_text_is_a_table_that_says_where_to_go_on(kit: Kit) -> None:
    for number in range(2):
        kit.ok("task", "add", f"t{number}", "--", "true")
    text = kit.run("audit", "--limit", "1").out
    assert text.startswith("AT ")
    assert text.count("\n") == 3
    assert "older ones: --after " in text
