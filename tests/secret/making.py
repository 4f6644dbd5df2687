"""What the tests of the secret room share: vectors, keys, what errors must not say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.core import secret
from qinglong_edge.core.errors import EdgeError
from qinglong_edge.core.secret import Envelope
from qinglong_edge.secret.keyring import Keyring
from qinglong_edge.secret.seal import seal_secret

VECTORS = json.loads(
    (Path(__file__).parents[1] / "vectors" / "secret.json").read_text(encoding="utf-8")
)
KNOWN = Keyring(
    active=VECTORS["keyring"]["active"],
    keys=tuple((each, bytes.fromhex(key)) for each, key in VECTORS["keyring"]["keys"].items()),
)
MARKER = "pl41n-m4rk3r"


def sealed(
    value: bytes = MARKER.encode(),
    *,
    name: str = "TOKEN",
    version: int = 1,
    keyring: Keyring = KNOWN,
    project: str = secret.PROJECT,
) -> Envelope:
    """An envelope of a value, as `secret set` makes it; of another project it opens nowhere."""
    made = seal_secret(
        keyring,
        name=name,
        version=version,
        mutation_id=f"mutation-{version}",
        plaintext=value,
        created_at_ms=1,
    )
    return made.replace(project=project)


def refused(action: Callable[..., Any], *given: Any, **named: Any) -> tuple[str, object]:
    """(code, reason) of an error that says nothing of names, keys and values."""
    with pytest.raises(EdgeError) as caught:
        action(*given, **named)
    error = caught.value
    said = f"{error} {error!r} {error.document()} {error.__cause__!r}"
    for private in (MARKER, "TOKEN", "edge-key", "qlsk-", "qlsecret", "project-1", "mutation-"):
        assert private not in said
    return error.code, error.facts.get("reason")
