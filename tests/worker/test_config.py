"""The configuration file and the commands: what is refused, by which entry, and what is opened."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.app import worker_config
from qinglong_edge.core.errors import EdgeError
from tests.support import ROOT, until
from tests.worker.kit import Plane, WorkerHome

GOOD: dict[str, Any] = {
    "version": 1,
    "enabled": True,
    "profile": "worker-edge",
    "workerId": "router-1",
    "origin": "https://plane.example:5801",
    "state": "/srv/qinglong-worker",
    "trust": "/etc/w/ca.pem",
    "certificate": "/etc/w/chain.pem",
    "key": "/etc/w/key.pem",
    "token": "/etc/w/token",
}


def written(folder: Path, **changes: Any) -> str:
    made = {key: value for key, value in {**GOOD, **changes}.items() if value is not ...}
    path = folder / "worker.json"
    path.write_text(json.dumps(made), encoding="utf-8")
    return str(path)


def test_the_numbers_of_both_profiles_are_the_decisions(tmp_path: Path) -> None:
    """ADR-0115 section 2 and the contract's cadences."""
    edge = worker_config.read(written(tmp_path)).profile
    assert (edge.log_quota_bytes, edge.reserve_bytes) == (4 << 20, 32 << 20)
    assert (edge.cadence_ms, edge.journal_entries_max, edge.runs_default) == (2_000, 64, 1)
    assert (edge.records_per_tick, edge.supervision_per_tick, edge.runs_max) == (4, 4, 4)
    node = worker_config.read(written(tmp_path, profile="worker-node")).profile
    assert (node.log_quota_bytes, node.reserve_bytes) == (64 << 20, 256 << 20)
    assert (node.cadence_ms, node.journal_entries_max, node.runs_default) == (500, 256, 8)
    assert (node.records_per_tick, node.supervision_per_tick, node.runs_max) == (16, 32, 64)
    assert (node.session_lease_ms, node.heartbeat_ms, node.request_timeout_ms) == (
        45_000,
        10_000,
        15_000,
    )


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"version": 2}, "version"),
        ({"enabled": 1}, "enabled"),
        ({"profile": "edge"}, "profile"),
        ({"profile": "cluster-control"}, "profile"),
        ({"workerId": "a b"}, "workerId"),
        ({"origin": "http://plane.example"}, "origin"),
        ({"origin": "https://me@plane.example"}, "origin"),
        ({"origin": "https://plane.example/x"}, "origin"),
        ({"origin": "https://plane.example:0"}, "origin"),
        ({"origin": "https://"}, "origin"),
        ({"state": "srv"}, "state"),
        ({"state": "/srv/../x"}, "state"),
        ({"state": "/"}, "state"),
        ({"token": ...}, "token"),
        ({"surplus": 1}, "surplus"),
        ({"maxConcurrentRuns": 5}, "maxConcurrentRuns"),
        ({"limits": {"nothing": 1}}, "limits"),
        ({"limits": {"heartbeat_ms": 30_000}}, "limits.heartbeat_ms"),
        ({"limits": {"request_timeout_ms": 100}}, "limits.request_timeout_ms"),
        ({"limits": {"request_timeout_ms": 61_000}}, "limits.request_timeout_ms"),
        ({"limits": {"log_quota_bytes": 1 << 30}}, "limits.log_quota_bytes"),
        ({"capabilities": {"architecture": "mips"}}, "capabilities.capabilities"),
    ],
)
def test_a_wrong_entry_is_refused_by_name_before_anything_is_opened(
    tmp_path: Path, changes: dict[str, Any], field: str
) -> None:
    """Trap 8: a number that the transport would refuse is refused here."""
    with pytest.raises(EdgeError) as caught:
        worker_config.read(written(tmp_path, **changes))
    assert (caught.value.code, caught.value.facts) == ("config_invalid", {"field": field})


@pytest.mark.parametrize(
    ("origin", "host", "port"),
    [
        ("https://plane.example", "plane.example", 443),
        ("https://10.0.0.1:5801", "10.0.0.1", 5801),
        ("https://[fd00::1]:5801", "fd00::1", 5801),
    ],
)
def test_an_origin_is_a_host_and_a_port(tmp_path: Path, origin: str, host: str, port: int) -> None:
    assert worker_config.read(written(tmp_path, origin=origin)).origin == (host, port)


def test_the_configuration_that_the_readme_shows_is_a_good_one(tmp_path: Path) -> None:
    text = Path(ROOT, "README.md").read_text(encoding="utf-8")
    shown = text.partition("```json\n")[2].partition("```")[0]
    path = tmp_path / "worker.json"
    path.write_text(shown, encoding="utf-8")
    assert worker_config.read(str(path)).worker_id == "router-1"


