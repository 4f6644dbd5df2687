"""A crontab as tasks: what each line means to the cron that runs it today.

Owns the reading of two dialects, `vixie` (Debian's cron, cronie) and `busybox` (crond of OpenWrt).
A line becomes a task that starts at exactly the minutes at which its cron starts it, with the same
command, shell, zone and variables; what cannot be kept is refused by its line, and a difference
worth knowing is a warning. Nothing is changed silently. Pure: no file, clock or zone data.

|              | vixie                                 | busybox                            |
|--------------|---------------------------------------|------------------------------------|
| comment      | a whole line                          | from the first `#`, quoted or not  |
| last `\\`    | part of the command                   | joins the next line, of a comment  |
|              |                                       | too                                |
| `%`          | `\\%` is a percent sign, `%` is stdin | a percent sign                     |
| variables    | any, for the lines after it           | SHELL, PATH (from 1.36 on), MAILTO |
| zone         | CRON_TZ, for the lines after it       | -                                  |
| user column  | in system crontabs                    | -                                  |
| `@daily`     | yes                                   | a build option, off on OpenWrt     |
| last line    | ignored without a line end            | read                               |
| 5 fields     | `crontab_schedule`                    | `crontab_schedule`                 |

A task's name is its command's first word and six digits of the digest of schedule, user and
command, so that a second import finds what the first one made.
"""

from __future__ import annotations

import re

from qinglong_edge.core import crontab_schedule, limits, recipe
from qinglong_edge.core.canonical import sha256_hex
from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.record import Record
from qinglong_edge.core.zone import open_zone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Note = dict[str, int | str]

VIXIE, BUSYBOX = "vixie", "busybox"
DIALECTS = (VIXIE, BUSYBOX)
DEFAULT_SHELL = "/bin/sh"
# What a command finds where the crontab sets no PATH: Debian's own, and what procd gives crond.
DEFAULT_PATHS = {VIXIE: "/usr/bin:/bin", BUSYBOX: "/usr/sbin:/sbin:/usr/bin:/bin"}

_FIELDS = 5
_LINES_MAX = 10_000  # the answer names every line; this many still fit into one socket reply
_VARIABLES_MAX = limits.BINDINGS_MAX - 16  # PATH, HOME and their like join them in the recipe
_BLANKS = " \t"
_SPACES = " \t\n\v\f\r"  # what isspace() knows in the C locale
_GAP = re.compile(r"[ \t]+")
_MAIL_NAMES = frozenset(("MAILTO", "MAILFROM", "CONTENT_TYPE", "CONTENT_TRANSFER_ENCODING"))
_TIMING_NAMES = frozenset(("RANDOM_DELAY", "START_HOURS_RANGE"))
_OWNER_NAMES = frozenset(("LOGNAME", "USER"))
_LOOKS_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*[ \t]*=")
_NESTED = re.compile(r"""(["']).*\1""")
# `NAME="a b" command`: the words before a command that are variables, whose values name nothing.
_PREFIX = re.compile(
    r"""(?:[A-Za-z_][A-Za-z0-9_]*=(?:"(?:\\.|[^"\\])*"|'[^']*'|\\.|[^\s"'\\;&|])*(?:\s+|$))+"""
)
_WORD = re.compile(r"[^\s;&|<>()]+")
_BASE_CHARACTERS_MAX = 40
_DIGEST_CHARACTERS = 6


class Imported(Record):
    """One line as a task. `expression` is canonical cron text, or None where `boot` is true.

    `environment` holds what the crontab sets, in its order; `label` is the schedule as written.
    """

    line: int
    name: str
    expression: str | None
    boot: bool
    zone: str
    environment: tuple[tuple[str, str], ...]
    shell: str
    command: str
    label: str

    def __repr__(self) -> str:
        return f"Imported(line={self.line}, label={self.label!r})"  # the rest may be sensitive


class Plan(Record):
    """What an import would do. A note is `{line, code, message}`; it never quotes a command."""

    tasks: tuple[Imported, ...]
    refused: tuple[Note, ...]
    warnings: tuple[Note, ...]


def usual(path: str) -> tuple[str, bool]:
    """(dialect, user column) of a crontab by its place, an absolute path; vixie anywhere else."""
    folder = path.rpartition("/")[0]
    dialect = BUSYBOX if folder == "/etc/crontabs" else VIXIE
    return dialect, path == "/etc/crontab" or folder == "/etc/cron.d"


