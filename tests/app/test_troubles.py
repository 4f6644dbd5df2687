"""Every code that a person may read in `degraded` has words of its own."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from qinglong_edge.app import state, troubles
from tests.support import ROOT

# What raises these is never a reason for a run to wait, or for a sweep to fail.
ELSEWHERE = {
    "random_short": "the kernel's random source is never short",
    "ids_exhausted": "in the year 10889",
    "module_missing": "nothing that runs later",
    "stop_unproven": "an answer to `stop`; the run itself is `run_unproven`",
    "stopping": "nobody is left to ask",
    "storage_closed": "the same",
    "zone_unreadable": "the schedule is parked",
    "socket_in_use": "the daemon does not start",
    "keyring_busy": "an answer to `keyring`",
    "qinglong_busy": "an answer to `import`",
}
ROOMS = ("core", "system", "storage", "process", "artifact", "execution", "secret")
APART = ("post.py", "inbox.py")  # a channel's own codes are in `notify list`; the worker's journal
UNWORDED = "Something was refused"


def unavailable() -> Iterator[str]:
    """The codes with which something of the runtime is not to be had for now."""
    for room in ROOMS:
        for path in sorted(Path(ROOT, "qinglong_edge", room).glob("*.py")):
            if path.name in APART or (room == "artifact" and path.name == "worker.py"):
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and node.args:
                    name, first = ast.unparse(node.func), node.args[0]
                    if name in ("Unavailable", "_unavailable") and isinstance(first, ast.Constant):
                        yield str(first.value)


def test_every_reason_to_wait_has_words() -> None:
    found = set(unavailable())
    assert {"log_capacity", "launch_failed", "keyring_missing", "no_space"} <= found
    assert sorted(found - set(troubles.WORDS) - set(ELSEWHERE)) == []
    assert sorted(set(ELSEWHERE) - found) == []


@pytest.mark.parametrize(
    "code",
    [
        *("clock_not_set", "clock_stepped_back", "triggers_parked", "state_volatile"),
        *("log_pressure", "logs_unretired", "receipts_unclean", "memory_low"),
        *("cryptography_missing", "no_memory", "database_corrupt"),
        *("cwd_unavailable", "nice_refused", "secret_unavailable", "secret_value_invalid"),
        *("run_unproven:7:escaped", "run_unproven:7:storage", "notify_failed:ops"),
    ],
)
def test_what_is_no_error_of_a_call_has_words_too(code: str) -> None:
    (said,) = troubles.told([code])
    assert said.startswith(f"{code}: ")
    assert UNWORDED not in said
    assert "7" not in code or "run 7" in said
    assert "ops" not in code or "channel ops" in said


def test_a_code_that_nobody_knows_is_shown_and_not_hidden() -> None:
    (said,) = troubles.told(["made_up"])
    assert said.startswith(f"made_up: {UNWORDED}")


@pytest.mark.parametrize(
    ("where", "service", "command"),
    [
        (("/srv/qinglong-edge", None), "", "qinglong-edge run"),
        (("/mnt/qe", None), "", "qinglong-edge --state /mnt/qe run"),
        (("/mnt/qe", None), "systemd", "qinglong-edge --state /mnt/qe run"),
        (("/srv/qinglong-edge", None), "systemd", "systemctl start qinglong-edge"),
        (("/srv/qinglong-edge", None), "init.d", "/etc/init.d/qinglong-edge start"),
        (("/mnt/qe", "/var/run/qinglong-edge"), "init.d", "/etc/init.d/qinglong-edge start"),
    ],
)
def test_a_daemon_is_started_by_its_service_or_by_hand(
    monkeypatch: pytest.MonkeyPatch,
    where: tuple[str, str | None],
    service: str,
    command: str,
) -> None:
    monkeypatch.setattr(os.path, "exists", lambda path: bool(service) and service in path)
    assert troubles.start_command(state.place(*where)) == command
