"""Whole suite runs, made of simulated or recorded sessions. Pure and seeded.

A run draws baseline sessions and candidate sessions of every cell, injects losses into
the candidates, and lets the gate buy what it asks for. Two ways give the same outcomes
(the calibration tests compare them): ``suite_run`` takes the real path over documents
(propose, pool, compare, buy); ``quick_runs`` calls the same estimators, schedules and
decisions on bare series, fifty times as fast, and judges several losses on one draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from k3perf.baselines.propose import propose
from k3perf.baselines.target_policy import with_noise_of
from k3perf.baselines.testable import CATCH_FACTOR, CATCH_MISS
from k3perf.config.models import MeasurementPlan, Tolerance
from k3perf.gate.compare import compare, next_purchase
from k3perf.gate.decision import Decision, judge, remaining_tolerance
from k3perf.gate.metric_verdict import analyses_of, limits_of
from k3perf.gate.policy import Policy
from k3perf.metrics.loss_scale import scale_for
from k3perf.records.baseline import Acceptance, Baseline
from k3perf.records.measurement import SessionMetrics
from k3perf.records.metric_definitions import METRICS
from k3perf.records.outcome import Outcome
from k3perf.records.samples import Arm
from k3perf.stats.bounds import Limits, minimum_detectable
from k3perf.stats.noise import MetricNoise
from k3perf.stats.reference import Reference, cell_reference
from k3perf.stats.sequential import InterimAnalysis, last_planned
from tests.calibration.lab.simulation import Rounds, cell_of, session_of

Session = tuple[Mapping[str, Rounds], Mapping[str, Rounds] | None]
"""A candidate session's losses by metric, and those of the reference session beside it
(None: there is none).
"""

CellSource = Callable[[np.random.Generator, int], Sequence[Session]]
"""Draws that many sessions of one cell, all of the same build."""

ACCEPTANCE: Final = Acceptance(
    accepted_by="replay",
    reason="replayed sessions",
    accepted_at_utc="2026-01-01T00:00:00Z",
    commit="none",
    run_ids=("replay",),
)


@dataclass(frozen=True, slots=True)
class Setting:
    """What is replayed: one source per cell, the gated metrics with their relative
    tolerances, the plan.

    Where there are fewer cells than a suite has, the same cells are drawn ``repeats``
    times into one run, each time on their own; noise is pooled within a draw, over the
    cells that there really are. ``candidate_noise``: the candidates' deviations over
    the recorded ones; for made-up sessions around 0. ``candidate_session_noise``: the same of a session's mean
    alone. ``moved_tolerances``: the loss of
    every baseline since its anchor; the cap equals the tolerance. ``only_testable``: a
    metric of a cell that ``baseline accept`` would refuse is not gated there, as with
    its ``--only-testable``. ``quick_runs`` alone knows it.
    """

    sources: tuple[CellSource, ...]
    tolerances: Mapping[str, Tolerance]
    plan: MeasurementPlan
    repeats: int = 1
    candidate_noise: float = 1.0
    candidate_session_noise: float = 1.0
    moved_tolerances: float = 0.0
    only_testable: bool = False

    @property
    def mode(self) -> str:
        """``baseline`` or ``reference``, from the plan."""
        return self.plan.mode

    def policy(self) -> Policy:
        """The suite's default budgets over all metrics of all cells."""
        return self.policy_for(len(self.tolerances) * len(self.sources) * self.repeats)

    def policy_for(self, gated_metric_count: int) -> Policy:
        """The same in a suite of that many metrics."""
        return Policy(
            tolerances=self.tolerances, plan=self.plan, gated_metric_count=gated_metric_count
        )

    def loss_of(self, metric: str, tolerances: float) -> float:
        """A true loss of that many tolerances on the metric's loss scale: 1.5 times 5 %
        are 7.5 % less throughput or 7.5 % more time.
        """
        return metric_loss(metric, tolerances * (self.tolerances[metric].loss_ratio or 0.0))


def metric_loss(metric: str, loss_ratio: float) -> float:
    """A relative loss of a metric on its loss scale."""
    tolerance = Tolerance(loss_ratio=loss_ratio)
    return scale_for(METRICS[metric], tolerance).allowed


@dataclass(frozen=True, slots=True)
class Replayed:
    """One cell of one run: the outcome of each metric, what it cost, and the sessions
    for other rules to judge.
    """

    outcomes: tuple[Outcome, ...]
    round_count: int
    session_count: int
    baseline_sessions: tuple[Session, ...]
    candidate_sessions: tuple[Session, ...]
    decisions: tuple[Decision, ...] = ()


def suite_run(
    setting: Setting, tolerances: float, rng: np.random.Generator
) -> tuple[Replayed, ...]:
    """One run of all cells along the real path; a loss of ``tolerances`` is injected
    into every metric of every candidate session.
    """
    return tuple(
        cell for _ in range(setting.repeats) for cell in _documents_run(setting, tolerances, rng)
    )


