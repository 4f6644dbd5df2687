"""One command line being carried out: its options, its way to the state, its answer.

Owns what every command does alike.
"""

from __future__ import annotations

import errno

from qinglong_edge.app import preview
from qinglong_edge.app.client import Client
from qinglong_edge.cli import output, render
from qinglong_edge.core.characters import BYTE_ORDER_MARK
from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.limits import IMPORT_BYTES_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping
    from typing import Any

    from qinglong_edge.app.state import Place


class Context:
    """What a command is given."""

    def __init__(
        self, options: argparse.Namespace, where: Place, environment_tz: str | None
    ) -> None:
        self.options = options
        self.where = where
        self.environment_tz = environment_tz

    def client(self) -> Client:
        """The way to the state."""
        return Client(self.where)

    def call(self, method: str, **params: object) -> Any:
        """One method, then let go."""
        with self.client() as client:
            return client.call(method, params)

    def show(self, answer: object, text: Callable[[], str]) -> int:
        """The answer as JSON or as text."""
        if self.options.json:
            output.write_json(answer)
        else:
            output.write(text())
        return 0

    def planned(self) -> str:
        """The last line of a report on what would be."""
        return "a dry run: nothing was changed\n" if self.options.dry_run else ""

    def zone(self) -> str | None:
        """The zone of the command line, else the machine's own where one is needed."""
        if self.options.zone is not None:
            return str(self.options.zone)
        return preview.machine_zone(self.environment_tz)


def notes(answer: Mapping[str, Any]) -> str:
    """The refused lines and the warnings of an import, a line each."""
    return "".join(
        f"line {each['line']}: {word} {each['code']}: {render.inline(each['message'])}\n"
        for word, told in (("refused", answer["refused"]), ("warning", answer["warnings"]))
        for each in told
    )


def read_input(path: str, bytes_max: int = IMPORT_BYTES_MAX) -> bytes:
    """A file to import, or standard input for `-`; a byte more than allowed at most.

    The byte order mark that Windows puts before a text is no part of it.
    """
    try:
        with open(0 if path == "-" else path, "rb", closefd=path != "-") as file:
            return file.read(bytes_max + 1).removeprefix(BYTE_ORDER_MARK)
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "EIO")
        raise Invalid("file_unreadable", "The file cannot be read.", errno=name) from None
