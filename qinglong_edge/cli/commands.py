"""The commands: options to one method, its answer to output and exit status.

Owns the mapping. Nothing here changes state except through a method.
"""

from __future__ import annotations

import binascii
import os
import time

from qinglong_edge.app import preview, state
from qinglong_edge.cli import output, parser, render
from qinglong_edge.cli.context import Context, notes, read_input
from qinglong_edge.core.errors import Invalid, Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping
    from typing import Any

    from qinglong_edge.app.client import Client
    from qinglong_edge.core.dotenv import Parsed

_NOT_SUCCEEDED = 1


def run(
    arguments: list[str],
    *,
    settled: Callable[[str | None, str | None], tuple[str, str | None]],
    environment_tz: str | None,
) -> int:
    """Carry out a command line; the exit status. `settled` completes the directories it names."""
    options = parser.parse(arguments)
    if options.version:
        return _version(options)
    where = state.place(*settled(options.state, options.runtime))
    context = Context(options, where, environment_tz)
    verb = getattr(options, "verb", None)
    name = f"{options.command} {verb}" if verb else str(options.command)
    return _command(name)(context)


def _command(name: str) -> Callable[[Context], int]:
    if name not in _COMMANDS:
        from qinglong_edge.cli import envs, notices, secrets, switching, upkeep

        return {
            **envs.COMMANDS,
            **notices.COMMANDS,
            **secrets.COMMANDS,
            **switching.COMMANDS,
            **upkeep.COMMANDS,
        }[name]
    return _COMMANDS[name]


def _version(options: argparse.Namespace) -> int:
    from qinglong_edge.app import about

    told = about.versions()
    if options.json:
        output.write_json(told)
    else:
        output.write(
            f"qinglong-edge {told['version']} (Python {told['python']}, "
            f"SQLite {told['sqlite']}, build {told['digest'] or 'checkout'})\n"
        )
    return 0


