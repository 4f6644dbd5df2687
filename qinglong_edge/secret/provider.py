"""The provider: a recipe's secrets as values, in the launching child (ADR-0024 section 3).

Owns the order of the checks. References first: as long as one of them is not ours, no row is looked
at and no key is read. Then the rows, each in its place; then the keyring, once; then each value.
Whatever is missing, misplaced, damaged or no variable stops all of them: there is no partial answer
and no empty text in place of a value. Errors name no secret, key or value.
"""

from __future__ import annotations

from qinglong_edge.core import envset, secret
from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.limits import BINDINGS_BYTES_MAX
from qinglong_edge.secret import keyring as keyrings
from qinglong_edge.secret import seal
from qinglong_edge.system import aead
from qinglong_edge.system.files import Files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from qinglong_edge.core.envset import EnvSet
    from qinglong_edge.core.recipe import Recipe
    from qinglong_edge.core.secret import Envelope, SecretRef
    from qinglong_edge.secret.keyring import Keyring

    Rows = Sequence[tuple[Envelope, ...] | None]


def preflight(keyring_path: str, *, files: Files | None = None) -> None:
    """Refuse what would stop every launch with secrets: Unavailable, with a `reason`."""
    aead.require()
    keyrings.read(keyring_path, files or Files())


def materialise(
    recipe: Recipe,
    rows: Rows,
    keyring_path: str,
    *,
    envs: Mapping[str, EnvSet] = {},
    files: Files | None = None,
) -> dict[str, str]:
    """The secret variables of a recipe; `rows` stand as `recipe.secret_refs` do.

    A reference of `envs` stands for several values: the variable gets those that are enabled,
    joined, and is left away if none is. Its row is opened only if one of them is sealed.

    Fails as `resolve`, and with Invalid `secret_value_invalid` where the whole environment, public
    variables included, is over 256 KiB.
    """
    needed = {
        ref: row
        for ref, row in zip(recipe.secret_refs, rows, strict=True)
        if ref not in envs or envs[ref].needs_key
    }
    opened = resolve(tuple(needed), tuple(needed.values()), keyring_path, files=files)
    value_of = dict(zip(needed, opened, strict=True))
    for ref, env in envs.items():
        joined = _joined(env, value_of.pop(ref, None))
        if joined is not None:
            value_of[ref] = joined
    values = {
        each.name: value_of[each.content]
        for each in recipe.bindings
        if each.is_secret and each.content in value_of
    }
    whole = {each.name: values.get(each.name, each.content) for each in recipe.bindings}
    if sum(len(f"{name}{value}".encode()) for name, value in whole.items()) > BINDINGS_BYTES_MAX:
        raise seal.value_invalid("too_large_together", "An environment is too large.")
    return values


def _joined(env: EnvSet, plaintext: str | None) -> str | None:
    try:
        values = {} if plaintext is None else envset.decode_values(plaintext.encode())
        joined = env.joined(values)
    except (Invalid, KeyError):
        raise secret.unavailable("misplaced") from None
    return None if joined is None else seal.check_value(joined.encode())


def resolve(
    refs: Sequence[str], rows: Rows, keyring_path: str, *, files: Files | None = None
) -> list[str]:
    """The values of up to 256 references, each in its reference's place.

    `rows` has for each reference the copies of its version, one for each key, or None.
    Invalid: `secret_ref_invalid`, `secret_value_invalid`. Unavailable: `secret_unavailable`,
    `secret_provider_unavailable` (keyring, `cryptography`), both with a `reason`.
    """
    wanted = secret.parse_all(refs)
    if len(rows) != len(wanted):
        raise secret.unavailable("misplaced")
    found = [_placed(ref, row) for ref, row in zip(wanted, rows, strict=True)]
    if not found:
        return []
    keyring = keyrings.read(keyring_path, files or Files())
    return [seal.check_value(_open(keyring, copies)) for copies in found]


def _placed(ref: SecretRef, copies: tuple[Envelope, ...] | None) -> tuple[Envelope, ...]:
    if not copies:
        raise secret.unavailable("missing")
    version = copies[0].version if ref.version is None else ref.version
    place = (ref.project, ref.name, version)
    if any((each.project, each.name, each.version) != place for each in copies):
        raise secret.unavailable("misplaced")
    return copies


def _open(keyring: Keyring, copies: tuple[Envelope, ...]) -> bytes:
    """The value of a version from the first copy whose key is there."""
    known = [each for each in copies if keyring.key(each.key_id) is not None] or copies
    return seal.open_envelope(keyring, known[0])
