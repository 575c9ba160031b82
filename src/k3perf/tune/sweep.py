"""One parameter swept from its parent: screened in blocks, raced, and its best value
confirmed on fresh sessions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from k3perf.records.tuning import (
    Change,
    Confirmation,
    Fate,
    ParameterFinding,
    TuningReading,
    ValueFinding,
    label_of,
    value_text,
)
from k3perf.tune.block_fit import BlockFit
from k3perf.tune.bounds import Keeps, broken_text, keeps
from k3perf.tune.confirm import Judge, confirm, effect_of, no_judge
from k3perf.tune.knee import find_knee
from k3perf.tune.ledger import Ledger, fit_of, means_of
from k3perf.tune.plan import Parameter, TuningPlan
from k3perf.tune.race import analyse, comparison_level, nominee_of

NOMINATE_LEVEL: Final = 0.1
"""One-sided level at which a value is worth fresh sessions. It decides what is
confirmed, never what is proposed.
"""


@dataclass
class Sweep:
    """Made for one parameter; ``run`` is called once. ``share_s``: its part of the
    budget for screening.
    """

    plan: TuningPlan
    ledger: Ledger
    parameter: Parameter
    parent: Change
    share_s: float
    judge: Judge = no_judge
    changes: dict[str, Change] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    why: str = ""
    parent_problem: str = ""

    @property
    def stage(self) -> str:
        """The stage of the screening sessions. It names the parent, since another
        parent is other work.
        """
        return f"screen {self.parameter.name} from {label_of(self.parent)}"

    def run(self) -> ParameterFinding:
        """Screen, nominate, confirm."""
        self._collect()
        alive = self._screen() if self.changes else ()
        readings = self.ledger.of(self.stage)
        fit = fit_of(readings, self.plan.objective)
        parent = label_of(self.parent)
        self._place_parent(readings)
        confirmation, winner, decision = None, None, self.why or "nothing to measure"
        if fit.measured(parent):
            label, for_bounds = self._nominee(readings, fit, alive)
            if label is not None:
                confirmation = confirm(
                    self.plan,
                    self.ledger,
                    self.parameter.name,
                    self.changes[label],
                    self.parent,
                    earlier=fit,
                    for_bounds=for_bounds,
                    judge=self.judge,
                )
                winner = self.changes[label] if confirmation.confirmed else None
            decision = self._decision(label, confirmation)
        knee = (
            find_knee(self._ordered(fit), fit, smallest_effect=self.plan.smallest_effect)
            if self.parameter.ordered
            else None
        )
        return ParameterFinding(
            step=self.parameter.step,
            parameter=self.parameter.name,
            parent=self.parent,
            values=self._findings(readings, fit),
            decision=decision,
            knee=knee,
            nothing_beyond_ratio=self._nothing_beyond(fit),
            confirmation=confirmation,
            winner=winner,
        )

    def _collect(self) -> None:
        for value in self.parameter.values:
            change = self.plan.change_to(self.parent, self.parameter, value)
            label = label_of(change)
            self.values[label] = value
            if label == label_of(self.parent):
                continue
            reason = self.plan.exclude(change)
            if reason:
                self.left_out[label] = reason
            else:
                self.changes[label] = change

    def _screen(self) -> tuple[str, ...]:
        """Measure until the race is decided. Returns the labels still alive."""
        first, last = self.plan.screen_blocks
        alive = tuple(self.changes)
        alive = self._thinned(alive, first)
        begin_s, share_s = self.ledger.spent_s, self.share_s
        if not self.ledger.affords(first * (1 + len(alive)), share_s):
            share_s = math.inf  # its share is too small for two values: later sweeps lose
        for block in range(last):
            within_s = share_s - (self.ledger.spent_s - begin_s)
            need = (1 + len(alive)) * (first if block == 0 else 1)
            if not self.ledger.affords(need, within_s):
                self.why = f"undecided: the budget ended after {block} blocks"
                return alive if block >= first else ()
            points = (self.parent, *(self.changes[label] for label in alive))
            for reading in self.ledger.block(self.stage, block, points):
                alive = self._seen(reading, alive)
            if self.parent_problem:
                self.why = f"undecided: the parent cannot be measured: {self.parent_problem}"
                return ()
            if block + 1 < first:
                continue
            readings = self.ledger.of(self.stage)
            fit = fit_of(readings, self.plan.objective)
            state = analyse(
                self.plan,
                fit,
                label_of(self.parent),
                alive,
                self._broken(readings, alive),
                candidate_count=len(self.changes),
            )
            alive = state.alive
            if state.decided:
                self.why = state.why
                return alive
        self.why = f"undecided after {last} blocks"
        return alive

    def _thinned(self, alive: tuple[str, ...], blocks: int) -> tuple[str, ...]:
        """The values that the share of the budget reaches for: the ends stay, at least
        two values do.
        """
        kept = list(alive)
        while len(kept) > 2 and not self.ledger.affords(blocks * (1 + len(kept)), self.share_s):
            label = kept.pop(len(kept) // 2)
            self.left_out[label] = "not measured: its share of the budget is too small"
        return tuple(kept)

    def _seen(self, reading: TuningReading, alive: tuple[str, ...]) -> tuple[str, ...]:
        """Remove a point that cannot be measured, with its reason."""
        label = reading.trial.label
        if label == label_of(self.parent) and reading.fate is not Fate.MEASURED:
            self.parent_problem = f"{reading.fate.value}: {reading.text}"
        elif reading.fate is Fate.SAME_ENGINE:
            self.left_out[label] = f"the engine resolves to that of {reading.same_as}"
        elif reading.fate in (Fate.CRASHED, Fate.NO_MEMORY):
            what = "out of memory" if reading.fate is Fate.NO_MEMORY else "the engine crashed"
            self.left_out[label] = f"{what}: {reading.text}"
        elif reading.fate is Fate.INVALID:
            self.notes[label] = f"a session was INVALID: {reading.text}"
            return alive
        else:
            return alive
        return tuple(one for one in alive if one != label)

    def _broken(self, readings: Sequence[TuningReading], alive: Sequence[str]) -> set[str]:
        return {
            label
            for label in (label_of(self.parent), *alive)
            if any(keeps(readings, label, bound) is Keeps.BROKEN for bound in self.plan.bounds)
        }

    def _nominee(
        self, readings: Sequence[TuningReading], fit: BlockFit, alive: Sequence[str]
    ) -> tuple[str | None, bool]:
        """The label to confirm, and whether it must keep a bound that the parent
        breaks.
        """
        parent = label_of(self.parent)
        fine = []
        for label in alive:
            against = broken_text(readings, label, self.plan.bounds) or self._lossy(label)
            if against:
                self.notes[label] = against
            elif fit.measured(label):
                fine.append(label)
        order = list(self.values)
        if fine and broken_text(readings, parent, self.plan.bounds):
            return max(fine, key=lambda label: fit.gain(label, parent)), True
        return nominee_of(fit, parent, fine, order, NOMINATE_LEVEL / max(len(fine), 1)), False

    def _lossy(self, label: str) -> str:
        """Why a value that changes what the model computes cannot be proposed."""
        if not self.parameter.lossy:
            return ""
        alone = label_of({self.parameter.name: self.values[label]})
        loss = self.plan.quality_loss.get(alone)
        if loss is None:
            return "quality was not measured, so it cannot be proposed (--quality)"
        if loss > self.plan.largest_quality_loss:
            return (
                f"it loses {loss:.2%} of quality, and at most"
                f" {self.plan.largest_quality_loss:.2%} is allowed"
            )
        return ""

    def _place_parent(self, readings: Sequence[TuningReading]) -> None:
        """Find the parent's own value where no argument sets it: the engine resolved
        it.
        """
        parent = label_of(self.parent)
        if parent in self.values:
            return
        given = {**self.plan.base_arguments, **self.parent}.get(self.parameter.name)
        for reading in readings:
            if given is None and reading.trial.label == parent and reading.session is not None:
                given = resolved_value(reading.session.resolved_config, self.parameter.name)
        pairs = [*self.values.items(), (parent, given)]
        if isinstance(given, int | float) and self.parameter.ordered:
            pairs.sort(key=lambda pair: float(pair[1]))
        self.values = dict(pairs)

    def _ordered(self, fit: BlockFit) -> list[tuple[float, str]]:
        found = [
            (float(value), label)
            for label, value in self.values.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
            if fit.measured(label)
        ]
        return sorted(found)

    def _nothing_beyond(self, fit: BlockFit) -> float | None:
        """The largest effect on the objective that the sweep leaves possible. None if a
        value's effect is proven, or if nothing was measured.
        """
        parent = label_of(self.parent)
        measured = [label for label in self.changes if fit.measured(label)]
        same = [label for label in self.changes if "resolves to" in self.left_out.get(label, "")]
        if not measured or not fit.measured(parent) or fit.df < 1:
            return 0.0 if same and len(same) == len(self.changes) else None
        level = comparison_level(self.plan, len(self.changes)) / 2
        bounds = [fit.bounds(label, parent, level) for label in measured]
        if any(low > 0 or high < 0 for low, high in bounds):
            return None
        return max(max(-low, high) for low, high in bounds)

    def _decision(self, label: str | None, confirmation: Confirmation | None) -> str:
        if confirmation is None or label is None:
            kept = value_text(self.values.get(label_of(self.parent), "the parent's value"))
            return f"keeps {kept}: {self.why}"
        chosen = value_text(self.values[label])
        return f"{'takes' if confirmation.confirmed else 'does not take'} {chosen}: " + (
            confirmation.text
        )

    def _findings(
        self, readings: Sequence[TuningReading], fit: BlockFit
    ) -> tuple[ValueFinding, ...]:
        parent, found = label_of(self.parent), []
        level = comparison_level(self.plan, len(self.changes)) / 2
        fits = {name: fit_of(readings, name) for name in self.plan.front_metrics}
        fits[self.plan.objective] = fit
        for label, value in self.values.items():
            count = sum(1 for reading in readings if reading.trial.label == label)
            effects = {
                name: effect_of(one, label, parent, level)
                for name, one in fits.items()
                if one.measured(label) and one.measured(parent)
            }
            outcome = self._outcome(label, effects.get(self.plan.objective))
            change = self.plan.change_to(self.parent, self.parameter, value)
            found.append(
                ValueFinding(
                    value=value,
                    change=self.parent if label == parent else change,
                    outcome=outcome,
                    session_count=count,
                    effects=effects,
                    means=means_of(readings, label),
                    note=self.notes.get(label) or self._also_changed(readings, label),
                )
            )
        return tuple(found)

    def _also_changed(self, readings: Sequence[TuningReading], label: str) -> str:
        """Locked values of the engine that differ from the base's, in addition to the
        changed ones. A sweep of one variable then varies more than that.
        """
        mine = (one for one in readings if one.trial.label == label and one.effective)
        reading = next(mine, None)
        if reading is None:
            return ""
        others = [
            f"{key} {values}"
            for key, values in reading.effective.items()
            if key.rpartition(".")[2] not in reading.trial.change
        ]
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        return f"the engine also changed {', '.join(others[:3])}{more}" if others else ""

    def _outcome(self, label: str, effect: Any) -> str:
        if label == label_of(self.parent):
            return "parent"
        if label in self.left_out:
            return self.left_out[label]
        if effect is None or effect.ratio is None:
            return "not measured"
        if effect.low_ratio is not None and effect.low_ratio > 0:
            return "better"
        worse = effect.high_ratio is not None and effect.high_ratio < 0
        return "worse" if worse else "undecided"


def resolved_value(resolved: dict[str, object], name: str) -> Any:
    """The engine's own value of an argument: the one locked key that ends in its name.
    None where there is none or several.
    """
    found = [value for key, value in resolved.items() if key.rpartition(".")[2] == name]
    return found[0] if len(found) == 1 else None
