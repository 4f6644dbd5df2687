"""The worker's journal: the inbox of offers, the claim that may become one, the session.

Owns `worker.db`, which one worker opens at a time. Promises:

* A claim is durable before it is sent; an offer is stored, and its claim replaced by the next one,
  in one transaction: a crash before it replays the claim, one after it finds the offer.
* A record changes by compare-and-set only: the very next revision, along the table of `core.inbox`,
  whose states and fields the CHECK constraints repeat.
* A record goes only when it is settled, and the caller has removed its files before.
"""

from __future__ import annotations

import os

from qinglong_edge.core import canonical, inbox, offer
from qinglong_edge.core.errors import Corrupt, EdgeError, Invalid, Refused, Unavailable
from qinglong_edge.core.inbox import Ended, Entry, Settled
from qinglong_edge.core.offer import Claim, Lease, Offer, Worker
from qinglong_edge.storage.connection import Database, Layout, probe
from qinglong_edge.storage.migrations import migrate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from qinglong_edge.storage.connection import Row
    from qinglong_edge.storage.migrations import Scripts

NAME = "worker.db"
PAGE_MAX = 64
_DOCUMENT_BYTES_MAX = 163_840
_TRUNCATED = {None: None, False: 0, True: 1}

CHECKSUMS = {1: "4097fe2b24092e35c364a988ab446b4a4c149a79f33c8c796e55c0ca7a42c6b8"}

