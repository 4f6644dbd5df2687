"""The provider: all values in their places, or none; and the order in which it looks."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qinglong_edge.core import recipe, secret
from qinglong_edge.core.limits import BINDINGS_BYTES_MAX, BINDINGS_MAX
from qinglong_edge.core.secret import Envelope, SecretRef
from qinglong_edge.secret import provider, seal
from qinglong_edge.secret.seal import reseal
from qinglong_edge.system import aead
from qinglong_edge.system.files import Files
from tests.secret.making import KNOWN, MARKER, refused, sealed
from tests.unit.zones import FUZZ

FOREIGN = SecretRef(project="project-1", name="TOKEN", version=None).text
OLD = KNOWN.replace(active="edge-key-1")
Rows = list[tuple[Envelope, ...] | None]


class Untouched(Sequence[Any]):
    """Rows that nobody may look at."""

    def __len__(self) -> int:
        raise AssertionError("the rows were counted")

    def __getitem__(self, _place: Any) -> Any:
        raise AssertionError("a row was looked at")


class Counting(Files):
    """Counts how often the keyring is read."""

    reads = 0

    def read_own(self, path: str, bytes_max: int, *, twin: str = "") -> bytes | None:
        self.reads += 1
        return super().read_own(path, bytes_max, twin=twin)


@pytest.fixture
def ring(tmp_path: Path) -> str:
    path = tmp_path / "keyring.json"
    path.write_bytes(KNOWN.encode())
    path.chmod(0o600)
    return str(path)


def refs(*names: str) -> tuple[str, ...]:
    return tuple(secret.make(name).text for name in names)


def row(name: str, value: str = "", version: int = 1) -> tuple[Envelope, ...]:
    return (sealed((value or f"value of {name}").encode(), name=name, version=version),)


def test_each_value_stands_in_its_references_place(ring: str) -> None:
    """ADR-0024 verification 5: one batch, one value for each reference, in order."""
    names = [f"n{number}" for number in range(BINDINGS_MAX)]
    files = Counting()
    found = provider.resolve(refs(*names), list(map(row, names)), ring, files=files)
    assert found == [f"value of {each}" for each in names]
    assert files.reads == 1
    turned = provider.resolve(refs(*names[::-1]), list(map(row, names[::-1])), ring)
    assert turned == found[::-1]


def test_a_foreign_reference_is_refused_before_any_row_or_key_is_touched(ring: str) -> None:
    """ADR-0024 verification 6: another project's secret, wherever it stands among the others."""
    files = Counting()
    for mixed in ((FOREIGN,), (FOREIGN, *refs("A")), (*refs("A", "B"), FOREIGN)):
        said = refused(provider.resolve, mixed, Untouched(), ring, files=files)
        assert said == ("secret_unavailable", "foreign_project")
    many = refs("A") * (BINDINGS_MAX + 1)
    assert refused(provider.resolve, many, Untouched(), ring, files=files)[1] == "too_many"
    for bad in ("", "TOKEN", "secret://token", FOREIGN + "A", None):
        said = refused(provider.resolve, (*refs("A"), bad), Untouched(), ring, files=files)
        assert said == ("secret_ref_invalid", None)
    assert files.reads == 0


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([row("A"), None], "missing"),
        ([row("A"), ()], "missing"),
        ([None, None], "missing"),
        ([row("A")], "misplaced"),
        ([row("A"), row("B"), row("C")], "misplaced"),
        ([], "misplaced"),
        ([row("B"), row("A")], "misplaced"),
        ([row("A"), row("A")], "misplaced"),
        ([row("A"), (row("B")[0].replace(project="project-1"),)], "misplaced"),
        ([row("A"), (*row("B"), *row("B", version=2))], "misplaced"),
        ([row("A"), (*row("B"), *row("C"))], "misplaced"),
    ],
)
def test_a_missing_or_misplaced_row_stops_all_before_a_key_is_read(
    rows: Rows, reason: str, ring: str
) -> None:
    """ADR-0024 verification 5: no partial answer, and no empty text in place of a value."""
    files = Counting()
    said = refused(provider.resolve, refs("A", "B"), rows, ring, files=files)
    assert (said, files.reads) == (("secret_unavailable", reason), 0)


def test_an_exact_reference_takes_that_version_and_no_other(ring: str) -> None:
    """ADR-0024 verification 6: current and exact versions."""
    exact = (secret.make("A", 1).text,)
    assert provider.resolve(exact, [row("A", "one", 1)], ring) == ["one"]
    assert refused(provider.resolve, exact, [row("A", "two", 2)], ring)[1] == "misplaced"
    assert provider.resolve(refs("A"), [row("A", "two", 2)], ring) == ["two"]


def test_a_version_opens_by_the_copy_whose_key_is_there(tmp_path: Path) -> None:
    first = sealed(b"one", name="A", keyring=OLD)
    copies = (reseal(KNOWN, first), first)
    for active in ("edge-key-1", "edge-key-2"):
        path = tmp_path / active
        only = KNOWN.replace(active=active, keys=((active, KNOWN.key(active)),))
        path.write_bytes(only.encode())
        path.chmod(0o600)
        for order in (copies, copies[::-1]):
            assert provider.resolve(refs("A"), [order], str(path)) == ["one"]
        gone = tuple(each for each in copies if each.key_id != active)
        said = refused(provider.resolve, refs("A"), [gone], str(path))
        assert said == ("secret_unavailable", "key_missing")


