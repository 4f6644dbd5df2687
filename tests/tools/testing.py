"""`build.py test`: an environment with pinned tools, then lint, format, types and every test.

The environment is `.venv`, made by the Python that runs this file and kept until that Python or the
pins change. Checks come first and stop at the first that fails; pytest comes last, so that its
closing line is the last line printed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys

from tests.tools import debian

_PINS = ".requirements-dev.txt"
_STAMP = "made-for"
CACHE = os.path.join(".cache", "debian")


class SetupError(Exception):
    """The environment cannot be made; the message says what is needed."""


def test(root: str, *, emulation: bool, pytest: list[str]) -> int:
    """The exit status of the first check that fails, or of pytest.

    With `emulation` everything the tests need is installed first, and a skip that tests/skips.txt
    does not name fails the run.
    """
    environment = dict(os.environ)
    try:
        if emulation:
            _provide(root)
            environment["EDGE_STRICT"] = "1"
        python = _environment(root)
    except (SetupError, debian.UnobtainableError) as error:
        print(f"build.py test: {error}", file=sys.stderr)
        return 1
    for name, command in _checks(python):
        print(f"== {name}", flush=True)
        status = subprocess.call(command, cwd=root)
        if status != 0:
            return status
    return max(_suite(root, one, environment, pytest) for one in _interpreters(python))


def _checks(python: str) -> list[tuple[str, list[str]]]:
    return [
        ("lint", [python, "-m", "ruff", "check", "."]),
        ("format", [python, "-m", "ruff", "format", "--check", "."]),
        ("types", [python, "-m", "mypy"]),
    ]


def _interpreters(python: str) -> list[str]:
    """Every Python that the suite runs under; further minor versions are added here."""
    return [python]


def _suite(root: str, python: str, environment: dict[str, str], pytest: list[str]) -> int:
    print("== tests", flush=True)
    return subprocess.call([python, "-m", "pytest", *pytest], cwd=root, env=environment)


def _provide(root: str) -> None:
    """Install the tools and fetch the packages that the tests read."""
    wanted = debian.missing()
    if not _venv_works() and not _pip_works():
        wanted.append("python3-venv")
    if wanted:
        print(f"== apt: {' '.join(wanted)}", flush=True)
        debian.install(wanted)
    cache = os.path.join(root, CACHE)
    absent = [name for name in debian.CRONTABS if not os.path.isdir(os.path.join(cache, name))]
    if absent:
        print(f"== fetch: {' '.join(absent)}", flush=True)
    if absent and not wanted and os.geteuid() == 0:
        debian.refresh()
    for name in absent:
        debian.unpacked(name, cache)


def _environment(root: str) -> str:
    """The Python of a `.venv` that holds exactly the pins."""
    folder = os.path.join(root, ".venv")
    python = os.path.join(folder, "bin", "python")
    stamp = os.path.join(folder, _STAMP)
    pins = os.path.join(root, _PINS)
    with open(pins, "rb") as opened:
        made_for = f"{sys.executable} {sys.version} {hashlib.sha256(opened.read()).hexdigest()}"
    if _text(stamp) == made_for:
        return python
    print("== environment", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    for command in _making(folder, pins):
        if subprocess.call(command) != 0:
            raise SetupError(f"`{' '.join(command)}` failed")
    with open(stamp, "w", encoding="utf-8") as written:
        written.write(made_for)
    return python


def _making(folder: str, pins: str) -> list[list[str]]:
    """Commands that make the environment; a Debian Python without ensurepip lends its own pip."""
    python = os.path.join(folder, "bin", "python")
    install = ["install", "-qq", "--no-input", "--disable-pip-version-check", "-r", pins]
    if _venv_works():
        return [[sys.executable, "-m", "venv", folder], [python, "-m", "pip", *install]]
    if _pip_works():
        return [
            [sys.executable, "-m", "venv", "--without-pip", folder],
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
