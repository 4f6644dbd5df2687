"""The two emulated routers: an arm64 one with a Cortex-A53 and an x86-64 one, both by TCG.

KVM is never asked for: a device file that opens does not mean that a guest runs. The models are
small ones on purpose; `-cpu max` costs arm64 seconds of every boot.
"""

from __future__ import annotations

from dataclasses import dataclass

SUITE = "bookworm"  # Python 3.11 and SQLite 3.40, the oldest that a router has
MINOR = 11


@dataclass(frozen=True)
class Machine:
    """What qemu, Debian and the guest's kernel call one kind of router."""

    name: str  # as `build.py --arch` says it
    architecture: str  # Debian's
    emulator: str
    options: tuple[str, ...]
    console: str
    user: str | None  # the emulator of single programs; None: they run here as they are


MACHINES = {
    machine.name: machine
    for machine in (
        Machine(
            "arm64",
            "arm64",
            "qemu-system-aarch64",
            ("-M", "virt", "-cpu", "cortex-a53"),
            "ttyAMA0",
            "qemu-aarch64-static",
        ),
        Machine(
            "x86",
            "amd64",
            "qemu-system-x86_64",
            ("-M", "q35", "-cpu", "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt"),
            "ttyS0",
            None,
        ),
    )
}
