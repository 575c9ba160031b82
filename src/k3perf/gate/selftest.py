"""The gate on trial: no-change and injected-loss runs of simulated and recorded sessions, beside the rules of others. Pure; returns text.

Every figure carries its exact 95 % binomial interval. Replays of recorded sessions reuse the same sessions in many splits, so their
intervals say how well the replay is counted, not how well a dozen sessions know the machine.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from k3perf.config.models import MeasurementPlan, Tolerance
from k3perf.gate.outcome import Outcome
from k3perf.gate.replay import CellSource, Replayed, Session, Setting, suite_run
from k3perf.gate.rivals import RIVALS
from k3perf.gate.simulation import SHAPES, Noise, Rounds, paired_rounds, session_rounds
from k3perf.metrics.definitions import METRICS, Comparison, Direction, Scope
from k3perf.metrics.values import CellMeasurement, RoundMetrics, SessionMetrics
from k3perf.samples import Arm
from k3perf.stats.location import MEDIAN_VARIANCE_FACTOR
from k3perf.stats.proportion import clopper_pearson

SUITE_METRICS: Final = 60
GATED: Final = ("output_tokens_per_s", "ttft_mean_ms", "tpot_mean_ms")
THE_GATE: Final = "k3perf gate"
RECORDED_ROUNDS: Final = 12


@dataclass(slots=True)
class Counts:
    """One rule's hits over metrics and runs, at one injected loss."""

    metrics: int = 0
    alarms: int = 0
    undecided: int = 0
    runs: int = 0
    red_runs: int = 0
    rounds: int = 0
    cells: int = 0


@dataclass(slots=True)
class Trial:
    """One source of noise: rule to counts, at no change, half the tolerance and one and a half tolerances."""

    name: str
    note: str
    clean: dict[str, Counts] = field(default_factory=dict)
    half: dict[str, Counts] = field(default_factory=dict)
    lost: dict[str, Counts] = field(default_factory=dict)


def simulated_source(noise: Noise, metrics: Sequence[str], *, paired: bool) -> CellSource:
    """Sessions of made-up noise, every metric on its own."""

    def draw(rng: random.Random, count: int) -> list[Session]:
        if not paired:
            return [({metric: session_rounds(noise, RECORDED_ROUNDS, rng) for metric in metrics}, None) for _ in range(count)]
        pairs = [{metric: paired_rounds(noise, RECORDED_ROUNDS, rng) for metric in metrics} for _ in range(count)]
        return [({m: arms[0] for m, arms in pair.items()}, {m: arms[1] for m, arms in pair.items()}) for pair in pairs]

    return draw


def recorded_source(measurement: CellMeasurement, metrics: Sequence[str]) -> CellSource:
    """Sessions drawn from recorded ones without replacement; pairs stay together."""
    references = {session.pair_id: session for session in measurement.arm(Arm.REFERENCE) if session.pair_id is not None}
    sessions: list[Session] = []
    for session in measurement.arm(Arm.CANDIDATE):
        beside = references.get(session.pair_id) if session.pair_id is not None else None
        if not session.invalid_reasons and (measurement.mode == "baseline" or beside is not None):
            sessions.append(_session(session, beside, metrics))

    def draw(rng: random.Random, count: int) -> list[Session]:
        return rng.sample(sessions, count)

    return draw


def recorded_metrics(measurements: Sequence[CellMeasurement]) -> tuple[str, ...]:
    """The gated metrics that every valid round of every cell recorded; else whichever statistical round metrics did."""

    def complete(name: str) -> bool:
        rounds = [r for cell in measurements for s in cell.sessions if not s.invalid_reasons for r in s.rounds if not r.invalid_reasons]
        values = [measured.values[name].value if name in measured.values else None for measured in rounds]
        return bool(values) and all(value is not None and value > 0 for value in values)

    statistical = [m.name for m in METRICS.values() if m.comparison is Comparison.STATISTICAL and m.scope is Scope.ROUND]
    found = tuple(name for name in statistical if complete(name))
    return tuple(name for name in GATED if name in found) or found


def _session(session: SessionMetrics, beside: SessionMetrics | None, metrics: Sequence[str]) -> Session:
    """Valid rounds only; with a reference beside, only rounds whose neighbour is valid too, so that neighbours stay neighbours."""
    own = {measured.round_index: measured for measured in session.rounds if not measured.invalid_reasons}
    if beside is None:
        return _losses(own.values(), metrics), None
    others = {measured.pair_index: measured for measured in beside.rounds if not measured.invalid_reasons}
    pairs = [(measured, others[measured.pair_index]) for measured in own.values() if measured.pair_index in others]
    return _losses([pair[0] for pair in pairs], metrics), _losses([pair[1] for pair in pairs], metrics)


def _losses(rounds: Iterable[RoundMetrics], metrics: Sequence[str]) -> Mapping[str, Rounds]:
    kept = tuple(rounds)
    return {name: tuple(_loss(name, measured.values[name].value) for measured in kept) for name in metrics}


def _loss(name: str, value: float | None) -> float:
    sign = 1 if METRICS[name].direction is Direction.LOWER_IS_BETTER else -1
    return sign * math.log((value or math.nan) / 100.0)