def parse(data: bytes, *, dialect: str, user_column: bool, user: str, zone: str) -> Plan:
    """The plan for the whole file `data`, at most `limits.IMPORT_BYTES_MAX` bytes.

    `user_column`: a system crontab, whose sixth field names the user; only lines of `user` are
    taken. `zone`: of every line that no CRON_TZ moves. Invalid: `crontab_dialect`,
    `crontab_user_column`, `crontab_too_large`, `crontab_too_long`; a wrong line is never an error.
    """
    if dialect not in DIALECTS:
        raise Invalid("crontab_dialect", "A crontab's dialect is vixie or busybox.")
    if user_column and dialect == BUSYBOX:
        raise Invalid("crontab_user_column", "A busybox crontab has no user column.")
    if len(data) > limits.IMPORT_BYTES_MAX:
        raise Invalid("crontab_too_large", "The crontab is too large.", bytes=len(data))
    lines = data.split(b"\n")
    if len(lines) > _LINES_MAX:
        raise Invalid("crontab_too_long", "The crontab has too many lines.", lines=len(lines))
    reader: _Reader
    if dialect == VIXIE:
        reader = _Vixie(user=user, zone=zone, user_column=user_column)
    else:
        reader = _Busybox(user=user, zone=zone)
    return reader.read(lines)


def name_for(schedule: str, user: str, command: str) -> str:
    """The task's name: base name of the command's first word, `-`, six digits of the digest."""
    variables = _PREFIX.match(command)
    found = _WORD.search(command, variables.end() if variables else 0)
    word = found.group().rstrip("/").rpartition("/")[2] if found else ""
    if "=" in word:  # a value, and a value may be a secret
        word = ""
    kept = "".join(each for each in word if each.isalnum() or each in "._-").lstrip("-.")
    digest = sha256_hex(f"{schedule}\0{user}\0{command}".encode())
    return f"{kept[:_BASE_CHARACTERS_MAX] or 'task'}-{digest[:_DIGEST_CHARACTERS]}"


class _Reader:
    """What the lines read so far have left behind; one subclass for each dialect."""

    blocking: Mapping[str, re.Pattern[bytes]] = {}  # refused, these spoil the lines after them

    def __init__(self, *, user: str, zone: str) -> None:
        self.user = user
        self.zone = zone
        self.zone_label = ""
        self.shell = DEFAULT_SHELL
        self.environment: dict[str, str] = {}
        self.blocked: dict[str, tuple[str, str]] = {}  # by a SHELL or CRON_TZ line that was refused
        self.taken: dict[str, tuple[str, str]] = {}
        self.tasks: list[Imported] = []
        self.refused: list[Note] = []
        self.warnings: list[Note] = []

    def read(self, lines: list[bytes]) -> Plan:
        """Every line once; one that is wrong never stops the next."""
        for number, raw in self.joined(lines):
            body = raw.strip(b" \t\r")
            if not body or body.startswith(b"#"):
                continue
            try:
                self.line(number, _text(raw).lstrip(_BLANKS))
            except Invalid as wrong:
                self.refused.append(_note(number, wrong.code, wrong.message))
                self.block(body)
        return Plan(
            tasks=tuple(self.tasks),
            refused=tuple(self.refused),
            warnings=tuple(self.warnings),
        )

    def joined(self, lines: list[bytes]) -> Iterator[tuple[int, bytes]]:
        """Logical lines with the number of their first line."""
        raise NotImplementedError

    def line(self, number: int, text: str) -> None:
        """Take one line that is neither blank nor a comment; Invalid refuses it."""
        raise NotImplementedError

    def block(self, body: bytes) -> None:
        """After a refused line: without its shell or zone, later lines would not be the same."""
        for name, pattern in self.blocking.items():
            if pattern.match(body):
                message = f"The {name} line before this one was refused."
                self.blocked[name] = (f"{name.lower()}_not_kept", message)

    def warn(self, number: int, code: str, message: str) -> None:
        self.warnings.append(_note(number, code, message))

    def bind(self, name: str, value: str) -> None:
        """Set a variable for the lines that follow."""
        recipe.Binding(name=name, kind=recipe.PUBLIC, value=value)
        if name not in self.environment and len(self.environment) >= _VARIABLES_MAX:
            raise Invalid("bindings_too_many", "The crontab sets too many variables.")
        self.environment[name] = value

    def set_shell(self, value: str) -> None:
        if not value.startswith("/") or not value.isprintable() or " " in value:
            raise Invalid("shell_path", "A SHELL must be an absolute path.")
        self.bind("SHELL", value)
        self.shell = value
        self.blocked.pop("SHELL", None)

    def warn_of_mail(self, number: int, value: str) -> None:
        if value:
            self.warn(number, "mail_not_sent", "Output is kept in the log, it is not mailed.")

    def keep(self, number: int, expression: str | None, label: str, command: str) -> None:
        """Add the task, unless an earlier line spoils it."""
        if self.blocked:
            raise Invalid(*next(iter(self.blocked.values())))
        if len(command.encode()) > limits.COMMAND_BYTES_MAX:
            raise Invalid("line_too_long", "The command is too long.")
        label = self.zone_label + label
        name = name_for(label, self.user, command)
        earlier = self.taken.get(name)
        if earlier == (label, command):
            raise Invalid("duplicate_line", "An earlier line has the same schedule and command.")
        if earlier is not None:
            raise Invalid("name_conflict", "The name of this task is that of an earlier line.")
        self.taken[name] = (label, command)
        self.tasks.append(
            Imported(
                line=number,
                name=name,
                expression=expression,
                boot=expression is None,
                zone=self.zone,
                environment=tuple(self.environment.items()),
                shell=self.shell,
                command=command,
                label=label,
            )
        )


