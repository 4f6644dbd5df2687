"""`build.py test`: an environment with pinned tools, then lint, format, types and every test.

The environment is `.venv`, made by the Python that runs this file and kept until that Python or the
pins change. Checks come first and stop at the first that fails. What measures time or needs the
machine for itself runs alone; all other folders run two at a time, on two cores. The output of each
part is printed when the part is over, and the closing line is the sum. A part that does not end is
ended, says where it stood, and has failed; only where each program is emulated it is tried once
more, since the emulator may lock up when a program with threads forks. With arguments for pytest
there is one part, and its closing line is pytest's. With `musl` there is a router's userland too,
with `flash` its flash, and without `emulation` only what was asked for.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from xml.etree import ElementTree

from tests.tools import debian, pythons
from tests.tools.musl import tree
from tests.tools.pythons import Python

_STAMP = "made-for"
CACHE = os.path.join(".cache", "debian")
_PYTHONS = os.path.join(".cache", "pythons")
# The oldest that routers have runs every test; the others what a Python can change, the rooms. The
# rest is about the artifact, the disk, whole machines and long random runs, whatever runs them.
WHOLE = (11,)
NEEDED = 13  # what OpenWrt 25.12 has; the rest where they can be had
FIRST = ("build",)  # it measures: nothing runs beside it
LAST = ("emulation", "musl")  # guests take every core; both only look around when not asked for
FLASH = ("flash",)  # the same, for as long as all of them together
ROOMS = ("unit", "storage", "system", "process", "execution", "app", "artifact", "secret")
LANES = (ROOMS, ("worker", "kit"), ("e2e", "luci"), ("crash", "moving", "notify", "soak"))
AT_ONCE = 2
# Three times what the longest part takes on two cores, and all of them within what a CI waits for.
_PART_S = 1_500.0
_FOREIGN_PART_S = 700.0
_ALL_S = 4_200.0
ENDED = -int(signal.SIGKILL)
_DUMP_S = 5.0  # what a part that is ended has to write where each of its threads stands


class SetupError(Exception):
    """The environment cannot be made; the message says what is needed."""


def test(root: str, *, emulation: bool, musl: bool, flash: bool, pytest: list[str]) -> int:
    """The exit status of the first check that fails, or of pytest.

    With `emulation` everything the tests need is installed first, a skip that tests/skips.txt does
    not name fails the run, and the tests run under the other Pythons too. With `musl` or
    `flash` alone the same holds for the tests in and of the musl tree, or on emulated flash, and no
    others run.
    """
    environment = dict(os.environ)
    try:
        if emulation or musl or flash:
            guests = emulation or flash
            _provide(root, (*debian.TOOLS, *(debian.EMULATORS if guests else ())))
            environment |= {"EDGE_STRICT": "1"}
        asked = {"emulation": emulation, "musl": musl, "flash": flash}
        environment |= {f"EDGE_{name.upper()}": "1" for name, wanted in asked.items() if wanted}
        python = _environment(root)
        others = [*_others(root), _foreign(root)] if emulation else []
        others += _musl(root) if musl and not pytest else []
    except (SetupError, debian.UnobtainableError) as error:
        print(f"build.py test: {error}", file=sys.stderr)
        return 1
    for name, command in _checks(python):
        print(f"== {name}", flush=True)
        status = subprocess.call(command, cwd=root)
        if status != 0:
            return status
    if pytest:
        print("== tests", flush=True)
        return subprocess.call([python, "-m", "pytest", *pytest], cwd=root, env=environment)
    own = Python(sys.version_info.minor, (python,), "this Python")
    only = () if emulation else tuple(name for name, wanted in asked.items() if wanted)
    return _suites(root, [own, *others], environment, only=only)


@dataclass(frozen=True)
class _Part:
    """Some folders of the tests under one Python."""

    python: Python
    folders: tuple[str, ...]

    @property
    def name(self) -> str:
        """As it is printed."""
        return f"Python 3.{self.python.minor} ({self.python.origin}): {' '.join(self.folders)}"

    @property
    def within_s(self) -> float:
        """How long it may take."""
        return _FOREIGN_PART_S if self.python.foreign else _PART_S


def _suites(
    root: str, every: list[Python], environment: dict[str, str], *, only: tuple[str, ...] = ()
) -> int:
    """All parts, or only those of some folders and of the machines of that name.

    The last lines printed are one line for each and their sum.
    """
    own = [one for one in every if not one.machine]
    whole = [one for one in own if one.minor in WHOLE] or own[:1]
    first = [_Part(one, FIRST) for one in whole]
    middle = [_Part(one, lane) for one in whole for lane in LANES]
    middle += [_Part(one, (room,)) for one in every if one.machine for room in ROOMS]
    middle += [_Part(one, ROOMS) for one in own if one not in whole]
    last = [_Part(one, folders) for one in whole for folders in (LAST, FLASH)]
    if only:
        first, middle = [], [one for one in middle if one.python.machine in only]
        last = [_Part(one, (folder,)) for one in whole for folder in only]
    deadline = time.monotonic() + _ALL_S
    run = functools.partial(_run, root, environment, deadline)
    results = [run(one) for one in first]
    with ThreadPoolExecutor(AT_ONCE) as lanes:
        results += lanes.map(run, middle)
    results += [run(one) for one in last]
    statuses, lines, counts = zip(*results, strict=True)
    total = (sum(each[0] for each in counts), sum(each[1] for each in counts))
    print("== all tests", *lines, _told((*total, sum(each[2] for each in counts))), sep="\n")
    return int(max(statuses))


def _run(
    root: str, environment: dict[str, str], deadline: float, part: _Part
) -> tuple[int, str, tuple[int, int, int]]:
    """(status, line for the end, counts) of a part, whose output is printed once it is over."""
    machine = part.python.machine or str(part.python.minor)
    report = os.path.join(root, ".cache", f"report-{machine}-{part.folders[0]}.xml")
    os.makedirs(os.path.dirname(report), exist_ok=True)
    if os.path.exists(report):
        os.unlink(report)
    folders = [os.path.join("tests", name) for name in part.folders]
    options = [f"--junitxml={report}"]
    if part.python.foreign:
        options += ["-o", "faulthandler_timeout=0"]  # it is a thread
    command = [*part.python.command, "-m", "pytest", *options, *folders]
    print(f"== begins: {part.name}", flush=True)
    begun = time.monotonic()
    told = ""
    for _ in range(2 if part.python.foreign else 1):
        within_s = min(part.within_s, deadline - time.monotonic())
        surroundings = environment | part.python.environment
        status, said = bounded(command, root, surroundings, within_s)
        told += said
        if status != ENDED:
            break
    took = f"{time.monotonic() - begun:.0f} s, status {status}"
    print(f"== {part.name}\n{told}", flush=True)
    counts = _counts(report)
    return abs(status), f"{part.name}: {_told(counts)} in {took}", counts


def bounded(
    command: list[str], folder: str, environment: dict[str, str], within_s: float
) -> tuple[int, str]:
    """(status, both outputs) of a command; ENDED if it had to be, with its group, after `within_s`.

    It is aborted first, so that a Python with a fault handler tells where its threads stand.
    """
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        late = ""
        try:
            process.wait(max(0.0, within_s))
        except subprocess.TimeoutExpired:
            late = f"\n== ended: it was not over after {within_s:.0f} s\n"
            _ended(process, signal.SIGABRT)
        except BaseException:
            _ended(process, signal.SIGTERM)
            raise
        output.seek(0)
        told = output.read().decode("utf-8", "replace")
    return (ENDED, told + late) if late else (process.returncode, told)


def _ended(process: subprocess.Popen[bytes], first: signal.Signals) -> None:
    """Its whole group gets the signal, and is killed when it has had its time."""
    os.killpg(process.pid, first)
    deadline = time.monotonic() + _DUMP_S
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)  # not yet reaped, so that the number is still its own
    process.wait()


def _told(counts: tuple[int, int, int]) -> str:
    return "{} passed, {} failed, {} skipped".format(*counts)


def _counts(report: str) -> tuple[int, int, int]:
    """Passed, failed (with errors) and skipped tests of a report; a missing one is a failure."""
    if not os.path.exists(report):
        return 0, 1, 0
    suite = next(ElementTree.parse(report).iter("testsuite"))  # noqa: S314 - pytest wrote it
    tests, failed, errors, skipped = (
        int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")
    )
    return tests - failed - errors - skipped, failed + errors, skipped


def _others(root: str) -> list[Python]:
    """Every other supported Python that can be had; a missing one of WHOLE is an error."""
    others = []
    for minor in pythons.MINORS:
        if minor == sys.version_info.minor:
            continue
        try:
            others.append(_other(root, minor))
        except debian.UnobtainableError as error:
            if minor == NEEDED:
                raise
            print(f"== without Python 3.{minor}: {error}", flush=True)
    return others


def _foreign(root: str) -> Python:
    """The arm64 one, with the cryptography of its own Debian."""
    pins = pythons.pins(root, without=(*pythons.CHECKERS, "cryptography"))
    return pythons.foreign(root, os.path.join(root, _PYTHONS), pins)


def _musl(root: str) -> list[Python]:
    """The one of the musl tree; its tests say that it cannot be had, where it cannot."""
    try:
        return [pythons.tried(tree.made(root).python)]
    except debian.UnobtainableError as error:
        print(f"== without the musl tree: {error}", flush=True)
        return []


def _other(root: str, minor: int) -> Python:
    cache = os.path.join(root, _PYTHONS)
    pins = pythons.pins(root, without=pythons.CHECKERS)
    found = pythons.on_this_machine(minor)
    if found is not None:
        made = _made(os.path.join(cache, f"3.{minor}"), found, pins)
        return Python(minor, (made,), "found on this machine")
    return pythons.unpacked(root, minor, cache, pins)


def _checks(python: str) -> list[tuple[str, list[str]]]:
    return [
        ("lint", [python, "-m", "ruff", "check", "."]),
        ("format", [python, "-m", "ruff", "format", "--check", "."]),
        ("types", [python, "-m", "mypy"]),
    ]


def _provide(root: str, packages: Sequence[str]) -> None:
    """Install the tools and fetch the packages that the tests read."""
    wanted = debian.missing(packages)
    if not _venv_works() and not _pip_works():
        wanted.append("python3-venv")
    if wanted:
        print(f"== apt: {' '.join(wanted)}", flush=True)
        debian.install(wanted)
    cache = os.path.join(root, CACHE)
    absent = [name for name in debian.READ if not os.path.isdir(os.path.join(cache, name))]
    if absent:
        print(f"== fetch: {' '.join(absent)}", flush=True)
    if absent and not wanted and os.geteuid() == 0:
        debian.refresh()
    for name in absent:
        debian.unpacked(name, cache)


def _environment(root: str) -> str:
    """The Python of a `.venv` that holds exactly the pins."""
    return _made(os.path.join(root, ".venv"), sys.executable, pythons.pins(root))


def _made(folder: str, executable: str, pins: list[str]) -> str:
    """The Python of an environment with exactly these pins, made anew when they change."""
    python = os.path.join(folder, "bin", "python")
    stamp = os.path.join(folder, _STAMP)
    made_for = f"{executable} {sys.version} {' '.join(pins)}"
    if _text(stamp) == made_for:
        return python
    print(f"== environment of {executable}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    for command in _making(folder, executable, pins):
        if subprocess.call(command) != 0:
            raise SetupError(f"`{' '.join(command)}` failed")
    with open(stamp, "w", encoding="utf-8") as written:
        written.write(made_for)
    return python


def _making(folder: str, executable: str, pins: list[str]) -> list[list[str]]:
    """Commands that make the environment; a Debian Python without ensurepip lends its own pip."""
    python = os.path.join(folder, "bin", "python")
    install = ["install", "-qq", "--no-input", "--disable-pip-version-check", *pins]
    if _venv_works():
        return [[executable, "-m", "venv", folder], [python, "-m", "pip", *install]]
    if _pip_works():
        return [
            [executable, "-m", "venv", "--without-pip", folder],
            [sys.executable, "-m", "pip", "--python", python, *install],
        ]
    raise SetupError("this Python has neither ensurepip nor pip; install python3-venv")


def _venv_works() -> bool:
    return importlib.util.find_spec("ensurepip") is not None


def _pip_works() -> bool:
    return importlib.util.find_spec("pip") is not None


def _text(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as opened:
            return opened.read()
    except FileNotFoundError:
        return None
