"""A list or grid of points measured in blocks, without a choice: effects with intervals
and the front.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from k3perf.records.tuning import (
    Change,
    Effect,
    Fate,
    ParameterFinding,
    TuningReading,
    TuningResult,
    ValueFinding,
    label_of,
)
from k3perf.tune.confirm import effect_of
from k3perf.tune.front import Front
from k3perf.tune.ledger import Ledger, Source, fit_of, means_of
from k3perf.tune.plan import TuningPlan
from k3perf.tune.strategy import RunNames

GRID_STAGE = "grid"
LEVEL = 0.025
"""On each side of all intervals of one metric together."""


def grid_changes(
    settings: Mapping[str, Sequence[Any]], base_arguments: Mapping[str, Any]
) -> tuple[Change, ...]:
    """Every combination. A value that the base has already is no change, and the base
    itself is not listed.
    """
    names = list(settings)
    found: dict[str, Change] = {}
    for values in itertools.product(*(settings[name] for name in names)):
        pairs = zip(names, values, strict=True)
        change = {
            name: value
            for name, value in pairs
            if name not in base_arguments or base_arguments[name] != value
        }
        found.setdefault(label_of(change), change)
    return tuple(change for change in found.values() if change)


def measure_grid(
    plan: TuningPlan,
    source: Source,
    names: RunNames,
    changes: Sequence[Change],
    blocks: int,
) -> TuningResult:
    """Each point in every block. The budget ends the run between blocks."""
    ledger, reasons = Ledger(plan, source), []
    skipped = {label_of(one): why for one in changes if (why := plan.exclude(one))}
    done = 0
    for block in range(blocks):
        running = [one for one in changes if label_of(one) not in skipped]
        if not ledger.affords(1 + len(running)):
            reasons.append(f"the budget ended after {block} of {blocks} blocks")
            break
        for reading in ledger.block(GRID_STAGE, block, ({}, *running)):
            if reading.fate in (Fate.CRASHED, Fate.NO_MEMORY):
                skipped[reading.trial.label] = f"{reading.fate.value}: {reading.text}"
            elif reading.fate is Fate.SAME_ENGINE:
                same = f"the engine resolves to that of {reading.same_as}"
                skipped[reading.trial.label] = same
        done = block + 1
    readings = ledger.of(GRID_STAGE)
    front = Front(plan.front_metrics)
    values = _findings(plan, readings, ({}, *changes), skipped, front)
    points = front.points()
    decision = f"{done} of {blocks} blocks measured, nothing is proposed"
    return TuningResult(
        run_id=names.run_id,
        fingerprint=dict(names.fingerprint),
        target=names.target,
        config=names.config,
        workload=names.workload,
        objective=plan.objective,
        bounds=plan.bounds,
        error_rate=2 * LEVEL,
        test_count=len(changes),
        parameters=(ParameterFinding("grid", GRID_STAGE, {}, tuple(values), decision),),
        interaction=None,
        front=points,
        base_on_front=any(not point.change for point in points),
        proposal={},
        gain=None,
        validation=None,
        session_count=ledger.session_count,
        round_count=ledger.round_count,
        spent_s=ledger.spent_s,
        budget_s=plan.budget_s,
        undecided=(),
        reasons=tuple(reasons),
    )


def _findings(
    plan: TuningPlan,
    readings: Sequence[TuningReading],
    changes: Sequence[Change],
    skipped: Mapping[str, str],
    front: Front,
) -> list[ValueFinding]:
    """One finding for each point, the base first. Adds measured ones to the front."""
    names = dict.fromkeys((plan.objective, *plan.front_metrics))
    fits = {name: fit_of(readings, name) for name in names}
    base, level, found = label_of({}), LEVEL / max(len(changes) - 1, 1), []
    for change in changes:
        label = label_of(change)
        if any(fit.measured(label) for fit in fits.values()):
            front.add(change, {}, fits, means_of(readings, label))
        effects = {
            name: effect_of(fit, label, base, level)
            for name, fit in fits.items()
            if fit.measured(label) and fit.measured(base)
        }
        found.append(
            ValueFinding(
                value=label,
                change=change,
                outcome=skipped.get(label) or _outcome(change, effects.get(plan.objective)),
                session_count=sum(1 for one in readings if one.trial.label == label),
                effects=effects,
                means=means_of(readings, label),
            )
        )
    return found


def _outcome(change: Change, effect: Effect | None) -> str:
    if not change:
        return "parent"
    if effect is None or effect.ratio is None:
        return "not measured"
    if effect.low_ratio is not None and effect.low_ratio > 0:
        return "better"
    worse = effect.high_ratio is not None and effect.high_ratio < 0
    return "worse" if worse else "undecided"
