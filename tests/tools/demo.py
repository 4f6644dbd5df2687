"""`build.py demo`: the main job, for real, told in plain English; every promise is checked.

Builds the program, imports a crontab, waits for a real minute, kills the scheduler with -9 in the
middle of a task and starts the next one. Ends 0 within two minutes; 1 with one clear sentence if
anything is not as promised. Leaves no process and no file behind, after Ctrl-C neither. Needs
nothing but Python and a POSIX shell.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.tools import builder, leaks

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CRONTAB = """\
# m h dom mon dow command
SHELL=/bin/sh
GREETING="good minute"
* * * * * echo "$GREETING"
* * * * * echo 100\\% of it; exit 3
17 4 * * 1-5 /bin/echo a nightly backup
@weekly /bin/echo once a week
"""
_COMMAND_S = 60
_MINUTE_S = 80  # up to one minute to the boundary, and time for a slow machine
_TASK_S = 60
_POLL_S = 0.2


class BrokenPromiseError(Exception):
    """Something was not as promised; the message says what."""


def _say(text: str = "") -> None:
    print(text, flush=True)


def _promise(held: object, sentence: str) -> None:
    if not held:
        raise BrokenPromiseError(sentence)


def _until(ready: Callable[[], Any], seconds: float, sentence: str) -> Any:
    """The first true answer; BrokenPromiseError with the sentence after so many seconds."""
    deadline = time.monotonic() + seconds
    while True:
        answer = ready()
        if answer:
            return answer
        _promise(time.monotonic() < deadline, sentence)
        time.sleep(_POLL_S)


def _alive(pid: int) -> bool:
    """True while a process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as opened:
            return opened.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


class Stage:
    """A folder of its own with the program, one state, and at most one scheduler."""

    def __init__(self, home: str) -> None:
        self.home = home
        self.state = os.path.join(home, "state")
        self.zipapp = os.path.join(home, "qinglong-edge.pyz")
        self.word = os.path.join(home, "word")  # what the long task waits for
        self.scheduler: subprocess.Popen[bytes] | None = None
        self.over = False  # the story came to its end, so nothing runs any more
        ours = ("PYTHON", "QINGLONG_EDGE_", "QL3_")
        self._environment = {n: v for n, v in os.environ.items() if not n.startswith(ours)}

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, self.zipapp, "--state", self.state, *arguments]

    def ask(self, *arguments: str) -> Any:
        """A command's JSON document."""
        done = subprocess.run(
            self._command("--json", *arguments),
            env=self._environment,
            capture_output=True,
            timeout=_COMMAND_S,
        )
        told = done.stdout.decode("utf-8", "replace") or done.stderr.decode("utf-8", "replace")
        if done.returncode != 0:
            raise BrokenPromiseError(f"`{' '.join(arguments)}` ended {done.returncode}: {told}")
        return json.loads(told)

    def show(self, *arguments: str) -> None:
        """A command as a person types it, and what it prints."""
        _say(f"   $ qinglong-edge {' '.join(arguments)}")
        done = subprocess.run(
            self._command(*arguments),
            env=self._environment,
            stdout=subprocess.PIPE,
            timeout=_COMMAND_S,
        )
        for line in done.stdout.decode("utf-8", "replace").splitlines():
            _say(f"     {line}")
        _promise(done.returncode == 0, f"`{arguments[0]}` ended {done.returncode}.")

    def start_scheduler(self) -> int:
        """Start the daemon; its pid once it says `ready`."""
        events = os.path.join(self.home, "events")
        with open(events, "ab") as told:
            self.scheduler = subprocess.Popen(
                self._command("run", "--on-stop", "cancel"),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=told,
                start_new_session=True,  # Ctrl-C is for the story, which then cleans up
            )
        output = self.scheduler.stdout
        line = b"" if output is None else output.readline()
        if line != b"ready\n":
            with open(events, encoding="utf-8", errors="replace") as told_text:
                raise BrokenPromiseError(f"The scheduler did not start: {told_text.read()[-300:]}")
        return self.scheduler.pid

    def end_scheduler(self, number: int) -> int:
        """Signal the daemon and wait; its exit status."""
        if self.scheduler is None:
            return 0
        ended, self.scheduler = self.scheduler, None
        ended.send_signal(number)
        try:
            return ended.wait(_COMMAND_S)
        except subprocess.TimeoutExpired:
            ended.kill()
            return ended.wait()
        finally:
            if ended.stdout is not None:
                ended.stdout.close()

    def clear(self) -> None:
        """End the scheduler and every task of it, with the program's own means."""
        if self.over:
            return
        if self.scheduler is None and os.path.isdir(self.state):
            try:
                self.start_scheduler()
            except BrokenPromiseError:
                pass
        self.end_scheduler(signal.SIGTERM)


