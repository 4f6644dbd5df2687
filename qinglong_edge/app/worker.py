"""The worker's composition root: everything of it is built here and nowhere else.

Owns which real thing stands behind which port, and the one owner of a state directory. A crash at
any moment is a start like any other for the next owner.

    <state>/   0700  owner.lock  worker.db  receipts/  logs/
    <runtime>/ 0700  worker.sock  wrapper.sh                    (default <state>/run)
"""

from __future__ import annotations

import os
import time

from qinglong_edge.app import program, worker_config
from qinglong_edge.app.worker_credentials import Credentials
from qinglong_edge.artifact.place import LogPaths
from qinglong_edge.artifact.worker import Policy, WorkerLogAllocator, worker_log_id
from qinglong_edge.core.errors import Unavailable
from qinglong_edge.core.ids import IdSource
from qinglong_edge.core.limits import LOG_WRITE_BYTES_MAX, OWNER_LOCK_RETRY_MS
from qinglong_edge.process import wrapper
from qinglong_edge.process.controller import Controller
from qinglong_edge.process.identity import Inspector
from qinglong_edge.process.launcher import TOOLS_PATH, Launcher, Tools
from qinglong_edge.process.receipts import ReceiptStore
from qinglong_edge.storage.connection import Layout
from qinglong_edge.storage.inbox import NAME as STORE
from qinglong_edge.storage.inbox import Inbox
from qinglong_edge.system.child import Spawner
from qinglong_edge.system.clock import Clock
from qinglong_edge.system.dial import Dialer
from qinglong_edge.system.files import Files, storage_error
from qinglong_edge.system.loop import Loop
from qinglong_edge.system.process import Processes
from qinglong_edge.worker.completion import Completion
from qinglong_edge.worker.control import Supervisor
from qinglong_edge.worker.executor import Executor
from qinglong_edge.worker.leases import Leases
from qinglong_edge.worker.lifecycle import Lifecycle
from qinglong_edge.worker.plane import Plane
from qinglong_edge.worker.processor import Processor
from qinglong_edge.worker.pull import Places, Puller
from qinglong_edge.worker.retention import Retention
from qinglong_edge.worker.session import Session
from qinglong_edge.worker.transport import Transport

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from qinglong_edge.app.worker_config import WorkerConfig
    from qinglong_edge.core.inbox import Entry


_OURS = frozenset(
    {
        *("owner.lock", "receipts", "logs", "run", "lost+found"),
        *("worker.sock", "wrapper.sh", "wrapper.sh.new"),
    }
)


class Parts:
    """The effects of the machine; tests hand in counting or failing ones."""

    def __init__(self) -> None:
        self.files = Files()
        self.processes = Processes()
        self.spawner = Spawner()
        self.clock = Clock()
        self.random: Callable[[int], bytes] = os.urandom
        self.tools_path = TOOLS_PATH
        self.shell = "/bin/sh"


class Spool:
    """Names, sizes and descriptors of the logs of one worker."""

    def __init__(self, root: str, files: Files) -> None:
        self._root = root
        self._files = files

    def log_id(self, entry: Entry) -> str:
        """The id that an offer's log has, before there is one."""
        offer = entry.offer
        return worker_log_id(offer.project_id, offer.run_id, offer.attempt_id, offer.offer_id)

    def fact_paths(self, log_id: str) -> tuple[str, str]:
        """Temporary and target of the truncation fact."""
        paths = LogPaths(self._root, log_id)
        return paths.fact_temporary, paths.fact

    def duplicate(self, sink: Any) -> int:
        """A descriptor of an open log that outlives its writer; the caller closes it."""
        return os.dup(sink.output_plan().fd)

    def close(self, fd: int) -> None:
        """Give a descriptor back."""
        self._files.close(fd)

    def settle(self, log_id: str) -> int | None:
        """The log's bytes so far, durable from now on, or None if there is no file."""
        return self._files.sync(LogPaths(self._root, log_id).file)


