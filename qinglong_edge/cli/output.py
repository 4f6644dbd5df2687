"""Standard output and error: UTF-8 whatever the locale, and a closed pipe ends quietly.

Owns every byte a command prints.
"""

from __future__ import annotations

import errno
import os

from qinglong_edge.core.canonical import plain_text
from qinglong_edge.core.errors import EdgeError, Unavailable


def write_bytes(data: bytes) -> None:
    """Bytes to standard output, all of them; `Unavailable` (`output_failed`) on a full device."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(1, view) :]
    except BrokenPipeError:
        raise
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "EIO")
        raise Unavailable(
            "output_failed", "Standard output cannot be written.", errno=name
        ) from None


def write(text: str) -> None:
    """Text to standard output; lone surrogates are shown, not raised."""
    write_bytes(text.encode("utf-8", "backslashreplace"))


def write_json(document: object) -> None:
    """Exactly one JSON document."""
    write(plain_text(document, spaced=True) + "\n")


def note(text: str) -> None:
    """A line for a person beside the answer, on standard error; nobody may be there to read it."""
    try:
        os.write(2, f"{text}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        pass


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
    except (OSError, EdgeError):
        pass  # there is nobody to tell
    return error.exit_status


def silence() -> None:
    """After a closed pipe the interpreter's own last flush must not complain either."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
