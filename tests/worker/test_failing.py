"""What keeps failing: how often it is said, and how soon it is tried again."""

from __future__ import annotations

from qinglong_edge.worker.failing import Failing


def test_a_reason_is_said_once_until_it_changes_or_is_over() -> None:
    said: list[tuple[str, object]] = []
    failing = Failing(lambda event, /, **facts: said.append((event, facts["code"])), "failed")
    for code in ("a", "a", "b", "a"):
        failing.failed(code)
    assert (said, failing.code) == ([("failed", "a"), ("failed", "b"), ("failed", "a")], "a")
    failing.over()
    assert failing.code is None
    failing.failed("a")
    assert said[3:] == [("failed", "a")]


def test_pauses_grow_to_a_minute_and_begin_again_once_it_works() -> None:
    failing = Failing(lambda _event, /, **_facts: None, "failed")
    assert [failing.failed("x") // 1_000 for _ in range(9)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    failing.over()
    assert failing.failed("x") == 1_000
