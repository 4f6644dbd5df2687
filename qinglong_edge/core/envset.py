"""Several values under one name, as panels' users keep them: cookies that a task gets joined.

Owns the value and its stored form. A set is an ordered list of items; those that are enabled reach
a task joined with ``&``, in their order, as the one variable of the set's name. The order, the
remarks and public values stand in a setting; the other values are one secret of that name:

    setting  env:NAME -> {"revision":N,"next":N,"items":[{"id":N,"value":V or null,...},...]}
    secret   NAME     -> {"ID":VALUE,...}

A task binds the set by a reference to that secret, so a new value touches no task. No id is given
twice: an order and values that do not belong together are noticed.
"""

from __future__ import annotations

import re

from qinglong_edge.core import canonical, recipe
from qinglong_edge.core.errors import Corrupt, Invalid
from qinglong_edge.core.limits import (
    BINDING_VALUE_BYTES_MAX,
    ENV_ITEMS_MAX,
    ENV_SETTING_BYTES_MAX,
    LABEL_CHARACTERS_MAX,
    LABELS_MAX,
    REASON_CHARACTERS_MAX,
    SAFE_INTEGER_MAX,
    SECRET_VALUE_BYTES_MAX,
)
from qinglong_edge.core.record import Record
from qinglong_edge.core.secret import ENV_SETTING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SETTING = ENV_SETTING
_JOINT = "&"
_DEPTH = 4
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")


class Item(Record):
    """One value; None stands for one that is sealed. Invalid: `env_invalid`."""

    id: int
    value: str | None
    enabled: bool = True
    remarks: str = ""
    labels: tuple[str, ...] = ()

    def _check(self) -> None:
        well = type(self.enabled) is bool and len(self.labels) <= LABELS_MAX
        well = well and _line(self.remarks, REASON_CHARACTERS_MAX)
        well = well and all(_line(each, LABEL_CHARACTERS_MAX) for each in self.labels)
        if not (well and _whole(self.id) and self.id):
            raise _foreign()


class EnvSet(Record):
    """The items of one name.

    Invalid: as a public variable, `env_items_too_many`, `env_invalid`, `env_too_large`.
    """

    name: str
    revision: int
    next_id: int
    items: tuple[Item, ...]

    def _check(self) -> None:
        recipe.check_name(self.name)
        if len(self.items) > ENV_ITEMS_MAX:
            raise Invalid("env_items_too_many", "An env has too many items.", most=ENV_ITEMS_MAX)
        ids = {each.id for each in self.items}
        well = _whole(self.revision) and _whole(self.next_id) and len(ids) == len(self.items)
        if not well or any(each >= self.next_id for each in ids):
            raise _foreign()
        for each in self.items:
            if each.value is not None:
                recipe.public(self.name, each.value)
        check_size([each.value or "" for each in self.items])

    @property
    def sealed(self) -> frozenset[int]:
        """The items whose values are in the secret."""
        return frozenset(each.id for each in self.items if each.value is None)

    @property
    def needs_key(self) -> bool:
        """True if a task cannot have the variable without the secret."""
        return any(each.enabled and each.value is None for each in self.items)

    def joined(self, values: Mapping[int, str]) -> str | None:
        """What a task gets; None without an enabled item. KeyError: a value is not there."""
        found = [
            values[each.id] if each.value is None else each.value
            for each in self.items
            if each.enabled
        ]
        return _JOINT.join(found) if found else None

    def document(self) -> dict[str, object]:
        """The set as JSON carries it; `from_document` reads it back."""
        items = [
            {
                "id": each.id,
                "value": each.value,
                "enabled": each.enabled,
                "remarks": each.remarks,
                "labels": list(each.labels),
            }
            for each in self.items
        ]
        return {"revision": self.revision, "next": self.next_id, "items": items}


def check_size(values: Iterable[str]) -> None:
    """Refuse values that would be too large joined; Invalid `env_too_large`."""
    size = sum(len(each.encode("utf-8", "replace")) + 1 for each in values) - 1
    if size > BINDING_VALUE_BYTES_MAX:
        raise _too_large(size)


def from_document(name: str, document: object) -> EnvSet:
    """The set that a JSON object carries, exact keys only; Invalid as `EnvSet`."""
    if not isinstance(document, dict) or set(document) != {"revision", "next", "items"}:
        raise _foreign()
    items = document["items"]
    if not isinstance(items, list):
        raise _foreign()
    return EnvSet(
        name=name,
        revision=document["revision"],
        next_id=document["next"],
        items=tuple(map(_item, items)),
    )


def decode(name: str, text: str) -> EnvSet:
    """The stored set; Corrupt `env_corrupt` if it is not one."""
    try:
        found = canonical.decode(
            text.encode("utf-8"), bytes_max=ENV_SETTING_BYTES_MAX, depth_max=_DEPTH
        )
        return from_document(name, found)
    except (Invalid, UnicodeError):
        raise Corrupt("env_corrupt", "A stored env is damaged.") from None


def encode(env: EnvSet) -> str:
    """The stored form."""
    return canonical.encode(env.document()).decode("utf-8")


def encode_values(values: Mapping[int, str]) -> bytes:
    """The plaintext of the set's secret; Invalid `env_too_large`."""
    data = canonical.encode({str(number): values[number] for number in sorted(values)})
    if len(data) > SECRET_VALUE_BYTES_MAX:
        raise _too_large(len(data))
    return data


def decode_values(plaintext: bytes) -> dict[int, str]:
    """The values in the plaintext; Invalid `env_invalid`."""
    found = canonical.decode(plaintext, bytes_max=SECRET_VALUE_BYTES_MAX, depth_max=1)
    if not isinstance(found, dict):
        raise _foreign()
    values = {int(key): value for key, value in found.items() if key.isascii() and key.isdigit()}
    if len(values) != len(found) or not all(isinstance(each, str) for each in values.values()):
        raise _foreign()
    return values


def _item(found: object) -> Item:
    if not isinstance(found, dict) or set(found) != set(Item._fields):
        raise _foreign()
    labels = found["labels"]
    if not isinstance(labels, list):
        raise _foreign()
    value = found["value"]
    if value is not None and not isinstance(value, str):
        raise _foreign()
    return Item(**{**found, "labels": tuple(labels)})


def _line(text: object, characters_max: int) -> bool:
    if not isinstance(text, str) or len(text) > characters_max or _CONTROL.search(text):
        return False
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _whole(value: object) -> bool:
    return type(value) is int and 0 <= value <= SAFE_INTEGER_MAX


def _too_large(size: int) -> Invalid:
    message = "The values of an env are too large together."
    return Invalid("env_too_large", message, bytes=size, bytes_max=SECRET_VALUE_BYTES_MAX)


def _foreign() -> Invalid:
    return Invalid("env_invalid", "An env is out of bounds, or has not its exact fields.")
