"""Retiring a log: everything checked first, log before fact, durable before it is told."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from qinglong_edge.artifact.logs import LogStore, Retired
from qinglong_edge.core.errors import Corrupt, EdgeError, Invalid
from qinglong_edge.core.limits import LOG_QUOTA_BYTES_MAX
from qinglong_edge.system.files import Files
from tests.artifact.place import (
    ATTEMPT,
    FOR_FILE,
    FOR_FOLDER,
    QUOTA,
    RESERVE,
    RUN,
    SEEN_MS,
    Place,
    fact,
    needs_root,
    swap,
    to_open,
    write,
)
from tests.crash.power import Disk
from tests.crash.seam import Plan, guard


def retire(place: Place) -> Retired:
    return place.logs.retire(RUN, ATTEMPT)


def refusal(place: Place) -> EdgeError:
    before = place.names()
    with pytest.raises(EdgeError) as caught:
        retire(place)
    assert place.names() == before
    return caught.value


def test_a_log_goes_with_its_fact_and_tells_what_it_was(place: Place) -> None:
    place.written(b"x" * 10)
    place.told(quota_reached=True)
    assert retire(place) == Retired(
        disposition="deleted",
        bytes=10,
        truncated=True,
        maximum_bytes=QUOTA,
        observed_at_ms=SEEN_MS,
    )
    assert place.names() == {place.shard.name}


def test_a_fact_of_a_whole_log_says_so(place: Place) -> None:
    place.written()
    place.told(quota_reached=False)
    assert retire(place).truncated is False


def test_without_a_fact_nothing_is_said_of_truncation(place: Place) -> None:
    place.written(b"x" * QUOTA)
    assert retire(place) == Retired(disposition="deleted", bytes=QUOTA)


def test_a_log_that_is_gone_is_found_absent_again_and_again(place: Place) -> None:
    place.written()
    retire(place)
    assert retire(place) == Retired(disposition="already_absent")
    place.shard.rmdir()
    assert retire(place) == Retired(disposition="already_absent")
    assert place.names() == set()


def test_a_missing_root_has_no_log(place: Place) -> None:
    place.root.rmdir()
    assert retire(place) == Retired(disposition="already_absent")
    assert not place.root.exists()


def test_the_fact_of_a_log_that_a_crash_took_still_speaks_and_goes(place: Place) -> None:
    place.written()
    place.told()
    place.log.unlink()
    found = retire(place)
    assert (found.disposition, found.bytes, found.truncated) == ("already_absent", 0, True)
    assert place.names() == {place.shard.name}


@pytest.mark.parametrize("left", [b"", b'{"schemaVersion":1,"ru'])
def test_what_a_crash_left_of_a_fact_goes_too(place: Place, left: bytes) -> None:
    place.written()
    write(place.temporary, left)
    assert retire(place).truncated is None
    assert place.names() == {place.shard.name}


def test_a_fact_whose_temporary_name_a_crash_left_is_believed(place: Place) -> None:
    place.written()
    place.told()
    os.link(place.fact, place.temporary)
    assert retire(place).truncated is True
    assert place.names() == {place.shard.name}


def test_files_of_others_in_the_shard_stay(place: Place) -> None:
    place.written()
    others = [f"local-{place.shard.name}{'0' * 28}.log", ".starting.log", "x", f"{place.id}.log.1"]
    for name in others:
        write(place.shard / name, b"other")
    (place.shard / "folder").mkdir()
    retire(place)
    assert {path.name for path in place.shard.iterdir()} == {*others, "folder"}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"\0" * 242,
        fact("local-" + "0" * 30),
        fact("local-" + "0" * 30, run_id=ATTEMPT),
        b" " * 1025,
    ],
)
def test_a_fact_that_is_not_this_logs_keeps_both(place: Place, data: bytes) -> None:
    place.written()
    place.told(data)
    error = refusal(place)
    assert isinstance(error, (Corrupt, Invalid))
    assert error.code in {"fact_invalid", "fact_foreign"}


@pytest.mark.parametrize("field", ["run_id", "attempt_id"])
def test_a_fact_of_another_attempt_keeps_both(place: Place, field: str) -> None:
    place.written()
    other: dict[str, object] = {field: "019f7200-0000-7000-8000-0000000000ff"}
    place.told(fact(place.id, **other))
    assert refusal(place).code == "fact_foreign"


@needs_root
@pytest.mark.parametrize("spoil", [*FOR_FILE, to_open])
@pytest.mark.parametrize("which", ["log", "fact", "temporary"])
def test_a_file_that_is_not_ours_alone_keeps_all_of_them(
    place: Place, which: str, spoil: Callable[[Path], None]
) -> None:
    """ADR-0024 verification 8"""
    place.written()
    place.told()
    write(place.temporary, b"")
    spoil(getattr(place, which))
    assert refusal(place).code in {"file_unsafe", "file_foreign", "file_exposed"}


@needs_root
@pytest.mark.parametrize("spoil", [*FOR_FOLDER, to_open])
@pytest.mark.parametrize("which", ["root", "shard"])
def test_in_a_directory_that_is_not_ours_nothing_is_deleted(
    place: Place, which: str, spoil: Callable[[Path], None]
) -> None:
    place.written()
    spoil(getattr(place, which))
    assert refusal(place).code in {"directory_unsafe", "directory_foreign"}


@pytest.mark.parametrize("which", ["root", "shard"])
def test_a_directory_that_changes_meanwhile_keeps_its_log(place: Place, which: str) -> None:
    place.written()
    place.disk.after_look = lambda _path: swap(getattr(place, which))
    with pytest.raises(Corrupt):
        retire(place)
    assert place.log.read_bytes() == b"0123456789"


def test_a_log_larger_than_any_quota_is_kept(place: Place) -> None:
    place.written()
    os.truncate(place.log, LOG_QUOTA_BYTES_MAX + 1)
    assert refusal(place).code == "log_over_quota"
    os.truncate(place.log, LOG_QUOTA_BYTES_MAX)
    assert retire(place).bytes == LOG_QUOTA_BYTES_MAX


def test_forgetting_an_attempt_takes_whatever_has_its_names(place: Place) -> None:
    assert place.logs.remove(RUN, ATTEMPT) is False
    place.written()
    place.told(b"damaged")
    write(place.temporary, b"")
    assert place.logs.remove(RUN, ATTEMPT) is True
    assert place.names() == {place.shard.name}
    assert place.logs.remove(RUN, ATTEMPT) is False


def test_an_attempt_is_not_forgotten_while_its_disk_is_away(place: Place) -> None:
    """Nothing would ever name its log again."""
    place.written()
    place.root.rename(place.root.with_name("away"))
    with pytest.raises(FileNotFoundError):
        place.logs.remove(RUN, ATTEMPT)
    place.root.with_name("away").rename(place.root)
    assert place.logs.remove(RUN, ATTEMPT) is True


# -- refusals, deaths, power cuts -----------------------------------------------------------------


def played(place: Place, plan: Plan) -> Retired:
    with guard(plan):
        return LogStore(str(place.root), Files(), reserve_bytes=RESERVE).retire(RUN, ATTEMPT)


def laid(folder: Path) -> Place:
    folder.mkdir()
    place = Place(folder)
    place.written(b"x" * 10)
    place.told()
    os.link(place.fact, place.temporary)
    return place


def test_the_log_goes_before_its_fact_and_the_shard_is_durable_at_the_end(tmp_path: Path) -> None:
    place = laid(tmp_path / "at")
    plan = Plan()
    plan.ops = []
    played(place, plan)
    assert [(op[0], op[1]) for op in plan.ops] == [
        ("unlink", str(place.log)),
        ("unlink", str(place.fact)),
        ("unlink", str(place.temporary)),
        ("fsync", str(place.shard)),
    ]


def test_whichever_effect_is_refused_the_next_time_it_is_whole(tmp_path: Path) -> None:
    refusals = {"storage_unavailable", "no_space", "state_read_only"}
    known = Plan()
    played(laid(tmp_path / "known"), known)
    first = next(n for n, effect in enumerate(known.effects, 1) if "unlink" in effect.name)
    for number, effect in enumerate(known.effects, 1):
        for code in effect.possible:
            place = laid(tmp_path / f"{number}-{code}")
            with pytest.raises(EdgeError) as caught:
                played(place, Plan(fail_at=number, code=code))
            assert caught.value.code in refusals, effect.name
            assert place.log.exists() is (number <= first), effect.name
            again = retire(place)
            assert again.truncated in {True, None}
            assert place.names() == {place.shard.name}


def test_wherever_the_power_goes_the_next_time_finds_the_rest(tmp_path: Path) -> None:
    """Log first, tombstone last: what a cut may leave is retired again, and told truly."""
    place = laid(tmp_path / "at")
    disk = Disk(str(place.root))
    disk.begin()
    plan = Plan()
    plan.ops = []
    played(place, plan)
    states = 0
    for op in [("begin",), *plan.ops]:
        disk.apply(op)
        for number, state in enumerate(disk.states()):
            states += 1
            found = _after(tmp_path / f"cut{states}-{number}", place, state)
            assert found.truncated in {True, None}
            assert found.bytes == (10 if found.disposition == "deleted" else 0)
    assert states > 8
    assert [set(state) for state in disk.states()] == [{str(place.shard)}]


def _after(folder: Path, before: Place, state: dict[str, bytes | None]) -> Retired:
    folder.mkdir()
    place = Place(folder)
    for path, data in sorted(state.items()):
        at = place.root / Path(path).relative_to(before.root)
        if data is None:
            at.mkdir(0o700)
        else:
            write(at, data)
    found = retire(place)
    assert place.names() <= {place.shard.name}
    return found
