"""The main job on 32-bit ARM, with times of 32 and of 64 bits: numbers and sizes differ there.

Each test is done in both userlands at once.
Each program is run by qemu, and /proc is this machine's: its pids, its start ticks and its boot id
are real, so that a run is adopted there as anywhere. A process sees a line of its own in
/proc/self/stat that qemu made up, and the name of the emulator in other places of /proc/self; so
nothing is asked here of what /proc says of the scheduler itself, nor of its memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.musl.router import Router
from tests.skipping import unless_had
from tests.support import ROOT, until
from tests.tools import armhf, builder, pythons

WITHIN_S = 60.0
QUOTA = 65_536
HELD = "for i in $(seq 120); do [ -e {go} ] && exit 7; sleep 1; done; exit 8"
LOUD = f"head -c {4 * QUOTA} /dev/zero; exit 9"
NAME, WORD = "COOKIE", "密码-a=1;b"
OPENS = 'printf %s "$S" | sha256sum | cut -d " " -f 1; exit 5'
In = Callable[[Callable[[Router], None]], None]


def box(bits: int, folder: Path) -> tuple[armhf.Tree, str]:
    """A userland, and the artifact with its Python's byte code where this machine can make it."""
    tree = armhf.made(ROOT, bits)
    python = pythons.on_this_machine(tree.minor) or sys.executable
    artifact = builder.build(ROOT, str(folder / f"qinglong-edge-{bits}"), python=python)
    return tree, artifact.path


@pytest.fixture(scope="module")
def in_both(_asked_for: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[In]:
    """Does the same in both, each time with the program and no state, gone at the end."""
    folder = tmp_path_factory.mktemp("artifacts")
    with unless_had("a 32-bit userland"):
        boxes = [box(bits, folder) for bits in armhf.RELEASES]

    def do(work: Callable[[Router], None], tree: armhf.Tree, program: str) -> None:
        place = os.path.join(tree.folder, "tmp")
        with tempfile.TemporaryDirectory(prefix="edge-", dir=place) as home:
            shutil.copy(program, os.path.join(home, "qinglong-edge"))
            os.chmod(os.path.join(home, "qinglong-edge"), 0o755)
            work(Router(tree, Path(home)))

    with ThreadPoolExecutor(len(boxes)) as pool:

        def do_all(work: Callable[[Router], None]) -> None:
            for begun in [pool.submit(do, work, *each) for each in boxes]:
                begun.result()

        yield do_all


def native(router: Router, name: str, *arguments: str, given: str = "") -> Any:
    """The document of a command on this machine, on a state beside the box's; a run may fail."""
    program, state = router.home / "qinglong-edge", router.home / name
    command = [sys.executable, "-I", str(program), "--state", str(state), "--json", *arguments]
    done = subprocess.run(
        command, input=given, capture_output=True, encoding="utf-8", timeout=WITHIN_S
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return json.loads(done.stdout)


def ended(router: Router, number: int) -> Any:
    """The document of a run once it has come to its end."""

    def shown() -> Any:
        found = router.ok("show", str(number))["run"]
        return found if found["finished_at_ms"] else None

    return until(shown, WITHIN_S, what=f"the end of run {number}")


def test_a_task_runs_without_a_scheduler_and_its_exit_code_is_the_receipts(in_both: In) -> None:
    def work(router: Router) -> None:
        router.ok("init")
        router.ok("task", "add", "t", "--shell", "echo hi $(uname -m); exit 7")
        started = router.run("start", "t", "--wait")
        assert (started.returncode, started.stderr) == (1, "")
        run = router.ok("show", "1")["run"]
        assert (run["status"], run["exit_code"], run["evidence"]) == ("failed", 7, "receipt")
        assert router.run("log", "1").stdout == "hi armv7l\n"

    in_both(work)


def test_a_moment_after_2038_is_computed_and_written(in_both: In) -> None:
    words = ("--zone", "CST-8", "--after", "2037-12-31T16:00:00Z", "--count", "2")

    def work(router: Router) -> None:
        found = router.run("cron", "next", "30 3 19 1 *", *words)
        assert found.stderr == ""
        assert found.stdout == "2038-01-19 03:30:00+0800\n2039-01-19 03:30:00+0800\n"

    in_both(work)


def test_a_scheduler_cuts_a_log_and_is_killed_and_the_next_one_adopts(in_both: In) -> None:
    def work(router: Router) -> None:
        router.ok("init")
        config, go = router.home / "state" / "config.json", router.home / "go"
        limits = {"limits": {"log_quota_bytes": QUOTA}}
        config.write_text(json.dumps({**json.loads(config.read_text()), **limits}))
        router.ok("task", "add", "loud", "--shell", LOUD)
        router.ok("task", "add", "held", "--shell", HELD.format(go=router.inside(go)))
        with router.scheduler(killed=True):
            assert router.run("start", "loud", "--wait").returncode == 1
            number = router.ok("start", "held")["number"]
        with router.scheduler() as pid:
            assert router.ok("status")["pid"] == pid
            assert router.ok("show", str(number))["run"]["status"] == "running"
            go.touch()
            run = ended(router, number)
        assert (run["status"], run["exit_code"], run["evidence"]) == ("failed", 7, "receipt")
        loud = router.ok("show", "loud")["run"]
        assert (loud["exit_code"], loud["evidence"]) == (9, "receipt")
        assert (loud["log_bytes"], loud["log_truncated"]) == (QUOTA, True)

    in_both(work)


def test_a_state_and_its_secrets_move_between_64_and_32_bits_and_back(in_both: In) -> None:
    opens = ("--cron", "0 3 * * *", "--secret", f"S={NAME}", "--shell", OPENS)

    def work(router: Router) -> None:
        there, back = router.home / "there.backup", router.home / "back.backup"
        native(router, "here", "init")
        native(router, "here", "secret", "set", NAME, given=WORD)
        native(router, "here", "task", "add", "t", *opens)
        native(router, "here", "start", "t", "--wait")
        native(router, "here", "backup", str(there), "--with-keyring")
        moved = router.inside(there)
        router.ok("restore", moved, "--keyring", f"{moved}.keyring")
        assert router.run("start", "t", "--wait").returncode == 1
        assert router.run("log", "t").stdout == f"{hashlib.sha256(WORD.encode()).hexdigest()}\n"
        router.ok("backup", router.inside(back), "--with-keyring")
        native(router, "back", "restore", str(back), "--keyring", f"{back}.keyring")
        native(router, "back", "start", "t", "--wait")
        runs = native(router, "back", "runs")["runs"]
        assert [(run["number"], run["exit_code"]) for run in runs] == [(3, 5), (2, 5), (1, 5)]
        assert runs[2] == native(router, "here", "runs")["runs"][0]
        tasks = [native(router, name, "export", "tasks") for name in ("here", "back")]
        assert tasks[0] == tasks[1]

    in_both(work)
