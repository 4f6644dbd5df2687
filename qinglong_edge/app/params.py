"""Parameters of a request: taken one by one, each checked, unknown ones refused.

Owns the way from a JSON object to typed values. Nothing is changed by a request that fails here.
"""

from __future__ import annotations

from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.limits import SAFE_INTEGER_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from qinglong_edge.app.rpc import Peer


class Params:
    """One request's parameters and who asks; `end` refuses what was not taken."""

    def __init__(self, given: Mapping[str, object], peer: Peer, method: str = "") -> None:
        self._given = dict(given)
        self.peer = peer
        self.method = method

    def has(self, name: str) -> bool:
        """True if the parameter is there and not null."""
        return self._given.get(name) is not None

    def _take(self, name: str) -> object:
        return self._given.pop(name, None)

    def text(self, name: str) -> str:
        """A text that must be there."""
        value = self.maybe_text(name)
        if value is None:
            raise Invalid("param_missing", "A parameter is missing.", param=name)
        return value

    def maybe_text(self, name: str) -> str | None:
        """A text or nothing."""
        value = self._take(name)
        if value is not None and not isinstance(value, str):
            raise Invalid("param_invalid", "A parameter is not a text.", param=name)
        return value

    def number(self, name: str, *, lowest: int = 0, highest: int = SAFE_INTEGER_MAX) -> int | None:
        """A whole number within bounds, or nothing."""
        value = self._take(name)
        if value is None:
            return None
        if type(value) is not int or not lowest <= value <= highest:
            raise Invalid(
                "param_invalid",
                "A parameter is not a whole number within its bounds.",
                param=name,
                minimum=lowest,
                maximum=highest,
            )
        return value

    def flag(self, name: str) -> bool | None:
        """True, false, or nothing."""
        value = self._take(name)
        if value is not None and type(value) is not bool:
            raise Invalid("param_invalid", "A parameter is not true or false.", param=name)
        return value

    def texts(self, name: str) -> tuple[str, ...] | None:
        """A list of texts, or nothing."""
        value = self._take(name)
        if value is None:
            return None
        if not isinstance(value, list) or any(not isinstance(each, str) for each in value):
            raise Invalid("param_invalid", "A parameter is not a list of texts.", param=name)
        return tuple(value)

    def mapping(self, name: str) -> dict[str, str]:
        """An object whose values are texts; absent means empty."""
        value = self._take(name)
        if value is None:
            return {}
        if not isinstance(value, dict) or any(not isinstance(each, str) for each in value.values()):
            raise Invalid("param_invalid", "A parameter is not an object of texts.", param=name)
        return dict(value)

    def document(self, name: str) -> dict[str, object]:
        """An object that must be there."""
        value = self._take(name)
        if not isinstance(value, dict):
            raise Invalid("param_invalid", "A parameter is not an object.", param=name)
        return value

    def documents(self, name: str) -> list[dict[str, object]]:
        """A list of objects that must be there, at least one."""
        value = self._take(name)
        if not isinstance(value, list) or any(not isinstance(each, dict) for each in value):
            raise Invalid("param_invalid", "A parameter is not a list of objects.", param=name)
        return value

    def end(self) -> None:
        """Refuse what nobody took."""
        for name in sorted(self._given):
            raise Invalid("param_unknown", "A parameter is unknown.", param=name[:64])
