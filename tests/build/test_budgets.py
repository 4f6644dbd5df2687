"""The budgets: what the program may weigh, hold, spend and write; a miss names what grew.

Ratios are measured in one session against a bare interpreter or a bare spawn. Another load on the
machine can only make them worse, so the best of a few tries counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.tools import bench_idle, bench_parts, bench_run, gates, measure
from tests.tools.measure import Product

BUDGET = gates.budget(ROOT)
TRIES = 8


@pytest.fixture
def product(zipapp: str) -> Product:
    """The artifact of this tree under the Python that runs the tests."""
    return Product(zipapp)


def best(measurement: Callable[[str], float], limit: float) -> float:
    """The smallest of some measurements; the first one within its limit is enough."""
    found: list[float] = []
    while len(found) < TRIES:
        with measure.folder(on_memory=True) as home:
            found.append(measurement(home))
        if found[-1] <= limit:
            break
    return min(found)


def grown(product: Product, home: Path) -> str:
    """What may be to blame: modules over the golden list, the largest of ours by their code."""
    loaded = frozenset(bench_idle.modules(product, str(home)))
    over = sorted(loaded - bench_idle.golden(bench_parts.GOLDEN, bench_parts.MINOR))
    return f"{len(loaded)} modules, over golden: {over or 'none'}; by size: {weights(loaded)}"


def weights(loaded: frozenset[str]) -> str:
    """The largest resident modules of ours, as bytes of source."""
    paths = {name: f"{os.path.join(ROOT, *name.split('.'))}.py" for name in loaded}
    found = [(os.path.getsize(path), name) for name, path in paths.items() if os.path.isfile(path)]
    return ", ".join(f"{name} {size:,}" for size, name in sorted(found, reverse=True)[:8])


PROMISED = {
    "zipapp_bytes": 384 << 10,
    "zipapp_files": 512,
    "idle_private_dirty_kib": 4 << 10,
    "idle_rss_kib": 6.5 * 1024,
    "run_cpu_ratio": 10,
    "run_device_bytes_burst": 64 << 10,
    "run_device_bytes_apart": 128 << 10,
    "run_commits": 3,
    "run_flushes": 5,
    "idle_bytes_written": 0,
    "idle_wakes_per_minute": 2,
}


def test_no_gate_is_wider_than_it_was_promised() -> None:
    """ADR-0069 verification 9: a gate that moves along with what it measures holds nothing."""
    assert {name: BUDGET[name] for name in PROMISED} == PROMISED
    worker = gates.budget(ROOT, "worker-edge")
    assert (worker["zipapp_bytes"], worker["zipapp_files"]) == (256 << 10, 512)


def test_twenty_secrets_that_are_stored_and_used_cost_an_idle_daemon_nothing(
    product: Product,
) -> None:
    """P7, ADR-0069 verification 9: the same gate, and no cipher in the resident process."""
    with measure.folder(on_memory=True) as home:
        found = bench_idle.footprint_with_secrets(product, home, secrets=20, runs=5)
    assert found.rss_with_zone <= BUDGET["idle_rss_kib"], found


def test_an_idle_daemon_holds_little_memory(product: Product, tmp_path: Path) -> None:
    """ADR-0069 verification 9: 100 tasks; private dirty, and RSS with a zone in use."""
    with measure.folder(on_memory=True) as home:
        found = bench_idle.footprint(product, home, rounds=3)
    dirty, rss = BUDGET["idle_private_dirty_kib"], BUDGET["idle_rss_kib"]
    within = found.private_dirty <= dirty and found.rss_with_zone <= rss
    assert within, f"{found} of {dirty:,} and {rss:,} KiB; {grown(product, tmp_path)}"


def test_what_is_loaded_late_leaves_nothing_but_itself_in_memory(product: Product) -> None:
    """What inflating its code took, glibc would keep; nor is more loaded than was asked for."""
    with measure.folder(on_memory=True) as home:
        state = os.path.join(home, "state")
        product.init(state)
        with product.daemon(state) as daemon:
            before = measure.memory(daemon.pid).private_dirty
            for method in ("env.list", "secret.list"):
                daemon.call(method)
            after = measure.memory(daemon.pid).private_dirty
    assert after - before <= 1_200, f"{before:,} -> {after:,} KiB"


def test_runs_leave_nothing_in_memory(product: Product) -> None:
    """Caches fill; then a run more is not a byte more."""
    with measure.folder(on_memory=True) as home:
        state = os.path.join(home, "state")
        product.populated(state, bench_idle.TASKS)
        with product.daemon(state) as daemon:
            daemon.call("task.add", name="one line", shell="echo hi")
            daemon.run("one line")
            first = measure.memory(daemon.pid).private_dirty
            for _ in range(300):
                daemon.run("one line")
            grown = measure.memory(daemon.pid).private_dirty - first
    assert grown <= BUDGET["growth_kib"], f"{grown} KiB by 300 runs"


def test_an_idle_daemon_writes_nothing_and_sleeps(product: Product) -> None:
    """P9: no byte to any write call, at most two wake-ups a minute."""
    with measure.folder(on_memory=True) as home:
        state = os.path.join(home, "state")
        product.populated(state, bench_idle.TASKS)
        with product.daemon(state) as daemon:
            rest = bench_idle.idle([daemon], seconds=6)[0]
    assert rest.written == BUDGET["idle_bytes_written"]
    # Six seconds hold at most one of the two wake-ups of a minute.
    assert rest.wakes_per_minute * 6 / 60 <= 1


def test_a_start_costs_few_bare_starts(product: Product) -> None:
    limit = BUDGET["start_ratio"]
    found = best(lambda home: bench_idle.start_ratio(product, home, rounds=9), limit)
    assert found <= limit, f"{found:.2f} bare starts of {limit}"


def test_a_run_costs_little_cpu(product: Product) -> None:
    """Daemon, launch child and wrapper of one run over a bare spawn of the same command."""
    limit = BUDGET["run_cpu_ratio"]
    found = best(lambda home: bench_run.cpu_ratio(product, home, rounds=3, runs=10), limit)
    assert found <= limit, f"{found:.2f} bare spawns of {limit}"


def test_a_run_under_busybox_costs_little_cpu(product: Product) -> None:
    limit = BUDGET["run_cpu_ratio"]
    try:
        with measure.busybox() as ash:
            found = best(
                lambda home: bench_run.cpu_ratio(product, home, rounds=3, runs=10, ash=ash), limit
            )
    except measure.UnmeasurableError as error:
        pytest.skip(str(error))
    assert found <= limit, f"{found:.2f} bare spawns of {limit}"


def test_a_due_command_begins_soon(product: Product) -> None:
    limit = BUDGET["due_to_command_ratio"]
    found = best(lambda home: bench_run.due_ratio(product, home, seconds=5), limit)
    assert found <= limit, f"{found:.2f} bare fork and exec of {limit}"


def test_a_run_writes_little_to_the_device(product: Product) -> None:
    """Bytes back to back and apart, commits and flushes of one run with a one-line log on ext4."""
    try:
        with measure.disk() as disk:
            burst = bench_run.device(product, disk, runs=60, apart=False)
            apart = bench_run.device(product, disk, runs=20, apart=True)
    except measure.UnmeasurableError as error:
        pytest.skip(str(error))
    assert burst.bytes <= BUDGET["run_device_bytes_burst"], burst
    assert apart.bytes <= BUDGET["run_device_bytes_apart"], apart
    assert burst.commits <= BUDGET["run_commits"], burst
    assert (burst.flushes or 0) <= BUDGET["run_flushes"], burst
