"""A real crond of busybox reads schedules as our model of it does, and the importer with it.

At its most verbose level crond prints the marks of each field that it reads. It runs in a folder of
its own as its root, so that its pid file and its jobs' shell are not this machine's.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from qinglong_edge.core import crontab
from tests import crond_model
from tests.skipping import unless_had
from tests.support import ROOT, until
from tests.tools import debian, testing

LINES = 400
SENTINEL = "1 2 3 4 5"
# What the random lines may miss: each form that is read in a way of its own.
KNOWN = (
    "*/2 5/15 */2 * *",
    "* 22-3 * * *",
    "* * 1 * 0-6",
    "99 24 * * 8",
    "65-5 * * 13 7",
    "* * ? * *",
    "* * * jan-MAR monday",
    "5- -5 1,,2 * *",
    "*/ 5-* */0 * fri-mon",
    "1-2-3 *5 1-9/2/2 * *",
    "61/5,3 * 32 * *",
)


def random_field(chance: random.Random, index: int) -> str:
    size, names = crond_model.SIZES[index], crond_model.NAMES[index]

    def value() -> str:
        if names and chance.random() < 0.2:
            return chance.choice(names).title()
        return str(chance.randint(1, size + (3 if chance.random() < 0.1 else -1)))

    items = []
    for _ in range(chance.choice((1, 1, 2, 3))):
        text = chance.choice(("*", value(), f"{value()}-{value()}"))
        text += f"/{chance.randint(0, size)}" if chance.random() < 0.3 else ""
        items.append(text + (chance.choice("x-L?") if chance.random() < 0.01 else ""))
    return ",".join(items)


@pytest.fixture(scope="module")
def jail(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root folder with nothing but a busybox that has crond."""
    if os.geteuid() != 0:
        pytest.skip("a root folder of its own needs root")
    with unless_had("the package busybox-static"):
        files = Path(debian.unpacked("busybox-static", os.path.join(ROOT, testing.CACHE)))
    program = next(path for path in files.glob("**/bin/busybox") if path.is_file())
    folder = tmp_path_factory.mktemp("jail")
    for name in ("bin", "etc", "crontabs", "var/run", "run"):
        (folder / name).mkdir(parents=True)
    shutil.copy(program, folder / "bin" / "busybox")
    (folder / "etc" / "passwd").write_text("root:x:0:0:root:/:/bin/sh\n")
    probe = subprocess.run(["chroot", folder, "/bin/busybox", "true"], capture_output=True)
    if probe.returncode != 0:
        pytest.skip("this machine does not let a process change its root folder")
    return folder


def fields_of_crond(jail: Path, schedules: list[str]) -> list[list[str | None]]:
    """For each schedule what crond prints of its fields: marks, or None for a parse error."""
    table = jail / "crontabs" / "root"
    table.write_text("".join(f"{schedule} true\n" for schedule in (*schedules, SENTINEL)))
    log = jail / "log"
    log.unlink(missing_ok=True)
    command = ["chroot", str(jail), "/bin/busybox", "crond", "-f", "-l", "0", "-L", "/log"]

    def read() -> list[list[str | None]]:
        entries: list[list[str | None]] = []
        for line in log.read_text().splitlines() if log.exists() else ():
            if " entry:" in line:
                entries.append([])
            elif "parse error at" in line:
                entries[-1].append(None)
            elif line and not line.strip("01"):
                entries[-1].append(line)
        complete = len(entries) == len(schedules) + 1 and len(entries[-1]) == len(SENTINEL.split())
        return entries if complete else []

    with subprocess.Popen([*command, "-c", "/crontabs"]) as crond:
        try:
            return until(read, what="crond has read its table")[:-1]
        finally:
            crond.kill()


def test_crond_reads_every_field_as_the_model_does(jail: Path) -> None:
    chance = random.Random(13)
    schedules = [" ".join(random_field(chance, index) for index in range(5)) for _ in range(LINES)]
    schedules += KNOWN
    for schedule, entry in zip(schedules, fields_of_crond(jail, schedules), strict=True):
        wanted: list[str | None] = []
        for index, field in enumerate(schedule.split()):
            marks, error = crond_model.field(field, index)
            wanted.append(None if error else "".join("01"[mark] for mark in marks))
        assert entry == wanted, schedule
        plan = crontab.parse(
            f"{schedule} true\n".encode(),
            dialect="busybox",
            user_column=False,
            user="root",
            zone="UTC",
        )
        if None in entry:  # crond complained, so does the import
            assert plan.refused or plan.warnings, schedule


def test_crond_marks_may_when_it_is_told_the_months_0_to_5(jail: Path) -> None:
    # Such a line is refused: month 0 is the place before the table.
    ((_, _, _, months, _),) = fields_of_crond(jail, ["0 0 * 0-5 *"])
    assert months == "000010000000"
