"""The `log` command: a run's output, by range, by tail, or followed to its end.

Owns the reading in bounded ranges: never more than one range is in memory.
"""

from __future__ import annotations

import binascii
import os
import time

from qinglong_edge.cli import output, render
from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.limits import LOG_RANGE_BYTES_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from qinglong_edge.app.client import Client

_FOLLOW_S = 0.5


def _check(options: argparse.Namespace) -> None:
    if options.tail is not None and (options.offset is not None or options.length is not None):
        raise Invalid("usage", "--tail goes alone: it says where to begin and how much.")
    if options.follow and options.json:
        raise Invalid("usage", "--follow has no end, so it cannot print one document.")


def document(client: Client, options: argparse.Namespace) -> dict[str, Any]:
    """One range as a document; `text` replaces the socket's base64."""
    _check(options)
    answer: dict[str, Any] = client.call(
        "log.read",
        {
            "run": options.run,
            "attempt": options.attempt,
            "offset": options.offset,
            "length": options.length,
            "tail": options.tail,
        },
    )
    data = binascii.a2b_base64(answer.pop("data", ""))
    answer["text"] = data.decode("utf-8", "backslashreplace")
    return answer


def stream(client: Client, options: argparse.Namespace) -> int:
    """Print a log range by range; with --follow until its run has ended and nothing is left."""
    _check(options)
    left: int | None = options.length
    place: dict[str, object] = {"offset": options.offset, "tail": options.tail}
    while True:
        length = LOG_RANGE_BYTES_MAX if left is None else min(left, LOG_RANGE_BYTES_MAX)
        asked = {"run": options.run, "attempt": options.attempt, **place, "length": length}
        answer = client.call("log.read", asked)
        data = binascii.a2b_base64(answer.get("data", ""))
        if options.raw or not os.isatty(1):
            output.write_bytes(data)
        else:
            output.write(render.output(data))
        if left is not None:
            left -= len(data)
        place = {"offset": answer.get("end", 0)}
        if left == 0 or (not data and (not options.follow or answer.get("ended"))):
            return 0
        if not data:
            time.sleep(_FOLLOW_S)
