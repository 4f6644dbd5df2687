"""A plane and workers for tests: real processes, real certificates, one folder."""

from __future__ import annotations

import base64
import json
import os
import secrets
import signal
import subprocess
import sys
from typing import Any

from tests.support import ROOT, until
from tests.worker.pki import Authority

WORKER_ID = "router-1"


class Plane:
    """A control plane on loopback."""

    def __init__(
        self,
        folder: str,
        *,
        lease_ms: int = 30_000,
        requeue: bool = False,
        module: str = "tests.worker.peer",
    ) -> None:
        self.authority = Authority(os.path.join(folder, "pki"))
        pair = self.authority.server()
        secret = base64.urlsafe_b64encode(secrets.token_bytes(32)).rstrip(b"=").decode()
        self.token = f"ql3w_worker_primary_{secret}"
        command = [
            *(sys.executable, "-m", module, pair.certificate, pair.key),
            *(self.authority.trust, self.token, WORKER_ID, str(lease_ms)),
            *(["requeue"] if requeue else []),
        ]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        word, port = self._process.stdout.readline().split()
        assert word == "port"
        self.port = int(port)

    def order(self, what: str, **given: Any) -> dict[str, Any]:
        """Tell the plane something; its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": what, **given}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def add(self, text: str, **spec: Any) -> str:
        """Queue a run of a shell text; its id."""
        run: str = self.order("add", spec={"command": {"kind": "shell", "command": text}, **spec})[
            "run"
        ]
        return run

    def fault(self, operation: str, kind: str, **given: Any) -> None:
        """Let something go wrong."""
        self.order("fault", fault={"op": operation, "kind": kind, **given})

    def look(self) -> dict[str, Any]:
        """Everything that the plane knows."""
        return self.order("look")

    def attempts(self, run: str) -> list[dict[str, Any]]:
        """Every attempt of a run."""
        return [each for each in self.look()["attempts"] if each["run"] == run]

    def await_end(self, run: str, timeout: float = 60.0) -> dict[str, Any]:
        """The attempt of a run that has come to its end."""

        def ended() -> dict[str, Any] | None:
            found = [each for each in self.attempts(run) if each["end"] is not None]
            return found[-1] if found else None

        found = until(ended, timeout, what=f"the end of {run}: {self.attempts(run)}")
        assert found is not None
        return found

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


class WorkerHome:
    """One worker's files, and its processes one after the other."""

    def __init__(self, folder: str, plane: Plane, program: list[str] | None = None) -> None:
        self.folder = folder
        self.plane = plane
        self.program = program or [sys.executable, "-m", "qinglong_edge.cli.worker"]
        os.makedirs(folder, mode=0o700, exist_ok=True)
        os.chmod(folder, 0o700)
        pair = plane.authority.client()
        self.token = os.path.join(folder, "token")
        self.write_token(plane.token)
        self.config = os.path.join(folder, "worker.json")
        self.state = os.path.join(folder, "state")
        self.log = os.path.join(folder, "stderr")
        self.settings: dict[str, Any] = {
            "version": 1,
            "enabled": True,
            "profile": "worker-edge",
            "workerId": WORKER_ID,
            "origin": f"https://127.0.0.1:{plane.port}",
            "state": self.state,
            "trust": plane.authority.trust,
            "certificate": pair.certificate,
            "key": pair.key,
            "token": self.token,
            "limits": {"cadence_ms": 100, "reserve_bytes": 0, "stop_grace_ms": 300},
        }
        self.configure()
        self._process: subprocess.Popen[bytes] | None = None

    def write_token(self, token: str) -> None:
        """Put a token in place, whole."""
        with open(f"{self.token}.new", "w", encoding="ascii") as opened:
            os.fchmod(opened.fileno(), 0o600)
            opened.write(token + "\n")
        os.replace(f"{self.token}.new", self.token)

    def configure(self, **changes: Any) -> None:
        """Write the configuration."""
        limits = {**self.settings["limits"], **changes.pop("limits", {})}
        self.settings = {**self.settings, **changes, "limits": limits}
        with open(self.config, "w", encoding="utf-8") as opened:
            json.dump(self.settings, opened)

    def start(self, *, ready: bool = True) -> int:
        """Start the worker; its pid."""
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [*self.program, "run", "--config", self.config],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None
        if ready:
            assert self._process.stdout.readline() == b"ready\n", self.said()
        return self._process.pid

    def said(self) -> str:
        """Every event so far."""
        try:
            with open(self.log, encoding="utf-8") as opened:
                return opened.read()
        except FileNotFoundError:
            return ""

    @property
    def running(self) -> bool:
        """True while the worker lives."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """As a power cut would, as far as the worker is concerned."""
        self.end(signal.SIGKILL)

    def end(self, number: int = signal.SIGTERM, timeout: float = 60.0) -> int:
        """End the worker; its exit status."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        status = process.wait(timeout)
        assert process.stdout is not None
        process.stdout.close()
        return status

    def wait(self, timeout: float = 60.0) -> int:
        """The exit status of a worker that ends by itself."""
        process, self._process = self._process, None
        assert process is not None
        status = process.wait(timeout)
        assert process.stdout is not None
        process.stdout.close()
        return status

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Another command of the program."""
        return subprocess.run(
            [*self.program, *words, "--config", self.config],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def status(self) -> dict[str, Any]:
        """What `status` says."""
        done = self.command("status")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found
