"""``k3perf gate selftest``: prints the gate's measured error rates, and writes them
between the markers of a page (PAGE).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from k3perf.cli.shared_options import count
from k3perf.config.models import MeasurementPlan, Tolerance
from k3perf.config.tolerances import load_tolerances
from k3perf.documents import read_text
from k3perf.errors import ConfigFileError, UsageError
from k3perf.records.measurement import CellMeasurement
from k3perf.store.atomic import replace_file
from k3perf.store.measurements import read_measurement_file
from tests.calibration.lab.location_trial import location_table
from tests.calibration.lab.recorded_setting import (
    LARGEST_TRIED,
    recorded_setting,
    testable_tolerances,
)
from tests.calibration.lab.recordings import Recording, recorded_metrics, recordings_of_files
from tests.calibration.lab.replay import metric_loss
from tests.calibration.lab.selftest import (
    GATED,
    SUITE_METRICS,
    Trial,
    in_order_of_time,
    render,
    run_trial,
    simulated_noise,
    simulated_setting,
    simulated_trials,
)
from tests.calibration.lab.session_cost import Cost, measure_cost, wald_sessions
from tests.calibration.lab.simulation import DRAWS, SHAPES

BEGIN: Final = "<!-- selftest:begin (written by k3perf gate selftest --write) -->"
END: Final = "<!-- selftest:end -->"
RECORDINGS: Final = Path("perf_tests") / "recordings"
TOLERANCES: Final = "tolerances.yaml"
PAGE: Final = "docs/studies/2026-11-30-gate-error-rates.md"
MARKER_STEP: Final = f"Give a file that holds both selftest markers, such as {PAGE}."
MODES: Final = ("baseline", "reference")


def register(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``selftest`` to the actions of ``k3perf gate``."""
    testing = actions.add_parser(
        "selftest", help="replay no-change and injected-loss runs; print realised error rates"
    )
    testing.add_argument(
        "--runs",
        type=count,
        default=400,
        metavar="N",
        help="suite runs per source and loss (default: 400)",
    )
    testing.add_argument(
        "--seed", type=int, default=1, metavar="N", help="of every random draw (default: 1)"
    )
    testing.add_argument(
        "--recorded",
        metavar="DIR",
        default="",
        help=(
            f"folder of recorded measurement files (default: {RECORDINGS.as_posix()} of the"
            " repository around the current folder)"
        ),
    )
    testing.add_argument(
        "--recorded-only", action="store_true", help="leave the simulated noise out"
    )
    testing.add_argument(
        "--shape",
        action="append",
        choices=tuple(DRAWS),
        default=[],
        help="simulate only this noise; may be repeated",
    )
    testing.add_argument(
        "--tolerance",
        type=float,
        default=None,
        metavar="RATIO",
        help=(
            "tolerance for recorded sessions (default: per metric the smallest per cent that the"
            " promises speak of)"
        ),
    )
    testing.add_argument(
        "--write",
        metavar="FILE",
        default="",
        help="replace the tables between the markers of this file",
    )
    testing.set_defaults(run=run_selftest)


def run_selftest(arguments: argparse.Namespace) -> int:
    """Run all trials; 0 unless the arguments are wrong: the tables are for reading, the
    calibration tests hold the gate to its promises.
    """
    if arguments.tolerance is not None and not 0 < arguments.tolerance <= LARGEST_TRIED:
        raise UsageError(
            f"--tolerance is {arguments.tolerance}; it is a ratio above 0 and up to"
            f" {LARGEST_TRIED}, 0.1 being 10 %."
        )
    folder = Path(arguments.recorded) if arguments.recorded else recordings_folder(Path.cwd())
    if arguments.recorded and folder is not None and not folder.is_dir():
        raise UsageError(
            f"--recorded {folder}: there is no such folder. Give one that holds measurement files."
        )
    if folder is None and arguments.recorded_only:
        raise UsageError(
            f"there is no {RECORDINGS.as_posix()} around the current folder; go to the repository,"
            " or name one with --recorded."
        )
    if arguments.recorded and folder is not None and not any(folder.glob("*.json")):
        raise UsageError(
            f"--recorded {folder}: it holds no .json file. Give a folder of measurement files."
        )
    parts = [_recorded_text(folder, arguments)]
    if not arguments.recorded_only:
        parts += list(_simulated_parts(arguments))
    text = "\n".join(parts)
    if arguments.write:
        _replace_between(Path(arguments.write), text)
    sys.stdout.write(text)
    return 0


