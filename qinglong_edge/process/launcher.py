"""The launch barrier: no user code before it is durable who it is (ADR-0069 section 2).

Owns a launch from the verified wrapper to the open gate. The order, and what a crash after each
step leaves:

| step | done by                                              | a crash after it leaves          |
|------|------------------------------------------------------|----------------------------------|
| 1    | `begin`: plan checked, wrapper verified and sealed   | nothing                          |
| 2    | `begin`: child forked, waiting behind its gate       | a child that reads EOF and exits |
| 3    | `take_ready`: secrets resolved, child says so        | the same                         |
| 4    | caller: receipt shard and log prepared               | an empty log, found by derivation|
| 5    | `identify`: boot, pid, group, start ticks captured   | the same                         |
| 6    | caller: ONE transaction (journal, Run, Attempt)      | a row whose process is gone      |
| 7    | `open_gate`: the child becomes /bin/sh on the script | a running task, adoptable        |

The launcher never moves a Run or an Attempt. A refusal before 7 ends a child that has done nothing.
"""

from __future__ import annotations

import errno

from qinglong_edge.core import fact as facts
from qinglong_edge.core import receipt as receipts
from qinglong_edge.core.errors import EdgeError, Refused, Unavailable
from qinglong_edge.core.record import Record
from qinglong_edge.process import wrapper
from qinglong_edge.system.child import ChildPlan
from qinglong_edge.system.files import storage_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable

    from qinglong_edge.core.evidence import Exit
    from qinglong_edge.core.plan import Identity, LaunchPlan
    from qinglong_edge.process.identity import Inspector
    from qinglong_edge.process.receipts import ReceiptPaths, ReceiptStore
    from qinglong_edge.system.child import Child, Spawner
    from qinglong_edge.system.clock import Clock
    from qinglong_edge.system.process import Processes
else:
    import _signal as signal  # without the enums of `signal`: 0.2 MiB, and time in every launch


TOOLS_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
SHELL = "/bin/sh"


class Tools(Record):
    """What the wrapper runs with: its own PATH, and the command that really syncs a path."""

    path: str = TOOLS_PATH
    sync: Callable[[], str]
    shell: str = SHELL


class Launch:
    """One gated child; the caller watches `gate_fd` and `channel_fd`."""

    def __init__(self, child: Child, processes: Processes) -> None:
        self.pid = child.pid
        self._child = child
        self._processes = processes

    @property
    def gate_fd(self) -> int:
        """Readable when the child has something to say; -1 once closed."""
        return self._child.gate_fd

    @property
    def channel_fd(self) -> int:
        """Readable when the wrapper sends its receipt; -1 once closed."""
        return self._child.channel_fd

    def take_ready(self) -> bool:
        """Read the child's word: True = ready, False = nothing yet; its refusal is raised."""
        said = self._child.read_gate()
        if said is None:
            return False
        if said == b"R":
            return True
        code, _, number = said[2:].partition(b" ")  # nothing at all: it died
        raise _child_refusal(code.decode("ascii", "replace"), int(number or b"0"))

    def take_exec(self) -> int | None:
        """After the gate: None = nothing yet, 0 = the shell runs, else the errno of its exec."""
        said = self._child.read_gate()
        if said is None:
            return None
        self._child.close_gate()
        return (int(said.rpartition(b" ")[2]) or errno.EIO) if said else 0

    def open_gate(self, log: int | None) -> None:
        """Let the child go; raises OSError if it is gone already (nothing ran)."""
        self._child.send_go(log)

    def refuse(self) -> None:
        """Close the gate and reap the child, which has done nothing."""
        self._child.close()
        self._processes.signal_pid(self.pid, signal.SIGKILL)
        self._processes.reap(self.pid)

    def started(self) -> bool:
        """True once the command is at its exec: from then on no signal can be lost."""
        return self._child.marked()

    def read_channel(self) -> bytes | None:
        """Bytes the wrapper sent; b"" = end, None = nothing yet."""
        return self._child.read_channel()

    def acknowledge(self) -> bool:
        """Tell the wrapper that its receipt is committed; False if it no longer listens."""
        return self._child.answer(b"ok\n")

    def peek_exit(self) -> Exit | None:
        """How the wrapper ended, left a zombie so that its group can still be signalled."""
        return self._processes.peek_exit(self.pid)

    def close_channel(self) -> None:
        """The wrapper then leaves its file at once."""
        self._child.close_channel()

    def finish(self) -> None:
        """Reap the ended wrapper and give everything back."""
        self._child.close()
        self._processes.reap(self.pid)


