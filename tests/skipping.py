"""Why a test does not run here: nobody asked for what it costs, or what it needs cannot be had."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from tests.tools import debian


def unless_asked_for(name: str, what: str) -> None:
    """Skip what takes minutes, unless the environment asks: `EDGE_FLASH=1` for `flash`."""
    variable = f"EDGE_{name.upper()}"
    if os.environ.get(variable) != "1":
        pytest.skip(f"{what}: `build.py test --with-{name}`, or {variable}=1")


@contextlib.contextmanager
def unless_had(what: str) -> Iterator[None]:
    """Skip where a thing cannot be fetched or built, and say why."""
    try:
        yield
    except debian.UnobtainableError as error:
        pytest.skip(f"{what} cannot be had: {error}")
