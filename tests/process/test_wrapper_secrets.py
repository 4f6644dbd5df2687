"""A secret is in the environment of its command, and of no tool that the wrapper runs itself."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.process.harness import EVERY_SHELL, PLAIN, PYTHON, Bench, Running

VALUES = {
    "TOKEN": 'a"b\n$(id)\u00e9 ',
    "QUOTES": "'\"`\\",
    "DASH": "-n",
    "STAR": "* ? [a-z] ~",
    "EMPTY": "",
    "LINES": "\n\nx\n\n",
    "EMOJI": "\U0001f600 \u4e2d\u6587\t",
    "LONG": "x" * 65_536,
}
_SHOW = "import os, sys; sys.stdout.buffer.write(os.environb[sys.argv[1].encode()])"


@EVERY_SHELL
@pytest.mark.parametrize("name", VALUES)
def test_a_secret_reaches_its_command_byte_for_byte(tmp_path: Path, shell: str, name: str) -> None:
    ended = Bench(shell, tmp_path).run(
        [*PYTHON, _SHOW, name],
        environment={**PLAIN, **VALUES},
        changed={"SECRETS": " ".join(VALUES)},
        quota=1 << 20,
    )
    assert (ended.codes, ended.log) == ((0, 0), VALUES[name].encode())


@EVERY_SHELL
def test_the_environment_of_a_command_with_secrets_is_exactly_its_recipe(
    tmp_path: Path, shell: str
) -> None:
    given = {**PLAIN, "TOKEN": "t", "PATH_TO": "p", "PUBLIC": "v"}
    ended = Bench(shell, tmp_path).run(
        [*PYTHON, "import os; print(sorted(os.environ.items()))"],
        environment=given,
        changed={"SECRETS": "TOKEN PATH_TO"},
    )
    found = dict(eval(ended.log))  # noqa: S307 - our own repr
    found.pop("LC_CTYPE", None)  # Python's own coercion
    assert found == given


@EVERY_SHELL
def test_a_path_that_is_a_secret_is_the_command_s_path_and_not_the_wrapper_s(
    tmp_path: Path, shell: str
) -> None:
    ended = Bench(shell, tmp_path).task(
        'echo "$PATH"', environment={"PATH": "/nowhere"}, changed={"SECRETS": "PATH"}
    )
    assert (ended.codes, ended.log, ended.word) == ((0, 0), b"/nowhere\n", "whole")


@EVERY_SHELL
def test_no_tool_of_the_wrapper_inherits_a_secret(tmp_path: Path, shell: str) -> None:
    """P7: the capture's `cat` runs as long as the command does; its environment names nothing."""
    marker = "s3cr3t-marker"
    running = Bench(shell, tmp_path).start(
        ["/bin/sleep", "30"],
        environment={**PLAIN, "TOKEN": marker, "PUBLIC": "seen"},
        changed={"SECRETS": "TOKEN"},
    )
    found = _told(running)
    assert marker.encode() in found["sleep"]
    assert marker.encode() not in found["cat"]
    assert b"PUBLIC=seen" in found["cat"]


@EVERY_SHELL
def test_the_capture_speaks_no_locale_and_the_command_its_own(tmp_path: Path, shell: str) -> None:
    """Reading a locale's files would be a third of what the capture's `cat` costs."""
    given = {**PLAIN, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
    found = _told(Bench(shell, tmp_path).start(["/bin/sleep", "30"], environment=given))
    assert b"\0LC_ALL=C\0" in b"\0" + found["cat"]
    assert b"\0LC_ALL=C.UTF-8\0" in b"\0" + found["sleep"]


def _told(running: Running) -> dict[str, bytes]:
    """The environments of the capture and of its command, which is ended then."""
    found: dict[str, bytes] = {}
    give_up = time.monotonic() + 20
    while not {"cat", "sleep"} <= set(found) and time.monotonic() < give_up:
        found = _environments(running.pid)
    running.signal_group(signal.SIGTERM)
    running.wait()
    return found


def _environments(session: int) -> dict[str, bytes]:
    """Program's first word -> environment, of everything in a session but its leader."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if int(name) == session or os.getsid(int(name)) != session:
                continue
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            program = os.path.basename(words[0]).decode()
            if program == "busybox":
                program = words[1].decode()
            if not Path(f"/proc/{name}/cmdline").read_bytes().startswith(b"sh\0"):
                found[program] = Path(f"/proc/{name}/environ").read_bytes()
        except (OSError, IndexError):
            continue
    return found


@EVERY_SHELL
@pytest.mark.parametrize("names", ["A;id", "$(id)", "A-B", "A=1", "é"])
def test_a_name_that_is_none_ends_the_wrapper_before_anything_ran(
    tmp_path: Path, shell: str, names: str
) -> None:
    ended = Bench(shell, tmp_path).task("echo ran", changed={"SECRETS": names})
    assert (ended.code, ended.said, ended.log, ended.mark) == (125, b"", b"", 0)
