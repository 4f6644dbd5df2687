"""A command without a daemon: own the state for a moment, do the one method, let go.

Owns the one-shot owner. It never recovers and never schedules; `run.start` queues unless the
command waits for its end, then it runs that one run.
"""

from __future__ import annotations

import os

from qinglong_edge.app import methods, rpc, state
from qinglong_edge.app.runtime import Parts, Runtime

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal

    from qinglong_edge.app.state import Place
else:
    import _signal as signal  # without the enums of `signal`: 0.2 MiB, and time in every launch


def _interrupted() -> None:
    raise KeyboardInterrupt


class LocalOwner:
    """The state, owned by this command."""

    def __init__(self, where: Place, parts: Parts | None = None) -> None:
        parts = Parts() if parts is None else parts
        self._runtime = Runtime(where, state.read_config(where, parts.files), parts, daemon=False)
        self._peer = rpc.Peer(os.geteuid(), "command")
        try:
            self._runtime.load()
        except BaseException:
            self._runtime.close()
            raise

    def launch(self) -> None:
        """Let runs start in this process: what is asked to wait for is really run.

        From here an interrupt comes between two steps of the loop, never inside a commit.
        """
        self._runtime.loop.on_signal(signal.SIGINT, _interrupted)
        self._runtime.prepare_launching()
        self._runtime.dispatcher.open(others=False)

    def call(self, method: str, params: dict[str, object]) -> object:
        """Do one method, turning the loop until a later answer has come."""
        answer = methods.call(self._runtime, method, params, self._peer)
        if not isinstance(answer, rpc.Pending):
            return answer
        outcome: list[tuple[object, BaseException | None]] = []
        answer.listen(lambda result, error: outcome.append((result, error)))
        while not outcome:
            self._runtime.loop.run_once()
        result, error = outcome[0]
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """Let go of the state; a task that runs goes on and is adopted by the next owner."""
        self._runtime.dispatcher.close()
        self._runtime.coordinator.close()
        self._runtime.close()
