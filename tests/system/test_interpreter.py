"""What the interpreter's start left behind is forgotten, and nobody misses it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT

# Of the zipapp's start this has all: runpy below, our first lines above.
_FIRST_LINES = """
import sys
sys.path.insert(0, {root!r})
from qinglong_edge.system import interpreter
{act}
import json
print(json.dumps(told))
"""
_SQLITE = """
there = "functools" in sys.modules
with interpreter.LentCache():
    import _sqlite3
told = {"as before": ("functools" in sys.modules) is there}
database = _sqlite3.connect(":memory:")
for number in range(300):
    database.execute("SELECT %d" % (number % 200)).fetchone()
told["answers"] = [database.execute("SELECT ? + 1", (n,)).fetchone()[0] for n in range(3)]
"""


def started(folder: Path, act: str) -> Any:
    """What first lines that do `act` told, started as a directory with a `__main__.py`."""
    (folder / "__main__.py").write_text(_FIRST_LINES.format(root=str(ROOT), act=act))
    command = [sys.executable, "-I", "-S", "-B", str(folder)]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def test_a_resident_process_forgets_what_only_its_start_needed(tmp_path: Path) -> None:
    names = "runpy functools collections contextlib importlib.util operator types"
    told = started(
        tmp_path,
        f"before = [n for n in {names!r}.split() if n in sys.modules]\n"
        "interpreter.forget_starter()\n"
        f"after = [n for n in {names!r}.split() if n in sys.modules]\n"
        "told = before, after",
    )
    before, after = told
    assert {"runpy", "importlib.util"} <= set(before)
    assert after == []


def test_what_a_process_lives_on_stays_the_very_same(tmp_path: Path) -> None:
    told = started(
        tmp_path,
        "import functools\n"
        "interpreter.forget_starter('functools')\n"
        "told = sys.modules.get('functools') is functools, 'runpy' in sys.modules",
    )
    assert told == [True, False]


def test_what_was_forgotten_is_given_back_to_the_system(tmp_path: Path) -> None:
    """A function of each module that is gone would keep all of it."""
    told = started(
        tmp_path,
        "import gc\n"
        "kept = {'functools', 'collections', 'contextlib', 'importlib.util'}\n"
        "def held():\n"
        "    gc.collect()\n"
        "    functions = [o for o in gc.get_objects() if type(o) is type(held)]\n"
        "    return sum(each.__module__ in kept for each in functions)\n"
        "before = held()\n"
        "interpreter.forget_starter()\n"
        "told = before, held()",
    )
    before, after = told
    assert before >= 10
    assert after == 0


def test_what_was_forgotten_is_there_anew_for_whoever_imports_it(tmp_path: Path) -> None:
    told = started(
        tmp_path,
        "interpreter.forget_starter()\n"
        "import argparse, collections.abc, contextlib, datetime, enum, importlib.util, runpy\n"
        "import functools, subprocess, typing, warnings\n"
        "Pair = collections.namedtuple('Pair', 'a b')\n"
        "with contextlib.suppress(KeyError), warnings.catch_warnings():\n"
        "    {}['x']\n"
        "cached = functools.lru_cache(lambda: Pair(1, isinstance([], collections.abc.Sequence)))\n"
        "told = cached(), cached.cache_info().hits, importlib.util.find_spec('json').name",
    )
    assert told == [[1, True], 0, "json"]


@pytest.mark.parametrize("act", ["interpreter.forget_starter()\n", ""])
def test_a_database_has_its_cache_of_statements_either_way(tmp_path: Path, act: str) -> None:
    told = started(tmp_path, act + _SQLITE)
    assert told == {"as before": True, "answers": [1, 2, 3]}


def test_an_interpreter_without_that_cache_in_c_takes_functools(tmp_path: Path) -> None:
    hidden = "interpreter.forget_starter()\nsys.modules['_functools'] = None\n"
    told = started(tmp_path, hidden + _SQLITE)
    assert told == {"as before": False, "answers": [1, 2, 3]}


def test_nothing_is_forgotten_that_was_not_the_starters(tmp_path: Path) -> None:
    """Imported by a program that runs otherwise, it may be in use."""
    told = started(
        tmp_path,
        "import collections\ndel sys.modules['runpy']\ninterpreter.forget_starter()\n"
        "told = sys.modules['collections'] is collections",
    )
    assert told is True
