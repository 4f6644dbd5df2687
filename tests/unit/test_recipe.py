"""The context recipe: address, canonical form, limits, and reading back."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qinglong_edge.core import recipe
from qinglong_edge.core.errors import Corrupt, Invalid
from qinglong_edge.core.limits import (
    BINDING_VALUE_BYTES_MAX,
    BINDINGS_BYTES_MAX,
    BINDINGS_MAX,
    SECRET_REF_BYTES_MAX,
)
from qinglong_edge.core.recipe import Binding, Recipe, from_bindings, public, secret

FUZZ = settings(max_examples=200, deadline=None, derandomize=True, database=None)
VECTORS = json.loads(
    (Path(__file__).parents[1] / "vectors" / "recipe.json").read_text(encoding="utf-8")
)
SHELL_NAMES = ["SHELLOPTS", "BASHOPTS", "OPTIND", "IFS", "PPID", "PWD", "OLDPWD", "SHLVL", "_"]
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,20}", fullmatch=True).filter(
    lambda name: name not in SHELL_NAMES and not name.startswith("QL3_")
)
REFS = st.from_regex(r"[a-z][a-z0-9:/]{0,20}", fullmatch=True)
BINDINGS = st.builds(public, NAMES, TEXTS) | st.builds(secret, NAMES, REFS)
RECIPES = st.lists(BINDINGS, unique_by=lambda each: each.name, max_size=8).map(from_bindings)


def name(case: dict[str, Any]) -> str:
    return str(case["name"])


def binding(case: dict[str, str]) -> Binding:
    make = public if case["kind"] == "public" else secret
    return make(case["name"], case["content"])


def address(data: bytes) -> str:
    return "localctx:sha256:" + hashlib.sha256(data).hexdigest()


def code(action: Any, *given_values: Any, **named: Any) -> str:
    with pytest.raises(Invalid) as caught:
        action(*given_values, **named)
    return caught.value.code


def corrupt(data: bytes, context_ref: str) -> Corrupt:
    with pytest.raises(Corrupt) as caught:
        recipe.decode(data, context_ref)
    return caught.value


# The known answers -------------------------------------------------------------------------------


@pytest.mark.parametrize("case", VECTORS["valid"], ids=name)
def test_a_recipe_has_exactly_the_known_bytes_and_address(case: dict[str, Any]) -> None:
    """ADR-0024 verification 1: fixed vectors of order, address and digest."""
    made = from_bindings(map(binding, case["bindings"]))
    assert made.canonical() == case["text"].encode("utf-8")
    assert made.context_ref == case["context_ref"]
    assert made.record_digest == case["record_digest"]
    assert recipe.is_context_ref(made.context_ref)
    assert len(made.context_ref) == 80


@pytest.mark.parametrize("case", VECTORS["valid"], ids=name)
def test_the_order_of_the_input_does_not_change_the_address(case: dict[str, Any]) -> None:
    made = from_bindings(map(binding, reversed(case["bindings"])))
    assert made.context_ref == case["context_ref"]


@pytest.mark.parametrize("case", VECTORS["valid"], ids=name)
def test_the_stored_text_is_read_back(case: dict[str, Any]) -> None:
    found = recipe.decode(case["text"].encode("utf-8"), case["context_ref"])
    assert found == from_bindings(map(binding, case["bindings"]))


@pytest.mark.parametrize("case", VECTORS["damaged"], ids=name)
def test_a_text_that_is_not_canonical_is_corrupt_even_under_its_own_digest(
    case: dict[str, Any],
) -> None:
    """ADR-0024 verification 3: fail closed."""
    error = corrupt(case["text"].encode("utf-8"), case["context_ref"])
    assert error.code == "recipe_corrupt"
    assert error.facts["reason"] != "digest"


# Reading back ------------------------------------------------------------------------------------

MODE = from_bindings([public("MODE", "edge"), secret("TOKEN", "secret://token")])


def test_another_digest_is_corrupt() -> None:
    other = from_bindings([]).context_ref
    assert corrupt(MODE.canonical(), other).facts == {"reason": "digest"}


@pytest.mark.parametrize(
    "context_ref",
    [
        "",
        "secret://token",
        "localctx:sha256:",
        MODE.context_ref.upper(),
        MODE.context_ref[:-1],
        MODE.context_ref + "0",
        MODE.context_ref + "\n",
        MODE.context_ref.replace("local", "remote"),
        MODE.context_ref[len("localctx:sha256:") :],
    ],
)
def test_an_address_of_another_form_is_corrupt(context_ref: str) -> None:
    assert not recipe.is_context_ref(context_ref)
    assert corrupt(MODE.canonical(), context_ref).facts == {"reason": "context_ref"}


@pytest.mark.parametrize("context_ref", [None, 1, b"x"])
def test_what_is_no_text_is_no_address(context_ref: object) -> None:
    assert not recipe.is_context_ref(context_ref)


def test_every_changed_byte_is_corrupt() -> None:
    data = MODE.canonical()
    for place in range(len(data)):
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        corrupt(changed, MODE.context_ref)


@pytest.mark.parametrize("data", [b"", b"\xff", b"[" * 100, b"[" * 100_000, b"[1e999]", b"[NaN]"])
def test_foreign_bytes_under_their_own_digest_are_corrupt(data: bytes) -> None:
    corrupt(data, address(data))


def test_a_text_beyond_every_legal_recipe_is_corrupt() -> None:
    data = b'["' + b"x" * 2_000_000 + b'"]'
    assert corrupt(data, address(data)).facts == {"reason": "json_too_large"}


def test_too_many_stored_bindings_are_corrupt() -> None:
    document = [{"name": f"A{n:03}", "kind": "public", "value": ""} for n in range(257)]
    data = json.dumps(document, separators=(",", ":")).encode()
    assert corrupt(data, address(data)).facts == {"reason": "bindings_too_many"}


@FUZZ
@given(RECIPES)
def test_what_is_written_is_read_back(made: Recipe) -> None:
    data = made.canonical()
    assert recipe.decode(data, made.context_ref) == made
    assert made.context_ref == address(data)
    names = [each["name"] for each in json.loads(data)]
    assert names == sorted(names)


@FUZZ
@given(st.binary(max_size=100))
def test_any_bytes_under_their_own_digest_are_a_recipe_or_corrupt(data: bytes) -> None:
    try:
        found = recipe.decode(data, address(data))
    except Corrupt:
        return
    assert found.canonical() == data


@FUZZ
@given(RECIPES, st.data())
def test_a_changed_text_under_its_own_digest_is_a_recipe_or_corrupt(
    made: Recipe, data: st.DataObject
) -> None:
    changed = bytearray(made.canonical())
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = recipe.decode(bytes(changed), address(bytes(changed)))
    except Corrupt:
        return
    assert found.canonical() == bytes(changed)


@FUZZ
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["name", "kind", "value", "secretRef", "x"]), inner, max_size=4
            )
        ),
    )
)
def test_any_document_is_a_recipe_or_corrupt(document: object) -> None:
    data = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    encoded = data.encode("utf-8", "surrogatepass")
    try:
        found = recipe.decode(encoded, address(encoded))
    except Corrupt:
        return
    assert found.canonical() == encoded


# Names -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["A", "a", "_A", "__", "A1", "PATH", "QL3", "QL", "a" * 128])
def test_a_name_of_the_grammar_is_accepted(text: str) -> None:
    assert public(text, "").name == text


@pytest.mark.parametrize(
    "text",
    ["", "1A", "A-B", "A.B", "A=B", "A B", "A\n", "A\0", "\u00c9", "A\u0661", "\ud800", None, b"A"],
)
def test_a_name_outside_the_grammar_is_refused(text: Any) -> None:
    assert code(public, text, "x") == "binding_name_invalid"
    assert code(secret, text, "x") == "binding_name_invalid"


@pytest.mark.parametrize("length", [127, 128, 129])
def test_a_name_has_at_most_128_characters(length: int) -> None:
    if length <= 128:
        assert public("N" * length, "x")
    else:
        assert code(public, "N" * length, "x") == "binding_name_invalid"


@pytest.mark.parametrize("text", ["QL3_", "QL3_HEAD", "QL3_RECEIPT_TOKEN", "QL3__", *SHELL_NAMES])
def test_a_name_of_the_shell_or_the_wrapper_is_refused(text: str) -> None:
    assert code(public, text, "x") == "binding_name_refused"
    assert code(secret, text, "x") == "binding_name_refused"


# Values ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", ["", " ", "a\nb", "'\"`$(x)", "\u4e2d\U0001f600", "\x01\x1b\x7f", "=", "\ufeff"]
)
def test_a_value_is_kept_as_it_is(value: str) -> None:
    made = from_bindings([public("V", value)])
    assert recipe.decode(made.canonical(), made.context_ref).bindings[0].value == value


@pytest.mark.parametrize(
    ("value", "refusal"),
    [
        ("a\0b", "value_has_nul"),
        ("\0", "value_has_nul"),
        (b"\xff\xfe".decode("utf-8", "surrogateescape"), "value_not_utf8"),
        ("\ud83d", "value_not_utf8"),
        (None, "value_not_text"),
        (1, "value_not_text"),
        (b"x", "value_not_text"),
    ],
)
def test_a_value_that_no_environment_can_hold_is_refused(value: Any, refusal: str) -> None:
    assert code(public, "V", value) == refusal


@pytest.mark.parametrize("size", [-1, 0, 1])
@pytest.mark.parametrize("character", ["x", "\u00e9", "\u4e2d", "\U0001f600"])
def test_a_value_has_at_most_64_kib_of_utf8(size: int, character: str) -> None:
    width = len(character.encode())
    count, rest = divmod(BINDING_VALUE_BYTES_MAX + size, width)
    value = character * count + "y" * rest
    if size <= 0:
        assert public("V", value).value == value
    else:
        assert code(public, "V", value) == "value_too_large"


@pytest.mark.parametrize("ref", ["s", "secret://token", "qlsecret:v1:abc", "\u4e2d", "a b"])
def test_a_reference_of_any_grammar_is_kept(ref: str) -> None:
    assert secret("T", ref).secret_ref == ref


@pytest.mark.parametrize("ref", ["", "a\0", "a\n", "\t", "\x1f", "a\x7f", "\ud800", None, 1, b"x"])
def test_a_reference_with_control_characters_is_refused(ref: Any) -> None:
    assert code(secret, "T", ref) == "secret_ref_invalid"


@pytest.mark.parametrize("size", [-1, 0, 1])
@pytest.mark.parametrize("character", ["x", "\u4e2d"])
def test_a_reference_has_at_most_512_bytes(size: int, character: str) -> None:
    count, rest = divmod(SECRET_REF_BYTES_MAX + size, len(character.encode()))
    ref = character * count + "y" * rest
    if size <= 0:
        assert secret("T", ref).secret_ref == ref
    else:
        assert code(secret, "T", ref) == "secret_ref_invalid"


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "public", "secret_ref": "x"},
        {"kind": "public", "value": "x", "secret_ref": "x"},
        {"kind": "secret", "value": "x"},
        {"kind": "secret", "value": "x", "secret_ref": "x"},
        {"kind": "", "value": "x"},
        {"kind": "PUBLIC", "value": "x"},
        {"kind": None, "value": "x"},
        {"kind": ["public"], "value": "x"},
    ],
)
def test_a_binding_is_public_or_secret_and_never_both(fields: dict[str, Any]) -> None:
    assert code(Binding, name="A", **fields) == "binding_kind_invalid"


# The whole environment ---------------------------------------------------------------------------


@pytest.mark.parametrize("count", [BINDINGS_MAX - 1, BINDINGS_MAX, BINDINGS_MAX + 1])
def test_an_environment_has_at_most_256_variables(count: int) -> None:
    """ADR-0024 section 1."""
    bindings = [public(f"V{number}", "") for number in range(count)]
    if count <= BINDINGS_MAX:
        made = from_bindings(bindings)
        assert recipe.decode(made.canonical(), made.context_ref) == made
    else:
        assert code(from_bindings, bindings) == "bindings_too_many"


@pytest.mark.parametrize("size", [-1, 0, 1])
def test_names_values_and_references_have_256_kib_together(size: int) -> None:
    """ADR-0024 section 1."""
    full = [public(f"V{number}", "\x01" * (BINDING_VALUE_BYTES_MAX - 2)) for number in range(3)]
    left = BINDINGS_BYTES_MAX - 3 * BINDING_VALUE_BYTES_MAX - len("TOKEN") - 10 - len("W")
    bindings = [*full, secret("TOKEN", "0123456789"), public("W", "\x01" * (left + size))]
    if size <= 0:
        made = from_bindings(bindings)
        assert len(made.canonical()) > 1_500_000  # the largest text that a legal recipe becomes
        assert recipe.decode(made.canonical(), made.context_ref) == made
    else:
        assert code(from_bindings, bindings) == "bindings_too_large"


def test_a_name_given_twice_is_refused() -> None:
    assert code(from_bindings, [public("A", "1"), public("A", "1")]) == "binding_duplicate"
    assert code(from_bindings, [public("A", "1"), secret("A", "x")]) == "binding_duplicate"


def test_names_that_differ_in_case_are_two_variables() -> None:
    assert len(from_bindings([public("a", "1"), public("A", "1")]).bindings) == 2


def test_a_recipe_is_never_out_of_order() -> None:
    assert code(Recipe, bindings=(public("B", ""), public("A", ""))) == "bindings_unsorted"


def test_a_secret_used_twice_is_asked_for_once() -> None:
    made = from_bindings([secret("B", "two"), secret("A", "one"), secret("C", "two")])
    assert made.secret_refs == ("one", "two")
    assert MODE.secret_refs == ("secret://token",)
    assert from_bindings([public("A", "one")]).secret_refs == ()


# What people may see -----------------------------------------------------------------------------


def test_no_value_stands_in_a_text_for_people() -> None:
    made = from_bindings([public("A", "marker-value"), secret("B", "marker-ref")])
    assert "marker" not in f"{made!r} {made.bindings!r}"


@pytest.mark.parametrize(
    "value", ["marker\0", "marker\ud800", "marker" * 20_000], ids=["nul", "utf8", "size"]
)
def test_no_value_stands_in_a_refusal(value: str) -> None:
    for make in (public, secret):
        with pytest.raises(Invalid) as caught:
            make("A", value)
        assert "marker" not in f"{caught.value} {caught.value.document()}"
