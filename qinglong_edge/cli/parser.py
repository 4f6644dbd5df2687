"""The grammar of the command line.

Owns every option's name, help and reading into a value. Wrong usage ends with exit status 2 and
changes nothing.
"""

from __future__ import annotations

import argparse
import sys

from qinglong_edge.cli.render import inline
from qinglong_edge.core.errors import EdgeError, Invalid
from qinglong_edge.core.limits import BACKOFF_MS_MAX, GRACE_MS_MAX, TIMEOUT_MS_MAX
from qinglong_edge.core.trigger import parse_duration_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn


_Either = argparse.BooleanOptionalAction  # --x and --no-x, so that `task set` can take it back
_TASK = "a task's name"
_ENV = "the variable's name"
_CHANNEL = "a channel's name"
_ITEM = "an item's number, as `env list` tells it"
_RUN = "a run's number or id, or a task's name for its newest run"
_ZONE = "such as Asia/Shanghai or CST-8; default: this box's own"
_STATUS = """exit status: 0 done, 1 done, but the awaited run or a check failed, 2 wrong usage or
input, 3 not found or refused, 4 unavailable or busy, 5 stored state damaged or too new, 70 a bug,
130 interrupted"""


class _Parser(argparse.ArgumentParser):
    """Raises our own error, so that `--json` gets a document too."""

    def error(self, message: str) -> NoReturn:
        raise Invalid(
            "usage", inline(f"{message[:1].upper()}{message[1:].rstrip('.')}; see --help")
        )


def _duration(maximum_ms: int, minimum_ms: int = 0) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            return parse_duration_ms(text, minimum=minimum_ms, maximum=maximum_ms)
        except EdgeError as error:
            raise argparse.ArgumentTypeError(error.message) from None

    return read


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError("a variable is written NAME=VALUE")
    return name, value


def _retry_on(text: str) -> list[str]:
    return [each for each in text.split(",") if each]


def build() -> argparse.ArgumentParser:
    """The whole grammar."""
    parser = _Parser(
        prog="qinglong-edge",
        description="Durable scheduled tasks for routers and small boxes.",
        epilog=_STATUS,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--state",
        metavar="DIR",
        help="state directory (default $QINGLONG_EDGE_STATE, else /srv/qinglong-edge)",
    )
    parser.add_argument("--runtime", metavar="DIR", help="runtime directory (default STATE/run)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--version", action="store_true", help="print versions and the digest")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    _add_system(commands)
    _add_task(commands)
    _add_runs(commands)
    _add_secrets(commands)
    _add_envs(commands)
    _add_notices(commands)
    _add_upkeep(commands)
    _add_kits(commands)
    return parser


def _command(commands: argparse._SubParsersAction[_Parser], name: str, text: str) -> _Parser:
    parser: _Parser = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
    return parser


