"""``k3perf gate selftest``: prints the gate's measured error rates, and writes them between the markers of docs/gate.md."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from k3perf.config.models import MeasurementPlan
from k3perf.errors import ConfigFileError, UsageError
from k3perf.gate.cost import Cost, measure_cost, wald_sessions
from k3perf.gate.selftest import GATED, Trial, recorded_metrics, recorded_setting, render, run_trial, simulated_setting, simulated_trials
from k3perf.gate.simulation import SHAPES
from k3perf.metrics.values import CellMeasurement
from k3perf.samples import Arm
from k3perf.store.atomic import replace_file
from k3perf.store.files import read_text
from k3perf.store.measurements import read_measurement_file

BEGIN: Final = "<!-- selftest:begin (written by k3perf gate selftest --write) -->"
END: Final = "<!-- selftest:end -->"
PACKAGED: Final = Path(__file__).resolve().parent.parent / "gate" / "recorded"
MARKER_STEP: Final = "Give a file that holds both selftest markers, such as docs/gate.md."


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser("gate", help="the gate's own tests")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    testing = actions.add_parser("selftest", help="replay no-change and injected-loss runs; print realised error rates")
    testing.add_argument("--runs", type=int, default=200, metavar="N", help="suite runs per source and loss (default: 200)")
    testing.add_argument("--seed", type=int, default=1, metavar="N", help="of every random draw (default: 1)")
    testing.add_argument(
        "--recorded", metavar="DIR", default=str(PACKAGED), help="folder of recorded measurement files (default: the packaged ones)"
    )
    testing.add_argument("--recorded-only", action="store_true", help="leave the simulated noise out")
    testing.add_argument("--shape", action="append", choices=SHAPES, default=[], help="simulate only this noise; may be repeated")
    testing.add_argument("--tolerance", type=float, default=0.1, metavar="RATIO", help="tolerance for recorded sessions (default: 0.1)")
    testing.add_argument("--write", metavar="FILE", default="", help="replace the tables between the markers of this file")
    testing.set_defaults(run=run_selftest)


def run_selftest(arguments: argparse.Namespace) -> int:
    """Run all trials; 0 unless the arguments are wrong: the tables are for reading, the calibration tests hold the gate to its promises."""
    if arguments.runs < 1:
        raise UsageError(f"--runs is {arguments.runs}; at least one run is needed.")
    if not 0 < arguments.tolerance < 1:
        raise UsageError(f"--tolerance is {arguments.tolerance}; it is a ratio between 0 and 1, 0.1 being 10 %.")
    folder = Path(arguments.recorded)
    if not folder.is_dir() and folder != PACKAGED:
        raise UsageError(f"--recorded {folder}: there is no such folder. Give one that holds measurement files.")
    trials = _recorded_trials(folder, arguments)
    parts = [render(trials)] if trials else ["No recorded sessions were found, so only simulated noise is shown.\n"]
    if not arguments.recorded_only:
        plan = MeasurementPlan(mode="baseline", maximum_sessions=5)
        parts.append(render(simulated_trials(runs=arguments.runs, seed=arguments.seed, plan=plan, shapes=arguments.shape or SHAPES)))
        parts.append(
            _cost_text(
                measure_cost(
                    simulated_setting("normal", plan=plan, metrics=GATED[:1]), runs=max(arguments.runs // 8, 2), seed=arguments.seed
                )
            )
        )
    text = "\n".join(parts)
    if arguments.write:
        _replace_between(Path(arguments.write), text)
    sys.stdout.write(text)
    return 0


def _recorded_trials(folder: Path, arguments: argparse.Namespace) -> list[Trial]:
    trials = []
    for path in sorted(folder.glob("*.json")):
        file = read_measurement_file(path)
        groups: dict[tuple[str, str], list[CellMeasurement]] = {}
        for cell in file.measurements():
            groups.setdefault((cell.target, cell.mode), []).append(cell)
        for (target, mode), cells in sorted(groups.items()):
            trials.append(_recorded_trial(path, target, mode, cells, arguments))
    return trials


def _recorded_trial(path: Path, target: str, mode: str, cells: list[CellMeasurement], arguments: argparse.Namespace) -> Trial:
    step = "Record at least nine valid sessions of every cell."
    if mode == "ab":
        raise ConfigFileError(path, "cells.mode", mode, "recorded noise is of baseline or reference mode", step)
    fewest = min(sum(1 for session in cell.arm(Arm.CANDIDATE) if not session.invalid_reasons) for cell in cells)
    if fewest < 9:
        raise ConfigFileError(path, "cells.sessions", fewest, "too few valid sessions to replay", step)
    metrics = recorded_metrics(cells)
    if not metrics:
        raise ConfigFileError(path, "cells.sessions", None, "no statistical metric was recorded in every valid round", step)
    rounds = min(len([r for r in s.rounds if not r.invalid_reasons]) for cell in cells for s in cell.sessions if not s.invalid_reasons)
    plan = MeasurementPlan.model_validate(
        {"mode": mode, "maximum_sessions": min(5, fewest - 6), "maximum_rounds": max(rounds, 1), "minimum_rounds": min(4, max(rounds, 1))}
    )
    setting = recorded_setting(cells, tolerance=arguments.tolerance, plan=plan)
    note = (
        f"Recorded: {path.name}, {len(cells)} cells of {target} ({', '.join(cell.config for cell in cells)}), {fewest} sessions, "
        f"metrics {', '.join(metrics)}, tolerance {arguments.tolerance:.0%}; up to {plan.maximum_sessions} sessions of up to {rounds} rounds."
    )
    return run_trial(f"recorded {path.stem}, {target}, {mode} mode", note, setting, runs=arguments.runs, seed=arguments.seed)


def _cost_text(cost: Cost) -> str:
    clean, lost = wald_sessions(0.02 / 60, 0.05, 0.25)
    fixed = f"{cost.fixed_sessions} sessions x {cost.fixed_rounds} rounds" if cost.fixed_sessions else "none within six sessions"
    return (
        "### Measured cost\n\n"
        "Normal noise, a quarter of the tolerance between sessions, 60 cells of one gated metric.\n\n"
        "| | rounds per cell |\n| --- | --- |\n"
        f"| sequential, no change | {cost.clean_rounds:.1f} |\n"
        f"| sequential, 1.5 x tolerance | {cost.lost_rounds:.1f} |\n"
        f"| cheapest fixed design that keeps the same promises | {fixed} |\n"
        f"| sequential / fixed, mean of both | {cost.ratio:.2f} |\n\n"
        f"Wald's bound for one metric, sessions infinitely divisible and the baseline known exactly: {clean:.2f} sessions without a change, "
        f"{lost:.2f} at 1.5 x tolerance. Whole sessions, at least two for a loss, and the baseline's own noise make up the distance.\n"
    )


def _replace_between(path: Path, text: str) -> None:
    old = read_text(path, MARKER_STEP)
    if old is None or BEGIN not in old or END not in old or old.index(BEGIN) > old.index(END):
        raise ConfigFileError(path, "", None, "the selftest markers are missing", MARKER_STEP)
    head, rest = old.split(BEGIN, 1)
    replace_file(path, f"{head}{BEGIN}\n\n{text.rstrip()}\n\n{END}{rest.split(END, 1)[1]}")
