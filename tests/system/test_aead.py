"""The cipher: where its package is found, and what there is without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from qinglong_edge.app import about
from qinglong_edge.core.errors import Unavailable
from qinglong_edge.system import aead, memory
from tests.support import ROOT

_PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from qinglong_edge.system import aead
before = [name for name in sys.modules if name.partition(".")[0] in ("cryptography", "site")]
print(before, aead.available(), *sys.path[-1:])
if sys.argv[2:]:
    sys.executable = sys.argv[2]
    sys.path = sys.path[:-1]
    aead.available()
    print([path for path in sys.path if not path.startswith("/")])
"""

_SMALL = """
import sys
from qinglong_edge.core.errors import Unavailable
from qinglong_edge.system import aead, memory
memory.MEMINFO = sys.argv[1]
try:
    aead.require()
except Unavailable as error:
    print(error.code, *error.facts.values())
print("cryptography" in sys.modules)
"""


def run(*arguments: str, cwd: Path) -> str:
    command = [sys.executable, "-I", "-S", "-B", "-c", _PROGRAM, ROOT, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=cwd)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_an_interpreter_without_site_packages_finds_the_package_late(tmp_path: Path) -> None:
    told = run(cwd=tmp_path)
    assert told.startswith("[] True /")
    assert told.strip().endswith(("site-packages", "dist-packages"))


def test_nothing_is_ever_imported_from_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "pyvenv.cfg").touch()
    lib = tmp_path / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    (lib / "site-packages").mkdir(parents=True)
    assert run("python3", cwd=tmp_path).splitlines()[-1] == "[]"


def test_a_key_of_another_size_is_a_bug_and_no_answer() -> None:
    with pytest.raises(ValueError, match="128, 192, or 256"):
        aead.seal(bytes(31), bytes(12), b"", b"")


def test_the_self_test_tells_of_the_cipher_and_of_its_absence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert about.selftest()[-1] == {"name": "aes_gcm", "ok": True}
    for module in ("cryptography", "cryptography.hazmat.primitives.ciphers.aead"):
        monkeypatch.setitem(sys.modules, module, None)
    assert about.selftest()[-1] == {"name": "aes_gcm", "ok": None}
    with pytest.raises(Unavailable) as caught:
        aead.require()
    assert caught.value.code == "secret_provider_unavailable"
    assert "cryptography" in caught.value.message


def test_a_package_that_is_there_and_does_not_load_is_told_and_is_no_bug(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its library of old ciphers is a package of its own on a router, and is not needed."""

    class Broken:
        def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
            if name == "cryptography.hazmat.primitives.ciphers.aead":
                raise RuntimeError("no provider")

    monkeypatch.delenv("CRYPTOGRAPHY_OPENSSL_NO_LEGACY", raising=False)
    monkeypatch.delitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(Unavailable) as caught:
        aead.require()
    assert caught.value.code == "secret_provider_unavailable"
    assert caught.value.facts["reason"] == "cryptography_broken"
    assert os.environ["CRYPTOGRAPHY_OPENSSL_NO_LEGACY"] == "1"


def test_a_box_with_too_little_memory_refuses_before_it_loads_the_cipher(tmp_path: Path) -> None:
    """A router without swap would stand still for minutes, and then lose a process."""
    meminfo = tmp_path / "meminfo"

    def told(text: str) -> list[str]:
        meminfo.write_text(text)
        command = [sys.executable, "-B", "-c", _SMALL, str(meminfo)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.split()

    few = "MemFree: 90000 kB\nMemAvailable: 24000 kB\nSwapFree: 575 kB\n"
    assert told(few) == ["secret_provider_unavailable", "memory_low", "24575", "False"]
    assert told("MemAvailable: 24000 kB\nSwapFree: 576 kB\n") == ["True"]


@pytest.mark.parametrize("text", ["MemTotal: 1 kB\n", "MemAvailable:\n", "", None])
def test_a_kernel_that_does_not_say_how_much_is_free_refuses_nothing(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meminfo = tmp_path / "meminfo"
    if text is not None:
        meminfo.write_text(text)
    monkeypatch.setattr(memory, "MEMINFO", str(meminfo))
    assert memory.free_kib() is None
    assert aead.available()
