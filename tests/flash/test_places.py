"""A state on a router's flash: the right mode, few bytes, a full chip, and what `doctor` says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support import ROOT
from tests.tools.gates import Gate, budget
from tests.tools.router import chips, flash, share
from tests.tools.router.guest import PYTHON, Guest, Options, overlay
from tests.tools.router.images import Image

KINDS = ("jffs2", "ubifs")
ROOMY, TINY, SMALL = 64, 8, 16  # MiB: the edge reserve and one log fit; soon full; a small router's
CHIPS = {
    **{("roomy", kind): ROOMY for kind in KINDS},
    **{("tiny", kind): TINY for kind in KINDS},
    ("small", "jffs2"): SMALL,
}
COLUMNS, LINES = 80, 24  # of a terminal
QE = f"python3 -I -S /share/{share.ZIPAPP} --state {flash.PLACE}/state"
Mounted = Callable[[str, str], Any]


@pytest.fixture(scope="module")
def guest(router: Image, shared: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """A router with a chip for each test."""
    folder = tmp_path_factory.mktemp("chips")
    paths = [chips.make(str(folder / f"{name}-{kind}"), mib) for (name, kind), mib in CHIPS.items()]
    with Guest(router, Options(share=shared, chips=tuple(paths))) as booted:
        booted.load(*flash.MODULES)
        yield booted


@pytest.fixture
def mounted(guest: Guest) -> Iterator[Callable[[str, str], None]]:
    """Mounts one chip for the time of a test."""

    taken: list[str] = []

    def mount(name: str, kind: str) -> None:
        chip = f"{kind} {list(CHIPS).index((name, kind))}"
        guest.check(f"{PYTHON} -m tests.tools.router.flash mount {chip}")
        taken.append(chip)

    yield mount
    for chip in taken:
        guest.check(f"{PYTHON} -m tests.tools.router.flash unmount {chip}")


@contextmanager
def overlaid(guest: Guest) -> Iterator[str]:
    """An overlay on the chip that is mounted, as a router's root is."""
    guest.check(overlay(flash.PLACE, "/overlay"))
    try:
        yield "/overlay"
    finally:
        guest.check("umount /overlay")


def looked(guest: Guest, folder: str) -> dict[str, Any]:
    """What the program makes of a mounted place, and what a run writes to the chip."""
    words = (f"/share/{share.ZIPAPP}", folder, "phram")
    answer: dict[str, Any] = guest.python("tests.tools.router.places", *words, timeout_s=900)
    return answer


def holds(answer: dict[str, Any], name: str, filesystem: str) -> Gate:
    """The promises of a good place; the bytes that a run takes."""
    assert (answer["storage"]["mode"], answer["storage"]["filesystem"]) == ("wal", filesystem)
    assert (answer["degraded"], answer["exit_code"], answer["log_bytes"]) == ([], 7, 3)
    limit = budget(ROOT)["run_flash_bytes"]
    return Gate(f"{name}: bytes of flash a run", answer["bytes"], limit)


