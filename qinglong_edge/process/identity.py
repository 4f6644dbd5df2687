"""Exact process identity: is the process behind a durable handle still there?

Owns the judgement. A handle names boot, pid, process group and start ticks; nothing less is ever
enough, because pids are reused.

| what /proc and the kernel say                            | verdict  |
|----------------------------------------------------------|----------|
| another boot id                                          | gone     |
| another pid namespace, no boot id, unreadable entry      | unknown  |
| no entry, and kill(pid, 0) says ESRCH                    | gone     |
| no entry, but the kernel knows the pid (hidepid)         | unknown  |
| other group or start ticks; state Z or X                 | gone     |
| all equal                                                | alive    |

`unknown` is never read as dead.
"""

from __future__ import annotations

from qinglong_edge.core import handle as handles
from qinglong_edge.core.errors import EdgeError, Unavailable
from qinglong_edge.core.evidence import ALIVE, GONE, UNKNOWN, Verdict
from qinglong_edge.core.handle import Handle, Stat, parse_stat
from qinglong_edge.core.plan import Identity
from qinglong_edge.core.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qinglong_edge.core.evidence import Target
    from qinglong_edge.system.process import Processes

_DEAD_STATES = ("Z", "X", "x")


class Member(Record):
    """A process of a session, by pid and start ticks."""

    pid: int
    pgrp: int
    start_ticks: int


class Inspector:
    """Captures and inspects identities in one pid namespace."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    def capture(self, pid: int, handle_id: str) -> Identity:
        """The durable identity of an own living child; `Unavailable` if it cannot be had."""
        boot_id = self._processes.boot_id()
        stat = self.stat(pid)
        if boot_id is None or stat is None or stat.state in _DEAD_STATES:
            raise Unavailable("identity_unavailable", "A new process could not be identified.")
        handle = Handle(
            handle_id=handle_id,
            boot_id=boot_id,
            pid=pid,
            pgid=stat.pgrp,
            start_ticks=stat.start_ticks,
        )
        if handle.pgid != pid or stat.session != pid:
            raise Unavailable("identity_unavailable", "A new process does not lead its group.")
        return Identity(
            handle=handle.encode(), pid=pid, pid_namespace=self._processes.pid_namespace()
        )

    def stat(self, pid: int) -> Stat | None:
        """The parsed /proc/PID/stat, or None if there is no entry."""
        text = self._processes.stat_text(pid)
        return None if text is None else parse_stat(text, pid)

    def inspect(self, target: Target) -> Verdict:
        """Judge a stored handle; its pid and namespace stand beside it in the database."""
        handle = handles.decode(target.handle)
        if handle is None or handle.pid != target.pid or handle.pgid != handle.pid:
            return Verdict(state=UNKNOWN, reason="invalid_handle")
        try:
            return self._judge(handle, target.pid_namespace)
        except (OSError, EdgeError):
            return Verdict(state=UNKNOWN, reason="provider_unavailable")

    def _judge(self, handle: Handle, pid_namespace: int | None) -> Verdict:
        place = self._place(handle, pid_namespace)
        if place is not None:
            return place
        stat = self.stat(handle.pid)
        if stat is None:
            if self._processes.exists(handle.pid):
                return Verdict(state=UNKNOWN, reason="hidden_process")
            return Verdict(state=GONE)
        if stat.start_ticks != handle.start_ticks or stat.pgrp != handle.pgid:
            return Verdict(state=GONE, reason="pid_reused")
        if stat.state in _DEAD_STATES:
            return Verdict(state=GONE)
        return Verdict(state=ALIVE)

    def _place(self, handle: Handle, pid_namespace: int | None) -> Verdict | None:
        """The verdict that boot and pid namespace give by themselves; None = the pids are ours."""
        boot_id = self._processes.boot_id()
        if boot_id is None:
            return Verdict(state=UNKNOWN, reason="provider_unavailable")
        if boot_id != handle.boot_id:
            return Verdict(state=GONE, reason="other_boot")
        if pid_namespace is not None and pid_namespace != self._processes.pid_namespace():
            return Verdict(state=UNKNOWN, reason="other_namespace")
        return None

    def survivors(self, target: Target) -> list[Member]:
        """Members of a handle's session on this boot: the proof of death is that there are none.

        A session's number is not given away while a member lives, so a session of that number is
        the handle's own, or has been made anew by a leader that started later; while such a leader
        lives, its start ticks tell. `Unavailable`, or an OSError, if nobody can tell.
        """
        handle = handles.decode(target.handle)
        if handle is None:
            raise Unavailable("identity_unavailable", "A stored process handle is unreadable.")
        place = self._place(handle, target.pid_namespace)
        if place is not None:
            if place.state == GONE:
                return []
            raise Unavailable("identity_unavailable", "The processes here are not the task's.")
        # Twice before it counts as empty: a member may fork and end while it is looked for.
        members = self._session(handle.pid) or self._session(handle.pid)
        if not members and self._processes.hides(handle.pid):
            raise Unavailable("identity_unavailable", "The task's processes are hidden.")
        for member in members:
            if member.pid == handle.pid and member.start_ticks != handle.start_ticks:
                return []
        return members

    def _session(self, leader: int) -> list[Member]:
        """The living members of a session, its leader included; raises if one is unreadable.

        A process whose first thread has ended shows as Z while its other threads live on.
        """
        processes, members = self._processes, []
        for pid in processes.pids():
            if processes.session_of(pid) != leader:
                continue
            stat = self.stat(pid)
            if stat is None or (stat.state in _DEAD_STATES and not processes.has_threads(pid)):
                continue
            members.append(Member(pid=pid, pgrp=stat.pgrp, start_ticks=stat.start_ticks))
        return members
