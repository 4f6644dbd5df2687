"""A task's definition: what runs, when, and how it may repeat.

Owns the value, its validation against every budget, and its stored form. A definition is immutable:
editing a task appends a revision, and a run keeps the one it was started with. The environment is
not part of it; it stands in the recipe that the revision pins (ADR-0024 section 1).
"""

from __future__ import annotations

from qinglong_edge.core import limits
from qinglong_edge.core.canonical import decode, encode, sha256_hex
from qinglong_edge.core.errors import Corrupt, EdgeError, Invalid
from qinglong_edge.core.record import Record

SKIP, QUEUE, PARALLEL, REPLACE = "skip", "queue", "parallel", "replace"
OVERLAPS = (SKIP, QUEUE, PARALLEL, REPLACE)
FIRE_ONCE = "fire_once"
MISFIRES = (SKIP, FIRE_ONCE)
RETRY_ON = ("failed", "lost")
_CONTROL = frozenset(map(chr, (*range(0x20), 0x7F, 0x85, 0x2028, 0x2029)))


class Trigger(Record):
    """When a task is due; `number` is 0 until it is stored."""

    number: int = 0
    kind: str
    expression: str
    zone: str
    misfire: str = SKIP

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """What makes two triggers the same across revisions."""
        return (self.kind, self.expression, self.zone, self.misfire)


class Definition(Record):
    """One revision's content."""

    argv: tuple[str, ...]
    shell: bool = False
    cwd: str = "/"
    nice: int = 0
    timeout_ms: int | None = None
    grace_ms: int | None = None
    overlap: str = SKIP
    parallel_max: int = 1
    retry: int = 0
    retry_on: tuple[str, ...] = ("failed",)
    backoff_ms: int = 10_000
    repeatable: bool = False
    log: bool = True
    labels: tuple[str, ...] = ()

    def _check(self) -> None:
        check_command(self.argv, shell=self.shell)
        check_path(self.cwd, "cwd")
        _check_number("nice", self.nice, -20, 19)
        if self.timeout_ms is not None:
            _check_number("timeout_ms", self.timeout_ms, 1, limits.TIMEOUT_MS_MAX)
        if self.grace_ms is not None:
            _check_number("grace_ms", self.grace_ms, 0, limits.GRACE_MS_MAX)
        _check_choice("overlap", self.overlap, OVERLAPS)
        _check_number("parallel_max", self.parallel_max, 1, limits.PARALLEL_MAX)
        _check_number("retry", self.retry, 0, limits.RETRY_MAX)
        _check_number("backoff_ms", self.backoff_ms, 0, limits.BACKOFF_MS_MAX)
        for ending in self.retry_on:
            _check_choice("retry_on", ending, RETRY_ON)
        _check_labels(self.labels)
        if self.retry and "lost" in self.retry_on and not self.repeatable:
            raise Invalid(
                "retry_unsafe",
                "A lost run may have done its work: a retry of it needs --repeatable.",
            )

    def document(self) -> dict[str, object]:
        """The definition as plain JSON values, in the order of its fields."""
        plain: dict[str, object] = {}
        for field in self._fields:
            value = getattr(self, field)
            plain[field] = list(value) if isinstance(value, tuple) else value
        if not self.labels:  # as a definition was written down before there were any
            del plain["labels"]
        return plain

    def encode(self) -> str:
        """The stored text."""
        return encode(self.document()).decode("utf-8")


class Task(Record):
    """A task's head."""

    number: int
    name: str
    revision: int
    enabled: bool
    created_at_ms: int
    removed_at_ms: int | None


class Revision(Record):
    """One immutable revision with the recipe it pins."""

    task_number: int
    revision: int
    recipe_number: int
    context_ref: str
    definition: Definition


def digest(definition: Definition, triggers: tuple[Trigger, ...], context_ref: str) -> str:
    """What a revision says, as 64 hex: definition, triggers and recipe (ADR-0024 section 2)."""
    told = [definition.document(), [list(each.identity) for each in triggers], context_ref]
    return sha256_hex(b"qinglong_edge.revision.v1\0" + encode(told))


def record_digest(
    task_number: int, revision: int, *, context_ref: str, content: str, definition: str
) -> str:
    """What is stored beside a revision, over its identity and all that it says, as 64 hex."""
    told = f"{task_number}\n{revision}\n{context_ref}\n{content}\n{definition}"
    return sha256_hex(f"qinglong_edge.revision_record.v1\n{told}".encode())


