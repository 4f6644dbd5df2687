"""The answers of the router's web page: one object in on standard input, one out.

Owns the shapes that the page reads. rpcd kills a plugin after 30 s, a browser keeps 53 bits of a
number and a message has 256 KiB, so: only a living daemon answers, within seconds; every whole
number is a text; lists come in pages. An error is an object as well, and the exit status is 0.
"""

from __future__ import annotations

import binascii
import time

from qinglong_edge.app.client import Client
from qinglong_edge.cli import output, render
from qinglong_edge.core.canonical import decode
from qinglong_edge.core.errors import EdgeError, Invalid, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from qinglong_edge.app.state import Place

    Document = dict[str, Any]
    Given = Mapping[str, str]

_PATIENCE_S = 8.0
_BYTES_MAX = 65_536
_PAGE = 100
_RUNS = 25
_LOG_BYTES_MAX = 131_072  # control characters may take three bytes each


def answer(method: str, where: Place) -> int:
    """Answer one call; always 0, for rpcd looks at the object only."""
    try:
        given = _given()
        if method not in _METHODS:
            raise Refused("method_unknown", "There is no such method.")
        with Client(where, patience_s=_PATIENCE_S) as client:
            told = _METHODS[method](client, given)
    except EdgeError as error:
        told = {"error": error.document()}
    output.write_json(_texts(told))
    return 0


def _given() -> dict[str, str]:
    """The arguments that are texts; the session's id that ubus adds is one nobody takes."""
    with open(0, "rb", closefd=False) as file:
        data = file.read(_BYTES_MAX + 1)
    document = decode(data, bytes_max=_BYTES_MAX) if data.strip() else {}
    if not isinstance(document, dict):
        raise Invalid("param_invalid", "The arguments are not an object.")
    return {name: value for name, value in document.items() if isinstance(value, str) and value}


def _texts(value: object) -> object:
    """The same value with whole numbers as texts."""
    if isinstance(value, dict):
        return {name: _texts(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_texts(each) for each in value]
    return str(value) if type(value) is int else value


def _number(given: Given, name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise Invalid("param_invalid", "A parameter is not a whole number.", param=name)
    return int(text)


def _overview(client: Client, given: Given) -> Document:
    """What the page shows: state of the scheduler, a page of tasks, a page of runs."""
    runs = client.call(
        "runs.list",
        {
            "task": given.get("task"),
            "status": given.get("status"),
            "after": _number(given, "after"),
            "limit": _RUNS,
        },
    )
    status = client.call("status", {})
    return {
        "now_ms": time.time_ns() // 1_000_000,
        "status": {
            "tasks": status["tasks"],
            "paused": status["paused"],
            "next": status["next"],
            "clock": status["clock"]["reason"],
            "rss_bytes": status["rss_bytes"],
            "free_bytes": status["storage"]["free_bytes"],
            "degraded": status["degraded"],
        },
        **_tasks(client, {}),
        "runs": [_run(each) for each in runs["runs"]],
        "runs_next": runs["next"],
    }


def _tasks(client: Client, given: Given) -> Document:
    page = client.call("task.list", {"after": given.get("after"), "limit": _PAGE})
    return {"tasks": [_task(each) for each in page["tasks"]], "tasks_next": page["next"]}


def _task(each: Document) -> Document:
    upcoming = [one["next_at_ms"] for one in each["triggers"] if one["next_at_ms"] is not None]
    last = each["last_run"]
    return {
        "task": each["task"],
        "enabled": each["enabled"],
        "triggers": [
            {
                "kind": one["kind"],
                "text": one["expression"],
                "zone": one["zone"],
                "parked": one["parked"],
            }
            for one in each["triggers"]
        ],
        "next_ms": min(upcoming) if upcoming and each["enabled"] else None,
        "last": last and {"run": last["number"], "status": last["status"]},
    }


def _run(each: Document) -> Document:
    return {
        "run": each["number"],
        "task": each["task"],
        "status": each["status"],
        "created_ms": each["created_at_ms"],
        "started_ms": each["started_at_ms"],
        "duration_ms": each["duration_ms"],
        "exit": each["exit_code"],
        "error": each["error_code"],
        "log_bytes": each["log_bytes"],
    }


def _log(client: Client, given: Given) -> Document:
    """The end of a log, control characters made visible."""
    run = given.get("run", "")
    shown = client.call("run.show", {"run": run})["run"]
    asked = _number(given, "bytes") or _LOG_BYTES_MAX
    try:
        found = client.call(
            "log.read",
            {
                "run": run,
                "attempt": _number(given, "attempt"),
                "tail": min(asked, _LOG_BYTES_MAX),
            },
        )
    except Refused as error:
        if error.code not in ("log_none", "attempt_unknown"):
            raise
        waits = error.code == "attempt_unknown"
        return {"status": shown["status"], "none": not waits, "text": "", "ended": not waits}
    data = binascii.a2b_base64(found.get("data", ""))
    return {
        "status": shown["status"],
        "text": render.output(data),
        "total": found.get("total"),
        "truncated": found["truncated"],
        "ended": found.get("ended", True),
        "retired_ms": found.get("retired_at_ms"),
    }


def _stop(client: Client, given: Given) -> Document:
    """A stop may outlast everybody's patience: it goes on, and the page sees its end."""
    try:
        return _run(client.call("run.stop", {"run": given.get("run", "")}))
    except EdgeError as error:
        if error.code != "daemon_silent":
            raise
        return {"stopping": True}


def _start(client: Client, given: Given) -> Document:
    told: Document = client.call("run.start", {"name": given.get("task", "")})
    return {"run": told["number"], "status": told["status"]}


def _set(method: str) -> Callable[[Client, Given], Document]:
    def change(client: Client, given: Given) -> Document:
        return _task(client.call(method, {"name": given.get("task", "")}))

    return change


def _pause(method: str) -> Callable[[Client, Given], Document]:
    def change(client: Client, _given: Given) -> Document:
        told: Document = client.call(method, {})
        return told

    return change


_METHODS: Mapping[str, Callable[[Client, Given], Document]] = {
    "overview": _overview,
    "tasks": _tasks,
    "log": _log,
    "start": _start,
    "stop": _stop,
    "enable": _set("task.enable"),
    "disable": _set("task.disable"),
    "pause": _pause("scheduler.pause"),
    "resume": _pause("scheduler.resume"),
}
