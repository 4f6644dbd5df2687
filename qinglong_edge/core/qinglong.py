"""QingLong 2.x as we read it: a row of its Crontabs becomes a task of ours, or is refused.

Owns the mapping and its words. Nothing is guessed: what has no counterpart is refused with a code,
and what is kept in another form carries a note.

| there                         | here                                                          |
|-------------------------------|---------------------------------------------------------------|
| command                       | ``/bin/sh -c``; a bare script name gets ``task`` before it    |
| schedule, extra_schedules     | cron triggers (5 or 6 fields), in the zone that was asked for |
| ``@once``, ``@boot``          | no trigger, a boot trigger                                    |
| isDisabled                    | disabled                                                      |
| labels, isPinned              | labels; ``qinglong:ID`` tells a later import who it is        |
| allow_multiple_instances 0    | overlap ``replace``: QingLong kills the older run             |
| task_before, task_after       | variables that the runner `task` carries out                  |
| work_dir                      | variable of the runner, below the scripts directory           |
| log_name ``/dev/null``        | no log                                                        |

SQLite's columns are loose: a number may be a text, a flag null, a list invalid JSON. Old pids and
states are not looked at; everything starts idle.
"""

from __future__ import annotations

import json
import re

from qinglong_edge.core import cron
from qinglong_edge.core.errors import EdgeError
from qinglong_edge.core.limits import (
    LABEL_CHARACTERS_MAX,
    LABELS_MAX,
    NAME_CHARACTERS_MAX,
    TRIGGERS_PER_TASK_MAX,
)
from qinglong_edge.core.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

COLUMNS = (
    *("id", "name", "command", "schedule", "isSystem", "isDisabled", "isPinned", "labels"),
    *("sub_id", "extra_schedules", "task_before", "task_after", "log_name"),
    *("allow_multiple_instances", "work_dir"),
)
REQUIRED = ("id", "command", "schedule")
RUNNERS = ("/usr/lib/qinglong-edge/bin", "/usr/local/lib/qinglong-edge/bin")
SOURCE_LABEL = "qinglong:"
_PARALLEL = 4
_SUFFIX = 24  # room for ` #ID` after a name that is there twice
_SCRIPT = re.compile(r"\S+\.(?:js|mjs|cjs|py|pyc|ts|sh)(?:\s|$)")
CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029\s]+")


class Place(Record):
    """Where the moved tasks live: their scripts directory, zone and search path."""

    scripts: str
    zone: str
    path: str


class Judged(Record):
    """One row: what `task.add` is asked, or why it is refused; `notes` tell what was adapted."""

    row: int
    name: str
    asked: dict[str, Any] | None
    enabled: bool = True
    notes: tuple[str, ...] = ()
    code: str | None = None
    message: str | None = None


