"""Standard output and error: UTF-8 whatever the locale, and a closed pipe ends quietly.

Owns every byte a command prints.
"""

from __future__ import annotations

import json
import os
import sys

from qinglong_edge.core.errors import EXIT_BUG

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qinglong_edge.core.errors import EdgeError


def write_bytes(data: bytes) -> None:
    """Bytes to standard output, all of them."""
    sys.stdout.flush()
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def write(text: str) -> None:
    """Text to standard output; lone surrogates are shown, not raised."""
    write_bytes(text.encode("utf-8", "backslashreplace"))


def write_json(document: object) -> None:
    """Exactly one JSON document."""
    write(json.dumps(document, ensure_ascii=False) + "\n")


def fail(error: EdgeError, *, as_json: bool) -> int:
    """Tell an error in the form that was asked for; its exit status."""
    try:
        if as_json:
            write_json({"error": error.document()})
        else:
            facts = " ".join(f"{name}={fact}" for name, fact in error.facts.items())
            told = f" ({facts})" if facts else ""
            line = f"qinglong-edge: {error.code}: {error.message}{told}\n"
            os.write(2, line.encode("utf-8", "backslashreplace"))
    except BrokenPipeError:
        silence()
    except OSError:
        return error.exit_status or EXIT_BUG
    return error.exit_status


def silence() -> None:
    """After a closed pipe the interpreter's own last flush must not complain either."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
