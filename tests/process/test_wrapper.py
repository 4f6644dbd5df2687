"""The wrapper, seen by the command it runs: arguments, environment, limits, descriptors, status.

Each test runs under every shell that may be a user's /bin/sh.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from qinglong_edge.core.limits import ARGUMENT_BYTES_MAX, ARGUMENTS_MAX, BINDING_VALUE_BYTES_MAX
from tests.process.harness import EVERY_SHELL, PYTHON, WRAPPER, Bench
from tests.support import OF_THE_C_LIBRARY

_EVERY_BYTE = bytes(range(1, 256))
_AWKWARD = {
    b"EMPTY": b"",
    b"LINES": b"one\ntwo\n\n",
    b"QUOTES": b'it\'s "quoted" `id` $(id) \\ $HOME',
    b"EMOJI": "⏰ 任务 \u2028".encode(),
    b"BYTES": _EVERY_BYTE,
    b"LARGE": b"0123456789abcdef" * (BINDING_VALUE_BYTES_MAX // 16),
    b"SPACE": b"  two  ",
    b"code": b"lower case",
    b"HOME": b"/root",
    b"LC_ALL": b"zz_ZZ",
}
# Names that mean something to some shell; the ones that would break a run are refused upstream.
_SPECIAL = """
    ATTY BASH_ENV CDPATH COLUMNS EDITOR ENV EUID FCEDIT FUNCNAME FUNCNEST GROUPS HISTFILE HISTSIZE
    HOME HOSTNAME IGNOREEOF LANG LANGUAGE LC_CTYPE LINES LOGNAME MAIL MAILCHECK MAILPATH NLSPATH
    OPTARG OSTYPE PS3 REPLY SECONDS SHELL TERM TIMEFORMAT TMOUT TMPDIR TZ UID USER cat echo exec
    find ln printf read trap ulimit umask
"""
_OWN_TO_BASH = """
    BASH BASHPID BASH_ARGV0 BASH_COMMAND BASH_SUBSHELL BASH_VERSINFO BASH_VERSION EPOCHREALTIME
    EPOCHSECONDS HISTCMD LINENO OPTERR POSIXLY_CORRECT PS1 PS2 PS4 RANDOM SRANDOM
