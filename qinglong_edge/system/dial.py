"""Reaching a host by its name: each of its addresses has its share of the time.

Owns the asking for the addresses, and the choice among them. Promises:

* A resolver that never answers costs the time there is and no more: a child asks it, and is killed
  and collected when that is over. A host that is an address asks nobody.
* What a name led to is kept for ten minutes, or until nobody answers there. While no resolver
  answers it serves on.
* A family that the kernel lacks, or that leads nowhere, costs its share and never the way through
  the next one.

A child whose owner crashes ends by its own alarm; nothing else outlives a call but the socket.
"""

from __future__ import annotations

import errno
import os
import select

from qinglong_edge.system.child import ANSWER_BYTES_MAX, Spawner
from qinglong_edge.system.clock import Clock
from qinglong_edge.system.process import Processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from collections.abc import Callable
    from typing import Any

    Address = tuple[int, int, int, tuple[Any, ...]]
else:
    import _signal as signal  # without the enums of `signal`: 0.2 MiB, and time in every launch

_LOOK_S = 0.2  # the longest time in which nobody is asked what is left
_END_MS = 500  # a killed child has to be given a processor before it ends
_KEPT_MS = 600_000
_KEPT_ON_MS = 60_000  # what no resolver could confirm


class Dialer:
    """Connects, and remembers where names led."""

    def __init__(self, spawner: Spawner, processes: Processes, clock: Clock) -> None:
        self._spawner = spawner
        self._processes = processes
        self._clock = clock
        self._kept: dict[tuple[str, int], tuple[int, list[Address]]] = {}

    def dial(self, host: str, port: int, left_s: Callable[[], float]) -> socket.socket:
        """A connection to the first address that answers, in the resolver's order.

        `left_s` gives the seconds that are left, or raises what the caller is to see; it is asked
        five times a second. OSError: of the last address, or `socket.gaierror` where the name leads
        to none.
        """
        found = self._found(host, port, left_s)
        failure = OSError()
        for at, address in enumerate(found):
            spare_s = left_s() * (1 - 1 / (len(found) - at))
            try:
                return _connected(address, _sparing(left_s, spare_s))
            except OSError as error:
                failure = error
        if (host, port) in self._kept:
            self._kept[host, port] = (0, found)  # asked for again, and used if that fails
        raise failure

    def _found(self, host: str, port: int, left_s: Callable[[], float]) -> list[Address]:
        import socket

        if ":" in host or host.replace(".", "").isdecimal():
            told = socket.getaddrinfo(
                # As bytes: a text would load the tables of international names.
                host.encode("ascii"),
                port,
                type=socket.SOCK_STREAM,
                flags=socket.AI_NUMERICHOST,
            )
            return [(*each[:3], each[4]) for each in told]
        until_ms, found = self._kept.get((host, port), (0, []))
        if self._clock.boot_ms() < until_ms:
            return found
        spare_s = left_s() / 2 if found else 0.0
        kept_ms = _KEPT_MS
        try:
            found = self._asked(host.encode("ascii"), port, _sparing(left_s, spare_s))
        except OSError:
            if not found:
                raise
            kept_ms = _KEPT_ON_MS
        self._kept[host, port] = (self._clock.boot_ms() + kept_ms, found)
        return found

    def _asked(self, name: bytes, port: int, left_s: Callable[[], float]) -> list[Address]:
        """What the resolver says, through a child: the call itself knows no bound."""
        import socket

        alarm_s = int(left_s()) + 1

        def ask() -> bytes:
            signal.alarm(alarm_s)
            try:
                return _told(socket.getaddrinfo(name, port, type=socket.SOCK_STREAM))
            except socket.gaierror as error:
                return b"%d" % error.args[0]

        pid, fd = self._spawner.consult(ask, ())
        try:
            _wait(fd, select.POLLIN, left_s)
            said = os.read(fd, ANSWER_BYTES_MAX)
        finally:
            os.close(fd)
            self._processes.signal_pid(pid, signal.SIGKILL)
            self._processes.ends_within(pid, _END_MS)
            self._processes.reap(pid)
        if b" " not in said:
            raise socket.gaierror(int(said or socket.EAI_AGAIN), "The name leads nowhere.")
        return _read(said)


def dial(host: str, port: int, left_s: Callable[[], float]) -> socket.socket:
    """`Dialer.dial`, for whoever dials once."""
    return Dialer(Spawner(), Processes(), Clock()).dial(host, port, left_s)


def _told(found: list[Any]) -> bytes:
    """As many addresses as a child can tell, one a line."""
    lines = [
        b"%d %d %d %s" % (family, kind, protocol, " ".join(map(str, place)).encode("ascii"))
        for family, kind, protocol, _name, place in found
    ]
    while len(text := b"\n".join(lines)) > ANSWER_BYTES_MAX:
        lines.pop()
    return text


def _read(said: bytes) -> list[Address]:
    found: list[Address] = []
    for line in said.decode("ascii").split("\n"):
        family, kind, protocol, host, *numbers = line.split(" ")
        place = (host, *map(int, numbers))
        found.append((int(family), int(kind), int(protocol), place))
    return found


def _connected(address: Address, left_s: Callable[[], float]) -> socket.socket:
    import socket

    family, kind, protocol, place = address
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        code = sock.connect_ex(place)
        if code == errno.EINPROGRESS:
            _wait(sock.fileno(), select.POLLOUT, left_s)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        sock.settimeout(left_s())
        return sock
    except BaseException:
        sock.close()
        raise


def _wait(fd: int, event: int, left_s: Callable[[], float]) -> None:
    """Until a descriptor is ready, or nothing is left."""
    poll = select.poll()
    poll.register(fd, event)
    while not poll.poll(1_000 * min(left_s(), _LOOK_S)):
        continue


def _sparing(left_s: Callable[[], float], spare_s: float) -> Callable[[], float]:
    """What is left besides what others need; TimeoutError if that is nothing."""

    def rest_s() -> float:
        rest = left_s() - spare_s
        if rest <= 0:
            raise TimeoutError
        return rest

    return rest_s
