"""What measuring needs: the product as a process, a bare interpreter beside it, /proc, a disk.

Every number of the bench and of the budget tests comes from here, so both measure the same way:
the zipapp under ``-I -S`` with an almost empty environment, next to a bare interpreter of the same
kind, in one session. Nothing outlives its `with` block: processes, mounts and loop devices go, on
an exception too.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PYTHON = os.path.realpath(sys.executable)  # a virtual environment's name would load its settings
FLAGS = ("-I", "-S")
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
NEVER = "0 0 1 1 *"
_DISK_BYTES = 192 << 20  # the edge reserve of 32 MiB and one log, beside what f2fs keeps back
_EXT4 = ("-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0")
_SUBREAPER = 36  # prctl's PR_SET_CHILD_SUBREAPER

# The product with another shell and other tools, from the tree: the zipapp lets nobody choose.
_OTHER_SHELL = """
import sys
tree, state_path, shell, tools = sys.argv[1:5]
sys.path.insert(0, tree)
from qinglong_edge.app import daemon, state
from qinglong_edge.app.runtime import Parts
parts = Parts()
parts.shell, parts.tools_path = shell, tools
daemon.serve(state.place(state_path, None), on_stop="leave", parts=parts)
"""

# Does what `python ZIPAPP` does, and tells at its end what has been imported.
WATCHED = """
import sys
bare = frozenset(sys.modules)
answer = sys.argv.pop(1)
del sys.argv[0]
sys.path.insert(0, sys.argv[0])
try:
    import runpy
    runpy._run_module_as_main("__main__", alter_argv=False)
finally:
    with open(answer, "w") as opened:
        opened.write("\\n".join(sorted(frozenset(sys.modules) - bare)))
"""

# Forks and executes what it reads, one JSON list a line; tells the start (ns) and the CPU (ns).
_BARE_SPAWNER = """
import os, sys, time
null = os.open("/dev/null", os.O_RDWR)
for line in sys.stdin:
    argv = line.rstrip("\\n").split("\\0")
    own, start = time.process_time_ns(), time.time_ns()
    pid = os.fork()
    if pid == 0:
        try:
            for place in (0, 1, 2):
                os.dup2(null, place)
            os.execv(argv[0], argv[1:])
        finally:
            os._exit(126)
    _, _, usage = os.wait4(pid, 0)
    spent = time.process_time_ns() - own + int((usage.ru_utime + usage.ru_stime) * 1e9)
    print(start, spent, flush=True)
"""


class UnmeasurableError(Exception):
    """This machine or user does not allow a measurement; the message is its reason."""


@dataclass(frozen=True)
class Memory:
    """KiB of one process, from smaps_rollup after a sync."""

    rss: int
    private_dirty: int
    anonymous: int


def memory(pid: int, *, at_rest: bool = True) -> Memory:
    """Memory of a process once it has come to rest, or as it is."""
    if at_rest:
        rest(pid)
        os.sync()
    found: dict[str, int] = {}
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as opened:
        for line in opened:
            name, _, value = line.partition(":")
            if value.endswith("kB\n"):
                found[name] = int(value.split()[0])
    return Memory(found["Rss"], found["Private_Dirty"], found["Anonymous"])


def rest(pid: int, *, within_s: float = 5.0, every_s: float = 0.1) -> None:
    """Return once a process has used no CPU between two looks, or after `within_s`."""
    deadline = time.monotonic() + within_s
    before = cpu_ns(pid)
    while time.monotonic() < deadline:
        time.sleep(every_s)
        now = cpu_ns(pid)
        if now == before:
            return
        before = now


def cpu_ns(pid: int) -> int:
    """CPU of the process itself so far; exact, unlike the ticks of stat."""
    with open(f"/proc/{pid}/schedstat", encoding="ascii") as opened:
        return int(opened.read().split()[0])


def reaped_ns(pid: int) -> int:
    """CPU of the children that a process has reaped; in ticks of 10 ms."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as opened:
        fields = opened.read().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))


def written_bytes(pid: int) -> int:
    """Bytes that a process has handed to any write call so far, a tmpfs's and a socket's too."""
    with open(f"/proc/{pid}/io", encoding="ascii") as opened:
        return max(
            int(line.split()[1]) for line in opened if line.startswith(("wchar:", "write_b"))
        )


