"""Every approved config of a target against its parent, from committed baselines: what
each single change brings, combinations against the sum of their parts, and the configs
that no other beats in everything. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from k3perf.baselines.gain import gains
from k3perf.baselines.propose import typical_value, worst_value
from k3perf.config.models import TargetSpec
from k3perf.config.suite import Suite
from k3perf.gate.policy import Policy
from k3perf.metrics.loss_scale import scale_for
from k3perf.records.baseline import Baseline, MetricBaseline
from k3perf.records.metric_definitions import METRICS, Comparison, Direction, Gain

PARETO: Final = ("output_tokens_per_s", "ttft_mean_ms", "kv_capacity_tokens")
"""Throughput, first token and memory, as the tokens that fit."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One metric of a config against its parent. ``gain_ratio``: positive is better.
    The bounds are two-sided, 95 %, and None for an exact metric. ``unit`` is ``ratio``
    where the baselines hold ratios to the reference config.
    """

    workload: str
    metric: str
    unit: str
    was: float
    now: float
    gain_ratio: float
    lower_ratio: float | None
    upper_ratio: float | None

    @property
    def certain(self) -> bool:
        """Exact and different, or the interval excludes no difference."""
        if self.lower_ratio is None or self.upper_ratio is None:
            return self.gain_ratio != 0
        return self.lower_ratio > 0 or self.upper_ratio < 0


@dataclass(frozen=True, slots=True)
class Combined:
    """A combination's gain and what its parts would give together, each factor times
    the next.
    """

    workload: str
    metric: str
    gain_ratio: float
    parts_ratio: float


@dataclass(frozen=True, slots=True)
class ConfigComparison:
    """One config. ``problem``: why it is not compared. ``on_front``: workloads in which
    no other config is better in throughput, first token and memory at once.
    """

    target: str
    config: str
    parent: str
    change: str
    differences: tuple[Difference, ...] = ()
    combined: tuple[Combined, ...] = ()
    on_front: tuple[str, ...] = ()
    problem: str = ""


def compare_configs(
    suite: Suite, target: TargetSpec, baselines: Iterable[Baseline], policy: Policy
) -> tuple[ConfigComparison, ...]:
    """In the suite's order, those without a baseline with the problem."""
    known = {baseline.config: baseline for baseline in baselines}
    found: dict[str, ConfigComparison] = {}
    front = pareto_front(known.values(), policy)
    for name in dict.fromkeys((*target.configs, *known)):
        config = suite.configs.get(name)
        if config is None or config.extends is None:
            continue
        changes = ", ".join(f"{key}={value}" for key, value in config.change.items())
        base = ConfigComparison(
            target.name, name, config.extends, changes or f"combines {', '.join(config.combines)}"
        )
        found[name] = _compared(base, known, policy, front.get(name, ()))
    return tuple(
        _with_parts(entry, suite.configs[entry.config].combines, found) for entry in found.values()
    )


def _compared(
    base: ConfigComparison,
    known: Mapping[str, Baseline],
    policy: Policy,
    on_front: tuple[str, ...],
) -> ConfigComparison:
    problem = ""
    missing = [name for name in (base.config, base.parent) if name not in known]
    if missing:
        problem = f"no baseline of {' and '.join(missing)}"
    elif known[base.config].hardware_class != known[base.parent].hardware_class:
        problem = f"{base.parent} was recorded on {known[base.parent].hardware_class}"
    differences = (
        () if problem else tuple(_differences(known[base.config], known[base.parent], policy))
    )
    return ConfigComparison(
        base.target,
        base.config,
        base.parent,
        base.change,
        differences,
        (),
        on_front,
        problem or ("" if differences else "no metric was recorded in both"),
    )


