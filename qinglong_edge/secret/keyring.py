"""The keyring: the private file with the keys that seal secrets (ADR-0024 section 3).

Owns `<path>`, a file of mode 0600 beside the database and never in it:

    {"version":1,"activeKeyId":I,"keys":{I:<base64url of 32 bytes>,...}}\\n     keys sorted by id

It is read anew each time, and only if nobody else could have written, read or swapped it. Nothing
makes a key on its own: a missing keyring stays missing until `provision`. A change holds a lock on
`<path>.lock`, which the kernel lets go of with its process. After a power cut there is the keyring
from before or from after; a leftover `<path>.new` is removed by the next change.

Errors name no key. What cannot be used is Unavailable `secret_provider_unavailable` with a
`reason`: `keyring_missing`, `keyring_unsafe` (mode, owner, kind, another name), `keyring_corrupt`
(size or content), `keyring_unreadable`.
"""

from __future__ import annotations

import os

from qinglong_edge.core import canonical
from qinglong_edge.core.errors import Corrupt, Invalid, Refused, Unavailable
from qinglong_edge.core.limits import KEYRING_BYTES_MAX, KEYRING_KEYS_MAX
from qinglong_edge.core.record import Record
from qinglong_edge.core.secret import is_key_id
from qinglong_edge.system.files import storage_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from qinglong_edge.system.files import Files

KEY_BYTES = 32
_ID_BYTES = 12
_FIELDS = frozenset(("version", "activeKeyId", "keys"))


class Keyring(Record):
    """Keys by id, and the one that seals from now on; sorted, each id once."""

    active: str
    keys: tuple[tuple[str, bytes], ...]

    def _check(self) -> None:
        ids = self.ids
        if (
            not 1 <= len(ids) <= KEYRING_KEYS_MAX
            or list(ids) != sorted(set(ids))
            or self.active not in ids
            or not all(is_key_id(each) for each in ids)
            or not all(len(material) == KEY_BYTES for _id, material in self.keys)
        ):
            raise _unavailable("keyring_corrupt")

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all keys, sorted."""
        return tuple(each for each, _material in self.keys)

    @property
    def digest(self) -> str:
        """Names this very keyring, keys included, without showing any of them."""
        return canonical.sha256_hex(self.encode())

    def key(self, key_id: str) -> bytes | None:
        """A key by its id."""
        return dict(self.keys).get(key_id)

    def encode(self) -> bytes:
        """The bytes of the file."""
        keys = {each: canonical.base64url(material) for each, material in self.keys}
        document = {"version": 1, "activeKeyId": self.active, "keys": keys}
        return canonical.encode(document) + b"\n"

    def __repr__(self) -> str:
        return f"Keyring({len(self.keys)} keys)"


def decode(data: bytes) -> Keyring:
    """The keyring of a file's bytes, in any formatting; Unavailable with `keyring_corrupt`."""
    try:
        found = canonical.decode(data, bytes_max=KEYRING_BYTES_MAX, depth_max=2)
        if isinstance(found, dict) and found.keys() == _FIELDS and _is_one(found["version"]):
            keys = found["keys"]
            if isinstance(keys, dict) and isinstance(found["activeKeyId"], str):
                pairs = sorted((each, _material(text)) for each, text in keys.items())
                return Keyring(active=found["activeKeyId"], keys=tuple(pairs))
    except Invalid:
        pass
    raise _unavailable("keyring_corrupt")


def read(path: str, files: Files) -> Keyring:
    """The keyring as it stands now; Unavailable `secret_provider_unavailable`."""
    try:
        # a power cut while `provision` published leaves the temporary as a second name
        data = files.read_own(path, KEYRING_BYTES_MAX, twin=_temporary(path))
    except Corrupt:
        raise _unavailable("keyring_unsafe") from None
    except OSError:
        raise _unavailable("keyring_unreadable") from None
    if data is None:
        raise _unavailable("keyring_missing")
    return decode(data)


def provision(path: str, files: Files, *, random: Callable[[int], bytes] = os.urandom) -> Keyring:
    """Make the first keyring; Refused `keyring_exists`, Unavailable `keyring_busy`."""

    def make() -> Keyring:
        key_id, material = _new(random)
        made = Keyring(active=key_id, keys=((key_id, material),))
        if not files.publish(_temporary(path), path, made.encode()):
            raise Refused("keyring_exists", "There is a keyring already.")
        return made

    return _locked(path, files, make)


def rotate(
    path: str,
    files: Files,
    *,
    expected_active: str,
    random: Callable[[int], bytes] = os.urandom,
) -> Keyring:
    """Add a key and seal with it from now on; the others go on opening what they sealed.

    Refused: `keyring_conflict` (another key is active), `keyring_full`. Unavailable: `keyring_busy`
    and as `read`.
    """

    def make() -> Keyring:
        before = read(path, files)
        if before.active != expected_active:
            raise Refused("keyring_conflict", "Another key has become the active one.")
        if len(before.keys) == KEYRING_KEYS_MAX:
            raise Refused(
                "keyring_full", "The keyring is full; retire a key first.", most=KEYRING_KEYS_MAX
            )
        added = _new(random)
        made = Keyring(active=added[0], keys=tuple(sorted((*before.keys, added))))
        files.replace(path, made.encode())
        return made

    return _locked(path, files, make)


def retire(path: str, files: Files, *, key_id: str) -> Keyring:
    """Forget a key, which the caller has proven to be needed by no envelope.

    Refused: `keyring_key_active`, `keyring_key_unknown`. Unavailable: `keyring_busy`, as `read`.
    """

    def make() -> Keyring:
        before = read(path, files)
        if key_id == before.active:
            raise Refused("keyring_key_active", "The active key cannot be retired.")
        if before.key(key_id) is None:
            raise Refused("keyring_key_unknown", "The keyring has no such key.")
        made = before.replace(keys=tuple(each for each in before.keys if each[0] != key_id))
        files.replace(path, made.encode())
        return made

    return _locked(path, files, make)


def _locked(path: str, files: Files, change: Callable[[], Keyring]) -> Keyring:
    try:
        files.check_private_directory(os.path.dirname(path))
        lock = files.lock_owner(f"{path}.lock")
        if lock is None:
            raise Unavailable("keyring_busy", "Another command is changing the keyring.")
        try:
            files.remove(_temporary(path))  # a power cut's
            return change()
        finally:
            files.close(lock)
    except OSError as error:
        raise storage_error(error, "keyring") from None


def _temporary(path: str) -> str:
    return f"{path}.new"


def _new(random: Callable[[int], bytes]) -> tuple[str, bytes]:
    return f"qlsk-{canonical.base64url(random(_ID_BYTES))}", random(KEY_BYTES)


def _material(text: object) -> bytes:
    return canonical.from_base64url(text if isinstance(text, str) else "=")


def _is_one(version: object) -> bool:
    return version == 1 and not isinstance(version, bool)


def _unavailable(reason: str) -> Unavailable:
    return Unavailable("secret_provider_unavailable", "The keyring cannot be used.", reason=reason)