def _add_system(commands: argparse._SubParsersAction[_Parser]) -> None:
    init = _command(commands, "init", "make the state directory")
    init.add_argument("--profile", default="edge", help="edge (default) or standalone")
    run = _command(commands, "run", "be the daemon, in the foreground")
    run.add_argument(
        "--on-stop",
        choices=("leave", "cancel"),
        default="leave",
        help="running tasks when it is told to stop; the next one adopts left ones (default)",
    )
    _command(commands, "status", "owner, counts, clock, storage, what is not well")
    _command(commands, "selftest", "known-answer vectors of this very program")
    _command(commands, "pause", "start nothing by schedule until `resume`, over restarts too")
    _command(commands, "resume", "start tasks by schedule again")
    clock = _command(commands, "clock", "the wall clock")
    clock.add_argument("action", choices=("trust",), help="trust: the clock is right as it is")
    cron = _command(commands, "cron", "the cron dialect")
    cron.add_argument("action", choices=("next",), help="next: when an expression is due")
    cron.add_argument("expression", metavar="EXPR", help="five fields, six, or such as @daily")
    cron.add_argument("--zone", metavar="Z", help=_ZONE)
    cron.add_argument("--after", metavar="ISO-or-ms", help="from this moment on; default: now")
    cron.add_argument("--count", metavar="N", type=int, default=5, help="how many; default: 5")
    imports = _command(commands, "import", "tasks from elsewhere")
    imports.add_argument(
        "source",
        choices=("crontab", "qinglong", "tasks", "envs"),
        help="a crontab, a QingLong 2.x database, or what `export` wrote",
    )
    imports.add_argument("file", metavar="FILE", help="- reads standard input (not qinglong)")
    imports.add_argument("--scripts", metavar="DIR", help="QingLong's scripts, beside its database")
    imports.add_argument("--temporary", metavar="DIR", help="room for a copy of a large database")
    imports.add_argument("--public", metavar="ENV", action="append", help="not sealed; * for all")
    imports.add_argument("--no-envs", action="store_true", help="tasks only")
    _add_dialect(imports, None)
    imports.add_argument(
        "--user-column", action="store_true", help="the sixth field is a user, as in /etc/crontab"
    )
    imports.add_argument("--zone", metavar="Z", help=f"of the schedules: {_ZONE}")
    imports.add_argument("--replace", action="store_true", help="envs that are there otherwise")
    imports.add_argument(
        "--dry-run", action="store_true", help="tell what would be, change nothing"
    )


def _add_task(commands: argparse._SubParsersAction[_Parser]) -> None:
    task = _command(commands, "task", "define tasks")
    verbs = task.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=_Parser)
    add = _command(verbs, "add", "a new task")
    add.add_argument("name", metavar="NAME", help=_TASK)
    add.add_argument("--replace", action="store_true", help="a new revision if it exists")
    _add_definition(add)
    change = _command(verbs, "set", "change only what is named")
    change.add_argument("name", metavar="NAME", nargs="?", help=_TASK)
    change.add_argument("--all", action="store_true", help="every task (with --zone or --env-set)")
    change.add_argument("--no-cron", action="store_true", help="drop its cron triggers")
    change.add_argument("--no-every", action="store_true", help="drop its intervals")
    change.add_argument("--no-timeout", action="store_true", help="let it take as long as it takes")
    change.add_argument("--unset-env", metavar="K", action="append", help="drop a variable")
    _add_definition(change)
    rename = _command(verbs, "rename", "another name, the same history")
    rename.add_argument("name", metavar="OLD", help=_TASK)
    rename.add_argument("new_name", metavar="NEW", help="its new name")
    _command(verbs, "list", "every task")
    for verb, text in (
        ("show", "a task's newest revision and its recipe"),
        ("enable", "let triggers admit runs"),
        ("disable", "let triggers admit nothing"),
        ("remove", "drop a task; its history stays"),
    ):
        _command(verbs, verb, text).add_argument("name", metavar="NAME", help=_TASK)


def _add_definition(parser: _Parser) -> None:
    """The flags of `task add` and `task set`; the command after -- is split off before parsing."""
    add = parser.add_argument
    add("--cron", metavar="EXPR", action="append", help="when; may be given several times")
    add("--every", metavar="5m", action="append", help="an interval, such as 90s or 1h30m")
    add("--boot", action=_Either, default=None, help="once after each boot of the kernel")
    add("--zone", metavar="Z", help=f"of --cron: {_ZONE}")
    add("--misfire", choices=("skip", "fire_once"), help="what was missed; default: skip")
    add(
        "--overlap",
        choices=("skip", "queue", "parallel", "replace"),
        help="due while it still runs; replace ends the older run; default: skip",
    )
    add("--max-parallel", metavar="N", type=int, help="runs at once with --overlap parallel")
    add("--timeout", metavar="30s", type=_duration(TIMEOUT_MS_MAX, 1), help="stop it after that")
    add("--grace", metavar="5s", type=_duration(GRACE_MS_MAX), help="from TERM to KILL")
    add("--retry", metavar="N", type=int, help="further tries, for what --retry-on names")
    add("--retry-on", metavar="lost,failed", type=_retry_on, help="default: failed")
    add("--backoff", metavar="10s", type=_duration(BACKOFF_MS_MAX), help="before a further try")
    add("--repeatable", action=_Either, default=None, help="safe to run twice; lost needs it")
    add("--env", metavar="K=V", action="append", type=_pair, help="a variable")
    add("--env-file", metavar="FILE", help="variables from a dotenv file")
    add("--secret", metavar="K=NAME", action="append", type=_pair, help="a variable from a secret")
    add("--env-set", metavar="NAME", action="append", help="an env's values, joined")
    add("--cwd", metavar="DIR", help="where it runs; default: the home directory")
    add("--nice", metavar="N", type=int, help="-20 to 19; higher is more modest")
    add("--log", action=_Either, default=None, help="keep what it prints (default)")
    add("--label", metavar="L", action="append", help="a word to find it by")
    add("--shell", metavar="TEXT", help="run by /bin/sh -c; or end the line with -- ARGV...")