def test_a_damaged_row_stops_all(ring: str) -> None:
    """ADR-0024 verification 6: damage fails closed."""
    bad = (row("B")[0].replace(auth_tag=bytes(16)),)
    said = refused(provider.resolve, refs("A", "B", "C"), [row("A"), bad, row("C")], ring)
    assert said == ("secret_unavailable", "not_authentic")


@pytest.mark.parametrize(
    ("value", "reason"),
    [(b"a\0b", "nul"), (MARKER.encode() + b"\xff", "not_utf8")],
)
def test_a_sealed_value_is_checked_again_when_it_is_opened(
    value: bytes, reason: str, ring: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ADR-0024 verification 5: whoever sealed it, what no variable can take stops here."""
    with monkeypatch.context() as patch:
        patch.setattr(seal, "check_value", bytes.hex)
        rows = [row("A"), (sealed(value, name="B"),)]
    said = refused(provider.resolve, refs("A", "B"), rows, ring)
    assert said == ("secret_value_invalid", reason)


def test_without_references_there_is_no_need_of_a_keyring(tmp_path: Path) -> None:
    assert provider.resolve((), (), str(tmp_path / "none")) == []
    public = recipe.from_bindings([recipe.public("A", "b")])
    assert provider.materialise(public, (), str(tmp_path / "none")) == {}


def test_without_a_keyring_nothing_is_opened_and_none_is_made(tmp_path: Path) -> None:
    path = str(tmp_path / "keyring.json")
    said = refused(provider.resolve, refs("A"), [row("A")], path)
    assert said == ("secret_provider_unavailable", "keyring_missing")
    assert os.listdir(tmp_path) == []


def test_a_recipe_gets_its_secrets_and_each_is_opened_once(
    ring: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ADR-0024 verification 5: references are resolved once each, whatever binds them."""
    opened = []
    unseal = aead.unseal

    def counted(*given_values: Any) -> bytes:
        opened.append(given_values)
        return unseal(*given_values)

    monkeypatch.setattr(aead, "unseal", counted)
    (one, two) = refs("A", "B")
    made = recipe.from_bindings(
        [
            recipe.secret("Z", one),
            recipe.public("M", one),  # a public text stays what it is
            recipe.secret("B", two),
            recipe.secret("C", one),
        ]
    )
    rows = [row({one: "A", two: "B"}[each]) for each in made.secret_refs]
    found = provider.materialise(made, rows, ring)
    assert found == {"Z": "value of A", "C": "value of A", "B": "value of B"}
    assert len(opened) == len(made.secret_refs) == 2


@pytest.mark.parametrize("over", [False, True])
def test_an_environment_is_bounded_with_its_secrets_in_it(ring: str, over: bool) -> None:
    """ADR-0024 verification 5: 256 KiB of names and values, public and secret."""
    (one,) = refs("A")
    names = ["P", "S1", "S2", "S3"]
    left = BINDINGS_BYTES_MAX - sum(map(len, names)) - 3 * 65_536 + over
    made = recipe.from_bindings(
        [recipe.public("P", "é" * (left // 2) + "p" * (left % 2))]
        + [recipe.secret(each, one) for each in names[1:]]
    )
    rows = [row("A", "s" * 65_536)]
    if over:
        said = refused(provider.materialise, made, rows, ring)
        assert said == ("secret_value_invalid", "too_large_together")
    else:
        assert {len(each) for each in provider.materialise(made, rows, ring).values()} == {65_536}


def test_the_preflight_names_what_would_stop_every_launch(
    ring: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.preflight(ring)
    os.chmod(ring, 0o644)
    assert refused(provider.preflight, ring) == ("secret_provider_unavailable", "keyring_unsafe")
    os.chmod(ring, 0o600)
    for module in ("cryptography", "cryptography.hazmat.primitives.ciphers.aead"):
        monkeypatch.setitem(sys.modules, module, None)
    assert refused(provider.preflight, ring)[1] == "cryptography_missing"


@FUZZ
@given(
    st.lists(st.sampled_from("ABCD"), max_size=6), st.lists(st.sampled_from("ABCD-"), max_size=6)
)
def test_values_come_in_place_or_not_at_all(
    tmp_path_factory: pytest.TempPathFactory, asked: list[str], given_names: list[str]
) -> None:
    """ADR-0024 verification 5: whatever stands where, nothing is exchanged or made up."""
    path = tmp_path_factory.getbasetemp() / "fuzz-keyring.json"
    if not path.exists():
        path.touch(0o600)
        path.write_bytes(KNOWN.encode())
    rows = [None if each == "-" else ROW_OF[each] for each in given_names]
    if asked == given_names:
        assert provider.resolve(refs(*asked), rows, str(path)) == [f"value of {n}" for n in asked]
    else:
        assert refused(provider.resolve, refs(*asked), rows, str(path))[0] == "secret_unavailable"


ROW_OF = {each: row(each) for each in "ABCD"}
