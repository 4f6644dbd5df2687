"""What a command does to secrets and keys in its own process, where the plaintext is.

Owns the order of each change. It runs in the one-shot command only: values are sealed here and
cross the socket as envelopes; the owner of the state never sees a value or a key.

* A key is made only while no sealed row exists: a lost keyring is never replaced.
* A change of the key file is told to the audit before it happens, and again after it.
* Every call may be sent twice: one that got no answer is sent once more, so nothing is done twice.
* `rekey` goes on where it was cut short. `retire` proves that another key opens what the retired
  one sealed, then the rows go in one transaction, then the key: a cut leaves a key too many.
"""

from __future__ import annotations

import binascii
import os
import time

from qinglong_edge.app.client import Client
from qinglong_edge.core import envset, secret
from qinglong_edge.core.errors import EdgeError, Invalid, Refused, Unavailable
from qinglong_edge.core.limits import SECRET_PAGE_MAX
from qinglong_edge.secret import keyring as keyrings
from qinglong_edge.secret import seal
from qinglong_edge.system import aead, memory
from qinglong_edge.system.files import Files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any, Self

    from qinglong_edge.app.state import Place
    from qinglong_edge.core.secret import Envelope
    from qinglong_edge.secret.keyring import Keyring

_UNANSWERED = ("daemon_gone", "daemon_silent")


def guard() -> None:
    """To be called before a value is read: this process leaves no core dump."""
    memory.never_dump()


def possible() -> bool:
    """Whether this Python can seal at all."""
    return aead.available()