# -- the story ------------------------------------------------------------------------------------


def _build(stage: Stage) -> None:
    _say("1. The program is built: one file, nothing to install beside it.")
    artifact = builder.build(ROOT, stage.zipapp, python=sys.executable)
    _say(f"   {os.path.basename(artifact.path)}: {artifact.size:,} bytes")
    stage.ask("init")


def _import(stage: Stage) -> list[str]:
    """The names of the two tasks that are due every minute, in the order of their lines."""
    _say("2. A crontab becomes tasks.")
    path = os.path.join(stage.home, "crontab")
    with open(path, "w", encoding="utf-8") as written:
        written.write(CRONTAB)
    for line in CRONTAB.splitlines():
        _say(f"     {line}")
    answer = stage.ask("import", "crontab", path)
    imported = answer["imported"]
    _promise(len(imported) == 4, f"Four lines were to be imported, not {len(imported)}.")
    _promise(not answer["refused"], f"No line was to be refused: {answer['refused']}")
    again = stage.ask("import", "crontab", path)["imported"]
    changed = [each for each in again if each["outcome"] != "idempotent"]
    _promise(not changed, "A second import was to change nothing.")
    stage.show("task", "list")
    return [str(each["task"]) for each in imported if each["expression"] == "* * * * *"]


def _minute(stage: Stage, names: list[str]) -> None:
    """Both tasks run at the next full minute, each with its own output and exit code."""
    _say("3. The scheduler starts and waits for the next full minute.")
    pid = stage.start_scheduler()
    status = stage.ask("status")
    _promise(status["pid"] == pid, "`status` was to name the scheduler's pid.")
    clock = status["clock"]
    _promise(clock["trusted"], f"Cron waits for a clock that can be right: {clock['reason']}")
    boundary = (int(time.time()) // 60 + 1) * 60
    _say(f"   scheduler {pid}; it is due at {time.strftime('%H:%M:%S', time.localtime(boundary))}")
    time.sleep(max(0.0, boundary - time.time()))
    expected = (("succeeded", 0, "good minute\n"), ("failed", 3, "100% of it\n"))
    for name, (word, code, output) in zip(names, expected, strict=True):
        run = _until(partial(_ended, stage, name), _MINUTE_S, f"{name} was to run.")
        _promise(
            (run["status"], run["exit_code"]) == (word, code),
            f"{name} was to end {word} with {code}, not {run['status']} with {run['exit_code']}.",
        )
        _promise(run["trigger"] == "cron", "The run was to be the crontab's.")
        late_ms = run["created_at_ms"] - run["scheduled_for_ms"]
        _promise(run["scheduled_for_ms"] % 60_000 == 0, "The run was to be due at a full minute.")
        _promise(0 <= late_ms < 30_000, f"{name} was {late_ms} ms late.")
        text = stage.ask("log", str(run["number"]))["text"]
        _promise(text == output, f"The log was to hold {output!r}, not {text!r}.")
    stage.show("runs")


def _ended(stage: Stage, name: str) -> Any:
    """The newest run of a task that has ended, or None."""
    runs = stage.ask("runs", "--task", name)["runs"]
    return next((run for run in runs if run["finished_at_ms"] is not None), None)


def _kill(stage: Stage) -> tuple[str, int]:
    """The scheduler dies in the middle of a task; (the run's number, the task's pid)."""
    _say("4. A task that waits for a word starts; then the scheduler is killed with -9.")
    text = 'while [ ! -e "$1" ]; do sleep 0.1; done; exit 7'
    stage.ask("task", "add", "long", "--", "/bin/sh", "-c", text, "sh", stage.word)
    number = str(stage.ask("start", "long")["number"])
    pid = _until(lambda: _pid(stage, number), _TASK_S, "The task was to start.")
    status = stage.end_scheduler(signal.SIGKILL)
    _promise(status == -signal.SIGKILL, "The scheduler was to die of KILL.")
    _promise(_alive(pid), "The task was to outlive its scheduler.")
    _say(f"   the scheduler is dead; the task, pid {pid}, is not")
    return number, pid


def _pid(stage: Stage, number: str) -> int | None:
    shown = stage.ask("show", number)
    return shown["attempts"][-1]["pid"] if shown["run"]["status"] == "running" else None


def _adopt(stage: Stage, number: str, pid: int) -> None:
    """The next scheduler finds the same process, and its true exit code."""
    _say("5. The next scheduler starts and finds it.")
    stage.start_scheduler()
    active = [str(each["number"]) for each in stage.ask("status")["active"]]
    _promise(number in active, f"Run {number} was to be adopted.")
    _promise(_pid(stage, number) == pid, "The adopted process was to be the very same.")
    _promise(_alive(pid), "The task was to go on under the next scheduler.")
    _say(f"   run {number}, pid {pid}: adopted; now the task gets its word")
    with open(stage.word, "wb"):
        pass
    run = _until(lambda: _ended(stage, "long"), _TASK_S, "The adopted task was to end.")
    found = (run["status"], run["exit_code"], run["evidence"], run["attempts"])
    _promise(
        found == ("failed", 7, "receipt", 1),
        f"The run was to end failed with 7 by its receipt in one attempt, not {found}.",
    )
    _say("   it ended with 7, as its command says, and the receipt it left proves it:")
    stage.show("show", number)


def _stop(stage: Stage) -> None:
    _say("6. Everything that was promised is on record; the scheduler stops.")
    stage.show("runs", "--limit", "5")
    status = stage.end_scheduler(signal.SIGTERM)
    _promise(status == 0, f"The scheduler was to stop with 0, not {status}.")
    left = leaks.survivors(stage.home)
    _promise(not left, f"No process was to be left, but there is {left}.")
    stage.over = True


def _tell(stage: Stage) -> None:
    begun = time.monotonic()
    _build(stage)
    names = _import(stage)
    _promise(len(names) == 2, "Two lines were to be due every minute.")
    _minute(stage, names)
    number, pid = _kill(stage)
    _adopt(stage, number, pid)
    _stop(stage)
    _say(f"Done in {time.monotonic() - begun:.0f} s; nothing is left running.")


def _interrupted(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main(_options: list[str]) -> int:
    """Tell the story; 0, 1 for a broken promise, 130 after Ctrl-C."""
    before = signal.signal(signal.SIGTERM, _interrupted)
    home = tempfile.mkdtemp(prefix="qinglong-edge-demo-")
    stage = Stage(home)
    try:
        _tell(stage)
    except (BrokenPromiseError, builder.BuildError, subprocess.TimeoutExpired) as error:
        print(f"Not as promised: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted; everything is being stopped.", file=sys.stderr)
        return 130
    else:
        return 0
    finally:
        try:
            stage.clear()
        finally:
            shutil.rmtree(home, ignore_errors=True)
            signal.signal(signal.SIGTERM, before)