def _init(context: Context) -> int:
    profile = context.options.profile
    from qinglong_edge.app import making, troubles

    created = making.initialise(context.where, profile, at_ms=time.time_ns() // 1_000_000)
    answer = {"state": context.where.state, "profile": profile, "created": created}
    word = "made" if created else "is there already"
    amiss = ["state_volatile"] if making.volatile(context.where) else []
    told = f"{context.where.state} {word} (profile {profile})\n"
    return context.show(answer, lambda: told + render.advice(troubles.told(amiss)))


def _definition(context: Context, file: Parsed) -> dict[str, object]:
    """The definition flags as parameters; --env goes over what the file says."""
    options = context.options
    params: dict[str, object] = {
        "cron": options.cron,
        "every": options.every,
        "boot": options.boot,
        "misfire": options.misfire,
        "overlap": options.overlap,
        "max_parallel": options.max_parallel,
        "timeout_ms": options.timeout,
        "grace_ms": options.grace,
        "retry": options.retry,
        "retry_on": options.retry_on,
        "backoff_ms": options.backoff,
        "repeatable": options.repeatable,
        "log": options.log,
        "environment": {**file.values, **dict(options.env or ())} or None,
        "secrets": dict(options.secret) if options.secret else None,
        "env_sets": options.env_set,
        "cwd": options.cwd,
        "nice": options.nice,
        "shell": options.shell,
        "argv": options.argv,
        "zone": options.zone,
        "labels": options.label,
    }
    return params


def _env_file(context: Context) -> Parsed:
    from qinglong_edge.core import dotenv

    path = context.options.env_file
    return dotenv.parse(b"" if path is None else read_input(path))


def _revised(context: Context, answer: Mapping[str, Any], file: Parsed) -> int:
    told = answer if context.options.env_file is None else {**answer, **file.report()}
    return context.show(told, lambda: _revision_text(answer) + notes(file.report()))


def _revision_text(answer: Mapping[str, Any]) -> str:
    head = f"{render.inline(answer['task'])} revision {answer['revision']}\n"
    return head + "".join(
        f"  {render.trigger(each)}  next {render.moment(each['next_at_ms'])}\n"
        for each in answer["triggers"]
    )


def _task_add(context: Context) -> int:
    options, file = context.options, _env_file(context)
    params = _definition(context, file)
    if options.cron and options.zone is None:
        params["zone"] = context.zone()
    answer = context.call("task.add", name=options.name, replace=options.replace or None, **params)
    return _revised(context, answer, file)


def _task_set(context: Context) -> int:
    options = context.options
    if options.all:
        if (options.zone is None and options.env_set is None) or options.name is not None:
            raise Invalid("usage", "`task set --all` takes --zone or --env-set, and no name.")
        answer = context.call("task.set", all=True, zone=options.zone, env_sets=options.env_set)
        return context.show(answer, lambda: "".join(map(_revision_text, answer["tasks"])))
    if options.name is None:
        raise Invalid("usage", "`task set` needs a task's name, or --all --zone Z.")
    file = _env_file(context)
    params = _definition(context, file)
    for flag, name in ((options.no_cron, "cron"), (options.no_every, "every")):
        if flag:
            params[name] = []
    answer = context.call(
        "task.set",
        name=options.name,
        no_timeout=options.no_timeout or None,
        unset_environment=options.unset_env,
        **params,
    )
    return _revised(context, answer, file)


def _task_rename(context: Context) -> int:
    options = context.options
    answer = context.call("task.rename", name=options.name, new_name=options.new_name)
    return context.show(answer, lambda: _revision_text(answer))


def _task_list(context: Context) -> int:
    tasks: list[dict[str, Any]] = []
    answer = context.call("task.list")
    while answer["next"] is not None:
        tasks += answer["tasks"]
        answer = context.call("task.list", after=answer["next"])
    tasks += answer["tasks"]
    return context.show(
        {"tasks": tasks}, lambda: render.table(render.TASK_HEADS, map(render.task_row, tasks))
    )


def _task_show(context: Context) -> int:
    answer = context.call("task.show", name=context.options.name)

    def text() -> str:
        shown = [
            ("task", f"{answer['task']} (revision {answer['revision']})"),
            ("enabled", "yes" if answer["enabled"] else "no"),
            ("command", " ".join(answer["argv"])),
            ("directory", answer["cwd"]),
            ("recipe", answer["context_ref"]),
            ("overlap", answer["overlap"]),
            ("time-out", render.duration(answer["timeout_ms"])),
        ]
        shown += [("when", render.trigger(each)) for each in answer["triggers"]]
        shown += [
            ("variable", f"{each['name']}={each.get('value', each.get('secret_ref'))}")
            for each in answer["environment"]
        ]
        return render.fields(shown)

    return context.show(answer, text)


def _task_verb(verb: str) -> Callable[[Context], int]:
    def command(context: Context) -> int:
        answer = context.call(f"task.{verb}", name=context.options.name)
        return context.show(answer, lambda: f"{render.inline(answer['task'])}: {verb}d\n")

    return command


def _start(context: Context) -> int:
    options = context.options
    environment = dict(options.env) if options.env else None
    with context.client() as client:
        if options.wait:
            client.launch_here()
        answer = client.call("run.start", {"name": options.name, "environment": environment})
        queued = answer["status"] == "queued"
        why = _why_queued(client) if queued else ""
        if options.wait and queued and not client.remote:
            told = f"The run cannot start now: {why}."
            raise Unavailable("run_queued", told, run=answer["number"])
        if options.wait:
            if why and not options.json:
                output.note(f"run {answer['number']} waits: {why}")
            ended = client.call("run.wait", {"run": str(answer["number"])})
            context.show(ended, lambda: render.run_fields(ended))
            return 0 if ended["status"] == "succeeded" else _NOT_SUCCEEDED
    word = "started" if answer["status"] == "running" else answer["status"]
    word += f" ({why})" if why else ""
    return context.show(answer, lambda: f"run {answer['number']} {word}\n")


_HOLDING = ("storage_unavailable", "no_space", "state_read_only", "database_failed", "no_memory")


def _why_queued(client: Client) -> str:
    """What a run waits for besides its turn."""
    degraded = client.call("status", {})["degraded"]
    if "log_capacity" in degraded:
        return "there is no room for its log; see doctor"
    if not client.remote:
        return "no daemon runs, and it waits for one; see status"
    amiss = [each for each in degraded if each in _HOLDING or each.startswith("launch_")]
    return f"{amiss[0]}; see status" if amiss else ""


def _stop(context: Context) -> int:
    options = context.options
    answer = context.call("run.stop", run=options.run, grace_ms=options.grace)
    return context.show(answer, lambda: render.run_fields(answer))


def _settle(context: Context) -> int:
    options = context.options
    params = {"run": options.run, "as": options.status, "reason": options.reason}
    answer = context.call("run.settle", **params)
    return context.show(answer, lambda: render.run_fields(answer))


def _runs(context: Context) -> int:
    options = context.options
    answer = context.call(
        "runs.list",
        task=options.task,
        status=options.status,
        limit=options.limit,
        after=options.after,
    )

    def text() -> str:
        more = "" if answer["next"] is None else f"older ones: --after {answer['next']}\n"
        return render.table(render.RUN_HEADS, map(render.run_row, answer["runs"])) + more

    return context.show(answer, text)


def _show(context: Context) -> int:
    answer = context.call("run.show", run=context.options.run)

    def text() -> str:
        rows = [
            (
                each["sequence"],
                render.moment(each["at_ms"]),
                each["actor"],
                each["type"],
                " ".join(f"{k}={v}" for k, v in each["payload"].items() if k not in _IMPLIED),
            )
            for each in answer["events"]
        ]
        events = render.table(("SEQ", "AT", "BY", "EVENT", "FACTS"), rows)
        return f"{render.run_fields(answer['run'])}\n{events}"

    return context.show(answer, text)


_IMPLIED = ("from_status", "to_status", "version", "status")


def _log(context: Context) -> int:
    from qinglong_edge.cli import logs

    if context.options.json:
        return context.show(logs.document(context.call, context.options), str)
    return logs.stream(context.call, context.options)


def _status(context: Context) -> int:
    from qinglong_edge.app import troubles

    answer = context.call("status")

    def text() -> str:
        upcoming, pid = answer["next"], answer["pid"]
        start = [] if pid is not None else [("to start", troubles.start_command(context.where))]
        return render.fields(
            [
                ("owner", "none: no daemon runs" if pid is None else f"daemon {pid}"),
                *start,
                ("profile", answer["profile"]),
                ("tasks", answer["tasks"]),
                ("running", ", ".join(str(each["number"]) for each in answer["active"]) or "none"),
                ("waiting", answer["waiting"]),
                ("admission", "paused" if answer["paused"] else "open"),
                (
                    "next",
                    "-"
                    if upcoming is None
                    else f"{render.moment(upcoming['at_ms'])} {upcoming['task']}",
                ),
                ("clock", answer["clock"]["reason"] or "trusted"),
                ("storage", f"{answer['storage']['mode']} on {answer['storage']['filesystem']}"),
                ("memory", "-" if pid is None else f"{answer['rss_bytes'] // 1024} KiB"),
                ("degraded", ", ".join(answer["degraded"]) or "no"),
            ]
        ) + render.advice(troubles.told(answer["degraded"]))

    return context.show(answer, text)


def _pause(method: str) -> Callable[[Context], int]:
    def command(context: Context) -> int:
        answer = context.call(method)
        word = "paused" if answer["paused"] else "open"
        return context.show(answer, lambda: f"admission {word}\n")

    return command


def _clock(context: Context) -> int:
    answer = context.call("clock.trust")
    return context.show(answer, lambda: "the clock is trusted\n")


def _cron(context: Context) -> int:
    """A preview needs no state: the parser answers right here."""
    options = context.options
    answer = preview.cron_next(
        options.expression,
        zone=str(context.zone()),
        after_ms=_moment_ms(options.after),
        count=options.count,
    )
    return context.show(answer, lambda: preview.local_lines(answer))


def _moment_ms(text: str | None) -> int | None:
    """Epoch ms, or an ISO time with an offset (`Z` is fine; without one it is local)."""
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    import datetime

    try:
        return int(datetime.datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise Invalid("time_invalid", "--after takes epoch milliseconds or an ISO time.") from None


def _import(context: Context) -> int:
    from qinglong_edge.cli import moving

    options = context.options
    moving.check(context)
    if options.source == "qinglong":
        return moving.qinglong(context)
    if options.source == "envs":
        from qinglong_edge.cli import envfiles

        return envfiles.read(context)
    if options.source == "tasks":
        from qinglong_edge.cli import exporting

        return exporting.read(context)
    from qinglong_edge.core import crontab

    dialect, column = crontab.usual(os.path.abspath(options.file))
    answer = context.call(
        "import.crontab",
        data=binascii.b2a_base64(read_input(options.file), newline=False).decode("ascii"),
        dialect=options.dialect or dialect,
        user_column=options.user_column or (column and options.dialect != crontab.BUSYBOX) or None,
        zone=context.zone(),
        dry_run=options.dry_run or None,
    )

    def text() -> str:
        lines = [
            f"line {each['line']}: {each['outcome']} {render.inline(each['task'])} "
            f"({render.inline(each['expression'] or 'at boot')})\n"
            for each in answer["imported"]
        ]
        told = "".join(lines) + notes(answer) or "there is no line to take over\n"
        return told + context.planned()

    return context.show(answer, text)


def _selftest(context: Context) -> int:
    from qinglong_edge.app import about

    results = about.selftest()
    failed = sum(each["ok"] is False for each in results)
    passed = sum(each["ok"] is True for each in results)
    answer = {"passed": passed, "failed": failed, "vectors": results}
    word = {"True": "ok  ", "False": "FAIL", "None": "none"}  # none: no cryptography here
    lines = [f"{word[str(each['ok'])]} {each['name']}\n" for each in results]
    context.show(answer, lambda: "".join(lines) + f"{passed} passed, {failed} failed\n")
    return 0 if not failed else _NOT_SUCCEEDED


_COMMANDS: Mapping[str, Callable[[Context], int]] = {
    "init": _init,
    "status": _status,
    "selftest": _selftest,
    "pause": _pause("scheduler.pause"),
    "resume": _pause("scheduler.resume"),
    "clock": _clock,
    "cron": _cron,
    "import": _import,
    "task add": _task_add,
    "task set": _task_set,
    "task rename": _task_rename,
    "task list": _task_list,
    "task show": _task_show,
    "task enable": _task_verb("enable"),
    "task disable": _task_verb("disable"),
    "task remove": _task_verb("remove"),
    "start": _start,
    "stop": _stop,
    "settle": _settle,
    "runs": _runs,
    "show": _show,
    "log": _log,
}
