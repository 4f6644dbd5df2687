"""Canonical JSON, base64url and SHA-256: one way to write a value down, one strict way to read it.

Owns the byte form of every durable document and the only SHA-256 of the program. Compact JSON in
UTF-8, keys in the order given, everything beyond ASCII (U+2028 too) and DEL raw, control characters
as ``\\b \\f \\n \\r \\t`` or ``\\u00xx``: the bytes a JavaScript writer makes of the same value.
Whole numbers only, within +-(2**53 - 1); what two readers could understand differently is refused.

The interpreter's own SHA-256 is taken before hashlib's, which maps libcrypto (3.5 MiB) where a box
has it; hashlib remains for interpreters built without their own.
"""

from __future__ import annotations

import binascii

from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.limits import JSON_DEPTH_MAX, SAFE_INTEGER_MAX

try:  # Python 3.12 and later
    from _sha2 import sha256 as _sha256  # type: ignore[import-not-found]
except ImportError:
    try:  # Python 3.11
        from _sha256 import sha256 as _sha256  # type: ignore[import-not-found]
    except ImportError:  # an interpreter without built-in digests
        from hashlib import sha256 as _sha256

try:
    import _json
except ImportError:  # an interpreter without the C half of `json`
    _json = None  # type: ignore[assignment]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn, Protocol

    class Sha256(Protocol):
        """A running SHA-256."""

        def update(self, data: bytes, /) -> None: ...
        def digest(self) -> bytes: ...
        def hexdigest(self) -> str: ...


_INTEGER_CHARACTERS_MAX = 17  # a sign and the 16 digits of 2**53
_FLOAT_CHARACTERS_MAX = 64  # the longest shortest form of a double has 24
_NO_MARKS = bytes(set(range(256)) - set(b'[]{}"'))
_BLANKS = " \t\n\r"
_TO_URL = bytes.maketrans(b"+/", b"-_")
_FROM_URL = bytes.maketrans(b"-_", b"+/")


def new_sha256() -> Sha256:
    """A running SHA-256 for data that arrives in pieces."""
    running: Sha256 = _sha256()
    return running


def sha256_bytes(data: bytes) -> bytes:
    """The 32 bytes of the SHA-256 of `data`."""
    digest: bytes = _sha256(data).digest()
    return digest


def sha256_hex(data: bytes) -> str:
    """The SHA-256 of `data` as 64 lower-case hexadecimal digits."""
    text: str = _sha256(data).hexdigest()
    return text


def encode(value: object) -> bytes:
    """The canonical bytes of a value of strings, whole numbers, booleans, None, lists and dicts.

    Invalid: `json_number` (a float, or beyond +-(2**53 - 1)), `json_too_deep`, `json_invalid` (a
    key that is no string, a lone surrogate, any other type).
    """
    _check(value, JSON_DEPTH_MAX)
    return _utf8(_COMPACT(value))


def text(value: object, *, spaced: bool = False) -> str:
    """The JSON text of what this program made up itself, to be read and never to be digested.

    Compact, or with a blank after each comma and colon. Floats and lone surrogates are left as they
    are; TypeError for a value without a JSON form.
    """
    return (_SPACED if spaced else _COMPACT)(value)


def digest(value: object) -> str:
    """The SHA-256 of the canonical bytes, 64 lower-case hexadecimal digits."""
    return sha256_hex(encode(value))


def base64url(data: bytes) -> str:
    """`data` in base64url without padding (RFC 4648 section 5)."""
    return binascii.b2a_base64(data, newline=False).translate(_TO_URL).rstrip(b"=").decode("ascii")


def from_base64url(text: str) -> bytes:
    """The bytes of a base64url text; only the one text that `base64url` would write.

    Invalid: `base64url_invalid` (padding, another alphabet, stray bits).
    """
    if text.isascii():
        padded = text.encode("ascii").translate(_FROM_URL) + b"=" * (-len(text) % 4)
        try:
            data = binascii.a2b_base64(padded)
        except binascii.Error:
            data = b""
        if base64url(data) == text:
            return data
    raise Invalid("base64url_invalid", "A text is not base64url without padding.")


def decode(
    data: bytes, *, bytes_max: int, depth_max: int = JSON_DEPTH_MAX, floats: bool = False
) -> object:
    """The value of a foreign JSON document; anything ambiguous is refused.

    Size and nesting are bounded before the parser sees the bytes: deep nesting ends the process on
    a small stack. Invalid: `json_too_large`, `json_too_deep`, `json_invalid` (syntax, UTF-8, a byte
    order mark, a lone surrogate), `json_duplicate_key`, `json_number` (NaN, Infinity, beyond
    +-(2**53 - 1), or a fraction unless `floats`).
    """
    if len(data) > bytes_max:
        raise Invalid("json_too_large", "The document is too large.", bytes_max=bytes_max)
    _bound_depth(data, depth_max)
    try:
        text = data.decode("utf-8").strip(_BLANKS)
    except UnicodeDecodeError:
        raise Invalid("json_invalid", "The document is not UTF-8.") from None
    value, end = _scanned(_WITH_FLOATS if floats else _WHOLE, text)
    if end != len(text):
        raise Invalid("json_invalid", "The document is not JSON.")
    if b"\\ud" in data or b"\\uD" in data:  # may have been half of a surrogate pair
        _utf8(_COMPACT(value))
    return value


