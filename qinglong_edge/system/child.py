"""The gated child: fork, wires, and the wait before the exec.

Owns every fork and exec. Promises:

* A child never unwinds into the parent's frames: its whole body ends in `os._exit`. (A child that
  closed the inherited SQLite connection would make SQLite delete the parent's WAL; the parent's
  later commits would then be lost silently.)
* It keeps only the descriptors it was given. The owner lock is closed in it, never unlocked.
* A parent that dies leaves a child that reads end-of-file at the gate and exits: nothing ran.

Wires of the child, as the wrapper script expects them:

    0 /dev/null | 1 start mark | 2 /dev/null | 3 sealed script | 9 receipt channel
    with a log:  4 and 5 output pipe, 6 log (arrives over the gate), 7 and 8 capture-done pair
    without:     5 /dev/null

They are first moved to 64 and above, everything else found in /proc/self/fd is closed, then each is
put in its place. The gate itself stays high, close-on-exec.

Gate protocol (one SOCK_SEQPACKET pair):

    child -> parent   R                      ready; blocks reading
                      E <code> <errno>       will not run
    parent -> child   G (+ the log)          go
    child -> parent   X <errno>              exec failed; end-of-file instead = exec succeeded
"""

from __future__ import annotations

import _socket as socket  # without the enums of `socket`: 0.4 MiB less in every daemon
import fcntl
import os
import resource
import struct

from qinglong_edge.core.errors import EdgeError
from qinglong_edge.core.limits import WRAPPER_SILENCE_MS
from qinglong_edge.core.record import Record
from qinglong_edge.system.memory import memory_file, never_dump

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterable
else:
    import _signal as signal  # without the enums of `signal`: 0.2 MiB, and time in every launch


_MESSAGE_BYTES_MAX = 256
ANSWER_BYTES_MAX = 2_048  # one write to a pipe, which is never cut
_CHANNEL_BYTES = 8_192
_PARK_FROM = 64
_LOG_PLACE = 6
# SO_RCVTIMEO where times outgrew the machine's `long`, as with musl and newer glibc on 32-bit ARM
# and MIPS: two words of 64 bits, and the kernel takes no less.
_WIDE_TIMEOUT = 66
_REFUSED = 126  # never 0: nobody may read the end of a child that has done nothing as a success


class ChildRefusal(Exception):
    """Raised in a launch child before `ready`: a stable code and an errno, nothing else."""

    def __init__(self, code: str, number: int = 0) -> None:
        super().__init__(code)
        self.code = code
        self.number = number


class ChildPlan(Record):
    """What a gated child becomes; `script` is a descriptor of the parent's."""

    program: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    cwd: str
    nice: int
    oom_score_adj: int
    script: int
    log_quota_bytes: int  # 0 = no log; else the soft RLIMIT_FSIZE at the exec
    kept: tuple[int, ...]  # stay open, close-on-exec, until the exec

    def __repr__(self) -> str:
        return "ChildPlan(...)"


