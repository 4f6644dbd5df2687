"""`import qinglong` brings the panel's envs: joined as QingLong joins them, sealed, once."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.core.limits import BINDING_VALUE_BYTES_MAX
from tests.e2e.kit import Kit
from tests.moving import panel
from tests.moving.panel import env, moved, task

RUNNER = Path(__file__).parents[2] / "qinglong_edge/kit/common/bin"


def added_up(report: Any) -> None:
    """Every row has one outcome, and the counts are those of the rows."""
    for rows, counts in (("tasks", "counts"), ("envs", "env_counts")):
        told = [each["outcome"] for each in report[rows]]
        assert report[counts]["rows"] == len(told)
        for word in ("inserted", "idempotent", "refused"):
            assert report[counts][word] == told.count(word)
        assert report[counts]["adapted"] == sum(bool(each.get("notes")) for each in report[rows])


@pytest.mark.parametrize("owner", ["daemon", "command"])
def test_three_hundred_tasks_and_eighty_envs_move_once(
    kit: Kit, database: Path, owner: str
) -> None:
    panel.make(database, panel.many(300), panel.many_envs(80))
    with kit.daemon() if owner == "daemon" else contextlib.nullcontext():
        with kit.unchanged():
            planned = moved(kit, database, "--dry-run")
        added_up(planned)
        assert not (kit.state / "keyring.json").exists()
        first = moved(kit, database)
        added_up(first)
        for part in ("tasks", "envs", "counts", "env_counts"):
            assert planned[part] == first[part]
        assert first["counts"]["inserted"] == 300
        assert first["env_counts"] == {
            "rows": 80,
            "inserted": 80,
            "idempotent": 0,
            "adapted": 0,
            "refused": 0,
        }
        assert len(first["env_sets"]) == 61
        before = kit.dump()
        again = moved(kit, database)
        assert kit.dump() == before
        added_up(again)
        assert (again["counts"]["idempotent"], again["env_counts"]["idempotent"]) == (300, 80)
        listed = {each["env"]: each for each in kit.ok("env", "list")["envs"]}
        assert all(len(each["bound_by"]) == 300 for each in listed.values())
        cookies = listed["JD_COOKIE"]["items"]
        assert [each["remarks"] for each in cookies[:2]] == ["account 0", "account 4"]
        assert [each["id"] for each in cookies if not each["enabled"]] == [1, 10, 19]


def test_a_cookie_of_three_rows_reaches_a_script_as_qinglong_joins_it(
    kit: Kit, database: Path
) -> None:
    """Pinned first, then by descending position, then the older; disabled rows are kept so."""
    later = "2025-07-01 08:00:00.000 +00:00"
    panel.make(
        database,
        [task("show", "task show.sh now")],
        [
            env("JD_COOKIE", "third;", 10, createdAt=later),
            env("JD_COOKIE", "second;", 10),
            env("JD_COOKIE", "off;", 99, status=1),
            env("JD_COOKIE", "first;'\"$x", 5, isPinned=1),
            env("OFF", "x", status=1),
        ],
    )
    script = database.parent.parent / "scripts" / "show.sh"
    script.write_text('printf "%s|%s" "$JD_COOKIE" "${OFF+there}"\n', encoding="utf-8")
    moved(kit, database)
    path = f"PATH={RUNNER}:{os.environ['PATH']}"
    assert kit.ok("start", "show", "--wait", "--env", path)["status"] == "succeeded"
    assert kit.ok("log", "show")["text"] == "first;'\"$x&second;&third;|"
    kit.ok("env", "enable", "JD_COOKIE", "2")
    kit.ok("env", "enable", "OFF")
    kit.ok("start", "show", "--wait", "--env", path)
    assert kit.ok("log", "show")["text"] == "first;'\"$x&off;&second;&third;|there"


ODD = [
    env(None, "x"),
    env("1A", "x"),
    env(" A", "x"),
    env("a-b", "x"),
    env("PATH", "/ql"),
    env("QL3_X", "x"),
    env("NUL", b"a\0b"),
    env("UTF", b"\xff"),
    env("STATUS", "x", status=3),
    env("NULL_STATUS", "x", status=None),
    env("TEXT_STATUS", "x", status="1"),
    env("NUMBER", 42),
    env("EMPTY", ""),
    env("NOTHING", None),
    env("LABELS", "x", labels='["京东"]', remarks="a\nb  " + "c" * 300, isPinned="1"),
    env("LARGE", "x" * (BINDING_VALUE_BYTES_MAX + 1)),
    env("TOGETHER", "x" * 40_000),
    env("TOGETHER", "y" * 40_000),
]


def test_every_oddity_of_an_env_has_its_answer(kit: Kit, database: Path) -> None:
    panel.make(database, [task("t", "env")], ODD)
    report = moved(kit, database)
    added_up(report)
    rows = {each["row"]: each for each in report["envs"]}
    assert {row: each["code"] for row, each in rows.items() if each["outcome"] == "refused"} == {
        1: "binding_name_invalid",
        2: "binding_name_invalid",
        3: "binding_name_invalid",
        4: "binding_name_invalid",
        5: "env_name_taken",
        6: "binding_name_refused",
        7: "has_nul",
        8: "not_utf8",
        9: "flag_invalid",
        16: "secret_value_invalid",
        17: "env_too_large",
        18: "env_too_large",
    }
    assert {row: each["notes"] for row, each in rows.items() if each.get("notes")} == {
        10: ["status_missing"],
        15: ["remarks_cut"],
    }
    assert [each["row"] for each in rows.values() if each.get("enabled") is False] == [10, 11]
    (labelled,) = kit.ok("env", "list", "LABELS")["envs"]
    assert labelled["items"][0]["labels"] == ["qinglong:15", "pinned", "京东"]
    assert labelled["items"][0]["remarks"].startswith("a b c")
    assert kit.ok("start", "t", "--wait")["status"] == "succeeded"
    lines = kit.ok("log", "t")["text"].splitlines()
    assert {"NUMBER=42", "EMPTY=", "NOTHING=", "LABELS=x"} <= set(lines)
    assert not any(line.startswith(("TEXT_STATUS", "NULL_STATUS")) for line in lines)


def test_values_are_sealed_unless_they_are_public_by_name(kit: Kit, database: Path) -> None:
    panel.make(database, [task("t", "env")], [env("TOKEN", "sesame"), env("SWITCH", "ajar")])
    told = kit.run("import", "qinglong", str(database), "--zone", "UTC", "--public", "SWITCH").out
    assert "sesame" not in told
    assert "ajar" not in told
    assert "a keyring was made" in told
    kinds = {each["env"]: each["items"][0]["kind"] for each in kit.ok("env", "list")["envs"]}
    assert kinds == {"SWITCH": "public", "TOKEN": "secret"}
    for file in kit.state.rglob("*"):
        assert not file.is_file() or b"sesame" not in file.read_bytes()
    other = database.with_name("public.sqlite")
    panel.make(other, [], [env("A", "1"), env("B", "2")])
    report = moved(kit, other, "--public", "*")
    assert {each["kind"] for each in report["envs"]} == {"public"}
    assert report["keyring_created"] is False


def test_a_name_that_is_a_plain_secret_is_refused(kit: Kit, database: Path) -> None:
    kit.ok("secret", "set", "TOKEN", stdin=b"mine")
    panel.make(database, [task("t", "true")], [env("TOKEN", "theirs"), env("A", "x")])
    report = moved(kit, database)
    assert [each.get("code") for each in report["envs"]] == [None, "secret_exists"]
    assert report["env_sets"] == ["A"]


def test_more_envs_than_a_task_can_have_are_kept_and_named(kit: Kit, database: Path) -> None:
    large = [env(f"LARGE_{number}", str(number) * 50_000) for number in range(6)]
    panel.make(database, [task("t", "true")], large)
    report = moved(kit, database)
    assert report["env_counts"]["inserted"] == 6
    (warning,) = [each for each in report["warnings"] if each["code"] == "envs_not_bound"]
    assert report["env_sets"] + warning["envs"] == [f"LARGE_{number}" for number in range(6)]
    assert kit.ok("start", "t", "--wait")["status"] == "succeeded"


def test_a_later_import_brings_what_is_new_and_leaves_what_was_changed_here(
    kit: Kit, database: Path
) -> None:
    rows = [env("A", "1", 9), env("A", "2", 8)]
    panel.make(database, [task("t", 'printf "%s" "$A"')], rows)
    moved(kit, database)
    kit.ok("env", "set", "A", "--id", "1", stdin=b"changed")
    database.unlink()
    panel.make(database, [task("t", 'printf "%s" "$A"')], [*rows, env("A", "3", 7), env("B", "x")])
    report = moved(kit, database)
    assert [each["outcome"] for each in report["envs"]] == ["idempotent"] * 2 + ["inserted"] * 2
    assert [each["code"] for each in report["warnings"]][-1] == "tasks_not_bound"
    kit.ok("start", "t", "--wait")
    assert kit.ok("log", "t")["text"] == "changed&2&3"


def test_tasks_alone_move_without_envs_and_older_panels_have_none(kit: Kit, database: Path) -> None:
    panel.make(database, [task("t", "true")], [env("A", "x")])
    report = moved(kit, database, "--no-envs")
    assert (report["envs"], report["env_sets"]) == ([], [])
    assert kit.ok("env", "list") == {"envs": []}
    database.unlink()
    panel.make(database, [task("u", "true")], sql="DROP TABLE Envs;")
    assert moved(kit, database)["env_counts"]["rows"] == 0
    kit.no("import", "crontab", "-", "--no-envs", status=2, code="usage")


def test_envs_and_tasks_come_in_one_transaction(kit: Kit) -> None:
    """A task that binds what never came takes everything back."""
    made = {"revision": 1, "next": 2, "items": []}
    item = {"id": 1, "value": "x", "enabled": True, "remarks": "", "labels": []}
    envs = [{"name": "A", "set": {**made, "items": [item]}}]
    bound = {"task": {"name": "x", "shell": "true", "env_sets": ["A", "B"]}, "enabled": True}
    with kit.daemon():
        staged = kit.ask("import.stage", envs=envs, tasks=[bound], arriving=["A", "B"])["result"]
        assert staged["outcomes"] == ["inserted"]
        told = kit.ask("import.commit", token=staged["token"])
        assert told["error"]["data"]["code"] == "env_unknown"
        assert kit.ok("env", "list") == {"envs": []}
        assert kit.ok("task", "list")["tasks"] == []
        told = kit.ask("import.stage", envs=[{"name": "A", "set": {}}])
        assert told["error"]["data"]["code"] == "env_invalid"
    assert json.dumps(kit.ok("audit")).count("refused") == 1
