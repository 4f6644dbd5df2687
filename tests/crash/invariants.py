"""What must hold, whatever was refused, died, or lost its power: each promise one function.

Each function takes a `Scene` and gives the sentences in which it is broken. Those of `ALWAYS` hold
at any moment, an owner's death included, before anybody has recovered anything; those of `SETTLED`
once an owner has recovered and nothing is left to do.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from qinglong_edge.core import ids, receipt
from qinglong_edge.core.errors import EdgeError
from qinglong_edge.core.run import ENDED
from tests.crash.scenarios import UNBELIEVABLE, Scenario
from tests.crash.stage import LOG_QUOTA, Slot

_ENDED = ", ".join(f"'{status}'" for status in sorted(ENDED))


@dataclass
class Scene:
    """One state at rest: its files, its database (a copy, or nobody owns it), what is known."""

    slot: Slot
    database: sqlite3.Connection | None  # None: there is none yet
    scenario: Scenario
    effects: int  # counted before the database was read
    cut: bool = False  # the power went: commands were killed, files may be torn
    promised: frozenset[str] = frozenset()  # attempts whose receipt was said to be durable
    signals: tuple[tuple[int, int, bool], ...] = ()  # group, number, was its leader alive
    committed: int = 0  # runs that an owner had been told are stored
    second_owner: str = ""  # how a second owner was refused; empty: there was none
    proofs: list[str] = field(default_factory=list)  # broken promises seen while it ran

    def rows(self, statement: str) -> list[tuple[object, ...]]:
        """The rows of a query; none without a database."""
        if self.database is None:
            return []
        return [tuple(row) for row in self.database.execute(statement)]

    def one(self, statement: str) -> int:
        """One number."""
        rows = self.rows(statement)
        return int(str(rows[0][0])) if rows else 0

    def receipts(self) -> Iterator[tuple[str, str, bytes]]:
        """(attempt id, where, bytes) of every receipt file; where is `shard` or `quarantine`."""
        root = os.path.join(self.slot.state, "receipts")
        for folder, _folders, names in os.walk(root):
            for name in names:
                if name.endswith(".json"):
                    with open(os.path.join(folder, name), "rb") as opened:
                        data = opened.read()
                    where = "quarantine" if ".quarantine" in folder else "shard"
                    yield name.removesuffix(".json"), where, data


def database_is_sound(scene: Scene) -> Iterator[str]:
    """`integrity_check` and `foreign_key_check` have nothing to say, and every row has its run."""
    if scene.database is None:
        return
    said = scene.rows("PRAGMA integrity_check")
    if said != [("ok",)]:
        yield f"integrity_check: {said}"
    if scene.rows("PRAGMA foreign_key_check"):
        yield "foreign_key_check finds rows"
    for table in ("attempt", "event"):  # the two that stand below a run without a foreign key
        if scene.rows(f"SELECT 1 FROM {table} WHERE run_number NOT IN (SELECT number FROM run)"):
            yield f"a row of {table} has no run"


def no_process_without_a_row(scene: Scene) -> Iterator[str]:
    """A command has never done more than attempts with a handle allow, and each of these that has
    not ended stands in the journal."""
    launched = scene.one("SELECT count(*) FROM attempt WHERE handle IS NOT NULL")
    if scene.effects > launched:
        yield f"commands did their work {scene.effects} times for {launched} recorded launches"
    bare = scene.rows(
        "SELECT run_number, attempt FROM attempt LEFT JOIN receipt_journal USING "
        f"(run_number, attempt) WHERE handle IS NOT NULL AND attempt.status NOT IN ({_ENDED}) "
        "AND receipt_journal.state IS NULL"
    )
    if bare:
        yield f"running without a journal row: {bare}"


def no_end_without_a_reason(scene: Scene) -> Iterator[str]:
    """An ended attempt has evidence or an error code; an exit code stands there with its proof."""
    for row in scene.rows(
        "SELECT run_number, attempt, status, evidence, exit_code, error_code FROM attempt "
        f"WHERE status IN ({_ENDED})"
    ):
        _run, _attempt, status, evidence, code, error = row
        proven = evidence in ("receipt", "wait_status")
        if evidence == "none" and error is None:
            yield f"ended without evidence or reason: {row}"
        if proven != (code is not None):
            yield f"exit code and evidence disagree: {row}"
        if status == "succeeded" and not (proven and code == 0):
            yield f"succeeded without a proof: {row}"


def receipts_are_whole(scene: Scene) -> Iterator[str]:
    """A receipt is there whole or not at all, and never overwritten: what stands there is what its
    writer wrote, or the unbelievable one that a stranger wrote first."""
    for attempt_id, where, data in scene.receipts():
        if data == UNBELIEVABLE:
            continue
        try:
            if receipt.decode(data).attempt_id != attempt_id:
                yield f"the receipt of {attempt_id} in {where} names another attempt"
        except EdgeError:
            yield f"the receipt of {attempt_id} in {where} is torn: {data[:40]!r}"


def a_file_has_its_row(scene: Scene) -> Iterator[str]:
    """A journal row goes only after its file is gone."""
    rows = _journal(scene)
    for attempt_id, where, _data in scene.receipts():
        if attempt_id not in rows:
            yield f"the row of {attempt_id} is resolved, its file in {where} is still there"


def intent_precedes_the_move(scene: Scene) -> Iterator[str]:
    """Nothing stands in quarantine whose row does not say so."""
    rows = _journal(scene)
    for attempt_id, where, _data in scene.receipts():
        if where == "quarantine" and rows.get(attempt_id) != "quarantined":
            yield f"{attempt_id} was moved away before its row said so: {rows.get(attempt_id)}"


def _journal(scene: Scene) -> dict[str, str]:
    rows = scene.rows(
        "SELECT attempt.id, state FROM receipt_journal JOIN attempt USING (run_number, attempt)"
    )
    return {
        ids.from_blob(bytes(blob)): str(state) for blob, state in rows if isinstance(blob, bytes)
    }


def an_occurrence_is_one_run(scene: Scene) -> Iterator[str]:
    """The cursor has moved if, and only if, the occurrence's run exists (or it is counted as
    skipped); an occurrence never became two runs."""
    twice = scene.rows(
        "SELECT trigger_number, scheduled_for_ms FROM run WHERE trigger_number IS NOT NULL "
        "GROUP BY trigger_number, scheduled_for_ms HAVING count(*) > 1"
    )
    if twice:
        yield f"occurrences that became more than one run: {twice}"
    for number, last, newest in scene.rows(
        "SELECT cursor.trigger_number, last_scheduled_ms, max(scheduled_for_ms) FROM cursor "
        "LEFT JOIN run USING (trigger_number) GROUP BY cursor.trigger_number"
    ):
        if last != newest:
            yield f"trigger {number}: its cursor says {last}, its newest run {newest}"


def logs_are_bounded(scene: Scene) -> Iterator[str]:
    """A log is at most its quota, and a prefix of what was written; whole unless power was cut."""
    for folder, _folders, names in os.walk(os.path.join(scene.slot.state, "logs")):
        for name in names:
            if not name.endswith(".log"):
                continue
            with open(os.path.join(folder, name), "rb") as opened:
                data = opened.read()
            with open(scene.slot.noise, "rb") as opened:
                written = opened.read()
            if len(data) > LOG_QUOTA:
                yield f"{name} has {len(data)} bytes, its quota is {LOG_QUOTA}"
            if not scene.cut and not written.startswith(data):
                yield f"{name} is no prefix of what was written"


def every_run_has_ended(scene: Scene) -> Iterator[str]:
    """Nothing is left in a state that blocks: with the machine healed and every process gone, every
    run has ended, and no attempt is left open."""
    for row in scene.rows(
        f"SELECT number, status, error_code FROM run WHERE status NOT IN ({_ENDED})"
    ):
        yield f"run {row[0]} is still {row[1]}"
    for row in scene.rows(
        f"SELECT run_number, attempt, status FROM attempt WHERE status NOT IN ({_ENDED})"
    ):
        yield f"attempt {row[1]} of run {row[0]} is still {row[2]}"


def what_ran_to_its_end_is_recorded(scene: Scene) -> Iterator[str]:
    """A command that did its work and exited 7 is recorded with that code, exactly once; nothing is
    lost of it and nothing doubled. (Commands killed from outside, or by a power cut: at most.)"""
    ended = scene.one("SELECT count(*) FROM attempt WHERE exit_code = 7")
    if scene.scenario.exact and not scene.cut and scene.effects != ended:
        yield f"commands did their work {scene.effects} times, {ended} attempts ended with 7"
    launched = scene.one("SELECT count(*) FROM attempt WHERE handle IS NOT NULL")
    if scene.effects > launched:
        yield f"commands did their work {scene.effects} times for {launched} recorded launches"


def no_success_is_invented(scene: Scene) -> Iterator[str]:
    """Every command here exits 7 or is ended from outside, so nothing may have succeeded."""
    for row in scene.rows("SELECT number FROM run WHERE status = 'succeeded'"):
        yield f"run {row[0]} is called succeeded"


def nothing_waits_for_a_file(scene: Scene) -> Iterator[str]:
    """Once the retention is over the journal is empty and no receipt is left; nor is a temporary,
    unless its writer died at it or the power went."""
    left = _journal(scene)
    if left:
        yield f"journal rows without an end: {left}"
    files = [(attempt_id, where) for attempt_id, where, _data in scene.receipts()]
    if files:
        yield f"receipt files without an end: {files}"
    root = os.path.join(scene.slot.state, "receipts")
    names = [name for _folder, _folders, found in os.walk(root) for name in found]
    allowed = scene.cut or scene.scenario.publishes
    if not allowed and any(name.endswith(".tmp") for name in names):
        yield f"temporaries are left: {names}"


def a_promised_receipt_is_believed(scene: Scene) -> Iterator[str]:
    """A receipt that was said to be durable ends its attempt, whatever the power did."""
    for blob, evidence, code in scene.rows("SELECT id, evidence, exit_code FROM attempt"):
        attempt_id = ids.from_blob(blob if isinstance(blob, bytes) else b"")
        if attempt_id in scene.promised and (evidence, code) != ("receipt", 7):
            yield f"the durable receipt of {attempt_id} did not end it: {evidence}, {code}"


def nothing_is_signalled_unproven(scene: Scene) -> Iterator[str]:
    """A group is signalled only while its leader is there to prove whose group it is."""
    for group, number, alive in scene.signals:
        if not alive:
            yield f"signal {number} went to group {group}, whose leader was gone"


def what_was_committed_stays(scene: Scene) -> Iterator[str]:
    """A run whose commit returned is there for the next owner."""
    found = scene.one("SELECT count(*) FROM run")
    if found < scene.committed:
        yield f"{scene.committed} runs were committed, {found} are there"


def there_is_one_owner(scene: Scene) -> Iterator[str]:
    """A second owner is refused at the lock, before it touches the database."""
    if scene.second_owner not in ("", "state_owned"):
        yield f"a second owner was not refused at the lock: {scene.second_owner}"


def nothing_else_was_broken(scene: Scene) -> Iterator[str]:
    """What was seen while it ran: descriptors, children, exceptions that left the loop."""
    yield from scene.proofs


Check = Callable[[Scene], Iterator[str]]
ALWAYS: tuple[Check, ...] = (
    database_is_sound,
    no_process_without_a_row,
    no_end_without_a_reason,
    receipts_are_whole,
    a_file_has_its_row,
    intent_precedes_the_move,
    an_occurrence_is_one_run,
    logs_are_bounded,
    nothing_is_signalled_unproven,
    what_was_committed_stays,
    there_is_one_owner,
    nothing_else_was_broken,
)
SETTLED: tuple[Check, ...] = (
    *ALWAYS,
    every_run_has_ended,
    what_ran_to_its_end_is_recorded,
    no_success_is_invented,
    nothing_waits_for_a_file,
    a_promised_receipt_is_believed,
)


def broken(scene: Scene, checks: tuple[Check, ...]) -> list[str]:
    """Every broken promise as `name: sentence`."""
    return [f"{check.__name__}: {said}" for check in checks for said in check(scene)]
