"""Zones: compiled data and POSIX strings against the interpreter's own evaluation of them."""

from __future__ import annotations

import calendar
import datetime as dt
import random
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qinglong_edge.core import civil
from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.zone import TIME_MAX_S, TIME_MIN_S, Zone, open_zone, parse_posix, zone_key
from tests.support import ROOT
from tests.unit import zones

FUZZ = settings(max_examples=300, deadline=None, derandomize=True, database=None)
DEBIAN = Path("/usr/share/zoneinfo")
Y1970, Y2000, Y2038, Y2100 = (civil.year_start(year) * 86_400 for year in (1970, 2000, 2038, 2100))

POSIX = [
    "UTC0",
    "CST-8",
    "<+0330>-3:30",
    "<-0930>9:30:15",
    "EST5EDT",
    "EST5EDT,M3.2.0,M11.1.0",
    "CET-1CEST,M3.5.0,M10.5.0/3",
    "GMT0BST,M3.5.0/1,M10.5.0",
    "IST-1GMT0,M10.5.0,M3.5.0/1",
    "<-02>2<-01>,M3.5.0/-1,M10.5.0/0",
    "<+1030>-10:30<+11>-11,M10.1.0,M4.1.0",
    "<-04>4<-03>,M9.1.6/24,M4.1.6/24",
    "EET-2EEST,M3.4.4/50,M10.4.4/50",
    "NZST-12NZDT,M9.5.0,M4.1.0/3",
    "<+0330>-3:30<+0430>,J79/24,J263/24",
]


def instants(opened: Zone, first_s: int, last_s: int) -> Iterator[int]:
    """Both ends of every span between two instants, and its middle."""
    second = first_s
    while second < last_s:
        start, end, _offset = opened.span_at(second)
        assert start <= second < end
        last = min(end, last_s) - 1
        yield from (second, (second + last) // 2, last)
        second = end


def agree(opened: Zone, other: dt.tzinfo, seconds: Iterable[int]) -> int:
    """Compare with the interpreter; how many instants were compared."""
    count = 0
    for second in seconds:
        count += 1
        found = dt.datetime.fromtimestamp(second, other).utcoffset()
        assert found is not None
        assert opened.span_at(second)[2] == found.total_seconds(), (opened.text, second)
    return count


# Civil dates -----------------------------------------------------------------------------------


def test_every_day_from_1600_to_2500_has_its_date() -> None:
    epoch = dt.date(1970, 1, 1).toordinal()
    for days in range(civil.year_start(1600), civil.year_start(2500)):
        date = dt.date.fromordinal(epoch + days)
        assert civil.civil_from_days(days) == (date.year, date.month, date.day)
        assert civil.month_start(date.year, date.month) + date.day - 1 == days
        assert civil.weekday(days) == date.isoweekday() % 7


@FUZZ
@given(st.integers(-(10**9), 10**9))
def test_a_date_far_away_leads_back_to_its_day(days: int) -> None:
    year, month, day = civil.civil_from_days(days)
    assert civil.month_start(year, month) + day - 1 == days
    assert 1 <= day <= civil.month_days(year, month)


def test_months_have_the_days_of_the_calendar() -> None:
    for year in (1900, 1999, 2000, 2023, 2024, 2100):
        assert civil.is_leap(year) == calendar.isleap(year)
        for month in range(1, 13):
            assert civil.month_days(year, month) == calendar.monthrange(year, month)[1]


# Compiled data ---------------------------------------------------------------------------------


def test_every_zone_of_the_release_has_the_interpreters_offsets_until_2100() -> None:
    count = 0
    for key in zones.distinct():
        opened = zones.zone(key)
        count += agree(opened, zones.other(key), instants(opened, Y1970, Y2100))
    assert count > 50_000


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="the package tzdata is not installed")
def test_the_long_form_of_zone_data_has_the_same_offsets_as_the_short_form() -> None:
    """Debian compiles every change until 2037 into a file, others leave them to the footer."""
    for key in ("America/New_York", "Europe/Dublin", "Asia/Shanghai", "Australia/Lord_Howe"):
        long, short = open_zone(key, (DEBIAN / key).read_bytes()), zones.zone(key)
        assert zones.changes(long, Y1970, Y2100) == zones.changes(short, Y1970, Y2100)


def test_spans_follow_each_other_without_a_hole() -> None:
    for text in ("Europe/Berlin", "America/Nuuk", "Asia/Tokyo", "EST5EDT", "CST-8"):
        opened = open_zone(text, zones.data(text) if "/" in text else None)
        start, end, _offset = opened.span_at(-(2**31))
        while end < Y2100:
            later, until, _offset = opened.span_at(end)
            assert later == end < until
            assert opened.span_at(end - 1)[:2] == (start, end)
            start, end = later, until


