"""The budgets inside the emulated routers: what the processes hold, load and spend there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.emulation.conftest import Everywhere
from tests.support import ROOT
from tests.tools.router import gates
from tests.tools.router.gates import Table
from tests.tools.router.guest import Guest, Options
from tests.tools.router.images import Image
from tests.tools.router.machines import MACHINES

RUNS, ROUNDS, OFFERS = 100, 3, 30


@pytest.fixture(scope="module")
def tables(everywhere: Everywhere[Table], shared: str) -> dict[str, Table]:
    """Both routers' tables, measured at the same time.

    A guest's time passes with its instructions, so that no other load is seen in its figures.
    """

    def work(image: Image) -> Table:
        with Guest(image, Options(share=shared, counted=True)) as guest:
            return gates.measured(guest, ROOT, runs=RUNS, rounds=ROUNDS)

    return everywhere(work)


@pytest.mark.parametrize("machine", MACHINES)
def test_the_program_keeps_its_budget_in_a_router(
    machine: str, tables: dict[str, Table], tell: Callable[[object], None]
) -> None:
    """ADR-0069 verification 9: over a bare interpreter of the same guest."""
    tell(f"{machine}\n{tables[machine]}")
    assert tables[machine].held, str(tables[machine])


@pytest.fixture(scope="module")
def worker_tables(everywhere: Everywhere[Table], shared: str) -> dict[str, Table]:
    """The same of the worker, beside a control plane in its guest."""

    def work(image: Image) -> Table:
        with Guest(image, Options(share=shared, counted=True)) as guest:
            return gates.measured_worker(guest, ROOT, offers=OFFERS)

    return everywhere(work)


@pytest.mark.parametrize("machine", MACHINES)
def test_the_worker_keeps_its_budget_in_a_router(
    machine: str, worker_tables: dict[str, Table], tell: Callable[[object], None]
) -> None:
    """ADR-0115 verification 9: over a bare interpreter of the same guest that has loaded TLS."""
    tell(f"{machine}, the worker\n{worker_tables[machine]}")
    assert worker_tables[machine].held, str(worker_tables[machine])