class Sealer:
    """One command's keys and its way to the state."""

    def __init__(
        self, where: Place, files: Files | None = None, *, client: Client | None = None
    ) -> None:
        guard()
        self._where = where
        self._files = Files() if files is None else files
        self._client = Client(where) if client is None else client
        self.keyring_made = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._client.close()

    def put(self, name: str, plaintext: bytes) -> dict[str, Any]:
        """The next version of a secret: {secret, version, status}.

        Invalid: `secret_name_invalid`, `secret_value_invalid`. Refused: `secret_version_conflict`
        (another command was faster). Unavailable: `secret_provider_unavailable`.
        """
        seal.check_value(plaintext)
        mutation = {"name": secret.check_name(name), "mutation": _mutation()}
        found = self.call("secret.find", mutation)
        sent = self.next(name, plaintext, found, mutation["mutation"])
        answer: dict[str, Any] = self.call("secret.append", sent)
        if answer["status"] != "inserted":  # an answer was lost; what is stored must be this value
            keyring = self._keyring()
            for stored in self.call("secret.find", mutation)["envelopes"]:
                if seal.open_envelope(keyring, secret.from_document(stored)) != plaintext:
                    raise Refused("secret_mutation_conflict", "Another value is stored already.")
        return answer

    def next(
        self, name: str, plaintext: bytes, found: Mapping[str, Any], mutation: str | None = None
    ) -> dict[str, Any]:
        """The next version, sealed under the active key, behind what a method has found."""
        expected = found["version"] or 0
        envelope = seal.seal_secret(
            self._sealing_keyring(lost=found["any"]),
            name=name,
            version=expected + 1,
            mutation_id=mutation or _mutation(),
            plaintext=plaintext,
            created_at_ms=time.time_ns() // 1_000_000,
        )
        return {"envelope": secret.document(envelope), "expected_version": expected}

    def unsealed(self, copies: list[Any]) -> bytes:
        """The value of the sealed copies of one version."""
        if not copies:
            raise secret.unavailable("missing")
        keyring = self._keyring()
        found = [secret.from_document(each) for each in copies]
        known = [each for each in found if keyring.key(each.key_id) is not None] or found
        return seal.open_envelope(keyring, known[0])

    def opened(self, copies: list[Any]) -> dict[int, str]:
        """The values of an env from the sealed copies of their newest version."""
        try:
            return envset.decode_values(self.unsealed(copies))
        except Invalid:
            raise secret.unavailable("misplaced") from None

    def init(self) -> dict[str, Any]:
        """Make the keyring if there is none and nothing is sealed; else as `status`."""
        self._sealing_keyring(lost=bool(self._usage()))
        return {**self.status(), "created": self.keyring_made}

    def status(self) -> dict[str, Any]:
        """{active, keys:[{key, envelopes, known}], reason}; `reason` is why it cannot be used."""
        usage = self._usage()
        try:
            keyring = keyrings.read(self._where.keyring, self._files)
        except Unavailable as error:
            ids, active, reason = [], None, error.facts.get("reason")
        else:
            ids, active, reason = list(keyring.ids), keyring.active, None
        keys = [
            {"key": each, "envelopes": usage.get(each, 0), "known": each in ids}
            for each in sorted({*ids, *usage})
        ]
        return {"active": active, "keys": keys, "reason": reason}

    def rotate(self) -> dict[str, Any]:
        """Seal under a new key from now on; the old ones go on opening. As `status`."""
        active = self._keyring().active
        self._change(
            "rotate",
            active,
            lambda: keyrings.rotate(self._where.keyring, self._files, expected_active=active),
        )
        return self.status()

    def rekey(self, progress: Callable[[int], None]) -> dict[str, Any]:
        """Seal every version under the active key too; `progress` hears the count. {rekeyed}."""
        keyring = self._keyring()
        count = 0

        def copy() -> Keyring:
            nonlocal count
            for page in self._pages(missing_key=keyring.active):
                copies = [secret.document(seal.reseal(keyring, each)) for each in page]
                count += self.call("secret.copy", {"envelopes": copies})["inserted"]
                progress(count)
            return keyring

        self._change("rekey", keyring.active, copy)
        return {**self.status(), "rekeyed": count}

    def retire(self, key: str) -> dict[str, Any]:
        """Forget a key that nothing needs any more; as `status`.

        Refused: `keyring_key_active`, `keyring_key_unknown`, `keyring_key_needed`.
        """

        def forget() -> Keyring:
            keyring = self._keyring()
            if key == keyring.active:
                raise Refused("keyring_key_active", "The active key cannot be retired.")
            if keyring.key(key) is None and key not in self._usage():
                raise Refused("keyring_key_unknown", "There is no such key.")
            for page in self._pages():
                for each in page:
                    if each.key_id == key:
                        raise Refused("keyring_key_needed", "The key is in use; `rekey` first.")
                    seal.open_envelope(keyring, each)
            known = [each for each in keyring.ids if each != key]
            self.call("keyring.retire", {"key": key, "known": known})
            if keyring.key(key) is None:  # of another box, or the power went right here
                return keyring
            return keyrings.retire(self._where.keyring, self._files, key_id=key)

        self._change("retire", key, forget)
        return self.status()

    def _pages(self, missing_key: str | None = None) -> Iterator[list[Envelope]]:
        after = None
        while True:
            wanted = {"after": after, "limit": SECRET_PAGE_MAX, "missing_key": missing_key}
            answer = self.call("secret.page", wanted)
            if answer["envelopes"]:
                yield [secret.from_document(each) for each in answer["envelopes"]]
            after = answer["next"]
            if after is None:
                return

    def _keyring(self) -> Keyring:
        aead.require()
        return keyrings.read(self._where.keyring, self._files)

    def _sealing_keyring(self, *, lost: bool) -> Keyring:
        """The keyring; made if it is missing, unless something is sealed that it would not open."""
        aead.require()
        path = self._where.keyring
        try:
            return keyrings.read(path, self._files)
        except Unavailable as error:
            if lost or error.facts.get("reason") != "keyring_missing":
                raise
        try:
            made = self._change("init", None, lambda: keyrings.provision(path, self._files))
        except Refused as error:
            if error.code != "keyring_exists":
                raise
            return keyrings.read(path, self._files)  # another command was faster
        self.keyring_made = True
        return made

    def _change(self, action: str, key: str | None, change: Callable[[], Keyring]) -> Keyring:
        """Tell the audit, do it, tell the audit how it went."""
        told = {"action": action, "key": key}
        self.call("keyring.intent", told)
        try:
            made = change()
        except EdgeError as error:
            self.call("keyring.intent", {**told, "outcome": "refused", "code": error.code})
            raise
        done = {"action": action, "key": key or made.active, "outcome": "done"}
        self.call("keyring.intent", done)
        return made

    def _usage(self) -> dict[str, int]:
        found: dict[str, int] = self.call("keyring.usage", {})["usage"]
        return found

    def call(self, method: str, params: dict[str, Any]) -> Any:
        """One method; asked again if no answer came."""
        try:
            return self._client.call(method, params)
        except Unavailable as error:
            if error.code not in _UNANSWERED:
                raise
        self._client.close()
        self._client = Client(self._where)
        return self._client.call(method, params)


def _mutation() -> str:
    return binascii.hexlify(os.urandom(16)).decode("ascii")