_OPEN = """settled_by IS NULL
AND state NOT IN ('start_failure_acknowledged', 'completion_acknowledged')"""
_FIELDS = (
    "handle",
    "pid",
    "pid_namespace",
    "started_at_ms",
    "log_id",
    "callback_sequence",
    "token_digest",
    "completed_at_ms",
    "recovery_reason",
)
_ENDED = ("exit_code", "finished_at_ms", "evidence", "truncated", "log_bytes")
_SETTLED = ("settled_at_ms", "settled_by", "settled_reason")
_COLUMNS = ("revision", "state", "accepted_at_ms", "updated_at_ms", *_FIELDS, *_ENDED, *_SETTLED)
_LEASE = (
    "version",
    "generation",
    "acquired_at_ms",
    "renewed_at_ms",
    "expires_at_ms",
    "updated_at_ms",
)
_SELECT = f"""
SELECT offer.body, {", ".join(f"lease.{name}" for name in _LEASE)},
       {", ".join(f"inbox.{name}" for name in _COLUMNS)}
FROM inbox JOIN offer USING (number) JOIN lease USING (number)
"""
_PUT_SETTING = """
INSERT INTO setting (name, value) VALUES (?, ?)
ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""


class Inbox:
    """The open journal; one owner, one thread."""

    def __init__(self, directory: str, *, layout: Layout, at_ms: int, entries_max: int) -> None:
        path = os.path.join(directory, NAME)
        mode = None if os.path.lexists(path) else probe(directory, layout)
        clean = not _left_open(path)
        self._entries_max = entries_max
        self.database = Database(path, layout, mode=mode)
        try:
            if mode is not None:
                os.chmod(path, 0o600)  # SQLite gives its WAL and journal the same
            elif not clean:
                self.database.check()
            migrate(self.database, at_ms, CHECKSUMS, _scripts)
        except BaseException:
            self.database.close()
            raise

    def setting(self, name: str) -> str | None:
        """A stored setting, or None."""
        row = self.database.row("SELECT value FROM setting WHERE name = ?", (name,))
        return None if row is None else str(row[0])

    def put_setting(self, name: str, value: str) -> None:
        """Store a setting."""
        with self.database.write():
            self.database.execute(_PUT_SETTING, (name, value))

    # -- the claim -----------------------------------------------------------------------------

    def claim(self) -> Claim | None:
        """The claim that was, or may have been, sent last."""
        row = self.database.row(
            "SELECT offer_id, lease_token, worker_id, session_id, generation, created_at_ms"
            " FROM claim"
        )
        if row is None:
            return None
        offer_id, token, worker_id, session_id, generation, created = row
        worker = Worker(worker_id=worker_id, session_id=session_id, generation=generation)
        return Claim(offer_id=offer_id, lease_token=token, worker=worker, created_at_ms=created)

    def put_claim(self, claim: Claim) -> None:
        """Make a claim durable, in place of one that no plane will answer any more."""
        with self.database.write():
            self._put_claim(claim)

    def _put_claim(self, claim: Claim) -> None:
        worker = claim.worker
        self.database.execute(
            "INSERT OR REPLACE INTO claim VALUES (1, ?, ?, ?, ?, ?, ?)",
            (
                claim.offer_id,
                claim.lease_token,
                worker.worker_id,
                worker.session_id,
                worker.generation,
                claim.created_at_ms,
            ),
        )

    # -- the records ---------------------------------------------------------------------------

    def accept(self, offered: Offer, following: Claim | None, at_ms: int) -> tuple[str, Entry]:
        """Store a delivered offer and the claim that follows it, in one transaction.

        `accepted`; `replayed` if it is known; `renewed` if it is known under an older lease.
        Refused `offer_conflict`; Unavailable `capacity_exhausted` when the journal is full.
        """
        with self.database.write():
            known = self.get(offered.offer_id)
            if known is not None:
                newer = inbox.merged(known, offered, at_ms)
                if newer is not None:
                    self._save(known, newer)
                outcome, entry = ("renewed", newer) if newer else ("replayed", known)
            else:
                if self.count() >= self._entries_max:
                    raise Unavailable("capacity_exhausted", "The worker's journal is full.")
                outcome, entry = "accepted", self._insert(offered, at_ms)
            if following is not None:
                self._put_claim(following)
        return outcome, entry

    def _insert(self, offered: Offer, at_ms: int) -> Entry:
        entry = Entry(
            offer=offered,
            revision=0,
            state=inbox.ACCEPTED,
            accepted_at_ms=at_ms,
            updated_at_ms=at_ms,
        )
        body = canonical.encode(offer.stored(offered))
        if len(body) > _DOCUMENT_BYTES_MAX:
            raise Invalid("offer_too_large", "An offer is too large to keep.", bytes=len(body))
        cursor = self.database.execute(
            "INSERT INTO offer (offer_id, body) VALUES (?, ?)",
            (offered.offer_id, body.decode("utf-8")),
        )
        number = cursor.lastrowid
        self.database.execute(
            f"INSERT INTO inbox (number, {', '.join(_COLUMNS)}) VALUES (?{', ?' * len(_COLUMNS)})",
            (number, *_values(entry)),
        )
        self.database.execute(
            f"INSERT INTO lease (number, {', '.join(_LEASE)}) VALUES (?{', ?' * len(_LEASE)})",
            (number, *(getattr(offered.lease, name) for name in _LEASE)),
        )
        return entry

    def replace(self, before: Entry, after: Entry) -> Entry:
        """Compare and set: `after`, if the record is still `before`; Refused otherwise."""
        with self.database.write():
            self._save(before, after)
        return after

    def _save(self, before: Entry, after: Entry) -> None:
        inbox.check_step(before, after)
        number = self._number(before.offer_id)
        if before.offer.lease != after.offer.lease:
            lease = after.offer.lease
            self.database.execute(
                f"UPDATE lease SET {', '.join(f'{name} = ?' for name in _LEASE)} WHERE number = ?",
                (*(getattr(lease, name) for name in _LEASE), number),
            )
        old, new = _values(before), _values(after)
        changed = [at for at in range(len(_COLUMNS)) if old[at] != new[at]]
        cursor = self.database.execute(
            f"UPDATE inbox SET {', '.join(f'{_COLUMNS[at]} = ?' for at in changed)}"
            " WHERE number = ? AND revision = ?",
            (*(new[at] for at in changed), number, before.revision),
        )
        if cursor.rowcount != 1:
            raise Refused("offer_revision_conflict", "A record has moved on meanwhile.")

    def _number(self, offer_id: str) -> int:
        row = self.database.row("SELECT number FROM offer WHERE offer_id = ?", (offer_id,))
        if row is None:
            raise Refused("offer_missing", "There is no such offer in the journal.")
        return int(row[0])

    def get(self, offer_id: str) -> Entry | None:
        """The record of an offer, or None."""
        row = self.database.row(f"{_SELECT} WHERE offer.offer_id = ?", (offer_id,))
        return None if row is None else _entry(row)

    def page(self, *, after: str = "", limit: int = 16) -> list[Entry]:
        """Records with ids behind `after`, ascending; 1 to 64 of them."""
        if not 1 <= limit <= PAGE_MAX:
            raise Invalid("page_invalid", "A page has 1 to 64 records.", limit=limit)
        rows = self.database.rows(
            f"{_SELECT} WHERE offer.offer_id > ? ORDER BY offer.offer_id LIMIT ?", (after, limit)
        )
        return [_entry(row) for row in rows]

    def holding(self) -> list[Entry]:
        """Every record that holds a place, oldest first; never more than a worker may run."""
        return [
            _entry(row) for row in self.database.rows(f"{_SELECT} WHERE {_OPEN} ORDER BY number")
        ]

    def places_held(self) -> int:
        """How many records hold a place."""
        row = self.database.row(f"SELECT count(*) FROM inbox WHERE {_OPEN}")
        return 0 if row is None else int(row[0])

    def count(self) -> int:
        """Every record, settled ones included."""
        row = self.database.row("SELECT count(*) FROM inbox")
        return 0 if row is None else int(row[0])

    def retirable(
        self, *, before_ms: int, lost_before_ms: int, ahead_ms: int | None = None, limit: int
    ) -> list[Entry]:
        """Settled records that nobody needs any more, oldest first.

        Those that were settled here have a time of their own; so has what a wrong clock has dated.
        """
        rows = self.database.rows(
            f"{_SELECT} WHERE NOT ({_OPEN})"
            " AND (inbox.updated_at_ms < CASE WHEN settled_by IS NULL THEN ? ELSE ? END"
            " OR inbox.updated_at_ms > ?) ORDER BY number LIMIT ?",
            (before_ms, lost_before_ms, ahead_ms, limit),
        )
        return [_entry(row) for row in rows]

    def remove(self, entry: Entry) -> bool:
        """Forget a settled record, if it is still this one."""
        if entry.holds_place:
            raise Refused("offer_unsettled", "A record that holds a place is kept.")
        with self.database.write():
            cursor = self.database.execute(
                "DELETE FROM offer WHERE number = (SELECT number FROM inbox JOIN offer"
                " USING (number) WHERE offer_id = ? AND revision = ?)",
                (entry.offer_id, entry.revision),
            )
        return cursor.rowcount == 1

    def close(self) -> None:
        """Close for good; idempotent."""
        self.database.close()


def _scripts() -> Scripts:
    from qinglong_edge.storage.inbox_schema import MIGRATIONS

    return MIGRATIONS


def _values(entry: Entry) -> list[Any]:
    ended, settled = entry.ended, entry.settled
    values: list[Any] = [entry.revision, entry.state, entry.accepted_at_ms, entry.updated_at_ms]
    values += [getattr(entry, name) for name in _FIELDS]
    if ended is None:
        values += [None] * len(_ENDED)
    else:
        values += [ended.exit_code, ended.finished_at_ms, ended.evidence]
        values += [_TRUNCATED[ended.truncated], ended.log_bytes]
    if settled is None:
        values += [None] * len(_SETTLED)
    else:
        values += [settled.at_ms, settled.by, settled.reason]
    return values


def _entry(row: Row) -> Entry:
    try:
        body, rest = row[0], row[1:]
        lease = Lease(**dict(zip(_LEASE, rest, strict=False)))
        columns = dict(zip(_COLUMNS, rest[len(_LEASE) :], strict=True))
        document = canonical.decode(body.encode("utf-8"), bytes_max=_DOCUMENT_BYTES_MAX)
        if not isinstance(document, dict):
            raise Corrupt("row_corrupt", "A stored offer is no object.")
        return Entry(
            offer=offer.from_stored(document, lease),
            ended=_ended(columns),
            settled=_settled(columns),
            **{name: columns[name] for name in _COLUMNS[:4]},
            **{name: columns[name] for name in _FIELDS},
        )
    except (EdgeError, KeyError, TypeError, AttributeError):
        raise Corrupt("row_corrupt", "A stored offer cannot be read; it was kept.") from None


def _ended(columns: dict[str, Any]) -> Ended | None:
    if columns["evidence"] is None:
        return None
    truncated = columns["truncated"]
    return Ended(
        exit_code=columns["exit_code"],
        finished_at_ms=columns["finished_at_ms"],
        evidence=columns["evidence"],
        truncated=None if truncated is None else bool(truncated),
        log_bytes=columns["log_bytes"],
    )


def _settled(columns: dict[str, Any]) -> Settled | None:
    if columns["settled_by"] is None:
        return None
    return Settled(
        at_ms=columns["settled_at_ms"],
        by=columns["settled_by"],
        reason=columns["settled_reason"],
    )


def _left_open(path: str) -> bool:
    """True after an unclean stop; an empty journal is what a clean one may leave behind."""
    for suffix in ("-wal", "-journal"):
        if os.path.exists(path + suffix) and os.path.getsize(path + suffix) > 0:
            return True
    return False