def _add_runs(commands: argparse._SubParsersAction[_Parser]) -> None:
    start = _command(commands, "start", "a manual run now")
    start.add_argument("name", metavar="NAME", help=_TASK)
    start.add_argument("--wait", action="store_true", help="until it has ended")
    start.add_argument(
        "--env", metavar="K=V", action="append", type=_pair, help="a variable of this run only"
    )
    stop = _command(commands, "stop", "TERM, bounded wait, KILL, proof")
    stop.add_argument("run", metavar="RUN", help=_RUN)
    stop.add_argument("--grace", metavar="5s", type=_duration(GRACE_MS_MAX), help="before KILL")
    settle = _command(commands, "settle", "the operator's word on a run that cannot be proven")
    settle.add_argument("run", metavar="RUN", help=_RUN)
    settle.add_argument(
        "--as",
        dest="status",
        required=True,
        choices=("lost", "failed", "cancelled"),
        help="how it ended",
    )
    settle.add_argument("--reason", required=True, metavar="TEXT", help="kept with it")
    runs = _command(commands, "runs", "runs, newest first")
    runs.add_argument("--task", metavar="NAME", help="of this task only")
    runs.add_argument("--status", metavar="S", help="such as running, failed, lost")
    _add_page(runs)
    _command(commands, "show", "one run with attempts and events").add_argument(
        "run", metavar="RUN", help=_RUN
    )
    log = _command(commands, "log", "a run's output")
    log.add_argument("run", metavar="RUN", help=_RUN)
    log.add_argument("--attempt", metavar="N", type=int, help="of this try; default: the last")
    log.add_argument("--offset", metavar="N", type=int, help="from this byte on")
    log.add_argument("--length", metavar="N", type=int, help="so many bytes at most")
    log.add_argument("--tail", metavar="N", type=int, help="the last N bytes")
    log.add_argument("--follow", action="store_true", help="go on until the run has ended")
    log.add_argument("--raw", action="store_true", help="the bytes as they are, on a terminal too")


def _add_page(parser: _Parser) -> None:
    parser.add_argument("--limit", metavar="N", type=int, help="so many at most")
    parser.add_argument("--after", metavar="CURSOR", type=int, help="older than what was told last")


def _add_dialect(parser: _Parser, default: str | None) -> None:
    parser.add_argument(
        "--dialect",
        choices=("vixie", "busybox"),
        default=default,
        help="busybox: a router's crond (/etc/crontabs); vixie (default): cron, cronie",
    )


def _add_secrets(commands: argparse._SubParsersAction[_Parser]) -> None:
    secret = _command(commands, "secret", "values that only tasks see")
    verbs = secret.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=_Parser)
    put = _command(verbs, "set", "the next version of a secret; the value on standard input")
    put.add_argument("name", nargs="?", metavar="NAME", help="a secret's name")
    put.add_argument("value", nargs="*", help=argparse.SUPPRESS)  # refused, and never repeated
    put.add_argument("--env-file", metavar="FILE", help="each variable a secret of its name")
    _command(verbs, "list", "names, versions, keys, and which tasks bind them")
    remove = _command(verbs, "remove", "every version of a secret")
    remove.add_argument("name", metavar="NAME", help="a secret's name")
    keyring = _command(commands, "keyring", "the keys that seal secrets")
    verbs = keyring.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=_Parser)
    for verb, text in (
        ("init", "make the keyring; the first `secret set` does it too"),
        ("status", "keys, and what is sealed under each"),
        ("rotate", "seal under a new key from now on"),
        ("rekey", "seal what is stored under the active key too"),
    ):
        _command(verbs, verb, text)
    retire = _command(verbs, "retire", "forget a key that nothing needs any more")
    retire.add_argument("key", metavar="KEY", help="as `keyring status` tells it")


