"""The musl compiler's door: `python -IS cc.py ZIG TARGET WORDS` becomes `ZIG cc -target TARGET`.

Build systems hand a few options to GNU's linker that zig's refuses, and an older `setup.py` adds
this machine's own folders, whose headers are another libc's: those are translated or left out.
Everything is made for size and without a debugger's notes, whatever is asked: the compiler makes a
libc of its own for each choice.
"""

from __future__ import annotations

import os
import sys

_SONAME = "-Wl,-h"
_REFUSED = (
    *("-I/usr/include", "-I/usr/local/include", "-L/usr/lib", "-L/usr/local/lib", "-L/lib"),
    *("-Wl,--warn-common", "-Wl,--verbose", "-Wl,-Map,", "-Wl,--sort-common", "-Wl,--sort-section"),
)


def translated(arguments: list[str]) -> list[str]:
    """The arguments as zig takes them."""
    kept = [one for one in arguments if not one.startswith((*_REFUSED, "-O")) and one != "-g"]
    named = f"{_SONAME.removesuffix('h')}-soname,"
    return ["-Os", *(one.replace(_SONAME, named) for one in kept)]


if __name__ == "__main__":
    zig, target, *given = sys.argv[1:]
    os.execv(zig, [zig, "cc", "-target", target, *translated(given)])
