"""Each piece that keeps a promise, taken away: the promise is then seen to be broken.

So the checks of the crash passes are known to see what they are there to see.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.crash.mutations import MUTATIONS
from tests.support import ROOT


@pytest.mark.parametrize("name", MUTATIONS)
def test_without_it_a_named_promise_is_broken(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.mutations", name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["with"] == []
    check = MUTATIONS[name].check
    assert any(f"{check}: " in said for said in found["without"]), found["without"]
