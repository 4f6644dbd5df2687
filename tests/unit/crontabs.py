"""Crontabs of both dialects as plans, and what tests ask a plan."""

from __future__ import annotations

from qinglong_edge.core import crontab

Note = dict[str, int | str]


def vixie(text: str | bytes, *, user_column: bool = False, user: str = "root") -> crontab.Plan:
    data = text.encode() if isinstance(text, str) else text
    return crontab.parse(data, dialect="vixie", user_column=user_column, user=user, zone="UTC")


def busybox(text: str | bytes, *, user: str = "root") -> crontab.Plan:
    data = text.encode() if isinstance(text, str) else text
    return crontab.parse(data, dialect="busybox", user_column=False, user=user, zone="UTC")


def codes(notes: tuple[Note, ...]) -> list[tuple[int | str, int | str]]:
    return [(note["line"], note["code"]) for note in notes]


def only(plan: crontab.Plan) -> crontab.Imported:
    """The one task of a plan that refused nothing."""
    assert not plan.refused
    (task,) = plan.tasks
    return task


def refusal(plan: crontab.Plan) -> int | str:
    """The code of the one line that the plan is about."""
    assert not plan.tasks
    (note,) = plan.refused
    return note["code"]