def _check(value: object, depth_left: int) -> None:
    """Refuse what JSON, or JavaScript, would write as something else."""
    if value is None or isinstance(value, (str, bool)):
        return
    if isinstance(value, (int, float)):
        if isinstance(value, float) or not -SAFE_INTEGER_MAX <= value <= SAFE_INTEGER_MAX:
            _refuse_number()
        return
    if not isinstance(value, (dict, list, tuple)):
        raise Invalid("json_invalid", "A value has no JSON form.", type=type(value).__name__)
    if not depth_left:
        raise Invalid("json_too_deep", "The value is nested too deeply.")
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise Invalid("json_invalid", "A key is not a string.")
        value = value.values()
    for item in value:
        _check(item, depth_left - 1)


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise Invalid("json_invalid", "A string is not valid Unicode.") from None


def _bound_depth(data: bytes, depth_max: int) -> None:
    """Refuse nesting beyond `depth_max`; linear, and never reads a bracket inside a string.

    Wherever this reading could differ from the parser's (a backslash or a wrong bracket outside a
    string), the parser has stopped already.
    """
    if data.count(b"[") + data.count(b"{") <= depth_max:
        return
    marks = data.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NO_MARKS)
    depth = 0
    for bracket in b"".join(marks.split(b'"')[::2]):  # every second piece is inside a string
        depth += 1 if bracket in b"[{" else -1
        if depth > depth_max:
            raise Invalid("json_too_deep", "The document is nested too deeply.", depth=depth_max)
        if depth < 0:
            raise Invalid("json_invalid", "The document is not JSON.")


def _refuse_number(_text: str = "") -> NoReturn:
    raise Invalid("json_number", "A number is not a whole number within +-(2**53 - 1).")


def _integer(text: str) -> int:
    if len(text) > _INTEGER_CHARACTERS_MAX:
        _refuse_number()
    number = int(text)
    if not -SAFE_INTEGER_MAX <= number <= SAFE_INTEGER_MAX:
        _refuse_number()
    return number


def _float(text: str) -> float:
    number = float(text) if len(text) <= _FLOAT_CHARACTERS_MAX else float("inf")
    if number - number != 0:  # infinite: the text was beyond a double
        raise Invalid("json_number", "A number is beyond the range of a double.")
    return number


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise Invalid("json_duplicate_key", "An object has the same key twice.")
    return members


class _Whole:
    """What a scanner asks of the decoder that it serves."""

    strict = True
    object_hook = None
    object_pairs_hook = _object
    parse_int = _integer
    parse_float = _refuse_number
    parse_constant = _refuse_number


class _WithFloats(_Whole):
    parse_float = _float


def _scanner(hooks: type[_Whole]) -> Callable[[str, int], tuple[object, int]]:
    """`(text, start)` to the value there and where it ends."""
    if _json is not None:
        return _json.make_scanner(hooks)
    from json import JSONDecoder

    return JSONDecoder(
        object_pairs_hook=hooks.object_pairs_hook,
        parse_int=hooks.parse_int,
        parse_float=hooks.parse_float,
        parse_constant=hooks.parse_constant,
    ).scan_once


def _scanned(
    scanner: Callable[[str, int], tuple[object, int]], text: str
) -> tuple[object, int | None]:
    """The value that `text` begins with and where it ends; None where no value ends.

    The scanner tells what it misses with StopIteration, anything else with the error of
    `json.decoder`. It imports that, or (Python 3.11) finds it absent and fails with SystemError.
    """
    try:
        return scanner(text, 0)
    except (StopIteration, ValueError, SystemError, ImportError):
        return None, None


def _writer(comma: str, colon: str) -> Callable[[object], str]:
    """A value to its text; keys in the order given, only what JSON must escape escaped."""
    if _json is None:
        from json import JSONEncoder

        return JSONEncoder(
            ensure_ascii=False, check_circular=False, separators=(comma, colon)
        ).encode
    quote = _json.encode_basestring
    chunks = _json.make_encoder(None, _formless, quote, None, colon, comma, False, False, True)
    return lambda value: "".join(chunks(value, 0))


def _formless(value: object) -> NoReturn:
    raise TypeError(f"{type(value).__name__} has no JSON form")


_WHOLE = _scanner(_Whole)
_WITH_FLOATS = _scanner(_WithFloats)
_COMPACT = _writer(",", ":")
_SPACED = _writer(", ", ": ")
