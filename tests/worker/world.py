"""The worker's policies on a real journal; plane, executor and logs do what a test says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from qinglong_edge.core import canonical, exchange, inbox
from qinglong_edge.core.errors import EdgeError, Refused, Unavailable
from qinglong_edge.core.evidence import Stopped
from qinglong_edge.core.exchange import Activation, Control, Stored
from qinglong_edge.core.inbox import Ended, Entry
from qinglong_edge.core.offer import Claim, Offer, Worker
from qinglong_edge.core.plan import Identity, LaunchPlan
from qinglong_edge.storage.connection import Layout
from qinglong_edge.storage.inbox import Inbox
from qinglong_edge.worker.completion import Completion
from qinglong_edge.worker.control import Supervisor
from qinglong_edge.worker.executor import Draft, End, Rejected, Started
from qinglong_edge.worker.leases import Leases
from qinglong_edge.worker.processor import Processor
from tests.unit import offers

LAYOUT = Layout(page_bytes=512, cache_kib=64, wal_bytes=65_536)
LOG_ID = "wlog-" + "1" * 30
TOKEN = bytes([7]) * 32
TOKEN_DIGEST = "4bb06f8e4e3a7715d201d573d0aa423762e55dabd61a2c02278fa56cc6d294e0"
IDENTITY = Identity(handle="ql3lp1.x", pid=9, pid_namespace=1)


class Clock:
    """Two clocks that a test turns."""

    def __init__(self) -> None:
        self.wall = 2_000
        self.boot = 500_000

    def wall_ms(self) -> int:
        return self.wall

    def boot_ms(self) -> int:
        return self.boot

    def turn(self, ms: int) -> None:
        """Both go on."""
        self.wall += ms
        self.boot += ms


class Plane:
    """Answers as it is told; `asked` is what it was asked, in order, `about` of which offers."""

    def __init__(self, store: Inbox) -> None:
        self.store = store
        self.asked: list[tuple[str, str]] = []
        self.about: list[tuple[str, str]] = []
        self.answers: dict[str, Any] = {}
        self.down = False
        self.uploaded: list[tuple[int, bytes]] = []

    def _say(self, what: str, entry: Entry, usual: Any) -> Any:
        known = self.store.get(entry.offer_id)
        self.asked.append((what, known.state if known else "none"))
        self.about.append((what, entry.offer_id))
        answer = self.answers.get(what, usual)
        if isinstance(answer, list):
            answer = answer.pop(0) if answer else usual
        if isinstance(answer, EdgeError):
            raise answer
        return answer

    def starting(self, entry: Entry) -> Activation:
        return self._activation("starting", entry)

    def running(self, entry: Entry) -> Activation:
        return self._activation("running", entry)

    def start_failure(self, entry: Entry) -> Activation:
        return self._activation("start-failure", entry)

    def _activation(self, what: str, entry: Entry) -> Activation:
        usual = Activation(status="applied", callback_sequence=0, deadline_at_ms=None)
        found: Activation = self._say(what, entry, usual)
        return found

    def resolver(self, _entry: Entry, _timeout_ms: int) -> Callable[[], dict[str, str]]:
        return dict

    def control(self, entry: Entry) -> Control:
        lease = entry.offer.lease
        usual = Control(
            status="renewed",
            lease=lease.replace(version=lease.version + 1, expires_at_ms=31_000),
            reason=None,
        )
        found: Control = self._say("control", entry, usual)
        return found

    def offers(self, claim: Claim) -> Offer | None:
        entry = self.store.get(claim.offer_id)
        assert entry is not None
        found: Offer | None = self._say("offers", entry, None)
        return found

    def upload(
        self, entry: Entry, sent: Callable[[], Stored], length: int, pieces: Iterator[bytes]
    ) -> Stored:
        data = b"".join(pieces)
        self.uploaded.append((length, data))
        self._say("upload", entry, None)
        return sent()

    def complete(self, entry: Entry, ended: Ended, stored: Stored) -> str:
        body = exchange.completion(entry, ended, stored)
        assert body["artifact"]["byteLength"] == stored.byte_length
        found: str = self._say("complete", entry, "applied")
        return found


class Session:
    """A session that may act, until a test says otherwise."""

    def __init__(self) -> None:
        self.current: Worker | None = offers.WORKER
        self.for_ever = True

    def may_act_on(self, entry: Entry) -> bool:
        return self.current == entry.offer.worker

    def may_still_act_on(self, _entry: Entry) -> bool:
        return self.for_ever


class Sink:
    """A log that counts its closings."""

    def __init__(self, log_artifact_id: str) -> None:
        self.log_artifact_id = log_artifact_id
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class Logs:
    """The allocator: preparations, and logs to read."""

    def __init__(self, store: Inbox) -> None:
        self.store = store
        self.sink = Sink(LOG_ID)
        self.refuse: EdgeError | None = None
        self.taken_in: list[str] = []
        self.released = 0
        self.content: bytes | None = b"worker-log"
        self.truncated: bool | None = None
        self.opened = 0
        self.settled: list[bool] = []  # before the number of its bytes was recorded
        self.prepared_id = LOG_ID
        self.log_artifact_id = LOG_ID

    def prepare(self, *_ids: str) -> Logs:
        if self.refuse is not None:
            raise self.refuse
        self.log_artifact_id = self.prepared_id
        return self

    def take_output(self) -> Sink:
        entry = self.store.get("offer-1")
        assert entry is not None
        self.taken_in.append(entry.state)
        if len(self.taken_in) > 1:
            raise Refused("closed", "again")
        return self.sink

    def release(self) -> None:
        self.released += 1
        if not self.taken_in:
            self.sink.close()

    # -- reading, and the spool's names --------------------------------------------------------

    def open(self, _run_id: str, _attempt_id: str, _log_id: str) -> Any:
        if self.content is None:
            return None
        self.opened += 1
        return Lease(self)

    def remove(self, _log_id: str) -> bool:
        return True

    def log_id(self, _entry: Entry) -> str:
        return LOG_ID

    def settle(self, _log_id: str) -> int | None:
        entry = self.store.get("offer-1")
        self.settled.append(entry is not None and entry.ended is None)
        return None if self.content is None else len(self.content)


class Lease:
    """One reading of the log."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self.byte_length = len(logs.content or b"")
        self.truncated = logs.truncated

    def chunks(self) -> Iterator[bytes]:
        data = self._logs.content or b""
        yield from (data[at : at + 4] for at in range(0, len(data), 4))

    def close(self) -> None:
        self._logs.opened -= 1


