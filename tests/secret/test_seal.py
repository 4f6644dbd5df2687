"""Sealing and opening: upstream's vectors bit for bit, and nothing opens that was touched."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qinglong_edge.core import secret, vectors
from qinglong_edge.core.limits import SECRET_VALUE_BYTES_MAX
from qinglong_edge.secret.keyring import Keyring
from qinglong_edge.secret.seal import check_value, open_envelope, reseal, seal_secret
from qinglong_edge.system import aead
from tests.secret.making import KNOWN, MARKER, VECTORS, refused, sealed
from tests.unit.zones import FUZZ

OLD = KNOWN.replace(active="edge-key-1")
VALUES = [b"", b"x", b" \t'\"$(id)`\\\n\r\n ", "é中\U0001f511\u2028 ".encode(), b"a" * 65_536]


def name(case: dict[str, Any]) -> str:
    return str(case["name"])


def make(**changes: Any) -> secret.Envelope:
    given_values: dict[str, Any] = {
        "name": "TOKEN",
        "version": 1,
        "mutation_id": "create-token",
        "plaintext": VECTORS["plaintext"].encode(),
        "created_at_ms": 1_800_000_000_000,
        "random": lambda size: b"\x22" * size,
    }
    return seal_secret(OLD, **{**given_values, **changes})


@pytest.mark.parametrize("case", VECTORS["sealed"], ids=name)
def test_a_sealed_value_has_exactly_the_known_bytes(case: dict[str, Any]) -> None:
    """ADR-0024 verification 6: the cipher, its nonce, its tag and what it authenticates."""
    made = make(mutation_id=case["document"]["mutationId"])
    assert secret.document(made) == case["document"]
    assert open_envelope(OLD, secret.from_document(case["document"])) == b"fixed-secret"


def test_the_product_knows_the_same_answers() -> None:
    assert vectors.aes_gcm(aead.seal, aead.unseal)
    assert not vectors.aes_gcm(lambda *_given: (b"", b""), aead.unseal)
    assert not vectors.aes_gcm(aead.seal, lambda *_given: b"fixed-secret")


@pytest.mark.parametrize(
    "change",
    [
        {"project": "project-1"},
        {"name": "TOKEN2"},
        {"version": 2},
        {"mutation_id": "create-tokem"},
        {"key_id": "edge-key-2"},
        {"nonce": b"\x22" * 11 + b"\x23"},
        {"ciphertext": b""},
        {"ciphertext": make().ciphertext[:-1]},
        {"ciphertext": make().ciphertext + b"\0"},
        {"auth_tag": bytes(16)},
    ],
    ids=str,
)
def test_an_envelope_with_any_fact_changed_does_not_open(change: dict[str, Any]) -> None:
    """ADR-0024 verification 6: a damaged or moved envelope fails closed."""
    said = refused(open_envelope, KNOWN, make().replace(**change))
    assert said == ("secret_unavailable", "not_authentic")


def test_every_flipped_bit_of_ciphertext_and_tag_is_found() -> None:
    made = make()
    for field in ("ciphertext", "auth_tag", "nonce"):
        whole = getattr(made, field)
        for place in range(len(whole) * 8):
            bad = bytearray(whole)
            bad[place // 8] ^= 1 << place % 8
            said = refused(open_envelope, OLD, made.replace(**{field: bytes(bad)}))
            assert said == ("secret_unavailable", "not_authentic")


def test_another_key_of_the_same_id_opens_nothing() -> None:
    other = Keyring(active="edge-key-1", keys=(("edge-key-1", b"\x12" * 32),))
    assert refused(open_envelope, other, make()) == ("secret_unavailable", "not_authentic")
    unknown = Keyring(active="k", keys=(("k", b"\x11" * 32),))
    assert refused(open_envelope, unknown, make()) == ("secret_unavailable", "key_missing")


def test_the_time_of_creation_is_not_part_of_the_seal() -> None:
    assert open_envelope(OLD, make().replace(created_at_ms=5)) == b"fixed-secret"


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{len(value)} bytes")
def test_a_value_keeps_every_byte(value: bytes) -> None:
    made = make(plaintext=value)
    assert len(made.ciphertext) == len(value)
    assert open_envelope(OLD, secret.from_document(secret.document(made))) == value
    assert check_value(value).encode() == value


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"a" * (SECRET_VALUE_BYTES_MAX + 1), "too_large"),
        (MARKER.encode() + b"\0", "nul"),
        (b"\0", "nul"),
        (MARKER.encode() + b"\xff", "not_utf8"),
        ("\ud800".encode("utf-8", "surrogatepass"), "not_utf8"),
    ],
)
def test_a_value_that_no_variable_can_take_is_never_sealed(value: bytes, reason: str) -> None:
    assert refused(make, plaintext=value) == ("secret_value_invalid", reason)


def test_a_nonce_is_taken_anew_each_time_and_must_be_whole() -> None:
    made = [sealed() for _ in range(64)]
    assert len({each.nonce for each in made}) == len({each.ciphertext for each in made}) == 64
    assert refused(make, random=lambda size: b"\x22" * (size - 1))[0] == "secret_unavailable"


def test_a_name_that_is_none_is_refused_before_the_cipher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aead, "seal", None)
    for change in ({"name": "a\n"}, {"version": 0}, {"mutation_id": ""}, {"created_at_ms": -1}):
        assert refused(make, **change) == ("envelope_invalid", None)


def test_a_copy_under_the_active_key_is_the_same_version_and_mutation() -> None:
    first = make()
    copy = reseal(KNOWN, first)
    assert copy == first.replace(
        key_id="edge-key-2",
        nonce=copy.nonce,
        ciphertext=copy.ciphertext,
        auth_tag=copy.auth_tag,
    )
    assert copy.nonce != first.nonce
    only_new = Keyring(active="edge-key-2", keys=(KNOWN.keys[1],))
    assert open_envelope(only_new, copy) == open_envelope(OLD, first)
    assert reseal(KNOWN, copy) is copy  # a repetition changes nothing
    assert refused(reseal, only_new, first) == ("secret_unavailable", "key_missing")
    assert refused(reseal, KNOWN, first.replace(version=2)) == (
        "secret_unavailable",
        "not_authentic",
    )


def test_without_the_package_everything_that_needs_a_key_fails_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = make()
    for module in ("cryptography", "cryptography.hazmat.primitives.ciphers.aead"):
        monkeypatch.setitem(sys.modules, module, None)
    assert not aead.available()
    for action in (make, lambda: open_envelope(OLD, made), lambda: reseal(KNOWN, made)):
        assert refused(action) == ("secret_provider_unavailable", "cryptography_missing")


def test_nothing_shows_what_it_holds() -> None:
    made = sealed()
    for shown in (repr(KNOWN), str(KNOWN), repr(made), repr([made, KNOWN])):
        assert MARKER not in shown
        assert "edge-key" not in shown
        assert "\\x11" not in shown


@FUZZ
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_any_text_comes_back_as_it_was(text: str) -> None:
    assert check_value(open_envelope(KNOWN, sealed(text.encode()))) == text