def _documents_run(
    setting: Setting, tolerances: float, rng: np.random.Generator
) -> Iterator[Replayed]:
    plan = setting.plan
    drawn = draw_cells(setting, rng)
    baselines, policy = proposed(setting, drawn)
    for baseline, sessions in zip(baselines, drawn, strict=True):
        candidates = tuple(
            _with_loss(setting, item, tolerances) for item in sessions[plan.baseline_sessions :]
        )
        yield _replay_documents(
            baseline, tuple(sessions[: plan.baseline_sessions]), candidates, policy
        )


def proposed(setting: Setting, drawn: Sequence[Sequence[Session]]) -> tuple[list[Baseline], Policy]:
    """The baselines of drawn cells, and the policy with their noise."""
    policy = setting.policy()
    baselines = []
    for index, sessions in enumerate(drawn):
        first = _sessions(sessions[: setting.plan.baseline_sessions], "b")
        recorded = cell_of(f"cell{index}", first, mode=setting.mode)
        baselines.append(
            propose([recorded], versions={}, policy=policy, previous=None, acceptance=ACCEPTANCE)
        )
    return baselines, with_noise_of(policy, baselines)


def draw_cells(setting: Setting, rng: np.random.Generator) -> list[Sequence[Session]]:
    return [
        source(rng, setting.plan.baseline_sessions + setting.plan.suspect_sessions)
        for source in setting.sources
    ]


def _replay_documents(
    baseline: Baseline,
    recorded: tuple[Session, ...],
    candidates: tuple[Session, ...],
    policy: Policy,
) -> Replayed:
    """Measure, ask, buy, until nothing more is bought or there is no more to have."""
    plan = policy.plan
    bought = [plan.minimum_rounds] * plan.minimum_sessions
    while True:
        cell = cell_of(
            baseline.config, _sessions(candidates[: len(bought)], "c", bought), mode=plan.mode
        )
        verdict = compare(baseline, cell, policy)
        wanted = _buy(bought, verdict.buy_until_sessions, verdict.buy_until_rounds)
        if wanted == bought:
            outcomes = tuple(metric.outcome for metric in verdict.metrics)
            return Replayed(outcomes, sum(bought), len(bought), recorded, candidates)
        bought = wanted


def _buy(bought: list[int], sessions: int, rounds: int) -> list[int]:
    """The rounds of each session after a purchase; unchanged where there is none."""
    return (
        [max(had, rounds) for had in bought] + [rounds] * (sessions - len(bought))
        if sessions
        else bought
    )


def _sessions(
    sessions: Sequence[Session], prefix: str, rounds: Sequence[int] | None = None
) -> list[SessionMetrics]:
    made = []
    for index, (own, beside) in enumerate(sessions):
        count = None if rounds is None else rounds[index]
        name = f"{prefix}{index}"
        pair_id = None if beside is None else name
        made.append(
            session_of(
                name, {metric: losses[:count] for metric, losses in own.items()}, pair_id=pair_id
            )
        )
        if beside is not None:
            cut = {metric: losses[:count] for metric, losses in beside.items()}
            made.append(session_of(f"{name}r", cut, arm=Arm.REFERENCE, pair_id=pair_id))
    return made


def _with_loss(setting: Setting, session: Session, tolerances: float) -> Session:
    own, beside = session
    if not tolerances and setting.candidate_noise == setting.candidate_session_noise == 1:
        return session
    lost = {}
    for metric, losses in own.items():
        step = setting.loss_of(metric, tolerances)
        step += (setting.candidate_session_noise - 1) * sum(losses) / len(losses)
        lost[metric] = tuple(setting.candidate_noise * value + step for value in losses)
    return lost, beside


def quick_runs(
    setting: Setting, tolerances: Sequence[float], rng: np.random.Generator
) -> list[tuple[Replayed, ...]]:
    """One draw of all cells, judged at each loss: per loss what ``suite_run`` gives for
    it with a generator in the same state.
    """
    runs: list[list[Replayed]] = [[] for _ in tolerances]
    policy = setting.policy()
    for _ in range(setting.repeats):
        drawn = draw_cells(setting, rng)
        recorded = [tuple(sessions[: setting.plan.baseline_sessions]) for sessions in drawn]
        cells = quick_cells(setting, policy, recorded)
        for run, lost in zip(runs, tolerances, strict=True):
            for cell, known, sessions in zip(cells, recorded, drawn, strict=True):
                candidates = tuple(
                    _with_loss(setting, item, lost)
                    for item in sessions[setting.plan.baseline_sessions :]
                )
                run.append(_replay_series(cell, known, candidates, setting.plan))
    return [tuple(run) for run in runs]


Judge = tuple[str, Reference, Limits, tuple[InterimAnalysis, ...]]
"""A metric of a cell, ready to judge."""


