"""References and envelopes: one text for each, exact keys, and nothing told in an error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qinglong_edge.core import recipe, secret
from qinglong_edge.core.canonical import base64url
from qinglong_edge.core.errors import EdgeError, Invalid, Unavailable
from qinglong_edge.core.limits import (
    BINDINGS_MAX,
    SECRET_MUTATION_BYTES_MAX,
    SECRET_NAME_BYTES_MAX,
    SECRET_REF_BYTES_MAX,
    SECRET_VALUE_BYTES_MAX,
    SECRET_VERSION_MAX,
)
from qinglong_edge.core.secret import Envelope, SecretRef
from tests.unit.zones import FUZZ

T = TypeVar("T")
VECTORS = json.loads(
    (Path(__file__).parents[1] / "vectors" / "secret.json").read_text(encoding="utf-8")
)
DOCUMENT: dict[str, Any] = VECTORS["sealed"][0]["document"]
REFS = st.builds(
    SecretRef,
    project=st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=20),
    name=st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=20),
    version=st.none() | st.integers(1, SECRET_VERSION_MAX),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def name(case: dict[str, Any]) -> str:
    return str(case["name"])


def ref(case: dict[str, Any]) -> SecretRef:
    return SecretRef(project=case["project"], name=case["secret"], version=case["version"])


def code(action: Any, *given_values: Any, **named: Any) -> str:
    with pytest.raises(Invalid) as caught:
        action(*given_values, **named)
    assert caught.value.facts == {}
    return caught.value.code


def attempt(expected: str, action: Callable[[Any], T], what: object) -> T | None:
    """What it gives; None for the one error that it may end in."""
    try:
        return action(what)
    except EdgeError as error:
        if (type(error), error.code) != (Invalid, expected):
            raise
        return None


def envelope(**changes: Any) -> Envelope:
    return secret.from_document(DOCUMENT).replace(**changes)


# References --------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", VECTORS["refs"], ids=name)
def test_a_reference_has_exactly_the_known_text(case: dict[str, Any]) -> None:
    """ADR-0024 verification 6: current and exact versions are two references."""
    assert ref(case).text == case["text"]
    assert secret.parse(case["text"]) == ref(case)
    assert len(case["text"]) <= SECRET_REF_BYTES_MAX
    assert recipe.secret("A", case["text"]).content == case["text"]


@pytest.mark.parametrize("case", VECTORS["not_refs"], ids=name)
def test_every_other_spelling_is_refused_without_a_word_of_it(case: dict[str, Any]) -> None:
    assert code(secret.parse, case["text"]) == "secret_ref_invalid"
    with pytest.raises(Invalid) as caught:
        secret.parse(case["text"])
    assert "TOKEN" not in f"{caught.value!r} {caught.value}"


@pytest.mark.parametrize("what", [None, 1, b"qlsecret:v1:", ["qlsecret:v1:"], "\udcff", True])
def test_what_is_no_text_is_no_reference(what: object) -> None:
    assert code(secret.parse, what) == "secret_ref_invalid"


def test_a_reference_is_bounded_in_each_part_and_whole() -> None:
    assert secret.make("n" * SECRET_NAME_BYTES_MAX, SECRET_VERSION_MAX).project == secret.PROJECT
    for bad in ("", "n" * 129, "é" * 65, "a\x00", "a\x1f", "\x7f", "\ud800", None, 7, b"n"):
        assert code(secret.make, bad) == code(secret.check_name, bad) == "secret_name_invalid"
    for version in (0, -1, SECRET_VERSION_MAX + 1, True, 1.0, "1"):
        assert code(secret.make, "n", version) == "secret_ref_invalid"
    both = {"project": '"' * 128, "name": '"' * 128, "version": None}
    assert code(SecretRef, **both) == "secret_ref_invalid"  # in JSON a quote takes two bytes


def test_references_of_one_edge_keep_their_places() -> None:
    texts = [secret.make(f"n{number}").text for number in range(BINDINGS_MAX)]
    assert [each.name for each in secret.parse_all(texts)] == [
        f"n{number}" for number in range(BINDINGS_MAX)
    ]
    assert secret.parse_all([]) == ()


def test_a_foreign_reference_or_one_too_many_refuses_all_of_them() -> None:
    """ADR-0024 verification 6: another project's secret fails closed."""
    foreign = SecretRef(project="project-1", name="N", version=None).text
    for texts, reason in (
        ([secret.make("N").text, foreign], "foreign_project"),
        ([secret.make("N").text] * (BINDINGS_MAX + 1), "too_many"),
    ):
        with pytest.raises(Unavailable) as caught:
            secret.parse_all(texts)
        assert (caught.value.code, caught.value.facts) == ("secret_unavailable", {"reason": reason})