def test_the_answer_does_not_depend_on_the_question_before() -> None:
    opened = zones.zone("America/New_York")
    chance = random.Random(4)
    instants = [chance.randrange(0, Y2100) for _ in range(2_000)]
    fresh = [
        open_zone("America/New_York", zones.data("America/New_York")).span_at(at)
        for at in instants[:200]
    ]
    answers = {at: opened.span_at(at) for at in instants}
    assert fresh == [answers[at] for at in instants[:200]]
    assert answers == {at: opened.span_at(at) for at in sorted(instants)}


def test_an_offset_is_told_in_milliseconds() -> None:
    assert zones.zone("Asia/Kathmandu").offset_ms_at(zones.ms("2026-01-01T00:00:00Z")) == 20_700_000
    opened = zones.zone("America/New_York")
    change = zones.ms("2025-03-09T07:00:00Z")
    assert opened.offset_ms_at(change - 1) == -5 * 3_600_000
    assert opened.offset_ms_at(change) == -4 * 3_600_000


def test_time_before_the_first_change_is_local_mean_time() -> None:
    assert zones.zone("Asia/Shanghai").span_at(-(10**11))[2] == 29_143


def pack(
    *, version: bytes = b"2", instants: tuple[int, ...] = (), offset: int = 0, **changed: object
) -> bytes:
    """A zone file of one type; `footer`, `leaps` and `index` as asked."""
    leaps = int(str(changed.get("leaps", 0)))
    block = struct.pack(f">{len(instants)}q", *instants)
    block += bytes([int(str(changed.get("index", 0)))]) * len(instants)
    block += struct.pack(">iBB", offset, 0, 0) + b"X\0" + bytes(12 * leaps)
    header = struct.pack(">4sc15x6I", b"TZif", version, 0, 0, leaps, len(instants), 1, 2)
    empty = struct.pack(">4sc15x6I", b"TZif", version, 0, 0, 0, 0, 1, 0) + bytes(6)
    return empty + header + block + str(changed.get("footer", "\n\n")).encode()


def test_data_of_version_1_ends_with_its_last_offset() -> None:
    data = struct.pack(">4sc15x6I", b"TZif", b"\0", 0, 0, 0, 1, 2, 4)
    data += struct.pack(">iBiBBiBB", 1_000, 1, 3_600, 0, 0, 7_200, 0, 2) + b"A\0B\0"
    opened = open_zone("Old/Zone", data)
    assert opened.span_at(999) == (TIME_MIN_S, 1_000, 3_600)
    assert opened.span_at(Y2100) == (1_000, TIME_MAX_S, 7_200)


def test_an_empty_footer_leaves_the_last_offset_for_ever() -> None:
    opened = open_zone("A/B", pack(instants=(5,), offset=60))
    assert opened.span_at(Y2100) == (5, TIME_MAX_S, 60)


def test_what_a_later_format_adds_behind_the_footer_is_not_read() -> None:
    assert open_zone("A/B", pack(version=b"9", footer="\nCST-8\nmore")).span_at(0)[2] == 28_800


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"TZif",
        b"TZjf" + zones.data("Asia/Tokyo")[4:],
        zones.data("Asia/Tokyo")[:-1],
        zones.data("Asia/Tokyo")[:-9],
        zones.data("Asia/Tokyo")[:60],
        zones.data("Asia/Tokyo") + bytes(65_536),
        pack(instants=(5, 5)),
        pack(instants=(6, 5)),
        pack(instants=(5,), index=1),
        pack(leaps=1),
        pack(offset=86_400),
        pack(offset=-86_400),
        pack(footer="\nCST-8"),
        pack(footer="CST-8\n\n"),
        pack(footer="\nCST\n"),
        pack(footer="\nCST-8\u00e9\n"),
        struct.pack(">4sc15x6I", b"TZif", b"\0", 0, 0, 0, 0, 0, 0),
        struct.pack(">4sc15x6I", b"TZif", b"2", *[2**32 - 1] * 6),
    ],
)
def test_damaged_zone_data_is_refused(data: bytes) -> None:
    with pytest.raises(Invalid) as caught:
        open_zone("Asia/Tokyo", data)
    assert caught.value.code == "zone_invalid"


