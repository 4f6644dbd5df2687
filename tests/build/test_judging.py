"""Cut disks are judged one after the other, and each is given back whatever is found on it."""

from __future__ import annotations

import io
import json
import sqlite3
import subprocess
from typing import Any

import pytest

from tests.tools.router.judging import Judge, Marks, judge


class Disk:
    """Counts what is done with it; it may refuse to be mounted."""

    def __init__(self, refusal: str = "") -> None:
        self.refusal = refusal
        self.done: list[str] = []

    def mount(self) -> None:
        self.done.append("mount")
        if self.refusal:
            raise RuntimeError(self.refusal)

    def unmount(self) -> None:
        self.done.append("unmount")


class Looked(Judge):
    """Finds what the marks say is to be found."""

    failure: BaseException | None = None

    def _give(self) -> None:
        if self.failure is not None:
            raise self.failure
        self.broken += [mark["lost"] for mark in self._marks]

    def _said(self) -> str:
        return "; it said no"

    def _end(self) -> None:
        assert isinstance(self._disk, Disk)
        self._disk.done.append("end")


@pytest.mark.parametrize(
    "failure",
    [
        AssertionError("why"),
        OSError("why"),
        RuntimeError("why"),
        sqlite3.Error("why"),
        subprocess.TimeoutExpired("why", 1),
    ],
)
def test_a_program_that_cannot_go_on_is_a_broken_promise_and_the_disk_is_given_back(
    failure: BaseException,
) -> None:
    disk = Disk()
    looked = Looked(disk, [])
    looked.failure = failure
    looked.give()
    (said,) = looked.broken
    assert said.startswith("it does not go on: ")
    assert "why" in said
    assert said.endswith("; it said no")
    assert disk.done == ["mount", "end", "unmount"]


def test_an_unexpected_failure_gives_the_disk_back_too() -> None:
    disk = Disk()
    looked = Looked(disk, [])
    looked.failure = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        looked.give()
    assert disk.done == ["mount", "end", "unmount"]


def test_a_disk_that_cannot_be_mounted_is_a_broken_promise() -> None:
    disk = Disk("its journal is gone")
    looked = Looked(disk, [])
    looked.give()
    assert looked.broken == ["the disk cannot be mounted: its journal is gone"]
    assert disk.done == ["mount"]


def test_each_line_of_marks_gets_a_line_of_broken_promises(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    marks: list[Any] = [[], [{"lost": "run 7"}]]
    lines = "".join(f"{json.dumps(each)}\n" for each in marks)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{lines}\nnever read\n"))
    disk = Disk()

    def look(given: Marks) -> Judge:
        return Looked(disk, given)

    judge(look)
    ready, *answers = capsys.readouterr().out.splitlines()
    assert ready == "ready"
    assert [json.loads(each)["broken"] for each in answers] == [[], ["run 7"]]
    assert disk.done == ["mount", "end", "unmount"] * 2
