"""A whole tuning run: parameter by parameter, then the combination, then validation.

Everything follows from the plan and the readings in order. Asking the same source again
gives the same result, which is what makes a run resumable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from k3perf.records.tuning import (
    Change,
    Effect,
    Interaction,
    ParameterFinding,
    TuningReading,
    TuningResult,
    TuningTrial,
    Validation,
    label_of,
)
from k3perf.tune.bounds import broken_text
from k3perf.tune.confirm import Judge, effect_of, no_judge
from k3perf.tune.front import Front, trade_text
from k3perf.tune.interaction import FINAL_STAGE, combine, known_pair_text
from k3perf.tune.ledger import Ledger, Source, fit_of, means_of
from k3perf.tune.plan import TuningPlan
from k3perf.tune.sweep import Sweep

VALIDATION_LEVEL = 0.05
"""One-sided level at which the validation shows a loss."""


@dataclass(frozen=True, slots=True)
class RunNames:
    """Names that the result carries."""

    run_id: str
    target: str
    config: str
    workload: str
    fingerprint: Mapping[str, str]


@dataclass
class Tuning:
    """One run; ``run`` is called once. ``listen`` gets each finding as it is made."""

    plan: TuningPlan
    source: Source
    names: RunNames
    judge: Judge = no_judge
    listen: Callable[[ParameterFinding], None] = lambda _: None
    expect: Callable[[TuningTrial | None], None] = lambda _: None
    undecided: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.plan, self.source, self.expect)
        self.front = Front(self.plan.front_metrics)

    def run(self) -> TuningResult:
        """Sweep every parameter, combine, validate."""
        parent: Change = {}
        findings: list[ParameterFinding] = []
        for index, parameter in enumerate(self.plan.parameters):
            share_s = self.ledger.left_s / (len(self.plan.parameters) - index + 1)
            sweep = Sweep(self.plan, self.ledger, parameter, parent, share_s, self.judge)
            finding = sweep.run()
            self._place(sweep)
            findings.append(finding)
            self.listen(finding)
            self.reasons.append(f"{parameter.name} {finding.decision}")
            if "undecided" in finding.decision:
                self.undecided.append(parameter.name)
            if finding.winner is not None:
                parent = finding.winner
            if sweep.parent_problem:
                break  # without its parent no other sweep can be read either
        interaction = self._combine(parent)
        proposal = parent if interaction is None else interaction.proposed
        if len(parent) > 1 and interaction is None:
            proposal = self._uncombined(findings)
        gain = self._gain(proposal, findings, interaction)
        validation = self._validate(proposal)
        if validation is not None and not validation.passed:
            proposal, gain = {}, None
        return self._result(findings, interaction, proposal, gain, validation)

    def _place(self, sweep: Sweep) -> None:
        """Put the sweep's points where the front is drawn from."""
        readings = self.ledger.of(sweep.stage)
        fits = {name: fit_of(readings, name) for name in self.plan.front_metrics}
        for change in (sweep.parent, *sweep.changes.values()):
            label = label_of(change)
            if any(fit.measured(label) for fit in fits.values()):
                self.front.add(change, sweep.parent, fits, means_of(readings, label))

    def _combine(self, combination: Change) -> Interaction | None:
        if len(combination) < 2:
            pair = known_pair_text({**self.plan.base_arguments, **combination}, tuple(combination))
            if pair:
                self.reasons.append(f"measured together with the base's arguments: {pair}")
            return None
        found = combine(self.plan, self.ledger, combination, self.judge)
        if found is None:
            self.undecided.append("the combination")
            self.reasons.append("the budget ended before the combination was confirmed")
            return None
        readings = self.ledger.of(FINAL_STAGE)
        fits = {name: fit_of(readings, name) for name in self.plan.front_metrics}
        for change in (*found.parts, combination):
            self.front.add(change, {}, fits, means_of(readings, label_of(change)))
        self.reasons.append(found.text)
        return found

    @staticmethod
    def _uncombined(findings: list[ParameterFinding]) -> Change:
        """The first confirmed change: the only one that was measured on the base."""
        return next(one.winner for one in findings if one.winner is not None)

    def _gain(
        self,
        proposal: Change,
        findings: list[ParameterFinding],
        interaction: Interaction | None,
    ) -> Effect | None:
        if not proposal:
            return None
        if interaction is not None:
            if len(proposal) > 1:
                return interaction.combined
            return interaction.single_gains[interaction.parts.index(proposal)]
        confirmed = (one for one in findings if one.winner == proposal)
        found = next(confirmed, None)
        return None if found is None or found.confirmation is None else found.confirmation.gain

    def _validate(self, proposal: Change) -> Validation | None:
        plan, workload = self.plan, self.plan.validation_workload
        if not workload or not proposal:
            return None
        stage, label, base = f"validate {workload}", label_of(proposal), label_of({})
        if not self.ledger.affords(2 * plan.validate_blocks):
            self.undecided.append("validation")
            text = "the budget ended before the validation: not proposed"
            return Validation(workload, {}, {}, {}, False, text)
        for block in range(plan.validate_blocks):
            self.ledger.block(stage, block, ({}, proposal), workload)
        readings = self.ledger.of(stage)
        names = dict.fromkeys((plan.objective, "goodput_requests_per_s", *plan.front_metrics))
        fits = {name: fit_of(readings, name) for name in names}
        effects = {
            name: effect_of(fit, label, base, VALIDATION_LEVEL)
            for name, fit in fits.items()
            if fit.measured(label) and fit.measured(base)
        }
        against = self._against(readings, effects, proposal)
        text = f"not proposed: {against}" if against else f"no proven loss; {trade_text(effects)}"
        self.reasons.append(f"validation on {workload}: {text}")
        return Validation(
            workload,
            effects,
            means_of(readings, label),
            means_of(readings, base),
            not against,
            text,
        )

    def _against(
        self, readings: Sequence[TuningReading], effects: Mapping[str, Effect], proposal: Change
    ) -> str:
        if not effects:
            return "no valid session on it"
        watched = {self.plan.objective, "goodput_requests_per_s"}
        lost = [
            name
            for name, effect in effects.items()
            if name in watched and effect.high_ratio is not None and effect.high_ratio < 0
        ]
        lost += [name for name in self.judge(readings, proposal, {}) if name not in lost]
        broken = broken_text(readings, label_of(proposal), self.plan.bounds)
        return broken or (f"it loses {', '.join(lost)} there" if lost else "")

    def _result(
        self,
        findings: list[ParameterFinding],
        interaction: Interaction | None,
        proposal: Change,
        gain: Effect | None,
        validation: Validation | None,
    ) -> TuningResult:
        front = self.front.points()
        return TuningResult(
            run_id=self.names.run_id,
            fingerprint=dict(self.names.fingerprint),
            target=self.names.target,
            config=self.names.config,
            workload=self.names.workload,
            objective=self.plan.objective,
            bounds=self.plan.bounds,
            error_rate=self.plan.error_rate,
            test_count=self.plan.test_count,
            parameters=tuple(findings),
            interaction=interaction,
            front=front,
            base_on_front=any(not point.change for point in front),
            proposal=proposal,
            gain=gain,
            validation=validation,
            session_count=self.ledger.session_count,
            round_count=self.ledger.round_count,
            spent_s=self.ledger.spent_s,
            budget_s=self.plan.budget_s,
            undecided=tuple(self.undecided),
            reasons=tuple(self.reasons),
        )
