"""The way from a recipe to its launching child: sealed rows by inheritance, opened there only.

Owns why secrets cannot be opened here, as far as it is known. This process never opens the keyring
and never imports a cipher; a one-shot child looks at both. A crash loses nothing: the next owner
asks again.
"""

from __future__ import annotations

import os

from qinglong_edge.core.errors import EdgeError, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from qinglong_edge.core.envset import EnvSet
    from qinglong_edge.core.recipe import Recipe
    from qinglong_edge.core.secret import SecretRef
    from qinglong_edge.execution.ports import LoopPort
    from qinglong_edge.storage.store import Store
    from qinglong_edge.system.child import Spawner
    from qinglong_edge.system.process import Processes

_FOR_GOOD = frozenset({"secret_ref_invalid", "secret_unavailable", "row_corrupt", "env_corrupt"})
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
        from qinglong_edge.core import secret

        try:
            refs = secret.parse_all(recipe.secret_refs)
            envs = self._envs(refs)
            rows = self._store.secrets.resolve(refs)
        except EdgeError as error:
            if error.code not in _FOR_GOOD:
                raise
            raise _missing() from None
        for ref, row in zip(recipe.secret_refs, rows, strict=True):
            if row is None and (ref not in envs or envs[ref].needs_key):
                raise _missing()
        keyring = self._keyring

        def resolve() -> dict[str, str]:
            from qinglong_edge.secret import provider

            return provider.materialise(recipe, rows, keyring, envs=envs)

        return resolve

    def _envs(self, refs: tuple[SecretRef, ...]) -> dict[str, EnvSet]:
        """The references that stand for ordered values, not for one; their order is read here."""
        from qinglong_edge.core.secret import ENV_SETTING

        found = {}
        for ref in refs:
            text = self._store.setting(ENV_SETTING + ref.name)
            if text is not None:
                from qinglong_edge.core import envset

                found[ref.text] = envset.decode(ref.name, text)
        return found

    def proved(self, code: str | None) -> None:
        """A launch with secrets got through (None), or did not."""
        if code is None:
            if self.reason is not None:  # perhaps it needed no key: the child can tell
                self.reason = None
                self.examine()
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


def _missing() -> Refused:
    return Refused("secret_unavailable", "A secret of the task is missing.")
