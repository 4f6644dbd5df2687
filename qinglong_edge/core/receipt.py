"""The completion receipt: what a wrapper says about the end of its command (ADR-0069 section 2).

Owns the value and its byte form, schema 1, one JSON object of exactly eight scalar keys, at most
4,096 bytes, written compactly in this order:

    {"schemaVersion":1,"runId":R,"attemptId":A,"callbackSequence":N,"token":T,
     "startedAtMs":S,"finishedAtMs":F,"exitCode":E}

The wrapper completes `head` with F, ``,"exitCode":``, E and ``}``; the bytes on its channel and in
a published file are the same. A receipt is never repaired: anything else is `ReceiptInvalid`. The
token proves the writer; it stays out of `repr`.
"""

from __future__ import annotations

from _operator import _compare_digest  # hmac's own, without loading libcrypto

from qinglong_edge.core import canonical
from qinglong_edge.core.characters import HEX, consists_of
from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.ids import is_callback_token, is_portable_id, token_hash
from qinglong_edge.core.limits import RECEIPT_BYTES_MAX, SAFE_INTEGER_MAX
from qinglong_edge.core.record import Record

_SCHEMA_VERSION = 1
_EXIT_CODE_MAX = 255
_HASH_DIGITS = 64
_LINE_BYTES_MAX = 8_192  # of a word and a receipt
_HEAD_END = '"finishedAtMs":'
_KEYS = {
    "runId": "run_id",
    "attemptId": "attempt_id",
    "callbackSequence": "callback_sequence",
    "token": "token",
    "startedAtMs": "started_at_ms",
    "finishedAtMs": "finished_at_ms",
    "exitCode": "exit_code",
}


class ReceiptInvalid(Invalid):
    """Bytes or values that are no receipt; the code is `receipt_invalid`."""


class Receipt(Record):
    """One end of one attempt's wrapper; times are epoch milliseconds, `exit_code` is 0..255."""

    run_id: str
    attempt_id: str
    callback_sequence: int
    token: str
    started_at_ms: int
    finished_at_ms: int
    exit_code: int

    def _check(self) -> None:
        _require("runId", is_portable_id(self.run_id))
        _require("attemptId", is_portable_id(self.attempt_id))
        _require("callbackSequence", _within(self.callback_sequence, 1, SAFE_INTEGER_MAX))
        _require("token", is_callback_token(self.token))
        _require("startedAtMs", _within(self.started_at_ms, 0, SAFE_INTEGER_MAX))
        earliest_ms = self.started_at_ms
        _require("finishedAtMs", _within(self.finished_at_ms, earliest_ms, SAFE_INTEGER_MAX))
        _require("exitCode", _within(self.exit_code, 0, _EXIT_CODE_MAX))

    def encode(self) -> bytes:
        """The canonical bytes, as the wrapper writes them."""
        document: dict[str, object] = {"schemaVersion": _SCHEMA_VERSION}
        document.update({key: getattr(self, field) for key, field in _KEYS.items()})
        return canonical.encode(document)

    def __repr__(self) -> str:
        return f"Receipt(attempt_id={self.attempt_id!r}, exit_code={self.exit_code!r})"


def decode(data: bytes) -> Receipt:
    """The receipt in `data`, 1..4,096 bytes of JSON in any layout; ReceiptInvalid otherwise."""
    try:
        document = canonical.decode(data, bytes_max=RECEIPT_BYTES_MAX, depth_max=1)
    except Invalid as error:
        raise ReceiptInvalid(
            "receipt_invalid", "A receipt is not one flat JSON object.", reason=error.code
        ) from None
    if not isinstance(document, dict) or document.keys() != {"schemaVersion", *_KEYS}:
        raise ReceiptInvalid("receipt_invalid", "A receipt does not have exactly its eight keys.")
    version = document["schemaVersion"]
    _require("schemaVersion", _within(version, _SCHEMA_VERSION, _SCHEMA_VERSION))
    return Receipt(**{field: document[key] for key, field in _KEYS.items()})


def head(
    *, run_id: str, attempt_id: str, callback_sequence: int, token: str, started_at_ms: int
) -> str:
    """The receipt's text up to and including ``"finishedAtMs":``; ReceiptInvalid."""
    whole = Receipt(
        run_id=run_id,
        attempt_id=attempt_id,
        callback_sequence=callback_sequence,
        token=token,
        started_at_ms=started_at_ms,
        finished_at_ms=started_at_ms,
        exit_code=0,
    )
    before, end, _after = whole.encode().decode("ascii").partition(_HEAD_END)
    return before + end


def heard(said: bytes, *, over: bool) -> tuple[str, Receipt | None] | None:
    """The word and the receipt of a wrapper's line; None while more of it may come.

    Without a receipt what was said is none: not believable, longer than any, or `over` too soon.
    """
    line, newline, _rest = said.partition(b"\n")
    if not newline:
        return ("", None) if over or len(said) > _LINE_BYTES_MAX else None
    word, _, text = line.partition(b" ")
    try:
        return word.decode("ascii", "replace"), decode(text)
    except ReceiptInvalid:
        return "", None


def token_matches(receipt: Receipt, token_hash_hex: str) -> bool:
    """Whether the receipt carries the token of this stored hash; takes the same time either way."""
    if len(token_hash_hex) != _HASH_DIGITS or not consists_of(token_hash_hex, HEX):
        return False
    return _compare_digest(token_hash(receipt.token), token_hash_hex)


def _within(number: object, lowest: int, highest: int) -> bool:
    return type(number) is int and lowest <= number <= highest


def _require(key: str, holds: bool) -> None:  # noqa: FBT001
    if not holds:
        raise ReceiptInvalid("receipt_invalid", "A receipt's value is out of its bounds.", key=key)
