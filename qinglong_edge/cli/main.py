"""The command line's door: what was asked, who answers, how it ends.

Owns argv, the environment (nothing else reads it), the exit status and the two output forms. A
command goes to the daemon over the control socket; without a daemon it owns the state for a moment
and does the same method itself.

    0 done | 1 the awaited run did not succeed | 2 wrong usage or input | 3 not found, conflict or
    refused | 4 unavailable or busy | 5 stored state corrupt or too new | 70 bug | 130 interrupted

The daemon's own path (`run`) loads no argument parser.
"""

from __future__ import annotations

import gc
import os
import sys

from qinglong_edge.app import telling
from qinglong_edge.cli import output
from qinglong_edge.core.errors import EdgeError, Invalid, module_missing

EXIT_INTERRUPTED = 130
_STATE_VARIABLE = "QINGLONG_EDGE_STATE"
_CONFIG_VARIABLE = "QINGLONG_EDGE_CONFIG"
_ROUTER_CONFIG = "/etc/config/qinglong-edge"
_GLOBAL = {"--state": "state", "--runtime": "runtime"}
_RUN_USAGE = "usage: qinglong-edge [--state DIR] [--runtime DIR] run [--on-stop leave|cancel]"


def main(argv: list[str] | None = None) -> int:
    """Run one command line; the exit status."""
    telling.prepare_process(anew=argv is None)
    given = sys.argv[1:] if argv is None else argv
    as_json = "--json" in given[: given.index("--") if "--" in given else None]
    try:
        return _main([_utf8(word) for word in given], anew=argv is None)
    except EdgeError as error:
        return output.fail(error, as_json=as_json)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        output.silence()
        return 0
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0
    except ModuleNotFoundError as error:
        return output.fail(module_missing(error.name or ""), as_json=as_json)
    except Exception as error:
        if os.environ.get("QINGLONG_EDGE_DEBUG"):
            raise
        kind = type(error).__name__
        bug = EdgeError("bug", f"An unexpected error ({kind}); this is a bug.", kind=kind)
        return output.fail(bug, as_json=as_json)


def _utf8(word: str) -> str:
    try:
        word.encode("utf-8")
    except UnicodeError:
        raise Invalid("not_utf8", "An argument is not UTF-8.") from None
    return word


def _main(arguments: list[str], *, anew: bool) -> int:
    daemon = _daemon_options(arguments)
    if daemon is not None:
        return _run_daemon(daemon, anew=anew)
    from qinglong_edge.cli import commands

    return commands.run(arguments, settled=settled, environment_tz=environment_tz())


def settled(state: str | None, runtime: str | None) -> tuple[str, str | None]:
    """The directories to use for those that a command line names.

    What it leaves out comes from the environment, else from a router's own configuration: the
    commands there must find the scheduler that the init script started.
    """
    from qinglong_edge.app.state import DEFAULT_STATE

    if state is None:
        state = os.environ.get(_STATE_VARIABLE) or None
    file = os.environ.get(_CONFIG_VARIABLE) or _ROUTER_CONFIG
    if runtime is None and os.path.exists(file):
        from qinglong_edge.cli import uci

        there = uci.options(file)
        configured = there.get("state") or DEFAULT_STATE
        if state is None or os.path.abspath(state) == configured:
            return configured, there.get("runtime")
    return DEFAULT_STATE if state is None else state, runtime


def environment_tz() -> str | None:
    """The zone this process was started in, if one was named."""
    return os.environ.get("TZ") or None


def _daemon_options(arguments: list[str]) -> dict[str, str] | None:
    """The options of `run`, read by hand; None if another command is meant."""
    options = {"on_stop": "leave"}
    rest = list(arguments)
    seen_run = False
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word == "run" and not seen_run:
            seen_run = True
        elif word == "--json":
            continue
        elif name in _GLOBAL or (seen_run and name == "--on-stop"):
            if not equals:
                if not rest:
                    return None if not seen_run else _wrong_run()
                value = rest.pop(0)
            options[_GLOBAL.get(name, "on_stop")] = value
        elif not seen_run or word in ("-h", "--help"):
            return None
        else:
            return _wrong_run()
    if not seen_run:
        return None
    if options["on_stop"] not in ("leave", "cancel"):
        return _wrong_run()
    return options


def _wrong_run() -> dict[str, str] | None:
    raise Invalid("usage", f"Unknown or incomplete option; {_RUN_USAGE}")


def _run_daemon(options: dict[str, str], *, anew: bool) -> int:
    gc.disable()  # what is imported stays; looking for garbage in it is a twentieth of a start
    try:
        from qinglong_edge.app import program

        if anew:
            program.settle()
        from qinglong_edge.app import daemon, state
    finally:
        gc.enable()

    where = state.place(*settled(options.get("state"), options.get("runtime")))
    program.release()
    if not daemon.serve(where, on_stop=options["on_stop"]):
        output.write("disabled\n")
    return 0
