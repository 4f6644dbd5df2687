"""Bad news, told: a run's end becomes at most one line in a channel's next message.

Owns what waits to be told, in memory only; a crash loses it, the runs themselves say the same.

    an end comes        -> it waits 2 s for others, or for the end of quiet hours
    a message was sent  -> the next one waits a minute, twice as long each time while news comes
    a message failed    -> its news waits for the next one, eight times at most

Sending is one child at a time, which ends within 30 s whatever its peer does; no run waits for it.
"""

from __future__ import annotations

import os

from qinglong_edge.app import program
from qinglong_edge.core import channel as channels
from qinglong_edge.core import secret
from qinglong_edge.core.errors import EdgeError
from qinglong_edge.core.run import CANCELLED, FAILED, LOST, SUCCEEDED, TIMED_OUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterator
    from typing import Any

    from qinglong_edge.app.runtime import Runtime
    from qinglong_edge.core.channel import Channel
    from qinglong_edge.core.run import Run
    from qinglong_edge.execution.ports import TimerPort
else:
    import _signal as signal  # without the enums of `signal`: 0.2 MiB, and time in every launch

_GATHER_MS = 2_000
_GAP_MS_MIN = 60_000
_GAP_MS_MAX = 3_600_000
_CHILD_S = 30
_FACTS = 40
_TRIES = 8
_LOOK_BACK = 8
_BAD = frozenset({FAILED, TIMED_OUT, LOST})


class _Waiting:
    """What one channel has to be told."""

    def __init__(self) -> None:
        self.facts: list[dict[str, Any]] = []
        self.more = 0
        self.gap_ms = 0
        self.next_ms = 0
        self.tries = 0
        self.timer: TimerPort | None = None


