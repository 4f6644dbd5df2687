"""`env`: values under one name reach a task joined, in order; nothing else shows a sealed one."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.app import envedit, state
from qinglong_edge.app.client import Client
from qinglong_edge.app.sealing import Sealer
from qinglong_edge.core import envset, secret
from qinglong_edge.core.errors import Corrupt, Invalid, Refused
from tests.e2e.kit import Kit

SHOWN = 'printf "%s|%s" "$JD_COOKIE" "${JD_COOKIE+there}"'


def put(kit: Kit, value: str, *more: str, name: str = "JD_COOKIE") -> Any:
    """`env set`."""
    return kit.ok("env", "set", name, *more, stdin=value.encode())


def three(kit: Kit) -> None:
    """Two sealed values and a public one, and a task that shows what it gets."""
    assert put(kit, "pin=一;key='a\"") == {
        "env": "JD_COOKIE",
        "items": 1,
        "status": "inserted",
        "id": 1,
        "keyring_created": True,
    }
    put(kit, "pin=b;\n", "--add", "--remarks", "neighbour", "--label", "京东")
    put(kit, "pin=c;", "--add", "--public")
    kit.ok("task", "add", "t", "--env-set", "JD_COOKIE", "--shell", SHOWN)


def got(kit: Kit, task: str = "t") -> str:
    """What a run of the task sees."""
    run = kit.ok("start", task, "--wait")
    assert run["status"] == "succeeded", run
    return str(kit.ok("log", str(run["number"]))["text"])


def items(kit: Kit) -> list[dict[str, Any]]:
    """The items of JD_COOKIE as they are told."""
    (env,) = kit.ok("env", "list", "JD_COOKIE")["envs"]
    return list(env["items"])


def test_enabled_values_reach_a_task_joined_in_their_order(kit: Kit) -> None:
    three(kit)
    assert got(kit) == "pin=一;key='a\"&pin=b;\n&pin=c;|there"
    kit.ok("env", "move", "JD_COOKIE", "3", "1")
    kit.ok("env", "disable", "JD_COOKIE", "1")
    assert got(kit) == "pin=c;&pin=b;\n|there"
    kit.ok("env", "enable", "JD_COOKIE")
    kit.ok("env", "remove", "JD_COOKIE", "2")
    assert got(kit) == "pin=c;&pin=一;key='a\"|there"


def test_what_may_be_an_accident_of_a_value_is_said_and_the_value_kept(kit: Kit) -> None:
    for words in (("env", "set", "N", "--public"), ("env", "set", "M"), ("secret", "set", "S")):
        for value, said in (
            (b"", " (the value is empty)\n"),
            (b"a\n", " (its line end is part of it; printf %s writes none)\n"),
            (
                b"\xef\xbb\xbfa",
                " (it begins with a byte order mark, as Windows writes one into a file)\n",
            ),
            (b"\n\na", "\n"),
        ):
            told = kit.run(*words, stdin=value).out.partition("a keyring")[0]
            assert told.endswith(said)
            assert "(" not in told.removesuffix(said)
    (item,) = kit.ok("env", "list", "N")["envs"][0]["items"]
    assert item["value"] == "\n\na"


def test_a_set_without_enabled_items_leaves_the_variable_away(kit: Kit) -> None:
    """As QingLong does; an empty value is a value all the same."""
    three(kit)
    kit.ok("env", "disable", "JD_COOKIE")
    assert got(kit) == "|"
    kit.ok("env", "remove", "JD_COOKIE", "1", "2", "3")
    assert got(kit) == "|"
    put(kit, "")
    assert got(kit) == "|there"


def test_a_new_cookie_is_one_command_and_touches_no_task(kit: Kit) -> None:
    three(kit)
    before = kit.ok("task", "show", "t")
    with kit.daemon():
        put(kit, "pin=new;", "--id", "1")
        assert got(kit) == "pin=new;&pin=b;\n&pin=c;|there"
    after = kit.ok("task", "show", "t")
    assert {name: after[name] for name in ("revision", "context_ref")} == {
        name: before[name] for name in ("revision", "context_ref")
    }


def test_nothing_shows_a_sealed_value(kit: Kit) -> None:
    three(kit)
    with kit.daemon() as daemon:
        got(kit)
        for path in ("environ", "cmdline"):
            assert b"neighbour" not in Path(f"/proc/{daemon.pid}/{path}").read_bytes()
        told = [kit.ok(*line) for line in (("env", "list"), ("audit",), ("task", "show", "t"))]
        texts = json.dumps(told, ensure_ascii=False) + kit.run("env", "list").out
        assert "pin=c;" in texts
        assert "pin=b" not in texts
        assert "pin=一" not in texts
        logs = list((kit.state / "logs").rglob("*"))
        files = [path for path in kit.state.rglob("*") if path.is_file() and path not in logs]
        assert [path for path in files if b"pin=b" in path.read_bytes()] == []
    error = kit.no("env", "set", "JD_COOKIE", "sesame", status=2, code="secret_on_command_line")
    assert "sesame" not in json.dumps(error)
    assert "sesame" not in kit.run("env", "set", "JD_COOKIE", "--id", "1", "--sesame").err


def test_items_keep_what_is_said_of_them(kit: Kit) -> None:
    three(kit)
    ref = secret.make("JD_COOKIE").text
    assert items(kit)[1] == {
        "id": 2,
        "kind": "secret",
        "secret_ref": ref,
        "enabled": True,
        "remarks": "neighbour",
        "labels": ["京东"],
    }
    kit.ok(
        "env", "set", "JD_COOKIE", "--id", "2", "--keep", "--remarks", "moved out", "--no-enabled"
    )
    assert {name: items(kit)[1][name] for name in ("remarks", "enabled", "kind")} == {
        "remarks": "moved out",
        "enabled": False,
        "kind": "secret",
    }
    put(kit, "pin=d;", "--id", "3")
    assert (items(kit)[2]["kind"], items(kit)[2]["value"]) == ("public", "pin=d;")
    put(kit, "pin=e;", "--id", "3", "--no-public")
    assert items(kit)[2]["kind"] == "secret"
    assert got(kit) == "pin=一;key='a\"&pin=e;|there"


def test_public_values_need_no_key(kit: Kit) -> None:
    put(kit, "a", "--public")
    kit.ok("task", "add", "t", "--env-set", "JD_COOKIE", "--shell", SHOWN)
    assert got(kit) == "a|there"
    assert not (kit.state / "keyring.json").exists()
    assert kit.ok("secret", "list") == {"secrets": []}


def test_what_was_sealed_goes_with_the_last_sealed_item(kit: Kit) -> None:
    three(kit)
    kit.ok("env", "remove", "JD_COOKIE", "1")
    assert [each["secret"] for each in kit.ok("secret", "list")["secrets"]] == ["JD_COOKIE"]
    put(kit, "pin=b;", "--id", "2", "--public")
    assert kit.ok("secret", "list") == {"secrets": []}
    assert got(kit) == "pin=b;&pin=c;|there"
    put(kit, "pin=f;", "--add", "--no-public")
    assert got(kit) == "pin=b;&pin=c;&pin=f;|there"


def test_a_set_outlives_its_key(kit: Kit) -> None:
    three(kit)
    old = kit.ok("keyring", "status")["active"]
    kit.ok("keyring", "rotate")
    kit.ok("keyring", "rekey")
    kit.ok("keyring", "retire", old)
    assert got(kit) == "pin=一;key='a\"&pin=b;\n&pin=c;|there"
    put(kit, "pin=g;", "--id", "2")
    (kit.state / "keyring.json").unlink()
    kit.ok("env", "disable", "JD_COOKIE", "1", "2")
    assert got(kit) == "pin=c;|there"
    kit.ok("env", "enable", "JD_COOKIE", "1")
    run = kit("start", "t", "--wait")[1]
    assert run["error_code"] == "secret_provider_unavailable"


def test_every_task_gets_a_set_with_one_command(kit: Kit) -> None:
    three(kit)
    put(kit, "x", "--public", name="OTHER")
    kit.ok("task", "add", "u", "--shell", SHOWN)
    kit.ok("task", "set", "--all", "--env-set", "JD_COOKIE", "--env-set", "OTHER")
    assert got(kit, "u") == got(kit)
    (_cookie, other) = kit.ok("env", "list")["envs"]
    assert other["bound_by"] == ["t", "u"]
    kit.ok("task", "set", "u", "--unset-env", "JD_COOKIE")
    assert got(kit, "u") == "|"


def test_an_export_of_tasks_binds_the_sets_of_another_box(kit: Kit, tmp_path: Path) -> None:
    three(kit)
    file = tmp_path / "tasks.json"
    file.write_text(kit.run("export", "tasks").out, encoding="utf-8")
    (tmp_path / "o").mkdir()
    other = Kit(tmp_path / "o")
    other.ok("init")
    told = other.ok("import", "tasks", str(file))
    assert [each["code"] for each in told["tasks"]] == ["secret_unknown"]
    put(other, "there", "--public")
    other.ok("import", "tasks", str(file))
    assert got(other) == "there|there"


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (("env", "set", "1A"), 2, "binding_name_invalid"),
        (("env", "set", "QL3_X"), 2, "binding_name_refused"),
        (("env", "set", "JD_COOKIE"), 2, "env_item_needed"),
        (("env", "set", "JD_COOKIE", "--id", "9"), 3, "env_item_unknown"),
        (("env", "set", "JD_COOKIE", "--id", "1", "--add"), 2, "usage"),
        (("env", "set", "NEW", "--keep"), 3, "env_unknown"),
        (("env", "set", "JD_COOKIE", "--id", "1", "--remarks", "a\nb"), 2, "env_invalid"),
        (("env", "set", "PLAIN"), 3, "secret_exists"),
        (("env", "list", "NEW"), 3, "env_unknown"),
        (("env", "enable", "NEW"), 3, "env_unknown"),
        (("env", "disable", "JD_COOKIE", "9"), 3, "env_item_unknown"),
        (("env", "move", "JD_COOKIE", "1", "4"), 2, "usage"),
        (("env", "remove", "JD_COOKIE"), 3, "env_bound"),
        (("env", "remove", "NEW"), 3, "env_unknown"),
        (("secret", "set", "JD_COOKIE"), 3, "secret_is_env"),
        (("secret", "remove", "JD_COOKIE"), 3, "secret_is_env"),
        (("task", "set", "t", "--env-set", "NEW"), 3, "env_unknown"),
        (("task", "set", "--all"), 2, "usage"),
        (("task", "add", "n", "--env-set", "JD_COOKIE", "--env", "JD_COOKIE=x", "--", "true"), 2,
         "binding_duplicate"),
        (("task", "add", "n", "--env-set", "JD_COOKIE", "--secret", "JD_COOKIE=PLAIN",
          "--", "true"), 2, "binding_duplicate"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_and_changes_nothing(
    kit: Kit, words: tuple[str, ...], status: int, code: str
) -> None:
    three(kit)
    kit.ok("secret", "set", "PLAIN", stdin=b"x")
    before = kit.ok("env", "list"), kit.ok("secret", "list")
    kit.no(*words, status=status, code=code, stdin=b"value")
    assert (kit.ok("env", "list"), kit.ok("secret", "list")) == before


def test_values_have_their_bounds(kit: Kit) -> None:
    put(kit, "x" * 60_000)
    kit.no("env", "set", "JD_COOKIE", "--add", status=2, code="env_too_large", stdin=b"y" * 6_000)
    kit.no("env", "set", "A", status=2, code="secret_value_invalid", stdin=b"\0")
    kit.no("env", "set", "A", "--public", status=2, code="secret_value_invalid", stdin=b"\xff")
    kit.no("env", "set", "A", status=2, code="env_too_large", stdin=b'"' * 40_000)
    with pytest.raises(Invalid) as caught:
        envset.EnvSet(
            name="A",
            revision=1,
            next_id=400,
            items=tuple(envset.Item(id=number, value="") for number in range(1, 258)),
        )
    assert caught.value.code == "env_items_too_many"


def test_two_commands_at_the_same_time_lose_nothing(kit: Kit) -> None:
    """The slower one is refused; the same request again, after a lost answer, changes nothing."""
    where = state.place(str(kit.state), None)
    with Client(where) as client:
        sealer = Sealer(where, client=client)
        first, second = (envedit.load(sealer, "A") for _ in range(2))
        for draft in (first, second):
            draft.put(b"v", number=None, public=False)
        asked = first.request()
        assert client.call("env.save", asked)["status"] == "inserted"
        assert client.call("env.save", asked)["status"] == "idempotent"
        with pytest.raises(Refused) as caught:
            client.call("env.save", second.request())
        assert caught.value.code == "env_conflict"
        third = envedit.load(sealer, "A").request()
        third["set"]["items"].append({**third["set"]["items"][0], "id": 2})
        third["set"]["next"] = 3
        with pytest.raises(Invalid) as missing:
            client.call("env.save", third)
        assert missing.value.code == "env_values_missing"
    assert [
        each["outcome"] for each in kit.ok("audit")["audit"] if each["action"] == "env.save"
    ] == [
        "refused",
        "refused",
        "done",
    ]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"revision":1,"next":2,"items":{}}', '{"revision":1,"next":1,"items":[1]}'],
)
def test_a_damaged_set_stops_its_tasks_and_nothing_else(kit: Kit, text: str) -> None:
    three(kit)
    kit.ok("task", "add", "u", "--shell", SHOWN)
    with contextlib.closing(sqlite3.connect(kit.state / "edge.db")) as database, database:
        database.execute("UPDATE setting SET value = ? WHERE name = 'env:JD_COOKIE'", (text,))
    kit.no("env", "list", status=5, code="env_corrupt")
    assert kit("start", "t", "--wait")[1]["error_code"] == "secret_unavailable"
    assert got(kit, "u") == "|"
    with pytest.raises(Corrupt):
        envset.decode("JD_COOKIE", text)


def test_an_order_without_its_values_is_no_order(kit: Kit) -> None:
    """Rows that do not belong together never become a shorter list of cookies."""
    three(kit)
    with contextlib.closing(sqlite3.connect(kit.state / "edge.db")) as database, database:
        database.execute(
            "UPDATE setting SET value = replace(value, '\"id\":2,', '\"id\":3,')"
            " WHERE name = 'env:JD_COOKIE'"
        )
        database.execute(
            'UPDATE setting SET value = replace(value, \'"id":3,"value":"\', \'"id":2,"value":"\')'
            " WHERE name = 'env:JD_COOKIE'"
        )
    assert kit("start", "t", "--wait")[1]["error_code"] == "secret_unavailable"
