"""Immutable value records.

Owns the one value base of the program. A subclass lists its fields as annotations; the metaclass
turns them into ``__slots__``, ``_fields`` and ``_defaults``. Nothing of ``dataclasses`` or
``typing`` is loaded at run time: a class costs microseconds to define, which a slow router feels
at every start. Every module that defines a record needs ``from __future__ import annotations``.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

    T = TypeVar("T")
else:

    def dataclass_transform(**_options: object) -> Callable[[type], type]:
        """Stand-in for the type checker's marker."""
        return lambda target: target


class _RecordType(type):
    def __new__(mcls, name: str, bases: tuple[type, ...], space: dict[str, Any]) -> _RecordType:
        listed = space.pop("__annotations__", ())  # nobody reads them again
        own = tuple(field for field in listed if not field.startswith("_"))
        inherited: tuple[str, ...] = bases[0]._fields if bases else ()  # type: ignore[attr-defined]
        defaults: dict[str, Any] = dict(bases[0]._defaults) if bases else {}  # type: ignore[attr-defined]
        defaults.update({field: space.pop(field) for field in own if field in space})
        space["_fields"] = inherited + own
        space["_defaults"] = defaults
        space["__slots__"] = own
        return super().__new__(mcls, name, bases, space)


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Record(metaclass=_RecordType):
    """Immutable, keyword-only, slotted; a value that exists is valid (see ``_check``)."""

    _fields: ClassVar[tuple[str, ...]]
    _defaults: ClassVar[dict[str, Any]]

    def __init__(self, **given: Any) -> None:
        put = object.__setattr__
        for name in self._fields:
            if name in given:
                put(self, name, given.pop(name))
            elif name in self._defaults:
                put(self, name, self._defaults[name])
            else:
                raise TypeError(f"{type(self).__name__} needs the field {name}")
        if given:
            raise TypeError(f"{type(self).__name__} has no field {sorted(given)}")
        self._check()

    def _check(self) -> None:
        """Refuse an invalid value; a subclass raises `Invalid` or another typed error."""

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, checked again."""
        given = {name: getattr(self, name) for name in self._fields}
        given.update(changes)
        return type(self)(**given)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self._fields)

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in self._fields))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._fields)
        return f"{type(self).__name__}({shown})"
