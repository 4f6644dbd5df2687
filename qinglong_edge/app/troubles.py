"""What the codes of `degraded` and of failed launches mean, and what to do about each; and how a
daemon is started here.

Owns the words. Nobody resident loads them: documents carry the codes, people read these.
"""

from __future__ import annotations

import os

from qinglong_edge.app.state import DEFAULT_STATE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from qinglong_edge.app.state import Place

MORE_MEMORY = "Stop what is not needed, or add swap: zram-swap"
MORE_ROOM = "Free some space, or use another disk."
OTHER_PLACE = "Put the state on flash or a disk."
LOOK_AT_DISK = "Look for errors of the disk: dmesg, mount"
SET_CLOCK = "Let NTP set it, or set it and say: clock trust"
_SEE_DOCTOR = "`doctor` says what is missing."
_AGAIN = "It is tried again by itself."
_NO_SECRETS = "Tasks with a secret do not start"
_NO_PROCESS = "A process could not be made; the run waits."

# code -> (what it means, what to do)
WORDS: dict[str, tuple[str, str]] = {
    "clock_not_set": ("The clock is not set: no schedule starts anything.", SET_CLOCK),
    "clock_stepped_back": ("The clock went back: no schedule starts anything yet.", SET_CLOCK),
    "triggers_parked": (
        "A schedule cannot be computed and rests.",
        "`task list` shows it; mend its expression or its zone: task set",
    ),
    "state_volatile": ("The state is in memory and does not survive a reboot.", OTHER_PLACE),
    "log_pressure": ("Room gets short: old logs go earlier.", MORE_ROOM),
    "log_capacity": (
        "There is no room for another log: runs that write one wait.",
        "Free some space, or set smaller limits: doctor",
    ),
    "logs_unretired": ("Old logs cannot be deleted.", LOOK_AT_DISK),
    "receipts_unclean": ("Old receipts cannot be cleared away.", LOOK_AT_DISK),
    "no_space": ("The disk is full: nothing more can be recorded.", MORE_ROOM),
    "storage_unavailable": (
        "Files of the state or its logs are out of reach.",
        f"{LOOK_AT_DISK}. Folders that were deleted come back when the daemon starts anew.",
    ),
    "state_read_only": ("The state cannot be written.", "Mount it writable; see also: dmesg"),
    "database_busy": ("Another process uses the database.", "End it: only one may."),
    "database_failed": ("The database refuses its work.", LOOK_AT_DISK),
    **dict.fromkeys(
        ("database_corrupt", "row_corrupt", "constraint"),
        ("The database is damaged.", "Stop the daemon and take a backup back: restore"),
    ),
    **dict.fromkeys(
        ("keyring_missing", "keyring_unsafe", "keyring_corrupt", "keyring_unreadable"),
        (f"{_NO_SECRETS}: the keyring cannot be used.", _SEE_DOCTOR),
    ),
    **dict.fromkeys(
        ("secret_provider_unavailable", "cryptography_missing"),
        (f"{_NO_SECRETS}: nothing here can open one.", _SEE_DOCTOR),
    ),
    "memory_low": (f"{_NO_SECRETS}: too little memory is free.", MORE_MEMORY),
    **dict.fromkeys(
        (
            *("launch_failed", "launch_child_failed", "launch_timed_out", "launch_unavailable"),
            *("identity_unavailable", "no_memory"),
        ),
        (_NO_PROCESS, f"{_AGAIN} {MORE_MEMORY}"),
    ),
    **dict.fromkeys(
        ("wrapper_missing", "wrapper_unreadable", "wrapper_not_installed"),
        (
            "A file in the runtime directory is not there: no run starts.",
            "Start the daemon anew; it writes the file.",
        ),
    ),
    "sync_tool_missing": (
        "No tool here writes a file to its device: no run starts.",
        "Install one: coreutils-sync",
    ),
    "cwd_unavailable": (
        "The task's working directory cannot be entered.",
        "Make it, or name another: task set --cwd",
    ),
    "nice_refused": (
        "The task's priority needs a privilege.",
        "Name a higher one: task set --nice",
    ),
    "secret_unavailable": ("A secret of the task is missing or does not open.", _SEE_DOCTOR),
    "secret_value_invalid": (
        "A secret of the task has a value that no variable can have.",
        "Give it another: secret set",
    ),
}
_SERVICES = (
    ("/etc/init.d/qinglong-edge", "/etc/init.d/qinglong-edge start"),
    ("/etc/systemd/system/qinglong-edge.service", "systemctl start qinglong-edge"),
)
_ROUTER_RUNTIME = "/var/run/qinglong-edge"


def told(codes: Iterable[str]) -> list[str]:
    """A line for each code: the code, what it means, what to do."""
    return [f"{code}: {' '.join(_words(code))}" for code in codes]


def _words(code: str) -> tuple[str, str]:
    kind, _, which = code.partition(":")
    if kind == "notify_failed":
        return f"The last message to the channel {which} failed.", "Look at it: notify list"
    if kind == "run_unproven":
        number, _, why = which.partition(":")
        if why == "storage":
            return f"The end of run {number} could not be stored.", f"{_AGAIN} {MORE_ROOM}"
        meaning = f"Whether run {number} still goes on cannot be proven."
        return meaning, f"{_AGAIN} Else look for its processes, and say its end: settle {number}"
    return WORDS.get(code, ("Something was refused with this code.", f"{_AGAIN} See also: doctor"))


def start_command(where: Place) -> str:
    """What starts the daemon of a state here, as one types it."""
    if where.state == DEFAULT_STATE or where.runtime == _ROUTER_RUNTIME:
        for file, command in _SERVICES:
            if os.path.exists(file):
                return command
    if where.state == DEFAULT_STATE:
        return "qinglong-edge run"
    return f"qinglong-edge --state {where.state} run"