@pytest.mark.parametrize("kind", KINDS)
def test_flash_and_an_overlay_on_it_get_the_write_ahead_log_and_few_bytes(
    kind: str, guest: Guest, mounted: Mounted, tell: Callable[[object], None]
) -> None:
    """What routers have: the mode, the log, the exit code, the wear."""
    mounted("roomy", kind)
    gates = [holds(looked(guest, flash.PLACE), kind, kind)]
    with overlaid(guest) as folder:
        gates.append(holds(looked(guest, folder), f"overlay on {kind}", "overlay"))
    tell("\n".join(map(str, gates)))
    assert all(gate.held for gate in gates)


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_opens_the_state_beside_the_daemon_or_after_it_breaks_nothing(
    kind: str, guest: Guest, mounted: Mounted, tell: Callable[[object], None]
) -> None:
    """No memory can be shared on jffs2: each opener has to be the exclusive one, or stay out."""
    mounted("roomy", kind)
    words = (f"/share/{share.ZIPAPP}", flash.PLACE)
    found = guest.python("tests.tools.router.openers", *words, timeout_s=900)
    tell(f"{kind}: {json.dumps(found)}")
    assert found["second daemon"] == [4, "state_owned"]
    assert "locked" in found["stranger beside"]
    assert [words for name, words in found.items() if name.startswith("failed")] == [[], [], []]
    assert {found[f"exit code {when}"] for when in ("beside", "restored")} == {found["queued"]}
    assert (found["queued"], found["mode"], found["degraded"]) == (7, "wal", [])


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_chip_refuses_loses_nothing_and_goes_on_when_there_is_room(
    kind: str, guest: Guest, mounted: Mounted, tell: Callable[[object], None]
) -> None:
    mounted("tiny", kind)
    words = (f"/share/{share.ZIPAPP}", flash.PLACE)
    found = guest.python("tests.tools.router.full", *words, timeout_s=900)
    tell(f"{kind}: {json.dumps(found)}")
    assert found["free"] < 262_144
    assert "log_capacity" in found["degraded"]
    assert (found["definition"], found["start"]) == ("no_space", "no_space")
    assert found["held"] in (["failed", 7, "receipt"], ["failed", 7, "wait_status"])
    assert found["further"] == ["failed", 7, "receipt"]
    assert found["socket on it"] in ("ready", "no_space"), "it starts, or says why it cannot"
    assert "log_capacity" in found["started on it"]
    assert found["left"] == ["failed", 7, "receipt"]
    # A log that the full chip kept from being retired is named until the next look at the logs.
    assert set(found["degraded after"]) <= {"logs_unretired"}
    assert (found["runs"], found["integrity"]) == (["held", "left", "short"], "ok")


def doctor(guest: Guest) -> list[str]:
    """What a person reads; it fits a screen."""
    _status, told = guest.run(f"{QE} doctor")
    lines = told.splitlines()
    assert sum(1 + max(0, len(line) - 1) // COLUMNS for line in lines) <= LINES, told
    return lines


def starting(lines: list[str], *words: str) -> list[str]:
    """The lines that begin so."""
    return [line for line in lines if line.split()[: len(words)] == list(words)]


def test_doctor_says_on_one_screen_what_a_small_flash_needs_and_then_is_content(
    guest: Guest, mounted: Mounted, tell: Callable[[object], None]
) -> None:
    mounted("small", "jffs2")
    before = doctor(guest)
    assert starting(before, "ok", "file", "system", "jffs2")
    assert starting(before, "fail", "state")
    assert starting(before, "state:", "qinglong-edge", "init")
    guest.check(f"{QE} init")
    small = doctor(guest)
    tell("\n".join(small))
    assert starting(small, "warn", "space")
    (advice,) = starting(small, "space:")
    place, _, limits = advice.removeprefix("space: ").partition('"limits": ')
    assert f"{flash.PLACE}/state/config.json" in place
    config = json.loads(guest.check(f"cat {flash.PLACE}/state/config.json"))
    taken = json.dumps(config | {"limits": json.loads(limits)})
    guest.check(f"echo '{taken}' >{flash.PLACE}/state/config.json")
    content = doctor(guest)
    assert starting(content, "ok", "space")
    assert starting(content, "ok", "database")
    assert not starting(content, "fail")
    guest.run(f"dd if=/dev/urandom of={flash.PLACE}/filler bs=64k")
    full = doctor(guest)
    tell("\n".join(full))
    assert starting(full, "fail", "space")
    (database,) = starting(full, "warn", "database")
    assert "full disk" in database, "nobody can make its write-ahead log"
    for check in ("file", "space:"):
        (told,) = [line for line in starting(full, check) if ":" in line]
        assert told.endswith("Free some space, or use another disk.")
