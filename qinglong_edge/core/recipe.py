"""The context recipe: which environment a task gets (ADR-0024 section 1).

Owns the value, its canonical bytes and its content address. A recipe holds public values and secret
references, never a resolved secret, an identity, a token, a handle or a path:

    [{"name":N,"kind":"public","value":V},{"name":N,"kind":"secret","secretRef":R},...]

compact JSON, each name once, sorted by UTF-16 code units; `context_ref` is ``localctx:sha256:`` and
the SHA-256 of these bytes. Recipes are append-only and read back fail-closed: what is not exactly
the canonical text of its address is `Corrupt`, whatever else it might mean.
"""

from __future__ import annotations

from qinglong_edge.core import canonical
from qinglong_edge.core.characters import (
    ALPHANUMERIC,
    DIGITS,
    HEX,
    consists_of,
    has_control,
)
from qinglong_edge.core.errors import Corrupt, Invalid
from qinglong_edge.core.limits import (
    BINDING_NAME_CHARACTERS_MAX,
    BINDING_VALUE_BYTES_MAX,
    BINDINGS_BYTES_MAX,
    BINDINGS_MAX,
    SECRET_REF_BYTES_MAX,
)
from qinglong_edge.core.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

PUBLIC = "public"
SECRET = "secret"
CONTEXT_REF_PREFIX = "localctx:sha256:"
RESERVED_PREFIX = "QL3_"  # the wrapper's own variables
# Each of these makes some shell misbehave, or the shell overwrites it before the task sees it.
RESERVED_NAMES = frozenset(
    ("SHELLOPTS", "BASHOPTS", "OPTIND", "IFS", "PPID", "PWD", "OLDPWD", "SHLVL", "_")
)
_NAME = ALPHANUMERIC + "_"
_DIGEST_DIGITS = 64
# JSON writes a control character in six bytes; a binding's own keys and quotes take under 64.
_CANONICAL_BYTES_MAX = 6 * BINDINGS_BYTES_MAX + 64 * BINDINGS_MAX
_DEPTH_MAX = 2
_FIELD_OF = {PUBLIC: "value", SECRET: "secretRef"}


class Binding(Record):
    """One environment variable: a public value, or a reference to a secret; never both.

    Invalid: `binding_name_invalid`, `binding_name_refused`, `binding_kind_invalid`,
    `value_not_text`, `value_not_utf8`, `value_has_nul`, `value_too_large`, `secret_ref_invalid`.
    """

    name: str
    kind: str
    value: str | None = None
    secret_ref: str | None = None

    def _check(self) -> None:
        check_name(self.name)
        if self.kind == PUBLIC and self.secret_ref is None:
            _check_value(self.name, self.value)
        elif self.kind == SECRET and self.value is None:
            _check_secret_ref(self.name, self.secret_ref)
        else:
            raise Invalid(
                "binding_kind_invalid",
                "A variable is either public with a value or secret with a reference.",
                name=self.name,
            )

    @property
    def is_secret(self) -> bool:
        """True if only the launching child will know the value."""
        return self.kind == SECRET

    @property
    def content(self) -> str:
        """The value or the reference, whichever this binding has."""
        return (self.value if self.kind == PUBLIC else self.secret_ref) or ""

    def __repr__(self) -> str:
        return f"Binding(name={self.name!r}, kind={self.kind!r})"  # a value may be sensitive


class Recipe(Record):
    """Bindings in canonical order; build one with `from_bindings`.

    Invalid: `bindings_too_many`, `bindings_too_large`, `binding_duplicate`, `bindings_unsorted`.
    """

    bindings: tuple[Binding, ...]

    def _check(self) -> None:
        if len(self.bindings) > BINDINGS_MAX:
            raise Invalid(
                "bindings_too_many", "An environment has too many variables.", most=BINDINGS_MAX
            )
        size = sum(_bytes(each.name) + _bytes(each.content) for each in self.bindings)
        if size > BINDINGS_BYTES_MAX:
            raise Invalid(
                "bindings_too_large",
                "The names and values of an environment are too large together.",
                bytes=size,
                bytes_max=BINDINGS_BYTES_MAX,
            )
        for left, right in zip(self.bindings, self.bindings[1:], strict=False):
            if left.name == right.name:
                raise Invalid(
                    "binding_duplicate", "A variable is given more than once.", name=left.name
                )
            if _code_units(left) > _code_units(right):
                raise Invalid("bindings_unsorted", "The variables are not in canonical order.")

    def canonical(self) -> bytes:
        """The bytes that are stored and hashed."""
        return canonical.encode(self._document())

    @property
    def context_ref(self) -> str:
        """The content address, 80 characters."""
        return CONTEXT_REF_PREFIX + canonical.sha256_hex(self.canonical())

    @property
    def record_digest(self) -> str:
        """A second digest, over address and bindings together, stored beside the row."""
        document = {"contextRef": self.context_ref, "environment": self._document()}
        return canonical.digest(document)

    @property
    def secret_refs(self) -> tuple[str, ...]:
        """Each secret reference once, in the order of the bindings."""
        return tuple(dict.fromkeys(each.content for each in self.bindings if each.kind == SECRET))

    def _document(self) -> list[dict[str, str]]:
        return [
            {"name": each.name, "kind": each.kind, _FIELD_OF[each.kind]: each.content}
            for each in self.bindings
        ]

    def __repr__(self) -> str:
        return f"Recipe({len(self.bindings)} bindings)"


