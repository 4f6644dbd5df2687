"""Secrets from the keyboard to the task, keys from first to last: nothing shows a value."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pty
import resource
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.app import state
from qinglong_edge.app.client import Client
from qinglong_edge.app.sealing import Sealer
from qinglong_edge.core.errors import EdgeError, Refused, Unavailable
from qinglong_edge.core.limits import SECRET_PAGE_MAX, SECRET_VALUE_BYTES_MAX
from qinglong_edge.secret import keyring
from tests.e2e.kit import WITHIN_S, Kit
from tests.support import until

VALUE = 'a"b\n$(id)é '.encode()
DIGEST = 'printf %s "$TOKEN" | sha256sum'


def put(kit: Kit, name: str, value: bytes) -> Any:
    """`secret set`."""
    return kit.ok("secret", "set", name, stdin=value)


def digest_of(kit: Kit, run: Any) -> str:
    """What the task of that run wrote."""
    assert run["status"] == "succeeded", run
    return str(kit.ok("log", str(run["number"]))["text"].split()[0])


def traces(kit: Kit, value: bytes) -> list[str]:
    """Files of the state and the runtime directory that hold a value."""
    found = [path for path in kit.state.rglob("*") if path.is_file()]
    return [str(path) for path in found if value in path.read_bytes()]


def keys(kit: Kit) -> dict[str, int]:
    """Key -> rows sealed under it."""
    return {each["key"]: each["envelopes"] for each in kit.ok("keyring", "status")["keys"]}


def test_a_task_gets_a_secret_byte_for_byte_and_nothing_else_does(kit: Kit) -> None:
    told = put(kit, "TOKEN", VALUE)
    assert told == {"secret": "TOKEN", "version": 1, "status": "inserted", "keyring_created": True}
    kit.ok("task", "add", "t", "--secret", "TOKEN=TOKEN", "--shell", DIGEST)
    with kit.daemon() as daemon:
        run = kit.ok("start", "t", "--wait")
        assert digest_of(kit, run) == hashlib.sha256(VALUE).hexdigest()
        maps = Path(f"/proc/{daemon.pid}/maps").read_text(encoding="utf-8").lower()
        assert not any(word in maps for word in ("cryptography", "libcrypto", "libssl", "_rust"))
        for path in ("environ", "cmdline"):
            assert VALUE not in Path(f"/proc/{daemon.pid}/{path}").read_bytes()
        for part in (VALUE, VALUE[:3], VALUE.rstrip()):
            assert traces(kit, part) == []
    shown = json.dumps([kit.ok("task", "show", "t"), kit.ok("secret", "list"), kit.ok("audit")])
    assert "$(id)" not in shown
    assert '"secret": "TOKEN"' in shown


@pytest.mark.parametrize(
    "value",
    [b"", b"\n", b"x\n", b"x\r\n\n", b" \t x \t ", "🚀'\"\\$`".encode(), b"a" * 65_536],
    ids=["empty", "line end", "one line", "lines", "blanks", "quotes", "large"],
)
def test_every_byte_of_standard_input_is_the_value(kit: Kit, value: bytes) -> None:
    put(kit, "TOKEN", value)
    kit.ok("task", "add", "t", "--secret", "TOKEN=TOKEN", "--shell", DIGEST)
    run = kit.ok("start", "t", "--wait")
    assert digest_of(kit, run) == hashlib.sha256(value).hexdigest()


@pytest.mark.parametrize("value", [b"\xff", b"a\0b", b"a" * (SECRET_VALUE_BYTES_MAX + 1)])
def test_what_cannot_become_a_variable_is_refused(kit: Kit, value: bytes) -> None:
    kit.no("secret", "set", "S", stdin=value, status=2, code="secret_value_invalid")
    kit.no("secret", "set", "a\nb", stdin=b"x", status=2, code="secret_name_invalid")
    assert not (kit.state / "keyring.json").exists()
    assert kit.ok("secret", "list") == {"secrets": []}


def test_secrets_that_are_too_large_together_are_refused_before_there_is_a_task(kit: Kit) -> None:
    """Each fits; a start would find out only once they are open, and end the run for good."""
    for number in range(5):
        put(kit, f"S{number}", b"a" * (60_000 if number else 0))
    bound = [word for number in range(5) for word in ("--secret", f"V{number}=S{number}")]
    kit.ok("task", "add", "t", *bound, "--shell", "exit 0")
    assert kit.ok("start", "t", "--wait")["status"] == "succeeded"
    put(kit, "S0", b"a" * 60_000)
    with kit.unchanged():
        for words in (("task", "add", "u"), ("task", "add", "t", "--replace")):
            error = kit.no(*words, *bound, "--shell", "exit 0", status=2, code="bindings_too_large")
            assert error["facts"]["bytes"] > error["facts"]["bytes_max"] == 262_144
        kit.no("task", "set", "t", "--nice", "5", status=2, code="bindings_too_large")
    kit.ok("task", "set", "t", "--unset-env", "V4")
    assert kit.ok("start", "t", "--wait")["status"] == "succeeded"


def test_one_secret_counts_as_often_as_it_is_bound(kit: Kit) -> None:
    put(kit, "S", b"a" * 65_536)
    bound = [word for number in range(4) for word in ("--secret", f"V{number}=S")]
    kit.no("task", "add", "t", *bound, "--shell", "exit 0", status=2, code="bindings_too_large")
    kit.ok("task", "add", "t", *bound[2:], "--shell", "exit 0")
    assert kit.ok("start", "t", "--wait")["status"] == "succeeded"


@pytest.mark.parametrize(
    "words", [("S", "hush"), ("S=hush",), ("S", "--value", "hush"), ("S", "--", "hush")]
)
def test_a_value_in_an_argument_is_refused_and_not_repeated(
    kit: Kit, words: tuple[str, ...]
) -> None:
    told = kit.run("secret", "set", *words, stdin=b"x")
    assert told.status == 2
    assert "hush" not in told.out + told.err
    assert kit.ok("secret", "list") == {"secrets": []}
    kit.no("secret", "set", "S", "hush", status=2, code="secret_on_command_line")
    kit.no("secret", "set", status=2, code="usage")


def typed(kit: Kit, keystrokes: bytes) -> bytes:
    """Type a secret on a terminal; what the terminal showed."""
    main, end = pty.openpty()
    process = subprocess.Popen(
        kit.command("secret", "set", "TOKEN"),
        stdin=end,
        stdout=subprocess.PIPE,
        stderr=end,
        cwd=os.path.dirname(os.path.dirname(os.path.dirname(__file__))),
        env=kit.environment,
        start_new_session=True,
    )
    shown = b""
    try:
        while not shown.endswith(b"shown): "):
            shown += os.read(main, 1024)
        limits = Path(f"/proc/{process.pid}/limits").read_text(encoding="utf-8")
        (core,) = [line.split()[4:6] for line in limits.splitlines() if "core file" in line]
        assert core in (["1", "1"], ["0", "0"])
        sent = 0
        while sent < len(keystrokes):
            sent += os.write(main, keystrokes[sent : sent + 512])
        assert process.wait(WITHIN_S) == 0, shown
        assert termios.tcgetattr(end)[3] & termios.ECHO
        os.set_blocking(main, False)
        shown += os.read(main, 65_536)
    finally:
        process.kill()
        process.wait(WITHIN_S)
        if process.stdout is not None:
            process.stdout.close()
        os.close(main)
        os.close(end)
    return shown


@pytest.mark.parametrize(
    ("keystrokes", "value"),
    [
        (b"hush\n", b"hush"),
        (b"hush \r", b"hush "),
        ("hué\x7fsh\n".encode(), b"hush"),
        (b"\x7f\x7fhush\x04", b"hush"),
        (b"h" * 20_000 + b"\n", b"h" * 20_000),
    ],
    ids=["line", "return", "erased", "end", "long"],
)
def test_what_is_typed_is_not_shown_and_ends_before_the_line_end(
    kit: Kit, keystrokes: bytes, value: bytes
) -> None:
    assert b"h" not in typed(kit, keystrokes).replace(b"(not shown)", b"")
    kit.ok("task", "add", "t", "--secret", "TOKEN=TOKEN", "--shell", DIGEST)
    run = kit.ok("start", "t", "--wait")
    assert digest_of(kit, run) == hashlib.sha256(value).hexdigest()


def test_a_dotenv_file_becomes_secrets_or_variables_with_a_report(kit: Kit) -> None:
    path = kit.file("env")
    path.write_bytes("A=é🚀\nB='hush \n'\nA=2 # last\nQL3_X=1\nbroken hush\n".encode())
    report = {
        "imported": ["B", "A"],
        "refused": [
            {"line": 5, "code": "binding_name_refused"},
            {"line": 6, "code": "assignment_missing"},
        ],
        "warnings": [{"line": 4, "code": "variable_repeated"}],
    }

    def brief(told: Any) -> Any:
        for each in (*told["refused"], *told["warnings"]):
            assert each.pop("message")
        return {name: told[name] for name in report}

    told = kit.ok("secret", "set", "--env-file", str(path))
    assert "hush" not in json.dumps(told)
    assert brief(told) == report
    assert [each["secret"] for each in kit.ok("secret", "list")["secrets"]] == ["A", "B"]
    words = ("--env-file", str(path), "--env", "A=3", "--shell", "true")
    assert brief(kit.ok("task", "add", "t", *words)) == report
    values = {each["name"]: each["value"] for each in kit.ok("task", "show", "t")["environment"]}
    assert (values["A"], values["B"]) == ("3", "hush \n")
    kit.ok("task", "set", "t", "--env-file", "-", stdin=b"A=4")
    values = {each["name"]: each["value"] for each in kit.ok("task", "show", "t")["environment"]}
    assert (values["A"], values["B"]) == ("4", "hush \n")
    kit.no("task", "add", "u", "--env-file", str(kit.file("no")), status=2, code="file_unreadable")
    text = kit.run("secret", "set", "--env-file", str(path)).out
    assert "B: version 2\n" in text
    assert "line 6: refused assignment_missing" in text


def test_a_secret_is_listed_with_its_tasks_and_removed_when_none_binds_it(kit: Kit) -> None:
    kit.no("task", "add", "t", "--secret", "A=S", "--", "true", status=3, code="secret_unknown")
    put(kit, "S", b"1")
    assert put(kit, "S", b"2")["version"] == 2
    kit.ok("task", "add", "t", "--secret", "A=S", "--", "true")
    (listed,) = kit.ok("secret", "list")["secrets"]
    assert listed.items() >= {"secret": "S", "version": 2, "bound_by": ["t"]}.items()
    assert "S       2" in kit.run("secret", "list").out
    assert kit("secret", "remove", "S")[0] == 3
    kit.ok("task", "remove", "t")
    assert kit.ok("secret", "remove", "S") == {"secret": "S", "removed": True}
    assert kit.ok("secret", "list") == {"secrets": []}
    assert put(kit, "S", b"3")["version"] == 3


def succeeded(kit: Kit) -> int:
    """How many runs did."""
    return len(kit.ok("runs", "--status", "succeeded")["runs"])


def reached(kit: Kit, count: int) -> bool:
    """Whether that many did."""
    return succeeded(kit) >= count


def test_keys_are_rotated_under_a_task_that_runs_every_second(kit: Kit) -> None:
    put(kit, "TOKEN", VALUE)
    kit.ok(
        *("task", "add", "t", "--every", "1s", "--secret", "TOKEN=TOKEN", "--shell", DIGEST),
        *("--overlap", "queue"),
    )
    (old,) = keys(kit)
    with kit.daemon():
        first = kit.ok("backup", str(kit.file("b")), "--with-keyring")
        for words in (("rotate",), ("rekey",), ("retire", old)):
            kit.ok("keyring", *words)
            wanted = succeeded(kit) + 2
            until(functools.partial(reached, kit, wanted), WITHIN_S)
        assert old not in keys(kit)
        kit.ok("pause")
        until(lambda: not kit.ok("status")["active"])
        assert {each["status"] for each in kit.ok("runs")["runs"]} == {"succeeded"}
    assert VALUE not in b"".join(path.read_bytes() for path in kit.place.glob("b*"))
    fresh = Kit(kit.file("fresh"))
    keyring_now = str(kit.state / "keyring.json")
    restore = ("restore", str(first["file"]), "--keyring")
    fresh.no(*restore, keyring_now, status=3, code="keyring_mismatch")
    fresh.ok(*restore, first["keyring"])
    run = fresh.ok("start", "t", "--wait")
    assert digest_of(fresh, run) == hashlib.sha256(VALUE).hexdigest()


def test_a_key_is_retired_only_when_nothing_needs_it(kit: Kit) -> None:
    for number in range(SECRET_PAGE_MAX + 3):
        put(kit, f"S{number:02}", b"x")
    (old,) = keys(kit)
    kit.no("keyring", "retire", old, status=3, code="keyring_key_active")
    kit.no("keyring", "retire", "none", status=3, code="keyring_key_unknown")
    active = kit.ok("keyring", "rotate")["active"]
    assert keys(kit) == {old: SECRET_PAGE_MAX + 3, active: 0}
    put(kit, "S00", b"y")
    kit.no("keyring", "retire", old, status=3, code="keyring_key_needed")
    assert kit.ok("keyring", "rekey")["rekeyed"] == SECRET_PAGE_MAX + 3
    assert kit.ok("keyring", "rekey")["rekeyed"] == 0
    kit.ok("keyring", "retire", old)
    assert keys(kit) == {active: SECRET_PAGE_MAX + 4}


def test_a_lost_keyring_is_never_replaced(kit: Kit) -> None:
    put(kit, "TOKEN", b"x")
    kit.ok("task", "add", "t", "--secret", "TOKEN=TOKEN", "--", "true")
    kit.ok("task", "add", "u", "--", "true")
    file = kit.state / "keyring.json"
    kept = file.read_bytes()
    file.unlink()
    for words in (("secret", "set", "NEW"), ("keyring", "init"), ("keyring", "rotate")):
        error = kit.no(*words, status=4, code="secret_provider_unavailable")
        assert error["facts"]["reason"] == "keyring_missing"
    assert kit.ok("keyring", "status")["reason"] == "keyring_missing"
    with kit.daemon():
        _status, run = kit("start", "t", "--wait")
        assert (run["status"], run["error_code"]) == ("failed", "secret_provider_unavailable")
        assert kit.ok("start", "u", "--wait")["status"] == "succeeded"
        assert not file.exists()
        file.write_bytes(kept)
        file.chmod(0o644)
        told = kit.run("keyring", "status").out
        assert "the keyring cannot be used: keyring_unsafe" in told
        _status, run = kit("start", "t", "--wait")
        assert (run["status"], run["error_code"]) == ("failed", "secret_provider_unavailable")
        until(lambda: "keyring_unsafe" in kit.ok("status")["degraded"])
        file.chmod(0o600)
        assert kit.ok("start", "t", "--wait")["status"] == "succeeded"
    assert file.read_bytes() == kept


def test_a_keyring_is_made_once_and_init_says_so(kit: Kit) -> None:
    made = kit.ok("keyring", "init")
    assert made["created"]
    assert made["keys"] == [{"key": made["active"], "envelopes": 0, "known": True}]
    assert kit.ok("keyring", "init") == {**made, "created": False}
    assert not put(kit, "S", b"x")["keyring_created"]


def test_commands_at_the_same_time_share_one_keyring(kit: Kit) -> None:
    with kit.daemon():
        started = [
            subprocess.Popen(
                kit.command("--json", "secret", "set", f"S{number}"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=kit.environment,
            )
            for number in range(4)
        ]
        told = [json.loads(each.communicate(b"x", timeout=WITHIN_S)[0]) for each in started]
    assert sum(each["keyring_created"] for each in told) == 1, told
    assert list(keys(kit).values()) == [4]


@pytest.fixture
def unanswered(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let the first call of a method be done, and its answer be lost."""

    def lose(method: str) -> None:
        real = Client.call
        lost: list[str] = []

        def call(client: Client, name: str, params: dict[str, Any]) -> Any:
            answer = real(client, name, params)
            if name == method and not lost:
                lost.append(name)
                raise Unavailable("daemon_gone", "Lost.")
            return answer

        monkeypatch.setattr(Client, "call", call)

    return lose


