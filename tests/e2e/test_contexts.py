"""ADR-0024 over the command line and the socket: recipes, revisions, runs without a log."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from tests.e2e.kit import WITHIN_S, Kit, request

CLIENTS = 12
PARALLEL = ("--overlap", "parallel", "--max-parallel", "2")


def at_once(kit: Kit, *lines: bytes) -> list[Any]:
    """The answers to requests of as many clients, sent together."""
    gate = threading.Barrier(len(lines))
    answers: list[Any] = [None] * len(lines)

    def client(number: int) -> None:
        with kit.connect() as sock, sock.makefile("rb") as read:
            gate.wait(WITHIN_S)
            sock.sendall(lines[number])
            answers[number] = json.loads(read.readline())

    threads = [threading.Thread(target=client, args=(number,)) for number in range(len(lines))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)
    return answers


def test_twelve_clients_with_one_recipe_make_one_row(kit: Kit) -> None:
    """ADR-0024 verification 2: equal definitions of twelve tasks pin one and the same recipe."""
    with kit.daemon():
        answers = at_once(
            kit,
            *(
                request("task.add", name=f"t{n}", argv=["/bin/true"], environment={"A": "1"})
                for n in range(CLIENTS)
            ),
        )
    refs = {answer["result"]["context_ref"] for answer in answers}
    assert len(refs) == 1
    assert kit.sql("SELECT context_ref FROM recipe") == [(refs.pop(),)]


def test_twelve_clients_with_one_secret_mutation_make_one_version(kit: Kit) -> None:
    """ADR-0024 verification 2 and 6: one is inserted, eleven are idempotent."""
    kit.ok("secret", "set", "TOKEN", stdin=b"one")
    with kit.daemon():
        (first,) = kit.ask("secret.page")["result"]["envelopes"]
        second = {**first, "version": 2, "mutationId": "again"}
        line = request("secret.append", envelope=second, expected_version=1)
        answers = at_once(kit, *[line] * CLIENTS)
        told = sorted(answer["result"]["status"] for answer in answers)
        assert told == ["idempotent"] * (CLIENTS - 1) + ["inserted"]
        stale = kit.ask("secret.append", envelope={**first, "mutationId": "x"})
        assert stale["error"]["data"]["code"] == "secret_version_conflict"
    assert kit.sql("SELECT version FROM secret") == [(2,)]


def test_a_run_keeps_the_revision_and_the_recipe_that_it_was_started_with(kit: Kit) -> None:
    """ADR-0024 section 2: an edit appends; nothing that was pinned changes."""
    go = kit.file("go")
    text = f'while ! test -e {go}; do sleep 0.05; done; echo "$A"'
    kit.ok("task", "add", "t", "--env", "A=old", *PARALLEL, "--shell", text)
    with kit.daemon():
        first = kit.ok("start", "t")["number"]
        edited = kit.ok("task", "set", "t", "--env", "A=new")
        second = kit.ok("start", "t")["number"]
        go.touch()
        runs = [kit.ended(number) for number in (first, second)]
        assert [run["revision"] for run in runs] == [1, 2]
        assert [kit.ok("log", str(run["number"]))["text"] for run in runs] == ["old\n", "new\n"]
    assert edited["revision"] == 2
    assert kit.sql("SELECT count(*) FROM revision") == [(2,)]


def test_a_run_without_a_log_differs_in_nothing_else(kit: Kit) -> None:
    """ADR-0024 verification 10: `--no-log` opens no file, and all the rest is as with one."""
    shell = "echo heard; exit 3"
    kit.ok("task", "add", "with", "--shell", shell)
    kit.ok("task", "add", "without", "--no-log", "--shell", shell)
    with kit.daemon():
        shown = []
        for name in ("with", "without"):
            number = str(kit.ok("start", name)["number"])
            kit.ended(number)
            shown.append(kit.ok("show", number))
    files = [path for path in (kit.state / "logs").rglob("*") if path.is_file()]
    assert len(files) == 1
    of_log = {"log_bytes", "log_truncated"}
    of_run = {"run", "number", "task", "duration_ms"}
    for key in shown[0]["run"].keys() - of_log - of_run:
        values = [each["run"][key] for each in shown]
        assert values[0] == values[1] or key.endswith("_ms"), key
    with_log, without = ([event["type"] for event in each["events"]] for each in shown)
    assert with_log == without
    assert [each["run"]["log_bytes"] for each in shown] == [6, None]


@pytest.mark.parametrize("profile", ["cluster-control", "cluster-worker"])
def test_a_cluster_is_refused_and_leaves_nothing(bare: Kit, profile: str) -> None:
    """ADR-0024 verification 11: no store of a cluster can be reached from here."""
    bare.no("init", "--profile", profile, status=3, code="profile_cluster")
    assert not bare.state.exists()
    bare.ok("init")
    config = bare.state / "config.json"
    config.write_text(config.read_text().replace('"edge"', f'"{profile}"'))
    for command in ("run", "status"):
        bare.no(command, status=5, code="config_corrupt")
