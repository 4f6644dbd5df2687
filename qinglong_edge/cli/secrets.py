"""The commands `secret` and `keyring`.

Owns how a value gets in: from standard input, every byte of it, or typed without echo on a
terminal, where the line end is not part of it. A value in an argument is refused: other users see
those, and shells keep them. Nothing here prints a value.
"""

from __future__ import annotations

import errno
import os

from qinglong_edge.cli import render
from qinglong_edge.cli.context import notes, read_input
from qinglong_edge.core.characters import BYTE_ORDER_MARK
from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.limits import SECRET_VALUE_BYTES_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from qinglong_edge.cli.context import Context

_ERASE = (b"\x7f", b"\x08")
_END = (b"\n", b"\r", b"\x04", b"")
_VERBS = ("init", "status", "rotate", "rekey", "retire")
MADE = "a keyring was made; keep a copy: backup FILE --with-keyring\n"


def _set(context: Context) -> int:
    from qinglong_edge.app import sealing

    options = context.options
    if options.value or "=" in (options.name or ""):
        raise Invalid(
            "secret_on_command_line",
            "A value is read from standard input; arguments are seen by others.",
        )
    if (options.name is None) == (options.env_file is None):
        raise Invalid("usage", "`secret set` needs a name, or --env-file FILE.")
    sealing.guard()
    if options.env_file is not None:
        return _set_file(context)
    value = read_value()
    with sealing.Sealer(context.where) as sealer:
        answer = sealer.put(options.name, value)
        answer["keyring_created"] = sealer.keyring_made
    told = f"{render.inline(answer['secret'])}: version {answer['version']}{noted(value)}\n"
    return context.show(answer, lambda: told + (MADE if answer["keyring_created"] else ""))


def _set_file(context: Context) -> int:
    from qinglong_edge.app.sealing import Sealer
    from qinglong_edge.core import dotenv

    parsed = dotenv.parse(read_input(context.options.env_file))
    with Sealer(context.where) as sealer:
        told = [sealer.put(name, value.encode()) for name, value in parsed.values.items()]
        answer = {**parsed.report(), "keyring_created": sealer.keyring_made}
    lines = [f"{render.inline(each['secret'])}: version {each['version']}\n" for each in told]
    if sealer.keyring_made:
        lines.append(MADE)
    return context.show(answer, lambda: "".join(lines) + notes(answer))


def noted(value: bytes) -> str:
    """What may be an accident of a value that was stored as it came; nothing that tells of it."""
    if not value:
        return " (the value is empty)"
    if value.startswith(BYTE_ORDER_MARK):
        return " (it begins with a byte order mark, as Windows writes one into a file)"
    return " (its line end is part of it; printf %s writes none)" if value[-1:] == b"\n" else ""


def read_value() -> bytes:
    """The value on standard input; at most a byte more than one may have."""
    parts, left = [], SECRET_VALUE_BYTES_MAX + 1
    try:
        if os.isatty(0):
            return _typed()
        while left and (part := os.read(0, left)):
            parts.append(part)
            left -= len(part)
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "EIO")
        raise Invalid("file_unreadable", "Standard input cannot be read.", errno=name) from None
    return b"".join(parts)


def _typed() -> bytes:
    """A line without echo; byte by byte, as a terminal's own lines end at 4 KiB."""
    import termios

    before = termios.tcgetattr(0)
    quiet = list(before)
    quiet[3] &= ~(termios.ECHO | termios.ICANON)
    value = b""
    termios.tcsetattr(0, termios.TCSADRAIN, quiet)
    try:
        os.write(2, b"Value (not shown): ")
        while (byte := os.read(0, 1)) not in _END and len(value) <= SECRET_VALUE_BYTES_MAX:
            if byte in _ERASE:
                value = value.decode("utf-8", "surrogateescape")[:-1].encode(
                    "utf-8", "surrogateescape"
                )
            else:
                value += byte
    finally:
        termios.tcsetattr(0, termios.TCSAFLUSH, before)
        os.write(2, b"\n")
    return value


def _list(context: Context) -> int:
    answer = context.call("secret.list")
    heads = ("SECRET", "VERSION", "KEY", "SET", "BOUND BY")
    return context.show(
        answer,
        lambda: render.table(
            heads,
            (
                (
                    each["secret"],
                    each["version"],
                    each["key"],
                    render.moment(each["created_at_ms"]),
                    render.names(each["bound_by"], "-"),
                )
                for each in answer["secrets"]
            ),
        ),
    )


def _remove(context: Context) -> int:
    answer = context.call("secret.remove", name=context.options.name)
    return context.show(answer, lambda: f"{render.inline(answer['secret'])}: removed\n")


def _keyring(verb: str) -> Callable[[Context], int]:
    def command(context: Context) -> int:
        from qinglong_edge.app.sealing import Sealer

        with Sealer(context.where) as sealer:
            if verb == "retire":
                answer = sealer.retire(context.options.key)
            elif verb == "rekey":
                answer = sealer.rekey(_progress)
                _progress(answer["rekeyed"], "\n")
            else:
                answer = getattr(sealer, verb)()
        return context.show(answer, lambda: _keyring_text(answer))

    return command


def _progress(count: int, end: str = "") -> None:
    if os.isatty(2):
        os.write(2, f"\rsealed again: {count}{end}".encode())


def _keyring_text(answer: Mapping[str, Any]) -> str:
    rows = [
        (
            each["key"],
            each["envelopes"],
            "active" if each["key"] == answer["active"] else "" if each["known"] else "missing",
        )
        for each in answer["keys"]
    ]
    told = "" if answer["reason"] is None else f"the keyring cannot be used: {answer['reason']}\n"
    if "rekeyed" in answer:
        told += f"sealed again: {answer['rekeyed']}\n"
    return render.table(("KEY", "SEALED", ""), rows) + told


COMMANDS: Mapping[str, Callable[[Context], int]] = {
    "secret set": _set,
    "secret list": _list,
    "secret remove": _remove,
    **{f"keyring {verb}": _keyring(verb) for verb in _VERBS},
}