@FUZZ
@given(REFS)
def test_a_reference_reads_back_as_itself(made: SecretRef) -> None:
    assert secret.parse(made.text) == made


@FUZZ
@given(REFS, st.data())
def test_a_reference_with_one_character_changed_is_refused_or_another_one(
    made: SecretRef, data: st.DataObject
) -> None:
    text = made.text
    place = data.draw(st.integers(0, len(text) - 1))
    changed = text[:place] + data.draw(st.characters()) + text[place + 1 :]
    found = attempt("secret_ref_invalid", secret.parse, changed)
    assert found is None or found.text == changed


@FUZZ
@given(st.text() | st.text().map(secret.PREFIX.__add__) | st.binary().map(base64url))
def test_no_text_at_all_gives_anything_but_a_reference_or_its_error(text: str) -> None:
    for each in (text, secret.PREFIX + text):
        found = attempt("secret_ref_invalid", secret.parse, each)
        assert found is None or found.text == each


# Envelopes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", VECTORS["aad"], ids=name)
def test_what_is_authenticated_has_exactly_the_known_bytes(case: dict[str, Any]) -> None:
    made = envelope(
        project=case["project"],
        name=case["secret"],
        version=case["version"],
        mutation_id=case["mutation"],
        key_id=case["key"],
    )
    assert made.aad() == case["text"].encode()
    assert made.replace(created_at_ms=7).aad() == made.aad()


@pytest.mark.parametrize("case", VECTORS["sealed"], ids=name)
def test_an_envelope_travels_as_its_document_and_back(case: dict[str, Any]) -> None:
    made = secret.from_document(case["document"])
    assert secret.document(made) == case["document"]
    assert list(secret.document(made)) == list(case["document"])
    assert made.nonce == b"\x22" * 12


@pytest.mark.parametrize("field", sorted(DOCUMENT))
def test_a_document_lacks_no_key_and_has_no_other_type(field: str) -> None:
    rest = {key: value for key, value in DOCUMENT.items() if key != field}
    assert code(secret.from_document, rest) == "envelope_invalid"
    wrong: Any
    for wrong in (None, True, -1, 1.5, [], {}, b"x", "", "\x00", "\ud800", 2**53):
        if (field, wrong) != ("ciphertext", ""):  # an empty secret is one
            assert code(secret.from_document, {**DOCUMENT, field: wrong}) == "envelope_invalid"


def test_a_document_has_no_key_more() -> None:
    for wrong in ({**DOCUMENT, "plaintext": "x"}, [DOCUMENT], None, "x", {}):
        assert code(secret.from_document, wrong) == "envelope_invalid"


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("project", ["p", "é" * 64], ["", "p" * 129, "a\n"]),
        ("name", ["n", "n" * 128, 'a"\\'], ["", "n" * 129, "é" * 65, "a\x7f"]),
        ("version", [1, SECRET_VERSION_MAX], [0, SECRET_VERSION_MAX + 1, True, 1.0]),
        ("mutation_id", ["m", "m" * SECRET_MUTATION_BYTES_MAX], ["", "m" * 65, "m\t"]),
        ("key_id", ["k", "A.z_0-" * 21], ["", "k" * 129, "k/", "é", "k\n", None]),
        ("nonce", [bytes(12)], [bytes(11), bytes(13), b"", bytearray(12), "x" * 12]),
        ("ciphertext", [b"", bytes(SECRET_VALUE_BYTES_MAX)], [bytes(65_537), None]),
        ("auth_tag", [bytes(16)], [bytes(15), bytes(17), b""]),
        ("created_at_ms", [0, 2**53 - 1], [-1, 2**53, True, 0.5]),
    ],
)
def test_each_part_of_an_envelope_is_bounded(
    field: str, good: list[object], bad: list[object]
) -> None:
    for value in good:
        made = envelope(**{field: value})
        assert secret.from_document(secret.document(made)) == made
    for value in bad:
        assert code(envelope, **{field: value}) == "envelope_invalid"


@FUZZ
@given(JSON | st.dictionaries(st.sampled_from(sorted(DOCUMENT)), JSON).map(DOCUMENT.__or__))
def test_no_document_gives_anything_but_an_envelope_or_its_error(found: object) -> None:
    made = attempt("envelope_invalid", secret.from_document, found)
    assert made is None or secret.document(made) == found


def test_neither_shows_what_it_holds() -> None:
    assert "TOKEN" not in f"{secret.make('TOKEN')!r} {envelope()!r}"
    assert "edge-key-1" not in repr(envelope())
