"""Commands for moving in: what a box needs beside the program.

Owns their mapping to methods and text, apart from the everyday commands' table.
"""

from __future__ import annotations

from qinglong_edge.cli import render

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from qinglong_edge.cli.context import Context


def _install(context: Context) -> int:
    from qinglong_edge.app import kit

    options = context.options
    name = "feed" if options.verb == "feed" else options.command
    answer = kit.install(name, options.root)
    return context.show(answer, lambda: _installed(answer))


def _installed(answer: Mapping[str, Any]) -> str:
    lines = [f"wrote {render.inline(path)}\n" for path in answer["written"]]
    lines += [f"kept {render.inline(path)} (edited)\n" for path in answer["kept"]]
    lines.append("" if answer["written"] else "everything is there already\n")
    if answer["next"]:
        lines += ["next:\n", *(f"  {line}\n" for line in answer["next"])]
    return "".join(lines)


def _uninstall(context: Context) -> int:
    from qinglong_edge.app import kit

    options = context.options
    answer = kit.uninstall(options.command, options.root)

    def text() -> str:
        lines = [f"removed {render.inline(path)}\n" for path in answer["removed"]]
        lines += [f"kept {render.inline(path)} (edited)\n" for path in answer["kept"]]
        return "".join([*lines, "the state directory was not touched\n"])

    return context.show(answer, text)


def _rpcd(context: Context) -> int:
    from qinglong_edge.cli import rpcd

    return rpcd.answer(context.options.method, context.where)


def _export(context: Context) -> int:
    from qinglong_edge.cli import envfiles, exporting

    envs = context.options.command == "env" or context.options.what == "envs"
    return envfiles.write(context) if envs else exporting.write(context)


COMMANDS: Mapping[str, Callable[[Context], int]] = {
    **{
        f"{kit} {verb}": command
        for kit in ("openwrt", "systemd", "s6", "docker", "program")
        for verb, command in (("install", _install), ("uninstall", _uninstall))
    },
    "openwrt feed": _install,
    "export": _export,
    "env export": _export,
    "rpcd": _rpcd,
}
