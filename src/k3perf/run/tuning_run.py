"""One tuning run or sweep on real engines: inputs checked, cost stated, journal opened,
engines given back on every way out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from k3perf.ci.costs import CostBasis, CostModel
from k3perf.config.models import TargetSpec
from k3perf.config.suite import Cell, Suite
from k3perf.config.workload_spec import ServiceLevel
from k3perf.documents import read_json
from k3perf.engine.installed_vllm import installed_vllm
from k3perf.errors import ConfigFileError, MeasurementInvalid, UsageError
from k3perf.records.metric_definitions import METRICS
from k3perf.records.tuning import (
    BoundSpec,
    Change,
    ParameterFinding,
    TuningReading,
    TuningResult,
    TuningTrial,
)
from k3perf.run.progress import Progress
from k3perf.run.readiness import require_accepted, require_engine, require_port
from k3perf.run.settings import RunSettings
from k3perf.run.time_left import recorded_costs
from k3perf.run.tuning_sessions import TuningJudge, TuningSessions
from k3perf.store.tuning_journal import TuningJournal, write_result
from k3perf.telemetry.hardware import detect_hardware
from k3perf.tune.exclusions import Exclusions
from k3perf.tune.grid import grid_changes, measure_grid
from k3perf.tune.ledger import Source
from k3perf.tune.plan import Parameter, TuningPlan
from k3perf.tune.strategy import RunNames, Tuning

_UNRECORDED_ROUND_S: Final = 3.0
"""A guess until the first session of the run has shown its cost."""

_REQUESTS_FOR_P99: Final = 100

MEMORY_METRIC: Final = {"cpu": "engine_peak_rss_bytes", "nvidia": "kv_capacity_tokens"}
"""What stands for memory on the front. A GPU's share is fixed, so the capacity that it
leaves for the KV cache counts there.
"""


@dataclass(frozen=True)
class TuningRequest:
    """What the command line asks for. ``base`` empty: the target's reference config."""

    target: str
    base: str
    workload: str
    parameters: Callable[[Mapping[str, Any], str], tuple[Parameter, ...]]
    objective: str = "output_tokens_per_s"
    bounds: tuple[BoundSpec, ...] = ()
    budget_s: float | None = None
    rounds: int = 4
    error_rate: float = 0.01
    smallest_effect: float = 0.02
    validation_workload: str = ""
    service_level: ServiceLevel | None = None
    quality_file: Path | None = None
    largest_quality_loss: float = 0.0
    grid: Mapping[str, Sequence[Any]] | None = None
    grid_blocks: int = 3


@dataclass(frozen=True)
class PreparedTuning:
    """A checked run: nothing was started yet."""

    request: TuningRequest
    settings: RunSettings
    plan: TuningPlan
    cell: Cell

    @property
    def notes(self) -> tuple[str, ...]:
        """What limits the meaning of the run's numbers."""
        found = []
        if self.cell.target.model.weights == "dummy":
            found.append(
                "the target's weights are random, so experts are not chosen as the checkpoint"
                " chooses them"
            )
        requests = self.cell.workload.requests
        tails = [name for name in self._watched if name.endswith("_p99_ms")]
        if tails and requests is not None and requests < _REQUESTS_FOR_P99:
            found.append(
                f"{tails[0]} rests on {requests} requests in a round, and is close to the largest"
                f" value below {_REQUESTS_FOR_P99}"
            )
        return tuple(found)

    @property
    def _watched(self) -> tuple[str, ...]:
        return (self.plan.objective, *(bound.metric for bound in self.plan.bounds))