@pytest.mark.parametrize(
    "method", ["secret.append", "secret.copy", "keyring.retire", "keyring.intent"]
)
def test_a_lost_answer_is_asked_for_again_and_nothing_is_done_twice(
    kit: Kit, unanswered: Callable[[str], None], method: str
) -> None:
    unanswered(method)
    with Sealer(state.place(str(kit.state), None)) as sealer:
        assert sealer.put("S", VALUE)["version"] == 1
        old = sealer.status()["active"]
        active = sealer.rotate()["active"]
        sealer.rekey(lambda _count: None)
        assert sealer.retire(old)["keys"] == [{"key": active, "envelopes": 1, "known": True}]
    (listed,) = kit.ok("secret", "list")["secrets"]
    assert listed["version"] == 1


def test_a_rekey_that_was_cut_short_goes_on(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(SECRET_PAGE_MAX + 2):
        put(kit, f"S{number:02}", b"x")
    where = state.place(str(kit.state), None)

    def stop(_count: int) -> None:
        raise KeyboardInterrupt

    with Sealer(where) as sealer:
        sealer.rotate()
        with pytest.raises(KeyboardInterrupt):
            sealer.rekey(stop)
        counts: list[int] = []
        assert sealer.rekey(counts.append)["rekeyed"] == 2
    assert counts == [2]


def test_a_retirement_that_was_cut_short_goes_on(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    put(kit, "S", b"x")
    where = state.place(str(kit.state), None)

    def stop(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    with Sealer(where) as sealer:
        (old,) = keys_of(sealer)
        sealer.rotate()
        sealer.rekey(lambda _count: None)
        with monkeypatch.context() as patched:
            patched.setattr(keyring, "retire", stop)
            with pytest.raises(KeyboardInterrupt):
                sealer.retire(old)
        assert keys_of(sealer)[old] == 0
        sealer.retire(old)
        assert old not in keys_of(sealer)


def keys_of(sealer: Sealer) -> dict[str, int]:
    """Key -> rows sealed under it."""
    return {each["key"]: each["envelopes"] for each in sealer.status()["keys"]}


def test_a_version_that_does_not_open_stops_rekey_and_retirement(kit: Kit) -> None:
    put(kit, "S", b"x")
    (old,) = keys(kit)
    kit.ok("keyring", "rotate")
    kit.sql("UPDATE secret_envelope SET auth_tag = zeroblob(16)")
    assert kit("keyring", "rekey")[0] == 4
    assert kit("keyring", "retire", old)[0] == 3
    assert keys(kit)[old] == 1


def test_another_value_under_the_same_mutation_is_told(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(kit, "S", b"x")
    monkeypatch.setattr(os, "urandom", lambda count: b"\1" * count)
    where = state.place(str(kit.state), None)
    with Sealer(where) as sealer:
        assert sealer.put("S", b"y")["version"] == 2
        with pytest.raises(Refused) as caught:
            sealer.put("S", b"z")
    assert caught.value.code == "secret_mutation_conflict"


def test_without_cryptography_everything_but_secrets_works(kit: Kit) -> None:
    put(kit, "S", b"x")
    kit.ok("task", "add", "t", "--secret", "S=S", "--", "true")
    kit.ok("task", "add", "u", "--", "true")
    where = state.place(str(kit.state), None)
    patched = pytest.MonkeyPatch()
    with patched.context() as context:
        context.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
        with Sealer(where) as sealer, pytest.raises(EdgeError) as caught:
            sealer.put("S", b"y")
    assert caught.value.code == "secret_provider_unavailable"
    assert caught.value.facts["reason"] == "cryptography_missing"


def test_whoever_may_open_a_secret_leaves_no_core_dump(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command that seals or opens, whatever its name: `env remove`, `keyring rekey` too."""
    limited: list[int] = []
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _what: unlimited)
    monkeypatch.setattr(resource, "setrlimit", lambda what, _limits: limited.append(what))
    nobody: Any = None
    Sealer(nobody, client=object())  # type: ignore[arg-type]
    assert limited == [resource.RLIMIT_CORE]