@FUZZ
@given(st.sampled_from(["Asia/Tokyo", "Europe/Dublin", "Asia/Gaza"]), st.data())
def test_changed_zone_data_is_a_zone_or_refused(key: str, chosen: st.DataObject) -> None:
    data = bytearray(zones.data(key))
    for at in chosen.draw(st.lists(st.integers(0, len(data) - 1), min_size=1, max_size=4)):
        data[at] = chosen.draw(st.integers(0, 255))
    try:
        opened = open_zone(key, bytes(data))
    except Invalid:
        return
    for second in (-(2**40), 0, Y2000, Y2100):
        start, end, offset = opened.span_at(second)
        assert start <= second < end
        assert abs(offset) < 86_400


# POSIX strings ---------------------------------------------------------------------------------


@pytest.mark.parametrize("text", POSIX)
def test_a_posix_string_has_the_interpreters_offsets(text: str) -> None:
    if text == "EST5EDT":  # in the release a zone with a history; the bare name has none
        text += ",M3.2.0,M11.1.0"
    opened = open_zone(text)
    agree(opened, zones.other(text), instants(opened, Y1970, Y2100))


@pytest.mark.parametrize("text", [*POSIX, "AAA3BBB,59/2:30:15,300", "AAA3BBB,J60,300"])
def test_a_posix_string_has_the_offsets_of_the_c_library(text: str) -> None:
    if text == "EST5EDT":  # to the C library a file with a history; the bare name has none
        text += ",M3.2.0,M11.1.0"
    opened = open_zone(text)
    with zones.process_zone(text):
        for second in instants(opened, Y1970, Y2038):
            assert opened.span_at(second)[2] == time.localtime(second).tm_gmtoff


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("CST-8", "Asia/Shanghai"),
        ("<+0330>-3:30", "Asia/Tehran"),
        ("EST5EDT,M3.2.0,M11.1.0", "America/New_York"),
        ("EST5EDT", "America/New_York"),
        ("CET-1CEST,M3.5.0,M10.5.0/3", "Europe/Berlin"),
        ("IST-1GMT0,M10.5.0,M3.5.0/1", "Europe/Dublin"),
        ("<-02>2<-01>,M3.5.0/-1,M10.5.0/0", "America/Nuuk"),
    ],
)
def test_a_posix_string_changes_when_its_city_does(text: str, key: str) -> None:
    first = civil.year_start(2025) * 86_400
    assert zones.changes(open_zone(text), first, Y2100) == zones.changes(
        zones.zone(key), first, Y2100
    )
    for second in range(first, first + 86_400 * 730, 86_400 * 7):
        assert open_zone(text).span_at(second)[2] == zones.zone(key).span_at(second)[2]


def clock(hours: int) -> st.SearchStrategy[str]:
    """[+-]h[h[h]][:mm[:ss]] up to so many hours."""
    sixty = st.integers(0, 59)
    return st.builds(
        lambda sign, hour, minute, second, parts: (
            sign + str(hour) + f":{minute:02}" * (parts > 0) + f":{second:02}" * (parts > 1)
        ),
        st.sampled_from(["", "+", "-"]),
        st.integers(0, hours - 1),
        sixty,
        sixty,
        st.integers(0, 2),
    )


NAMES = st.one_of(st.from_regex(r"[A-Za-z]{3,6}", fullmatch=True), st.just("<+03>"))


def rules(months: tuple[int, int], days: tuple[int, int]) -> st.SearchStrategy[str]:
    """A yearly change of any form within a part of the year."""
    month = st.integers(*months)
    dates = st.one_of(
        st.builds("M{}.{}.{}".format, month, st.integers(1, 5), st.integers(0, 6)),
        st.builds("J{}".format, st.integers(*days)),
        st.builds("{}".format, st.integers(*days)),
    )
    return st.builds("{}/{}".format, dates, clock(100)) | dates


@FUZZ
@given(
    NAMES,
    clock(15),
    NAMES,
    st.tuples(rules((2, 5), (20, 150)), rules((7, 11), (190, 340))),
    st.booleans(),
    st.integers(1971, 2090),
)
def test_any_rule_has_the_offsets_of_the_c_library(
    name: str, hours: str, daylight: str, changes: tuple[str, str], south: bool, year: int
) -> None:
    text = f"{name}{hours}{daylight}," + ",".join(reversed(changes) if south else changes)
    first = civil.year_start(year) * 86_400 + 86_400
    opened = open_zone(text)
    with zones.process_zone(text):
        for second in instants(opened, first, first + 363 * 86_400):
            assert opened.span_at(second)[2] == time.localtime(second).tm_gmtoff, text


