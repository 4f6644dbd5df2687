"""How the musl tree is made: what needs no compiler is tried everywhere."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools import debian
from tests.tools.musl import cc, packages, parts, tree

GNU_STACK = 0x6474E551


def stack_sizes(program: bytes) -> list[int]:
    """p_memsz of each PT_GNU_STACK of a 64-bit program."""
    (table,) = struct.unpack_from("<Q", program, 32)
    size, count = struct.unpack_from("<HH", program, 54)
    heads = [program[at : at + size] for at in range(table, table + size * count, size)]
    return [
        struct.unpack_from("<Q", head, 40)[0]
        for head in heads
        if struct.unpack_from("<I", head)[0] == GNU_STACK
    ]


def test_options_that_the_compiler_refuses_are_translated_or_left_out() -> None:
    given = ["-O2", "-g", "-I/usr/include/x", "-Iinclude", "-Wl,-hlibz.so.1", "-L/lib", "-o", "x"]
    assert cc.translated(given) == ["-Os", "-Iinclude", "-Wl,--soname,libz.so.1", "-o", "x"]


def test_the_stack_that_a_linker_wrote_into_a_program_is_taken_out(tmp_path: Path) -> None:
    program = tmp_path / "python"
    shutil.copy(os.path.realpath(sys.executable), program)
    content = bytearray(program.read_bytes())
    (table,) = struct.unpack_from("<Q", content, 32)
    size, count = struct.unpack_from("<HH", content, 54)
    for at in range(table, table + size * count, size):
        if struct.unpack_from("<I", content, at)[0] == GNU_STACK:
            struct.pack_into("<Q", content, at + 40, 16 << 20)
    program.write_bytes(content)
    assert stack_sizes(program.read_bytes()) == [16 << 20]
    parts.own_stack(str(program))
    assert stack_sizes(program.read_bytes()) == [0]


def test_the_configuration_of_busybox_says_each_thing_once() -> None:
    text = Path(parts.CONFIG).read_text(encoding="ascii")
    words = [word for line in text.splitlines()[1:] for word in line.split()]
    assert len({word.partition("=")[0] for word in words}) == len(words)
    on, values = parts.configured()
    assert {"ASH", "FSYNC", "STATIC"} <= on
    assert not on & {"BUSYBOX", "STAT", "TIMEOUT", "FLOAT_DURATION", "REALPATH"}
    assert values["PID_FILE_PATH"] == '"/var/run"'


def test_a_recipe_is_followed_once_and_its_forerunner_goes(tmp_path: Path) -> None:
    made: list[str] = []

    def make(folder: str) -> None:
        made.append(folder)
        Path(folder, "file").write_text("x", encoding="utf-8")

    first = tree._kept(str(tmp_path), "tree", ["a"], make)
    assert tree._kept(str(tmp_path), "tree", ["a"], make) == first
    second = tree._kept(str(tmp_path), "tree", ["a", "b"], make)
    assert len(made) == 2
    assert os.listdir(tmp_path) == [os.path.basename(second)]


def test_a_machine_whose_apt_knows_no_debian_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(*_command: object, **_options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 0, answer, "")

    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(subprocess, "run", told)
    answer = "Other main Other there\nDebian main Debian-Security b\nDebian main Debian here\n"
    assert packages._place() == "here"
    answer = "Other main Other there\n"
    with pytest.raises(debian.UnobtainableError, match="no Debian"):
        packages._place()
