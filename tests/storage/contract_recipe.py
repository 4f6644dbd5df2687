"""What any store of context recipes promises (ADR-0024 section 1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from qinglong_edge.core import secret
from qinglong_edge.core.errors import Corrupt, Refused
from qinglong_edge.core.recipe import Recipe, from_bindings, public
from qinglong_edge.core.recipe import secret as bound
from tests.storage.subject import CONNECTIONS, Connect, Subject, at_once, damage

RECIPE = from_bindings(
    [public("MODE", "produktion é"), bound("TOKEN", secret.make("TOKEN").text), public("EMPTY", "")]
)


def insert(subject: Subject, recipe: Recipe = RECIPE, at_ms: int = 1) -> tuple[int, str]:
    with subject.write():
        return subject.definitions.insert_recipe(recipe, at_ms)


class RecipeContract:
    """To be inherited beside a fixture `connect`."""

    def test_a_recipe_is_inserted_once_and_read_back_equal(self, connect: Connect) -> None:
        """ADR-0024 verification 1: the order of the bindings is no content; first come stays."""
        subject = connect()
        number, outcome = insert(subject)
        assert outcome == "inserted"
        shuffled = from_bindings(reversed(RECIPE.bindings))
        assert insert(subject, shuffled, 99) == (number, "idempotent")
        found = connect().definitions.recipe(number)
        assert (found, found.context_ref) == (RECIPE, RECIPE.context_ref)
        assert subject.count("recipe") == 1

    def test_of_twelve_connections_one_inserts_and_eleven_find_it(self, connect: Connect) -> None:
        """ADR-0024 verification 2."""
        answers = at_once(connect, lambda subject, number: insert(subject, at_ms=number))
        assert sorted(outcome for _number, outcome in answers) == [
            *["idempotent"] * (CONNECTIONS - 1),
            "inserted",
        ]
        assert len({number for number, _outcome in answers}) == 1
        assert connect().count("recipe") == 1

    def test_an_unknown_recipe_is_refused(self, connect: Connect) -> None:
        with pytest.raises(Refused) as error:
            connect().definitions.recipe(1)
        assert error.value.code == "recipe_unknown"

    @pytest.mark.parametrize("field", ["body", "address", "digest"])
    def test_one_changed_byte_anywhere_fails_closed(self, connect: Connect, field: str) -> None:
        """ADR-0024 verification 3: and a damaged recipe is never confirmed."""
        subject = connect()
        number, _outcome = insert(subject)
        for place in (0, 1, 17, 40, -1):
            damage(subject, f"recipe.{field}", place)
            with pytest.raises(Corrupt) as error:
                subject.definitions.recipe(number)
            assert error.value.code == "recipe_corrupt"
            if field != "address":  # under another address it is another one, which is not asked
                with pytest.raises(Corrupt):
                    insert(subject)
            damage(subject, f"recipe.{field}", place)
        assert subject.definitions.recipe(number) == RECIPE

    @pytest.mark.parametrize(
        ("field", "change"),
        [
            ("body", lambda text: text.replace(",", ", ")),
            ("body", lambda text: "[]"),
            ("body", lambda text: ""),
            ("body", lambda text: text[:-1]),
            ("body", lambda text: text.replace('"secret"', '"public"')),
            ("address", lambda text: "localctx:sha256:" + "0" * 64),
            ("digest", lambda text: "0" * 64),
            ("digest", lambda text: text.upper()),
        ],
    )
    def test_any_other_text_fails_closed(
        self, connect: Connect, field: str, change: Callable[[Any], Any]
    ) -> None:
        """ADR-0024 verification 3: spacing, order, form, address and digest."""
        subject = connect()
        number, _outcome = insert(subject)
        subject.alter(f"recipe.{field}", change)
        with pytest.raises(Corrupt):
            subject.definitions.recipe(number)
