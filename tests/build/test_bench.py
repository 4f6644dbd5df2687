"""The bench tells what it measured: gates, goals, reasons, and the README's tables from it."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT
from tests.tools import (
    bench,
    bench_parts,
    bench_peers,
    bench_readme,
    bench_rows,
    bench_table,
    debian,
    gates,
    measure,
    peers,
)
from tests.tools.bench_rows import QUICK, WHOLE, Line, Row
from tests.tools.router import columns, images
from tests.tools.router.guest import GuestError
from tests.tools.router.machines import MACHINES

BUDGET = gates.budget(ROOT)
EVERYWHERE = bench_rows.COLUMNS


def row(line: Line, *values: float | str) -> Row:
    """A row with one figure or reason for each column."""
    found = [{line.name: value} for value in values]
    (made,) = bench_rows.rows([line], dict(zip(EVERYWHERE, found, strict=True)))
    return made


def test_a_missed_gate_is_said_and_an_unmeasured_row_is_not_a_miss() -> None:
    rows = [
        row(Line("good", "x", "somehow", 2, 1.5), 1.5, 1.2, 1),
        row(Line("bad", "KiB", "somehow", 2_000, 1_000), 2_100.4, "no qemu", 900),
        row(Line("unknown", "bytes", "somehow", 2, 1), *["a loop mount needs root"] * 3),
        row(Line("told", "/min", "somehow"), 7, 8, 9),
    ]
    assert [each.ok for each in rows] == [True, False, None, None]
    assert [each.met for each in rows] == [True, False, None, None]
    assert [each.missed for each in rows] == [[], ["native"], [], []]
    lines = bench_table.table(rows).splitlines()
    assert lines[1].split()[:5] == ["good", "1.50", "1.20", "1", "2"]
    assert lines[2].split() == [
        "bad",
        "2,100",
        "-",
        "900",
        "2,000",
        "2,000",
        "1,000",
        "KiB",
        "MISSED",
    ]
    assert "bad: nobody has said why" in lines
    reasons = lines[lines.index("Not measured:") + 1 :]
    assert reasons[0] == "arm64: no qemu: bad"
    assert set(reasons[1:]) == {f"{name}: a loop mount needs root: unknown" for name in EVERYWHERE}


def test_a_router_is_held_to_its_own_gate() -> None:
    line = Line("start", "x", "somehow", 8, 2, 11, "it has to read itself")
    assert row(line, 7, 9, 10.9).ok is True
    assert row(line, 7, 9, 11.1).missed == ["x86"]
    assert row(line, 9, 9, 9).missed == ["native"]
    assert row(line, 7, 9, 10.9).explained == "it has to read itself"
    assert row(line, 1, 2, 2).explained is None


def test_a_figure_of_others_stands_beside_ours() -> None:
    line = Line("rss", "KiB", "somehow")
    found: dict[str, bench_rows.Found] = {
        "native": {"rss": 14_000, "rss/crond": 1_500, "rss/yacron": "pip failed"},
        "arm64": {"rss": 12_000},
        "x86": {"rss": "no qemu"},
    }
    (made,) = bench_rows.rows([line], found)
    told: Any = json.loads(json.dumps(made.document()))
    assert (told["native"], told["arm64"], told["x86"]) == (14_000, 12_000, None)
    assert told["reasons"] == {"x86": "no qemu"}
    assert told["peers"]["crond"]["native"] == 1_500
    assert told["peers"]["yacron"]["native"] is None
    assert told["peers"]["yacron"]["reasons"]["native"] == "pip failed"


@pytest.mark.parametrize("effort", [WHOLE, QUICK])
def test_every_row_is_measured_by_one_part_and_every_part_has_a_row(
    effort: bench_rows.Effort,
) -> None:
    named = [line.name for line in bench_rows.catalogue(BUDGET, effort)]
    parts = [name for part in bench_parts.PARTS.values() for name in part.rows(effort)]
    own = [name for name in parts if "/" not in name]
    assert sorted(own) == sorted(named)
    assert {name.partition("/")[0] for name in parts if "/" in name} <= set(named)


def test_every_goal_that_is_under_its_gate_can_be_explained() -> None:
    met = {"run_commits", "run_flushes", "tick_growth", "status_growth"}
    for line in bench_rows.catalogue(BUDGET, WHOLE):
        if line.gate is not None and line.goal is not None and line.goal < line.gate:
            assert line.over or line.name in met, line.name


def test_what_cannot_be_measured_here_gives_null_rows_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_setting: bench_parts.Setting, _home: str) -> bench_rows.Found:
        raise measure.UnmeasurableError("no such tool")

    part = bench_parts.Part(refuse, lambda _effort: ["a", "b"])
    monkeypatch.setitem(bench_parts.PARTS, "refused", part)
    setting = bench_parts.Setting(measure.Product("unused"), QUICK)
    assert bench_parts.measured("refused", setting) == {"a": "no such tool", "b": "no such tool"}


def test_a_machine_without_emulators_says_so_in_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, **_how: None)
    said: list[str] = []
    found = columns.columns(ROOT, ["artifact", "scale"], said.append)
    assert set(found) == set(MACHINES) == set(EVERYWHERE[1:])
    for column in found.values():
        assert {"artifact_bytes", "tick_growth"} <= set(column)
        assert all("qemu-system-aarch64" in str(reason) for reason in column.values())


def test_the_routers_figures_of_another_time_are_taken_as_they_were() -> None:
    line = Line("rss", "KiB", "somehow")
    found: dict[str, bench_rows.Found] = {
        "native": {"rss": 14_000, "rss/crond": 1_500},
        "arm64": {"rss": 12_000, "rss/crond": "no crond"},
        "x86": {"rss": "no qemu", "rss/crond": 0},
    }
    document = bench_table.document(bench_rows.rows([line], found), program="this one")
    told = json.loads(json.dumps(document))
    assert bench.earlier(told, "this one") == {name: found[name] for name in EVERYWHERE[1:]}
    with pytest.raises(SystemExit, match="another program"):
        bench.earlier(told, "that one")


@pytest.mark.parametrize(
    ("failing", "boots", "without"),
    [
        (("start",), 2, {"start_ratio"}),
        (("boot", "start"), 3, {"start_ratio"}),
        (("start", "due", "apart", "sustained"), 4, {"run_device_bytes_apart", "runs_per_minute"}),
        (("boot",) * 4, 4, {"artifact_bytes", "runs_per_minute"}),
    ],
)
def test_a_part_that_fails_in_a_router_leaves_the_others_their_figures(
    monkeypatch: pytest.MonkeyPatch, failing: tuple[str, ...], boots: int, without: set[str]
) -> None:
    booted: list[object] = []

    def part(_router: object, _guest: object, name: str) -> bench_rows.Found:
        if name in failing:
            raise GuestError("it ended: panic")
        return dict.fromkeys(bench_parts.PARTS[name].rows(WHOLE), 1.0)

    def boot(_router: object) -> object:
        booted.append(1)
        if failing[: len(booted)] == ("boot",) * len(booted):
            raise GuestError("it ended: panic")
        return contextlib.nullcontext()

    monkeypatch.setattr(columns._Router, "_booted", boot)
    monkeypatch.setattr(columns._Router, "_part", part)
    image = images.Image(MACHINES["x86"], "unused")
    router = columns._Router(ROOT, "unused", image, "unused", (), {})
    found = router.measured(["artifact", "start", "due", "apart", "sustained"], lambda _said: None)
    assert len(booted) == boots
    assert {found[name] for name in without} == {"the router failed: it ended: panic"}
    assert (found["artifact_bytes"] == 1.0) == ("artifact_bytes" not in without)
    assert (found["runs_per_minute"] == 1.0) == ("runs_per_minute" not in without)


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (debian.UnobtainableError("no compiler"), "no compiler"),
        (measure.UnmeasurableError("another router"), "another router"),
        (GuestError("it ended:\npanic"), "the router failed: panic"),
    ],
)
def test_a_part_that_has_a_router_of_its_own_fails_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failure: Exception, reason: str
) -> None:
    def fail(*_setting: object) -> bench_rows.Found:
        raise failure

    def day(*_setting: object) -> bench_rows.Found:
        return {"day_64_broken": 0}

    monkeypatch.setattr(columns, "ALONE", {"flash": fail, "small routers": day})
    image = images.Image(MACHINES["x86"], "unused")
    router = columns._Router(ROOT, str(tmp_path), image, "unused", (), {})
    found = router.measured(["flash", "small routers"], lambda _said: None)
    named = bench_parts.PARTS["flash"].rows(WHOLE)
    assert found == {**dict.fromkeys(named, reason), "day_64_broken": 0}


def test_a_peer_that_cannot_be_had_has_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / peers.PINS).write_text("there-is-no-such-package-here==0\n", encoding="utf-8")

    def refuse(name: str, _cache: str) -> str:
        raise debian.UnobtainableError(f"{name} cannot be had")

    monkeypatch.setattr(debian, "unpacked", refuse)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    tools, without = peers.found(str(tmp_path))
    assert tools == {}
    assert set(without) == set(bench_peers.OTHERS)
    assert not list((tmp_path / ".cache" / "peers").glob("3*"))


def test_no_line_of_the_table_is_wider_than_a_terminal() -> None:
    lines = bench_rows.catalogue(BUDGET, WHOLE)
    value = 999_999.5
    found: bench_rows.Found = {line.name: value for line in lines}
    found |= {f"{line.name}/{peer}": value for line in lines for peer in bench_rows.PEERS}
    table = bench_table.table(bench_rows.rows(lines, dict.fromkeys(EVERYWHERE, found)))
    assert max(map(len, table.splitlines())) <= bench_table.WIDTH


# -- the README -----------------------------------------------------------------------------------


def cells(text: str) -> Iterator[list[str]]:
    """The rows of its tables without their heads."""
    for line in text.splitlines():
        if line.startswith("|") and "---" not in line:
            yield [cell.strip() for cell in line.strip("|").split("|")]


def told_in_readme() -> str:
    text = Path(ROOT, "README.md").read_text(encoding="utf-8")
    assert (text.count(bench_readme.BEGINS), text.count(bench_readme.ENDS)) == (1, 1)
    return text.partition(bench_readme.BEGINS)[2].partition(bench_readme.ENDS)[0]


def test_the_readme_s_table_has_the_gates_of_the_profile_and_keeps_them() -> None:
    lines = {line.name: line for line in bench_rows.catalogue(BUDGET, WHOLE)}
    table = {row[0]: row[1:] for row in cells(told_in_readme())}
    for name, label in bench_readme.LABELS.items():
        line, row = lines[name], table[label]
        gate, router = (bench_table.number(line.limit(each)) for each in ("native", "arm64"))
        assert row[3] == (gate if gate == router else f"{gate}, router {router}"), label
        assert row[4] == bench_table.number(line.goal), label
        for column, text in zip(EVERYWHERE, row, strict=False):
            limit = line.limit(column)
            if text != "-" and limit is not None:
                assert float(text.replace(",", "")) <= limit, (label, column)


def test_the_readme_explains_what_is_over_its_goal() -> None:
    told = told_in_readme()
    items = " ".join(told.partition("\n- ")[2].split())
    lines = {line.name: line for line in bench_rows.catalogue(BUDGET, WHOLE)}
    table = {row[0]: row[1:] for row in cells(told)}
    for name, label in bench_readme.LABELS.items():
        figures = [float(text.replace(",", "")) for text in table[label][:3] if text != "-"]
        goal = lines[name].goal
        over = goal is not None and any(figure > goal for figure in figures)
        assert (label in items) == over, name
        assert not over or f"{lines[name].over}." in items
    assert set(bench_readme.PEER_LABELS.values()) <= set(table)


def test_a_document_of_the_bench_becomes_the_readme_s_block(tmp_path: Path) -> None:
    lines = bench_rows.catalogue(BUDGET, WHOLE)
    found: bench_rows.Found = {line.name: line.goal or 1 for line in lines}
    found |= {f"{line.name}/{peer}": 1 for line in lines for peer in bench_rows.PEERS}
    document = bench_table.document(
        bench_rows.rows(lines, dict.fromkeys(EVERYWHERE, found)), program="1"
    )
    readme = tmp_path / "README.md"
    marks = bench_readme.BEGINS + "of another time\n" + bench_readme.ENDS
    readme.write_text(f"before\n{marks}after\n", encoding="utf-8")
    bench_readme.into(str(readme), json.loads(json.dumps(document)))
    text = readme.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{bench_readme.BEGINS}| what |")
    assert text.endswith(f"{bench_readme.ENDS}after\n")
    assert "of another time" not in text
    readme.write_text("nothing\n", encoding="utf-8")
    with pytest.raises(ValueError, match="no place"):
        bench_readme.into(str(readme), document)