class _Vixie(_Reader):
    """Debian's cron; where cronie differs, what both do, or a refusal."""

    blocking = {
        "SHELL": re.compile(rb"[\"']?SHELL[\"']?[ \t]*="),
        "CRON_TZ": re.compile(rb"[\"']?CRON_TZ[\"']?[ \t]*="),
    }

    def __init__(self, *, user: str, zone: str, user_column: bool) -> None:
        super().__init__(user=user, zone=zone)
        self.user_column = user_column

    def joined(self, lines: list[bytes]) -> Iterator[tuple[int, bytes]]:
        for number, raw in enumerate(lines, 1):
            if number == len(lines) and raw.strip(b" \t\r") and not raw.strip().startswith(b"#"):
                message = "Cron ignores a last line that has no line end; it is taken here."
                self.warn(number, "no_final_newline", message)
            yield number, raw

    def line(self, number: int, text: str) -> None:
        assigned = _assignment(text)
        if assigned is not None:
            self.assign(number, *assigned)
        elif _LOOKS_ASSIGNED.match(text):
            raise Invalid("environment_line", "Cron does not read such a variable.")
        else:
            self.entry(number, text)

    def assign(self, number: int, name: str, value: str) -> None:
        """One `NAME = value` line; cron's own variables reach the command too, as they do there."""
        if value != value.rstrip(_SPACES) or _NESTED.fullmatch(value):
            message = "Crons differ about blanks and quotes inside quotes; they are kept."
            self.warn(number, "quoted_value", message)
        if name in _TIMING_NAMES:
            raise Invalid(f"{name.lower()}_not_kept", f"{name} has no counterpart here.")
        if name in _OWNER_NAMES:
            self.warn(
                number, "owner_fixed", f"A crontab cannot change {name}; it is left as it is."
            )
            return
        if name == "SHELL":
            self.set_shell(value)
            return
        if name == "CRON_TZ":
            self.set_zone(number, value)
        elif name == "TZ":
            self.warn(number, "tz_not_schedule", "TZ reaches the command, not the schedule.")
        elif name in _MAIL_NAMES:
            self.warn_of_mail(number, value)
        self.bind(name, value)

    def set_zone(self, number: int, value: str) -> None:
        zone = value.removeprefix(":")
        if " " in zone:  # a router's spelling of a key; to cron it is no zone
            raise Invalid("zone_invalid", "CRON_TZ is not a time zone.")
        try:
            open_zone(zone)
        except Invalid as wrong:
            if (
                wrong.code != "zone_unknown"
            ):  # whether there is data for a key, the caller finds out
                raise
        self.zone = zone
        self.zone_label = f"CRON_TZ={self.zone} "
        self.blocked.pop("CRON_TZ", None)
        message = "The lines that follow are scheduled in CRON_TZ, as by cronie; Debian ignores it."
        self.warn(number, "cron_tz", message)

    def entry(self, number: int, text: str) -> None:
        """A schedule, in a system crontab a user, and a command."""
        if text.startswith("-"):
            raise Invalid("log_prefix", "A line cannot keep itself out of the log with a dash.")
        macro = text.startswith("@")
        parts = _GAP.split(text, maxsplit=1 if macro else 5)
        fields, rest = (parts[:1], parts[1:]) if macro else (parts[:5], parts[5:])
        if not macro and len(fields) == _FIELDS and rest and rest[0].startswith("*"):
            raise Invalid("six_fields", "A crontab's schedule has five fields.")
        if self.user_column and rest and rest[0]:
            owner, *rest = _GAP.split(rest[0], maxsplit=1)
            if owner != self.user:
                raise Invalid("other_user", "This line runs as another user.")
        expression = crontab_schedule.macro(fields[0]) if macro else crontab_schedule.vixie(fields)
        if not rest or not rest[0]:
            raise Invalid("command_missing", "The line has no command.")
        if not self.user_column and _GAP.split(rest[0], maxsplit=1)[0] == self.user:
            message = "The command begins with a user: a system crontab takes --user-column."
            self.warn(number, "user_column_likely", message)
        self.keep(number, expression, " ".join(fields), _vixie_command(rest[0]))