def public(name: str, value: str) -> Binding:
    """A variable whose value may be stored; Invalid as `Binding`."""
    return Binding(name=name, kind=PUBLIC, value=value)


def secret(name: str, secret_ref: str) -> Binding:
    """A variable whose value only the launching child will know; Invalid as `Binding`."""
    return Binding(name=name, kind=SECRET, secret_ref=secret_ref)


def from_bindings(bindings: Iterable[Binding]) -> Recipe:
    """The recipe of these variables in any order; Invalid as `Recipe`."""
    return Recipe(bindings=tuple(sorted(bindings, key=_code_units)))


def check_name(name: object) -> None:
    """Refuse what cannot, or must not, be a variable of a task.

    Invalid: `binding_name_invalid` (``[A-Za-z_][A-Za-z0-9_]{0,127}``), `binding_name_refused`
    (``QL3_`` and the names with which shells misbehave).
    """
    if not (
        isinstance(name, str)
        and 1 <= len(name) <= BINDING_NAME_CHARACTERS_MAX
        and name[0] not in DIGITS
        and consists_of(name, _NAME)
    ):
        raise Invalid(
            "binding_name_invalid",
            "A variable's name is not 1 to 128 letters, digits or underscores.",
        )
    if name in RESERVED_NAMES or name.startswith(RESERVED_PREFIX):
        raise Invalid(
            "binding_name_refused",
            "A variable of this name belongs to the shell or to the wrapper.",
            name=name,
        )


def is_context_ref(text: object) -> bool:
    """Whether `text` has the form of a content address."""
    if not isinstance(text, str) or not text.startswith(CONTEXT_REF_PREFIX):
        return False
    digits = text[len(CONTEXT_REF_PREFIX) :]
    return len(digits) == _DIGEST_DIGITS and consists_of(digits, HEX)


def decode(data: bytes, context_ref: str) -> Recipe:
    """The recipe stored under `context_ref`.

    Corrupt `recipe_corrupt`: another address, not canonical, or against any rule; `reason` says
    which.
    """
    if not is_context_ref(context_ref):
        raise _corrupt("context_ref")
    if CONTEXT_REF_PREFIX + canonical.sha256_hex(data) != context_ref:
        raise _corrupt("digest")
    try:
        document = canonical.decode(data, bytes_max=_CANONICAL_BYTES_MAX, depth_max=_DEPTH_MAX)
        # By a list: of tuples whose size is not known first Python keeps one more for each run.
        recipe = Recipe(bindings=tuple([_binding(item) for item in _listed(document)]))
    except Invalid as error:
        raise _corrupt(error.code) from None
    if recipe.canonical() != data:
        raise _corrupt("not_canonical")
    return recipe


def _listed(document: object) -> list[object]:
    if not isinstance(document, list):
        raise _corrupt("shape")
    return document


def _binding(item: object) -> Binding:
    if not isinstance(item, dict) or len(item) != 3:  # name, kind and one content
        raise _corrupt("shape")
    field = _FIELD_OF.get(str(item.get("kind")))
    if field is None or field not in item or "name" not in item:
        raise _corrupt("shape")
    make = public if field == "value" else secret
    return make(item["name"], item[field])


def _corrupt(reason: str) -> Corrupt:
    return Corrupt("recipe_corrupt", "A stored context recipe is damaged.", reason=reason)


def _check_value(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise Invalid("value_not_text", "A public variable needs a text as its value.", name=name)
    if "\0" in value:
        raise Invalid("value_has_nul", "A variable's value holds a NUL character.", name=name)
    try:
        size = _bytes(value)
    except UnicodeEncodeError:  # an argument that is not UTF-8 arrives as lone surrogates
        raise Invalid("value_not_utf8", "A variable's value is not UTF-8.", name=name) from None
    if size > BINDING_VALUE_BYTES_MAX:
        raise Invalid(
            "value_too_large",
            "A variable's value is too large.",
            name=name,
            bytes=size,
            bytes_max=BINDING_VALUE_BYTES_MAX,
        )


def _check_secret_ref(name: str, secret_ref: object) -> None:
    try:
        size = _bytes(secret_ref) if isinstance(secret_ref, str) else 0
    except UnicodeEncodeError:
        size = 0
    if not 1 <= size <= SECRET_REF_BYTES_MAX or has_control(str(secret_ref)):
        raise Invalid(
            "secret_ref_invalid",
            "A secret's reference is not 1 to 512 bytes without control characters.",
            name=name,
        )


def _bytes(text: str) -> int:
    return len(text.encode("utf-8"))


def _code_units(binding: Binding) -> bytes:
    return binding.name.encode("utf-16-be")
