"""The way from a recipe to its launching child: sealed rows by inheritance, opened there only.

Owns why secrets cannot be opened here, as far as it is known. This process never opens the keyring
and never imports a cipher; a one-shot child looks at both. A crash loses nothing: the next owner
asks again.
"""

from __future__ import annotations

import os

from qinglong_edge.core import secret
from qinglong_edge.core.errors import EdgeError, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from qinglong_edge.core.recipe import Recipe
    from qinglong_edge.core.secret import Envelope
    from qinglong_edge.execution.ports import LoopPort
    from qinglong_edge.storage.store import Store
    from qinglong_edge.system.child import Spawner
    from qinglong_edge.system.process import Processes

_FOR_GOOD = frozenset({"secret_ref_invalid", "secret_unavailable", "row_corrupt"})
_PROVIDER = "secret_provider_unavailable"


class SecretSource:
    """Hands sealed rows to launching children; knows why they could not be opened."""

    def __init__(
        self,
        store: Store,
        keyring: str,
        *,
        spawner: Spawner,
        processes: Processes,
        loop: LoopPort,
        kept: tuple[int, ...],
    ) -> None:
        self._store = store
        self._keyring = keyring
        self._spawner = spawner
        self._processes = processes
        self._loop = loop
        self._kept = kept
        self._asking = False
        self.reason: str | None = None  # why a launch that binds a secret would fail

    def resolver(self, recipe: Recipe) -> Callable[[], dict[str, str]]:
        """What a launching child calls for the values of its secrets.

        The sealed rows travel by inheritance. `Refused` (`secret_unavailable`) here for a reference
        that is foreign, damaged or leads to nothing: before a process, a log or a row exists.
        """
        if not recipe.secret_refs:
            return dict
        rows: tuple[tuple[Envelope, ...] | None, ...] = (None,)
        try:
            rows = self._store.secrets.resolve(secret.parse_all(recipe.secret_refs))
        except EdgeError as error:
            if error.code not in _FOR_GOOD:
                raise
        if None in rows:
            raise Refused("secret_unavailable", "A secret of the task is missing.")
        keyring = self._keyring

        def resolve() -> dict[str, str]:
            from qinglong_edge.secret import provider

            return provider.materialise(recipe, rows, keyring)

        return resolve

    def proved(self, code: str | None) -> None:
        """A launch with secrets got through (None), or did not."""
        if code is None:
            self.reason = None
        elif code == _PROVIDER:
            self.reason = self.reason or code
            self.examine()

    def examine(self) -> None:
        """Let a one-shot child look at keyring and cipher; `reason` follows when it has answered.

        Nothing waits for it: an owner starts without keys too, and only tasks with secrets fail.
        """
        if self._asking or not self._store.has_secrets():
            return
        try:
            pid, fd = self._spawner.consult(self._look, self._kept)
        except OSError:
            return  # the first launch will tell
        self._asking = True
        self._loop.watch(fd, lambda: self._heard(pid, fd))

    def _look(self) -> bytes:
        from qinglong_edge.secret import provider

        try:
            provider.preflight(self._keyring)
        except EdgeError as error:
            return str(error.facts.get("reason") or error.code).encode("ascii")
        return b"ready"

    def _heard(self, pid: int, fd: int) -> None:
        said = os.read(fd, 256)
        self._loop.unwatch(fd)
        os.close(fd)
        self._processes.reap(pid)
        self._asking = False
        if said:
            self.reason = None if said == b"ready" else said.decode("ascii", "replace")
