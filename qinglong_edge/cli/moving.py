"""`import qinglong`: a panel's tasks become ours; a table first, if only that is wanted.

Owns the question for the zone, the progress on a terminal and both forms of the report. The report
is written row by row.
"""

from __future__ import annotations

import json
import os
import sys

from qinglong_edge.cli import output, render
from qinglong_edge.cli.secrets import MADE
from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.qinglong import RUNNERS, Place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from qinglong_edge.app.client import Client
    from qinglong_edge.app.qinglong import Import
    from qinglong_edge.cli.context import Context

_TEMPORARY = "/tmp"  # noqa: S108 - the copy's name is made anew there and dropped at once
_BLOCK = 100  # rows of a table that are aligned with one another
_ENV_HEADS = ("ROW", "ENV", "KIND", "ON", "OUTCOME", "NOTES")
_HEADS = ("ROW", "TASK", "WHEN", "ON", "OUTCOME", "NOTES")


def qinglong(context: Context) -> int:
    """Import a database of QingLong 2.x."""
    from qinglong_edge.app import qinglong as importing
    from qinglong_edge.app.definitions import DEFAULT_PATH

    options = context.options
    scripts = os.path.abspath(options.scripts or importing.scripts_of(options.file))
    place = Place(scripts=scripts, zone=_zone(context), path=DEFAULT_PATH)
    temporary = options.temporary or _TEMPORARY
    with (
        context.client() as client,
        importing.Import(client, options.file, temporary) as imported,
    ):
        made = False
        if not options.no_envs:
            made = _envs(context, client, imported)
        imported.tasks(place, dry_run=options.dry_run, progress=_progress())
        head = {
            "dry_run": options.dry_run,
            "zone": place.zone,
            "scripts": scripts,
            "counts": imported.counts,
            "env_counts": imported.env_counts,
            "env_sets": [] if imported.envs is None else imported.envs.bound,
            "keyring_created": made,
            "warnings": _warnings(imported, scripts, dry_run=options.dry_run),
        }
        (_document if options.json else _text)(head, imported)
    return 0


def _envs(context: Context, client: Client, imported: Import) -> bool:
    """The envs of the panel, sealed here; True if that made a keyring."""
    from qinglong_edge.app import qinglong_envs, sealing

    options = context.options
    sealing.guard()
    sealer = sealing.Sealer(context.where, client=client)
    public = frozenset(options.public or ())
    envs = qinglong_envs.Envs(imported.source, sealer, public)
    imported.take_envs(envs, dry_run=options.dry_run)
    return sealer.keyring_made


def _zone(context: Context) -> str:
    """The zone that the panel's schedules mean: as given, as asked, else this machine's."""
    zone = str(context.zone())
    if context.options.zone is None and os.isatty(0) and os.isatty(2):
        os.write(2, f"Time zone of the panel's schedules [{zone}]: ".encode())
        answer = sys.stdin.readline().strip()
        return answer or zone
    return zone


def _progress() -> Callable[[int, int], None]:
    """Counts up on a terminal, says nothing elsewhere."""

    def show(done: int, total: int) -> None:
        end = "\n" if done == total else ""
        os.write(2, f"\r{done} of {total} rows{end}".encode())

    return show if os.isatty(2) else lambda _done, _total: None