def quick_cells(
    setting: Setting, policy: Policy, recorded: Sequence[Sequence[Session]]
) -> list[list[Judge]]:
    """Per cell what each metric is judged against."""
    plan = setting.plan
    cells: list[list[Judge]] = [[] for _ in recorded]
    for metric, tolerance in setting.tolerances.items():
        series = [
            tuple(_difference(session, metric) for session in sessions) for sessions in recorded
        ]
        counts = [min(map(len, cell)) for cell in series]
        noise = MetricNoise(tuple(series), min(counts))
        scale = scale_for(METRICS[metric], tolerance)
        limits = limits_of(scale, policy)
        moved, allowed = setting.moved_tolerances * limits.tolerance, limits.tolerance
        limits = limits._replace(remaining=remaining_tolerance(moved, allowed, allowed))
        for judges, cell, count in zip(cells, series, counts, strict=True):
            rounds = (plan.minimum_rounds, plan.maximum_rounds)
            reference = cell_reference(
                cell, noise, count, rounds, spread_over_noise_ratio=policy.spread_over_noise_ratio
            )
            analyses = analyses_of(scale, reference, plan)
            if not setting.only_testable or _accepted(reference, limits, analyses):
                judges.append((metric, reference, limits, analyses))
    return cells


def _accepted(reference: Reference, limits: Limits, analyses: Sequence[InterimAnalysis]) -> bool:
    """As ``baselines.testable`` says, for noise that is not 0."""
    planned = last_planned(analyses)
    found = minimum_detectable(reference, limits._replace(beta=CATCH_MISS), planned)
    return found is not None and found <= CATCH_FACTOR * limits.tolerance


def _difference(session: Session, metric: str) -> tuple[float, ...]:
    own, beside = session
    if beside is None:
        return own[metric]
    return tuple(loss - other for loss, other in zip(own[metric], beside[metric], strict=True))


def _replay_series(
    judges: list[Judge],
    recorded: tuple[Session, ...],
    candidates: tuple[Session, ...],
    plan: MeasurementPlan,
) -> Replayed:
    """As ``_replay_documents``; a metric that is decided is not judged again, since no
    later look can change it.
    """
    series = [[_difference(session, metric) for session in candidates] for metric, *_ in judges]
    decisions: list[Decision | None] = [None] * len(judges)
    bought = [plan.minimum_rounds] * plan.minimum_sessions
    while True:
        for index, (_, reference, limits, looks) in enumerate(judges):
            before = decisions[index]
            if before is None or before.need_sessions is not None:
                cut = [losses[:count] for losses, count in zip(series[index], bought, strict=False)]
                decisions[index] = judge(cut, reference, limits, looks)
        found = [decision for decision in decisions if decision is not None]
        wanted = _buy(
            bought,
            *next_purchase((decision.need_sessions, decision.need_rounds) for decision in found),
        )
        if wanted == bought:
            return Replayed(
                tuple(decision.outcome for decision in found),
                sum(bought),
                len(bought),
                recorded,
                candidates,
                tuple(found),
            )
        bought = wanted


@dataclass(slots=True)
class Tally:
    """Counts over many runs. Rates come from them with
    ``clopper_pearson``.
    """

    runs: int = 0
    red_runs: int = 0
    metrics: int = 0
    regressed: int = 0
    passed: int = 0
    inconclusive: int = 0
    suspect: int = 0
    suspect_runs: int = 0
    invalid: int = 0
    rounds: int = 0
    cells: int = 0

    def add(self, run: Sequence[Replayed]) -> None:
        """Count one run."""
        outcomes = [outcome for cell in run for outcome in cell.outcomes]
        regressed = outcomes.count(Outcome.REGRESSED)
        self.runs += 1
        self.red_runs += regressed > 0
        self.metrics += len(outcomes)
        self.regressed += regressed
        self.passed += outcomes.count(Outcome.PASS) + outcomes.count(Outcome.IMPROVED)
        self.inconclusive += outcomes.count(Outcome.INCONCLUSIVE)
        self.suspect += outcomes.count(Outcome.SUSPECT)
        self.suspect_runs += Outcome.SUSPECT in outcomes
        self.invalid += outcomes.count(Outcome.INVALID)
        self.rounds += sum(cell.round_count for cell in run)
        self.cells += len(run)


def tallies(setting: Setting, tolerances: Sequence[float], runs: int, seed: int) -> list[Tally]:
    """Many runs with one seed, each judged at every loss."""
    rng = np.random.default_rng(seed)
    results = [Tally() for _ in tolerances]
    for _ in range(runs):
        for result, run in zip(results, quick_runs(setting, tolerances, rng), strict=True):
            result.add(run)
    return results


def tally(setting: Setting, tolerances: float, runs: int, seed: int) -> Tally:
    """Many runs with one seed at one loss."""
    return tallies(setting, (tolerances,), runs, seed)[0]
