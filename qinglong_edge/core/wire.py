"""The words of the worker contract: how one field of a foreign document is read.

Owns the bounds that many documents share. Everything is refused that is not exactly what the
contract allows: an unknown or missing key, a bool where a number belongs, a control character. The
error names the field and never its content.
"""

from __future__ import annotations

import re

from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.limits import SAFE_INTEGER_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, NoReturn

INT31_MAX = 2**31 - 1
ID_UNITS_MAX = 128
RUN_ID_UNITS_MAX = 36
WORKER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
LEASE_TOKEN = re.compile(r"[A-Za-z0-9_-]{32,128}")
DIGEST = re.compile(r"[0-9a-f]{64}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def refuse(field: str) -> NoReturn:
    """The one error of a document that is not the contract's: Invalid `wire_invalid`."""
    raise Invalid("wire_invalid", "A document is not what the worker contract says.", field=field)


def members(
    value: object, field: str, required: Iterable[str], optional: Iterable[str] = ()
) -> dict[str, Any]:
    """An object of exactly these keys; `optional` ones may be absent."""
    needed = set(required)
    if not isinstance(value, dict) or not needed <= set(value) <= needed | set(optional):
        refuse(field)
    return value


def whole(value: object, field: str, low: int = 0, high: int = SAFE_INTEGER_MAX) -> int:
    """A whole number; True is none."""
    if type(value) is not int or not low <= value <= high:
        refuse(field)
    return value


def maybe_whole(value: object, field: str) -> int | None:
    """A whole number or null."""
    return None if value is None else whole(value, field)


def flag(value: object, field: str) -> bool:
    """True or false."""
    if type(value) is not bool:
        refuse(field)
    return value


def text(value: object, field: str, low: int, high: int) -> str:
    """A text of `low` to `high` bytes in UTF-8, without NUL."""
    if not isinstance(value, str) or "\0" in value:
        refuse(field)
    if not low <= len(value.encode("utf-8")) <= high:
        refuse(field)
    return value


def matching(value: object, field: str, pattern: re.Pattern[str]) -> str:
    """A text that is a pattern, from end to end."""
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        refuse(field)
    return value


def one_of(value: object, field: str, known: Iterable[str]) -> str:
    """One of a few words."""
    if not isinstance(value, str) or value not in known:
        refuse(field)
    return value


def same(value: object, wanted: object, field: str) -> None:
    """Exactly the value that was sent, or that the contract fixes."""
    if type(value) is not type(wanted) or value != wanted:
        refuse(field)


def bounded_id(value: object, field: str, most: int = ID_UNITS_MAX) -> str:
    """An id: 1 to `most` UTF-16 code units and no control character; no other rule."""
    if not isinstance(value, str) or _CONTROL.search(value):
        refuse(field)
    if not 1 <= len(value.encode("utf-16-le", "replace")) // 2 <= most:
        refuse(field)
    return value


def printable(value: object, field: str, most: int) -> str:
    """1 to `most` bytes in UTF-8 without control characters."""
    found = text(value, field, 1, most)
    if _CONTROL.search(found):
        refuse(field)
    return found
