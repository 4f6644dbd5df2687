"""The `log` command: a run's output, by range, by tail, or followed to its end.

Owns the reading in bounded ranges: never more than one range is in memory. Every range is a call of
its own, so that following without a daemon keeps nobody from the state.
"""

from __future__ import annotations

import binascii
import os
import time

from qinglong_edge.cli import output, render
from qinglong_edge.core.errors import Invalid, Refused
from qinglong_edge.core.limits import LOG_RANGE_BYTES_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from typing import Any

_FOLLOW_S = 0.5


def _check(options: argparse.Namespace) -> None:
    if options.tail is not None and (options.offset is not None or options.length is not None):
        raise Invalid("usage", "--tail goes alone: it says where to begin and how much.")
    for name in ("tail", "offset", "length"):
        if (getattr(options, name) or 0) < 0:
            raise Invalid("usage", f"--{name} counts bytes: it is never negative.")
    if options.follow and options.json:
        raise Invalid("usage", "--follow has no end, so it cannot print one document.")


def _bounded(count: int | None) -> int | None:
    return None if count is None else min(count, LOG_RANGE_BYTES_MAX)


def document(call: Callable[..., Any], options: argparse.Namespace) -> dict[str, Any]:
    """One range as a document (at most 256 KiB); `text` replaces the socket's base64."""
    _check(options)
    answer: dict[str, Any] = call(
        "log.read",
        run=options.run,
        attempt=options.attempt,
        offset=options.offset,
        length=_bounded(options.length),
        tail=_bounded(options.tail),
    )
    data = binascii.a2b_base64(answer.pop("data", ""))
    if "retired_at_ms" not in answer:
        answer["text"] = data.decode("utf-8", "backslashreplace")
    return answer


def _kept(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer, unless the log is gone: then a `Refused` with its facts."""
    if "retired_at_ms" in answer:
        raise Refused("log_retired", "The log was deleted to keep the disk free.", **answer)
    return answer


def stream(call: Callable[..., Any], options: argparse.Namespace) -> int:
    """Print a log range by range; with --follow until its run has ended and nothing is left.

    A followed run that is tried again goes on with the next attempt's log.
    """
    _check(options)
    visible = not options.raw and os.isatty(1)
    left: int | None = options.length
    offset, attempt = options.offset or 0, options.attempt
    if options.tail is not None:
        end = _kept(call("log.read", run=options.run, attempt=attempt, tail=0))
        offset, attempt = max(0, end["total"] - options.tail), end["attempt"]
    kept = b""
    while True:
        answer = _kept(
            call("log.read", run=options.run, attempt=attempt, offset=offset, length=_bounded(left))
        )
        data = binascii.a2b_base64(answer["data"])
        offset, attempt = answer["end"], answer["attempt"]
        if visible:
            shown, kept = _split(kept + data)
            output.write(render.output(shown))
        else:
            output.write_bytes(data)
        if left is not None:
            left -= len(data)
        if data and left != 0:
            continue
        if options.follow and left != 0 and not answer["ended"]:
            time.sleep(_FOLLOW_S)
        elif options.follow and left != 0 and _goes_on(answer, options):
            offset, attempt = 0, attempt + 1
        else:
            output.write(render.output(kept))
            return 0


def _goes_on(answer: dict[str, Any], options: argparse.Namespace) -> bool:
    return options.attempt is None and answer["attempt"] < answer["attempts"]


def _split(data: bytes) -> tuple[bytes, bytes]:
    """Bytes up to a whole character, and the rest: a range may end within one."""
    if data.endswith(b"\r"):
        return data[:-1], data[-1:]
    for back in range(1, min(4, len(data) + 1)):
        lead = data[-back]
        if 0xC0 <= lead < 0xF8 and back < (2 if lead < 0xE0 else 3 if lead < 0xF0 else 4):
            return data[:-back], data[-back:]
        if not 0x80 <= lead < 0xC0:
            break
    return data, b""
