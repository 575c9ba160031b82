"""Scaling efficiency: what a cell's devices do together against what they would do at
the rate of its scaling base. Pure; reported, never gated.

The base's figure is the one that a candidate of the base would be compared with: the
mean, on the loss scale, of its recorded sessions, each taken as the base target's
recorded noise says (``stats.reference``). The cell's own sessions are taken in the same
way, because a median of six rounds and a quartile of sixteen differ by more than
scaling does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from k3perf.baselines.target_policy import pool_noise
from k3perf.config.models import TargetSpec, Tolerance
from k3perf.config.suite import Suite
from k3perf.config.workload_spec import AllAtOnce, ClosedLoop
from k3perf.gate.losses import read_cell, read_metric
from k3perf.metrics.loss_scale import recorded_losses, scale_for
from k3perf.metrics.ranks import scaling_efficiency_ratio
from k3perf.metrics.validity import SESSION_RULES, SPREAD_LIMIT
from k3perf.records.baseline import Baseline, MetricBaseline, how_to_record
from k3perf.records.measurement import CellMeasurement
from k3perf.records.metric_definitions import METRICS
from k3perf.stats.estimators import Location, locate, mean
from k3perf.stats.noise import NO_NOISE, Sessions
from k3perf.stats.reference import cell_reference

RATE: Final = "output_tokens_per_s"
USUAL_SPREAD: Final = SESSION_RULES[SPREAD_LIMIT]
_AS_RATIO: Final = Tolerance(loss_ratio=0.0)
_SCALE: Final = scale_for(METRICS[RATE], _AS_RATIO)


@dataclass(frozen=True, slots=True)
class ScalingReading:
    """One cell against its base. Rates are output tokens a second of all devices
    together, None where there is none.

    ``missing`` says why there is no efficiency (empty: there is one), ``source`` where
    the base's figure came from, ``remark`` what its reader must know.
    """

    target: str
    config: str
    workload: str
    device_count: int
    base: str
    base_device_count: int
    tokens_per_s: float | None = None
    base_tokens_per_s: float | None = None
    source: str = ""
    missing: str = ""
    remark: str = ""

    @property
    def efficiency_ratio(self) -> float | None:
        """1.0: every device does as much as one of the base's; None without both
        rates.
        """
        if self.tokens_per_s is None or self.base_tokens_per_s is None:
            return None
        return scaling_efficiency_ratio(
            self.tokens_per_s, self.device_count, self.base_tokens_per_s / self.base_device_count
        )

    @property
    def text(self) -> str:
        """One sentence with both figures and where the base's came from, or why there
        is no efficiency.
        """
        own = (
            ""
            if self.tokens_per_s is None
            else f"{_rate(self.tokens_per_s)} on {_devices(self.device_count)}"
        )
        if self.efficiency_ratio is None or self.base_tokens_per_s is None:
            return (
                f"no scaling efficiency against {self.base}:"
                f" {self.missing}{f' ({own})' if own else ''}"
            )
        times = (
            f"{self.device_count / self.base_device_count:g} x {_rate(self.base_tokens_per_s)} on"
            f" {_devices(self.base_device_count)}"
        )
        remark = f"; {self.remark}" if self.remark else ""
        return (
            f"scaling efficiency {self.efficiency_ratio:.1%}: {own} against {times} of {self.base}"
            f" ({self.source}){remark}"
        )


class ScalingBase:
    """The base of one target, with its committed baselines."""

    def __init__(
        self, suite: Suite, target: TargetSpec, base: TargetSpec, baselines: Sequence[Baseline]
    ) -> None:
        self._suite = suite
        self._target = target
        self._base = base
        self._baselines = {baseline.config: baseline for baseline in baselines}
        self._own = suite.tolerances.own(base.name)
        self._noise = pool_noise(baselines, {RATE: _AS_RATIO}, self._own).get(
            (RATE, "absolute"), NO_NOISE
        )

    def of_measurement(self, measurement: CellMeasurement) -> ScalingReading:
        """A measured cell, from its valid candidate sessions whatever they were
        compared with.
        """
        readings = read_cell(replace(measurement, mode="baseline"))
        series = read_metric(readings, _SCALE)
        missing = "" if series.sessions else "no valid session of this cell has a throughput"
        reading = self._empty(measurement.config, measurement.workload, missing)
        return self._against(
            reading, series.sessions, measurement.plan_digest, measurement.vllm_release
        )

    def of_baseline(self, baseline: Baseline | None, config: str, workload: str) -> ScalingReading:
        """A cell as its target's own baseline has it; None: nothing is committed."""
        cell = f"{self._target.name}/{config}"
        recorded = None if baseline is None else baseline.workload(workload)
        if baseline is None or recorded is None:
            return self._against(
                self._empty(config, workload, f"no baseline of {cell} has the workload {workload}"),
                (),
                "",
                "",
            )
        entry = _entry(baseline, workload)
        reading = self._empty(config, workload, "" if entry else _no_rate(cell))
        own = recorded_losses(entry, _SCALE) if entry else ()
        return self._against(reading, own, recorded.plan_digest, _release(baseline.resolved_config))

    def _empty(self, config: str, workload: str, missing: str) -> ScalingReading:
        counts = (self._target.hardware.device_count, self._base.hardware.device_count)
        return ScalingReading(
            self._target.name,
            config,
            workload,
            counts[0],
            self._base.name,
            counts[1],
            missing=missing,
        )

    def _against(
        self, reading: ScalingReading, own: Sessions, plan_digest: str, release: str
    ) -> ScalingReading:
        """``own`` empty: the reading says why already, and gets the base's figure
        alone. ``plan_digest`` empty: of any plan.
        """
        missing = self._missing(reading, plan_digest)
        baseline = self._baselines.get(reading.config)
        entry = None if missing else _entry(baseline, reading.workload)
        if entry is None or baseline is None:
            missing = reading.missing or missing or _no_rate(f"{self._base.name}/{reading.config}")
            return replace(
                reading,
                tokens_per_s=_typical(own, Location.MEDIAN, max(map(len, own), default=0)),
                missing=missing,
            )
        plan = self._base.measurement
        recorded = recorded_losses(entry, _SCALE)
        noise = self._noise
        if RATE in self._own.get(
            reading.config, {}
        ):  # a config apart is taken as its own sessions ask for
            noise = NO_NOISE
        rounds = (plan.minimum_rounds, plan.maximum_rounds)
        reference = cell_reference(
            recorded, noise, entry.round_count, rounds, spread_over_noise_ratio=USUAL_SPREAD
        )
        rounds_taken = min([reference.rounds, *map(len, own)])
        return replace(
            reading,
            tokens_per_s=_typical(own, reference.location, rounds_taken),
            base_tokens_per_s=_SCALE.value(reference.at(rounds_taken).mean),
            source=_source(baseline, len(recorded)),
            remark=self._remark(reading.workload, baseline, release) if own else "",
        )

    def _missing(self, reading: ScalingReading, plan_digest: str) -> str:
        """Why the base has no figure for the cell; empty when it has one."""
        base, config, workload = self._base, reading.config, reading.workload
        not_collected = self._suite.not_collected(base, self._suite.config(config))
        if not_collected:
            return not_collected
        if workload not in (*base.workloads, *base.workloads_on_request):
            return f"{base.name} does not serve the workload {workload}"
        how = how_to_record(base.name, config)
        baseline = self._baselines.get(config)
        if baseline is None:
            return f"baselines/{base.name}/{config}.json does not exist; {how}"
        recorded = baseline.workload(workload)
        if recorded is None:
            return f"the baseline of {base.name}/{config} has no workload {workload}; {how}"
        if plan_digest and recorded.plan_digest != plan_digest:
            digests = f"plan digest {plan_digest[:12]} here, {recorded.plan_digest[:12]} there"
            return (
                f"the baseline of {base.name}/{config} was recorded with other requests"
                f" ({digests}); {how}"
            )
        if baseline.hardware_class != base.hardware.hardware_class:
            classes = (
                f"recorded on hardware class {baseline.hardware_class}, {base.name} is"
                f" {base.hardware.hardware_class}"
            )
            return f"the baseline of {base.name}/{config} was {classes}; {how}"
        return ""

    def _remark(self, workload: str, baseline: Baseline, release: str) -> str:
        remarks = []
        if release != _release(baseline.resolved_config):
            remarks.append(f"another release, vLLM {release or 'unknown'}, was measured here")
        arrival = self._suite.workload(workload).arrival
        if not isinstance(arrival, AllAtOnce | ClosedLoop):
            remarks.append("requests come at their own rate, which the throughput cannot exceed")
        return "; ".join(remarks)


