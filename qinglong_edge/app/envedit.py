"""Envs in the command that changes them, where the plaintext is.

Owns the way from one order and its values to the next. Values are opened only where they must be
sealed again. A change that another command made meanwhile refuses this one.
"""

from __future__ import annotations

from qinglong_edge.core import envset, secret
from qinglong_edge.core.envset import EnvSet, Item
from qinglong_edge.core.errors import Invalid, Refused
from qinglong_edge.secret import seal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from qinglong_edge.app.sealing import Sealer


class Draft:
    """One set as it is stored, and as it shall be."""

    def __init__(self, sealer: Sealer, name: str, found: Mapping[str, Any]) -> None:
        self._sealer = sealer
        self._found = found
        self._values: dict[int, str] | None = None
        document = found["set"]
        self.new = document is None
        self.before = (
            EnvSet(name=name, revision=0, next_id=1, items=())
            if document is None
            else envset.from_document(name, document)
        )
        self.items: list[Item] = list(self.before.items)
        self.next_id = self.before.next_id
        self._resealed = False

    @property
    def name(self) -> str:
        """The variable."""
        return self.before.name

    def values(self) -> dict[int, str]:
        """The sealed values, opened; Unavailable as any secret."""
        if self._values is None:
            self._values = {}
            if self.before.sealed:
                self._values = self._sealer.opened(self._found["envelopes"])
        return self._values

    def value(self, item: Item) -> str:
        """What an item holds, wherever it stands; Unavailable as any secret."""
        return item.value if item.value is not None else self.values()[item.id]

    def place(self, number: int | None) -> int:
        """Where the item of that id stands; Refused `env_item_unknown`."""
        for place, each in enumerate(self.items):
            if each.id == number:
                return place
        raise Refused("env_item_unknown", "The env has no item of that id.")

    def put(self, value: bytes, *, number: int | None, public: bool) -> Item:
        """Another value for an item, or with None a new item at the end."""
        text = seal.check_value(value)
        if number is None:
            number = self.next_id
            self.next_id += 1
            self.items.append(Item(id=number, value=""))
        place = self.place(number)
        sealed = self.items[place].value is None
        if sealed or not public:
            self.values().pop(number, None)
            self._resealed = True
        if not public:
            self.values()[number] = text
        self.items[place] = self.items[place].replace(value=text if public else None)
        return self.items[place]

    def drop(self, number: int) -> None:
        """Forget an item with its value."""
        item = self.items.pop(self.place(number))
        if item.value is None:
            self.values().pop(number, None)
            self._resealed = True

    def changed(self) -> bool:
        """True if there is anything to save."""
        return self.new or self._resealed or tuple(self.items) != self.before.items

    def weight(self) -> int:
        """About the bytes that a task carries for it; Invalid where it is too large."""
        env = self._env()
        size = sum(len(each.value or "") + 1 for each in env.items) + len(self.name)
        if self._values is None:
            copies = self._found["envelopes"]
            return size + (len(copies[0]["ciphertext"]) * 3 // 4 if copies else 0)
        return size + len(self._plaintext(env))

    def _env(self) -> EnvSet:
        return EnvSet(
            name=self.name,
            revision=self.before.revision + 1,
            next_id=self.next_id,
            items=tuple(self.items),
        )

    def _plaintext(self, env: EnvSet) -> bytes:
        values = {number: self.values()[number] for number in env.sealed}
        envset.check_size([self.value(each) for each in env.items if each.enabled])
        return envset.encode_values(values)

    def request(self) -> dict[str, Any]:
        """What `env.save` is asked; Invalid as a set, Unavailable without a key to seal."""
        env = self._env()
        asked: dict[str, Any] = {"name": self.name, "set": env.document()}
        if self._resealed and env.sealed:
            asked.update(self._sealer.next(self.name, self._plaintext(env), self._found))
        return asked

    def save(self) -> Any:
        """Make it so, if anything changed: {env, items, status}."""
        if not self.changed():
            return {"env": self.name, "items": len(self.items), "status": "idempotent"}
        return self._sealer.call("env.save", self.request())


def load(sealer: Sealer, name: str, *, known: bool = False) -> Draft:
    """A set to change; with `known` Refused `env_unknown` where there is none."""
    from qinglong_edge.core import recipe

    recipe.check_name(name)
    draft = Draft(sealer, name, sealer.call("env.find", {"name": name}))
    if known and draft.new:
        raise secret.env_unknown()
    return draft


def chosen(draft: Draft, number: int | None, *, add: bool) -> int | None:
    """The item that a new value is for: the one named, the only one, or a new one (None)."""
    if add and number is not None:
        raise Invalid("usage", "Give --add, or --id N.")
    if number is not None:
        return draft.items[draft.place(number)].id
    if add or not draft.items:
        return None
    if len(draft.items) > 1:
        raise Invalid(
            "env_item_needed",
            "The env has several items; say which with --id, or --add one.",
            items=len(draft.items),
        )
    return draft.items[0].id
