"""The truncation fact and the name of an attempt's log (ADR-0024 section 4).

Owns the log's id, derivable from run and attempt, so that a file that a crash left unnamed is found
by derivation and never by listing a directory:

    "local-" + the first 30 hexadecimal digits of SHA-256(run id, NUL, attempt id)

and the durable fact beside a log that its quota has cut, at most 1,024 bytes, one form only:

    {"schemaVersion":1,"runId":R,"attemptId":A,"logArtifactId":L,
     "maximumBytes":M,"quotaReached":true,"observedAtMs":T}

The wrapper completes `head` with T and ``}``. An absent fact means unknown; it is never inferred
from the log's size. A fact tells no command, output or token, and authorises nothing.
"""

from __future__ import annotations

from qinglong_edge.core import canonical
from qinglong_edge.core.characters import HEX, consists_of
from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.ids import is_portable_id, portable_id
from qinglong_edge.core.limits import (
    FACT_BYTES_MAX,
    LOG_QUOTA_BYTES_MAX,
    LOG_QUOTA_BYTES_MIN,
    SAFE_INTEGER_MAX,
)
from qinglong_edge.core.record import Record

_SCHEMA_VERSION = 1
_LOG_ID_DIGITS = 30
_HEAD_END = '"observedAtMs":'
_KEYS = {
    "runId": "run_id",
    "attemptId": "attempt_id",
    "logArtifactId": "log_artifact_id",
    "maximumBytes": "maximum_bytes",
    "quotaReached": "quota_reached",
    "observedAtMs": "observed_at_ms",
}


class Fact(Record):
    """Whether one attempt's log reached its quota, and when that was seen."""

    run_id: str
    attempt_id: str
    log_artifact_id: str
    maximum_bytes: int
    quota_reached: bool
    observed_at_ms: int

    def _check(self) -> None:
        quota = self.maximum_bytes
        _require("runId", is_portable_id(self.run_id))
        _require("attemptId", is_portable_id(self.attempt_id))
        _require("logArtifactId", is_log_artifact_id(self.log_artifact_id))
        _require("maximumBytes", _within(quota, LOG_QUOTA_BYTES_MIN, LOG_QUOTA_BYTES_MAX))
        _require("quotaReached", type(self.quota_reached) is bool)
        _require("observedAtMs", _within(self.observed_at_ms, 0, SAFE_INTEGER_MAX))

    def encode(self) -> bytes:
        """The canonical bytes, as the wrapper writes them."""
        document: dict[str, object] = {"schemaVersion": _SCHEMA_VERSION}
        document.update({key: getattr(self, field) for key, field in _KEYS.items()})
        return canonical.encode(document)


def decode(data: bytes) -> Fact:
    """The fact whose canonical bytes are exactly `data`; Invalid `fact_invalid` otherwise."""
    try:
        document = canonical.decode(data, bytes_max=FACT_BYTES_MAX, depth_max=1)
    except Invalid as error:
        raise Invalid(
            "fact_invalid", "A truncation fact is not one flat JSON object.", reason=error.code
        ) from None
    if not isinstance(document, dict) or document.keys() != {"schemaVersion", *_KEYS}:
        raise Invalid("fact_invalid", "A truncation fact does not have exactly its seven keys.")
    fact = Fact(**{field: document[key] for key, field in _KEYS.items()})
    if fact.encode() != data:
        raise Invalid("fact_invalid", "A truncation fact is not in its canonical form.")
    return fact


def head(
    *,
    run_id: str,
    attempt_id: str,
    log_artifact_id: str,
    maximum_bytes: int,
    quota_reached: bool = True,
) -> str:
    """The fact's text up to and including ``"observedAtMs":``; Invalid `fact_invalid`."""
    whole = Fact(
        run_id=run_id,
        attempt_id=attempt_id,
        log_artifact_id=log_artifact_id,
        maximum_bytes=maximum_bytes,
        quota_reached=quota_reached,
        observed_at_ms=0,
    )
    before, end, _after = whole.encode().decode("ascii").partition(_HEAD_END)
    return before + end


def log_artifact_id(run_id: str, attempt_id: str) -> str:
    """The 36 characters that name the attempt's log; Invalid `id_invalid`."""
    source = f"{portable_id(run_id, 'run_id')}\0{portable_id(attempt_id, 'attempt_id')}"
    return "local-" + canonical.sha256_hex(source.encode("ascii"))[:_LOG_ID_DIGITS]


def is_log_artifact_id(text: object) -> bool:
    """Whether `text` names a local or a worker's log."""
    if not isinstance(text, str):
        return False
    maker, _dash, digits = text.partition("-")
    return (
        maker in ("local", "wlog")
        and len(digits) == _LOG_ID_DIGITS
        and consists_of(digits, HEX)
    )


def log_shard(log_id: str) -> str:
    """The two-digit directory of a log; Invalid `log_id_invalid` for anything like a path."""
    if not is_log_artifact_id(log_id):
        raise Invalid("log_id_invalid", "A log id is not local- or wlog- and 30 digits.")
    return log_id.partition("-")[2][:2]


def _within(number: object, lowest: int, highest: int) -> bool:
    return type(number) is int and lowest <= number <= highest


def _require(key: str, holds: bool) -> None:  # noqa: FBT001
    if not holds:
        raise Invalid("fact_invalid", "A truncation fact's value is out of bounds.", key=key)