def prepare(request: TuningRequest, settings: RunSettings) -> PreparedTuning:
    """Check everything that can be checked without an engine. Raises UsageError."""
    settings = replace(settings, suite=_with_service_level(settings.suite, request))
    suite = settings.suite
    target = suite.target(request.target)
    lack = detect_hardware().lacks(target.hardware)
    if lack:
        raise UsageError(f"--target {target.name}: {lack}. Run it on such a machine.")
    base = suite.config(request.base or target.reference)
    arguments = suite.engine_arguments(target, base)
    refused = suite.refusal(target, base)
    if refused:
        raise UsageError(f"--config {base.name}: {target.name} refuses it: {refused}")
    cell = Cell(target, base, suite.workload(request.workload), arguments)
    if request.validation_workload:
        suite.workload(request.validation_workload)
    require_port()
    require_engine(settings.engine_python)
    require_accepted(suite, target, base, settings.engine_python)
    _check_metrics(request, cell)
    parameters = request.parameters(arguments, target.hardware.kind)
    exclusions = Exclusions(suite, target, arguments, _model_config(suite, target))
    memory = MEMORY_METRIC.get(target.hardware.kind, "kv_capacity_tokens")
    front = dict.fromkeys(
        (request.objective, "output_tokens_per_s", "ttft_p99_ms", "tpot_mean_ms", memory)
    )
    plan = TuningPlan(
        parameters,
        objective=request.objective,
        bounds=request.bounds,
        front_metrics=tuple(front),
        base_arguments=arguments,
        exclude=exclusions.reason,
        quality_loss=_quality(request.quality_file),
        largest_quality_loss=request.largest_quality_loss,
        error_rate=request.error_rate,
        smallest_effect=request.smallest_effect,
        validation_workload=request.validation_workload,
        budget_s=request.budget_s,
        expected_session_s=_expected_session_s(suite, cell, request.rounds),
    )
    return PreparedTuning(request, settings, plan, cell)


def run_tuning(
    prepared: PreparedTuning,
    progress: Progress,
    *,
    listen: Callable[[ParameterFinding], None],
    seen: Callable[[TuningReading, bool], None],
) -> TuningResult:
    """Measure what the journal does not hold, decide, write ``tuning.json``.

    ``seen`` gets each reading and whether it came from the journal. Raises
    MeasurementInvalid if the base config has no valid session.
    """
    with _sessions(prepared, progress) as (sessions, journal):
        source = _shown(journal, sessions, seen)
        names = _names(prepared, journal)
        if prepared.request.grid is None:
            judge = TuningJudge(sessions, prepared.plan.test_count)

            def expect(trial: TuningTrial | None) -> None:
                known = trial is not None and trial.key in journal.known
                sessions.expect(None if known else trial)

            tuning = Tuning(prepared.plan, source, names, judge=judge, listen=listen, expect=expect)
            result = tuning.run()
        else:
            result = _grid(prepared, source, names)
    if result.session_count and not any(
        value.session_count for one in result.parameters for value in one.values if not value.change
    ):
        raise MeasurementInvalid(
            f"no session of {prepared.cell.cell_id} is valid:"
            f" {'; '.join(result.reasons) or 'see the journal'}. Run k3perf doctor, then name"
            " another --results directory."
        )
    write_result(prepared.settings.results_directory, result)
    return result


def _grid(prepared: PreparedTuning, source: Source, names: RunNames) -> TuningResult:
    changes = grid_changes(prepared.request.grid or {}, prepared.cell.engine_arguments)
    return measure_grid(prepared.plan, source, names, changes, prepared.request.grid_blocks)


@contextlib.contextmanager
def _sessions(
    prepared: PreparedTuning, progress: Progress
) -> Iterator[tuple[TuningSessions, TuningJournal]]:
    request, settings = prepared.request, prepared.settings
    with contextlib.ExitStack() as ending:
        sessions = TuningSessions(
            settings,
            request.target,
            prepared.cell.config.name,
            request.workload,
            progress,
            rounds=request.rounds,
        )
        ending.callback(sessions.close)
        sessions.check_inputs()
        if request.validation_workload:
            sessions.check_inputs(request.validation_workload)
        journal = ending.enter_context(
            TuningJournal(
                settings.results_directory,
                run_id=settings.run_id,
                fingerprint=fingerprint_of(prepared, sessions),
            )
        )
        sessions.know(journal.known.values())
        yield sessions, journal


def fingerprint_of(prepared: PreparedTuning, sessions: TuningSessions) -> dict[str, str]:
    """What decides the numbers and the choice. A budget may change between the parts of
    a run.
    """
    request, plan, settings = prepared.request, prepared.plan, prepared.settings
    python = settings.engine_python
    workload = request.validation_workload
    decides = {
        "arguments": prepared.cell.engine_arguments,
        "grid": request.grid,
        "grid_blocks": request.grid_blocks,
        "parameters": [[one.step, one.name, one.values] for one in plan.parameters],
        "quality": dict(plan.quality_loss),
        "largest_quality_loss": plan.largest_quality_loss,
        "target": prepared.cell.target.model_dump(mode="json"),
    }
    return {
        "target": request.target,
        "config": prepared.cell.config.name,
        "workload": request.workload,
        "plan": sessions.plan_digest(),
        "hardware_class": settings.hardware_class(prepared.cell.target),
        "validation": f"{workload} {sessions.plan_digest(workload)[:16]}" if workload else "",
        "objective": plan.objective,
        "bounds": ", ".join(bound.text for bound in plan.bounds),
        "rounds": str(request.rounds),
        "error_rate": repr(plan.error_rate),
        "smallest_effect": repr(plan.smallest_effect),
        "declarations": _digest(decides),
        "commit": settings.commit,
        "engine_python": str(python),
        "vllm": installed_vllm(python).release or "unknown",
    }