def recordings_folder(start: Path) -> Path | None:
    """``perf_tests/recordings`` of the nearest folder around ``start`` that has one;
    None: there is none.
    """
    return next(
        (
            parent / RECORDINGS
            for parent in (start, *start.parents)
            if (parent / RECORDINGS).is_dir()
        ),
        None,
    )


def read_recordings(folder: Path) -> tuple[list[Recording], list[str]]:
    """Every replayable recording in a folder's ``*.json`` files, and why others are
    left out. The ``tolerances.yaml`` beside the folder, if there is one, says what
    configs are replayed apart.
    """
    files: dict[str, tuple[CellMeasurement, ...]] = {}
    unread: list[str] = []
    for path in sorted(folder.glob("*.json")):
        try:
            document = read_measurement_file(path)
        except ConfigFileError as error:
            unread.append(f"{path.name}: {error.problem}")
            continue
        if document.injected:
            unread.append(
                f"{path.name}: a fault was put into its candidate on purpose ({document.injected})"
            )
        else:
            files[path.stem] = document.cells
    tolerances = folder.parent / TOLERANCES
    declared = load_tolerances(tolerances) if tolerances.is_file() else None
    found, left_out = recordings_of_files(files, declared, GATED)
    return found, [*unread, *left_out]


def _recorded_text(folder: Path | None, arguments: argparse.Namespace) -> str:
    if folder is None:
        return (
            f"No recorded noise: there is no {RECORDINGS.as_posix()} around the current folder;"
            " give --recorded.\n"
        )
    recordings, left_out = read_recordings(folder)
    trials = []
    for recording in recordings:
        tolerances = _tolerances(recording, arguments.tolerance)
        if not tolerances:
            left_out.append(
                f"{recording.name}: {recording.target} in {recording.mode} mode: no tolerance up to"
                f" {LARGEST_TRIED:.0%} could be tested"
            )
            continue
        trials.append(_recorded_trial(recording, tolerances, arguments))
    parts = [render(trials) if trials else "No recording is long enough to be replayed.\n"]
    if left_out:
        parts += ["### Excluded recordings", "", *[f"* {text}" for text in left_out], ""]
    return "\n".join(parts)


def _tolerances(recording: Recording, given: float | None) -> dict[str, Tolerance]:
    metrics = recorded_metrics(recording.cells, GATED)
    if given is not None:
        return dict.fromkeys(metrics, Tolerance(loss_ratio=given))
    return testable_tolerances(recording, metrics, suite_metrics=SUITE_METRICS)


def _recorded_trial(
    recording: Recording, tolerances: dict[str, Tolerance], arguments: argparse.Namespace
) -> Trial:
    plan = recording.plan()
    cells = ", ".join(sorted(f"{cell.config}/{cell.workload}" for cell in recording.cells))
    given = ", ".join(
        f"{name} {tolerance.loss_ratio:.0%}" for name, tolerance in tolerances.items()
    )
    chosen = (
        "as given" if arguments.tolerance is not None else "the smallest that the promises cover"
    )
    note = (
        f"Recorded: {recording.name}, {recording.target} on {recording.hardware_class} ({cells}),"
        f" {recording.sessions} usable sessions of at least {recording.rounds} rounds. The plan is up to"
        f" {plan.maximum_sessions} sessions of {plan.minimum_rounds} to {plan.maximum_rounds} rounds"
        f" against {plan.baseline_sessions}. Tolerances ({chosen}): {given}."
    )
    setting = recorded_setting(recording, tolerances, suite_metrics=SUITE_METRICS)
    title = f"recorded {recording.name}, {recording.target}, {recording.mode} mode"
    trial = run_trial(title, note, setting, runs=arguments.runs, seed=arguments.seed)
    trial.remark = in_order_of_time(
        recorded_setting(recording, tolerances, suite_metrics=SUITE_METRICS, in_order=True)
    )
    return trial