def _warnings(imported: Import, scripts: str, *, dry_run: bool) -> list[dict[str, object]]:
    from qinglong_edge.app import sealing

    found: list[dict[str, object]] = []
    kept = imported.counts["inserted"] + imported.counts["idempotent"]
    if kept:
        message = "The panel still runs these tasks; stop it or disable them there."
        found.append({"code": "still_in_panel", "message": message})
    if kept and not os.path.isdir(scripts):
        message = "There is no scripts directory; copy the panel's data/scripts there."
        found.append({"code": "scripts_missing", "message": message})
    if kept and not any(os.access(f"{folder}/task", os.X_OK) for folder in RUNNERS):
        message = (
            "The runner `task` is missing here: `openwrt install`; elsewhere `program install`."
        )
        found.append({"code": "runner_missing", "message": message})
    envs = imported.envs
    if envs is not None and envs.unbound:
        message = "One task cannot have all envs; bind what it needs: task set NAME --env-set ENV"
        found.append({"code": "envs_not_bound", "message": message, "envs": envs.unbound})
    if envs is not None and imported.counts["idempotent"] and imported.env_counts["inserted"]:
        message = "Tasks of an earlier import lack new envs: task set --all --env-set ENV"
        found.append({"code": "tasks_not_bound", "message": message})
    if dry_run and envs is not None and envs.needs_key and not sealing.possible():
        message = (
            "Sealing needs python3-cryptography; or keep values in clear: --public NAME or '*'"
        )
        found.append({"code": "secret_provider_unavailable", "message": message})
    return found


def _document(head: dict[str, Any], imported: Import) -> None:
    """One JSON document, however long."""
    output.write(json.dumps(head, ensure_ascii=False)[:-1])
    for name, rows in (
        ("tasks", imported.told("task")),
        ("envs", imported.told("env")),
        ("not_kept", imported.not_kept()),
    ):
        output.write(f', "{name}": [')
        for number, row in enumerate(rows):
            output.write((", " if number else "") + json.dumps(row, ensure_ascii=False))
        output.write("]")
    output.write("}\n")


def _text(head: dict[str, Any], imported: Import) -> None:
    for block in _blocks(imported.told("task")):
        output.write(render.table(_HEADS, map(_row, block)))
    for block in _blocks(imported.told("env")):
        output.write(render.table(_ENV_HEADS, map(_env_row, block)))
    for each in imported.not_kept():
        output.write(f"not kept: {each['kind']} {render.inline(each['name'])}\n")
    for each in head["warnings"]:
        output.write(f"warning {each['code']}: {each['message']}\n")
    word = "would be " if head["dry_run"] else ""
    for kind, counts in (("tasks", head["counts"]), ("envs", head["env_counts"])):
        output.write(
            f"{counts['rows']} {kind}: {counts['inserted']} {word}inserted, "
            f"{counts['idempotent']} there already, {counts['refused']} refused, "
            f"{counts['adapted']} adapted\n"
        )
    output.write(f"zone {head['zone']}\n" + (MADE if head["keyring_created"] else ""))
    if not (head["dry_run"] or head["counts"]["inserted"] or head["env_counts"]["inserted"]):
        output.write("nothing was changed\n")


def _env_row(each: dict[str, Any]) -> tuple[object, ...]:
    if each["outcome"] == "refused":
        return each["row"], each["env"], "-", "-", "refused", f"{each['code']}: {each['message']}"
    on, noted = "yes" if each["enabled"] else "no", ", ".join(each["notes"]) or "-"
    return each["row"], each["env"], each["kind"], on, each["outcome"], noted


def _row(each: dict[str, Any]) -> tuple[object, ...]:
    if each["outcome"] == "refused":
        told = f"{each['code']}: {each['message']}"
        return each["row"], each["task"], "-", "-", "refused", told
    when = ", ".join(each["when"]) or "manual"
    on = "yes" if each["enabled"] else "no"
    return each["row"], each["task"], when, on, each["outcome"], ", ".join(each["notes"]) or "-"


def _blocks(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    block = []
    for row in rows:
        block.append(row)
        if len(block) == _BLOCK:
            yield block
            block = []
    if block:
        yield block


def check(context: Context) -> None:
    """Options that only another source has."""
    options = context.options
    if options.source != "qinglong" and (options.scripts or options.temporary or options.no_envs):
        raise Invalid("usage", "--scripts, --temporary, --no-envs are for `import qinglong`.")
    if (options.public and options.source not in ("qinglong", "envs")) or (
        options.replace and options.source != "envs"
    ):
        raise Invalid("usage", "--public and --replace are for envs.")
