"""One emulated router as a process of this machine, with an agent that runs shell lines in it.

Nothing outlives the `with` block: leaving it kills qemu at once, which for the guest is a power
cut. A guest that panics ends; whoever talks to it then gets `GuestError` with the console's tail.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from tests.tools.router import chips
from tests.tools.router.images import Image

_BOOT_S = 120.0
_STATUS = b"@@STATUS "
_COMMAND_LINE = "quiet panic=-1 mitigations=off random.trust_cpu=on"
_TAIL = 3_000


class GuestError(Exception):
    """The guest is gone, silent, or a command in it failed; the message has what it told."""


@dataclass(frozen=True)
class Options:
    """What a guest is given."""

    memory_mib: int = 256
    share: str | None = None  # a folder that the guest sees read-only at /share
    disks: tuple[str, ...] = ()  # what qemu's `file=` says, for vdb, vdc, ...
    chips: tuple[str, ...] = ()  # files of flash chips
    clock: str | None = None  # the hardware clock at boot, as `-rtc base=` says it
    counted: bool = False  # time passes with instructions, not with this machine's load
    more: tuple[str, ...] = field(default=())


class Guest:
    """A booted router."""

    def __init__(self, image: Image, options: Options) -> None:
        self._work = tempfile.TemporaryDirectory(prefix="guest-")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(os.path.join(self._work.name, "agent"))
        self._listener.listen(1)
        self._port: socket.socket | None = None
        self._buffer = b""
        command = [*_command(image, options), *self._ports()]
        with open(os.path.join(self._work.name, "qemu"), "wb") as told:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=told, stderr=subprocess.STDOUT
            )
        try:
            self._await_ready()
            if options.share is not None:
                self.load("9p", "9pnet_virtio")
                self.check("mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=262144 s /share")
        except BaseException:
            self.kill()
            raise

    def _ports(self) -> list[str]:
        folder = self._work.name
        return [
            *("-serial", f"file:{folder}/console"),
            *("-chardev", f"socket,id=agent,path={folder}/agent"),
            *("-device", "virtio-serial-pci"),
            *("-device", "virtserialport,chardev=agent,name=agent"),
        ]

    def _await_ready(self) -> None:
        self._listener.settimeout(_BOOT_S)
        deadline = time.monotonic() + _BOOT_S
        try:
            self._port, _ = self._listener.accept()
        except TimeoutError:
            raise self._gone("qemu did not start") from None
        while not self._line(deadline - time.monotonic()).startswith(b"@@READY"):
            pass

    # -- talking ----------------------------------------------------------------------------------

    def run(self, command: str, *, timeout_s: float = 120.0) -> tuple[int, str]:
        """One shell line: (status, what it printed on both outputs)."""
        told = list(self.lines(command, timeout_s=timeout_s))
        return self.status, "\n".join(told).removesuffix("\n")

    def check(self, command: str, *, timeout_s: float = 120.0) -> str:
        """What a command printed; GuestError when its status is not 0."""
        status, told = self.run(command, timeout_s=timeout_s)
        if status != 0:
            raise GuestError(f"`{command}` ended with {status}: {told[-_TAIL:]}")
        return told

    def lines(self, command: str, *, timeout_s: float = 120.0) -> Iterator[str]:
        """The lines of a command as they come; its status is in `status` afterwards.

        `timeout_s` bounds the wait for each of them.
        """
        self.send(command)
        while True:
            line = self._line(timeout_s)
            if line.startswith(_STATUS):
                self.status = int(line[len(_STATUS) :])
                return
            yield line.decode("utf-8", "replace")

    def send(self, line: str) -> None:
        """One line to the agent, or to the command that it runs."""
        if self._port is None:
            raise GuestError("the guest is off")
        try:
            self._port.sendall(line.encode() + b"\n")
        except OSError:
            raise self._gone("it hung up") from None

    def python(self, module: str, *arguments: object, timeout_s: float = 300.0) -> Any:
        """The JSON that a module of /share prints as its last line."""
        words = shlex.join(map(str, arguments))
        told = self.check(f"{PYTHON} -m {module} {words}", timeout_s=timeout_s)
        return json.loads(told.rstrip("\n").rpartition("\n")[2])

    def load(self, *modules: str) -> None:
        """Load modules of the kernel, each after what it needs; one that is built in is there."""
        for module in modules:
            self.check(
                f"for m in $(sed -n 's/^{module}: //p' /modules/order); do "
                '[ -e "/sys/module/$m" ] || insmod "/modules/$m.ko" || exit 1; done'
            )

    def _line(self, timeout_s: float) -> bytes:
        if self._port is None:
            raise GuestError("the guest is off")
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            self._port.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                data = self._port.recv(65_536)
            except TimeoutError:
                raise self._gone(f"silent for {timeout_s:.0f} s") from None
            except OSError:
                data = b""
            if not data:
                raise self._gone("it ended")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.rstrip(b"\r")

    def _gone(self, why: str) -> GuestError:
        told = self._buffer.decode("utf-8", "replace")
        for name in ("console", "qemu"):
            with contextlib.suppress(FileNotFoundError):
                path = os.path.join(self._work.name, name)
                with open(path, encoding="utf-8", errors="replace") as opened:
                    told += opened.read()[-_TAIL:]
        return GuestError(f"{why}: {told}")

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """No instruction of the guest is done in the block: what a cut now would leave is there."""
        self._process.send_signal(signal.SIGSTOP)
        how = os.WSTOPPED | os.WEXITED | os.WNOWAIT
        os.waitid(os.P_PID, self._process.pid, how)  # all of its threads stand still
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)  # one that was cut meanwhile hears nothing

    # -- ending -----------------------------------------------------------------------------------

    def cut(self) -> None:
        """The power goes; whoever waits for an answer of the guest gets `GuestError`."""
        self._process.kill()
        self._process.wait()

    def kill(self) -> None:
        """The power goes, and nothing is left of the guest."""
        self.cut()
        if self._port is not None:
            self._port.close()
            self._port = None
        self._listener.close()
        self._work.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.kill()


def overlay(below: str, place: str) -> str:
    """The shell line that puts an overlay to `place`; its upper layer is on what `below` is."""
    upper, work = f"{below}/upper", f"{below}/scratch"
    options = f"lowerdir=/modules,upperdir={upper},workdir={work}"
    return f"mkdir -p {upper} {work} {place} && mount -t overlay -o {options} overlay {place}"


PYTHON = "cd /share && PYTHONDONTWRITEBYTECODE=1 python3"


def _command(image: Image, options: Options) -> list[str]:
    machine = image.machine
    disks: Sequence[str] = (f"file={image.root},readonly=on", *options.disks)
    command = [
        *(machine.emulator, *machine.options, "-accel", "tcg", "-smp", "1"),
        *("-m", str(options.memory_mib), "-nodefaults", "-no-user-config", "-no-reboot"),
        *("-display", "none", "-kernel", image.kernel, "-initrd", image.initrd),
        *("-append", f"console={machine.console} {_COMMAND_LINE}", "-device", "virtio-rng-pci"),
    ]
    for number, disk in enumerate(disks):
        command += ["-drive", f"{disk},if=none,id=d{number},format=raw"]
        command += ["-device", f"virtio-blk-pci,drive=d{number}"]
    if options.share is not None:
        shared = f"local,path={options.share},mount_tag=s,security_model=none,readonly=on"
        command += ["-virtfs", shared]
    command += chips.words(options.chips)
    if options.clock is not None:
        command += ["-rtc", f"base={options.clock}"]
    if options.counted:
        command += ["-icount", "shift=2"]
    return [*command, *options.more]
