"""The value base: what every record promises, whatever its fields are."""

from __future__ import annotations

import importlib
from typing import ClassVar

import pytest

from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.record import Record


class Point(Record):
    x: int
    y: int = 7
    _unit: ClassVar[str] = "mm"

    def _check(self) -> None:
        if self.x < 0:
            raise Invalid("point_invalid", "A point lies outside.")


class Named(Point):
    name: str = "origin"


class Bare(Record):
    pass


def test_a_record_takes_its_fields_by_name_and_fills_defaults() -> None:
    point = Point(x=1)
    assert (point.x, point.y) == (1, 7)
    assert Point(x=1, y=2).y == 2


def test_a_missing_field_is_a_type_error_that_names_it() -> None:
    with pytest.raises(TypeError, match="Point needs the field x"):
        Point()  # type: ignore[call-arg]


def test_an_unknown_field_is_a_type_error_that_names_it() -> None:
    with pytest.raises(TypeError, match="Point has no field"):
        Point(x=1, z=2)  # type: ignore[call-arg]


def test_fields_are_never_positional() -> None:
    with pytest.raises(TypeError):
        Point(1)  # type: ignore[call-arg]


def test_a_private_name_is_an_attribute_of_the_class_and_no_field() -> None:
    assert Point._fields == ("x", "y")
    assert Point(x=1)._unit == "mm"


def test_a_record_cannot_be_changed_or_lose_a_field() -> None:
    point = Point(x=1)
    with pytest.raises(AttributeError, match="immutable"):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(AttributeError, match="immutable"):
        point.other = 2
    with pytest.raises(AttributeError, match="immutable"):
        del point.x
    assert point == Point(x=1)


def test_a_record_has_no_room_for_anything_but_its_fields() -> None:
    assert not hasattr(Point(x=1), "__dict__")
    assert not hasattr(Named(x=1), "__dict__")


def test_a_subclass_keeps_fields_defaults_and_checks_of_its_base() -> None:
    assert Named._fields == ("x", "y", "name")
    named = Named(x=1)
    assert (named.y, named.name) == (7, "origin")
    with pytest.raises(Invalid):
        Named(x=-1)


def test_a_subclass_does_not_change_its_base() -> None:
    assert Point._fields == ("x", "y")
    assert set(Point._defaults) == {"y"}
    assert set(Named._defaults) == {"y", "name"}


def test_an_invalid_value_never_comes_to_exist() -> None:
    with pytest.raises(Invalid) as refused:
        Point(x=-1)
    assert refused.value.code == "point_invalid"
    with pytest.raises(Invalid):
        Point(x=1).replace(x=-1)


def test_replace_makes_a_checked_copy_and_leaves_the_first_alone() -> None:
    point = Point(x=1)
    assert point.replace(y=9) == Point(x=1, y=9)
    assert point.y == 7
    with pytest.raises(TypeError):
        point.replace(z=1)


def test_equality_asks_for_the_same_class_and_the_same_values() -> None:
    assert Point(x=1) == Point(x=1, y=7)
    assert Point(x=1) != Point(x=2)
    assert Point(x=1) != Named(x=1)
    assert Point(x=1) != (1, 7)


def test_equal_records_are_one_key() -> None:
    assert len({Point(x=1), Point(x=1), Point(x=2)}) == 2


def test_the_text_of_a_record_names_class_and_values() -> None:
    assert repr(Named(x=1)) == "Named(x=1, y=7, name='origin')"


def test_a_record_without_fields_is_possible() -> None:
    assert Bare() == Bare()
    assert Bare._fields == ()


@pytest.mark.parametrize("module", ["fact", "handle", "profile", "receipt", "recipe"])
def test_every_record_of_the_core_has_fields(module: str) -> None:
    """A module without the future import of annotations would have none on Python 3.14."""
    members = vars(importlib.import_module(f"qinglong_edge.core.{module}")).values()
    kinds = [each for each in members if isinstance(each, type) and issubclass(each, Record)]
    mine = [each for each in kinds if each is not Record]
    assert mine
    assert all(each._fields for each in mine)
