"""The durable process handle and the kernel's line it is compared with (ADR-0069 section 2).

Owns `ql3lp1`, the text by which a later daemon recognises a process and signals nothing else:

    "ql3lp1." + base64url of {"v":1,"h":handle id,"b":boot id,"p":pid,"g":pgid,"s":"start ticks"}

at most 512 bytes, one text for one identity. A text that is not exactly what `Handle.encode` writes
is unknown (`decode` gives None): unknown is never read as dead, and never signalled.
"""

from __future__ import annotations

from qinglong_edge.core import canonical
from qinglong_edge.core.characters import ALPHANUMERIC, consists_of, is_number
from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.limits import HANDLE_BYTES_MAX, SAFE_INTEGER_MAX
from qinglong_edge.core.record import Record

_PREFIX = "ql3lp1."
_VERSION = 1
_START_TICKS_DIGITS_MAX = 32
_START_TICKS_MAX = 10**_START_TICKS_DIGITS_MAX - 1
_HANDLE_ID_CHARACTERS_MAX = 255
_BOOT_ID_CHARACTERS_MAX = 64
_BOOT_ID = ALPHANUMERIC + "-"
_NUMBER_DIGITS_MAX = 20
_FIELDS_MIN = 20  # after the command: state is field 0 and the start time field 19


class Handle(Record):
    """Exactly one process of exactly one boot."""

    handle_id: str
    boot_id: str
    pid: int
    pgid: int
    start_ticks: int

    def _check(self) -> None:
        _require("handle_id", _is_handle_id(self.handle_id))
        _require("boot_id", _is_boot_id(self.boot_id))
        _require("pid", _within(self.pid, SAFE_INTEGER_MAX))
        _require("pgid", _within(self.pgid, SAFE_INTEGER_MAX))
        _require("start_ticks", _within(self.start_ticks, _START_TICKS_MAX))
        _require("bytes", len(self.encode()) <= HANDLE_BYTES_MAX)

    def encode(self) -> str:
        """The durable text, at most 512 bytes of ASCII."""
        document = {
            "v": _VERSION,
            "h": self.handle_id,
            "b": self.boot_id,
            "p": self.pid,
            "g": self.pgid,
            "s": str(self.start_ticks),
        }
        return _PREFIX + canonical.base64url(canonical.encode(document))


def decode(text: str) -> Handle | None:
    """The handle that `text` names, or None if it is not exactly one."""
    if not text.startswith(_PREFIX) or len(text) > HANDLE_BYTES_MAX:
        return None
    try:
        data = canonical.from_base64url(text[len(_PREFIX) :])
        document = canonical.decode(data, bytes_max=HANDLE_BYTES_MAX, depth_max=1)
        if not isinstance(document, dict) or document.keys() != set("vhbpgs"):
            return None
        if not _is_start_ticks(document["s"]):
            return None
        handle = Handle(
            handle_id=document["h"],
            boot_id=document["b"],
            pid=document["p"],
            pgid=document["g"],
            start_ticks=int(document["s"]),
        )
    except Invalid:
        return None
    return handle if handle.encode() == text else None


class Stat(Record):
    """What identity needs of a /proc/<pid>/stat line; `start_ticks` count from boot.

    A kernel thread, or a process of another pid namespace, has group and session 0; one that the
    kernel is just releasing has -1.
    """

    state: str
    pgrp: int
    session: int
    start_ticks: int
    comm: str


def parse_stat(text: bytes, pid: int) -> Stat:
    """The identity in a stat line; the command may hold blanks, brackets and line feeds.

    Invalid `stat_invalid`: not the line of `pid`, or cut short. The caller knows nothing then.
    """
    before, opened, rest = text.partition(b"(")
    comm, closed, after = rest.rpartition(b")")
    fields = after.split()
    if not opened or not closed or before.strip() != b"%d" % pid or len(fields) < _FIELDS_MIN:
        raise Invalid("stat_invalid", "A process's stat line is not complete.", pid=pid)
    numbers = (fields[2], fields[3], fields[19])
    if not all(map(_is_number, numbers)):
        raise Invalid("stat_invalid", "A process's stat line lacks a number.", pid=pid)
    pgrp, session, start_ticks = map(int, numbers)
    return Stat(
        state=fields[0].decode("ascii", "replace"),
        pgrp=pgrp,
        session=session,
        start_ticks=start_ticks,
        comm=comm.decode("utf-8", "replace"),
    )


def _is_handle_id(text: object) -> bool:
    """Whether `text` is 1 to 255 characters of Unicode without NUL."""
    if not isinstance(text, str) or "\0" in text:
        return False
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return 1 <= len(text) <= _HANDLE_ID_CHARACTERS_MAX


def _is_boot_id(text: object) -> bool:
    return (
        isinstance(text, str)
        and 1 <= len(text) <= _BOOT_ID_CHARACTERS_MAX
        and consists_of(text, _BOOT_ID)
    )


def _is_start_ticks(text: object) -> bool:
    """Whether `text` is a whole number above 0 as it is written, without leading zeros."""
    if not isinstance(text, str) or not is_number(text):
        return False
    return text[0] != "0" and len(text) <= _START_TICKS_DIGITS_MAX


def _is_number(text: bytes) -> bool:
    digits = text.removeprefix(b"-")
    return digits.isdigit() and len(digits) <= _NUMBER_DIGITS_MAX


def _within(number: object, highest: int) -> bool:
    return type(number) is int and 1 <= number <= highest


def _require(field: str, holds: bool) -> None:  # noqa: FBT001
    if not holds:
        raise Invalid("handle_invalid", "A process handle's value is out of bounds.", field=field)
