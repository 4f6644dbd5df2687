"""The composition root: everything is built here and nowhere else.

Owns which real thing stands behind which port, and the order in which an owner comes to life and
goes (ADR-0069 section 5):

    start   storage -> assembly -> receipt-first recovery -> one cleanup page
            -> domain recovery (line, cursors) -> lifecycles -> admission
    stop    admission drain -> cleanup lifecycle -> the others -> storage

A one-shot owner (a command while no daemon runs) is assembled the same way; it neither recovers nor
schedules.
"""

from __future__ import annotations

import binascii
import os

from qinglong_edge.app import profiles, program, state
from qinglong_edge.app.preview import Zones
from qinglong_edge.app.source import SecretSource
from qinglong_edge.artifact.logs import LogStore
from qinglong_edge.core import audit
from qinglong_edge.core.errors import EdgeError, Refused, Unavailable
from qinglong_edge.core.ids import IdSource
from qinglong_edge.core.limits import NAME_CHARACTERS_MAX
from qinglong_edge.execution.control import Control
from qinglong_edge.execution.coordinator import Coordinator
from qinglong_edge.execution.dispatch import Dispatcher
from qinglong_edge.execution.recovery import Recovery
from qinglong_edge.execution.retention import Retention
from qinglong_edge.execution.scheduler import Scheduler
from qinglong_edge.execution.starts import Starter
from qinglong_edge.execution.sweep import Sweep
from qinglong_edge.execution.trust import SETTING as CLOCK_SETTING
from qinglong_edge.execution.trust import ClockTrust
from qinglong_edge.process import wrapper
from qinglong_edge.process.cleanup import CleanupScanner
from qinglong_edge.process.controller import Controller
from qinglong_edge.process.identity import Inspector
from qinglong_edge.process.launcher import TOOLS_PATH, Launcher, Tools
from qinglong_edge.process.receipts import ReceiptStore
from qinglong_edge.storage.store import Store
from qinglong_edge.system.child import Spawner
from qinglong_edge.system.clock import Clock
from qinglong_edge.system.files import Files, storage_error
from qinglong_edge.system.loop import Loop
from qinglong_edge.system.process import Processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Protocol

    from qinglong_edge.app.params import Params
    from qinglong_edge.app.staging import Staged
    from qinglong_edge.app.state import Config, Place
    from qinglong_edge.core.profile import Profile
    from qinglong_edge.core.run import Run

    class NotifierPort(Protocol):
        """Who tells bad news."""

        last: dict[str, dict[str, object]]

        def reasons(self) -> Iterator[str]: ...
        def settled(self, run: Run) -> None: ...
        def close(self) -> None: ...


PAUSED_SETTING = "paused"


class Parts:
    """The effects of the machine; tests hand in counting or failing ones."""

    def __init__(self) -> None:
        self.files = Files()
        self.processes = Processes()
        self.spawner = Spawner()
        self.clock = Clock()
        self.random: Callable[[int], bytes] = os.urandom
        self.open_store: Callable[..., Store] = Store
        self.tools_path = TOOLS_PATH
        self.shell = "/bin/sh"