class Worker:
    """One owner's assembled worker."""

    def __init__(self, config: WorkerConfig, parts: Parts, *, say: Callable[..., None]) -> None:
        self.config = config
        self.parts = parts
        self.say = say
        _prepare(config, parts.files)
        self.lock_fd = _lock(config, parts.files)
        try:
            self.store = _open_store(config, parts)
        except BaseException:
            os.close(self.lock_fd)
            raise
        self.loop = Loop(parts.clock)
        try:
            self._assemble()
        except BaseException:
            self.close()
            raise

    def _assemble(self) -> None:
        config, parts, profile = self.config, self.parts, self.config.profile
        clock, store = parts.clock, self.store
        self.leases = Leases(clock)
        self.transport = Transport(
            config.origin,
            config.worker_id,
            material=Credentials(config, parts.files).load,
            clock=clock,
            dial=Dialer(parts.spawner, parts.processes, clock).dial,
            timeout_ms=profile.request_timeout_ms,
            lease_end=self.leases.next_end,
            meanwhile=lambda: self.executor.guard(self.leases.outlived),
        )
        self.plane = Plane(self.transport, config.worker_id)
        self.artifacts = WorkerLogAllocator(
            config.logs,
            parts.files,
            Policy(
                maximum_attempt_bytes=profile.log_quota_bytes,
                minimum_free_bytes=profile.reserve_bytes,
                maximum_write_chunk_bytes=LOG_WRITE_BYTES_MAX,
            ),
        )
        self.places = Places(
            store,
            runs_max=config.runs_max,
            entries_max=profile.journal_entries_max,
            room=self.artifacts.has_room,
        )
        self.session = Session(
            store=store,
            plane=self.plane,
            clock=clock,
            worker_id=config.worker_id,
            capabilities=config.capabilities,
            runs_max=config.runs_max,
            lease_ms=profile.session_lease_ms,
            heartbeat_ms=profile.heartbeat_ms,
            new_id=IdSource(clock.wall_ms, parts.random).next,
            slots=self.places.told,
            say=self.say,
        )
        self.receipts = ReceiptStore(config.receipts, parts.files)
        self.spool = Spool(config.logs, parts.files)
        self._assemble_execution()
        self._assemble_lifecycle()

    def _assemble_execution(self) -> None:
        parts, store = self.parts, self.store
        inspector = Inspector(parts.processes)
        self.executor = Executor(
            launcher=self._launcher(inspector),
            inspector=inspector,
            controller=Controller(parts.processes, inspector, self.loop, parts.clock),
            receipt_store=self.receipts,
            spool=self.spool,
            loop=self.loop,
            pids=parts.processes,
            clock=parts.clock,
            grace_ms=self.config.profile.stop_grace_ms,
        )
        self.processor = Processor(
            store=store,
            plane=self.plane,
            session=self.session,
            leases=self.leases,
            executor=self.executor,
            artifacts=self.artifacts,
            spool=self.spool,
            clock=parts.clock,
            random=parts.random,
            log_quota_bytes=self.config.profile.log_quota_bytes,
            say=self.say,
        )
        self.completion = Completion(
            store=store,
            plane=self.plane,
            session=self.session,
            leases=self.leases,
            executor=self.executor,
            artifacts=self.artifacts,
            spool=self.spool,
            receipt_store=self.receipts,
            clock=parts.clock,
            say=self.say,
        )
        self.supervisor = Supervisor(
            store=store,
            plane=self.plane,
            session=self.session,
            leases=self.leases,
            executor=self.executor,
            processor=self.processor,
            completion=self.completion,
            clock=parts.clock,
            say=self.say,
        )

    def _assemble_lifecycle(self) -> None:
        parts, profile, store = self.parts, self.config.profile, self.store
        self.lifecycle = Lifecycle(
            store=store,
            plane=self.plane,
            session=self.session,
            leases=self.leases,
            supervisor=self.supervisor,
            completion=self.completion,
            executor=self.executor,
            puller=Puller(
                store=store,
                plane=self.plane,
                session=self.session,
                leases=self.leases,
                places=self.places,
                clock=parts.clock,
                random=parts.random,
                say=self.say,
            ),
            places=self.places,
            retention=Retention(
                store=store,
                receipt_store=self.receipts,
                artifacts=self.artifacts,
                clock=parts.clock,
                entries_max=profile.journal_entries_max,
                retention_ms=profile.retention_ms,
                lost_retention_ms=profile.lost_retention_ms,
                say=self.say,
            ),
            loop=self.loop,
            clock=parts.clock,
            cadence_ms=profile.cadence_ms,
            drain_timeout_ms=profile.drain_timeout_ms,
            records_per_tick=profile.records_per_tick,
            supervision_per_tick=profile.supervision_per_tick,
            say=self.say,
        )
        self.executor.on_end = self.completion.end_told
        self.executor.on_change = self.lifecycle.changed
        self.processor.on_change = self.lifecycle.changed

    def _launcher(self, inspector: Inspector) -> Launcher:
        parts = self.parts
        return Launcher(
            parts.spawner,
            parts.processes,
            inspector,
            self.receipts,
            parts.clock,
            wrapper_path=self.config.wrapper,
            tools=Tools(
                path=parts.tools_path,
                sync=lambda: wrapper.probe_sync(parts.tools_path),
                shell=parts.shell,
            ),
            oom_score_adj=self.config.profile.oom_score_adj,
            program_fd=program.descriptor(),
        )

    def close(self) -> None:
        """Give everything back; running tasks are left running."""
        if hasattr(self, "executor"):
            self.executor.close()
            self.transport.close()
        self.store.close()
        self.loop.close()
        os.close(self.lock_fd)


