"""Typed errors: a stable code, one sentence, low-sensitive facts.

Owns the four classes a caller may branch on and the exit status each becomes. A message never
carries a secret, a command, a token or a path with a task's name in it: it travels to logs, sockets
and screens.

| class       | exit | meaning                                             |
|-------------|------|-----------------------------------------------------|
| Invalid     | 2    | the input is wrong; nothing was changed             |
| Refused     | 3    | not found, conflict, or refused by a rule           |
| Unavailable | 4    | try again later (busy, no space, no owner)          |
| Corrupt     | 5    | stored state is damaged, unsafe or too new          |
| (bug)       | 70   | anything else                                       |
"""

from __future__ import annotations

EXIT_BUG = 70


class EdgeError(Exception):
    """A failure with a stable code; `facts` are numbers, field names, ids and errno names only."""

    exit_status = EXIT_BUG

    def __init__(self, code: str, message: str, **facts: str | int | None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.facts: dict[str, str | int | None] = dict(facts)

    def document(self) -> dict[str, object]:
        """The error as the JSON object that every front end prints."""
        return {"code": self.code, "message": self.message, "facts": self.facts}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.code!r}, {self.facts!r})"


class Invalid(EdgeError):
    """The caller's input is wrong; correct it and call again."""

    exit_status = 2


class Refused(EdgeError):
    """Not found, in conflict with what is stored, or refused by a rule."""

    exit_status = 3


class Unavailable(EdgeError):
    """A passing state of the system; the same call may succeed later."""

    exit_status = 4


class Corrupt(EdgeError):
    """Stored state is damaged, unsafe or newer than this program; it is kept as it is."""

    exit_status = 5


_PACKAGES = {"cffi_backend": "cffi", "ssl": "openssl"}  # not called as what is in them


def module_missing(name: str) -> Unavailable:
    """Routers install the standard library in parts; this says which one to install."""
    part = name.partition(".")[0].strip("_")
    package = f"python3-{_PACKAGES.get(part, part)}"
    message = "A module of Python is missing; install its package."
    return Unavailable("module_missing", message, module=name, package=package)
