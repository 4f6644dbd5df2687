"""`export tasks` and `import tasks`: definitions out and in again.

Owns the file: one JSON document with a task a line, so that a difference of two exports can be
read. The output is the file itself, with `--json` or without.
"""

from __future__ import annotations

import json

from qinglong_edge.cli import output, render
from qinglong_edge.core import export
from qinglong_edge.core.canonical import decode
from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.limits import EXPORT_BYTES_MAX, IMPORT_PAGE_MAX, IMPORT_ROWS_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from qinglong_edge.app.client import Client
    from qinglong_edge.cli.context import Context

_PAGE_BYTES = 524_288


def write(context: Context) -> int:
    """Every task in the form that was asked for."""
    options = context.options
    if options.format == "qinglong" or options.with_values:
        raise Invalid("usage", "Those options are for envs.")
    with context.client() as client:
        if options.format == "crontab":
            lines = _crontab(client, options.dialect, str(context.zone()))
            if not options.json:
                for line in lines:
                    output.write(f"{line}\n")
                return 0
            output.write('{"crontab": [')
            for number, line in enumerate(lines):
                output.write((", " if number else "") + json.dumps(line, ensure_ascii=False))
            output.write("]}\n")
            return 0
        output.write(f'{{"kind": "{export.KIND}", "version": {export.VERSION}, "tasks": [')
        for number, (shown, enabled) in enumerate(_tasks(client)):
            line = json.dumps(
                {"task": export.portable(shown), "enabled": enabled}, ensure_ascii=False
            )
            output.write(f"{',' if number else ''}\n{line}")
        output.write("]}\n" if options.json else "\n]}\n")
    return 0


def _crontab(client: Client, dialect: str, zone: str) -> Iterator[str]:
    from qinglong_edge.app.definitions import default_environment

    if dialect == "vixie":
        yield f"CRON_TZ={zone}"
    there = export.given(dialect, default_environment()["HOME"])
    for shown, _enabled in _tasks(client):
        yield from export.crontab(shown, dialect, zone, there)


def _tasks(client: Client) -> Iterator[tuple[Mapping[str, Any], bool]]:
    after: str | None = None
    while True:
        page = client.call("task.list", {"after": after})
        for each in page["tasks"]:
            shown = client.call("task.show", {"name": each["task"]})
            yield shown, shown["enabled"]
        after = page["next"]
        if after is None:
            return


def read(context: Context) -> int:
    """Tasks of an export, all or none; those that are there just so stay as they are."""
    options = context.options
    tasks = _file(options.file)
    told: list[dict[str, Any]] = []
    with context.client() as client:
        token: str | None = None
        for page in _pages(tasks):
            answer = client.call(
                "import.stage",
                {"token": token, "tasks": page, "dry_run": options.dry_run or None},
            )
            token = answer["token"]
            told += map(_told, page, answer["outcomes"])
        if token is not None and not options.dry_run:
            client.call("import.commit", {"token": token})
    refused = [each for each in told if each["outcome"] == "refused"]
    answer = {"dry_run": options.dry_run, "tasks": told, "refused": len(refused)}
    rows = [
        (each["task"], each["outcome"], f"{each.get('code', '')} {each.get('message', '')}".strip())
        for each in told
    ]
    heads = ("TASK", "OUTCOME", "WHY")
    return context.show(answer, lambda: render.table(heads, rows) + context.planned())


def _told(task: Mapping[str, Any], outcome: object) -> dict[str, Any]:
    name = task["task"].get("name") if isinstance(task["task"], dict) else None
    if isinstance(outcome, dict):
        return {"task": name, "outcome": "refused", **outcome}
    return {"task": name, "outcome": outcome}


def _file(path: str) -> list[dict[str, Any]]:
    from qinglong_edge.cli.context import read_input

    data = read_input(path, EXPORT_BYTES_MAX)
    document = decode(data, bytes_max=EXPORT_BYTES_MAX)
    if not isinstance(document, dict) or document.get("kind") != export.KIND:
        raise Invalid("export_foreign", "The file is not an export of tasks.")
    if document.get("version") != export.VERSION:
        raise Invalid("export_too_new", "The export was written by a newer version.")
    tasks = document.get("tasks")
    if not isinstance(tasks, list) or len(tasks) > IMPORT_ROWS_MAX:
        raise Invalid("export_foreign", "The file has no list of tasks.")
    if any(not isinstance(each, dict) or set(each) != {"task", "enabled"} for each in tasks):
        raise Invalid("export_foreign", "The file's tasks have not their exact fields.")
    return tasks


def _pages(tasks: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    page: list[dict[str, Any]] = []
    size = 0
    for each in tasks:
        length = len(json.dumps(each))
        if page and (len(page) == IMPORT_PAGE_MAX or size + length > _PAGE_BYTES):
            yield page
            page, size = [], 0
        page.append(each)
        size += length
    if page:
        yield page
