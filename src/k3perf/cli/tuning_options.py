"""What ``k3perf tune`` and ``k3perf sweep`` share: options, settings, progress."""

from __future__ import annotations

import argparse
import os
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k3perf.cli.output import write_text
from k3perf.cli.shared_options import (
    add_baselines_option,
    add_engine_python_option,
    add_suite_option,
    baselines_of,
    count,
    positive,
    suite_of,
)
from k3perf.documents import DocumentProblem, json_of
from k3perf.errors import MACHINE_ERRNOS, UsageError, shortened
from k3perf.records.tuning import BoundSpec, Fate, TuningReading, TuningResult
from k3perf.run.progress import Progress

if TYPE_CHECKING:
    from k3perf.config.workload_spec import ServiceLevel
    from k3perf.run.settings import RunSettings
    from k3perf.run.tuning_run import PreparedTuning


def add_measuring_options(parser: argparse.ArgumentParser) -> None:
    """Add what both commands measure with."""
    parser.add_argument("--target", metavar="NAME", help="declared target")
    parser.add_argument("--workload", metavar="NAME", help="declared workload")
    parser.add_argument(
        "--config",
        metavar="NAME",
        default="",
        help="config to start from (default: the target's reference)",
    )
    parser.add_argument(
        "--budget-minutes", type=positive, metavar="N", help="stop measuring after N minutes"
    )
    parser.add_argument(
        "--rounds", type=count, default=4, help="valid rounds of each session (default: 4)"
    )
    parser.add_argument(
        "--slo-ttft-ms",
        type=positive,
        help="TTFT limit for goodput, with --slo-tpot-ms (default: the workload's)",
    )
    parser.add_argument("--slo-tpot-ms", type=positive, help="TPOT limit for goodput")
    parser.add_argument(
        "--results",
        type=Path,
        metavar="DIR",
        help="directory of journal and result; give it again to continue an interrupted run"
        " (default: .k3perf/tuning/RUN)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument(
        "--picture",
        type=Path,
        metavar="SVG",
        help="file for a chart of the sweeps and the Pareto front",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the points and their cost, but measure nothing",
    )
    add_baselines_option(parser)
    add_engine_python_option(parser)
    add_suite_option(parser)


def require_named(arguments: argparse.Namespace, *names: str) -> None:
    """Raise UsageError for a missing option."""
    for name in names:
        if not getattr(arguments, name):
            raise UsageError(f"--{name} is required: name a declared {name}.")


def values_by_name(pairs: Sequence[str], option: str) -> dict[str, tuple[Any, ...]]:
    """``max_num_seqs=8,16`` to names and values. A JSON object or list is one value.
    Raises UsageError.
    """
    found: dict[str, tuple[Any, ...]] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not separator or not name or not text.strip():
            raise UsageError(
                f"{option} {shortened(repr(pair))} is not NAME=VALUE,VALUE. Write for example"
                f" {option} max_num_seqs=8,16,32"
            )
        if name in found:
            raise UsageError(f"{option} {name} is given twice. List all values in one option.")
        whole = text.lstrip().startswith(("{", "["))
        found[name] = tuple(map(_value, [text] if whole else text.split(",")))
    return found


def bounds_of(pairs: Sequence[str]) -> tuple[BoundSpec, ...]:
    """``ttft_p99_ms=500`` to bounds. Raises UsageError."""
    found = []
    for pair in pairs:
        name, separator, text = pair.partition("=")
        try:
            limit = float(text)
        except ValueError:
            limit = -1.0
        if not separator or not 0 < limit < float("inf"):
            raise UsageError(
                f"--bound {shortened(repr(pair))} is not METRIC=LIMIT with a limit above 0."
                " Write for example --bound ttft_p99_ms=500"
            )
        found.append(BoundSpec(name, limit))
    return tuple(found)


def service_level_of(arguments: argparse.Namespace) -> ServiceLevel | None:
    """The given service level. Raises UsageError for half of one."""
    from k3perf.config.workload_spec import ServiceLevel

    given = (arguments.slo_ttft_ms, arguments.slo_tpot_ms)
    if given == (None, None):
        return None
    if None in given:
        raise UsageError("give both --slo-ttft-ms and --slo-tpot-ms, or neither")
    return ServiceLevel(ttft_ms=given[0], tpot_ms=given[1])


