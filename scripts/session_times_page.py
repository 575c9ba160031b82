"""The generated page ``docs/session-times.md`` and ``perf_tests/costs.json``, from the
committed recordings.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Final

from scripts.command_pages import GENERATED

from k3perf.ci.costs import CostModel, RecordedCosts
from k3perf.ci.recorded_times import (
    RecordedSession,
    costs_of_sessions,
    recorded_sessions,
    with_warm_up_s,
)
from k3perf.config.candidates import approved_cells
from k3perf.config.suite import Suite
from k3perf.store.baselines import baseline_known
from k3perf.store.measurements import read_measurement_file

_HEADING: Final = f"""\
# Where the time of a session goes

{GENERATED}

Median times from the recordings in `perf_tests/recordings`. A whole session lasts from the start of its engine to the start of
the next one. A warm-up round is assumed to take as long as a measured one. The rest is start, load, profiling, graph capture
and stop. On targets with `import_ahead`, the next engine imports its modules meanwhile. `scripts/make-costs` writes
`perf_tests/costs.json` from the same sessions.

"""
_NO_STAGES: Final = "No recording contains the stages of the start yet. New recordings will.\n"


def sessions_of(suite: Suite) -> tuple[RecordedSession, ...]:
    """Of every recording of the suite that is a baseline or a reading."""
    paths = sorted((suite.root / "recordings").glob("*.json"))
    return recorded_sessions(map(read_measurement_file, paths))


def recorded_costs(suite: Suite, earlier: RecordedCosts) -> RecordedCosts:
    """The recordings' costs over the earlier ones. Cells that are gone are dropped."""
    found = costs_of_sessions(sessions_of(suite), suite.targets).over(earlier)
    cells = suite.cells(on_request=frozenset(suite.workloads))
    engines = {f"{cell.target.name}/{cell.config.name}" for cell in cells}
    ids = {cell.cell_id for cell in cells}
    return found.model_copy(
        update={
            "engine_start_s": {k: v for k, v in found.engine_start_s.items() if k in engines},
            "session_s": {k: v for k, v in found.session_s.items() if k in ids},
        }
    )


def session_times_page(suite: Suite, baselines_directory: Path, costs: RecordedCosts) -> str:
    """``docs/session-times.md``."""
    return "\n".join(
        [
            f"{_HEADING}{_session_table(suite)}",
            "## Stages of the start\n",
            _stage_table(sessions_of(suite)),
            "## A clean verdict\n",
            "One session of each approved cell, according to `costs.json`. An undecided cell takes longer.\n",
            _verdict_table(suite, baselines_directory, CostModel(costs)),
        ]
    )


def _session_table(suite: Suite) -> str:
    rows = []
    for cell_id, found in _by_cell(sessions_of(suite)).items():
        target = suite.targets.get(found[0].target)
        if target is None:
            continue
        whole = [(one.whole_s, with_warm_up_s(one, target)) for one in found]
        known = [(whole_s, busy_s) for whole_s, busy_s in whole if whole_s is not None]
        rounds_s = median(one.rounds_s for one in found)
        warm_s = median(busy_s for _, busy_s in whole) - rounds_s
        texts = ["unknown", "unknown"]
        if known:
            rest_s = median(whole_s - busy_s for whole_s, busy_s in known)
            texts = [f"{median(whole_s for whole_s, _ in known):.0f}", f"{rest_s:.0f}"]
        rows.append(
            f"| `{cell_id}` | {len(found)} | {texts[0]} | {rounds_s:.0f} | {warm_s:.0f} | {texts[1]} |\n"
        )
    head = "| cell | sessions | whole, s | rounds, s | warm-up, s | start and stop, s |\n"
    return f"{head}| --- | --- | --- | --- | --- | --- |\n{''.join(rows)}"


def _stage_table(sessions: Iterable[RecordedSession]) -> str:
    by_engine: dict[str, dict[str, list[float]]] = {}
    for session in sessions:
        for stage, duration_s in session.stages_s.items():
            stages = by_engine.setdefault(f"{session.target}/{session.config}", {})
            stages.setdefault(stage, []).append(duration_s)
    names = list(dict.fromkeys(name for stages in by_engine.values() for name in stages))
    if not names:
        return _NO_STAGES
    lines = [["engine", *(f"{name}, s" for name in names)], ["---"] * (len(names) + 1)]
    lines += [
        [
            f"`{engine}`",
            *(f"{median(stages[name]):.0f}" if name in stages else "-" for name in names),
        ]
        for engine, stages in sorted(by_engine.items())
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _verdict_table(suite: Suite, baselines_directory: Path, costs: CostModel) -> str:
    known = baseline_known([baselines_directory])
    rows = []
    for name in sorted(suite.targets):
        cells = approved_cells(suite.cells((name,)), known)
        if not cells:
            continue
        longest_s = max(costs.start_s(cell) + costs.cell_s(cell) for cell in cells)
        engines = {cell.config.name: cell for cell in cells}
        total_s = sum(map(costs.cell_s, cells)) + sum(map(costs.start_s, engines.values()))
        estimated = sum(costs.basis(cell) != "measured" for cell in cells)
        rows.append(
            f"| `{name}` | {len(cells)} | {longest_s:.0f} | {total_s / 60:.1f} | {estimated} |\n"
        )
    head = "| target | cells | longest cell, s | whole target, min | estimated cells |\n"
    return f"{head}| --- | --- | --- | --- | --- |\n{''.join(rows)}"


def _by_cell(sessions: Iterable[RecordedSession]) -> dict[str, list[RecordedSession]]:
    found: dict[str, list[RecordedSession]] = {}
    for session in sessions:
        found.setdefault(session.cell_id, []).append(session)
    return dict(sorted(found.items()))