class Child:
    """The parent's ends of one gated child."""

    def __init__(
        self, pid: int, gate: socket.socket, channel: socket.socket, mark: int | None
    ) -> None:
        self.pid = pid
        self._gate: socket.socket | None = gate
        self._channel: socket.socket | None = channel
        self._mark = mark
        gate.setblocking(False)
        channel.setblocking(False)

    @property
    def gate_fd(self) -> int:
        """Readable when the child has something to say; -1 once closed."""
        return -1 if self._gate is None else self._gate.fileno()

    @property
    def channel_fd(self) -> int:
        """Readable when the wrapper sends its receipt; -1 once closed."""
        return -1 if self._channel is None else self._channel.fileno()

    def read_gate(self) -> bytes | None:
        """One message; b"" = end, None = nothing yet."""
        return _receive(self._gate, _MESSAGE_BYTES_MAX)

    def read_channel(self) -> bytes | None:
        """Bytes of the wrapper; b"" = end, None = nothing yet."""
        return _receive(self._channel, _CHANNEL_BYTES)

    def send_go(self, log: int | None) -> None:
        """Open the gate, handing the log over with the word; OSError if the child is gone."""
        if self._gate is None:
            raise BrokenPipeError
        rights = []
        if log is not None:
            rights.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", log)))
        self._gate.sendmsg([b"G"], rights)

    def answer(self, text: bytes) -> bool:
        """Send the wrapper its answer; False if it no longer listens."""
        if self._channel is None:
            return False
        try:
            self._channel.send(text)
        except OSError:
            return False
        return True

    def marked(self) -> bool:
        """True once the command is at its exec; always true where the kernel has no memfd."""
        return self._mark is None or os.fstat(self._mark).st_size > 0

    def close_gate(self) -> None:
        """A child that still waits reads end-of-file and exits."""
        if self._gate is not None:
            self._gate.close()
            self._gate = None

    def close_channel(self) -> None:
        """The wrapper reads end-of-file and leaves its file."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def close(self) -> None:
        """Give every end back."""
        self.close_gate()
        self.close_channel()
        if self._mark is not None:
            os.close(self._mark)
            self._mark = None


def _receive(sock: socket.socket | None, bytes_max: int) -> bytes | None:
    if sock is None:
        return b""
    try:
        return sock.recv(bytes_max)
    except BlockingIOError:
        return None
    except OSError:
        return b""


class Spawner:
    """Forks gated children; tests replace or count its method."""

    def __init__(self) -> None:
        # Whoever was started with SIGCHLD ignored would have no zombies, and learn of no exit.
        if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def consult(self, ask: Callable[[], bytes], kept: Iterable[int]) -> tuple[int, int]:
        """Fork a one-shot child that answers a question; its pid, and where its answer is read.

        What it imports and reads leaves this process alone. At most 2 KiB come back, none if
        it fails. `kept` stay open in it. The caller reads to the end, closes and reaps.
        """
        read, write = os.pipe2(os.O_CLOEXEC)
        everything = signal.valid_signals()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, everything)
        try:
            pid = os.fork()
            if pid == 0:
                _answer(write, ask, kept, everything)
            return pid, read
        except BaseException:
            os.close(read)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(write)

    def fork(self, plan: ChildPlan, resolve: Callable[[], dict[str, str]]) -> Child:
        """Fork a child that waits behind its gate.

        `resolve` runs in the child before it says `R`; its result joins the environment, or it
        raises an `EdgeError`, of which the code alone is told. The plan's script is closed in any
        case. Raises OSError if there is no process or descriptor to be had; nothing is left open.
        """
        opened: list[int] = [plan.script]
        pairs: list[socket.socket] = []
        mark: int | None = None
        try:
            mark = memory_file("ql3-mark")
            gate, gate_child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            pairs += [gate, gate_child]
            channel, channel_child = socket.socketpair()
            pairs += [channel, channel_child]
            _read_timeout(channel_child)
            places = _wires(plan, mark, opened)
            places[9] = channel_child.fileno()
            pid = _fork(plan, places, gate_child, resolve)
            return Child(pid, pairs.pop(0), pairs.pop(1), mark)
        except BaseException:
            if mark is not None:
                os.close(mark)
            raise
        finally:
            for sock in pairs:
                sock.close()
            for fd in opened:
                os.close(fd)


def _read_timeout(sock: socket.socket) -> None:
    """Make reads give up: dash has no `read -t`, but its read fails with EAGAIN."""
    seconds, rest_ms = divmod(WRAPPER_SILENCE_MS, 1000)
    layout = "qq" if socket.SO_RCVTIMEO == _WIDE_TIMEOUT else "ll"
    value = struct.pack(layout, seconds, rest_ms * 1000)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)


def _wires(plan: ChildPlan, mark: int | None, opened: list[int]) -> dict[int, int]:
    """Place -> descriptor, all but the channel; what was opened here is collected in `opened`."""
    null_read = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    opened.append(null_read)
    null_write = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
    opened.append(null_write)
    places = {
        0: null_read,
        1: null_write if mark is None else mark,
        2: null_write,
        3: plan.script,
        5: null_write,
    }
    if plan.log_quota_bytes:
        pipe = os.pipe2(os.O_CLOEXEC)
        opened += pipe
        done_read, done_write = socket.socketpair()
        _read_timeout(done_read)
        done = (done_read.detach(), done_write.detach())
        opened += done
        places[4], places[5] = pipe
        places[7], places[8] = done
    return places


def _fork(
    plan: ChildPlan,
    places: dict[int, int],
    gate: socket.socket,
    resolve: Callable[[], dict[str, str]],
) -> int:
    everything = signal.valid_signals()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, everything)
    try:
        pid = os.fork()
        if pid == 0:
            _live(plan, places, gate.fileno(), resolve, everything)
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _live(
    plan: ChildPlan,
    places: dict[int, int],
    gate_fd: int,
    resolve: Callable[[], dict[str, str]],
    everything: Iterable[int],
) -> None:
    """The whole life of a launch child; never returns and never raises."""
    gate = -1
    try:
        signal.set_wakeup_fd(-1)
        gate = fcntl.fcntl(gate_fd, fcntl.F_DUPFD_CLOEXEC, _PARK_FROM)
        _restore_signals(everything)
        os.setsid()
        _arrange(places, {gate, *plan.kept})
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        _restrict(plan)
        environment = dict(plan.environment)
        environment.update(resolve())
        os.write(gate, b"R")
        _await_go(plan, gate)
        try:
            os.execve(plan.program, plan.arguments, environment)
        except OSError as error:
            os.write(gate, b"X %d" % (error.errno or 0))
    except ChildRefusal as refusal:
        _report(gate, refusal.code, refusal.number)
    except EdgeError as error:
        _report(gate, error.code, 0)
    except OSError as error:
        _report(gate, "launch_child_failed", error.errno or 0)
    except BaseException:  # noqa: BLE001 - nothing may unwind out of a launch child
        _report(gate, "launch_child_failed", 0)
    finally:
        os._exit(_REFUSED)


def _answer(
    write: int, ask: Callable[[], bytes], kept: Iterable[int], everything: Iterable[int]
) -> None:
    """The whole life of a consulted child; never returns and never raises."""
    try:
        signal.set_wakeup_fd(-1)
        _restore_signals(everything)
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        parked = fcntl.fcntl(write, fcntl.F_DUPFD_CLOEXEC, _PARK_FROM)
        _arrange({0: null, 1: null, 2: null}, {parked, *kept})
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        never_dump()
        os.write(parked, ask()[:ANSWER_BYTES_MAX])
    finally:
        os._exit(0)


def _report(gate: int, code: str, number: int) -> None:
    try:
        os.write(gate, b"E %s %d" % (code.encode("ascii"), number))
    except OSError:
        return


def _restore_signals(everything: Iterable[int]) -> None:
    """Defaults for all: Python ignores SIGPIPE and SIGXFSZ, and a shell cannot undo an ignore
    that it was born with."""
    for number in everything:
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)


def _arrange(places: dict[int, int], keep: set[int]) -> None:
    """Leave exactly the wires and what is kept."""
    parked = {
        place: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _PARK_FROM) for place, fd in places.items()
    }
    keep = {*keep, *parked.values()}
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd not in keep:
            try:
                os.close(fd)
            except OSError:
                continue  # the listing's own descriptor
    for place, fd in parked.items():
        os.dup2(fd, place)
        os.close(fd)


def _restrict(plan: ChildPlan) -> None:
    """Umask, core size, out-of-memory score, niceness, working directory."""
    os.umask(0o077)
    never_dump()
    _set_oom_score(plan.oom_score_adj)
    if plan.nice:
        try:
            os.nice(plan.nice)
        except OSError as error:
            raise ChildRefusal("nice_refused", error.errno or 0) from None
    try:
        os.chdir(plan.cwd)
    except OSError as error:
        raise ChildRefusal("cwd_unavailable", error.errno or 0) from None


def _set_oom_score(score: int) -> None:
    """Raise the task's chance of being taken first; best effort."""
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, b"%d" % score)
        finally:
            os.close(fd)
    except OSError:
        return


def _await_go(plan: ChildPlan, gate: int) -> None:
    """Block until the word to go; anything else, end-of-file above all, ends the child."""
    sock = socket.socket(fileno=gate)
    word, rights, _flags, _address = sock.recvmsg(16, socket.CMSG_SPACE(4))
    sock.detach()
    received = [data for _level, kind, data in rights if kind == socket.SCM_RIGHTS]
    if word != b"G" or bool(received) != bool(plan.log_quota_bytes):
        os._exit(_REFUSED)
    if not received:
        return
    (fd,) = struct.unpack("i", received[0][:4])
    if fd != _LOG_PLACE:  # it comes inheritable
        os.dup2(fd, _LOG_PLACE)
        os.close(fd)
    _soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    quota = plan.log_quota_bytes
    soft = quota if hard == resource.RLIM_INFINITY else min(quota, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