def test_a_worker_that_is_not_enabled_opens_nothing(home: WorkerHome) -> None:
    home.configure(enabled=False, token="/nowhere/token")
    done = home.command("run")
    assert (done.returncode, done.stdout) == (0, "disabled\n")
    assert not os.path.exists(home.state)


@pytest.mark.parametrize("root", ["state", "runtime"])
def test_a_directory_that_others_use_is_refused_as_it_is(
    home: WorkerHome, tmp_path: Path, root: str
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "photo").touch()
    shared.chmod(0o1777)
    home.configure(**{root: str(shared)})
    done = home.command("run")
    assert done.returncode == 5
    assert "directory_shared" in done.stderr
    assert shared.stat().st_mode & 0o7777 == 0o1777
    assert [path.name for path in shared.iterdir()] == ["photo"]


def test_nested_directories_are_refused_before_they_are_made(home: WorkerHome) -> None:
    home.configure(logs=os.path.join(home.state, "receipts", "logs"))
    done = home.command("run")
    assert done.returncode == 2
    assert "config_invalid" in done.stderr
    assert not os.path.exists(home.state)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("fly",),
        ("run", "now"),
        ("settle",),
        ("settle", "x"),
        ("status", "--reason", "x"),
        ("run", "--config"),
    ],
)
def test_wrong_words_are_wrong_usage(words: tuple[str, ...]) -> None:
    from qinglong_edge.cli import worker

    assert worker.main(list(words)) == 2


def test_commands_speak_with_the_running_worker_or_look_for_themselves(
    plane: Plane, home: WorkerHome, tmp_path: Path
) -> None:
    assert home.command("status").returncode == 3
    home.start()
    until(lambda: home.status()["session"]["status"] == "online")
    marker = tmp_path / "marker"
    run = plane.add(f"touch {marker}; sleep 60")
    until(marker.exists)
    shown = home.status()
    (offer,) = shown["offers"]
    assert (offer["run"], shown["places"]) == (run, {"total": 1, "free": 0})
    refused = home.command("settle", offer["offer"], "--reason", "seen")
    assert refused.returncode == 3
    assert "process_alive" in refused.stderr
    assert home.command("settle", "other", "--reason", "seen").returncode == 3
    home.kill()
    (alone,) = home.status()["offers"]
    same = ("offer", "run", "ended")  # acknowledged, or renewed, meanwhile
    assert [alone[each] for each in same] == [offer[each] for each in same]
    refused = home.command("drain")
    assert (refused.returncode, "`run` starts one" in refused.stderr) == (3, True)
    plane.order("stop", run=run, why="user")
    home.start()
    assert plane.await_end(run)["end"] == "cancelled"


def test_doctor_says_what_is_wrong_in_words(plane: Plane, home: WorkerHome) -> None:
    done = home.command("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    found = {each["check"]: each for each in json.loads(done.stdout)}
    assert found["plane"]["text"] == "reached over TLSv1.3"
    assert "days" in found["certificate"]["text"]
    assert not os.path.exists(home.state)
    os.chmod(home.token, 0o644)
    plane.authority.client(days=1)
    done = home.command("doctor")
    assert done.returncode == 1
    wrong = {each["check"] for each in json.loads(done.stdout) if not each["ok"]}
    assert wrong == {"credentials", "certificate"}
    plane.authority.client(days=0)
    found = {each["check"]: each for each in json.loads(home.command("doctor").stdout)}
    assert found["certificate"]["text"] == "is over"


# The command line of the worker in a Python that lacks one module.
LACKING = """
import sys
lacking, *sys.argv[1:] = sys.argv[1:]
sys.modules[lacking] = None
from qinglong_edge.cli.worker import main
sys.exit(main())
"""


def lacking(home: WorkerHome, module: str) -> WorkerHome:
    """The same home, with a program that finds no such module."""
    home.program = [sys.executable, "-S", "-c", LACKING, module]
    return home


def test_a_router_without_tls_is_told_which_package_to_install(
    plane: Plane, home: WorkerHome
) -> None:
    done = lacking(home, "_ssl").command("doctor")
    assert done.returncode == 1, done.stderr
    found = {each["check"]: each for each in json.loads(done.stdout)}
    assert found["python"]["text"].endswith("install its package. python3-openssl")
    assert found["credentials"]["ok"]
    assert "plane" not in found
    run = home.command("run")
    assert run.returncode == 4
    assert "module_missing" in run.stderr
    assert "package=python3-openssl" in run.stderr
    assert lacking(home, "email").command("run").stderr.endswith("package=python3-email\n")


def test_doctor_reaches_the_plane_without_the_tables_of_international_names(
    plane: Plane, home: WorkerHome
) -> None:
    """They are a package of their own on a router, which the worker itself never needs."""
    done = lacking(home, "encodings.idna").command("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