def tuning_settings(
    arguments: argparse.Namespace, kind: str, trace_file: Path | None = None
) -> RunSettings:
    """Settings of a run in the working directory. Raises UsageError."""
    from k3perf.config.cpu_features import usable
    from k3perf.run.engine_environment import (
        cache_directory,
        engine_python_path,
        find_engine_python,
    )
    from k3perf.run.settings import RunSettings
    from k3perf.store.repository import Repository
    from k3perf.telemetry.hardware import detect_hardware

    state = Path(".k3perf").absolute()
    cache = cache_directory(state)
    try:
        python_path = engine_python_path(cache)
    except OSError as error:
        if error.errno in MACHINE_ERRNOS:
            raise
        raise UsageError(
            f"{cache} cannot be written. Run in another directory, or set K3PERF_CACHE."
        ) from error
    run_id = f"{kind}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:4]}"
    try:
        commit = Repository(Path.cwd()).checked_out()
    except UsageError:
        commit = os.environ.get("K3PERF_COMMIT", "").strip() or "unknown"
    if trace_file is not None and not trace_file.is_file():
        raise UsageError(f"--trace {trace_file}: file not found")
    return RunSettings(
        suite=suite_of(arguments),
        run_id=run_id,
        commit=commit,
        baselines_directory=baselines_of(arguments).absolute(),
        results_directory=(arguments.results or state / "tuning" / run_id).absolute(),
        cache_directory=cache,
        engine_python=find_engine_python(arguments.engine_python, Path.cwd()),
        engine_python_path=python_path,
        trace_file=None if trace_file is None else trace_file.resolve(),
        cpu_features=usable(detect_hardware().cpu_flags, os.environ),
    )


def check_picture(arguments: argparse.Namespace) -> None:
    """Raise UsageError before the run if its picture could not be written."""
    path: Path | None = arguments.picture
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise UsageError(f"--picture {path}: not a file in an existing directory")


def write_picture(arguments: argparse.Namespace, result: TuningResult) -> None:
    """Write ``--picture``. Raises UsageError."""
    from k3perf.report.tuning_picture import tuning_picture

    if arguments.picture is not None:
        write_text(arguments.picture, tuning_picture(result), "--picture")


def say(text: str) -> None:
    """One line on stderr, at once."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def say_reading(reading: TuningReading, known: bool) -> None:
    """One line for each session."""
    trial = reading.trial
    what = f"{trial.stage}, block {trial.block + 1}: {trial.label}"
    if reading.fate is Fate.MEASURED:
        value = reading.values.get("output_tokens_per_s")
        end = f"{value:.1f} tokens/s" if value is not None else "measured"
    elif reading.fate is Fate.SAME_ENGINE:
        end = f"same engine as {reading.same_as}, not measured"
    else:
        end = f"{reading.fate.value}: {reading.text}"
    source = " (from the journal)" if known else f" in {reading.duration_s:.0f} s"
    say(f"{what}: {end}{source}")


def say_cost(prepared: PreparedTuning, least: int, most: int) -> None:
    """What the run will cost, before it starts."""
    session_s = prepared.plan.expected_session_s
    budget = prepared.plan.budget_s
    limit = f", limited to {budget / 60:.0f} min by the budget" if budget is not None else ""
    say(
        f"{prepared.cell.cell_id}: {least} to {most} sessions of about {session_s:.0f} s, so"
        f" {least * session_s / 60:.0f} to {most * session_s / 60:.0f} min{limit}"
    )
    for note in prepared.notes:
        say(f"  note: {note}")


class TuningLines(Progress):
    """Notes of the run as lines on stderr. Nothing is written while a round is
    measured.
    """

    def note(self, text: str) -> None:
        """One line."""
        say(text)


def _value(text: str) -> Any:
    try:
        return json_of(text.strip())
    except DocumentProblem:
        return text.strip()