class Runtime:
    """One owner's assembled state."""

    def __init__(self, where: Place, config: Config, parts: Parts, *, daemon: bool) -> None:
        self.where = where
        self.config = config
        self.parts = parts
        self.daemon = daemon
        self.profile: Profile = profiles.load(config.profile).replace(**config.limits)
        self.zones = Zones()
        self.staged: Staged | None = None  # an import that is being checked
        # Made with the first bad news, if a channel exists.
        self.notifier: NotifierPort | None = None
        self.settled: list[Callable[[Run], object]] = []  # true: it has heard enough
        self.started_boot_ms = parts.clock.boot_ms()
        try:
            self.boot_id = parts.processes.boot_id() or "unknown"
        except OSError as error:
            raise storage_error(error, "boot's identity") from None
        self.lock_fd = state.lock(where, parts.files)
        try:
            self.store = parts.open_store(
                where.state, layout=state.layout(self.profile), at_ms=parts.clock.wall_ms()
            )
        except BaseException:
            os.close(self.lock_fd)
            raise
        self.loop = Loop(parts.clock)
        try:
            if self.store.setting("profile") != config.profile:
                raise Refused("profile_mismatch", "The database was made for another profile.")
            self._assemble()
        except BaseException:
            self.close()
            raise

    def _assemble(self) -> None:
        parts, profile, store = self.parts, self.profile, self.store
        self.ids = IdSource(parts.clock.wall_ms, parts.random)
        newest = store.runs.newest_id()
        if newest is not None:
            self.ids.resume_after(newest)
        self.trust = ClockTrust(
            parts.clock,
            stored_high_ms=int(store.setting(CLOCK_SETTING) or 0),
            stamps=self.where.stamps,
        )
        self.receipts = ReceiptStore(self.where.receipts, parts.files)
        logs_root = self.config.logs or self.where.logs
        self.logs = LogStore(logs_root, parts.files, reserve_bytes=profile.reserve_bytes)
        self.inspector = Inspector(parts.processes)
        self.coordinator = Coordinator(
            store=store,
            logs=self.logs,
            receipt_store=self.receipts,
            inspector=self.inspector,
            pids=parts.processes,
            loop=self.loop,
            clock=parts.clock,
            quarantine_ms=profile.receipt_retention_ms,
        )
        self._assemble_starts(logs_root)
        self.coordinator.extra_settings = self.trust.to_save
        self.coordinator.on_saved = self.trust.saved
        self.dispatcher = Dispatcher(
            store=store,
            coordinator=self.coordinator,
            starter=self.starter,
            loop=self.loop,
            clock=parts.clock,
            id_source=self.ids,
            places=profile.active_runs_max,
            log_quota_bytes=profile.log_quota_bytes,
        )
        self.dispatcher.on_settled = self._run_settled
        self._assemble_policies()

    def _half_disk(self, logs_root: str) -> int:
        """No small disk is under pressure for being small."""
        try:
            return self.parts.files.space(logs_root).size // 2
        except OSError:
            return 0  # not there: nothing can be logged, and nothing retired

    def _assemble_starts(self, logs_root: str) -> None:
        parts, profile, store = self.parts, self.profile, self.store
        needed_bytes = profile.reserve_bytes + profile.log_quota_bytes
        kept = program.descriptor()
        self.secrets = SecretSource(
            store,
            self.where.keyring,
            spawner=parts.spawner,
            processes=parts.processes,
            loop=self.loop,
            kept=() if kept is None else (kept,),
        )
        self.retention = Retention(
            runs=store.runs,
            logs=self.logs,
            record=lambda record: store.bury([record]),
            clock=parts.clock,
            trusted=lambda: self.trust.trusted,
            boot_id=self.boot_id,
            retention_ms=profile.log_retention_ms,
            pressure_ms=profile.log_pressure_ms,
            pressure_bytes=min(profile.log_pressure_bytes, self._half_disk(logs_root)),
            needed_bytes=needed_bytes,
            page=profile.log_page,
            deletions=profile.log_deletions,
        )
        self.starter = Starter(
            store=store,
            make_room=self.retention.make_room,
            launcher=self._launcher(),
            logs=self.logs,
            secrets=self.secrets,
            coordinator=self.coordinator,
            loop=self.loop,
            clock=parts.clock,
            random=parts.random,
        )

    def _launcher(self) -> Launcher:
        parts = self.parts
        return Launcher(
            parts.spawner,
            parts.processes,
            self.inspector,
            self.receipts,
            parts.clock,
            wrapper_path=self.where.wrapper,
            tools=Tools(path=parts.tools_path, sync=self._sync_tool, shell=parts.shell),
            oom_score_adj=self.profile.oom_score_adj,
            program_fd=program.descriptor(),
        )

    def _sync_tool(self) -> str:
        """Probed at the first launch only: most commands launch nothing."""
        return wrapper.probe_sync(self.parts.tools_path)

    def _assemble_policies(self) -> None:
        parts, profile, store = self.parts, self.profile, self.store
        self.control = Control(
            store=store,
            coordinator=self.coordinator,
            dispatcher=self.dispatcher,
            controller=Controller(parts.processes, self.inspector, self.loop, parts.clock),
            inspector=self.inspector,
            clock=parts.clock,
            grace_ms=profile.stop_grace_ms,
        )
        self.recovery = Recovery(
            store=store,
            coordinator=self.coordinator,
            control=self.control,
            inspector=self.inspector,
        )
        self.scheduler = Scheduler(
            store=store,
            dispatcher=self.dispatcher,
            coordinator=self.coordinator,
            trust=self.trust,
            loop=self.loop,
            clock=parts.clock,
            open_zone=self.zones.open,
            boot_id=self.boot_id,
            grace_ms=profile.misfire_grace_ms,
        )
        self.scheduler.paused = store.setting(PAUSED_SETTING) == "true"
        self.sweep = Sweep(
            store=store,
            retention=self.retention,
            keep_audit=profile.audit_rows_max,
            coordinator=self.coordinator,
            recovery=self.recovery,
            scanner=CleanupScanner(
                store.journal,
                self.receipts,
                self.coordinator.resolve,
                page=profile.cleanup_page,
                retention_ms=profile.receipt_retention_ms,
            ),
            logs=self.logs,
            loop=self.loop,
            clock=parts.clock,
            trusted=lambda: self.trust.trusted,
            boot_id=self.boot_id,
            interval_ms=profile.cleanup_interval_ms,
            keep_runs=profile.history_runs_max,
            keep_ms=profile.history_age_ms,
            page=profile.sweep_page,
        )

    def _run_settled(self, run: Run) -> None:
        done = [call for call in list(self.settled) if call(run)]
        self.settled[:] = [call for call in self.settled if call not in done]

    def prepare_launching(self) -> None:
        """What a launch needs beside the database; asked for before the first one.

        A full disk is no reason for a daemon not to start: the launches then wait for room.
        """
        state.prepare_runtime(self.where, self.parts.files)
        try:
            state.prepare_folders(self.where, self.parts.files, logs=self.config.logs is None)
            wrapper.install(self.where.wrapper)
        except Unavailable:
            if not self.daemon:
                raise

    def recover(self) -> None:
        """The start pass, before anything is admitted."""
        self.recovery.recover()
        self.sweep.run_once()
        self.dispatcher.load()
        self.scheduler.load()

    def load(self) -> None:
        """What a one-shot owner knows: who holds a place, who waits. Nothing is judged."""
        self.recovery.load()
        self.dispatcher.load()

    def record(self, params: Params, target: str, **told: Any) -> None:
        """Store an audit event, in the transaction of the change that it tells."""
        self.store.audit.record(self.audited(params, target, **told))

    def audited(
        self,
        params: Params,
        target: str,
        *,
        action: str | None = None,
        version: int | None = None,
        mutation: str | None = None,
        outcome: str = audit.DONE,
        code: str | None = None,
    ) -> audit.Audit:
        """The audit event of a change."""
        return audit.Audit(
            at_ms=self.parts.clock.wall_ms(),
            uid=params.peer.uid,
            front_end=params.peer.front_end,
            mutation_id=mutation or binascii.hexlify(self.parts.random(16)).decode(),
            action=action or params.method,
            target=target,
            version=version,
            outcome=outcome,
            code=code,
        )

    def record_refusal(self, params: Params, target: object, code: str) -> None:
        """The audit event of a change that was refused; what it was about, if that can be said."""
        named = target if isinstance(target, str) and len(target) <= NAME_CHARACTERS_MAX else ""
        try:
            with self.store.database.write():
                self.record(params, named, outcome=audit.REFUSED, code=code)
        except EdgeError:
            return  # a storage that takes nothing is why, and the caller hears of that

    def degraded(self) -> list[str]:
        """Every reason why not all is well, as stable codes."""
        reasons = set(self.dispatcher.degraded.values())
        if self.sweep.failed is not None:
            reasons.add(self.sweep.failed)
        if self.notifier is not None:
            reasons.update(self.notifier.reasons())
        for reason in (self.trust.reason, self.secrets.reason):
            if reason is not None:
                reasons.add(reason)
        if self.scheduler.parked:
            reasons.add("triggers_parked")
        if state.is_volatile(self.where, self.parts.files):
            reasons.add("state_volatile")
        for active in self.coordinator.registry:
            if active.hold is not None:
                reasons.add(f"run_unproven:{active.run.number}:{active.hold}")
        try:
            self.retention.look()
            if self.retention.reason is not None:
                reasons.add(self.retention.reason)
            self.logs.prove_capacity(self.profile.log_quota_bytes)
        except (OSError, EdgeError) as error:
            reasons.add(error.code if isinstance(error, EdgeError) else "storage_unavailable")
        return sorted(reasons)

    def close(self) -> None:
        """Give everything back; running tasks are left running."""
        if self.staged is not None:
            self.staged.close()
        self.store.close()
        self.loop.close()
        os.close(self.lock_fd)
