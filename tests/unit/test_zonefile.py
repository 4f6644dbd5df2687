"""Zone data of a machine, and the zone it is set to, in trees made for the purpose."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qinglong_edge.core.errors import Unavailable
from qinglong_edge.core.limits import TZIF_BYTES_MAX
from qinglong_edge.core.zone import open_zone
from qinglong_edge.system.zonefile import DEFAULT_ROOTS, read_tzif, router_zone
from tests.unit import zones

SHANGHAI = zones.data("Asia/Shanghai")


@pytest.fixture
def router(tmp_path: Path) -> Path:
    """The root of a router without zone data or any zone set."""
    (tmp_path / "etc/config").mkdir(parents=True)
    (tmp_path / "tmp").mkdir()
    return tmp_path


def install(root: Path, *keys: str, database: str = "usr/share/zoneinfo") -> None:
    """Zone data on that root."""
    for key in keys:
        path = root / database / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(zones.data(key))


def system(root: Path, text: str) -> None:
    """The system file of UCI."""
    (root / "etc/config/system").write_text(text, encoding="utf-8")


def zone_of(root: Path, environment_tz: str | None = None) -> str:
    """The answer, which must be one that opens."""
    text = router_zone(environment_tz=environment_tz, root=str(root))
    roots = tuple(f"{root}{each}" for each in DEFAULT_ROOTS)
    assert open_zone(text, read_tzif(text, roots)).text == text
    return text


# Zone data -------------------------------------------------------------------------------------


def test_the_first_root_that_has_the_key_is_read(tmp_path: Path) -> None:
    roots = (str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "c"))
    install(tmp_path, "Asia/Shanghai", database="b")
    (tmp_path / "c/Asia").mkdir(parents=True)
    (tmp_path / "c/Asia/Shanghai").write_bytes(b"TZif2 other")
    assert read_tzif("Asia/Shanghai", roots) == SHANGHAI
    assert read_tzif("Asia/Tokyo", roots) is None
    assert read_tzif("Asia/Shanghai", ()) is None


def test_a_zone_may_be_a_link_to_another(tmp_path: Path) -> None:
    install(tmp_path, "Asia/Shanghai", database="db")
    (tmp_path / "db/PRC").symlink_to("Asia/Shanghai")
    assert read_tzif("PRC", (str(tmp_path / "db"),)) == SHANGHAI


def test_the_spelling_of_a_router_finds_the_file(tmp_path: Path) -> None:
    install(tmp_path, "America/Los_Angeles", database="db")
    roots = (str(tmp_path / "db"),)
    assert read_tzif("America/Los Angeles", roots) == zones.data("America/Los_Angeles")


@pytest.mark.parametrize(
    "key",
    [
        *("", ".", "..", "../secret", "Asia/../../secret", "/secret", "Asia//Shanghai", "a\0b"),
        *("Asia/Shanghai/", "localtime", "posixrules", "x" * 200, "secret.tab", "\u00e9"),
    ],
)
def test_nothing_but_a_zone_of_the_database_is_read(tmp_path: Path, key: str) -> None:
    install(tmp_path, "Asia/Shanghai", database="db")
    for name in ("secret", "db/localtime", "db/posixrules", "db/secret.tab"):
        (tmp_path / name).write_bytes(SHANGHAI)
    assert read_tzif(key, (str(tmp_path / "db"),)) is None


def test_what_is_not_zone_data_does_not_count(tmp_path: Path) -> None:
    database = tmp_path / "db"
    (database / "folder").mkdir(parents=True)
    (database / "text").write_text("tzdata.zi", encoding="ascii")
    (database / "empty").write_bytes(b"")
    (database / "large").write_bytes(b"TZif".ljust(TZIF_BYTES_MAX + 1))
    (database / "exact").write_bytes(b"TZif".ljust(TZIF_BYTES_MAX))
    (database / "loop").symlink_to("loop")
    (database / "dangling").symlink_to("nowhere")
    os.mkfifo(database / "pipe")
    found = {name: read_tzif(name, (str(database),)) for name in os.listdir(database)}
    assert {name for name, data in found.items() if data is not None} == {"exact"}
    assert read_tzif("text/more", (str(database),)) is None


def test_a_file_that_changes_its_root_does_not_stop_the_search(tmp_path: Path) -> None:
    (tmp_path / "a/Asia").mkdir(parents=True)
    (tmp_path / "a/Asia/Shanghai").write_bytes(b"gone bad")
    install(tmp_path, "Asia/Shanghai", database="b")
    assert read_tzif("Asia/Shanghai", (str(tmp_path / "a"), str(tmp_path / "b"))) == SHANGHAI


@pytest.mark.parametrize("call", ["open", "read"])
def test_a_failing_device_is_no_missing_zone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*_arguments: object) -> int:
        raise OSError(5, "Input/output error")

    install(tmp_path, "Asia/Shanghai", database="db")
    descriptors = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(Unavailable) as caught:
            read_tzif("Asia/Shanghai", (str(tmp_path / "db"),))
    assert (caught.value.code, caught.value.facts) == ("zone_unreadable", {"errno": "EIO"})
    assert len(os.listdir("/proc/self/fd")) == descriptors


# The zone of the machine -----------------------------------------------------------------------


def test_a_machine_that_says_nothing_is_in_utc(router: Path) -> None:
    assert zone_of(router) == "UTC"
    assert zone_of(router / "nowhere") == "UTC"


def test_the_sources_come_in_order_and_what_is_unusable_is_passed_over(router: Path) -> None:
    install(router, "Asia/Tokyo", "Asia/Seoul", "Asia/Shanghai", "Europe/Berlin")
    (router / "etc/localtime").symlink_to("/usr/share/zoneinfo/Europe/Berlin")
    assert zone_of(router) == "Europe/Berlin"
    (router / "etc/timezone").write_text("Asia/Shanghai\n", encoding="ascii")
    assert zone_of(router) == "Asia/Shanghai"
    system(router, "config system\n\toption zonename 'Asia/Seoul'\n\toption timezone 'KST-9'\n")
    assert zone_of(router) == "Asia/Seoul"
    (router / "etc/TZ").write_text("CST-8\n", encoding="ascii")
    assert zone_of(router) == "CST-8"
    assert zone_of(router, "Asia/Tokyo") == "Asia/Tokyo"
    for text in ("Asia/Nowhere", "nonsense!", "", ":/etc/localtime", "\udcff", "CST-99"):
        assert zone_of(router, text) == "CST-8"
    (router / "etc/TZ").write_text("CST-\n", encoding="ascii")
    assert zone_of(router) == "Asia/Seoul"
    system(router, "config system\n\toption zonename 'Asia/Atlantis'\n\toption timezone 'x'\n")
    assert zone_of(router) == "Asia/Shanghai"
    (router / "etc/timezone").write_bytes(b"\xff\xfe\n")
    assert zone_of(router) == "Europe/Berlin"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Asia/Tokyo", "Asia/Tokyo"),
        (":Asia/Tokyo", "Asia/Tokyo"),
        ("/usr/share/zoneinfo/Asia/Tokyo", "Asia/Tokyo"),
        (":/usr/share/zoneinfo/Asia/Tokyo", "Asia/Tokyo"),
        ("America/Los Angeles", "America/Los_Angeles"),
        ("JST-9", "JST-9"),
        ("UTC0", "UTC0"),
        (None, "UTC"),
    ],
)
def test_the_environment_may_spell_the_zone_as_the_c_library_reads_it(
    router: Path, text: str | None, expected: str
) -> None:
    install(router, "Asia/Tokyo", "America/Los_Angeles")
    assert zone_of(router, text) == expected


@pytest.mark.parametrize("text", ["CST-8", "CST-8\n", " CST-8 \n\n", "CST-8\r\n"])
def test_the_posix_string_of_a_router_is_its_zone(router: Path, text: str) -> None:
    (router / "tmp/TZ").write_text(text, encoding="ascii", newline="")
    (router / "etc/TZ").symlink_to("../tmp/TZ")
    assert zone_of(router) == "CST-8"


def test_without_zone_data_the_posix_string_beside_the_name_is_taken(router: Path) -> None:
    text = (
        "config timeserver 'ntp'\n\toption zonename 'Asia/Wrong'\n\toption timezone 'AAA1'\n\n"
        "config system\n"
        "\toption hostname 'OpenWrt'\n"
        "# option timezone 'BBB2'\n"
        "\tlist zonename 'Asia/Tokyo'\n"
        "\toption zonename 'America/Los Angeles'\n"
        "\toption timezone 'PST8PDT,M3.2.0,M11.1.0'\n\n"
        "config system 'second'\n\toption timezone 'CCC3'\n"
        "config ntp-more\n\toption timezone 'DDD4'\n"
    )
    system(router, text)
    assert zone_of(router) == "PST8PDT,M3.2.0,M11.1.0"
    install(router, "America/Los_Angeles", database="usr/lib/zoneinfo")
    assert zone_of(router) == "America/Los_Angeles"


@pytest.mark.parametrize("value", ["'CST-8'", '"CST-8"', "CST-8"])
def test_a_setting_of_the_router_may_be_quoted_in_three_ways(router: Path, value: str) -> None:
    system(router, f"config system\n  option timezone {value}\n")
    assert zone_of(router) == "CST-8"


def test_an_unnamed_option_sets_nothing(router: Path) -> None:
    system(router, "config system\n\toption timezone\n\toption zonename ''\nnonsense\n")
    assert zone_of(router) == "UTC"


def test_a_chain_of_links_ends_at_the_first_zone(router: Path) -> None:
    install(router, "Asia/Shanghai")
    (router / "tmp/localtime").symlink_to("/usr/share/zoneinfo/Asia/Shanghai")
    (router / "etc/localtime").symlink_to("/tmp/localtime")
    assert zone_of(router) == "Asia/Shanghai"


def test_relative_links_are_followed_too(router: Path) -> None:
    install(router, "Asia/Shanghai")
    (router / "tmp/localtime").symlink_to("../usr/share/zoneinfo/Asia/Shanghai")
    (router / "etc/localtime").symlink_to("../tmp/localtime")
    assert zone_of(router) == "Asia/Shanghai"


def test_links_in_a_circle_name_no_zone(router: Path) -> None:
    (router / "etc/localtime").symlink_to("/etc/localtime")
    assert zone_of(router) == "UTC"


def test_a_copied_zone_file_has_no_name(router: Path) -> None:
    (router / "etc/localtime").write_bytes(SHANGHAI)
    assert zone_of(router) == "UTC"


def test_damaged_zone_data_is_passed_over(router: Path) -> None:
    install(router, "Asia/Shanghai")
    (router / "etc/localtime").symlink_to("/usr/share/zoneinfo/Asia/Shanghai")
    (router / "usr/share/zoneinfo/Asia/Shanghai").write_bytes(SHANGHAI[:100])
    assert router_zone(environment_tz="Asia/Shanghai", root=str(router)) == "UTC"


def test_this_machine_has_a_zone() -> None:
    text = router_zone(environment_tz=None)
    assert open_zone(text, read_tzif(text)).text == text