def decode_definition(text: str) -> Definition:
    """The stored text read back; any deviation is `Corrupt`."""
    try:
        document = decode(text.encode("utf-8"), bytes_max=limits.REQUEST_BYTES_MAX)
        fields = set(Definition._fields) - {"labels"}
        if not isinstance(document, dict) or set(document) - {"labels"} != fields:
            raise Invalid("definition_invalid", "A definition does not have its exact fields.")
        for field in ("argv", "retry_on", "labels"):
            document[field] = tuple(document.get(field, ()))
        return Definition(**document)
    except (EdgeError, TypeError):
        raise Corrupt("definition_corrupt", "A stored task definition is damaged.") from None


def check_name(name: object) -> str:
    """A task's name: 1 to 128 printable characters, not only digits (those are run numbers)."""
    if not isinstance(name, str) or not name:
        raise Invalid("name_empty", "A task needs a name.")
    if len(name) > limits.NAME_CHARACTERS_MAX or _bytes(name, "name") > limits.NAME_BYTES_MAX:
        raise Invalid(
            "name_too_long",
            "A task's name is longer than 128 characters.",
            characters=len(name),
            maximum=limits.NAME_CHARACTERS_MAX,
        )
    if any(character in _CONTROL for character in name):
        raise Invalid("name_control", "A task's name holds a control character or line break.")
    if name != name.strip() or name.startswith("-"):
        raise Invalid("name_edge", "A task's name starts or ends with a blank, or with a dash.")
    if name.isascii() and name.isdigit():
        raise Invalid("name_is_number", "A task's name of digits only would read as a run number.")
    return name


def check_command(argv: tuple[str, ...], *, shell: bool) -> None:
    """The command against ADR-0069's budgets; an empty argument is legal, an empty program not."""
    if not argv or not argv[0]:
        raise Invalid("command_empty", "A task needs a command.")
    if len(argv) > limits.ARGUMENTS_MAX:
        raise Invalid(
            "command_too_large", "A command has more than 256 arguments.", arguments=len(argv)
        )
    if any("\0" in argument for argument in argv):
        raise Invalid("command_has_nul", "A command holds a NUL character.")
    if argv[0].startswith("-"):
        raise Invalid("command_dash", "A command's program cannot begin with a dash.")
    sizes = [_bytes(argument, "command") for argument in argv]
    one_max = limits.COMMAND_BYTES_MAX if shell else limits.ARGUMENT_BYTES_MAX
    if sum(sizes) > limits.COMMAND_BYTES_MAX or max(sizes) > one_max:
        raise Invalid(
            "command_too_large",
            "A command is larger than 65536 bytes, or one argument than 16384.",
            bytes=sum(sizes),
        )


def check_path(path: object, field: str) -> str:
    """An absolute path of at most 4096 bytes without NUL."""
    if not isinstance(path, str) or not path.startswith("/") or "\0" in path:
        raise Invalid("path_invalid", "A path is not absolute.", field=field)
    if _bytes(path, field) > limits.PATH_BYTES_MAX:
        raise Invalid("path_invalid", "A path is longer than 4096 bytes.", field=field)
    return path


def _check_labels(labels: tuple[str, ...]) -> None:
    if len(labels) > limits.LABELS_MAX:
        raise Invalid("labels_too_many", "A task has more than 16 labels.", labels=len(labels))
    for label in labels:
        _bytes(label, "labels")
        blank = not label.strip() or label != label.strip()
        if blank or len(label) > limits.LABEL_CHARACTERS_MAX or _CONTROL.intersection(label):
            raise Invalid("label_invalid", "A label is 1 to 64 printable characters.")


def _bytes(text: object, field: str) -> int:
    if not isinstance(text, str):
        raise Invalid("not_text", "A value is not a text.", field=field)
    try:
        return len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise Invalid("not_utf8", "A value is not UTF-8.", field=field) from None


def _check_number(field: str, value: object, lowest: int, highest: int) -> None:
    if type(value) is not int or not lowest <= value <= highest:
        raise Invalid(
            "number_out_of_range",
            "A number is not within its bounds.",
            field=field,
            minimum=lowest,
            maximum=highest,
        )


def _check_choice(field: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise Invalid(
            "choice_unknown",
            f"A value is not one of {', '.join(choices)}.",
            field=field,
        )
