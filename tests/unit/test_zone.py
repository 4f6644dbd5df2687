"""Zones: what is refused, where spans end, and POSIX strings as the C library reads them."""

from __future__ import annotations

import calendar
import datetime as dt
import random
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qinglong_edge.core import civil
from qinglong_edge.core.errors import Invalid
from qinglong_edge.core.zone import TIME_MAX_S, TIME_MIN_S, Zone, open_zone, zone_key
from tests.support import ROOT, cpu_s, unit_s
from tests.unit import zones
from tests.unit.zones import FUZZ

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


# Civil dates -----------------------------------------------------------------------------------


def test_every_day_from_1890_to_2110_has_its_date() -> None:
    epoch = dt.date(1970, 1, 1).toordinal()
    for days in range(civil.year_start(1890), civil.year_start(2110)):
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


def test_every_zone_of_the_release_opens() -> None:
    for key in zones.distinct():
        assert abs(open_zone(key, zones.data(key)).offset_ms_at(0)) < 24 * 3_600_000


def test_every_change_that_zone_data_lists_begins_a_span() -> None:
    """So no window hides two changes; Freetown's lie four days apart in 1939."""
    for key in ("Africa/Freetown", *zones.sample()):
        data, opened = zones.data(key), zones.zone(key)
        second = data.index(b"TZif", 4)  # the block of 8-byte instants
        times, types = struct.unpack_from(">2I", data, second + 32)
        listed = struct.unpack_from(f">{times}q", data, second + 44)
        indexes = data[second + 44 + 8 * times : second + 44 + 9 * times]
        offsets = struct.unpack_from(">" + "i2x" * types, data, second + 44 + 9 * times)
        for at, index in zip(listed, indexes, strict=True):
            assert opened.span_at(at)[2] == offsets[index], (key, at)
            if opened.span_at(at - 1)[2] != offsets[index]:
                assert opened.span_at(at)[0] == opened.span_at(at - 1)[1] == at


def test_a_zone_has_the_offsets_of_the_interpreters_own() -> None:
    epoch, first = dt.datetime(1970, 1, 1, tzinfo=dt.UTC), civil.year_start(1840) * 86_400
    for key in (*zones.sample(), "Africa/Casablanca", "America/Nuuk", "Antarctica/Troll"):
        opened, other = zones.zone(key), zones.other(key)
        changed = [at for at, _by in zones.changes(opened, first, Y2038)]
        for second in (*range(first, Y2100, 5_000_000), *changed, *(at - 1 for at in changed)):
            moment = (epoch + dt.timedelta(seconds=second)).astimezone(other)
            assert moment.utcoffset() == dt.timedelta(seconds=opened.span_at(second)[2])


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
    assert opened.span_at(999)[1:] == (1_000, 3_600)
    assert opened.span_at(1_000)[::2] == (1_000, 7_200)
    assert opened.span_at(Y2100)[2] == 7_200


def test_an_empty_footer_leaves_the_last_offset_for_ever() -> None:
    opened = open_zone("A/B", pack(instants=(5,), offset=60))
    assert opened.span_at(Y2100)[2] == 60
    for second in (TIME_MIN_S, -(2**40), 2**40, TIME_MAX_S - 1):
        start, end, offset = opened.span_at(second)
        assert start <= second < end
        assert offset == 60


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
        pack(instants=(5, 3 * 86_400)),
        pack(instants=(2**40,)),
        pack(instants=(5,), index=1),
        pack(leaps=1),
        pack(offset=86_400),
        pack(offset=-86_400),
        pack(footer="\nCST-8"),
        pack(footer="CST-8\n\n"),
        pack(footer="\nCST\n"),
        pack(footer="\nEST5EDT\n"),
        pack(footer="\nEST5EDT,0/0,J365/25\n"),
        pack(footer="\nAAA1BBB,59,300\n"),
        pack(instants=(5,), footer="\nCST-8\n"),
        pack(version=b"1"),
        pack(version=b"x"),
        pack().replace(b"TZif2", b"TZif3", 1),
        pack(footer="\nCST-8\u00e9\n"),
        struct.pack(">4sc15x6I", b"TZif", b"\0", 0, 0, 0, 0, 0, 0),
        struct.pack(">4sc15x6I", b"TZif", b"2", *[2**32 - 1] * 6),
    ],
)
def test_damaged_zone_data_is_refused(data: bytes) -> None:
    with pytest.raises(Invalid) as caught:
        open_zone("Asia/Tokyo", data)
    assert caught.value.code == "zone_invalid"