class Executor:
    """Starts as it is told; a child is ready when a test says so."""

    def __init__(self) -> None:
        self.drafts: list[Draft] = []
        self.plans: list[LaunchPlan] = []
        self.refused: list[Draft] = []
        self.starts = 0
        self.how: Callable[[Draft, Entry, Sink, Callable[[Identity], Entry]], Any] = started
        self.end: End | None = None
        self.is_gone = False
        self.is_alive = False
        self.stops: list[str] = []
        self.under_way: dict[str, Callable[[Stopped], None]] = {}
        self.stop_result: Stopped | None = Stopped(conclusive=True, signal=15)
        self.released: list[str] = []

    def begin(
        self,
        plan: LaunchPlan,
        _log_id: str,
        _resolve: Callable[[], dict[str, str]],
        ready: Callable[[EdgeError | None], None],
    ) -> Draft:
        draft = Draft(plan, ready)
        self.plans.append(plan)
        self.drafts.append(draft)
        return draft

    def ready(self, error: EdgeError | None = None) -> None:
        """The last child says so."""
        self.drafts[-1].ready(error)

    def refuse(self, draft: Draft) -> None:
        self.refused.append(draft)

    def start(
        self, draft: Draft, entry: Entry, sink: Sink, barrier: Callable[[Identity], Entry]
    ) -> Any:
        self.starts += 1
        return self.how(draft, entry, sink, barrier)

    def end_of(self, _entry: Entry) -> End | None:
        return self.end

    def gone(self, entry: Entry) -> bool:
        return self.is_gone or entry.target is None

    def alive(self, _entry: Entry) -> bool:
        return self.is_alive

    def stop(self, entry: Entry, done: Callable[[Stopped], None]) -> bool:
        if self.stopping(entry.offer_id):
            return False
        self.stops.append(entry.offer_id)
        if self.stop_result is not None:
            done(self.stop_result)
        else:
            self.under_way[entry.offer_id] = done
        return True

    def stopping(self, offer_id: str) -> bool:
        return offer_id in self.under_way

    def release(self, entry: Entry) -> None:
        self.released.append(entry.offer_id)