def _add_envs(commands: argparse._SubParsersAction[_Parser]) -> None:
    env = _command(commands, "env", "values under one name, joined with & for tasks")
    verbs = env.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=_Parser)
    listed = _command(verbs, "list", "sets, items, who binds them")
    listed.add_argument("name", metavar="NAME", nargs="?", help=_ENV)
    put = _command(verbs, "set", "a value for an item, on standard input")
    put.add_argument("name", metavar="NAME", help=_ENV)
    put.add_argument("value", nargs="*", help=argparse.SUPPRESS)  # refused, and never repeated
    put.add_argument("--id", type=int, metavar="N", help="the item; needed where there are several")
    put.add_argument("--add", action="store_true", help="one more item, at the end")
    put.add_argument("--keep", action="store_true", help="read no value, change the rest only")
    put.add_argument("--public", action=_Either, default=None, help="not sealed")
    put.add_argument("--enabled", action=_Either, default=None, help="does it reach tasks")
    put.add_argument("--remarks", metavar="TEXT", help="whose it is, say")
    put.add_argument("--label", metavar="L", action="append", help="a word to find it by")
    for verb, text in (
        ("enable", "let items, or all of a set, reach tasks"),
        ("disable", "keep items, or all of a set, from tasks"),
        ("remove", "drop items, or a set that no task binds"),
    ):
        change = _command(verbs, verb, text)
        change.add_argument("name", metavar="NAME", help=_ENV)
        change.add_argument("id", nargs="*", type=int, metavar="ID", help=_ITEM)
    export = _command(verbs, "export", "JSON of ours, or of QingLong")
    export.add_argument("names", nargs="*", metavar="NAME", help=f"{_ENV}; default: all")
    _add_format(export)
    move = _command(verbs, "move", "give an item another place, counted from 1")
    move.add_argument("name", metavar="NAME", help=_ENV)
    move.add_argument("id", type=int, metavar="ID", help=_ITEM)
    move.add_argument("place", type=int, metavar="PLACE", help="1 is the first")


def _add_notices(commands: argparse._SubParsersAction[_Parser]) -> None:
    notify = _command(commands, "notify", "tell somebody when runs end badly, and well again")
    verbs = notify.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=_Parser)
    add = _command(verbs, "add", "a channel; its key on standard input")
    add.add_argument("name", metavar="CHANNEL", help=_CHANNEL)
    add.add_argument("value", nargs="*", help=argparse.SUPPRESS)  # refused, and never repeated
    add.add_argument("--kind", metavar="KIND", help="such as ntfy, unless its name says it")
    add.add_argument("--url", metavar="URL", help="a server of one's own; the mail server")
    add.add_argument("--sender", metavar="MAILBOX", help="smtp: from")
    add.add_argument("--to", metavar="MAILBOX", help="smtp: to")
    add.add_argument("--task", metavar="NAME", action="append", help="these tasks only")
    add.add_argument("--on", metavar="failed,lost,...", type=_retry_on, help="these events only")
    add.add_argument("--quiet", metavar="22:00-07:00", help="hold back, then send one digest")
    add.add_argument("--zone", metavar="Z", help=f"of --quiet: {_ZONE}")
    add.add_argument("--replace", action="store_true", help="one that is there")
    _command(verbs, "list", "channels, and how the last message went")
    for verb, text in (("test", "send a message now"), ("remove", "drop a channel and its key")):
        _command(verbs, verb, text).add_argument("name", metavar="CHANNEL", help=_CHANNEL)