"""
_SPOILT = {
    "HEAD": (None, "", "{", '{"exitCode":'),
    "START_MS": (None, "", "1e3", "-1", "08", "1" * 17),
    "START_CS": (None, "", "0x10", "1.5", "007"),
    "TOOLS": (None, "", "usr/bin"),
    "UMASK": (None, "", "8", "u=rwx", "00022"),
    "FSIZE": (None, "", "many", "-1", "010"),
    "CAPTURE": ("2", "yes"),
    "QUOTA": (None, "", "64k"),
    "FACT": (None, "", "{"),
    "FACT_TEMPORARY": (None, "", "fact.tmp"),
    "FACT_TARGET": (None, "", "fact"),
    "SYNC": (None, "", "no-such-tool"),
    "TEMPORARY": (None, "", "receipt.tmp"),
    "TARGET": (None, "", "receipt"),
}


@EVERY_SHELL
def test_every_exit_code_reaches_the_status_and_the_receipt(shell: str, tmp_path: Path) -> None:
    """ADR-0069 verification 4."""
    bench = Bench(shell, tmp_path)
    for codes in (range(first, first + 16) for first in range(0, 256, 16)):
        started = [bench.start(["/bin/sh", "-c", f"exit {code}"]) for code in codes]
        assert [running.wait().codes for running in started] == [(code, code) for code in codes]


@EVERY_SHELL
def test_a_command_that_cannot_run_says_why_in_its_log(shell: str, tmp_path: Path) -> None:
    bench = Bench(shell, tmp_path)
    missing = bench.run(["/nonexistent/command"])
    refused = bench.run(["/etc/passwd"])
    assert missing.codes == (127, 127)
    assert refused.codes == (126, 126)
    assert b"/nonexistent/command" in missing.log
    assert b"/etc/passwd" in refused.log


@EVERY_SHELL
def test_arguments_arrive_byte_for_byte(shell: str, tmp_path: Path) -> None:
    arguments = [
        *(b"", b"-n", b"--", b"-", b"*", b"~", b"a b", b"", b"\n", b"'\"`$(id)\\", b"%s\\n"),
        *(_EVERY_BYTE, "⏰ 任务".encode(), b"x" * ARGUMENT_BYTES_MAX),
    ]
    many = [b"%d" % number for number in range(ARGUMENTS_MAX)]
    bench = Bench(shell, tmp_path)
    for given in (arguments, many):
        ended = bench.run(["/usr/bin/printf", "%s\\0", *given])
        assert ended.log == b"".join(word + b"\0" for word in given)
        assert ended.codes == (0, 0)


@EVERY_SHELL
def test_a_task_of_arguments_sees_exactly_its_recipe(shell: str, tmp_path: Path) -> None:
    """No name is added (PWD, OLDPWD, SHLVL, _), lost or changed, no QL3_ name is left."""
    bench = Bench(shell, tmp_path)
    for path in (b"/usr/bin:/bin", b"", "/⏰\n:/opt/任务".encode(), _EVERY_BYTE):
        given = {**_AWKWARD, b"PATH": path}
        assert _environment(bench, given) == given


@EVERY_SHELL
def test_names_that_shells_use_arrive_unchanged(shell: str, tmp_path: Path) -> None:
    """A documented bound: a bash that serves as sh keeps some names for itself."""
    names = _SPECIAL.split() + (_OWN_TO_BASH.split() if shell != "bash" else [])
    given = {name.encode(): b"7" for name in names}
    assert _environment(Bench(shell, tmp_path), given) == given


@EVERY_SHELL
def test_an_empty_recipe_stays_empty(shell: str, tmp_path: Path) -> None:
    assert _environment(Bench(shell, tmp_path), {}) == {}


@EVERY_SHELL
def test_a_path_that_an_ash_would_make_up_is_kept_only_if_given(shell: str, tmp_path: Path) -> None:
    bench = Bench(shell, tmp_path)
    made_up = b"/sbin:/usr/sbin:/bin:/usr/bin"
    for given in (
        {b"PATH": made_up},
        {b"PATH": made_up, b"A": b"\n\1"},
        {b"A": b"x\nPATH=" + made_up},
        {b"MY_PATH": made_up},
    ):
        assert _environment(bench, given) == given


@EVERY_SHELL
def test_a_shell_task_sees_no_name_of_the_wrapper(shell: str, tmp_path: Path) -> None:
    """ADR-0069 verification 4."""
    ended = Bench(shell, tmp_path).task("set; export -p; env")
    assert ended.code == 0
    assert b"PATH=/usr/bin:/bin" in ended.log.replace(b"'", b"")
    assert not re.search(rb"QL3_|ql3_", ended.log)


@EVERY_SHELL
def test_the_umask_is_the_commands_and_not_the_wrappers(shell: str, tmp_path: Path) -> None:
    bench = Bench(shell, tmp_path)
    for umask in ("000", "022", "027", "0077"):
        running = bench.start(
            ["/bin/sh", "-c", "umask; head -c 70000 /dev/zero"], umask=umask, daemon=False
        )
        assert running.wait().log.startswith(b"%04o\n" % int(umask, 8))
        assert running.receipt.stat().st_mode & 0o777 == 0o600
        assert running.fact.stat().st_mode & 0o777 == 0o600


@EVERY_SHELL
def test_the_file_size_limit_is_the_one_before_the_quota(shell: str, tmp_path: Path) -> None:
    bench = Bench(shell, tmp_path)
    command = ["/bin/grep", "Max file size", "/proc/self/limits"]
    for blocks, said in ((None, b"unlimited"), ("4096", b"2097152"), ("unlimited", b"unlimited")):
        ended = bench.run(command, changed={} if blocks is None else {"FSIZE": blocks})
        assert ended.log.split()[3:5] == [said, b"unlimited"]


@EVERY_SHELL
@pytest.mark.parametrize("capture", [True, False])
def test_the_command_has_three_descriptors_and_a_session_without_a_terminal(
    shell: str, capture: bool, tmp_path: Path
) -> None:
    probe = """
import fcntl, os, sys
def there(fd):
    try: return os.readlink("/proc/self/fd/%d" % fd)
    except OSError: return None
try: terminal = os.open("/dev/tty", os.O_RDWR)
except OSError as error: terminal = error.strerror
seen = [there(fd) for fd in range(1024)]
import json
with open(sys.argv[1], "w") as opened:
    json.dump([seen[:3], [at for at in range(3, 1024) if seen[at]], terminal,
               [os.getpid(), os.getpgid(0), os.getsid(0)],
               fcntl.fcntl(1, fcntl.F_GETFL) & os.O_ACCMODE], opened)