def _differences(own: Baseline, parent: Baseline, policy: Policy) -> Iterable[Difference]:
    for gain in gains(own, parent, policy):
        now, was = (_entry(one, gain.workload, gain.metric) for one in (own, parent))
        yield Difference(
            gain.workload,
            gain.metric,
            now.unit,
            _typical(was, policy, parent.config, gain.workload),
            _typical(now, policy, own.config, gain.workload),
            gain.gain_ratio,
            gain.lower_ratio,
            gain.upper_ratio,
        )
    before = {entry.metric: entry for entry in parent.exact}
    for entry in own.exact:
        if entry.metric in before and METRICS[entry.metric].gain is not Gain.NEVER:
            yield _exact(entry, before[entry.metric])


def _entry(baseline: Baseline, workload: str, metric: str) -> MetricBaseline:
    part = baseline.workload(workload)
    return next(one for one in (part.metrics if part else ()) if one.metric == metric)


def _typical(entry: MetricBaseline, policy: Policy, config: str, workload: str) -> float:
    tolerance = policy.for_cell(config, workload).tolerances[entry.metric]
    scale = scale_for(METRICS[entry.metric], tolerance, _mode(entry))
    return typical_value(scale, entry.sessions)


def _mode(entry: MetricBaseline) -> str:
    return "baseline" if entry.basis == "absolute" else "reference"


def _exact(entry: MetricBaseline, before: MetricBaseline) -> Difference:
    metric = METRICS[entry.metric]
    was, now = (
        worst_value(metric, [one.value for one in part.sessions]) for part in (before, entry)
    )
    ratio = -(metric.loss_ratio(was, now) or 0.0)
    return Difference("", entry.metric, entry.unit, was, now, ratio + 0.0, None, None)


def _with_parts(
    entry: ConfigComparison, parts: Sequence[str], found: Mapping[str, ConfigComparison]
) -> ConfigComparison:
    if not parts or not all(part in found and found[part].differences for part in parts):
        return entry
    combined = []
    for one in entry.differences:
        factor = 1.0
        for part in parts:
            same = [
                other
                for other in found[part].differences
                if (other.workload, other.metric) == (one.workload, one.metric)
            ]
            factor *= 1 + (same[0].gain_ratio if same else 0.0)
        combined.append(Combined(one.workload, one.metric, one.gain_ratio, factor - 1))
    return ConfigComparison(
        entry.target,
        entry.config,
        entry.parent,
        entry.change,
        entry.differences,
        tuple(combined),
        entry.on_front,
        entry.problem,
    )


def pareto_front(baselines: Iterable[Baseline], policy: Policy) -> dict[str, tuple[str, ...]]:
    """By config: the workloads in which no other config is as good in everything and
    better in something. Configs that lack one of the three are not compared.
    """
    places: dict[str, dict[str, tuple[float, ...]]] = {}
    for baseline in baselines:
        for part in baseline.workloads:
            values = _place(baseline, part.workload, policy)
            if values is not None:
                places.setdefault(part.workload, {})[baseline.config] = values
    found: dict[str, list[str]] = {}
    for workload, configs in places.items():
        for name, own in configs.items():
            if not any(_beats(other, own) for other in configs.values()):
                found.setdefault(name, []).append(workload)
    return {name: tuple(workloads) for name, workloads in found.items()}


def _place(baseline: Baseline, workload: str, policy: Policy) -> tuple[float, ...] | None:
    """The three values, turned so that larger is better. The root config's ratios are
    1.
    """
    part = baseline.workload(workload)
    entries = {one.metric: one for one in (*(part.metrics if part else ()), *baseline.exact)}
    values = []
    for name in PARETO:
        if name not in entries:
            return None
        exact = METRICS[name].comparison is Comparison.EXACT
        value = (
            worst_value(METRICS[name], [one.value for one in entries[name].sessions])
            if exact
            else _typical(entries[name], policy, baseline.config, workload)
        )
        values.append(value if METRICS[name].direction is Direction.HIGHER_IS_BETTER else -value)
    return tuple(values)


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(left >= right for left, right in zip(one, other, strict=True))
