"""`doctor` on a router: in one screen what works, what is missing, and what to type."""

from __future__ import annotations

import json
from typing import Any

from tests.musl.router import Router
from tests.tools.musl.tree import CRYPTO, NO_SQLITE, OLDER, ZONES

ROWS = 24  # of a terminal over ssh


def checks(router: Router) -> dict[str, Any]:
    """Every check by its name."""
    found = router.run("--json", "doctor")
    return {each["check"]: each for each in json.loads(found.stdout)["checks"]}


def amiss(router: Router) -> dict[str, str]:
    """What is not well, and what to do about it."""
    return {name: each["fix"] for name, each in checks(router).items() if each["status"] != "ok"}


def test_a_fresh_router_is_told_what_to_install_in_one_screen(router: Router) -> None:
    router.ok("init")
    done = router.run("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") <= ROWS, done.stdout
    wanted = {
        "cryptography": "opkg install python3-cryptography",
        "zone": "opkg install zoneinfo-core zoneinfo-asia",
    }
    assert amiss(router) == wanted
    assert done.stdout.endswith("".join(f"\n{name}: {fix}" for name, fix in wanted.items()) + "\n")


def test_a_router_with_all_of_it_has_nothing_to_do(router: Router) -> None:
    router.packages = (CRYPTO, ZONES)
    router.ok("init")
    with router.scheduler():
        assert amiss(router) == {}
        assert router.run("doctor").returncode == 0


def test_the_package_that_an_older_cryptography_lacks_is_the_one_to_install(
    router: Router,
) -> None:
    """OpenWrt 23.05's needs two packages that 25.12's does not."""
    router.packages = (OLDER, ZONES)
    router.ok("init")
    assert amiss(router) == {"cryptography": "opkg install python3-email"}
    refused = router.run("secret", "set", "COOKIE", given="x")
    assert (refused.returncode, "module=email" in refused.stderr) == (4, True)


def test_before_its_sqlite_is_installed_the_program_names_the_package(router: Router) -> None:
    router.packages = (NO_SQLITE,)
    for command in ("init", "doctor", "status"):
        done = router.run(command)
        assert (done.returncode, done.stdout) == (4, "")
        assert "package=python3-sqlite3" in done.stderr


def test_a_channel_without_tls_is_a_failure_with_its_package(router: Router) -> None:
    router.packages = (CRYPTO, ZONES)
    router.ok("init")
    router.ok("notify", "add", "ntfy", given="topic-of-mine")
    assert amiss(router) == {"tls": "opkg install python3-openssl"}