"""
    bench = Bench(shell, tmp_path)
    answer = tmp_path / "answer"
    running = bench.start([*PYTHON, probe, str(answer)], capture=capture)
    ended = running.wait()
    assert (ended.codes, ended.word) == ((0, 0), "whole")
    (stdin, stdout, stderr), more, terminal, (pid, group, session), mode = json.loads(
        answer.read_bytes()
    )
    assert stdin == os.devnull
    assert stdout == stderr
    assert stdout.startswith("pipe:") if capture else stdout == os.devnull
    assert mode == os.O_WRONLY
    assert more == []
    assert isinstance(terminal, str), "there is a controlling terminal"
    assert group == session == running.pid != pid


@EVERY_SHELL
def test_no_signal_is_ignored_or_blocked_in_the_command(shell: str, tmp_path: Path) -> None:
    ended = Bench(shell, tmp_path).run(["/bin/grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"])
    blocked, ignored = (int(line.split()[1], 16) for line in ended.log.splitlines())
    assert (blocked, ignored & ~OF_THE_C_LIBRARY) == (0, 0)


@EVERY_SHELL
def test_the_mark_is_one_byte_set_before_the_command_begins(shell: str, tmp_path: Path) -> None:
    """The command looks at fd 1 of its parent, the wrapper, as a stop does."""
    probe = "import os; os.write(1, b'%d' % os.stat(f'/proc/{os.getppid()}/fd/1').st_size)"
    ended = Bench(shell, tmp_path).run([*PYTHON, probe])
    assert (ended.log, ended.mark) == (b"1", 1)


@EVERY_SHELL
def test_an_incomplete_contract_runs_nothing(shell: str, tmp_path: Path) -> None:
    bench = Bench(shell, tmp_path)
    effect = tmp_path / "effect"
    for name, values in _SPOILT.items():
        for value in values:
            ended = bench.run(["/bin/touch", str(effect)], changed={name: value})
            assert ended.code == 125, (name, value)
            assert ended.mark == 0
            assert (ended.said, ended.published, ended.fact, ended.log) == (b"", None, None, b"")
    assert not effect.exists()


@EVERY_SHELL
def test_a_command_without_a_program_runs_nothing(shell: str, tmp_path: Path) -> None:
    bench = Bench(shell, tmp_path)
    for argv in ([], [""], ["-c", "true"]):
        ended = bench.run(argv, environment={"PATH": "/usr/bin:/bin"})
        assert (ended.code, ended.mark, ended.said) == (125, 0, b"")


@EVERY_SHELL
def test_a_program_is_found_on_the_path_of_its_own_recipe(shell: str, tmp_path: Path) -> None:
    bench = Bench(shell, tmp_path)
    program = tmp_path / "own-tool"
    program.write_text("#!/bin/sh\nexit 9\n")
    program.chmod(0o755)
    assert bench.run(["own-tool"], environment={"PATH": str(tmp_path)}).codes == (9, 9)
    assert bench.run(["own-tool"], environment={"PATH": "/bin"}).codes == (127, 127)


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_a_missing_tool_runs_nothing(shell: str, tmp_path: Path) -> None:
    bench = Bench(shell, tmp_path)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("cat", "find", "grep", "ln", "rm", "tr", "sync"):
        (tools / name).symlink_to(f"/bin/{name}")
    assert bench.task("exit 3", changed={"TOOLS": str(tools)}).codes == (3, 3)
    for missing in sorted(tools.iterdir()):
        missing.rename(tmp_path / "aside")
        ended = bench.task("exit 3", changed={"TOOLS": str(tools)})
        assert (ended.code, ended.mark, ended.log, ended.said) == (125, 0, b"", b"")
        (tmp_path / "aside").rename(missing)


def test_the_script_is_small_and_uses_only_what_every_router_has() -> None:
    text = WRAPPER.read_text("ascii")
    code = re.sub(r"#( .*)?$", "", text, flags=re.MULTILINE)
    lacking = r"\b(stat|timeout|realpath|nohup|od|base64|link|setsid|mkfifo|date|sleep|local)\b"
    assert len(text) < 6_000
    assert not re.search(lacking, code)
    assert not re.search(r"[^\x0a\x20-\x7e]", text)
    assert max(map(len, text.splitlines())) <= 100


def _environment(bench: Bench, given: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """What an argv task is told, from /proc so that no tool edits it."""
    ended = bench.run(["/bin/cat", "/proc/self/environ"], environment=given, quota=1_048_576)
    assert ended.codes == (0, 0)
    entries = [entry.partition(b"=") for entry in ended.log.split(b"\0")[:-1]]
    assert len({name for name, _, _ in entries}) == len(entries)
    return {name: value for name, _, value in entries}