def _rate(tokens_per_s: float) -> str:
    """With its unit; four digits where there are no more before the point."""
    return (
        f"{tokens_per_s:,.0f} tokens/s" if tokens_per_s >= 1000 else f"{tokens_per_s:.4g} tokens/s"
    )


def _typical(sessions: Sessions, location: Location, rounds: int) -> float | None:
    """Tokens a second: each session's location of its first rounds, then the mean on
    the loss scale. None without a session.
    """
    if not sessions:
        return None
    return _SCALE.value(mean([locate(location, losses[:rounds]) for losses in sessions]))


def _entry(baseline: Baseline | None, workload: str) -> MetricBaseline | None:
    """The cell's own rate. A value without a logarithm cannot be in a committed
    baseline: ``propose`` refuses it.
    """
    recorded = baseline.workload(workload) if baseline is not None else None
    found = recorded.metrics if recorded is not None else ()
    return next(
        (entry for entry in found if (entry.metric, entry.basis) == (RATE, "absolute")), None
    )


def _no_rate(cell: str) -> str:
    return (
        f"the baseline of {cell} holds no {RATE}, at most a ratio to a reference; a target in"
        " baseline mode that gates it records one"
    )


def _release(resolved_config: Mapping[str, object]) -> str:
    return str(resolved_config.get("version.vllm", ""))


def _source(baseline: Baseline, session_count: int) -> str:
    accepted = baseline.acceptance.accepted_at_utc.partition("T")[0]
    vllm = (
        _release(baseline.resolved_config) or "unknown"
    )  # as in the remark on another release: one source, or they contradict each other
    return (
        f"baselines/{baseline.target}/{baseline.config}.json: {session_count} sessions, vLLM"
        f" {vllm}, accepted {accepted}"
    )


def _devices(count: int) -> str:
    return f"{count} device{'s' if count > 1 else ''}"