def _add_format(export: _Parser) -> None:
    formats = ("json", "crontab", "qinglong")
    told = "json (default), crontab for tasks, qinglong for envs"
    export.add_argument("--format", choices=formats, default="json", help=told)
    export.add_argument("--with-values", action="store_true", help="sealed ones too, in clear")


def _add_upkeep(commands: argparse._SubParsersAction[_Parser]) -> None:
    audit = _command(commands, "audit", "who changed what, newest first; refusals too")
    _add_page(audit)
    backup = _command(commands, "backup", "database and settings in one file, checked")
    backup.add_argument("file", metavar="FILE", help="a new file")
    backup.add_argument("--with-keyring", action="store_true", help="the keys too: FILE.keyring")
    restore = _command(commands, "restore", "a fresh state directory from a backup")
    restore.add_argument("file", metavar="FILE", help="what `backup` wrote")
    restore.add_argument("--keyring", metavar="FILE", help="the keys, if it holds secrets")
    _command(commands, "doctor", "what is wrong with this box, and what to do about it")


_ROOT = "below this directory; default: "
_KITS = (
    ("openwrt", "the program, init script, configuration and LuCI page"),
    ("systemd", "a systemd unit"),
    ("s6", "an s6-overlay service"),
    ("docker", "a Dockerfile with the program beside it"),
    ("program", "the program alone, with this box's own byte code"),
)


def _add_kits(commands: argparse._SubParsersAction[_Parser]) -> None:
    for kit, text in _KITS:
        place = {"docker": "."}.get(kit, "/")
        verbs = _command(commands, kit, text).add_subparsers(
            dest="verb", metavar="VERB", required=True, parser_class=_Parser
        )
        for verb, told in (("install", f"write {text}"), ("uninstall", "take all of it back")):
            command = _command(verbs, verb, told)
            command.add_argument("--root", metavar="DIR", default=place, help=_ROOT + place)
        if kit == "openwrt":
            feed = _command(verbs, "feed", "a package for a feed of OpenWrt's build")
            feed.add_argument("--root", metavar="DIR", required=True, help="the feed's folder")
    export = _command(commands, "export", "tasks or envs as JSON, which `import` reads; a crontab")
    export.add_argument("what", choices=("tasks", "envs"), help="which of them")
    _add_format(export)
    _add_dialect(export, "vixie")
    export.add_argument("--zone", metavar="Z", help=f"of the crontab's machine: {_ZONE}")
    rpcd = _command(commands, "rpcd", "answer the router's web page")
    rpcd.add_argument("method", metavar="METHOD", help="what it asks for")


_TAKE_VALUES = ("secret set", "env set", "notify add")  # what is left may be a value: never shown


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options of a command line; `argv` holds what stood after `--`, or None."""
    argv: list[str] | None = None
    if "--" in arguments:
        place = arguments.index("--")
        arguments, argv = arguments[:place], arguments[place + 1 :]
    arguments = _globals_first(arguments)
    parser = build()
    options, unknown = parser.parse_known_args(arguments)
    if unknown and f"{options.command} {getattr(options, 'verb', '')}" in _TAKE_VALUES:
        options.value = unknown
    elif unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if options.command is None and not options.version:
        if not options.json:
            parser.print_help(sys.stderr)
        raise Invalid("usage", "A command is missing; see --help")
    if argv is not None and (options.command != "task" or options.verb not in ("add", "set")):
        raise Invalid("usage", "Only `task add` and `task set` take a command after --.")
    options.argv = argv
    return options


def _globals_first(arguments: list[str]) -> list[str]:
    """`--json`, `--state DIR` and `--runtime DIR` are understood anywhere before `--`."""
    first: list[str] = []
    rest: list[str] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        named = word in ("--state", "--runtime")
        if word.partition("=")[0] not in ("--json", "--state", "--runtime") or (
            named and not words
        ):
            rest.append(word)
            continue
        first.append(word)
        if named:
            first.append(words.pop(0))
    return first + rest
