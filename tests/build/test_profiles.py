"""Profiles by name, from a checkout; the zipapp's half is shown with the artifact."""

from __future__ import annotations

import pytest

from qinglong_edge.app import profiles
from qinglong_edge.core.errors import Invalid, Refused


def test_every_profile_of_the_checkout_loads() -> None:
    assert {"edge", "standalone"} <= set(profiles.names())
    for name in profiles.names():
        assert profiles.load(name).name == name


def test_edge_and_standalone_keep_the_cadences_of_the_decision() -> None:
    """ADR-0069 section 5 and 6: interval, page and retention of the receipt cleanup."""
    edge, standalone = profiles.load("edge"), profiles.load("standalone")
    assert (edge.cleanup_interval_ms, edge.cleanup_page) == (300_000, 8)
    assert edge.receipt_retention_ms == 86_400_000
    assert (standalone.cleanup_interval_ms, standalone.cleanup_page) == (60_000, 32)
    assert standalone.receipt_retention_ms == 3_600_000


@pytest.mark.parametrize("name", ["", "Edge", "../edge", "edge.toml", "nope", "\0"])
def test_an_unknown_profile_is_invalid(name: str) -> None:
    with pytest.raises(Invalid) as caught:
        profiles.load(name)
    assert caught.value.code == "profile_unknown"
    assert caught.value.facts == {"known": " ".join(profiles.names())}


@pytest.mark.parametrize("name", ["cluster-control", "cluster-"])
def test_a_clusters_profile_is_refused(name: str) -> None:
    with pytest.raises(Refused) as caught:
        profiles.load(name)
    assert caught.value.code == "profile_cluster"