def test_daylight_that_ends_where_it_begins_again_lasts_all_the_year() -> None:
    opened = open_zone("EST5EDT,0/0,J365/25")
    assert {opened.span_at(second)[2] for second in range(0, Y2038, 86_399)} == {-4 * 3600}


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":UTC",
        "-8",
        "A8",
        "AB8",
        "CST-",
        "CST--8",
        "CST-25",
        "CST-24",
        "CST8:60",
        "CST8:00:60",
        "CST8:1",
        "CST8.5",
        "<CST8",
        "<C>8",
        "<a_b>8",
        "CST-8,M3.2.0,M11.1.0",
        "EST5EDT,M3.2.0",
        "EST5EDT,",
        "EST5EDT,,",
        "EST5EDT,M3.2.0,M11.1.0,",
        "EST5EDT,M0.2.0,M11.1.0",
        "EST5EDT,M13.2.0,M11.1.0",
        "EST5EDT,M3.0.0,M11.1.0",
        "EST5EDT,M3.6.0,M11.1.0",
        "EST5EDT,M3.2.7,M11.1.0",
        "EST5EDT,M3.2,M11.1.0",
        "EST5EDT,J0,J10",
        "EST5EDT,J366,J10",
        "EST5EDT,366,10",
        "EST5EDT,M3.2.0/168,M11.1.0",
        "EST5EDT,M3.2.0/-168,M11.1.0",
        "EST5EDT,M3.2.0/2:60,M11.1.0",
        "EST5EDT,M3.2.0/,M11.1.0",
        "EST-23EDT,M3.2.0,M11.1.0",
        "EST5EDT-24,M3.2.0,M11.1.0",
        "CST-8\n",
        " CST-8",
        "CST-\uff18",
        "CST\u00e9-8",
        "A" * 127 + "-8",
    ],
)
def test_a_malformed_posix_string_is_refused(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_posix(text)
    assert caught.value.code == "zone_invalid"
    with pytest.raises(Invalid):
        open_zone(text)


@FUZZ
@given(st.text(max_size=40) | st.text(alphabet="<>+-,:/.JM0123456789ABCDab", max_size=40))
def test_any_text_is_a_zone_or_refused(text: str) -> None:
    try:
        opened = open_zone(text)
    except Invalid as refused:
        told = "".join(map(str, refused.facts.values()))
        if not told.isascii() or not told.isprintable():
            raise
    else:
        assert open_zone(opened.text).span_at(Y2000) == opened.span_at(Y2000)


# Opening ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["UTC", "Etc/UTC", "GMT0", "UTC0", "GMT"])
def test_utc_needs_no_data(text: str) -> None:
    opened = open_zone(text)
    assert opened.text == text
    assert opened.span_at(0) == (TIME_MIN_S, TIME_MAX_S, 0)


@pytest.mark.parametrize(
    "text", ["Asia/Shanghai", "America/Los Angeles", "EST", "Etc/GMT+8", "foo bar", "../etc"]
)
def test_a_key_without_data_is_unknown_and_named(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        open_zone(text)
    if text.startswith("."):
        assert (caught.value.code, caught.value.facts) == ("zone_invalid", {})
    else:
        facts = {"zone": text.replace(" ", "_")}
        assert (caught.value.code, caught.value.facts) == ("zone_unknown", facts)


def test_a_key_that_begins_like_a_posix_string_is_told_what_is_wrong_with_it() -> None:
    with pytest.raises(Invalid) as caught:
        open_zone("CST-25")
    assert caught.value.code == "zone_invalid"


def test_the_spelling_of_a_router_becomes_the_key() -> None:
    opened = open_zone("America/Los Angeles", zones.data("America/Los_Angeles"))
    assert opened.text == "America/Los_Angeles"


@pytest.mark.parametrize("text", ["", "/", "/etc/passwd", "a//b", "a/", "../a", "a.b", "a" * 129])
def test_what_could_leave_the_database_is_no_key(text: str) -> None:
    assert zone_key(text) is None
    with pytest.raises(Invalid) as caught:
        open_zone(text, zones.data("Asia/Tokyo"))
    assert caught.value.code == "zone_invalid"


def test_the_zone_of_this_process_changes_nothing() -> None:
    expected = zones.zone("Europe/London").span_at(Y2000)
    with zones.process_zone("Australia/Sydney"):
        assert open_zone("Europe/London", zones.data("Europe/London")).span_at(Y2000) == expected


def test_no_zone_loads_the_interpreters_zones() -> None:
    """A trigger in a zone costs no more memory than one in UTC."""
    code = (
        f"import sys; sys.path.insert(0, {ROOT!r})\n"
        "from qinglong_edge.core import cron, zone\n"
        "cron.parse('30 2 * * *').next_after(0, zone.open_zone('EST5EDT'))\n"
        "sys.exit(bool({'zoneinfo', 'datetime', 'calendar', 'typing'} & set(sys.modules)))\n"
    )
    assert subprocess.run([sys.executable, "-I", "-S", "-c", code], check=False).returncode == 0