def _prepare(config: WorkerConfig, files: Files) -> None:
    worker_config.check_apart(config)
    try:
        os.makedirs(os.path.dirname(config.runtime), mode=0o700, exist_ok=True)
        for path in (config.state, config.runtime):
            os.makedirs(path, mode=0o700, exist_ok=True)
            files.make_private_directory(path, _is_ours)
        files.make_private_directory(config.receipts)
    except OSError as error:
        raise storage_error(error, "state directory") from None


def _is_ours(name: str) -> bool:
    return name in _OURS or name.startswith(STORE)


def _lock(config: WorkerConfig, files: Files) -> int:
    """Become the owner; retried for a moment, since a dying launch child may still hold it."""
    path = os.path.join(config.state, "owner.lock")
    give_up_ms = time.monotonic_ns() // 1_000_000 + OWNER_LOCK_RETRY_MS
    while True:
        try:
            fd = files.lock_owner(path)
        except OSError as error:
            raise storage_error(error, "owner lock") from None
        if fd is not None:
            return fd
        if time.monotonic_ns() // 1_000_000 >= give_up_ms:
            raise Unavailable("state_owned", "Another process owns this state directory.")
        time.sleep(0.05)


def _open_store(config: WorkerConfig, parts: Parts) -> Inbox:
    profile = config.profile
    layout = Layout(
        page_bytes=profile.page_bytes, cache_kib=profile.cache_kib, wal_bytes=profile.wal_bytes
    )
    return Inbox(
        config.state,
        layout=layout,
        at_ms=parts.clock.wall_ms(),
        entries_max=profile.journal_entries_max,
    )


def view(worker: Worker) -> dict[str, object]:
    """How a worker stands: session, places, room for a log, offers that hold a place."""
    session = worker.session
    held = worker.store.holding()
    return {
        "worker": worker.config.worker_id,
        "profile": worker.config.profile.name,
        "session": {
            "status": session.status or "none",
            "reason": session.trouble,
            "draining": session.drain_wanted,
        },
        "places": {"total": worker.config.runs_max, "free": worker.places.free()},
        "room": worker.places.room(),
        "records": worker.store.count(),
        "offers": [_shown(entry) for entry in held],
    }


def _shown(entry: Entry) -> dict[str, object]:
    return {
        "offer": entry.offer_id,
        "run": entry.offer.run_id,
        "state": entry.state,
        "reason": entry.recovery_reason,
        "ended": None if entry.ended is None else entry.ended.exit_code,
        "updatedAtMs": entry.updated_at_ms,
    }


def settle(worker: Worker, offer_id: str, reason: str) -> dict[str, object]:
    """An operator's word on an offer that cannot be proven."""
    entry = worker.supervisor.settle_by_operator(offer_id, reason)
    return {"offer": entry.offer_id, "state": entry.state, "settled": not entry.holds_place}
