"""``k3perf night keep``: a night's result files to the one file that is kept."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from k3perf.baselines.accept import strictest_policy
from k3perf.ci.costs import RecordedCosts, record_costs
from k3perf.ci.history import unmeasured
from k3perf.ci.nights import JudgedCell, night_cells, real_over_priced
from k3perf.cli.shared_options import baselines_of, files_named, suite_of
from k3perf.config.suite import Suite
from k3perf.errors import ExitStatus, UsageError
from k3perf.gate.policy import Policy
from k3perf.records.measurement import CellMeasurement, MeasurementFile
from k3perf.records.night import NightFile
from k3perf.records.plan_file import PlanDocument

WALL_SECONDS = "wall_seconds.json"
"""Next to a shard's results: how long it took (scripts/measure-shard)."""


def run_keep(arguments: argparse.Namespace) -> int:
    """Write the night. Status 10 and a line for each planned cell without a valid
    session: the others are kept all the same.
    """
    from k3perf.cli.ci_command import read_plan, read_verdict
    from k3perf.store.measurements import read_measurement_file
    from k3perf.store.nights import write_night

    suite = suite_of(arguments)
    plan, verdict = read_plan(arguments.plan), read_verdict(arguments.verdict)
    files = [
        read_measurement_file(path) for path in files_named("measurements.json", arguments.results)
    ]
    injected = next((file.run_id for file in files if file.injected), "")
    if injected:
        raise UsageError(f"run {injected} had an injected fault; a night needs the plain engine.")
    measured = _best([cell for file in files for cell in file.cells])
    policies = _policies(suite, baselines_of(arguments), plan)
    judged = {one.cell_id: one for one in verdict.cells}
    names = list(dict.fromkeys([*judged, *measured]))
    cells, locks = night_cells(
        JudgedCell(
            judged.get(name),
            measured.get(name),
            policies.get((judged.get(name) or measured[name]).target),
        )
        for name in names
    )
    costs, seconds = _costs(arguments.results), _wall_seconds(arguments.results)
    shards = {
        shard.shard: (shard.hardware_class, shard.minutes / plan.pace.get(shard.hardware_class, 1))
        for shard in plan.shards
    }
    night = NightFile(
        run_id=os.environ.get("GITHUB_RUN_ID") or verdict.run_id,
        commit=verdict.commit or _first(files, "commit") or os.environ.get("GITHUB_SHA", ""),
        created_at_utc=(
            verdict.created_at_utc
            or _first(files, "created_at_utc")
            or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ),
        versions=dict(files[0].identity) if files else {},
        locks=locks,
        engine_start_s=costs.engine_start_s,
        session_s=costs.session_s,
        pace=real_over_priced(shards, seconds),
        cells=cells,
    )
    path = write_night(arguments.nights, night)
    lost = unmeasured((entry.cell for entry in plan.cells), measured.values())
    prefix = "::error::" if os.environ.get("GITHUB_ACTIONS") else ""
    for name in lost:
        print(f"{prefix}{name}: no valid session; see the log of its shard")
    print(f"{len(cells)} cells kept in {path}")
    return ExitStatus.INVALID if lost else ExitStatus.OK


def _first(files: list[MeasurementFile], name: str) -> str:
    return next((str(getattr(file, name)) for file in files), "")


def _best(cells: list[CellMeasurement]) -> dict[str, CellMeasurement]:
    """By cell id. A repeat replaces a measurement without a valid session."""
    found: dict[str, CellMeasurement] = {}
    for cell in cells:
        name = f"{cell.target}-{cell.config}-{cell.workload}"
        before = found.get(name)
        if before is None or unmeasured([name], [before]):
            found[name] = cell
    return found


def _policies(suite: Suite, root: Path, plan: PlanDocument) -> dict[str, Policy]:
    from k3perf.store.baselines import read_target_baselines

    targets = dict.fromkeys(entry.target for entry in plan.cells)
    return {
        name: strictest_policy(suite, name, read_target_baselines(root, name))
        for name in targets
        if name in suite.targets
    }


def _costs(results: Iterable[Path]) -> RecordedCosts:
    """Of what can be read: a night is kept also without its costs."""
    from k3perf.errors import K3PerfError
    from k3perf.store.results import read_results

    sessions = []
    for path in files_named("results.jsonl", results):
        try:
            run = read_results(path)
        except K3PerfError as error:
            print(f"no costs from {path}: {error}")
            continue
        sessions += [run.sessions[name] for name in run.sessions if name in run.ended_sessions]
    return record_costs(sessions)


def _wall_seconds(results: Iterable[Path]) -> dict[str, float]:
    found: dict[str, float] = {}
    for path in files_named(WALL_SECONDS, results):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            found[str(data["shard"])] = float(data["seconds"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"no time from {path}: {error!r}")
    return found
