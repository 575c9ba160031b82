"""What a target's cells are judged by: the suite's tolerances, and the noise of the
target's committed baselines, pooled over its cells. Pure.

Cells of one target share the machine and its noise, so their variances are pooled;
``k3perf.stats.pooling`` says how, and how cells that differ are moderated. A config
with its own tolerance is known to differ: its noise of that metric is pooled apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from k3perf.config.gated import check_metric_names
from k3perf.config.models import TargetSpec, Tolerance
from k3perf.config.suite import Suite
from k3perf.errors import UsageError
from k3perf.gate.policy import NoiseKey, OwnTolerances, Policy
from k3perf.metrics.loss_scale import recorded_losses, scale_for
from k3perf.metrics.validity import SPREAD_LIMIT, ValidityRules
from k3perf.records.baseline import Baseline, MetricBaseline
from k3perf.records.metric_definitions import METRICS, Comparison
from k3perf.stats.noise import MetricNoise, batched_noise


def target_policy(suite: Suite, target: TargetSpec, *, gated_metric_count: int) -> Policy:
    """What the suite declares for one target's cells, without noise. Raises
    ConfigFileError for a tolerance of an unknown metric.
    """
    check_metric_names(suite)
    declared = suite.tolerances
    limits = ValidityRules.for_target(target.validity).session_limits
    return Policy(
        tolerances=declared.for_target(target.name),
        workload_tolerances=declared.workloads,
        config_tolerances=declared.own(target.name),
        plan=target.measurement,
        gated_metric_count=gated_metric_count,
        false_alarm_budget=declared.false_alarm_budget,
        missed_loss_budget=declared.missed_loss_budget,
        cumulative_loss_cap_ratio=declared.cumulative_loss_cap_ratio,
        common_loss_limit_ratio=declared.common_loss_limit_ratio,
        spread_over_noise_ratio=limits[SPREAD_LIMIT],
    )


def with_noise_of(policy: Policy, baselines: Sequence[Baseline]) -> Policy:
    """The policy with the noise of the target's recorded sessions. Metrics with a
    config's own tolerance are pooled apart.

    Raises UsageError for a recorded 0 of a metric with a relative tolerance, which has
    no loss and no noise.
    """
    _require_positive(baselines, policy.known_tolerances)
    return replace(
        policy,
        noise=pool_noise(baselines, policy.known_tolerances, policy.config_tolerances),
        config_noise=pool_own_noise(baselines, policy.config_tolerances),
    )


def pool_noise(
    baselines: Iterable[Baseline],
    tolerances: Mapping[str, Tolerance],
    own: OwnTolerances | None = None,
) -> dict[NoiseKey, MetricNoise]:
    """Noise of every gated statistical metric, pooled over one target's baselines: its
    cells share the machine and its noise. Metrics that a config has its ``own``
    tolerance for are omitted there.
    """
    return {
        key: noise
        for (key, _), (noise, _) in _pools(
            (baseline.config, entry, tolerances[entry.metric])
            for baseline, entry in _entries(baselines)
            if entry.metric in tolerances
            and entry.metric not in (own or {}).get(baseline.config, {})
        ).items()
    }


def pool_own_noise(
    baselines: Iterable[Baseline], own: OwnTolerances
) -> dict[str, dict[NoiseKey, MetricNoise]]:
    """By config, the noise of the metrics that it has its own tolerance for. Configs
    with the same one share their noise: the team says that they are alike.
    """
    found: dict[str, dict[NoiseKey, MetricNoise]] = {}
    for (key, _), (noise, configs) in _pools(
        (baseline.config, entry, tolerance)
        for baseline, entry in _entries(baselines)
        if (tolerance := own.get(baseline.config, {}).get(entry.metric)) is not None
    ).items():
        for config in configs:
            found.setdefault(config, {})[key] = noise
    return found


def _entries(baselines: Iterable[Baseline]) -> Iterable[tuple[Baseline, MetricBaseline]]:
    return (
        (baseline, entry)
        for baseline in baselines
        for workload in baseline.workloads
        for entry in workload.metrics
    )


def _pools(
    entries: Iterable[tuple[str, MetricBaseline, Tolerance]],
) -> dict[tuple[NoiseKey, Tolerance], tuple[MetricNoise, set[str]]]:
    """Noise of the entries of one key and tolerance, and their configs. Entries that do
    not vary, or with a value that has no loss, are in no pool.
    """
    groups: dict[tuple[NoiseKey, Tolerance], list[tuple[str, MetricBaseline]]] = {}
    for config, entry, tolerance in entries:
        groups.setdefault(((entry.metric, entry.basis), tolerance), []).append((config, entry))
    found = {}
    for (key, tolerance), members in groups.items():
        scale = scale_for(METRICS[key[0]], tolerance)
        cells = [
            (recorded_losses(entry, scale), entry) for _, entry in members if not entry.constant
        ]
        usable = [
            (cell, entry)
            for cell, entry in cells
            if all(math.isfinite(loss) for losses in cell for loss in losses)
        ]
        noise = batched_noise(
            [cell for cell, _ in usable],
            [entry.batches for _, entry in usable],
            min((entry.round_count for _, entry in usable), default=0),
        )
        found[key, tolerance] = noise, {config for config, _ in members}
    return found


def _require_positive(baselines: Sequence[Baseline], tolerances: Mapping[str, Tolerance]) -> None:
    relative = {
        name
        for name, tolerance in tolerances.items()
        if tolerance.loss_ratio and METRICS[name].comparison is Comparison.STATISTICAL
    }
    for baseline in baselines:
        for workload in baseline.workloads:
            for entry in workload.metrics:
                least = min(min((one.value, *one.round_values)) for one in entry.sessions)
                if entry.basis == "absolute" and entry.metric in relative and least <= 0:
                    raise UsageError(
                        f"the baseline of {baseline.target}/{baseline.config} holds a"
                        f" {entry.metric} of {least:g} for workload {workload.workload},"
                        " so that ratios to it are undefined. Restore the file with git, or record"
                        " the cell again."
                    )
