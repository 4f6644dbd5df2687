"""The worker's resident process: start, the loop, stop, and one line per event on stderr.

Owns its life. TERM leaves running tasks running, for the next start to adopt; with nothing held the
plane is told goodbye. A drained worker ends by itself.
"""

from __future__ import annotations

from qinglong_edge.app.server import Server
from qinglong_edge.app.telling import announce, say
from qinglong_edge.app.worker import Parts, Worker
from qinglong_edge.app.worker_control import call
from qinglong_edge.core.errors import Unavailable
from qinglong_edge.process import wrapper
from qinglong_edge.system import memory
from qinglong_edge.worker import transport

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal

    from qinglong_edge.app.worker_config import WorkerConfig
else:
    import _signal as signal  # without the enums of `signal`: 0.2 MiB, and time in every launch

_CLIENTS_MAX = 16


class Resident:
    """The process that turns a worker until it is told to stop, or has drained."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._stopping = False

    def run(self) -> None:
        """Start, serve, stop. Raises what the start raises; nothing is left open."""
        worker = self._worker
        server: Server | None = None
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                worker.loop.on_signal(number, self._stop)
            for number in (signal.SIGHUP, signal.SIGPIPE, signal.SIGUSR1, signal.SIGUSR2):
                signal.signal(number, signal.SIG_IGN)
            _install(worker)
            server = Server(
                worker.loop,
                worker.config.socket,
                call=lambda method, params, _peer: call(worker, method, params),
                on_bug=lambda error: worker.say("bug", kind=type(error).__name__),
                clients_max=_CLIENTS_MAX,
            )
            worker.lifecycle.start()
            worker.say("ready", worker=worker.config.worker_id, profile=worker.config.profile.name)
            announce()
            worker.store.database.grow_wal()
            while not self._stopping and not worker.lifecycle.drained:
                worker.loop.run_once()
            worker.lifecycle.stop()
        finally:
            if server is not None:
                server.close()
            worker.close()
            worker.say("drained" if worker.lifecycle.drained else "stopped")

    def _stop(self) -> None:
        self._stopping = True


def _install(worker: Worker) -> None:
    """A full disk is no reason not to start: the launches then wait for room."""
    try:
        wrapper.install(worker.config.wrapper)
    except Unavailable as error:
        worker.say("wrapper_not_installed", code=error.code)


def serve(config: WorkerConfig, parts: Parts | None = None) -> bool:
    """Be the worker of a configuration; False if it is not enabled (nothing was opened)."""
    if not config.enabled:
        return False
    memory.never_dump()  # the worker's own key and token
    transport.require()
    Resident(Worker(config, Parts() if parts is None else parts, say=say)).run()
    return True
