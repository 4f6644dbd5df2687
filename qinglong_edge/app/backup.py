"""`backup` and `restore`: one file with database and settings, and the keyring beside it if asked.

Owns both ways; the commands call it, never the daemon, which only copies its database (a
`backup.write`). A backup is checked whole before it gets its name, and never takes one that is
there. A restore makes a fresh state: everything is checked under another name, `config.json` is
written last as `init` does, so a cut leaves no state, and the same command then goes on.

    FILE           SQLite database; table `backup`: config (config.json), keyring (digest or empty)
    FILE.keyring   the keyring as it was, 0600, with --with-keyring only
"""

from __future__ import annotations

import binascii
import errno
import os
import time

from qinglong_edge.app import making, profiles, state
from qinglong_edge.app.client import Client
from qinglong_edge.core import canonical
from qinglong_edge.core.errors import EdgeError, Invalid, Refused, Unavailable
from qinglong_edge.core.limits import KEYRING_BYTES_MAX, SECRET_PAGE_MAX
from qinglong_edge.storage import backup, connection, migrations, store
from qinglong_edge.storage.secrets import SecretStore
from qinglong_edge.system.files import Files, storage_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from qinglong_edge.app.state import Place
    from qinglong_edge.core.secret import Envelope
    from qinglong_edge.secret.keyring import Keyring

_PIECE_BYTES = 262_144
_LINKLESS = (errno.EPERM, errno.EOPNOTSUPP)


def write(where: Place, file: str, *, with_keyring: bool) -> dict[str, Any]:
    """Make the backup `file`; {file, sha256, bytes, envelopes, keyring}.

    Refused: `file_exists`, `keyring_mismatch` if the keyring that goes with it does not open it.
    Invalid: `folder_missing`.
    """
    file, files = os.path.abspath(file), Files()
    if not os.path.isdir(os.path.dirname(file)):
        raise Invalid("folder_missing", "The folder of the backup is not there.")
    beside = f"{file}.keyring" if with_keyring else None
    for taken in (file, beside):
        if taken and files.exists(taken):
            raise _exists()
    temporary = f"{file}.{binascii.hexlify(os.urandom(6)).decode()}.new"
    try:
        with Client(where) as client:
            client.call("backup.write", {"file": temporary})
        keyring = _keyring(where.keyring, needed=with_keyring)
        with open(where.config, "rb") as opened:
            config = opened.read()
        database = _open(temporary, connection.TRUNCATE)
        try:
            note = {
                "config": config.decode("utf-8", "replace"),
                "keyring": "" if keyring is None else keyring.digest,
            }
            backup.annotate(database, note)
            count = _check(database, keyring if with_keyring else None, opened=with_keyring)
        finally:
            database.close()
        digest, size = _copy(temporary, None)
        if beside and keyring:
            _publish_keyring(keyring, beside, files)
        _publish(temporary, file, files)
    except OSError as error:
        raise storage_error(error, "backup") from None
    finally:
        for suffix in ("", "-journal"):
            files.remove(temporary + suffix)
    return {
        "file": file,
        "sha256": digest,
        "bytes": size,
        "envelopes": count,
        "keyring": beside,
    }


def restore(where: Place, file: str, *, keyring_file: str | None) -> dict[str, Any]:
    """Make a state of a backup; {state, profile, sha256, bytes, envelopes, keyring}.

    Refused: `state_exists`, `not_a_backup`, `keyring_needed`, `keyring_mismatch`, and as `init`.
    Corrupt: `database_corrupt`, `config_corrupt`, `schema_too_new`.
    """
    files = Files()
    keyring = None if keyring_file is None else _given_keyring(keyring_file)
    _read(file, 1)
    try:
        if making.begin(where, files, *_keys(where)) is not None:
            raise Refused("state_exists", "There is a state already; a backup makes a fresh one.")
        lock = state.lock(where, files)
        try:
            return _restore(where, file, keyring, files)
        finally:
            files.close(lock)
    except OSError as error:
        raise state.place_error(error) from None


def _keys(where: Place) -> tuple[str, str]:
    """What a restore that was cut short may have left besides."""
    name = os.path.basename(where.keyring)
    return name, f"{name}.new"


