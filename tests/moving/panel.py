"""A QingLong 2.x database, made from what is publicly known of its tables, oddities included."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.e2e.kit import Kit

CRONTABS = """
CREATE TABLE `Crontabs` (`id` INTEGER PRIMARY KEY AUTOINCREMENT, `name` VARCHAR(255),
`command` VARCHAR(255), `schedule` VARCHAR(255), `timestamp` VARCHAR(255), `saved` TINYINT(1),
`status` NUMBER, `isSystem` NUMBER, `pid` NUMBER, `isDisabled` NUMBER, `isPinned` NUMBER,
`log_path` VARCHAR(255), `labels` JSON, `last_running_time` NUMBER, `last_execution_time` NUMBER,
`sub_id` NUMBER, `extra_schedules` JSON, `task_before` VARCHAR(255), `task_after` VARCHAR(255),
`log_name` VARCHAR(255), `allow_multiple_instances` NUMBER, `work_dir` VARCHAR(255),
`createdAt` DATETIME NOT NULL, `updatedAt` DATETIME NOT NULL,
UNIQUE (`name`, `command`, `schedule`))
"""
ENVS = """
CREATE TABLE `Envs` (`id` INTEGER PRIMARY KEY AUTOINCREMENT, `value` VARCHAR(255),
`timestamp` VARCHAR(255), `status` NUMBER, `position` NUMBER, `name` VARCHAR(255),
`remarks` VARCHAR(255), `isPinned` NUMBER, `labels` JSON, `createdAt` DATETIME NOT NULL,
`updatedAt` DATETIME NOT NULL, UNIQUE (`name`, `value`))
"""
OTHERS = """
CREATE TABLE `Auths` (`id` INTEGER PRIMARY KEY, `type` VARCHAR(255), `info` JSON);
CREATE TABLE `Subscriptions` (`id` INTEGER PRIMARY KEY, `name` VARCHAR(255), `url` VARCHAR(255));
CREATE TABLE `Dependences` (`id` INTEGER PRIMARY KEY, `name` VARCHAR(255), `type` NUMBER);
INSERT INTO `Subscriptions` VALUES (1, 'faker', 'https://user:password@example.org/faker.git');
INSERT INTO `Dependences` VALUES (3, 'axios', 0);
"""
_AT = "2025-06-01 08:00:00.000 +00:00"
_ROW: dict[str, Any] = {
    "timestamp": "Sun Jun 01 2025 16:00:00 GMT+0800 (中国标准时间)",
    "saved": 1,
    "status": 1,
    "isSystem": 0,
    "isDisabled": 0,
    "isPinned": 0,
    "log_path": "x_1/2025-06-01-08-00-00-000.log",
    "labels": "[]",
    "last_running_time": 12.0,
    "allow_multiple_instances": 0,
    "createdAt": _AT,
    "updatedAt": _AT,
}


def task(
    name: object, command: object, schedule: object = "30 8 * * *", **more: Any
) -> dict[str, Any]:
    """A row of Crontabs."""
    return {**_ROW, "name": name, "command": command, "schedule": schedule, **more}


def env(name: object, value: object, position: float = 4_500_000_000_000_000, **more: Any) -> Any:
    """A row of Envs."""
    row = {
        "name": name,
        "value": value,
        "position": position,
        "status": 0,
        "remarks": None,
        "timestamp": _ROW["timestamp"],
        "createdAt": _AT,
        "updatedAt": _AT,
    }
    return {**row, **more}


def make(
    path: Path, tasks: Iterable[dict[str, Any]], envs: Iterable[dict[str, Any]] = (), sql: str = ""
) -> Path:
    """A database with these rows; `sql` runs last."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.executescript(f"{CRONTABS};{ENVS};{OTHERS}")
        for table, rows in (("Crontabs", tasks), ("Envs", envs)):
            for row in rows:
                names = ", ".join(f"`{name}`" for name in row)
                marks = ", ".join("?" for _ in row)
                database.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", [*row.values()])
        database.executescript(sql)
    return path


def many(count: int) -> Iterable[dict[str, Any]]:
    """Rows as a busy panel has them."""
    for number in range(count):
        yield task(
            f"签到 {number % (count - count // 10)}",
            f"task repo_{number % 7}/script_{number}.js",
            ("0 8 * * *", "5 0 9 * * *", "*/15 7-23 * * *")[number % 3],
            labels=json.dumps([f"repo {number % 7}"]),
            isDisabled=int(number % 9 == 0),
            sub_id=1 if number % 4 == 0 else None,
            allow_multiple_instances=(0, 1, None)[number % 3],
        )


def many_envs(count: int) -> Iterable[dict[str, Any]]:
    """Rows as a busy panel has them: cookies, tokens, switches."""
    for number in range(count):
        yield env(
            "JD_COOKIE" if number % 4 == 0 else f"SWITCH_{number}",
            f"pt_key=k{number};pt_pin=用户{number};" if number % 4 == 0 else str(number % 2),
            4_500_000_000_000_000 - 10_000_000_000 * number,
            status=int(number % 9 == 0),
            remarks=f"account {number}",
        )


def moved(kit: Kit, database: Path, *more: str) -> Any:
    """The report of an import."""
    return kit.ok("import", "qinglong", str(database), "--zone", "CST-8", *more)
