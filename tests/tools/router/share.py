"""What a guest sees at /share: the programs as built, and the tree that measures and checks."""

from __future__ import annotations

import compileall
import os
import py_compile
import shutil
import sys

from tests.tools import builder
from tests.tools.router.machines import MINOR

ZIPAPP = "qinglong-edge.pyz"
WORKER = "qinglong-edge-worker.pyz"
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "vectors", "*.pyc")


def fill(root: str, folder: str) -> None:
    """Put the tree at `root` into an empty folder, and the artifacts, for the guests' Python."""
    for name in ("qinglong_edge", "tests", "profiles"):
        shutil.copytree(os.path.join(root, name), os.path.join(folder, name), ignore=_LEFT_OUT)
    for name, kind in ((ZIPAPP, builder.RUNTIME), (WORKER, builder.WORKER)):
        builder.build(root, os.path.join(folder, name), python=sys.executable, kind=kind)
    if sys.version_info.minor == MINOR:
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        compileall.compile_dir(folder, quiet=2, invalidation_mode=mode)