def simulated_setting(
    shape: str, *, tolerance: float = 0.05, noise_share: float = 0.25, plan: MeasurementPlan, metrics: tuple[str, ...] = GATED
) -> Setting:
    """60 gated metrics over cells whose session values have a standard deviation of ``noise_share`` of the tolerance, at all 12 rounds.

    Rounds scatter as much as sessions differ.
    """
    total = noise_share * math.log1p(tolerance)
    session_sigma = total / math.sqrt(1 + MEDIAN_VARIANCE_FACTOR / RECORDED_ROUNDS)
    source = simulated_source(Noise(shape, session_sigma, session_sigma), metrics, paired=plan.mode == "reference")
    return Setting((source,) * (SUITE_METRICS // len(metrics)), metrics, Tolerance(loss_ratio=tolerance), plan)


def recorded_setting(measurements: Sequence[CellMeasurement], *, tolerance: float, plan: MeasurementPlan) -> Setting:
    """The recorded cells, drawn often enough for a suite of 60 metrics."""
    metrics = recorded_metrics(measurements)
    sources = tuple(recorded_source(measurement, metrics) for measurement in measurements)
    return Setting(
        sources, metrics, Tolerance(loss_ratio=tolerance), plan, repeats=max(1, round(SUITE_METRICS / len(metrics) / len(sources)))
    )


def run_trial(name: str, note: str, setting: Setting, *, runs: int, seed: int) -> Trial:
    """Judge ``runs`` suite runs at no change and half the tolerance, and a quarter as many at one and a half tolerances, by every
    rule."""
    trial = Trial(name, note)
    step = math.log1p(setting.tolerance.loss_ratio or 0.0)
    for counts, factor, count in ((trial.clean, 0.0, runs), (trial.half, 0.5, runs), (trial.lost, 1.5, max(runs // 4, 1))):
        rng = random.Random(seed)  # noqa: S311 - a simulation wants a seeded generator, no secret
        for _ in range(count):
            _count_run(counts, suite_run(setting, factor * step, rng))
    return trial


def _count_run(counts: dict[str, Counts], run: Sequence[Replayed]) -> None:
    gate = counts.setdefault(THE_GATE, Counts())
    outcomes = [metric.outcome for cell in run for metric in cell.verdict.metrics]
    _add(gate, [outcome is Outcome.REGRESSED for outcome in outcomes])
    gate.undecided += sum(outcome in (Outcome.INCONCLUSIVE, Outcome.INVALID) for outcome in outcomes)
    gate.rounds += sum(cell.round_count for cell in run)
    gate.cells += len(run)
    for name, rule in RIVALS.items():
        alarms = []
        for cell in run:
            for metric in cell.candidate_sessions[0][0]:
                recorded = [own[metric] for own, _ in cell.baseline_sessions]
                alarms.append(rule(metric, recorded, cell.candidate_sessions[0][0][metric]))
        _add(counts.setdefault(name, Counts()), alarms)


def _add(counts: Counts, alarms: Sequence[bool]) -> None:
    counts.metrics += len(alarms)
    counts.alarms += sum(alarms)
    counts.runs += 1
    counts.red_runs += any(alarms)


def rate(hits: int, trials: int) -> str:
    """A percentage with its exact 95 % interval."""
    low, high = clopper_pearson(hits, trials)
    return f"{hits / max(trials, 1):.1%} ({low:.1%}-{high:.1%})"


def render(trials: Iterable[Trial]) -> str:
    """Markdown: one table per source of noise."""
    parts = []
    for trial in trials:
        parts += [f"### {trial.name}", "", trial.note, ""]
        parts.append(
            "| rule | clean runs red | red at half the tolerance | clean metrics alarmed | 1.5 x tolerance caught | undecided, clean | undecided, lost |"
        )
        parts.append("| --- | --- | --- | --- | --- | --- | --- |")
        for rule, clean in trial.clean.items():
            half, lost = trial.half[rule], trial.lost[rule]
            undecided = (
                [f"{clean.undecided / clean.metrics:.1%}", f"{lost.undecided / lost.metrics:.1%}"] if rule == THE_GATE else ["-", "-"]
            )
            cells = [
                rule,
                rate(clean.red_runs, clean.runs),
                rate(half.red_runs, half.runs),
                f"{clean.alarms / clean.metrics:.2%}",
                rate(lost.alarms, lost.metrics),
                *undecided,
            ]
            parts.append(f"| {' | '.join(cells)} |")
        gate_clean, gate_lost = trial.clean[THE_GATE], trial.lost[THE_GATE]
        parts += [
            "",
            f"Rounds per cell that the gate bought: {gate_clean.rounds / gate_clean.cells:.1f} without a change, "
            f"{gate_lost.rounds / gate_lost.cells:.1f} at 1.5 x tolerance ({trial.clean[THE_GATE].runs} clean runs of "
            f"{gate_clean.metrics // gate_clean.runs} metrics).",
            "",
        ]
    return "\n".join(parts)


def simulated_trials(*, runs: int, seed: int, plan: MeasurementPlan, shapes: Sequence[str] = SHAPES) -> list[Trial]:
    """One trial per shape of noise at the hardest noise promised: a quarter of the tolerance between sessions."""
    note = "Simulated: 20 cells x 3 metrics, tolerance 5 %, standard deviation between session values a quarter of the tolerance."
    return [
        run_trial(f"{shape.replace('_', ' ')} noise, {plan.mode} mode", note, simulated_setting(shape, plan=plan), runs=runs, seed=seed)
        for shape in shapes
    ]
