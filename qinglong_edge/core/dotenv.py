r"""A dotenv file as variables: which bytes each line gives, and which lines give none.

Owns the reading of ``NAME=VALUE`` files. Bytes are kept exactly; nothing is expanded. A line that
cannot be kept is refused by its number, and a difference worth knowing is a warning; neither ever
says a value. Pure: no file, no environment.

| value      | is                                                                               |
|------------|----------------------------------------------------------------------------------|
| `'...'`    | literal, line ends too                                                           |
| `"..."`    | line ends too; `\n` `\r` `\t` `\"` `\\` `\$` are escapes, others stay as written |
| otherwise  | up to the end of the line or a ` #`, without the blanks around it                |

Blanks around the name, an `export` before it, a byte order mark, CR LF line ends, empty lines and
lines of `#` are understood. Of a name that is given twice the last value counts.
"""

from __future__ import annotations

import re

from qinglong_edge.core import recipe
from qinglong_edge.core.characters import BYTE_ORDER_MARK
from qinglong_edge.core.errors import EdgeError, Invalid
from qinglong_edge.core.limits import IMPORT_BYTES_MAX
from qinglong_edge.core.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    Note = dict[str, int | str]

_BLANKS = " \t"
_QUOTED = re.compile(r"""'([^']*+)'|"((?:[^"\\]++|\\.)*+)\"""", re.DOTALL)
_AFTER_QUOTE = re.compile(r"(?:[ \t]+#[^\n]*|[ \t]*\r?)(?:\n|\Z)")
_COMMENT = re.compile(r"[ \t]#")
_ESCAPE = re.compile(r"""\\([nrt"\\$])""")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}
_EXPANDABLE = re.compile(r"(?<!\\)\$[A-Za-z_{(]")
_MESSAGES = {
    "assignment_missing": "A line is neither NAME=VALUE nor a comment.",
    "quote_open": "A quoted value has no end.",
    "quote_followed": "Something follows the end of a quoted value.",
    "variable_repeated": "An earlier line gave this variable too; the last one counts.",
    "not_expanded": "A dollar sign stays as it is; nothing is expanded.",
    "line_ends_kept": "A value over several lines keeps its CR LF line ends.",
}


class Parsed(Record):
    """What a file gives: `values` in the order of the last lines that gave them."""

    values: dict[str, str]
    refused: list[Note]
    warnings: list[Note]

    def report(self) -> dict[str, object]:
        """Names and notes, never a value."""
        return {
            "imported": list(self.values),
            "refused": self.refused,
            "warnings": self.warnings,
        }

    def __repr__(self) -> str:
        return f"Parsed({len(self.values)} variables)"


def parse(data: bytes) -> Parsed:
    """The variables of a file of at most IMPORT_BYTES_MAX bytes (`dotenv_too_large`).

    Refused lines carry `assignment_missing`, `quote_open`, `quote_followed` or the code of
    `recipe.Binding`; a value that is not UTF-8 is `value_not_utf8`.
    """
    if len(data) > IMPORT_BYTES_MAX:
        raise Invalid("dotenv_too_large", "The file is larger than 1 MiB.", bytes=len(data))
    text = data.removeprefix(BYTE_ORDER_MARK).decode("utf-8", "surrogateescape")
    found = Parsed(values={}, refused=[], warnings=[])
    for line, name, value, code in _lines(text):
        try:
            if value is None:
                raise Invalid(code, _MESSAGES[code])
            recipe.public(name, value)
        except EdgeError as error:
            found.refused.append({"line": line, "code": error.code, "message": error.message})
            continue
        again = found.values.pop(name, None) is not None
        found.values[name] = value
        for told in ("variable_repeated" if again else "", code):
            if told:
                found.warnings.append({"line": line, "code": told, "message": _MESSAGES[told]})
    return found


def _lines(text: str) -> Iterator[tuple[int, str, str | None, str]]:
    """(line, name, value, warning) of each assignment; without a value: the refusal."""
    number, at = 0, 0
    while at < len(text):
        number += 1
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        line = text[at:end].removesuffix("\r")
        name, equals, rest = line.partition("=")
        begin, at = at + len(name) + 1, end + 1
        bare = name.strip(_BLANKS)
        if bare[:1] == "#" or not line.strip(_BLANKS):
            continue
        if not equals:
            yield number, "", None, "assignment_missing"
            continue
        if bare.startswith(("export ", "export\t")):
            bare = bare[7:].lstrip(_BLANKS)
        lead = len(rest) - len(rest.lstrip(_BLANKS))
        if rest[lead : lead + 1] not in ("'", '"'):
            comment = _COMMENT.search(rest)
            value = rest[: comment.start()] if comment else rest
            yield number, bare, value.strip(_BLANKS), _unexpanded(value)
            continue
        quoted = _QUOTED.match(text, begin + lead)
        after = None if quoted is None else _AFTER_QUOTE.match(text, quoted.end())
        if quoted is None or after is None:
            yield number, bare, None, "quote_open" if quoted is None else "quote_followed"
            continue
        yield number, bare, *_unquoted(quoted)
        at = after.end()
        number += quoted[0].count("\n")


def _unquoted(quoted: re.Match[str]) -> tuple[str, str]:
    literal, escaped = quoted.groups()
    ends = "line_ends_kept" if "\r\n" in quoted[0] else ""
    if literal is not None:
        return literal, ends
    value = _ESCAPE.sub(lambda each: _ESCAPED.get(each[1], each[1]), escaped)
    return value, ends or _unexpanded(escaped)


def _unexpanded(text: str) -> str:
    return "not_expanded" if _EXPANDABLE.search(text) else ""