class Refusal(Exception):
    """Why a row cannot be kept."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


def clean_name(row: Mapping[str, object]) -> str:
    """A name that a task may have, the same for the same row; other rows may have it too."""
    text = CONTROL.sub(" ", _loose(row["name"])).strip().lstrip("-").strip()
    text = text[: NAME_CHARACTERS_MAX - _SUFFIX].strip()
    if not text or (text.isascii() and text.isdigit()):
        text = f"task {text or row['id']}"
    return text


def judge(row: Mapping[str, object], name: str, place: Place) -> Judged:
    """A row under its final name."""
    number = row["id"] if type(row["id"]) is int else 0
    try:
        if number < 1:
            raise Refusal("id_invalid", "The row's id is not a whole number above 0.")
        notes: list[str] = []
        asked = _asked(row, place, notes)
        asked["name"] = name
        asked["labels"] = labels_of(row, number, notes)
        enabled = not flag(row, "isDisabled")
        flag(row, "isPinned")
    except Refusal as refused:
        return Judged(row=number, name=name, asked=None, code=refused.code, message=refused.message)
    return Judged(row=number, name=name, asked=asked, enabled=enabled, notes=tuple(notes))


def _asked(row: Mapping[str, object], place: Place, notes: list[str]) -> dict[str, Any]:
    command = text_of(row, "command").strip()
    if not command:
        raise Refusal("command_empty", "The row has no command.")
    if flag(row, "isSystem"):
        raise Refusal("system_task", "A task of the panel itself is not kept.")
    if command.partition(" ")[0] == "ql":
        raise Refusal("ql_not_kept", "`ql` is not kept: subscriptions and updates end here.")
    environment = {
        "PATH": ":".join((*RUNNERS, place.path)),
        "QL_SCRIPTS": place.scripts,
        **_hooks(row),
    }
    if place.scripts.endswith("/data/scripts"):
        environment["QL_DIR"] = place.scripts.removesuffix("/data/scripts") or "/"
    if _SCRIPT.match(command) or ("task_before" in environment or "task_after" in environment):
        command = command if command.partition(" ")[0] == "task" else f"task {command}"
    log_name = text_of(row, "log_name").strip()
    if log_name and log_name != "/dev/null":
        notes.append("log_name_not_kept")
    if row["sub_id"] is not None:
        notes.append("subscription_not_kept")
    crons, boot = _schedules(row, notes)
    replaces = row["allow_multiple_instances"] is not None and not flag(
        row, "allow_multiple_instances"
    )
    return {
        "shell": command,
        "environment": environment,
        "cwd": place.scripts,
        "cron": crons,
        "boot": boot,
        "zone": place.zone,
        "overlap": "replace" if replaces else "parallel",
        "max_parallel": 1 if replaces else _PARALLEL,
        "log": log_name != "/dev/null",
    }


def _hooks(row: Mapping[str, object]) -> dict[str, str]:
    names = ("task_before", "task_after", "work_dir")
    return {name: text_of(row, name) for name in names if text_of(row, name).strip()}


def _schedules(row: Mapping[str, object], notes: list[str]) -> tuple[list[str], bool]:
    """(cron expressions, at boot) of the row's schedule and its further ones."""
    texts = [text_of(row, "schedule")]
    extra = _json(row, "extra_schedules", "extra_schedules_invalid")
    for each in extra or []:
        if not isinstance(each, dict) or not isinstance(each.get("schedule"), str):
            raise Refusal("extra_schedules_invalid", "The further schedules cannot be read.")
        texts.append(each["schedule"])
    crons: list[str] = []
    boot = False
    for text in texts:
        word = text.strip()
        if word.startswith("@once"):
            notes.append("once_is_manual")
        elif word.startswith("@boot"):
            boot = True
        elif word or len(texts) == 1:
            try:
                crons.append(cron.parse(word).text)
            except EdgeError as error:
                raise Refusal("schedule_invalid", error.message) from None
    crons = list(dict.fromkeys(crons))
    if len(crons) + boot > TRIGGERS_PER_TASK_MAX:
        raise Refusal("schedules_too_many", "A task has at most 16 schedules.")
    return crons, boot


def labels_of(row: Mapping[str, object], number: int, notes: list[str]) -> list[str]:
    """Labels, the first of which tells a later import who the row is."""
    found = _json(row, "labels", None)
    texts = [each for each in found or [] if isinstance(each, str)]
    if found is None and row["labels"] not in (None, "", b""):
        notes.append("labels_invalid")
    wanted = [CONTROL.sub(" ", each).strip()[:LABEL_CHARACTERS_MAX] for each in texts]
    if flag(row, "isPinned"):
        wanted.insert(0, "pinned")
    kept = [f"{SOURCE_LABEL}{number}", *dict.fromkeys(each for each in wanted if each)]
    if len(kept) > LABELS_MAX:
        notes.append("labels_cut")
    return kept[:LABELS_MAX]


def flag(row: Mapping[str, object], name: str) -> bool:
    """A loose 0 or 1, null for 0; `Refusal` otherwise."""
    value = row[name]
    if isinstance(value, (str, bytes)):
        value = {"": 0, "0": 0, "1": 1, "false": 0, "true": 1}.get(_loose(value).strip().lower())
    if value is None and row[name] is None:
        return False
    if value not in (0, 1):
        raise Refusal("flag_invalid", f"The row's {name} is neither 0 nor 1.")
    return bool(value)


def _loose(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return "" if value is None else str(value)


def text_of(row: Mapping[str, object], name: str) -> str:
    """A loose text, null for none; `Refusal` where it is not UTF-8 or holds NUL."""
    value = row[name]
    try:
        text = value.decode("utf-8") if isinstance(value, bytes) else _loose(value)
        text.encode("utf-8")
    except UnicodeError:
        raise Refusal("not_utf8", f"The row's {name} is not UTF-8.") from None
    if "\0" in text:
        raise Refusal("has_nul", f"The row's {name} holds a NUL character.")
    return text


def _json(row: Mapping[str, object], name: str, code: str | None) -> list[Any] | None:
    """A list; None for nothing, and for what is no list where that has no code."""
    text = _loose(row[name]).strip()
    if not text or text == "null":
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, list):
        return found
    if code is None:
        return None
    raise Refusal(code, f"The row's {name} cannot be read.")