def wakes(pid: int) -> int:
    """How often a process went to sleep of its own will: its wake-ups."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as opened:
        name = "voluntary_ctxt_switches:"
        return next(int(line.split()[1]) for line in opened if line.startswith(name))


def median(values: Sequence[float]) -> float:
    """The middle one; of an even number the lower middle."""
    return sorted(values)[(len(values) - 1) // 2]


# -- the product ----------------------------------------------------------------------------------


class Daemon:
    """One resident process on a state directory, and a client's end of its socket."""

    def __init__(self, command: list[str], state: str, name: str) -> None:
        self.state = state
        self._socket: socket.socket | None = None
        self._buffer = b""
        # Not beside the state: what is measured there is the product's, not its log's reader's.
        self._events = tempfile.NamedTemporaryFile(suffix=f".{name}")  # noqa: SIM115 - as long as the process
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._events,
            env=ENVIRONMENT,
        )
        try:
            self._await_ready()
        except BaseException:
            self.kill()
            raise
        self.pid = self.process.pid
        self.start_ns = cpu_ns(self.pid)  # CPU of the start; another load does not change it

    def _await_ready(self) -> None:
        output = self.process.stdout
        if output is None or not select.select([output], [], [], 60)[0]:
            raise RuntimeError("the daemon was not ready within 60 s")
        if output.readline() != b"ready\n":
            raise RuntimeError(f"the daemon did not start: {self.told()[-400:]}")

    def told(self) -> str:
        """Its event lines so far."""
        with open(self._events.name, encoding="utf-8", errors="replace") as opened:
            return opened.read()

    def call(self, method: str, **params: object) -> Any:
        """One method over the control socket; RuntimeError with the code if it was refused."""
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.settimeout(60)
            self._socket.connect(os.path.join(self.state, "run", "control.sock"))
        given = {name: value for name, value in params.items() if value is not None}
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": given}
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        while b"\n" not in self._buffer:
            data = self._socket.recv(65_536)
            if not data:
                raise RuntimeError("the daemon went away before it answered")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['data']['code']}")
        return answer["result"]

    def run(self, task: str) -> Any:
        """Start a task and wait for its end; the run's document."""
        started = self.call("run.start", name=task)
        return self.call("run.wait", run=str(started["number"]))

    def hang_up(self) -> None:
        """Close the client's end."""
        if self._socket is not None:
            self._socket.close()
            self._socket, self._buffer = None, b""

    def stop(self) -> None:
        """TERM and wait; nothing of it is left."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """KILL and wait."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        self.hang_up()
        if self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()


@dataclass(frozen=True)
class Product:
    """The zipapp and the Python that runs it."""

    zipapp: str
    python: str = PYTHON

    def command(self, *arguments: str) -> list[str]:
        """A command line of the product."""
        return [self.python, *FLAGS, self.zipapp, *arguments]

    def init(self, state: str) -> None:
        """Make a state directory of the edge profile."""
        self.command_with(state, "init")

    def command_with(self, state: str, *arguments: str) -> None:
        """One command without a daemon, which must succeed."""
        subprocess.run(
            self.command("--state", state, *arguments),
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            check=True,
        )

    def daemon(self, state: str) -> Daemon:
        """Start the daemon of a state; it is ready."""
        return Daemon(self.command("--state", state, "run"), state, "daemon")

    def daemon_with(self, state: str, *, shell: str, tools: str) -> Daemon:
        """The daemon with another shell and another PATH of the wrapper's tools."""
        given = [ROOT, state, shell, tools]
        return Daemon([self.python, *FLAGS, "-B", "-c", _OTHER_SHELL, *given], state, "daemon")

    def modules(self, state: str, use: Callable[[Daemon], object]) -> list[str]:
        """What the daemon has imported over a bare interpreter, from its start to its stop."""
        answer = f"{state}.modules"
        given = [answer, self.zipapp, "--state", state, "run"]
        with Daemon([self.python, *FLAGS, "-c", WATCHED, *given], state, "watched") as daemon:
            use(daemon)
        with open(answer, encoding="utf-8") as opened:
            return opened.read().split("\n")

    def populated(self, state: str, tasks: int, *, zone: str = "UTC") -> None:
        """Make a state with so many tasks whose cron is not due for months."""
        self.init(state)
        with self.daemon(state) as daemon:
            add_tasks(daemon, tasks, zone=zone)


def add_tasks(daemon: Daemon, tasks: int, *, zone: str = "UTC") -> None:
    """Define tasks that differ like real ones: name, command, one variable."""
    for number in range(tasks):
        daemon.call(
            "task.add",
            name=f"task {number}",
            shell=f"echo {number}; run the thing",
            cron=[NEVER],
            zone=zone,
            environment={"NUMBER": str(number)},
        )


# -- the bare interpreter -------------------------------------------------------------------------


@contextlib.contextmanager
def bare_interpreter(python: str = PYTHON, *, loaded: str = "sys") -> Iterator[tuple[int, int]]:
    """(pid, ns of CPU from its start to its first line) of an interpreter that only waits."""
    code = f"import {loaded}, sys; print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [python, *FLAGS, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
    ) as started:
        if started.stdout is None or started.stdout.readline() != b"ready\n":
            raise RuntimeError("the bare interpreter did not start")
        yield started.pid, cpu_ns(started.pid)
        started.communicate(b"")