@pytest.mark.parametrize("key", ["Asia/Gaza", "Europe/Dublin", "America/New_York"])
def test_daylight_flags_and_names_change_nothing(key: str) -> None:
    """A flag other than 0 and 1 makes the interpreter's reader read beyond its memory."""
    data, opened = bytearray(zones.data(key)), zones.zone(key)
    second = data.index(b"TZif", 4)
    times, types = struct.unpack_from(">2I", data, second + 32)
    types_at = second + 44 + 9 * times
    for flag in (1, 170):
        for at in (4, 5):
            data[types_at + at : types_at + 6 * types : 6] = bytes([flag]) * types
        changed = open_zone(key, bytes(data))
        for instant in instants(opened, -(2**31), -(2**31) + 2**28):
            assert changed.span_at(instant) == opened.span_at(instant)


def test_absurd_counts_cost_nothing() -> None:
    def look() -> None:
        for count in range(6):
            counts = [2**32 - 1 if at == count else 1 for at in range(6)]
            data = struct.pack(">4sc15x6I", b"TZif", b"2", *counts).ljust(60_000, b"\1")
            with pytest.raises(Invalid):
                open_zone("A/B", data)

    assert cpu_s(look) < 20 * unit_s()  # four thousand million of anything take longer


@FUZZ
@given(st.sampled_from(["Asia/Tokyo", "Europe/Dublin", "Asia/Gaza"]), st.data())
def test_changed_zone_data_is_a_zone_or_refused(key: str, chosen: st.DataObject) -> None:
    data = bytearray(zones.data(key))
    for at in chosen.draw(st.lists(st.integers(0, len(data) - 1), min_size=1, max_size=4)):
        data[at] = chosen.draw(st.integers(0, 255))
    del data[len(data) - chosen.draw(st.sampled_from([0, 0, 0, 1, 7, 100])) :]
    try:
        opened = open_zone(key, bytes(data))
    except Invalid:
        return
    for second in (-(2**40), 0, Y2000, Y2100):
        start, end, offset = opened.span_at(second)
        assert start <= second < end
        assert abs(offset) < 86_400


# POSIX strings ---------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [*POSIX, "AAA3BBB,J60/2:30:15,J300", "AAA3BBB,J59/-1:30,J300"])
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
    """[+-]h[h][:mm[:ss]] below so many hours."""
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
        "EST5EDT,J0,J100",
        "EST5EDT,J366,J100",
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
        open_zone(text)
    assert caught.value.code in ("zone_invalid", "zone_unknown")


@pytest.mark.parametrize(
    "dates",
    [
        *("60,300", "0/0,J365/25", "M3.2.0,300"),  # a day counted from 0
        *("M3.2.0/-100,M11.1.0", "M3.2.0/100,M11.1.0"),
        *("M3.2.0,M12.4.0", "M1.1.0,M9.1.0", "J7,J200", "J200,J356"),  # around New Year
        *("J100,J100", "J100,J124", "M9.1.0,M9.4.0", "J10,J351"),  # too near to each other
    ],
)
def test_a_rule_whose_dates_are_not_taken_is_refused(dates: str) -> None:
    with pytest.raises(Invalid) as caught:
        open_zone("EST5EDT," + dates)
    assert caught.value.code == "zone_invalid"
    assert "Jn" in str(caught.value)


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


def test_no_zone_loads_the_interpreters_own() -> None:
    """They would stay in a daemon for good."""
    code = (
        f"import sys; sys.path.insert(0, {ROOT!r})\n"
        "from qinglong_edge.core import cron, zone\n"
        f"tokyo = zone.open_zone('Asia/Tokyo', {zones.data('Asia/Tokyo')!r})\n"
        "for opened in (tokyo, *map(zone.open_zone, ('UTC', 'CST-8', 'EST5EDT'))):\n"
        "    cron.parse('30 2 * * *').next_after(0, opened)\n"
        "sys.exit(bool({'zoneinfo', 'datetime', 'calendar', 'typing'} & set(sys.modules)))\n"
    )
    assert subprocess.run([sys.executable, "-I", "-S", "-c", code], check=False).returncode == 0
