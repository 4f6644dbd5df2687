"""The product's own known-answer test."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qinglong_edge.core import canonical, vectors
from qinglong_edge.core.errors import Invalid


def boom() -> bool:
    raise RuntimeError


def refuse() -> bool:
    raise Invalid("x", "y")


def test_every_answer_holds_here() -> None:
    assert [result for result in vectors.run() if result != {**result, "ok": True}] == []


@pytest.mark.parametrize(("name", "check"), vectors.checks(), ids=lambda value: str(value)[:24])
def test_each_check_gives_true_by_itself(name: str, check: Callable[[], bool]) -> None:
    assert check() is True


def test_no_family_has_vanished() -> None:
    names = [name for name, _check in vectors.checks()]
    assert len(set(names)) == len(names)
    assert set(names) >= {
        "base64url",
        "callback_token",
        "canonical_json",
        "context_recipe",
        "log_id",
        "log_tombstone",
        "process_handle",
        "process_stat",
        "receipt",
        "receipt_refusals",
        "secret_envelope",
        "secret_ref",
        "sha256",
        "truncation_fact",
        "uuid7",
    }


def test_the_answer_names_each_check_in_its_order() -> None:
    assert [result["name"] for result in vectors.run()] == [name for name, _ in vectors.checks()]


@pytest.mark.parametrize("check", [boom, refuse, lambda: False, lambda: None, lambda: 1])
def test_a_wrong_answer_is_told_and_never_raised(
    check: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors, "checks", lambda: [("broken", check), ("fine", lambda: True)])
    assert vectors.run() == [{"name": "broken", "ok": False}, {"name": "fine", "ok": True}]


def test_a_box_whose_digest_is_wrong_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical, "sha256_hex", lambda _data: "0" * 64)
    wrong = {result["name"] for result in vectors.run() if not result["ok"]}
    assert wrong >= {"sha256", "receipt", "context_recipe", "log_id"}


def test_a_box_whose_json_escapes_more_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def escaping(value: object) -> bytes:
        return json.dumps(value, separators=(",", ":")).encode()

    monkeypatch.setattr(canonical, "encode", escaping)
    wrong = {result["name"] for result in vectors.run() if not result["ok"]}
    assert wrong >= {"canonical_json", "context_recipe"}


def test_the_formats_load_neither_libcrypto_nor_a_heavy_module() -> None:
    """What the resident process must not map: the digest, the tokens and their comparison."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from qinglong_edge.core import vectors\n"
        "assert all(result['ok'] for result in vectors.run())\n"
        "heavy = 'hashlib _hashlib hmac base64 uuid secrets dataclasses typing logging'.split()\n"
        "print(*sorted(set(heavy) & set(sys.modules)))\n"
    )
    root = Path(__file__).parents[2]
    command = [sys.executable, "-I", "-S", "-B", "-c", program, str(root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")