class BareSpawner:
    """A bare interpreter that forks and executes commands and waits for each."""

    def __init__(self, python: str = PYTHON) -> None:
        self._process = subprocess.Popen(
            [python, *FLAGS, "-c", _BARE_SPAWNER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=ENVIRONMENT,
            text=True,
        )
        self.pid = self._process.pid

    def order(self, program: str, *argv: str) -> None:
        """Let it fork and execute; `answer` waits for the end."""
        if self._process.stdin is None:
            raise RuntimeError("the bare spawner has no pipe")
        self._process.stdin.write("\0".join((program, *argv)) + "\n")
        self._process.stdin.flush()

    def answer(self) -> tuple[int, int]:
        """(wall ns just before the fork, ns of CPU: the fork, the command, the reaping)."""
        if self._process.stdout is None:
            raise RuntimeError("the bare spawner has no pipe")
        start, spent = self._process.stdout.readline().split()
        return int(start), int(spent)

    def spawn(self, program: str, *argv: str) -> tuple[int, int]:
        """Order and answer."""
        self.order(program, *argv)
        return self.answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._process.communicate()


# -- who reaps what nobody waits for --------------------------------------------------------------


@contextlib.contextmanager
def subreaper() -> Iterator[bool]:
    """Orphans of this process's descendants become its children, so that their CPU is counted."""
    try:
        import ctypes  # not every router has it

        libc = ctypes.CDLL(None, use_errno=True)
        taken = libc.prctl(_SUBREAPER, 1, 0, 0, 0) == 0
    except (ImportError, OSError, AttributeError):
        taken = False
    try:
        yield taken
    finally:
        if taken:
            libc.prctl(_SUBREAPER, 0, 0, 0, 0)


def reap_orphans(known: frozenset[int]) -> int:
    """Reap every ended child that is not known; ns of their CPU."""
    spent = 0
    for pid in _children() - known:
        try:
            _, _, usage = os.wait4(pid, os.WNOHANG)
        except ChildProcessError:
            continue
        spent += int((usage.ru_utime + usage.ru_stime) * 1e9)
    return spent


def _children() -> frozenset[int]:
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as opened:
                if int(opened.read().rpartition(")")[2].split()[1]) == os.getpid():
                    found.add(int(name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return frozenset(found)


# -- places ---------------------------------------------------------------------------------------


def memory_folder() -> str | None:
    """A tmpfs to keep states on, or None."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None


@contextlib.contextmanager
def folder(*, on_memory: bool = False) -> Iterator[str]:
    """A new directory that is gone at the end."""
    made = tempfile.mkdtemp(prefix="edge-", dir=memory_folder() if on_memory else None)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@dataclass(frozen=True)
class Disk:
    """A mounted file system on a device of its own."""

    path: str
    device: str

    def sync(self) -> None:
        """Bring this file system's own dirty pages to the device."""
        import ctypes

        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            ctypes.CDLL(None).syncfs(descriptor)
        finally:
            os.close(descriptor)

    def written(self) -> tuple[int, int | None]:
        """(bytes written to the device, flushes sent to it; None where it counts none)."""
        name = os.path.basename(self.device)
        with open(f"/sys/block/{name}/stat", encoding="ascii") as opened:
            fields = opened.read().split()
        return int(fields[6]) * 512, int(fields[15]) if len(fields) > 15 else None


@contextlib.contextmanager
def disk(kind: str = "ext4") -> Iterator[Disk]:
    """A fresh disk of 192 MiB on a loop device; UnmeasurableError where that cannot be had."""
    if os.geteuid() != 0:
        raise UnmeasurableError("a loop mount needs root")
    for name in (f"mkfs.{kind}", "losetup", "mount", "umount"):
        if shutil.which(name, path=ENVIRONMENT["PATH"]) is None:
            raise UnmeasurableError(f"{name} is not installed")
    with contextlib.ExitStack() as undo:
        home = undo.enter_context(folder(on_memory=True))
        image, mounted = os.path.join(home, "image"), os.path.join(home, "mounted")
        with open(image, "wb") as opened:
            opened.truncate(_DISK_BYTES)
        os.mkdir(mounted)
        tool(f"mkfs.{kind}", "-q", *(_EXT4 if kind == "ext4" else ()), image)
        device = tool("losetup", "-f", "--show", image).strip()
        undo.callback(tool, "losetup", "-d", device)
        tool("mount", "-t", kind, device, mounted)
        undo.callback(tool, "umount", mounted)
        yield Disk(mounted, device)


def tool(*command: str) -> str:
    """What a command prints; UnmeasurableError with its last line if it fails."""
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    if done.returncode != 0:
        said = done.stderr.strip().partition("\n")[0].rpartition(": ")[2]
        raise UnmeasurableError(f"{command[0]} failed: {said}")
    return done.stdout


@contextlib.contextmanager
def busybox() -> Iterator[tuple[str, str]]:
    """(busybox, a directory with its applets); UnmeasurableError where there is none."""
    program = shutil.which("busybox", path=ENVIRONMENT["PATH"])
    if program is None:
        raise UnmeasurableError("busybox is not installed")
    with folder() as applets:
        for name in tool(program, "--list").split():
            os.symlink(program, os.path.join(applets, name))
        yield program, applets
