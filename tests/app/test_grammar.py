"""The grammar explains itself: no command, option or argument stands there without a word."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from qinglong_edge.cli import parser


def every(
    command: argparse.ArgumentParser, name: str
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """A parser and those below it, by their names."""
    yield name, command
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, below in action.choices.items():
                yield from every(below, f"{name} {word}".strip())


def test_every_option_and_argument_has_its_help() -> None:
    found = dict(every(parser.build(), ""))
    assert {"task add", "env move", "openwrt uninstall", "log"} <= set(found)
    silent = [
        f"{name}: {action.dest}"
        for name, command in found.items()
        for action in command._actions
        if not action.help and not isinstance(action, argparse._SubParsersAction)
    ]
    assert silent == []


def test_every_help_can_be_printed_and_names_what_it_is_for() -> None:
    for name, command in every(parser.build(), ""):
        told = command.format_help()
        assert command.description, name
        assert "==" not in told, name
        assert len(told.splitlines()) < 100, name


def test_the_help_tells_the_exit_statuses_and_where_the_state_is() -> None:
    told = " ".join(parser.build().format_help().split())
    assert "exit status: 0 done" in told
    assert "/srv/qinglong-edge" in told
