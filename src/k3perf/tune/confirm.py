"""A nominee against its parent on fresh sessions, at a level that counts every test of
the run.

The sessions take no part in choosing the nominee, so its gain there is not the luck
that got it chosen. Only the variance is pooled with earlier sessions, and a normal
sample's variance does not depend on its mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from k3perf.records.tuning import (
    Change,
    Confirmation,
    Effect,
    TuningReading,
    label_of,
)
from k3perf.tune.block_fit import BlockFit, ratio
from k3perf.tune.bounds import Keeps, keeps
from k3perf.tune.ledger import Ledger, fit_of
from k3perf.tune.plan import TuningPlan

Judge = Callable[[Sequence[TuningReading], Change, Change], tuple[str, ...]]
"""The gate's word on a point against its parent: the metrics that it calls REGRESSED.
"""


def no_judge(*_: object) -> tuple[str, ...]:
    """Where no gate is at hand, as in a simulation."""
    return ()


def effect_of(fit: BlockFit, label: str, over: str, level: float) -> Effect:
    """Ratio and two-sided interval, ``level`` on each side."""
    if label == over:
        return Effect(0.0, 0.0, 0.0)
    if not (fit.measured(label) and fit.measured(over)):
        return Effect(None, None, None)
    low, high = fit.bounds(label, over, level)
    return Effect(ratio(fit.gain(label, over)), ratio(low), ratio(high))


def confirm(
    plan: TuningPlan,
    ledger: Ledger,
    parameter: str,
    nominee: Change,
    parent: Change,
    *,
    earlier: BlockFit,
    for_bounds: bool,
    judge: Judge,
) -> Confirmation:
    """Test the nominee at each planned look until it is confirmed or hopeless.

    ``for_bounds``: the parent breaks a bound, so the nominee must be shown to keep all
    of them and needs no gain.
    """
    stage, label, over = f"confirm {parameter}", label_of(nominee), label_of(parent)
    level = plan.test_level / len(plan.confirm_looks)
    done = 0
    gain = Effect(None, None, None)
    why = "no budget left for fresh sessions"
    for look in plan.confirm_looks:
        if not ledger.affords(2 * (look - done)):
            why = f"the budget ended after {done} fresh blocks" if done else why
            break
        for block in range(done, look):
            ledger.block(stage, block, (parent, nominee))
        done = look
        readings = ledger.of(stage)
        fit = fit_of(readings, plan.objective, earlier)
        gain = effect_of(fit, label, over, level)
        if gain.ratio is None:
            why = "the nominee or its parent has no valid fresh session"
            continue
        passed, why = _passed(plan, readings, label, gain, for_bounds=for_bounds)
        if passed:
            against = _judged(plan, judge, readings, nominee, parent)
            return Confirmation(label, done, gain, level, not against, against or why)
        if gain.ratio <= 0 and not for_bounds:
            break
    return Confirmation(label, done, gain, level, False, why)


def _passed(
    plan: TuningPlan,
    readings: Sequence[TuningReading],
    label: str,
    gain: Effect,
    *,
    for_bounds: bool,
) -> tuple[bool, str]:
    kept = [(bound, keeps(readings, label, bound)) for bound in plan.bounds]
    unproven = [f"{how.value} {bound.text}" for bound, how in kept if how is not Keeps.PROVEN]
    if unproven:
        return False, f"on fresh sessions it is not proven to meet every bound: it {unproven[0]}"
    if for_bounds:
        return True, "on fresh sessions it meets every bound, and its parent does not"
    if gain.low_ratio is not None and gain.low_ratio > 0:
        return True, "the gain holds on fresh sessions"
    return False, "the gain is not proven on fresh sessions"


def _judged(
    plan: TuningPlan,
    judge: Judge,
    readings: Sequence[TuningReading],
    nominee: Change,
    parent: Change,
) -> str:
    """What the gate has against it: a loss in a metric that no bound allows."""
    allowed = {bound.metric for bound in plan.bounds}
    lost = [name for name in judge(readings, nominee, parent) if name not in allowed]
    if not lost:
        return ""
    return (
        f"{', '.join(lost)} is REGRESSED. To accept this trade up to a limit, give"
        f" --bound {lost[0]}=LIMIT"
    )
