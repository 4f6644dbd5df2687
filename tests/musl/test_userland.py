"""The tree is what it stands for: each trait of a router that other tests rely on is there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.musl.router import Router
from tests.support import ROOT

ABSENT = ("base64", "bash", "getopt", "mountpoint", "nohup", "od", "realpath", "stat", "timeout")
OTHERS = (
    *("asyncio", "ctypes", "decimal", "email", "logging", "multiprocessing", "pathlib", "ssl"),
    *("unittest", "urllib", "uuid", "xml", "zipfile", "_hashlib", "unicodedata"),
)
# Each is named to the user by the command that needs it, and by `doctor`.
ASKED_FOR = {"cryptography", "http.client", "ssl", "_ssl"}
NEWER = {"_sha2"}  # of a later Python; what this one has is asked for next


def python(router: Router, text: str) -> tuple[int, str]:
    """(status, output) of a program of the tree's interpreter as the product is started."""
    done = router.shell('exec /usr/bin/python3 -IS -c "$1"', text)
    return done.returncode, done.stdout + done.stderr


def test_the_shell_and_every_tool_is_openwrts_busybox(router: Router) -> None:
    for name in ABSENT:
        assert router.shell(f"command -v {name}").returncode != 0, name
    assert "invalid number" in router.shell("sleep 0.1").stderr
    assert "applet not found" in router.shell("busybox --list").stderr
    for place in ("/bin/sh", "/usr/bin/awk", "/sbin/start-stop-daemon"):
        assert router.shell('readlink -f "$1"', place).stdout == "/bin/busybox\n", place


def test_python_is_its_light_package_and_sqlite_on_musl(router: Router) -> None:
    probe = f"""
import importlib, os, sqlite3, sys, time
for name in {OTHERS!r}:
    try:
        importlib.import_module(name)
        print(name)
    except ImportError:
        pass
print(hasattr(time, "tzset"), sys.implementation._multiarch, os.path.exists(os.__file__[:-1]))
"""
    assert python(router, probe) == (0, "False x86_64-linux-musl False\n")


@pytest.mark.parametrize(("stack", "status"), [(0, 139), (1 << 20, 0)])
def test_a_thread_has_the_small_stack_of_musl(router: Router, stack: int, status: int) -> None:
    deep = f"""
import json, threading
threading.stack_size({stack})
thread = threading.Thread(target=json.loads, args=("[" * 900 + "]" * 900,))
thread.start()
thread.join()
"""
    assert python(router, deep)[0] in (status, -11 if status else 0)


def test_whatever_the_program_imports_is_there_or_is_asked_for_by_name(router: Router) -> None:
    wanted = sorted(imported(Path(ROOT, "qinglong_edge")))
    probe = f"""
import importlib
for name in {wanted!r}:
    try:
        importlib.import_module(name)
    except ImportError:
        print(name)
"""
    status, told = python(router, probe)
    lacking = {name if name in ASKED_FOR else name.partition(".")[0] for name in told.split()}
    assert (status, lacking) == (0, ASKED_FOR | NEWER)


def imported(folder: Path) -> set[str]:
    """Every module of others that any line of ours imports, type checkers' lines left out."""
    found: set[str] = set()
    for path in folder.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        checked = {
            id(each)
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for each in ast.walk(node)
        }
        for node in ast.walk(tree):
            if id(node) in checked:
                continue
            if isinstance(node, ast.Import):
                found |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
    return {name for name in found if not name.startswith("qinglong_edge")}
