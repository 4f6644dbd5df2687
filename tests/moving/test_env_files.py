"""`export envs` and `import envs`: our own JSON reads back exactly, QingLong's row by row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kit import Kit, fresh


@pytest.fixture
def other(tmp_path: Path) -> Kit:
    """Another box."""
    return fresh(tmp_path / "o")


def fill(kit: Kit) -> None:
    """Two sets, sealed and public values, in another order than they came, one id gone."""
    for value in ("one", "two\n'\"", "三"):
        kit.ok("env", "set", "COOKIE", "--add", "--remarks", value[:3], stdin=value.encode())
    kit.ok("env", "set", "COOKIE", "--add", "--public", "--label", "京东", stdin=b"four")
    kit.ok("env", "move", "COOKIE", "3", "1")
    kit.ok("env", "remove", "COOKIE", "1")
    kit.ok("env", "disable", "COOKIE", "2")
    kit.ok("env", "set", "EMPTY", "--public", stdin=b"")


def exported(kit: Kit, *more: str) -> str:
    """The file."""
    told = kit.run("export", "envs", *more)
    assert told.status == 0, told.err
    return told.out


def taken(kit: Kit, text: str, *more: str) -> Any:
    """`import envs` from standard input."""
    return kit.ok("import", "envs", "-", *more, stdin=text.encode())


def test_our_own_json_reads_back_exactly(kit: Kit, other: Kit) -> None:
    fill(kit)
    text = exported(kit, "--with-values")
    assert text == kit.run("env", "export", "--with-values").out
    with other.unchanged():
        planned = taken(other, text, "--dry-run")
    assert not (other.state / "keyring.json").exists()
    told = taken(other, text)
    assert told["envs"] == planned["envs"]
    assert [each["outcome"] for each in told["envs"]] == ["inserted"] * 4
    assert told["keyring_created"] is True
    assert exported(other, "--with-values") == text
    with other.daemon():
        before = other.dump()
        assert {each["outcome"] for each in taken(other, text)["envs"]} == {"idempotent"}
        assert other.dump() == before
    other.ok("task", "add", "t", "--env-set", "COOKIE", "--shell", 'printf "%s" "$COOKIE"')
    other.ok("start", "t", "--wait")
    assert other.ok("log", "t")["text"] == "三&four"
    assert json.loads(exported(kit, "--json", "--with-values")) == json.loads(text)


def test_a_set_that_differs_is_replaced_only_on_demand(kit: Kit, other: Kit) -> None:
    fill(kit)
    other.ok("env", "set", "COOKIE", stdin=b"mine")
    text = exported(kit, "--with-values")
    told = taken(other, text)
    assert {each["env"]: each.get("code") for each in told["envs"]} == {
        "COOKIE": "env_exists",
        "EMPTY": None,
    }
    assert taken(other, text, "--replace")["envs"][0]["outcome"] == "replaced"
    assert exported(other, "--with-values") == text


def test_sealed_values_leave_only_on_demand(kit: Kit) -> None:
    fill(kit)
    text = exported(kit)
    assert '"value": "two' not in text
    assert "four" in text
    kit.no("import", "envs", "-", status=2, code="env_values_missing", stdin=text.encode())
    kit.no("export", "envs", "--format", "qinglong", status=2, code="usage")
    only = exported(kit, "--format", "qinglong", "--with-values")
    assert json.loads(only)[:2] == [
        {"name": "COOKIE", "value": "三", "remarks": "三"},
        {"name": "COOKIE", "value": "two\n'\"", "remarks": "two", "status": 1},
    ]
    one = kit.run("env", "export", "EMPTY").out
    assert [each["env"] for each in json.loads(one)["envs"]] == ["EMPTY"]


def test_qinglongs_json_is_read_as_its_own_table_would_take_it(kit: Kit, other: Kit) -> None:
    rows = [
        {"name": "COOKIE", "value": "a", "remarks": "A"},
        {"name": "TOKEN", "value": "t"},
        {"name": "COOKIE", "value": "b", "remarks": None, "status": 1, "labels": ["x"]},
        {"name": "1A", "value": "x"},
    ]
    told = taken(kit, json.dumps(rows), "--public", "TOKEN")
    assert [(each["env"], each["item"], each["outcome"]) for each in told["envs"]] == [
        ("COOKIE", 1, "inserted"),
        ("COOKIE", 2, "inserted"),
        ("TOKEN", 1, "inserted"),
        ("1A", 1, "refused"),
    ]
    assert told["refused"] == 1
    listed = {each["env"]: each["items"] for each in kit.ok("env", "list")["envs"]}
    assert [each["enabled"] for each in listed["COOKIE"]] == [True, False]
    assert listed["TOKEN"][0]["value"] == "t"
    before = kit.dump()
    again = taken(kit, json.dumps(rows))
    assert [each["outcome"] for each in again["envs"]] == ["idempotent"] * 3 + ["refused"]
    assert kit.dump() == before
    more = taken(kit, json.dumps([{"name": "COOKIE", "value": "c"}]))
    assert more["envs"][0]["outcome"] == "inserted"
    text = exported(kit, "--format", "qinglong", "--with-values")
    assert [each.get("status") for each in json.loads(text)] == [None, 1, None, None]
    taken(other, text)
    assert exported(other, "--format", "qinglong", "--with-values") == text


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "json_invalid"),
        ("3", "export_foreign"),
        ("{}", "export_foreign"),
        ("[3]", "export_foreign"),
        ('[{"name":"A"}]', "export_foreign"),
        ('[{"name":"A","value":1}]', "export_foreign"),
        ('{"kind":"qinglong_edge.envs","version":2}', "export_too_new"),
        ('{"kind":"qinglong_edge.envs","version":1,"envs":[{"items":[]}]}', "export_foreign"),
        ('{"kind":"qinglong_edge.envs","version":1,"envs":[{"env":"A","items":[{}]}]}',
         "export_foreign"),
    ],
)  # fmt: skip
def test_what_is_no_export_of_envs_is_refused_in_words(kit: Kit, text: str, code: str) -> None:
    with kit.unchanged():
        kit.no("import", "envs", "-", status=2, code=code, stdin=text.encode())


def test_a_row_that_is_none_is_named_by_its_number(kit: Kit) -> None:
    rows = [{"name": "A", "value": "1"}, {"name": "B", "value": 2}]
    error = kit.no(
        *("import", "envs", "-"), status=2, code="export_foreign", stdin=json.dumps(rows).encode()
    )
    assert error["facts"] == {"row": 2}


def test_a_file_that_windows_saved_anew_is_read(kit: Kit, other: Kit) -> None:
    fill(kit)
    kit.ok("task", "add", "t", "--shell", "true")
    for words in (["envs", "--with-values"], ["tasks"]):
        text = kit.run("export", *words).out.replace("\n", "\r\n")
        other.ok("import", words[0], "-", stdin=b"\xef\xbb\xbf" + text.encode())
        assert other.run("export", *words).out == kit.run("export", *words).out
    line = b"\xef\xbb\xbf0 4 * * * true\n"
    assert len(other.ok("import", "crontab", "-", stdin=line)["imported"]) == 1


def test_options_of_one_kind_are_refused_for_another(kit: Kit) -> None:
    for words in (
        ("export", "envs", "--format", "crontab"),
        ("export", "tasks", "--format", "qinglong"),
        ("export", "tasks", "--with-values"),
        ("import", "tasks", "-", "--replace"),
        ("import", "crontab", "-", "--public", "A"),
    ):
        kit.no(*words, status=2, code="usage")