def started(draft: Draft, _entry: Entry, sink: Sink, barrier: Callable[[Identity], Entry]) -> Any:
    """As a good executor does: close the writer, cross the barrier, open the gate."""
    sink.close()
    barrier(IDENTITY)
    return Started(identity=IDENTITY, started_at_ms=draft.plan.started_at_ms)


def rejected(_draft: Draft, _entry: Entry, _sink: Sink, _barrier: object) -> Any:
    """Proven never to have run."""
    return Rejected(code="launch_unavailable")


def unknown(_draft: Draft, _entry: Entry, _sink: Sink, _barrier: object) -> Any:
    """Nobody knows."""
    raise Unavailable("launch_failed", "unknown")


class Receipts:
    """Receipt files, counted."""

    def __init__(self) -> None:
        self.removed: list[str] = []
        self.fails = False

    def read(self, _attempt_id: str) -> None:
        return None

    def remove(self, attempt_id: str) -> bool:
        if self.fails:
            raise OSError(5, "EIO")
        self.removed.append(attempt_id)
        return True


class World:
    """Everything of one worker but its processes and its network."""

    def __init__(self, folder: str) -> None:
        self.clock = Clock()
        self.store = Inbox(folder, layout=LAYOUT, at_ms=1, entries_max=64)
        self.plane = Plane(self.store)
        self.session = Session()
        self.logs = Logs(self.store)
        self.executor = Executor()
        self.receipts = Receipts()
        self.leases = Leases(self.clock)
        self.said: list[tuple[str, dict[str, object]]] = []
        shared: dict[str, Any] = {
            "store": self.store,
            "plane": self.plane,
            "session": self.session,
            "leases": self.leases,
            "executor": self.executor,
            "clock": self.clock,
            "say": self.say,
        }
        self.processor = Processor(
            artifacts=self.logs,
            spool=self.logs,  # type: ignore[arg-type]
            random=lambda count: TOKEN[:count],
            log_quota_bytes=65_536,
            **shared,
        )
        self.completion = Completion(
            artifacts=self.logs,
            spool=self.logs,  # type: ignore[arg-type]
            receipt_store=self.receipts,
            **shared,
        )
        self.supervisor = Supervisor(processor=self.processor, completion=self.completion, **shared)

    def say(self, event: str, /, **facts: object) -> None:
        self.said.append((event, facts))

    def accept(self, **changes: Any) -> Entry:
        """An offer has come."""
        offered = offers.made(**changes)
        _outcome, entry = self.store.accept(offered, None, self.clock.wall_ms())
        self.leases.learned(entry, self.clock.boot_ms())
        return entry

    def at(self, state: str, offer_id: str = "offer-1", **changes: Any) -> Entry:
        """A record brought to a state along the table."""
        entry = self.accept(offer_id=offer_id)
        ways = {
            inbox.LAUNCHING: (inbox.STARTING_ACKNOWLEDGED, inbox.LAUNCHING),
            inbox.STARTED: (inbox.STARTING_ACKNOWLEDGED, inbox.LAUNCHING, inbox.STARTED),
            inbox.RUNNING_ACKNOWLEDGED: (
                inbox.STARTING_ACKNOWLEDGED,
                inbox.LAUNCHING,
                inbox.STARTED,
                inbox.RUNNING_ACKNOWLEDGED,
            ),
        }
        for step in ways.get(state, (state,)):
            wanted = offers.entry(step)
            fields = ("started_at_ms", "log_id", "callback_sequence", "token_digest")
            given = {name: getattr(wanted, name) for name in (*fields, "handle", "pid")}
            if step == state:
                given |= changes
            entry = self.store.replace(entry, entry.moved(step, self.clock.wall, **given))
        return entry

    @property
    def state(self) -> str:
        """What `offer-1` has become."""
        entry = self.store.get("offer-1")
        assert entry is not None
        return entry.state

    @property
    def entry(self) -> Entry:
        """The record of `offer-1`."""
        entry = self.store.get("offer-1")
        assert entry is not None
        return entry


def sha(data: bytes) -> str:
    """A digest in hexadecimal."""
    return canonical.sha256_hex(data)
