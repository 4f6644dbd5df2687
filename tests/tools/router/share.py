"""What a guest sees at /share: the program as built, and the tree that measures and checks it."""

from __future__ import annotations

import compileall
import os
import py_compile
import shutil
import sys

from tests.tools import builder
from tests.tools.router.machines import MINOR

ZIPAPP = "qinglong-edge.pyz"
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "vectors", "*.pyc")


def fill(root: str, folder: str) -> builder.Artifact:
    """Put the tree at `root` into an empty folder; the artifact, made for the guests' Python."""
    for name in ("qinglong_edge", "tests", "profiles"):
        shutil.copytree(os.path.join(root, name), os.path.join(folder, name), ignore=_LEFT_OUT)
    artifact = builder.build(root, os.path.join(folder, ZIPAPP), python=sys.executable)
    if sys.version_info.minor == MINOR:
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        compileall.compile_dir(folder, quiet=2, invalidation_mode=mode)
    return artifact