class Notifier:
    """The channels of one daemon; `last` tells how each one's last message went."""

    def __init__(self, runtime: Runtime, say: Callable[..., None]) -> None:
        self._runtime = runtime
        self._say = say
        self._waiting: dict[str, _Waiting] = {}
        self._child: tuple[int, int] | None = None
        self.last: dict[str, dict[str, object]] = {}

    def reasons(self) -> Iterator[str]:
        """A code for each channel, if it is still there, whose last message failed."""
        for name, last in self.last.items():
            known = self._runtime.store.setting(channels.SETTING + name) is not None
            if known and last["code"] is not None:
                yield f"notify_failed:{name}"

    def settled(self, run: Run) -> None:
        """A run has ended, or waits for its next try."""
        event = self._event(run)
        if event is None:
            return
        store = self._runtime.store
        task, attempt = store.tasks.get(run.task_number), store.runs.latest_attempt(run.number)
        fact = {
            "task": "?" if task is None else task.name,
            "run": run.number,
            "event": event,
            "status": run.status,
            "exit_code": None if attempt is None else attempt.exit_code,
            "error_code": run.error_code,
            "at_ms": run.finished_at_ms or run.created_at_ms,
        }
        for name, text in list(store.settings(channels.SETTING)):
            if channels.decode(name, text).wants(run.task_number, event):
                self._add(name, fact)

    def _event(self, run: Run) -> str | None:
        runs = self._runtime.store.runs
        if run.status == LOST:
            return channels.LOST
        if run.status in _BAD:
            attempt = runs.latest_attempt(run.number)
            last = attempt is not None and attempt.attempt > 1
            return channels.EXHAUSTED if last else channels.FAILED
        if run.status == SUCCEEDED:
            wanted = {"before": run.number, "task_number": run.task_number, "status": None}
            for each in runs.page(limit=_LOOK_BACK, **wanted):  # type: ignore[arg-type]
                if each.ended and each.status != CANCELLED:
                    return channels.RECOVERED if each.status in _BAD else None
        return None

    def _add(self, name: str, fact: dict[str, Any]) -> None:
        waiting = self._waiting.setdefault(name, _Waiting())
        if len(waiting.facts) < _FACTS:
            waiting.facts.append(fact)
        else:
            waiting.more += 1
        self._arm(name, waiting)

    def _arm(self, name: str, waiting: _Waiting) -> None:
        if waiting.timer is None and waiting.facts:
            due_ms = max(self._runtime.parts.clock.boot_ms() + _GATHER_MS, waiting.next_ms)
            waiting.timer = self._runtime.loop.call_at(due_ms, lambda: self._due(name))

    def _due(self, name: str) -> None:
        waiting = self._waiting[name]
        waiting.timer = None
        try:
            self._send(name, waiting)
        except (EdgeError, OSError, MemoryError) as error:
            code = error.code if isinstance(error, EdgeError) else "launch_unavailable"
            self._sent(name, [], waiting.facts, code)

    def _send(self, name: str, waiting: _Waiting) -> None:
        runtime = self._runtime
        text = runtime.store.setting(channels.SETTING + name)
        if text is None:
            del self._waiting[name]
            self.last.pop(name, None)
            return
        channel = channels.decode(name, text)
        quiet_ms = self._quiet_ms(channel)
        if quiet_ms or self._child is not None:
            delay_ms = quiet_ms or _GATHER_MS
            waiting.timer = runtime.loop.call_later(delay_ms, lambda: self._due(name))
            return
        ref = secret.make(channels.SETTING + name)
        rows = runtime.store.secrets.resolve((ref,))
        facts, more, keyring = waiting.facts, waiting.more, runtime.where.keyring

        def ask() -> bytes:
            signal.alarm(_CHILD_S)
            try:
                from qinglong_edge.app import sending
                from qinglong_edge.secret import provider

                keys = provider.resolve((ref.text,), rows, keyring) if rows != (None,) else [""]
                sending.send(channel, keys[0], sending.message(facts, more, channel.zone))
            except EdgeError as error:
                return error.code.encode("ascii")
            return b"sent"

        kept = program.descriptor()
        pid, fd = runtime.parts.spawner.consult(ask, () if kept is None else (kept,))
        self._child = (pid, fd)
        waiting.facts, waiting.more = [], 0
        runtime.loop.watch(fd, lambda: self._heard(name, facts, more))

    def _quiet_ms(self, channel: Channel) -> int:
        if channel.quiet is None:
            return 0
        now_ms = self._runtime.parts.clock.wall_ms()
        local_ms = now_ms + self._runtime.zones.open(channel.zone).offset_ms_at(now_ms)
        minutes = channel.quiet_for(local_ms // 60_000 % 1_440)
        return minutes * 60_000 - local_ms % 60_000 if minutes else 0

    def _heard(self, name: str, facts: list[dict[str, Any]], more: int) -> None:
        fd = -1 if self._child is None else self._child[1]
        said = os.read(fd, 256)
        self._end_child()
        code = None if said == b"sent" else said.decode("ascii", "replace") or "notify_timeout"
        waiting = self._waiting.get(name)
        if waiting is not None and code is not None:
            waiting.more += more
        self._sent(name, facts, [] if waiting is None else waiting.facts, code)

    def _sent(
        self, name: str, facts: list[dict[str, Any]], newer: list[dict[str, Any]], code: str | None
    ) -> None:
        """Note how it went, and when the next message may go."""
        clock = self._runtime.parts.clock
        self.last[name] = {"at_ms": clock.wall_ms(), "code": code}
        self._say("notified" if code is None else "notify_failed", channel=name, code=code or "-")
        waiting = self._waiting.get(name)
        if waiting is None:
            return
        waiting.tries = 0 if code is None else waiting.tries + 1
        if code is not None:
            found = [*facts, *newer]
            waiting.more += max(0, len(found) - _FACTS)
            waiting.facts = found[:_FACTS]
        if waiting.tries >= _TRIES:
            waiting.facts, waiting.more, waiting.tries = [], 0, 0
        now_ms = clock.boot_ms()
        calm = now_ms > waiting.next_ms + waiting.gap_ms
        waiting.gap_ms = _GAP_MS_MIN if calm else min(_GAP_MS_MAX, 2 * waiting.gap_ms)
        waiting.next_ms = now_ms + waiting.gap_ms
        self._arm(name, waiting)

    def _end_child(self) -> None:
        if self._child is not None:
            pid, fd = self._child
            self._child = None
            self._runtime.loop.unwatch(fd)
            os.close(fd)
            self._runtime.parts.processes.signal_pid(pid, signal.SIGKILL)
            self._runtime.parts.processes.reap(pid)

    def close(self) -> None:
        """Let go; a message on its way is cut."""
        self._end_child()
