"""The worker's command line: run it, see how it stands, drain it, settle an offer, find faults.

Owns argv, exit status and output of the worker's artifact.

    0 done | 2 wrong usage or input | 3 refused | 4 unavailable | 5 stored state corrupt | 70 bug
"""

from __future__ import annotations

import json
import os
import sys

from qinglong_edge.app import telling
from qinglong_edge.core.errors import EXIT_BUG, EdgeError, Invalid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qinglong_edge.app.worker_config import WorkerConfig

_DEFAULT = "/etc/qinglong-worker/worker.json"
_USAGE = """usage: qinglong-edge-worker COMMAND [--config FILE]

  run                           be the worker; TERM stops it, running tasks go on
  status                        session, places and offers, as JSON
  drain                         take no more offers; the worker ends once its runs have ended
  settle OFFER --reason TEXT    free the place of an offer that cannot be proven
  doctor                        check configuration, credentials, directories and the plane

FILE is /etc/qinglong-worker/worker.json unless it is given.
"""
# What `json`, `ssl` and `http.client` take of the modules that the interpreter's start brought.
_NEEDED = ("collections", "functools", "keyword", "operator", "reprlib", "types", "warnings")
_COMMANDS = frozenset({"run", "status", "drain", "settle", "doctor"})


def main(argv: list[str] | None = None) -> int:
    """Run one command line; the exit status."""
    telling.prepare_process(anew=argv is None)
    try:
        return _main(sys.argv[1:] if argv is None else argv, anew=argv is None)
    except EdgeError as error:
        facts = " ".join(f"{name}={value}" for name, value in error.facts.items())
        _write(2, f"qinglong-edge-worker: {error.code}: {error.message} {facts}".rstrip())
        return error.exit_status
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if os.environ.get("QINGLONG_EDGE_DEBUG"):
            raise
        _write(2, f"qinglong-edge-worker: bug: An unexpected error ({type(error).__name__}).")
        return EXIT_BUG


def _main(arguments: list[str], *, anew: bool) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        _write(1 if arguments else 2, _USAGE.rstrip())
        return 0 if arguments else 2
    command, options, offers = _parsed(arguments)
    from qinglong_edge.app import worker_config

    config = worker_config.read(options.get("--config", _DEFAULT))
    if command == "run":
        return _run(config, anew=anew)
    if command == "doctor":
        from qinglong_edge.app import worker_doctor

        found = worker_doctor.examine(config)
        _write(1, json.dumps(found, indent=2, ensure_ascii=False))
        return 0 if all(each["ok"] for each in found) else 1
    from qinglong_edge.app import worker_control

    params: dict[str, object] = {}
    if command == "settle":
        params = {"offer": offers[0], "reason": options["--reason"]}
    answer = worker_control.ask(config, command, params)
    _write(1, json.dumps(answer, indent=2, ensure_ascii=False))
    return 0


def _run(config: WorkerConfig, *, anew: bool) -> int:
    from qinglong_edge.app import program

    if anew:
        program.settle(*_NEEDED)
    from qinglong_edge.app import worker_daemon

    program.release()
    if not worker_daemon.serve(config):
        _write(1, "disabled")
    return 0


def _parsed(arguments: list[str]) -> tuple[str, dict[str, str], list[str]]:
    """The command, its options, its operands; Invalid `usage` for anything else."""
    command, *rest = arguments
    options: dict[str, str] = {}
    operands: list[str] = []
    allowed = {"--config", "--reason"} if command == "settle" else {"--config"}
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name in allowed and name not in options:
            if not equals and not rest:
                raise Invalid("usage", f"{name} needs a value.")
            options[name] = value if equals else rest.pop(0)
        elif name.startswith("-"):
            raise Invalid("usage", "An option is unknown or given twice; try --help.")
        else:
            operands.append(f"{name}{equals}{value}")
    wanted = 1 if command == "settle" else 0
    if command not in _COMMANDS or len(operands) != wanted:
        raise Invalid("usage", "A command is unknown or incomplete; try --help.")
    if command == "settle" and "--reason" not in options:
        raise Invalid("usage", "settle needs --reason TEXT.")
    return command, options, operands


def _write(fd: int, text: str) -> None:
    try:
        os.write(fd, text.encode("utf-8", "replace") + b"\n")
    except OSError:
        return


if __name__ == "__main__":
    sys.exit(main())
