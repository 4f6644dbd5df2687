"""Known answers: the product proves on the box itself that its formats are the ones it promises.

Owns a few literal answers for each durable format. A wrong digest or a wrong byte would orphan
every stored document, so a user can ask before trusting a box; nothing is read, written or changed.
Each check is a name and a function that compares; everything is imported when a check runs.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from qinglong_edge.core.secret import Envelope

    Check = tuple[str, Callable[[], bool]]

_RUN = "019f7200-0000-7000-8000-000000000001"
_ATTEMPT = "019f7200-0000-7000-8000-000000000002"
_UUID7 = "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"  # RFC 9562 appendix A.6
_UUID7_MS = 1_645_557_742_000
_RECEIPT_SHA256 = "db7c9813f86b221b097ec9bbcdea6dd249eaf6e2926f070493952d169ee1ac5c"
_RECEIPT_BYTES = 262
_HANDLE = (
    "ql3lp1.eyJ2IjoxLCJoIjoiaGFuZGxlLTEiLCJiIjoiMTExMTExMTEtMjIyMi0zMzMzLTQ0NDQtNTU1NTU1NTU1NTU1"
    "IiwicCI6MTIzNCwiZyI6MTIzNCwicyI6Ijk4NzY1NCJ9"
)
_FACT = (
    b'{"schemaVersion":1,"runId":"019f7500-0000-7000-8000-000000000001",'
    b'"attemptId":"019f7500-0000-7000-8000-000000000002",'
    b'"logArtifactId":"local-cccccccccccccccccccccccccccccc","maximumBytes":65536,'
    b'"quotaReached":true,"observedAtMs":1800000000000}'
)
_RECIPES: tuple[tuple[tuple[tuple[str, str, str], ...], str], ...] = (
    ((), "4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945"),
    (
        (("TOKEN", "secret", "secret://token"), ("MODE", "public", "edge")),
        "d70176732d42e2701d95adce0371b765226a3d5085e17d14816615c933fc5c7f",
    ),
    (
        (("UNI", "public", '\u00e9\u4e2d\u2028"\\\n\x7f'),),
        "5c167d3e2a312dd9e258a6418577f99c0932d47bcaaad7be77d5435559d1f41a",
    ),
)
_LOGS = (
    ("run-1", "attempt-1", "local-4191eb4eb220b1e806c9a0e7a38cee"),
    ("run-artifact", "attempt-artifact", "local-94a9cf2d5af2f328fb321525eff831"),
)
# (what the reference names, its base64url)
_SECRET_REFS = (
    (("default", "TOKEN", None), "eyJwcm9qZWN0SWQiOiJkZWZhdWx0IiwibmFtZSI6IlRPS0VOIn0"),
    (
        ("default", "TOKEN", 2),
        "eyJwcm9qZWN0SWQiOiJkZWZhdWx0IiwibmFtZSI6IlRPS0VOIiwidmVyc2lvbiI6Mn0",
    ),
    (
        ("project-1", "TOKEN", 7),
        "eyJwcm9qZWN0SWQiOiJwcm9qZWN0LTEiLCJuYW1lIjoiVE9LRU4iLCJ2ZXJzaW9uIjo3fQ",
    ),
)
_SECRET_TAGS = (
    ("create-token", "2af0_G7xHiOEBvMlsBSr0Q"),
    ("mutation-1", "tsA93yEy5RJCD5Q6wngfgA"),
)


def checks() -> list[Check]:
    """Every check by name; True if it holds, else False or an exception."""
    return [
        ("sha256", _sha256),
        ("canonical_json", _canonical_json),
        ("base64url", _base64url),
        ("uuid7", _uuid7),
        ("callback_token", _callback_token),
        ("receipt", _receipt),
        ("receipt_refusals", _receipt_refusals),
        ("process_handle", _process_handle),
        ("process_stat", _process_stat),
        ("context_recipe", _context_recipe),
        ("truncation_fact", _truncation_fact),
        ("log_id", _log_id),
        ("log_tombstone", _log_tombstone),
        ("secret_ref", _secret_ref),
        ("secret_envelope", _secret_envelope),
    ]


def run() -> list[dict[str, object]]:
    """Each check as ``{"name": ..., "ok": ...}``; never raises."""
    return [{"name": name, "ok": holds(check)} for name, check in checks()]


def holds(check: Callable[[], bool]) -> bool:
    """Whether a check gives True; never raises."""
    try:
        return check() is True
    except Exception:  # noqa: BLE001 - whatever a broken box does is the answer "no"
        return False


def _refuses(action: Callable[..., object], *given: object, **named: object) -> bool:
    from qinglong_edge.core.errors import EdgeError

    try:
        action(*given, **named)
    except EdgeError:
        return True
    return False


def _sha256() -> bool:
    from qinglong_edge.core.canonical import new_sha256, sha256_bytes, sha256_hex

    running = new_sha256()
    running.update(b"a")
    running.update(b"bc")
    answer = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    return running.hexdigest() == sha256_hex(b"abc") == sha256_bytes(b"abc").hex() == answer


def _canonical_json() -> bool:
    from qinglong_edge.core.canonical import decode, encode

    value = {"b": ["\u4e2d\u2028", "\x7f\x01\n/"], "a": {"n": -(2**53) + 1, "t": True, "z": None}}
    text = (
        '{"b":["\u4e2d\u2028","\x7f\\u0001\\n/"],"a":{"n":-9007199254740991,"t":true,"z":null}}'
    ).encode()
    foreign = (b'{"a":1,"a":1}', b"[NaN]", b"[1.0]", b"[9007199254740992]", b'["\\ud800"]', b"[")
    return (
        encode(value) == text
        and decode(text, bytes_max=len(text)) == value
        and all(_refuses(decode, data, bytes_max=64) for data in foreign)
        and _refuses(decode, b"[" * 33 + b"]" * 33, bytes_max=128)
    )


def _base64url() -> bool:
    from qinglong_edge.core.canonical import base64url, from_base64url

    return (
        base64url(b"\xfb\xff\xfe") == "-__-"
        and base64url(b"\xff") == "_w"
        and from_base64url("_w") == b"\xff"
        and all(_refuses(from_base64url, text) for text in ("_w==", "_x", "+w"))
    )


def _uuid7() -> bool:
    from qinglong_edge.core.ids import IdSource, from_blob, to_blob, uuid7_ms

    clock = iter((_UUID7_MS, _UUID7_MS, 0))
    source = IdSource(lambda: next(clock), bytes)  # bytes(n) is n zeros
    made = [source.next(), source.next(), source.next()]
    source = IdSource(lambda: 0, bytes)
    source.resume_after(_UUID7)
    return (
        uuid7_ms(_UUID7) == _UUID7_MS
        and to_blob(_UUID7).hex() == _UUID7.replace("-", "")
        and from_blob(to_blob(_UUID7)) == _UUID7
        and made[0] == "017f22e2-79b0-7000-8000-000000000000"
        and made == sorted(set(made))
        and source.next() == "017f22e2-79b0-7cc3-98c4-dc0c0c073990"
    )


def _callback_token() -> bool:
    from qinglong_edge.core.ids import new_token, token_hash

    answer = "0f007385b6f9d4b7eeb2748605afe1a984a0a3bfa3f014d09e2a784ce9e5cd1a"
    return new_token(bytes) == "A" * 43 and token_hash("A" * 43) == answer


def _receipt() -> bool:
    from qinglong_edge.core import receipt
    from qinglong_edge.core.canonical import sha256_hex

    head = receipt.head(
        run_id=_RUN,
        attempt_id=_ATTEMPT,
        callback_sequence=1,
        token="a" * 43,
        started_at_ms=1_750_200_000_000,
    )
    data = (head + '1750200000100,"exitCode":0}').encode()
    found = receipt.decode(data)
    return (
        len(data) == _RECEIPT_BYTES
        and sha256_hex(data) == _RECEIPT_SHA256
        and found.encode() == data
        and receipt.token_matches(found, sha256_hex(b"a" * 43))
        and not receipt.token_matches(found, sha256_hex(b"b" * 43))
    )


def _receipt_refusals() -> bool:
    from qinglong_edge.core import receipt

    good = (
        b'{"schemaVersion":1,"runId":"r","attemptId":"a","callbackSequence":1,"token":"%s",'
        b'"startedAtMs":1,"finishedAtMs":2,"exitCode":0}' % (b"A" * 32)
    )
    bad = (
        good.replace(b'"exitCode":0', b'"exitCode":256'),
        good.replace(b'"exitCode":0', b'"exitCode":false'),
        good.replace(b'"exitCode":0', b'"exitCode":0,"exitCode":0'),
        good.replace(b'"exitCode":0', b'"exitCode":0,"x":0'),
        good.replace(b'"finishedAtMs":2', b'"finishedAtMs":0'),
        good.replace(b'"attemptId":"a"', b'"attemptId":"a/b"'),
        good + b" " * 4096,
        good[:-1],
    )
    return receipt.decode(good).exit_code == 0 and all(
        _refuses(receipt.decode, data) for data in bad
    )


def _process_handle() -> bool:
    from qinglong_edge.core import handle

    known = handle.Handle(
        handle_id="handle-1",
        boot_id="11111111-2222-3333-4444-555555555555",
        pid=1234,
        pgid=1234,
        start_ticks=987654,
    )
    bad = ("", "ql3lp1.", "ql3lp1.not+base64url", _HANDLE + "=", _HANDLE[:-1], _HANDLE.upper())
    return (
        known.encode() == _HANDLE
        and handle.decode(_HANDLE) == known
        and all(handle.decode(text) is None for text in bad)
    )


def _process_stat() -> bool:
    from qinglong_edge.core.handle import parse_stat

    line = b"7 (a) S (b) R 1 7 7" + b" 0" * 15 + b" 456 0\n"
    stat = parse_stat(line, 7)
    return (
        (stat.state, stat.pgrp, stat.session, stat.start_ticks) == ("R", 7, 7, 456)
        and stat.comm == "a) S (b"
        and _refuses(parse_stat, line, 8)
        and _refuses(parse_stat, line[:30], 7)
    )


def _context_recipe() -> bool:
    from qinglong_edge.core import recipe

    for bindings, digest in _RECIPES:
        made = recipe.from_bindings(
            recipe.public(name, content) if kind == "public" else recipe.secret(name, content)
            for name, kind, content in bindings
        )
        ref = recipe.CONTEXT_REF_PREFIX + digest
        data = made.canonical()
        if made.context_ref != ref or recipe.decode(data, ref) != made:
            return False
        if not _refuses(recipe.decode, data + b" ", ref):
            return False
    return _refuses(recipe.public, "QL3_HEAD", "x")


def _truncation_fact() -> bool:
    from qinglong_edge.core import fact

    known = fact.decode(_FACT)
    head = fact.head(
        run_id=known.run_id,
        attempt_id=known.attempt_id,
        log_artifact_id=known.log_artifact_id,
        maximum_bytes=65_536,
    )
    return (
        known.encode() == _FACT == (head + "1800000000000}").encode()
        and known.quota_reached
        and _refuses(fact.decode, _FACT + b"\n")
        and _refuses(fact.decode, _FACT.replace(b"65536", b"65535"))
    )


def _log_id() -> bool:
    from qinglong_edge.core.fact import log_artifact_id, log_shard

    return all(
        log_artifact_id(run, attempt) == answer and log_shard(answer) == answer[6:8]
        for run, attempt, answer in _LOGS
    )


def _log_tombstone() -> bool:
    from qinglong_edge.core import tombstone
    from qinglong_edge.core.commit import AttemptKey

    answer = bytes.fromhex("daeadacb8bd20042d1ec91c8046270b8a5325e79d42a21c5cc1bdee37fef5a7c")
    found = tombstone.verified(
        answer,
        key=AttemptKey(run_number=1, attempt=1),
        project_id="prj_default",
        run_id="run_1",
        attempt_id="attempt_1",
        log_artifact_id="local-" + "a" * 29 + "1",
        finished_at_ms=1,
        eligible_at_ms=2,
        retired_at_ms=3,
        disposition=tombstone.DELETED,
        bytes=10,
        truncated=True,
        maximum_bytes=64,
        observed_at_ms=1,
    )
    return found.digest() == answer


def _secret_ref() -> bool:
    from qinglong_edge.core import secret

    swapped = "eyJuYW1lIjoiVE9LRU4iLCJwcm9qZWN0SWQiOiJkZWZhdWx0In0"  # its keys in another order
    for (project, name, version), packed in _SECRET_REFS:
        ref = secret.SecretRef(project=project, name=name, version=version)
        if ref.text != secret.PREFIX + packed or secret.parse(ref.text) != ref:
            return False
    return all(
        _refuses(secret.parse, text) for text in (secret.PREFIX, secret.PREFIX + swapped, "TOKEN")
    )


def _secret_envelope() -> bool:
    from qinglong_edge.core import secret

    known = _sealed("create-token").replace(
        project="project-1", version=3, mutation_id="mutation-3", key_id="key-2"
    )
    document = secret.document(known)
    return (
        known.aad()
        == b'{"projectId":"project-1","name":"TOKEN","version":3,'
        b'"mutationId":"mutation-3","keyId":"key-2","algorithm":"aes-256-gcm"}'
        and secret.from_document(document) == known
        and _refuses(secret.from_document, {**document, "x": 0})
        and _refuses(secret.from_document, {**document, "nonce": "IiIiIiIiIiIiIiI"})
    )


def aes_gcm(
    seal: Callable[[bytes, bytes, bytes, bytes], tuple[bytes, bytes]],
    unseal: Callable[[bytes, bytes, bytes, bytes, bytes], bytes],
) -> bool:
    """Whether a box's cipher gives the known envelopes; it is not one of `checks`, which need none.

    Any error of the cipher's passes through.
    """
    key, value = b"\x11" * 32, b"fixed-secret"
    for mutation, _tag in _SECRET_TAGS:
        known = _sealed(mutation)
        nonce, aad, sealed = known.nonce, known.aad(), (known.ciphertext, known.auth_tag)
        if seal(key, nonce, aad, value) != sealed or unseal(key, nonce, aad, *sealed) != value:
            return False
    return _refuses(unseal, key, nonce, aad + b" ", *sealed)


def _sealed(mutation: str) -> Envelope:
    from qinglong_edge.core.secret import ALGORITHM, from_document

    return from_document(
        {
            "projectId": "default",
            "name": "TOKEN",
            "version": 1,
            "mutationId": mutation,
            "keyId": "edge-key-1",
            "algorithm": ALGORITHM,
            "nonce": "IiIiIiIiIiIiIiIi",
            "ciphertext": "cZ5_LKTi7DqGTbtI",
            "authTag": dict(_SECRET_TAGS)[mutation],
            "createdAtMs": 0,
        }
    )
