"""The combination of confirmed changes against the sum of its single gains, all
measured again on fresh sessions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from k3perf.documents import yaml_of
from k3perf.records.tuning import Change, Effect, Interaction, TuningReading, label_of
from k3perf.stats.quantiles import upper_quantile
from k3perf.tune.block_fit import BlockFit, ratio
from k3perf.tune.bounds import broken_text
from k3perf.tune.confirm import Judge, effect_of
from k3perf.tune.ledger import Ledger, fit_of
from k3perf.tune.plan import TuningPlan

FINAL_STAGE = "combination"


def _with_base(pair: Mapping[str, Any], changed: Sequence[str]) -> bool:
    return bool(pair.get("with_base")) and bool(set(changed) & set(pair["arguments"]))


@cache
def known_pairs() -> tuple[dict[str, Any], ...]:
    """The shipped table."""
    text = files("k3perf.tune").joinpath("known_pairs.yaml").read_text(encoding="utf-8")
    return tuple(yaml_of(text))


def known_pair_text(arguments: Mapping[str, Any], changed: Sequence[str]) -> str:
    """What is known of pairs that these arguments hold, one of them changed. Empty
    without such a pair.
    """
    given = {name for name, value in arguments.items() if value is not None}
    found = [
        f"known pair {' and '.join(pair['arguments'])}: {pair['finding']} ({pair['source']})"
        for pair in known_pairs()
        if given.issuperset(pair["arguments"])
        and (set(changed) >= set(pair["arguments"]) or _with_base(pair, changed))
    ]
    return "; ".join(found)


def combine(
    plan: TuningPlan, ledger: Ledger, combination: Change, judge: Judge
) -> Interaction | None:
    """Measure base, single changes and combination. None if the budget does not reach
    for the first look.
    """
    parts = tuple({name: combination[name]} for name in sorted(combination))
    points = ({}, *parts, combination)
    level = plan.test_level / len(plan.confirm_looks)
    found, done = None, 0
    for look in plan.confirm_looks:
        if not ledger.affords(len(points) * (look - done)):
            break
        for block in range(done, look):
            ledger.block(FINAL_STAGE, block, points)
        done = look
        readings = ledger.of(FINAL_STAGE)
        fit = fit_of(readings, plan.objective)
        if not all(fit.measured(label_of(point)) for point in points):
            continue
        found = _interaction(plan, readings, fit, parts, combination, level, judge)
        if found.proposed == combination:
            return found
    return found


def _interaction(
    plan: TuningPlan,
    readings: Sequence[TuningReading],
    fit: BlockFit,
    parts: tuple[Change, ...],
    combination: Change,
    level: float,
    judge: Judge,
) -> Interaction:
    base, whole = label_of({}), label_of(combination)
    singles = tuple(effect_of(fit, label_of(part), base, level / len(parts)) for part in parts)
    weights = {label_of(part): -1.0 for part in parts}
    value, error = fit.weighted({whole: 1.0, base: float(len(parts) - 1), **weights})
    width = upper_quantile(0.025, fit.df) * error
    excess = Effect(ratio(value), ratio(value - width), ratio(value + width))
    combined = effect_of(fit, whole, base, level)
    best = max(parts, key=lambda part: fit.gain(label_of(part), base))
    pair = known_pair_text({**plan.base_arguments, **combination}, tuple(combination))
    best_effect = singles[parts.index(best)]
    if fit.gain(whole, base) < fit.gain(label_of(best), base):
        keep = best if _certain(best_effect) else {}
        text = f"the combination is worse than its best part {label_of(best)} and is not proposed"
    elif _certain(combined):
        keep, text = (
            combination,
            f"the combination's gain holds on fresh sessions, {_sum_text(excess)}",
        )
    else:
        keep = best if _certain(best_effect) else {}
        text = "the combination's gain is not proven on fresh sessions"
    if keep:
        keep, text = _admitted(plan, readings, keep, text, judge)
    return Interaction(parts, singles, combined, excess, pair, keep, text)


def _admitted(
    plan: TuningPlan, readings: Sequence[TuningReading], keep: Change, text: str, judge: Judge
) -> tuple[Change, str]:
    """The proposal, unless it breaks a bound or the gate calls something REGRESSED."""
    broken = broken_text(readings, label_of(keep), plan.bounds)
    allowed = {bound.metric for bound in plan.bounds}
    lost = [name for name in judge(readings, keep, {}) if name not in allowed]
    if not (broken or lost):
        return keep, text
    return {}, f"{label_of(keep)} is not proposed: it " + (
        broken or f"is REGRESSED in {', '.join(lost)}"
    )


def _certain(effect: Effect) -> bool:
    return effect.low_ratio is not None and effect.low_ratio > 0


def _sum_text(excess: Effect) -> str:
    if excess.ratio is None or excess.low_ratio is None or excess.high_ratio is None:
        return "compared with the sum of its parts: unknown"
    if excess.low_ratio > 0:
        return f"{excess.ratio:.1%} more than the sum of its parts"
    if excess.high_ratio < 0:
        return f"{-excess.ratio:.1%} less than the sum of its parts"
    return "equal to the sum of its parts within noise"
