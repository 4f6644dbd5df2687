"""What the interpreter's own start leaves in a process, and what of it a resident one lets go.

Owns no state but `sys.modules`. `python3 ZIPAPP` goes through `runpy`, and that brings functools,
collections, contextlib, importlib.util and what they import: half a MiB that nothing resident uses.
It is forgotten before anything of ours is imported into its place. Who imports one of them later
gets it anew, to no harm: what two copies would have to share is in C.
"""

from __future__ import annotations

import gc
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_FUNCTOOLS = "functools"
_STARTERS = (
    *("importlib", "importlib._abc", "importlib.machinery", "importlib.util"),
    *(_FUNCTOOLS, "collections", "contextlib", "keyword", "operator", "reprlib", "types"),
    "warnings",
)


def forget_starter(*needed: str) -> None:
    """Forget `runpy` and what it alone needed; its frames are below ours and look at nothing more.

    For a process that lives for months, before it imports what it lives on; `needed` are modules
    that this takes in turn.
    """
    starter = sys.modules.pop("runpy", None)
    if starter is None:
        return
    for name, value in list(vars(starter).items()):
        if isinstance(value, type(sys)):
            delattr(starter, name)
    for name in _STARTERS:
        if name not in needed:
            sys.modules.pop(name, None)
    gc.collect()  # a module's functions and classes hold one another


class LentCache:
    """While `_sqlite3` is imported: the one function it takes from functools, without the rest.

    It is the same cache in C. Where functools is there already, that is taken.
    """

    def __enter__(self) -> None:
        self._lent: ModuleType | None = None
        if _FUNCTOOLS in sys.modules:
            return
        try:
            from _functools import _lru_cache_wrapper as cached  # type: ignore[import-not-found]
        except ImportError:
            return

        def lru_cache(maxsize: int) -> Callable[[object], object]:
            return lambda call: cached(call, maxsize, False, tuple)

        self._lent = type(sys)(_FUNCTOOLS)
        vars(self._lent)["lru_cache"] = lru_cache
        sys.modules[_FUNCTOOLS] = self._lent

    def __exit__(self, *_exception: object) -> None:
        if self._lent is not None:
            del sys.modules[_FUNCTOOLS]
