"""The gate on trial: no-change and injected-loss runs of simulated and recorded
sessions, beside the rules of others. Pure; returns text.

Every figure carries its exact 95 % binomial interval. Replays of recorded sessions
reuse the same sessions in many splits, so their intervals say how well the replay is
counted, not how well a dozen sessions know the machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from k3perf.config.models import MeasurementPlan, Tolerance
from k3perf.records.outcome import Outcome
from k3perf.stats.estimators import Location
from tests.calibration.lab.proportion import clopper_pearson
from tests.calibration.lab.replay import (
    CellSource,
    Replayed,
    Session,
    Setting,
    metric_loss,
    quick_runs,
)
from tests.calibration.lab.rivals import RIVALS, seen
from tests.calibration.lab.simulation import (
    SHAPES,
    Matrix,
    Noise,
    Rounds,
    paired_rounds,
    realised_sigma,
    session_rounds,
    session_sigma_for,
)

SUITE_METRICS: Final = 60
GATED: Final = ("output_tokens_per_s", "ttft_mean_ms", "tpot_mean_ms")
THE_GATE: Final = "k3perf gate"
LOSSES: Final = (0.0, 0.5, 1.5)
"""True losses of a trial, in tolerances."""

_LOSS_WORDS: Final = {
    0.0: "without a change",
    0.5: "at half the tolerance",
    1.5: "at 1.5 x tolerance",
}


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
    """One source of noise: rule to counts, at no change, half the tolerance and one and
    a half tolerances.
    """

    name: str
    note: str
    remark: str = ""
    clean: dict[str, Counts] = field(default_factory=dict)
    half: dict[str, Counts] = field(default_factory=dict)
    lost: dict[str, Counts] = field(default_factory=dict)


def simulated_source(noises: dict[str, Noise], round_count: int, *, paired: bool) -> CellSource:
    """Sessions of made-up noise, every metric on its own."""

    def draw(rng: np.random.Generator, count: int) -> list[Session]:
        if not paired:
            made = {
                metric: _tuples(session_rounds(noise, count, round_count, rng))
                for metric, noise in noises.items()
            }
            return [
                ({metric: sessions[index] for metric, sessions in made.items()}, None)
                for index in range(count)
            ]
        pairs = {
            metric: paired_rounds(noise, count, round_count, rng)
            for metric, noise in noises.items()
        }
        own = {metric: _tuples(arms[0]) for metric, arms in pairs.items()}
        beside = {metric: _tuples(arms[1]) for metric, arms in pairs.items()}
        return [
            (
                {metric: own[metric][index] for metric in pairs},
                {metric: beside[metric][index] for metric in pairs},
            )
            for index in range(count)
        ]

    return draw


def _tuples(rounds: Matrix) -> list[Rounds]:
    return [tuple(session) for session in rounds.tolist()]


def simulated_setting(
    shape: str,
    *,
    tolerance: float = 0.05,
    noise_share: float = 0.25,
    plan: MeasurementPlan,
    metrics: tuple[str, ...] = GATED,
    on_top: bool = False,
) -> Setting:
    """60 gated metrics over cells whose session values, of the plan's
    ``maximum_rounds``, have a standard deviation of ``noise_share`` of the tolerance,
    slow rounds and slides included. Rounds scatter as much as sessions differ.

    ``on_top``: slow rounds and slides are added to normal noise of that size instead,
    so that together they exceed it.
    """
    noises = {
        metric: simulated_noise(
            "normal" if on_top else shape, noise_share * metric_loss(metric, tolerance), plan
        )
        for metric in metrics
    }
    shaped = {
        metric: Noise(shape, noise.session_sigma, noise.round_sigma)
        for metric, noise in noises.items()
    }
    source = simulated_source(shaped, plan.maximum_rounds, paired=plan.mode == "reference")
    return Setting(
        (source,) * (SUITE_METRICS // len(metrics)),
        dict.fromkeys(metrics, Tolerance(loss_ratio=tolerance)),
        plan,
    )


def simulated_noise(shape: str, total: float, plan: MeasurementPlan) -> Noise:
    """Noise of a shape whose session values have a standard deviation of ``total``;
    where slow rounds alone exceed it, they come on top of normal noise of that size.
    """
    paired = plan.mode == "reference"
    try:
        sigma = session_sigma_for(
            shape, total, steadiest(shape, plan), plan.maximum_rounds, paired=paired
        )
    except ValueError:
        sigma = session_sigma_for(
            "normal", total, Location.MEDIAN, plan.maximum_rounds, paired=paired
        )
    return Noise(shape, sigma, sigma)


def steadiest(shape: str, plan: MeasurementPlan) -> Location:
    """The location that a shape's noise is measured with. Pairs may stand out either
    way, so that there only the median serves.
    """
    return (
        Location.LOWER_QUARTILE
        if shape == "outlier_contaminated" and plan.mode != "reference"
        else Location.MEDIAN
    )


def run_trial(name: str, note: str, setting: Setting, *, runs: int, seed: int) -> Trial:
    """Judge ``runs`` suite runs at no change, at half the tolerance and at one and a
    half tolerances, by every rule.
    """
    trial = Trial(name, note)
    rng = np.random.default_rng(seed)
    for _ in range(runs):
        for counts, run in zip(
            (trial.clean, trial.half, trial.lost), quick_runs(setting, LOSSES, rng), strict=True
        ):
            _count_run(counts, run)
    return trial


def _count_run(counts: dict[str, Counts], run: Sequence[Replayed]) -> None:
    gate = counts.setdefault(THE_GATE, Counts())
    outcomes = [outcome for cell in run for outcome in cell.outcomes]
    _add(gate, [outcome is Outcome.REGRESSED for outcome in outcomes])
    gate.undecided += sum(
        outcome in (Outcome.INCONCLUSIVE, Outcome.SUSPECT, Outcome.INVALID) for outcome in outcomes
    )
    gate.rounds += sum(cell.round_count for cell in run)
    gate.cells += len(run)
    views = [
        seen(metric, [own[metric] for own, _ in cell.baseline_sessions], losses)
        for cell in run
        for metric, losses in cell.candidate_sessions[0][0].items()
    ]
    for name, rule in RIVALS.items():
        _add(counts.setdefault(name, Counts()), [rule(view) for view in views])


def in_order_of_time(setting: Setting) -> str:
    """The outcomes when each cell's sessions are taken in order instead of at random:
    what a slide from session to session does.
    """
    told = []
    for loss, run in zip(
        LOSSES, quick_runs(setting, LOSSES, np.random.default_rng(0)), strict=True
    ):
        outcomes = [outcome for cell in run[: len(setting.sources)] for outcome in cell.outcomes]
        counts = ", ".join(
            f"{outcomes.count(outcome)} {outcome}" for outcome in Outcome if outcome in outcomes
        )
        told.append(f"{counts} {_LOSS_WORDS[loss]}")
    return (
        f"In order of recording, the first {setting.plan.baseline_sessions} sessions against the"
        f" next ones: {'; '.join(told)}."
    )


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
            "| rule | clean runs red | red at half the tolerance | clean metrics alarmed | 1.5 x"
            " tolerance caught | undecided, clean | undecided, lost |"
        )
        parts.append("| --- | --- | --- | --- | --- | --- | --- |")
        for rule, clean in trial.clean.items():
            half, lost = trial.half[rule], trial.lost[rule]
            undecided = [
                rate(counts.undecided, counts.metrics) if rule == THE_GATE else "-"
                for counts in (clean, lost)
            ]
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
            (
                f"Rounds per cell that the gate bought: {gate_clean.rounds / gate_clean.cells:.1f}"
                f" without a change, {gate_lost.rounds / gate_lost.cells:.1f} at 1.5 x tolerance"
                f" ({trial.clean[THE_GATE].runs} clean runs of"
                f" {gate_clean.metrics // gate_clean.runs} metrics)."
            ),
            "",
        ]
        parts += [trial.remark, ""] if trial.remark else []
    return "\n".join(parts)


def simulated_trials(
    *, runs: int, seed: int, plan: MeasurementPlan, shapes: Sequence[str] = SHAPES
) -> list[Trial]:
    """One trial per shape of noise at the hardest noise promised: a quarter of the
    tolerance between sessions.
    """
    return [
        run_trial(
            f"{shape.replace('_', ' ')} noise, {plan.mode} mode",
            _simulated_note(shape, plan),
            simulated_setting(shape, plan=plan),
            runs=runs,
            seed=seed,
        )
        for shape in shapes
    ]


def _simulated_note(shape: str, plan: MeasurementPlan) -> str:
    quarter = 0.25 * metric_loss(GATED[-1], 0.05)
    noise, location = simulated_noise(shape, quarter, plan), steadiest(shape, plan)
    paired = plan.mode == "reference"
    most, least = (
        realised_sigma(noise, location, rounds, plan.maximum_rounds, paired=paired) / quarter
        for rounds in (plan.maximum_rounds, plan.minimum_rounds)
    )
    return (
        f"Simulated: {SUITE_METRICS // len(GATED)} cells x {len(GATED)} metrics, tolerance 5 %. The"
        f" {location} of {plan.maximum_rounds} rounds has a standard deviation between sessions of"
        f" {most:.2f} quarters of the tolerance. That of {plan.minimum_rounds} rounds has {least:.2f}."
    )
