"""Whole suite runs, made of simulated or recorded sessions, put through the real path: propose, pool, compare, buy. Pure and seeded.

A run draws baseline sessions and candidate sessions of every cell, injects a loss into the candidates, and lets the gate buy what it
asks for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Final

from k3perf.config.models import MeasurementPlan, Tolerance
from k3perf.gate.baseline import Acceptance, Baseline
from k3perf.gate.compare import compare
from k3perf.gate.noise import pool_noise
from k3perf.gate.outcome import Outcome
from k3perf.gate.policy import Policy
from k3perf.gate.propose import propose
from k3perf.gate.simulation import Rounds, cell_of, session_of
from k3perf.gate.verdict import CellVerdict, MetricVerdict
from k3perf.metrics.values import SessionMetrics
from k3perf.samples import Arm

Session = tuple[Mapping[str, Rounds], Mapping[str, Rounds] | None]
"""A candidate session's losses by metric, and those of the reference session beside it (None: there is none)."""

CellSource = Callable[[random.Random, int], Sequence[Session]]
"""Draws that many sessions of one cell, all of the same build."""

ACCEPTANCE: Final = Acceptance(
    accepted_by="replay", reason="replayed sessions", accepted_at_utc="2026-01-01T00:00:00Z", commit="none", run_ids=("replay",)
)


@dataclass(frozen=True, slots=True)
class Setting:
    """What is replayed: one source per cell, the gated metrics, their tolerance, the plan.

    Where there are fewer cells than a suite has, the same cells are drawn ``repeats`` times into one run, each time on their own; noise
    is pooled within a draw, over the cells that there really are.
    """

    sources: tuple[CellSource, ...]
    metrics: tuple[str, ...]
    tolerance: Tolerance
    plan: MeasurementPlan
    repeats: int = 1

    @property
    def mode(self) -> str:
        """``baseline`` or ``reference``, from the plan."""
        return self.plan.mode

    def policy(self) -> Policy:
        """The suite's default budgets over all metrics of all cells."""
        return Policy(
            tolerances=dict.fromkeys(self.metrics, self.tolerance),
            plan=self.plan,
            gated_metric_count=len(self.metrics) * len(self.sources) * self.repeats,
            today=date(2026, 1, 1),
        )


@dataclass(frozen=True, slots=True)
class Replayed:
    """One cell of one run: the gate's verdict, the rounds it cost, and the sessions for other rules to judge."""

    verdict: CellVerdict
    round_count: int
    session_count: int
    baseline_sessions: tuple[Session, ...]
    candidate_sessions: tuple[Session, ...]


def suite_run(setting: Setting, loss: float, rng: random.Random) -> tuple[Replayed, ...]:
    """One run of all cells; ``loss`` (log scale) is injected into every metric of every candidate session."""
    return tuple(cell for _ in range(setting.repeats) for cell in _draw(setting, loss, rng))


def _draw(setting: Setting, loss: float, rng: random.Random) -> tuple[Replayed, ...]:
    plan = setting.plan
    drawn = [source(rng, plan.baseline_sessions + plan.maximum_sessions) for source in setting.sources]
    policy = setting.policy()
    baselines = []
    for index, sessions in enumerate(drawn):
        recorded = cell_of(f"cell{index}", _sessions(sessions[: plan.baseline_sessions], "b"), mode=setting.mode)
        baselines.append(propose([recorded], versions={}, policy=policy, previous=None, acceptance=ACCEPTANCE))
    policy = replace(policy, noise=pool_noise(baselines, policy.tolerances))
    return tuple(
        _replay_cell(
            baseline,
            sessions[: plan.baseline_sessions],
            tuple(_with_loss(item, loss) for item in sessions[plan.baseline_sessions :]),
            policy,
        )
        for baseline, sessions in zip(baselines, drawn, strict=True)
    )


def _replay_cell(baseline: Baseline, recorded: Sequence[Session], candidates: tuple[Session, ...], policy: Policy) -> Replayed:
    """Measure, ask, buy, until nothing more is bought or there is no more to have."""
    plan = policy.plan
    sessions, rounds = plan.minimum_sessions, plan.minimum_rounds
    bought = [rounds] * sessions
    while True:
        cell = cell_of(baseline.config, _sessions(candidates[: len(bought)], "c", bought), mode=plan.mode)
        verdict = compare(baseline, cell, policy)
        sessions, rounds = verdict.buy_until_sessions, verdict.buy_until_rounds
        wanted = [max(had, rounds) for had in bought] + [rounds] * (sessions - len(bought))
        if not sessions or wanted == bought:
            return Replayed(verdict, sum(bought), len(bought), tuple(recorded), candidates)
        bought = wanted


def _sessions(sessions: Sequence[Session], prefix: str, rounds: Sequence[int] | None = None) -> list[SessionMetrics]:
    made = []
    for index, (own, beside) in enumerate(sessions):
        count = None if rounds is None else rounds[index]
        name = f"{prefix}{index}"
        pair_id = None if beside is None else name
        made.append(session_of(name, {metric: losses[:count] for metric, losses in own.items()}, pair_id=pair_id))
        if beside is not None:
            cut = {metric: losses[:count] for metric, losses in beside.items()}
            made.append(session_of(f"{name}r", cut, arm=Arm.REFERENCE, pair_id=pair_id))
    return made


def _with_loss(session: Session, loss: float) -> Session:
    own, beside = session
    return {metric: tuple(value + loss for value in losses) for metric, losses in own.items()}, beside


@dataclass(slots=True)
class Tally:
    """Counts over many runs. Rates come from them with ``stats.proportion.clopper_pearson``."""

    runs: int = 0
    red_runs: int = 0
    metrics: int = 0
    regressed: int = 0
    passed: int = 0
    inconclusive: int = 0
    invalid: int = 0
    rounds: int = 0
    cells: int = 0

    def add(self, run: Sequence[Replayed]) -> None:
        """Count one run."""
        verdicts: list[MetricVerdict] = [metric for cell in run for metric in cell.verdict.metrics]
        counts = {outcome: sum(1 for verdict in verdicts if verdict.outcome is outcome) for outcome in Outcome}
        self.runs += 1
        self.red_runs += counts[Outcome.REGRESSED] > 0
        self.metrics += len(verdicts)
        self.regressed += counts[Outcome.REGRESSED]
        self.passed += counts[Outcome.PASS] + counts[Outcome.IMPROVED]
        self.inconclusive += counts[Outcome.INCONCLUSIVE]
        self.invalid += counts[Outcome.INVALID]
        self.rounds += sum(cell.round_count for cell in run)
        self.cells += len(run)


def tally(setting: Setting, loss: float, runs: int, seed: int) -> Tally:
    """Many runs with one seed."""
    rng = random.Random(seed)  # noqa: S311 - a simulation wants a seeded generator, no secret
    result = Tally()
    for _ in range(runs):
        result.add(suite_run(setting, loss, rng))
    return result