def _assignment(text: str) -> tuple[str, str] | None:
    """Name and value of a `NAME = value` line, or None when cron does not see one.

    Name and value may each be quoted; only a quoted value is empty or keeps blanks at its ends.
    Nothing is expanded, and no backslash means anything.
    """
    name, rest = _quoted(text)
    if name is None:
        found = re.match(rf"[^={_SPACES}\"'][^={_SPACES}]*", text)
        if found is None:
            return None
        name, rest = found.group(), text[found.end() :]
    rest = rest.lstrip(_SPACES)
    if not rest.startswith("=") or "=" in name:
        return None
    rest = rest[1:].lstrip(_SPACES)
    value, after = _quoted(rest)
    if value is None:
        return None if rest[:1] in ("", "'", '"') else (name, rest.rstrip(_SPACES))
    return None if after.strip(_SPACES) else (name, value)


def _quoted(text: str) -> tuple[str | None, str]:
    """The inside of a quoted beginning and what follows it, or None and everything."""
    end = text.find(text[0], 1) if text[:1] in ("'", '"') else -1
    return (text[1:end], text[end + 1 :]) if end > 0 else (None, text)


def _vixie_command(text: str) -> str:
    """The command that cron hands to the shell."""
    if "\\\\" in text:  # Debian makes one of two, cronie leaves them
        raise Invalid("backslash_pair", "Crons disagree about two backslashes in a row.")
    if re.search(r"(?<!\\)%", text):
        raise Invalid(
            "stdin_not_kept", "A bare percent sign feeds the command; a task has no stdin."
        )
    return text.replace("\\%", "%")


class _Busybox(_Reader):
    """The crond applet of busybox 1.35 to 1.37."""

    blocking = {"SHELL": re.compile(rb"SHELL=")}

    def joined(self, lines: list[bytes]) -> Iterator[tuple[int, bytes]]:
        rest = iter(enumerate(lines, 1))
        for number, raw in rest:
            body = raw
            while body.endswith(b"\\"):
                body = body[:-1] + next(rest, (0, b""))[1]
            if body != raw and body.lstrip(b" \t").startswith(b"#"):
                message = "The backslash at its end makes the next line a part of this comment."
                self.warn(number, "comment_continued", message)
            yield number, body

    def line(self, number: int, text: str) -> None:
        word = re.split(r"[ \t#]", text, maxsplit=1)[0]
        name, equals, value = word.partition("=")
        if equals and name in ("MAILTO", "SHELL", "PATH"):
            self.assign(number, name, value)
        elif _LOOKS_ASSIGNED.match(text):
            raise Invalid("environment_line", "This crond ignores such a variable.")
        elif word.startswith("@"):
            self.special(number, word, text)
        else:
            self.entry(number, text)

    def assign(self, number: int, name: str, value: str) -> None:
        """One of the three variables that crond knows."""
        if name == "MAILTO":
            self.warn_of_mail(number, value)
        elif name == "SHELL":
            self.set_shell(value)
        else:
            self.bind(name, value)
            self.warn(number, "path_by_version", "A crond before busybox 1.36 ignores PATH.")

    def special(self, number: int, word: str, text: str) -> None:
        """`@daily` and its like; the command is taken whole, a `#` in it too."""
        after = text[len(word) :]
        command = after.lstrip(_SPACES)
        expression = crontab_schedule.macro(word)
        if not command or after.lstrip(_BLANKS).startswith("#"):
            raise Invalid("command_missing", "The line has no command.")
        self.keep(number, expression, word, command)
        self.warn(number, "special_times", "A crond built without special times ignores this line.")

    def entry(self, number: int, text: str) -> None:
        """Five fields and a command."""
        body, mark, _ = text.partition("#")
        parts = _GAP.split(body.rstrip(_BLANKS), maxsplit=5)
        fields, rest = parts[:5], parts[5:]
        expression, out_of_range = crontab_schedule.busybox(fields)
        if not rest:
            raise Invalid("command_missing", "The line has no command.")
        self.keep(number, expression, " ".join(fields), rest[0])
        if mark:
            self.warn(number, "comment_cut", "This crond ends the command at the number sign.")
        for field in out_of_range:
            message = f"The {field} is out of range; crond fills the field as kept here."
            self.warn(number, "out_of_range", message)


def _text(raw: bytes) -> str:
    """A line as text, or why it cannot be one."""
    if b"\0" in raw:
        raise Invalid("nul_byte", "The line has a NUL byte.")
    if b"\r" in raw:
        raise Invalid("carriage_return", "The line has a carriage return, as Windows ends lines.")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise Invalid("not_utf8", "The line is not UTF-8.") from None


def _note(line: int, code: str, message: str) -> Note:
    return {"line": line, "code": code, "message": message}
