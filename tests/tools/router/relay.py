"""Run in a guest: lines to a daemon's socket and its answers back, by a process that holds little.

    python3 -I -S relay.py SOCKET

A bare interpreter and one socket; it ends with its input. An answer is one line, as a request is.
"""

from __future__ import annotations

import sys
from _socket import AF_UNIX, socket


def main(path: str) -> None:
    """One request at a time."""
    daemon = socket(AF_UNIX)
    daemon.connect(path)
    print("ready", flush=True)
    while line := sys.stdin.readline().strip():
        daemon.send(line.encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            data = daemon.recv(65_536)
            if not data:
                raise SystemExit("the daemon went away")
            answer += data
        sys.stdout.write(answer.decode())
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