class Launcher:
    """Starts gated children; injected into the coordinator as a port."""

    def __init__(
        self,
        spawner: Spawner,
        processes: Processes,
        inspector: Inspector,
        receipts: ReceiptStore,
        clock: Clock,
        *,
        wrapper_path: str,
        tools: Tools,
        oom_score_adj: int,
        program_fd: int | None = None,
    ) -> None:
        self._spawner = spawner
        self._processes = processes
        self._inspector = inspector
        self._receipts = receipts
        self._clock = clock
        self._wrapper_path = wrapper_path
        self._tools = tools
        self._oom_score_adj = oom_score_adj
        self._sync_command: str | None = None
        self._kept = () if program_fd is None else (program_fd,)

    def begin(
        self,
        plan: LaunchPlan,
        fact_paths: tuple[str, str] | None,
        resolve: Callable[[], dict[str, str]] = dict,
    ) -> Launch:
        """Verify the wrapper and fork the gated child.

        `fact_paths` are the temporary and the target of the truncation fact, with a log only.
        `resolve` gives the secret variables, in the child, before it says `ready`; an `EdgeError`
        of it ends the launch, and only its code comes back.
        Raises `Corrupt` (wrapper), `Unavailable` (no process, descriptor or memory to be had).
        """
        try:
            environment = self._environment(plan, fact_paths)
            script = self._script()
            child = self._spawner.fork(
                ChildPlan(
                    program=self._tools.shell,
                    arguments=("sh", "/proc/self/fd/3", *plan.argv),
                    environment=environment,
                    cwd=plan.cwd,
                    nice=plan.nice,
                    oom_score_adj=self._oom_score_adj,
                    script=script,
                    log_quota_bytes=plan.log_quota_bytes,
                    kept=self._kept,
                ),
                lambda: _resolved(resolve),
            )
        except OSError as error:
            raise _unavailable("launch_unavailable", error.errno) from None
        return Launch(child, self._processes)

    def _script(self) -> int:
        """The verified wrapper; put back where a full disk or somebody's tidying left none."""
        try:
            return wrapper.open_verified(self._wrapper_path)
        except Unavailable as error:
            if error.code != "wrapper_missing":
                raise
        wrapper.install(self._wrapper_path)
        return wrapper.open_verified(self._wrapper_path)

    def _environment(self, plan: LaunchPlan, fact_paths: tuple[str, str] | None) -> dict[str, str]:
        paths = self._receipts.paths(plan.attempt_id)
        limit = self._processes.file_size_limit()
        environment = dict(plan.environment)
        environment.update(
            QL3_HEAD=receipts.head(
                run_id=plan.run_id,
                attempt_id=plan.attempt_id,
                callback_sequence=plan.callback_sequence,
                token=plan.token,
                started_at_ms=plan.started_at_ms,
            ),
            QL3_START_MS=str(plan.started_at_ms),
            QL3_START_CS=str(self._clock.uptime_cs()),
            QL3_TOOLS=self._tools.path,
            QL3_UMASK=f"{plan.umask:03o}",
            QL3_FSIZE="unlimited" if limit is None else str(limit // 512),
            QL3_SYNC=self._sync(),
            QL3_TEMPORARY=paths.unfinished,
            QL3_TARGET=paths.target,
        )
        if fact_paths is not None:
            environment.update(
                QL3_CAPTURE="1",
                QL3_QUOTA=str(plan.log_quota_bytes),
                QL3_FACT=facts.head(
                    run_id=plan.run_id,
                    attempt_id=plan.attempt_id,
                    log_artifact_id=plan.log_artifact_id
                    or facts.log_artifact_id(plan.run_id, plan.attempt_id),
                    maximum_bytes=plan.log_quota_bytes,
                ),
                QL3_FACT_TEMPORARY=fact_paths[0],
                QL3_FACT_TARGET=fact_paths[1],
            )
        return environment

    def _sync(self) -> str:
        if self._sync_command is None:
            self._sync_command = self._tools.sync()
        return self._sync_command

    def prepare(self, attempt_id: str) -> ReceiptPaths:
        """The receipt shard, durable before the barrier."""
        try:
            return self._receipts.prepare(attempt_id)
        except OSError as error:
            raise storage_error(error, "receipt directory") from None

    def identify(self, launch: Launch, handle_id: str) -> Identity:
        """The durable identity of a ready child."""
        try:
            return self._inspector.capture(launch.pid, handle_id)
        except (OSError, EdgeError) as error:
            if isinstance(error, Unavailable):
                raise
            raise Unavailable(
                "identity_unavailable", "A new process could not be identified."
            ) from None


def _resolved(resolve: Callable[[], dict[str, str]]) -> dict[str, str]:
    """What the child adds: values and their names, which are kept from the wrapper's own tools."""
    values = resolve()
    return {**values, "QL3_SECRETS": " ".join(values)}


_PERMANENT = (
    *("cwd_unavailable", "nice_refused"),
    *("secret_provider_unavailable", "secret_unavailable", "secret_value_invalid"),
)


def _child_refusal(code: str, number: int) -> EdgeError:
    if code in _PERMANENT:
        facts = {"errno": errno.errorcode.get(number, "EIO")} if number else {}
        return Refused(code, "The task cannot be launched as it is.", **facts)
    return _unavailable("launch_child_failed", number)


def _unavailable(code: str, number: int | None) -> Unavailable:
    name = errno.errorcode.get(number or 0)
    return Unavailable(code, "The system cannot make a process at the moment.", errno=name)
