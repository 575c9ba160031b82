"""Markers, parametrisation and order of the suite's tests."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from k3perf.config.suite import Cell, Suite
from k3perf.pytest_plugin.replay import ReplayClock
from k3perf.pytest_plugin.selection import Selection
from k3perf.records.metric_definitions import Family

CLOCK_KEY: pytest.StashKey[ReplayClock] = pytest.StashKey()

MARKERS: Final = {
    **{str(family): f"tests of the {family} metrics" for family in Family},
    "configuration": "tests of the resolved configuration",
    "trace": "tests that replay a trace",
    "prefix_cache": "tests of prefix sharing",
    "k3_workloads(kind)": (
        "which workloads a test of the suite takes: steady (default), prefix (those that share"
        " prefixes) or trace"
    ),
}


def register(config: pytest.Config) -> None:
    """Tell pytest the suite's markers, so that -m and --strict-markers know them."""
    for name, text in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {text}")


def cells_for(
    metafunc: pytest.Metafunc, selection: Selection, named_modules: frozenset[Path]
) -> list[Cell]:
    """The cells a test function takes: steady workloads, those with shared prefixes, or
    traces, as it is marked.

    A marked function whose module the call names takes the workloads on request of its
    kind too. One marked ``quality`` takes targets that compare answers.
    """
    marker = metafunc.definition.get_closest_marker("k3_workloads")
    kind = marker.args[0] if marker is not None else "steady"
    cells = selection.cells
    if marker is not None and metafunc.definition.path in named_modules:
        cells += selection.on_request_cells
    if metafunc.definition.get_closest_marker(str(Family.QUALITY)) is not None:
        cells = tuple(cell for cell in cells if _has_quality(cell))
    return [cell for cell in cells if kind in _kinds(cell)]


def _has_quality(cell: Cell) -> bool:
    """Answers are compared, or drafts are accepted and counted."""
    return cell.target.quality is not None or bool(cell.engine_arguments.get("speculative_config"))


def _kinds(cell: Cell) -> tuple[str, ...]:
    if cell.workload.arrival.kind == "trace":
        return ("trace",)
    return ("steady", "prefix") if cell.workload.prefix is not None else ("steady",)


# A cell without a valid round carries none; the test's own outcome says so, and a suite
# that turns warnings into errors would say it twice.
_UNUSED_BENCHMARK: Final = (
    "ignore:Benchmark fixture was not used:pytest_benchmark.logger.PytestBenchmarkWarning"
)


def arrange(items: list[pytest.Item], suite: Suite) -> None:
    """Sort by engine, the reference first, so that each engine starts once; tests
    without a cell keep their place in front.

    A test function that no cell of the chosen targets suits is removed, not shown as
    skipped.
    """
    items[:] = [
        item
        for item in items
        if "cell" not in getattr(item, "fixturenames", ()) or cell_of(item) is not None
    ]
    for item in items:
        if (cell := cell_of(item)) is None:
            continue
        if item.config.pluginmanager.hasplugin("timeout"):
            item.add_marker(
                pytest.mark.timeout(0)
                # the first test of an engine waits for all its rounds; the supervisor
                # has the deadlines
            )
        if "benchmark" in getattr(item, "fixturenames", ()):
            clock = item.stash.setdefault(CLOCK_KEY, ReplayClock())
            item.add_marker(
                pytest.mark.benchmark(timer=clock, group=f"{cell.target.name}-{cell.workload.name}")
            )
            if item.config.pluginmanager.hasplugin("warnings"):
                item.add_marker(pytest.mark.filterwarnings(_UNUSED_BENCHMARK))
    targets = {name: position for position, name in enumerate(suite.targets)}

    def key(item: pytest.Item) -> tuple[int, int]:
        cell = cell_of(item)
        if cell is None:
            return (-1, -1)
        return (targets[cell.target.name], suite.config_order[cell.config.name])

    items.sort(key=key)


def selected_cells(items: list[pytest.Item]) -> list[Cell]:
    """The distinct cells of the selected tests, in order."""
    found = {cell.cell_id: cell for item in items if (cell := cell_of(item)) is not None}
    return list(found.values())


def cell_of(item: pytest.Item) -> Cell | None:
    """The cell that a test is parametrised with; None for any other test."""
    callspec = getattr(item, "callspec", None)
    cell = None if callspec is None else callspec.params.get("cell")
    return cell if isinstance(cell, Cell) else None