def _digest(data: object) -> str:
    text = json.dumps(data, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _names(prepared: PreparedTuning, journal: TuningJournal) -> RunNames:
    request = prepared.request
    return RunNames(
        journal.run_id,
        request.target,
        prepared.cell.config.name,
        request.workload,
        journal.fingerprint,
    )


def _shown(
    journal: TuningJournal,
    sessions: TuningSessions,
    seen: Callable[[TuningReading, bool], None],
) -> Source:
    source = journal.source(sessions)

    def shown(trial: TuningTrial) -> TuningReading:
        known = trial.key in journal.known
        reading = source(trial)
        seen(reading, known)
        return reading

    return shown


def _with_service_level(suite: Suite, request: TuningRequest) -> Suite:
    """The suite with the given service level in the run's workloads."""
    if request.service_level is None:
        return suite
    workloads = dict(suite.workloads)
    for name in (request.workload, request.validation_workload):
        if name:
            spec = suite.workload(name)
            workloads[name] = spec.model_copy(update={"service_level": request.service_level})
    return replace(suite, workloads=workloads)


def _check_metrics(request: TuningRequest, cell: Cell) -> None:
    """Raise UsageError for a metric that does not exist or that the workload cannot
    have.
    """
    for option, name in (
        ("--objective", request.objective),
        *(("--bound", bound.metric) for bound in request.bounds),
    ):
        if name not in METRICS:
            from k3perf.errors import UnknownNameError

            raise UnknownNameError(f"metric of {option}", name, tuple(METRICS))
        if name == "goodput_requests_per_s" and cell.workload.service_level is None:
            raise UsageError(
                f"{option} {name}: workload {cell.workload.name} has no service level. Give"
                " --slo-ttft-ms and --slo-tpot-ms."
            )


def _model_config(suite: Suite, target: TargetSpec) -> Mapping[str, Any] | None:
    """The model's config.json, or None where the suite does not have it."""
    model = target.model
    directory = model.directory or f"models/{(model.checkpoint or '').rpartition('/')[2].lower()}"
    path = suite.root / directory / "config.json"
    if not path.is_file():
        return None
    document = read_json(path, "Give the model's config.json.", finite=False)
    return document if isinstance(document, dict) else None


def _quality(path: Path | None) -> dict[str, float]:
    """``{"kv_cache_dtype=fp8": 0.004}``: quality loss of lossy values alone."""
    if path is None:
        return {}
    step = 'Give a JSON object such as {"kv_cache_dtype=fp8": 0.004}.'
    document = read_json(path, step)
    if not isinstance(document, dict):
        raise ConfigFileError(path, "", None, "is not a JSON object", step)
    for label, loss in document.items():
        if isinstance(loss, bool) or not isinstance(loss, int | float) or "=" not in label:
            raise ConfigFileError(path, label, loss, "is not a quality loss of a value", step)
    return {label: float(loss) for label, loss in document.items()}


def _expected_session_s(suite: Suite, cell: Cell, rounds: int) -> float:
    """From recorded costs, else a guess by the kind of device."""
    costs = CostModel(recorded_costs(suite.root))
    start_s = costs.start_s(cell)
    if costs.basis(cell) is CostBasis.ASSUMED:
        return start_s + _UNRECORDED_ROUND_S * (rounds + cell.target.measurement.warm_up_rounds)
    arms = 2 if cell.target.measurement.mode == "reference" else 1
    share = rounds / cell.target.measurement.minimum_rounds
    count = cell.target.measurement.minimum_sessions
    return start_s + share * (costs.cell_s(cell) - (count - 1) * start_s) / (count * arms)


def proposed_change(result: TuningResult, label: str) -> Change | None:
    """The change of a measured point by its label, or of ``best``. None if unknown."""
    from k3perf.records.tuning import label_of

    if label == "best":
        return result.proposal or None
    known = [point.change for point in result.front]
    known += [value.change for one in result.parameters for value in one.values]
    if result.interaction is not None:
        known += [*result.interaction.parts, result.interaction.proposed]
    known.append(result.proposal)
    return next((one for one in known if one and label_of(one) == label), None)
