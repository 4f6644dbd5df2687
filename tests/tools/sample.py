"""A small tree that builds: the program's first lines as they are, a stand-in for the rest.

What the builder and the first lines promise is shown on it, whatever state the program is in.
"""

from __future__ import annotations

import os
import shutil

from tests.support import ROOT

_REAL = (
    "qinglong_edge/__main__.py",
    "qinglong_edge/app/__init__.py",
    "qinglong_edge/app/profiles.py",
    "qinglong_edge/app/program.py",
    "qinglong_edge/core/__init__.py",
    "qinglong_edge/core/canonical.py",
    "qinglong_edge/core/errors.py",
    "qinglong_edge/core/limits.py",
    "qinglong_edge/core/profile.py",
    "qinglong_edge/core/record.py",
    "qinglong_edge/system/__init__.py",
    "qinglong_edge/system/interpreter.py",
    "qinglong_edge/system/memory.py",
    "profiles/edge.toml",
    "profiles/standalone.toml",
    "build.py",
    "tests/__init__.py",
    "tests/tools/builder.py",
    "tests/tools/bytecode.py",
    "tests/tools/gates.py",
)
# Says `ready`, waits for a line, then imports late: in itself and in a forked child.
_MAIN = '''"""Stand-in for the command line."""
from __future__ import annotations
import json
import os
import sys

WORDS = frozenset({"apple", "pear", "plum", "fig", "quince"})


def main() -> int:
    """One line in, one JSON document out."""
    from qinglong_edge.app import program

    print("ready", flush=True)
    sys.stdin.readline()
    held = program.descriptor()
    child = os.fork()
    if child == 0:
        for name in os.listdir("/proc/self/fd"):
            if int(name) != held:
                try:
                    os.close(int(name))
                except OSError:
                    pass
        try:
            from qinglong_edge import in_child
            os._exit(in_child.STATUS)
        finally:
            os._exit(1)
    from qinglong_edge import late
    from qinglong_edge.app import profiles

    made = program.build()
    print(json.dumps({
        "file": late.__file__,
        "doc": late.__doc__,
        "descriptor": held,
        "inheritable": held is not None and os.get_inheritable(held),
        "child": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]),
        "digest": None if made is None else made.digest,
        "profiles": profiles.names(),
        "active": profiles.load("edge").active_runs_max,
        "modules": sorted(sys.modules),
    }))
    return 0
'''
_WRITTEN = {
    "qinglong_edge/__init__.py": '"""A sample."""\n__version__ = "0"\n',
    "qinglong_edge/cli/__init__.py": "",
    "qinglong_edge/cli/main.py": _MAIN,
    "qinglong_edge/late.py": '"""Documented."""\nassert False, "never compiled in"\n',
    "qinglong_edge/in_child.py": "STATUS = 42\n",
    "qinglong_edge/worker/main.py": "raise SystemExit\n",
    "qinglong_edge/process/wrapper.sh": "exit 0\n",
}


def tree(folder: str) -> str:
    """Make the sample in `folder` and return it."""
    for name in _REAL:
        os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
        shutil.copyfile(os.path.join(ROOT, name), os.path.join(folder, name))
    for name, text in _WRITTEN.items():
        write(folder, name, text)
    return folder


def write(folder: str, name: str, text: str) -> None:
    """Add or replace one file of a sample."""
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as opened:
        opened.write(text)