def _simulated_parts(arguments: argparse.Namespace) -> Iterator[str]:
    shapes = tuple(arguments.shape) or SHAPES
    for mode in MODES:
        plan = MeasurementPlan.model_validate({"mode": mode, "maximum_sessions": 5})
        yield render(
            simulated_trials(runs=arguments.runs, seed=arguments.seed, plan=plan, shapes=shapes)
        )
    plan = MeasurementPlan(mode="baseline", maximum_sessions=5)
    if not arguments.shape:
        yield _locations_text(plan)
        yield "What is not promised:\n"
        yield render(
            simulated_trials(
                runs=arguments.runs, seed=arguments.seed, plan=plan, shapes=("strongly_skewed",)
            )
        )
    yield _cost_text(
        [
            measure_cost(
                simulated_setting("normal", plan=plan, metrics=metrics),
                runs=arguments.runs,
                seed=arguments.seed,
            )
            for metrics in (GATED[:1], GATED)
        ]
    )


def _locations_text(plan: MeasurementPlan) -> str:
    quarter = 0.25 * metric_loss(GATED[-1], 0.05)
    table = location_table(
        {shape: simulated_noise(shape, quarter, plan) for shape in DRAWS}, quarter, plan
    )
    return (
        "### Estimators of a session's value\n\nStandard deviation between sessions, in"
        " quarters of the tolerance, by estimator and number of rounds. The last column has what"
        " the gate chose from the recorded sessions of 20 cells. Rounds scatter as much as"
        f" sessions differ.\n\n{table}\n"
    )


def _cost_text(costs: list[Cost]) -> str:
    clean, lost = wald_sessions(0.02 / SUITE_METRICS, 0.05, 0.25)
    lines = [
        "### Measured cost",
        "",
        (
            f"Normal noise, a quarter of the tolerance between sessions, {SUITE_METRICS} gated"
            f" metrics; {costs[0].runs} suite runs for each figure."
        ),
        "",
        (
            "| gated metrics of a cell | rounds per cell, no change | rounds per cell, 1.5 x"
            " tolerance | cheapest fixed design that keeps the same promises | sequential / fixed,"
            " mean of both |"
        ),
        "| --- | --- | --- | --- | --- |",
    ]
    for cost in costs:
        fixed = (
            f"{cost.fixed_sessions} sessions x {cost.fixed_rounds} rounds"
            if cost.fixed_sessions
            else "none within six sessions"
        )
        lines.append(
            f"| {cost.metrics} | {cost.clean_rounds:.1f} | {cost.lost_rounds:.1f} | {fixed} |"
            f" {cost.ratio:.2f} |"
        )
    single = costs[0]
    rounds = 4  # the plan's fewest: what a session costs here
    lines += [
        "",
        (
            "Wald's bound for one metric is"
            f" {clean:.2f} sessions without a change, {lost:.2f} at 1.5 x tolerance. It takes"
            " sessions as infinitely divisible and the baseline as known exactly. Measured, at"
            f" {rounds} rounds a session: {single.clean_rounds / rounds:.2f} and"
            f" {single.lost_rounds / rounds:.2f}. The difference comes from whole sessions, at"
            " least two for a loss, and from the baseline's noise."
        ),
        "",
    ]
    return "\n".join(lines)


def _replace_between(path: Path, text: str) -> None:
    old = read_text(path, MARKER_STEP)
    if old is None or BEGIN not in old or END not in old or old.index(BEGIN) > old.index(END):
        raise ConfigFileError(path, "", None, "the selftest markers are missing", MARKER_STEP)
    head, rest = old.split(BEGIN, 1)
    replace_file(path, f"{head}{BEGIN}\n\n{text.rstrip()}\n\n{END}{rest.split(END, 1)[1]}")
