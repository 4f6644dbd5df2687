"""Reaching a host by its name: each of its addresses has its share of the time.

Owns the choice among the addresses. A family that the kernel lacks, or that leads nowhere, costs
its share and never the way through the next one. Nothing of it outlives the call but the socket.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable


def dial(host: str, port: int, left_s: Callable[[], float]) -> socket.socket:
    """A connection to the first address that answers, in the resolver's order.

    `left_s` gives the seconds that are left, or raises what the caller is to see. OSError: of the
    last address, or `socket.gaierror` where the name leads to none.
    """
    import socket

    # As bytes: a text would load the tables of international names.
    found = socket.getaddrinfo(host.encode("ascii"), port, type=socket.SOCK_STREAM)
    failure = OSError()
    for at, (family, kind, protocol, _name, place) in enumerate(found):
        share_s = left_s() / (len(found) - at)
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:
            failure = error
            continue
        try:
            sock.settimeout(share_s)
            sock.connect(place)
            return sock
        except OSError as error:
            sock.close()
            failure = error
    raise failure
