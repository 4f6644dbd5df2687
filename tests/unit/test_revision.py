"""Execution revisions: digests of the contract's vectors, order, bounds, references."""

from __future__ import annotations

from typing import Any

import pytest

from qinglong_edge.core import revision
from qinglong_edge.core.errors import Invalid
from tests.unit.offers import plan as document

ITEM = "qlsecret:v1:eyJwcm9qZWN0SWQiOiJwcm9qZWN0LTEiLCJuYW1lIjoiaXRlbS0xIn0"
TOKEN = "qlsecret:v1:eyJwcm9qZWN0SWQiOiJwcm9qZWN0LTEiLCJuYW1lIjoidG9rZW4ifQ"
PINNED = (
    "qlsecret:v1:eyJwcm9qZWN0SWQiOiJwcm9qZWN0LTEiLCJuYW1lIjoibGVnYWN5LWVudi1idW5kbGUi"
    "LCJ2ZXJzaW9uIjoyfQ"
)
TWO = [
    {"name": "PUBLIC_VALUE", "kind": "public", "value": "visible"},
    {"name": "SECRET_VALUE", "kind": "secret", "secretRef": ITEM},
]


@pytest.mark.parametrize(
    ("changes", "digest"),
    [
        ({}, "c633a31abeaeef169a7b7fd83f8bacb6100d2204c6f59f89571fd37a2b1f3b2f"),
        ({"environment": TWO}, "d9659800714759234cb264c00d3d4a0bba03522c48678ead6e2dae87d2379873"),
        (
            {"environment": TWO, "timeoutMs": 5000},
            "091b348fd66c453e78665073d2e032f32c675e94d606630d799ce1fc92a1b03b",
        ),
        (
            {"environment": [{"name": "TOKEN", "kind": "secret", "secretRef": TOKEN}]},
            "23627b02a4af33c1adafc55cf8c90cafc553d242a74c4b1688003851e48d4d8a",
        ),
    ],
)
def test_the_digest_is_the_contracts(changes: dict[str, Any], digest: str) -> None:
    made = document(**changes)
    assert made["contentDigest"] == digest
    assert revision.decode(made).content_digest == digest


def test_what_a_revision_says_is_what_will_run() -> None:
    made = revision.decode(
        document(
            command={"kind": "shell", "command": "echo", "shell": "/bin/bash"},
            environment=TWO,
            environmentBundleRef=PINNED,
            workingDirectory="/srv",
            timeoutMs=9,
        )
    )
    assert made.argv == ("/bin/bash", "-c", "echo")
    assert made.secret_refs == (ITEM,)
    assert (made.bundle_ref, made.cwd, made.timeout_ms) == (PINNED, "/srv", 9)
    assert revision.decode(document()).argv == ("/bin/true",)
    assert "visible" not in repr(made)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"executorType": "local_process"}, "executorType"),
        ({"planSchema": "other@v1"}, "planSchema"),
        ({"taskRevision": "qltd:v1:2:" + "a" * 64}, "taskRevision"),
        ({"sourceRevision": True}, "sourceRevision"),
        ({"sourceRevision": 2**31}, "sourceRevision"),
        ({"timeoutMs": 0}, "timeoutMs"),
        ({"command": {"kind": "argv", "file": "true", "args": []}}, "file"),
        ({"command": {"kind": "argv", "file": "/t", "args": ["a\0"]}}, "args"),
        ({"command": {"kind": "argv", "file": "/t", "args": [], "shell": "/bin/sh"}}, "command"),
        ({"command": {"kind": "shell", "command": "x", "shell": "/bin/zsh"}}, "shell"),
        ({"command": {"kind": "shell", "command": ""}}, "command"),
        ({"environment": list(reversed(TWO))}, "environment"),
        ({"environment": [TWO[0], TWO[0]]}, "environment"),
        ({"environment": [{"name": "QL3_X", "kind": "public", "value": ""}]}, "environment"),
        ({"environment": [{**TWO[0], "secretRef": ITEM}]}, "environment"),
        ({"environment": [{**TWO[0], "value": "x" * 65_536}]}, "environment"),
        ({"environment": [{**TWO[1], "secretRef": ITEM + "A"}]}, "secretRef"),
        ({"environmentBundleRef": ITEM}, "environmentBundleRef"),
        ({"workingDirectory": "srv"}, "cwd"),
        ({"surplus": 1}, "executionRevision"),
    ],
)
def test_a_revision_that_is_not_the_contracts_is_refused_by_field(
    changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(Invalid) as caught:
        revision.decode(document(**changes))
    assert caught.value.facts == {"field": field}


def test_a_revision_of_another_content_is_refused() -> None:
    made = document()
    made["command"] = {"kind": "argv", "file": "/bin/false", "args": []}
    with pytest.raises(Invalid):
        revision.decode(made)


def test_names_stand_in_the_planes_order() -> None:
    for text in (
        "_ _A 1 a A a_ A_B A0 a1 A1 aB AB b B z Z",
        "path Path PATH PATH_A PATH1 PATHA",
    ):
        places = [revision._place(name) for name in text.split()]
        assert places == sorted(places)


def test_a_reference_of_another_project_or_form_is_refused() -> None:
    assert revision.check_ref(PINNED, "project-1") == 2
    assert revision.check_ref(ITEM, "project-1") is None
    for text in (ITEM, ITEM + "=", "qlsecret:v2:e30", "qlsecret:v1:e30", 7):
        with pytest.raises(Invalid):
            revision.check_ref(text, "project-2")
