"""Build, show, test and measure; needs nothing but Python 3.11.

    python3 build.py                            the artifacts below dist, checked against budgets
    python3 build.py demo                       builds, then runs the main job for real and tells it
    python3 build.py test [--with-emulation] [--with-musl] [--with-flash] [-- PYTEST ARGUMENTS]
    python3 build.py bench [--json] [--quick]   the measured table, here and in two emulated routers
    python3 build.py bench --readme FILE        the README's table from what `--json` printed
    python3 build.py cuts [--seconds N] [--arch arm64|x86] [--worker | --flash jffs2|ubifs]
                          [--control]           power cuts on an emulated router

A thin door: the work is done by the modules under tests/tools.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys

ROOT = os.path.dirname(os.path.abspath(__file__))


def _arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="build.py", description="Without a command: build.")
    parser.add_argument("--python", default=sys.executable, help="whose byte code goes in")
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("demo", help="the main job, for real")
    test = commands.add_parser("test", help="lint, types and tests; pytest's arguments after --")
    test.add_argument("--with-emulation", action="store_true", help="install all, skip nothing")
    test.add_argument("--with-musl", action="store_true", help="a router's userland, alone or too")
    test.add_argument("--with-flash", action="store_true", help="a router's flash, alone or too")
    bench = commands.add_parser("bench", help="the measured table")
    bench.add_argument("--json", action="store_true", help="one JSON document")
    bench.add_argument("--quick", action="store_true", help="shorter looks, smaller states")
    bench.add_argument("--only", action="append", help="one part; an unknown one names them all")
    bench.add_argument("--routers", metavar="FILE", help="their figures from an earlier --json")
    bench.add_argument("--readme", metavar="FILE", help="write an earlier --json into the README")
    cuts = commands.add_parser("cuts", help="power cuts on an emulated router")
    cuts.add_argument("--seconds", type=int, default=900, help="how long to go on")
    cuts.add_argument("--arch", choices=("arm64", "x86"), default="arm64", help="which router")
    job = cuts.add_mutually_exclusive_group()
    job.add_argument("--worker", action="store_true", help="a worker's job, not the main one")
    job.add_argument("--flash", choices=("jffs2", "ubifs"), default=None, help="on a flash chip")
    cuts.add_argument("--control", action="store_true", help="what is flushed is forgotten")
    cuts.add_argument("--seed", type=int, default=None, help="the order of an earlier time")
    if "--" not in given:
        return parser.parse_args(given)
    mark = given.index("--")
    own = parser.parse_args(given[:mark])
    if own.command != "test":
        parser.error("only `test` passes arguments on")
    own.pytest = given[mark + 1 :]
    return own


def _build(python: str) -> int:
    from tests.tools import builder, gates

    held = True
    for kind in builder.kinds(ROOT):
        output = os.path.join(ROOT, kind.file)
        try:
            artifact = builder.build(ROOT, output, python=python, kind=kind)
        except builder.BuildError as error:
            print(error, file=sys.stderr)
            return 1
        checked = gates.artifact_gates(artifact, gates.budget(ROOT, kind.profile))
        print(gates.report(artifact, checked))
        held = held and all(gate.held for gate in checked)
    return 0 if held else 1


def main(given: list[str]) -> int:
    """The exit status: 0 done, 1 a check or a budget failed, 2 wrong usage."""
    if sys.version_info < (3, 11):  # noqa: UP036 - the sentence is for whoever runs an older one
        print("Python 3.11 or newer is needed.", file=sys.stderr)
        return 2
    own = _arguments(given)
    if own.command is None:
        return _build(own.python)
    if own.command == "test":
        from tests.tools import testing

        given = getattr(own, "pytest", [])
        return testing.test(
            ROOT,
            emulation=own.with_emulation,
            musl=own.with_musl,
            flash=own.with_flash,
            pytest=given,
        )
    options = [
        f"--{name}" for name in ("json", "quick", "worker", "control") if getattr(own, name, False)
    ]
    for name in ("seconds", "arch", "seed", "flash", "routers", "readme"):
        if getattr(own, name, None) is not None:
            options += [f"--{name}", str(getattr(own, name))]
    for part in getattr(own, "only", None) or ():
        options += ["--only", part]
    status: int = importlib.import_module(f"tests.tools.{own.command}").main(options)
    return status


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BrokenPipeError:  # `| head`: what was to be read has been read
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
