"""The walls stand, and the reader of walls sees every way through them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.tools import walls

HONEST = {
    "__init__.py": "",
    "__main__.py": "import sys\nfrom qinglong_edge.cli.main import main\n",
    "core/__init__.py": "",
    "core/ids.py": "import struct\n",
    "core/dotenv.py": "import re\n",
    "core/canonical.py": "from _sha2 import sha256\ndef f():\n    from json import loads\n",
    "system/files.py": "import os\nfrom qinglong_edge.core import ids\n",
    "app/build.py": "from qinglong_edge.system.files import name\ndef f():\n    import tomllib\n",
    "cli/main.py": "import qinglong_edge\nimport qinglong_edge.app.build\n",
    "cli/parser.py": "import argparse\n",
}


def house(root: Path, **changed: str) -> list[str]:
    """The violations of the honest house with some files added or replaced."""
    files = HONEST | {f"{name.replace('__', '/')}.py": text for name, text in changed.items()}
    for name, text in files.items():
        path = root / "qinglong_edge" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return walls.violations(str(root))


def test_this_house_has_no_arrow_that_points_up_and_no_foreign_import() -> None:
    """ADR-0115 verification 9: a log's allocator brings no room, table, module or timer along."""
    assert walls.violations(ROOT) == []


# module -> what it lists, none of which is a receipt, a log or the database
LISTS = {
    "app.doctor": "crontabs of the machine",
    "app.kit": "the program's own tree",
    "app.making": "a new state's folder, for what makes it no new one",
    "app.program": "the profiles of a checkout",
    "system.child": "its own descriptors",
    "system.files": "a state's or runtime's directory that others may enter",
    "system.process": "processes",
}


def test_whoever_keeps_receipts_and_logs_lists_no_directory() -> None:
    """ADR-0069 section 4: the database is the only source of names."""
    listing = re.compile(r"\b(listdir|scandir|f?walk|iterdir|r?glob|opendir)\b\(")
    package = Path(ROOT, "qinglong_edge")
    found = {
        ".".join(path.relative_to(package).with_suffix("").parts)
        for path in package.rglob("*.py")
        if listing.search(path.read_text(encoding="utf-8"))
    }
    assert found == set(LISTS)


def test_an_honest_house_is_believed(tmp_path: Path) -> None:
    assert house(tmp_path) == []


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("core__up", "from qinglong_edge.system import files\n", "core -> system"),
        ("core__late", "def f():\n    import qinglong_edge.app.build\n", "core -> app"),
        (
            "core__typed",
            "if TYPE_CHECKING:\n    from qinglong_edge.cli.main import main\n",
            "core -> cli",
        ),
        ("storage__sql", "from qinglong_edge.process import launcher\n", "storage -> process"),
        ("storage__sql", "import qinglong_edge.system.process\n", "storage -> system.process"),
        ("process__run", "from qinglong_edge.core.profile import P\n", "process -> core.profile"),
        ("artifact__tick", "from qinglong_edge.system.loop import L\n", "artifact -> system.loop"),
        ("execution__tick", "from qinglong_edge.system import files\n", "execution -> system"),
        ("app__face", "from qinglong_edge.cli.main import main\n", "app -> cli"),
        ("attic__x", "from qinglong_edge.core import ids\n", "no such room"),
        ("core__near", "from .ids import x\n", "relatively"),
        ("core__text", "x = __import__('socket')\n", "by text"),
        ("core__text", "importlib.import_module('socket')\n", "by text"),
        ("core__os", "import os\n", "core -> os"),
        ("execution__clock", "import time\n", "execution -> time"),
        ("process__db", "def f():\n    import sqlite3\n", "process -> sqlite3"),
        ("cli__early", "import datetime\n", "only late"),
        ("cli__class", "class A:\n    import datetime\n", "only late"),
        ("cli__words", "def f():\n    import argparse\n", "only cli.parser"),
        ("core__canonical", "import json\n", "only late"),
        ("core__zone", "def f():\n    import zoneinfo\n", "core -> zoneinfo"),
        ("cli__heavy", "def f():\n    import asyncio\n", "cli -> asyncio"),
        ("core__hash", "from hashlib import sha256\n", "only core.canonical"),
        ("core__typing", "from typing import Any\n", "core -> typing"),
        ("core__ids", "import re\n", "core -> re"),
        ("storage__runs", "def f():\n    import json\n", "storage -> json"),
        ("app__rpc", "from _json import make_scanner\n", "only core.canonical"),
        ("core__a", "import qinglong_edge.core.b\n", "core.b"),
    ],
)
def test_one_bad_import_is_one_violation(tmp_path: Path, file: str, text: str, said: str) -> None:
    added = {file: text}
    if said == "core.b":
        added["core__b"] = "def f():\n    from qinglong_edge.core.a import x\n"
    found = house(tmp_path, **added)
    assert len(found) == 1, found
    assert said in found[0]


def test_what_only_the_type_checker_reads_may_be_of_the_standard_library(tmp_path: Path) -> None:
    text = "if TYPE_CHECKING:\n    from typing import Any\nelse:\n    import typing\n"
    assert house(tmp_path, core__typed=text) == [
        "core.typed:4 core -> typing: not on this room's list of the standard library"
    ]
