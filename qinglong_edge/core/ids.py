"""Identities: portable ids, UUIDv7, callback tokens.

Owns their grammar and how new ones are made; clock and random bytes come from the caller.

UUIDv7 (RFC 9562 section 5.7), written in lower case, so that text order is creation order:

    48 bits epoch milliseconds | 7 | 12 bits | 10 | 62 bits      12 + 62 = one 74-bit counter

A new millisecond starts the counter at a random value with its top bit clear; within one, or while
the clock stands behind the last id, the counter grows by a random step. After a crash the ids go on
behind the last durable one if the caller hands it to `IdSource.resume_after`.

Run and Attempt ids of this program are UUIDv7; stored documents may name any portable id.
"""

from __future__ import annotations

from qinglong_edge.core.canonical import base64url, sha256_hex
from qinglong_edge.core.characters import ALPHANUMERIC, HEX, consists_of
from qinglong_edge.core.errors import Invalid, Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

TOKEN_BYTES = 32
_PORTABLE_CHARACTERS_MAX = 36
_PORTABLE = ALPHANUMERIC + "._:-"
_TOKEN = ALPHANUMERIC + "_-"
_BLOB_BYTES = 16
_MS_MAX = 2**48 - 1
_COUNTER_BITS = 74
_LOW_BITS = 62
_LOW_MASK = 2**_LOW_BITS - 1


def is_portable_id(text: object) -> bool:
    """Whether `text` is an id of 1..36 characters that is safe as a file name."""
    return (
        isinstance(text, str)
        and 1 <= len(text) <= _PORTABLE_CHARACTERS_MAX
        and text[0] in ALPHANUMERIC
        and consists_of(text, _PORTABLE)
    )


def portable_id(text: object, field: str = "id") -> str:
    """`text` if it is a portable id, else Invalid `id_invalid` naming `field`."""
    if isinstance(text, str) and is_portable_id(text):
        return text
    raise Invalid("id_invalid", "An id is not 1 to 36 letters, digits or . _ : -", field=field)


def uuid7(text: object, field: str = "id") -> str:
    """`text` if it is a UUIDv7 in lower case, else Invalid `id_invalid` naming `field`."""
    if isinstance(text, str) and _is_uuid7(text):
        return text
    raise Invalid("id_invalid", "An id is not a UUIDv7 in lower case.", field=field)


def uuid7_ms(text: str) -> int:
    """The epoch milliseconds inside a UUIDv7; Invalid `id_invalid`."""
    return int(uuid7(text)[:13].replace("-", ""), 16)


def to_blob(text: str) -> bytes:
    """The 16 bytes of a UUIDv7, in the same order as the text; Invalid `id_invalid`."""
    return bytes.fromhex(uuid7(text).replace("-", ""))


def from_blob(blob: bytes) -> str:
    """The text of a UUIDv7 of 16 bytes; Invalid `id_invalid`."""
    if len(blob) != _BLOB_BYTES:
        raise Invalid("id_invalid", "An id does not have 16 bytes.", bytes=len(blob))
    return uuid7(_dashed(blob.hex()))


class IdSource:
    """UUIDv7 in strictly ascending order, whatever the clock does."""

    def __init__(self, wall_ms: Callable[[], int], random: Callable[[int], bytes]) -> None:
        """`wall_ms` gives epoch milliseconds, `random(n)` gives n unpredictable bytes."""
        self._wall_ms = wall_ms
        self._random = random
        self._ms = -1
        self._counter = 0

    def next(self) -> str:
        """A new id, greater than all before; Unavailable `ids_exhausted` in the year 10889."""
        now_ms = min(max(self._wall_ms(), 0), _MS_MAX)
        if now_ms > self._ms:
            self._restart(now_ms)
        else:
            self._counter += 1 + int.from_bytes(self._random(4), "big")
            if self._counter >> _COUNTER_BITS:
                self._restart(self._ms + 1)
        if self._ms > _MS_MAX:
            raise Unavailable("ids_exhausted", "No id is left behind the last one.")
        high, low = self._counter >> _LOW_BITS, self._counter & _LOW_MASK
        number = self._ms << 80 | 7 << 76 | high << 64 | 2 << 62 | low
        return _dashed(f"{number:032x}")

    def resume_after(self, text: str) -> None:
        """Let every later id be greater than this one too; Invalid `id_invalid`."""
        number = int.from_bytes(to_blob(text), "big")
        ms = number >> 80
        counter = (number >> 64 & 0xFFF) << _LOW_BITS | number & _LOW_MASK
        if (ms, counter) > (self._ms, self._counter):
            self._ms, self._counter = ms, counter

    def _restart(self, ms: int) -> None:
        self._ms = ms
        self._counter = int.from_bytes(self._random(10), "big") >> 7  # 73 bits: room to grow


def new_token(random: Callable[[int], bytes]) -> str:
    """A callback token: 32 random bytes as 43 base64url characters."""
    secret = random(TOKEN_BYTES)
    if len(secret) != TOKEN_BYTES:
        raise Unavailable("random_short", "The random source gave too few bytes.")
    return base64url(secret)


def is_callback_token(text: object) -> bool:
    """Whether `text` has the form of a callback token, 32..128 base64url characters."""
    return isinstance(text, str) and 32 <= len(text) <= 128 and consists_of(text, _TOKEN)


def token_hash(token: str) -> str:
    """What is stored of a callback token: the SHA-256 of its text, 64 hexadecimal digits."""
    return sha256_hex(token.encode("utf-8"))


def _is_uuid7(text: str) -> bool:
    digits = text.replace("-", "")
    return (
        len(digits) == 2 * _BLOB_BYTES
        and consists_of(digits, HEX)
        and text == _dashed(digits)
        and digits[12] == "7"
        and digits[16] in "89ab"
    )


def _dashed(digits: str) -> str:
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
