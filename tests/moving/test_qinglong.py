"""`import qinglong`: every row is mapped, adapted or refused with its code, once."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

import pytest

from qinglong_edge.core.qinglong import RUNNERS
from tests.e2e.kit import Kit
from tests.moving import panel
from tests.moving.panel import moved, task

ODD = [
    task("a", "task a.js", extra_schedules='[{"schedule":"0 9 * * *"},{"schedule":"5 0 9 * * *"}]'),
    task("a", "task b.py", isDisabled=1, labels='["京东","京东"," "]', isPinned="1"),
    task("1234", "python3 x.py && echo done", "@boot", allow_multiple_instances=1),
    task(None, "task once.sh now", "@once 2025", labels=None, allow_multiple_instances=None),
    task("-x\n y ", "repo/c.ts", labels="not json", isDisabled=None),
    task(b"blob", b"task d.js", isSystem="0", isDisabled=0.0, sub_id=3),
    task(
        "hooks", "task e.py", task_before="export A=1", task_after="echo x\necho y", work_dir="sub"
    ),
    task("quiet", "echo hi", log_name="/dev/null"),
    task("named", "echo hi", log_name="other"),
    task("bad cron", "task f.js", "61 * * * *"),
    task("bare", "task f.js", "/5 * * * *"),
    task("empty", "  "),
    task("ql", "ql repo https://example.org/x.git"),
    task("system", "task g.js", isSystem=1),
    task("flag", "task h.js", isDisabled=2),
    task("extra", "task i.js", extra_schedules='{"schedule":1}'),
    task("utf", b"task \xff.js"),
    task("nul", b"task \0.js"),
    task("long", "x" * 70_000),
    task("no cron", "task j.js", None),
]


def test_every_oddity_of_a_row_has_its_answer(kit: Kit, database: Path) -> None:
    panel.make(database, ODD)
    report = moved(kit, database)
    rows = {each["row"]: each for each in report["tasks"]}
    refused = {row: each["code"] for row, each in rows.items() if each["outcome"] == "refused"}
    assert refused == {
        10: "schedule_invalid",
        11: "schedule_invalid",
        12: "command_empty",
        13: "ql_not_kept",
        14: "system_task",
        15: "flag_invalid",
        16: "extra_schedules_invalid",
        17: "not_utf8",
        18: "has_nul",
        19: "command_too_large",
        20: "schedule_invalid",
    }
    kept = {row: each for row, each in rows.items() if row not in refused}
    assert {row: each["task"] for row, each in kept.items()} == {
        1: "a",
        2: "a #2",
        3: "task 1234",
        4: "task 4",
        5: "x y",
        6: "blob",
        7: "hooks",
        8: "quiet",
        9: "named",
    }
    assert {row: each["when"] for row, each in kept.items() if each["when"] != ["30 8 * * *"]} == {
        1: ["30 8 * * *", "0 9 * * *", "5 0 9 * * *"],
        3: ["at boot"],
        4: [],
    }
    assert {row: each["notes"] for row, each in kept.items() if each["notes"]} == {
        4: ["once_is_manual"],
        5: ["labels_invalid"],
        6: ["subscription_not_kept"],
        9: ["log_name_not_kept"],
    }
    assert report["counts"] == {
        "rows": 20,
        "inserted": 9,
        "idempotent": 0,
        "adapted": 4,
        "refused": 11,
    }
    assert report["not_kept"] == [
        {"kind": "subscription", "row": 1, "name": "faker"},
        {"kind": "dependency", "row": 3, "name": "axios"},
    ]
    here = any(Path(folder, "task").exists() for folder in RUNNERS)
    codes = [each["code"] for each in report["warnings"]]
    assert codes == ["still_in_panel", *(() if here else ("runner_missing",))]
    definitions(kit, database)


def definitions(kit: Kit, database: Path) -> None:
    """What became of them in our own words."""
    scripts = str(database.parent.parent / "scripts")
    shown = {name: kit.ok("task", "show", name) for name in ("a", "a #2", "hooks", "quiet", "x y")}
    assert shown["a"]["overlap"] == "replace"
    assert shown["a"]["cwd"] == scripts
    assert [each["zone"] for each in shown["a"]["triggers"]] == ["CST-8"] * 3
    assert shown["a #2"]["enabled"] is False
    assert shown["a #2"]["labels"] == ["qinglong:2", "pinned", "京东"]
    assert shown["quiet"]["log"] is False
    assert shown["quiet"]["argv"][2] == "echo hi"
    assert shown["x y"]["argv"][2] == "task repo/c.ts"
    environment = {each["name"]: each["value"] for each in shown["hooks"]["environment"]}
    assert environment["task_after"] == "echo x\necho y"
    assert environment["QL_SCRIPTS"] == scripts
    assert environment["PATH"].startswith("/usr/lib/qinglong-edge/bin:/usr/local/lib/")
    parallel = kit.ok("task", "show", "task 1234")
    assert (parallel["overlap"], parallel["parallel_max"]) == ("parallel", 4)


@pytest.mark.parametrize("owner", ["daemon", "command"])
def test_a_second_import_changes_nothing_and_says_so(kit: Kit, database: Path, owner: str) -> None:
    panel.make(database, panel.many(300))
    with kit.daemon() if owner == "daemon" else contextlib.nullcontext():
        planned = moved(kit, database, "--dry-run")
        assert kit.ok("task", "list")["tasks"] == []
        first = moved(kit, database)
        assert planned["tasks"] == first["tasks"]
        assert planned["counts"] == first["counts"]
        counts = first["counts"]
        assert counts["inserted"] + counts["refused"] == counts["rows"] == 300
        assert counts["refused"] == 0
        assert counts["adapted"] == 75
        before = kit.dump()
        again = moved(kit, database)
        assert kit.dump() == before
        assert again["counts"]["idempotent"] == 300
        assert again["counts"]["inserted"] == 0
        assert len({each["task"] for each in again["tasks"]}) == 300
        told = kit.run("import", "qinglong", str(database), "--zone", "CST-8").out
        assert told.splitlines()[-1] == "nothing was changed"
        listed = kit.ok("task", "list")["tasks"]
        assert len(listed) == 300
        assert sum(not each["enabled"] for each in listed) == 34


def test_moved_tasks_run(kit: Kit, database: Path, tmp_path: Path) -> None:
    """Through the runner, found on the path that the import wrote down."""
    (database.parent.parent / "scripts" / "hello.sh").write_text('echo "hello $1"\n')
    panel.make(database, [task("hello", "task hello.sh now -- you")])
    moved(kit, database)
    runner = Path(__file__).parents[2] / "qinglong_edge/kit/common/bin"
    path = f"{runner}:{os.environ['PATH']}"
    ended = kit.ok("start", "hello", "--wait", "--env", f"PATH={path}")
    assert (ended["status"], ended["exit_code"]) == ("succeeded", 0)
    assert kit.ok("log", "hello")["text"] == "hello you\n"


def test_a_name_that_is_taken_by_another_task_is_refused(kit: Kit, database: Path) -> None:
    kit.ok("task", "add", "a", "--shell", "true")
    panel.make(database, [task("a", "task a.js"), task("b", "task b.js")])
    report = moved(kit, database)
    assert [each["outcome"] for each in report["tasks"]] == ["refused", "inserted"]
    assert report["tasks"][0]["code"] == "task_exists"


def test_a_panel_that_runs_meanwhile_is_copied_and_not_disturbed(kit: Kit, database: Path) -> None:
    """With a journal of either kind, and a transaction that is open."""
    for mode in ("DELETE", "WAL"):
        if database.exists():
            database.unlink()
        panel.make(database, [task("a", "task a.js")])
        with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as live:
            live.execute(f"PRAGMA journal_mode = {mode}")
            live.execute("BEGIN IMMEDIATE")
            live.execute("DELETE FROM Crontabs")
            report = moved(kit, database, "--dry-run")
            live.execute("ROLLBACK")
            assert report["counts"]["rows"] == 1
            assert live.execute("SELECT count(*) FROM Crontabs").fetchone() == (1,)


def test_what_is_no_panels_database_is_refused_in_words(
    kit: Kit, database: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.sqlite"
    with contextlib.closing(sqlite3.connect(other)) as made:
        made.execute("CREATE TABLE t (x)")
    text = tmp_path / "text"
    text.write_text("no database\n" * 100, encoding="utf-8")
    with kit.unchanged():
        for file in (other, text):
            kit.no(
                *("import", "qinglong", str(file), "--zone", "UTC"),
                status=2,
                code="qinglong_foreign",
            )
        for name in (str(tmp_path / "none"), str(tmp_path)):
            error = kit.no(
                *("import", "qinglong", name, "--zone", "UTC"),
                status=2,
                code="qinglong_unreadable",
            )
            assert "data/db/database.sqlite" in error["message"]


def test_an_older_panel_lacks_columns_and_a_panel_may_be_empty(kit: Kit, database: Path) -> None:
    drop = "".join(
        f"ALTER TABLE Crontabs DROP COLUMN {name};"
        for name in ("work_dir", "allow_multiple_instances", "log_name", "extra_schedules")
    )
    panel.make(database, [task("a", "task a.js")], sql=drop)
    assert moved(kit, database)["counts"]["inserted"] == 1
    database.unlink()
    panel.make(database, [])
    assert moved(kit, database)["counts"]["rows"] == 0


def test_two_imports_at_once_do_not_mix(kit: Kit) -> None:
    asked = {"task": {"name": "x", "shell": "true"}, "enabled": True}
    with kit.daemon():
        one = kit.ask("import.stage", tasks=[asked])["result"]["token"]
        two = kit.ask("import.stage", tasks=[asked])["result"]["token"]
        for method, given in (("stage", {"tasks": [asked]}), ("commit", {})):
            told = kit.ask(f"import.{method}", token=one, **given)
            assert told["error"]["data"]["code"] == "import_gone"
        assert kit.ask("import.commit", token=two)["result"] == {"imported": 1}
        assert kit.ask("import.commit", token=two)["error"]["data"]["code"] == "import_gone"
        assert kit.ok("task", "list")["tasks"][0]["task"] == "x"
    assert [name for name in os.listdir(kit.state) if name.startswith(".import")] == []


def test_one_transaction_takes_all_or_nothing(kit: Kit) -> None:
    with kit.daemon():
        twice = [{"task": {"name": "x", "shell": "true"}, "enabled": True}] * 2
        token = kit.ask("import.stage", tasks=twice)["result"]["token"]
        told = kit.ask("import.commit", token=token)
        assert told["error"]["data"]["code"] == "task_exists"
        assert kit.ok("task", "list")["tasks"] == []