def _restore(where: Place, file: str, keyring: Keyring | None, files: Files) -> dict[str, Any]:
    target = os.path.join(where.state, store.NAME)
    copy = f"{target}.restore"
    if files.same_file(copy, target):
        files.remove(target)  # of a restore that the power cut short
    elif files.exists(target):
        raise Refused("state_not_empty", "The directory holds a database already.")
    making.furnish(where, files, *_keys(where))
    files.remove(copy)
    digest, size = _copy(file, copy)
    try:
        mode = connection.probe(where.state, _layout())
        database = _open(copy, mode)
        try:
            migrations.migrate(database, time.time_ns() // 1_000_000)
            told = backup.notes(database)
            config = told.get("config", "").encode()
            profile = state.parse_config(config).profile
            count = _check(database, keyring, opened=True)
            backup.settle(database)
        finally:
            database.close()
        if keyring:
            _publish_keyring(keyring, where.keyring, files)
        os.link(copy, target)
        files.sync_directory(where.state)
    except BaseException:
        if not files.same_file(copy, target):
            files.remove(copy)
        raise
    files.replace(where.config, config)
    for suffix in ("", "-journal"):
        files.remove(copy + suffix)
    same = keyring is not None and told.get("keyring") == keyring.digest
    return {
        "state": where.state,
        "profile": profile,
        "sha256": digest,
        "bytes": size,
        "envelopes": count,
        "keyring": "same" if same else None if keyring is None else "other",
    }


def _layout() -> connection.Layout:
    return state.layout(profiles.load("edge"))


def _open(path: str, mode: str) -> connection.Database:
    return connection.Database(path, _layout(), mode=mode)


def _check(database: connection.Database, keyring: Keyring | None, *, opened: bool) -> int:
    """Read all of it; with `opened` every envelope must open. The number of envelopes."""
    database.check("integrity_check")
    count, after = 0, None
    secrets = SecretStore(database)
    while True:
        envelopes, after = secrets.page(after, SECRET_PAGE_MAX, missing_key=None)
        count += len(envelopes)
        for envelope in envelopes if opened else ():
            if keyring is None:
                raise Refused("keyring_needed", "The backup holds secrets: name its keyring.")
            _prove(keyring, envelope)
        if after is None:
            return count


def _prove(keyring: Keyring, envelope: Envelope) -> None:
    from qinglong_edge.secret import seal

    try:
        seal.open_envelope(keyring, envelope)
    except EdgeError as error:
        if error.code == "secret_provider_unavailable":
            raise
        raise Refused(
            "keyring_mismatch", "The keyring does not open the secrets of the backup."
        ) from None


def _keyring(path: str, *, needed: bool) -> Keyring | None:
    from qinglong_edge.secret import keyring

    try:
        return keyring.read(path, Files())
    except Unavailable:
        if needed:
            raise
        return None


def _publish_keyring(keyring: Keyring, path: str, files: Files) -> None:
    """Write a keyring where there is none, or this very one."""
    files.remove(f"{path}.new")
    if not files.publish(f"{path}.new", path, keyring.encode()) and (
        _keyring(path, needed=True) != keyring
    ):
        raise _exists()


def _given_keyring(path: str) -> Keyring:
    """A keyring to restore from; it may lie on a disk without modes."""
    from qinglong_edge.secret import keyring

    return keyring.decode(_read(path, KEYRING_BYTES_MAX + 1))


def _read(path: str, bytes_max: int) -> bytes:
    try:
        with open(path, "rb") as opened:
            return opened.read(bytes_max)
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "EIO")
        raise Invalid("file_unreadable", "The file cannot be read.", errno=name) from None


def _copy(source: str, target: str | None) -> tuple[str, int]:
    """Read a file piece by piece, into a new private one or only its digest; durable if its own."""
    running, size = canonical.new_sha256(), 0
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    written = os.open(target, flags, 0o600) if target else os.open(source, os.O_RDWR)
    try:
        with open(source, "rb") as opened:
            while piece := opened.read(_PIECE_BYTES):
                running.update(piece)
                size += len(piece)
                while target and piece:
                    piece = piece[os.write(written, piece) :]
        os.fsync(written)
    finally:
        os.close(written)
    return running.hexdigest(), size


def _publish(temporary: str, file: str, files: Files) -> None:
    """Give the backup its name; a stick without hard links gets it by renaming."""
    try:
        os.link(temporary, file)
    except FileExistsError:
        raise _exists() from None
    except OSError as error:
        if error.errno not in _LINKLESS:
            raise
        if files.exists(file):
            raise _exists() from None
        files.rename(temporary, file)
    files.sync_directory(os.path.dirname(file))


def _exists() -> Refused:
    return Refused("file_exists", "There is a file of that name already.")
