"""A task as it leaves: as our own JSON, which reads back exactly, or as lines of a crontab.

Owns both forms. The JSON of a task is what `task.add` is asked; it holds names of secrets, never a
value. A crontab keeps less: what a line cannot say stands above it as a comment, and a task that no
line can stand for becomes a comment altogether. Fields are written out where crons differ about
them (``*/2`` of the days is odd for one and even for another). PATH and HOME are said where that
cron's own are others: as variables of the crontab that hold on, or within the line of a router.
"""

from __future__ import annotations

import re

from qinglong_edge.core import cron
from qinglong_edge.core.crontab import BUSYBOX, DEFAULT_PATHS, DEFAULT_SHELL, VIXIE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

KIND = "qinglong_edge.tasks"
VERSION = 1
_DEFINITION = (
    *("nice", "timeout_ms", "grace_ms", "overlap", "retry", "retry_on", "backoff_ms"),
    *("repeatable", "log", "labels", "cwd"),
)
_CRONS_OWN = frozenset({"LOGNAME", "USER"})  # it says who runs a line, whatever the task says
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
_KEPT = re.compile(r"[0-9,-]+|\*(?:/[0-9]+)?")
_WEEK = 0b111_1111
_EVERY_WEEK = sum(1 << 7 * week for week in range(5))
_LINE = re.compile(r"[\n\r\0]")


def portable(shown: Mapping[str, Any]) -> dict[str, Any]:
    """What `task.show` answered, as what `task.add` is asked for the same revision."""
    asked: dict[str, Any] = {"name": shown["task"]}
    asked.update({name: shown[name] for name in _DEFINITION if shown.get(name) is not None})
    asked["max_parallel"] = shown["parallel_max"]
    asked["argv"] = shown["argv"]
    asked["shell_text"] = shown["shell"]
    asked["triggers"] = [
        {
            "kind": each["kind"],
            "expression": each["expression"] or "",
            "zone": each["zone"] or "",
            "misfire": each["misfire"],
        }
        for each in shown["triggers"]
    ]
    asked["bindings"] = shown["environment"]
    return asked


def given(dialect: str, home: str) -> dict[str, str]:
    """What that cron gives every line by itself; `home` is the user's. A task's LANG is UTF-8."""
    path = DEFAULT_PATHS[dialect]
    return {"PATH": path, "HOME": home, "SHELL": DEFAULT_SHELL, "LANG": "C.UTF-8"}


def crontab(
    shown: Mapping[str, Any], dialect: str, zone: str, there: dict[str, str]
) -> Iterator[str]:
    """The lines of a task in a crontab of a machine that is set to `zone`.

    `there` are the variables that hold by now, `given` at first.
    """
    yield f"# {shown['task']}"
    for name, value in _variables(shown).items():
        if dialect == VIXIE and name in ("PATH", "HOME") and _plain(value, there.get(name)):
            there[name] = value
            yield f"{name}={value}"
    lost = [name for name in ("timeout_ms", "retry", "nice") if shown.get(name)]
    lost += [each["name"] for each in shown["environment"] if each["kind"] != "public"]
    if lost:
        yield f"# not kept: {', '.join(lost)}"
    command = _command(shown, dialect, there)
    if command is None:
        yield "# not kept: the command does not fit into a line"
        return
    if not shown["triggers"]:
        yield f"# started by hand: {command}"
    off = "" if shown["enabled"] else "# disabled: "
    for each in shown["triggers"]:
        when = _when(each, dialect)
        if when is None:
            yield f"# not kept: {each['kind']} {each['expression'] or ''}".rstrip()
        elif each["kind"] == "cron" and each["zone"] != zone and dialect == BUSYBOX:
            yield f"# not kept: {each['expression']} in the zone {each['zone']}"
        else:
            if each["kind"] == "cron" and each["zone"] != zone:
                yield f"CRON_TZ={each['zone']}"
            yield f"{off}{when} {command}"
            if each["kind"] == "cron" and each["zone"] != zone:
                yield f"CRON_TZ={zone}"


def _variables(shown: Mapping[str, Any]) -> dict[str, str]:
    return {
        each["name"]: each["value"]
        for each in shown["environment"]
        if each["kind"] == "public" and each["name"] not in _CRONS_OWN
    }


def _plain(value: str, there: str | None) -> bool:
    return value != there and _PLAIN.fullmatch(value) is not None


def _command(shown: Mapping[str, Any], dialect: str, there: Mapping[str, str]) -> str | None:
    """One shell line that does what the task does; None if no line can."""
    argv = shown["argv"]
    shell = shown["shell"] or (len(argv) == 3 and argv[0] == "/bin/sh" and argv[1] == "-c")
    text = argv[2] if shell else " ".join(map(_quoted, argv))
    said = " ".join(
        f"{name}={_quoted(value)}"
        for name, value in _variables(shown).items()
        if there.get(name) != value
    )
    if said:
        text = f"export {said}; {text}"
    if shown["cwd"] != there["HOME"]:
        text = f"cd {_quoted(shown['cwd'])} || exit 1; {text}"
    if _LINE.search(text) or (dialect == BUSYBOX and "#" in text):
        return None
    return text.replace("%", "\\%") if dialect == VIXIE else text


def _quoted(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else "'" + text.replace("'", "'\\''") + "'"


def _when(each: Mapping[str, Any], dialect: str) -> str | None:
    if each["kind"] == "boot":
        return "@reboot" if dialect == VIXIE else None
    if each["kind"] != "cron":
        return None
    parsed = cron.parse(each["expression"])
    weekdays = parsed.weekdays & _WEEK
    if parsed.seconds != 1 or parsed.days & 1 or parsed.weekdays != weekdays * _EVERY_WEEK:
        return None
    minute, hour, day, month, weekday = parsed.text.split()[-5:]
    if not parsed.any_day:
        day = _list(parsed.days, 1, 31)
    if not parsed.any_weekday:
        weekday = _list(weekdays, 0, 6)
    if not parsed.any_day and not parsed.any_weekday and weekdays == _WEEK:
        day = weekday = "*"  # either field suffices, and one always does
    minute = minute if _KEPT.fullmatch(minute) else _list(parsed.minutes, 0, 59)
    hour = hour if _KEPT.fullmatch(hour) else _list(parsed.hours, 0, 23)
    month = "*" if month == "*" else _list(parsed.months, 1, 12)
    return f"{minute} {hour} {day} {month} {weekday}"


def _list(mask: int, low: int, high: int) -> str:
    return ",".join(str(value) for value in range(low, high + 1) if mask >> value & 1)
