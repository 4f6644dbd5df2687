"""The daemon: start order, the loop, stop order.

Owns the life of the resident process and its one line per event on stderr. A crash at any moment is
a start like any other for the next one; a stop leaves running tasks running (`leave`) or cancels
them within the profile's bound (`cancel`).
"""

from __future__ import annotations

from qinglong_edge.app import methods, program, state
from qinglong_edge.app.runtime import Parts, Runtime
from qinglong_edge.app.server import Server
from qinglong_edge.app.telling import announce, bug, say
from qinglong_edge.core.errors import EdgeError
from qinglong_edge.core.limits import NOTIFY_SETTING

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal

    from qinglong_edge.app.state import Place
    from qinglong_edge.core.run import Run
    from qinglong_edge.execution.active import Active
else:
    import _signal as signal  # without the enums of `signal`: 0.2 MiB, and time in every launch


LEAVE = "leave"
_KILL_MARGIN_MS = 1_500


class Daemon:
    """One resident owner."""

    def __init__(self, runtime: Runtime, *, on_stop: str) -> None:
        self._runtime = runtime
        self._on_stop = on_stop
        self._stopping = False
        self._done = False

    def run(self) -> None:
        """Start, serve until a signal, stop. Raises what the start raises; nothing is left open."""
        runtime = self._runtime
        server: Server | None = None
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                runtime.loop.on_signal(number, self._stop)
            for number in (signal.SIGHUP, signal.SIGPIPE, signal.SIGUSR1, signal.SIGUSR2):
                signal.signal(number, signal.SIG_IGN)
            runtime.prepare_launching()
            runtime.settled.append(self._run_settled)
            runtime.coordinator.on_started = self._run_started
            runtime.secrets.examine()
            runtime.recover()
            server = Server(
                runtime.loop,
                runtime.where.socket,
                call=lambda *asked: methods.call(runtime, *asked),
                later=methods.LATER,
                state=state.identity(runtime.where),
                on_bug=bug,
            )
            runtime.loop.on_wake = runtime.scheduler.woken
            runtime.loop.watch_clock_steps()
            runtime.sweep.start()
            runtime.dispatcher.open()
            runtime.scheduler.open()
            say("ready", profile=runtime.profile.name, tasks=runtime.store.tasks.count())
            announce()
            runtime.store.database.grow_wal()
            while not self._done:
                runtime.loop.run_once()
                program.release()  # what a late import has inflated
        finally:
            self._close(server)

    def _stop(self) -> None:
        """First signal: drain as configured. Second: at once."""
        if self._stopping:
            self._done = True
            return
        self._stopping = True
        runtime = self._runtime
        runtime.scheduler.close()
        runtime.dispatcher.close()
        if self._on_stop == LEAVE:
            self._done = True
            return
        bound_ms = runtime.profile.stop_bound_ms
        runtime.loop.call_later(bound_ms, self._finish)
        grace_ms = max(0, bound_ms - _KILL_MARGIN_MS)
        runtime.control.stop_all(reason="shutdown", grace_ms=grace_ms, done=self._finish)

    def _finish(self) -> None:
        self._done = True

    def _close(self, server: Server | None) -> None:
        runtime = self._runtime
        runtime.loop.on_wake = None
        runtime.scheduler.close()
        runtime.dispatcher.close()
        runtime.sweep.stop()
        if runtime.notifier is not None:
            runtime.notifier.close()
        try:
            runtime.coordinator.flush()
        except EdgeError as error:
            say("flush_failed", code=error.code)
        runtime.coordinator.close()
        if server is not None:
            server.close()
        runtime.close()
        say("stopped")

    def _run_started(self, active: Active) -> None:
        say("started", run=active.run.number, task=self._name(active.run))

    def _run_settled(self, run: Run) -> None:
        say("ended", run=run.number, task=self._name(run), status=run.status)
        try:
            self._tell(run)
        except (EdgeError, OSError, MemoryError) as error:  # bad news that is not told harms no run
            say("notify_failed", kind=type(error).__name__)

    def _tell(self, run: Run) -> None:
        """Let channels know, if there are any; what that needs is loaded then."""
        runtime = self._runtime
        if runtime.notifier is None:
            if next(runtime.store.settings(NOTIFY_SETTING), None) is None:
                return
            from qinglong_edge.app.notifier import Notifier

            runtime.notifier = Notifier(runtime, say)
        runtime.notifier.settled(run)

    def _name(self, run: Run) -> str:
        try:
            task = self._runtime.store.tasks.get(run.task_number)
        except EdgeError:  # the line is told without it
            task = None
        return "?" if task is None else task.name


def serve(where: Place, *, on_stop: str, parts: Parts | None = None) -> bool:
    """Be the daemon of a state; False if the runtime is disabled there (nothing was opened)."""
    parts = Parts() if parts is None else parts
    config = state.read_config(where, parts.files)
    if not config.enabled:
        return False
    runtime = Runtime(where, config, parts, daemon=True)
    Daemon(runtime, on_stop=on_stop).run()
    return True
