"""What a change does to the recorded part of its judge: baselines and waivers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import fmean, median, stdev

from k3perf.baselines.changes import values_by_metric
from k3perf.ci.judge_changes import NOTHING, Effect, JudgeChange, listed, ordered
from k3perf.records.baseline import Baseline, MetricBaseline, Waiver, digest_of
from k3perf.records.metric_definitions import METRICS

Baselines = Mapping[tuple[str, str], Baseline | str]
"""By target and config. A text says why the file is not a baseline."""


def baseline_changes(base: Baselines, head: Baselines) -> Iterator[JudgeChange]:
    """Every difference of the committed numbers."""
    for key in sorted(base.keys() | head.keys()):
        was, now = base.get(key), head.get(key)
        place = "/".join(key)
        if isinstance(now, str):
            if was != now:
                yield JudgeChange("baseline", place, _said(was), now, Effect.LOOSER)
        elif now is None:
            yield JudgeChange("baseline", place, _said(was), "removed", Effect.LOOSER)
        elif not isinstance(was, Baseline):
            by = f"accepted by {now.acceptance.accepted_by}"
            yield JudgeChange("baseline", place, _said(was), by, Effect.NEW)
            yield from _gated(place, {}, _not_gated(now), added=Effect.NEW)
        elif was != now:
            yield from _moved(place, was, now)
        if isinstance(now, Baseline) and now != was and digest_of(now) != now.digest:
            said = "edited by hand: its digest does not fit"
            yield JudgeChange("baseline", place, _said(was), said, Effect.LOOSER)


def _said(baseline: Baseline | str | None) -> str:
    if baseline is None or isinstance(baseline, str):
        return baseline or NOTHING
    return f"accepted by {baseline.acceptance.accepted_by}"


def _moved(place: str, was: Baseline, now: Baseline) -> Iterator[JudgeChange]:
    rows = list(_metrics(place, was, now))
    rows += _gated(place, _not_gated(was), _not_gated(now), added=Effect.LOOSER)
    keys = was.resolved_config.keys() | now.resolved_config.keys()
    differing = sorted(
        key for key in keys if was.resolved_config.get(key) != now.resolved_config.get(key)
    )
    if differing:
        said = f"{len(differing)} keys differ: {listed(differing)}"
        rows.append(JudgeChange("locked configuration", place, "locked", said, Effect.CHANGED))
    if was.hardware_class != now.hardware_class:
        texts = (was.hardware_class, now.hardware_class)
        rows.append(JudgeChange("baseline", f"{place}: hardware_class", *texts, Effect.CHANGED))
    digests = [{part.workload: part.plan_digest for part in one.workloads} for one in (was, now)]
    for workload in digests[0].keys() & digests[1].keys():
        texts = (digests[0][workload][:12], digests[1][workload][:12])
        if texts[0] != texts[1]:
            key = f"{place}: plan of {workload}"
            rows.append(JudgeChange("baseline", key, *texts, Effect.CHANGED))
    if not rows:
        texts = (was.acceptance.reason, now.acceptance.reason)
        rows.append(JudgeChange("baseline", f"{place}: provenance", *texts, Effect.CHANGED))
    yield from rows


def _not_gated(baseline: Baseline) -> dict[str, str]:
    """By workload and metric, why it is recorded and not judged."""
    return {
        f"{part.workload} {metric}": why
        for part in baseline.workloads
        for metric, why in part.not_gated.items()
    }


def _gated(
    place: str, was: Mapping[str, str], now: Mapping[str, str], *, added: Effect
) -> Iterator[JudgeChange]:
    """Metrics that left the gate, or came back. ``added``: the effect of leaving."""
    for key in dict.fromkeys([*was, *now]):
        before, after = was.get(key, "gated"), now.get(key, "gated")
        if before == after:
            continue
        effect = Effect.CHANGED
        if key not in was or key not in now:
            effect = added if key in now else Effect.STRICTER
        yield JudgeChange("not gated", f"{place}: {key}", before, after, effect)


def _metrics(place: str, was: Baseline, now: Baseline) -> Iterator[JudgeChange]:
    before, after = values_by_metric(was), values_by_metric(now)
    for workload, metric in dict.fromkeys([*before, *after]):
        old, new = before.get((workload, metric)), after.get((workload, metric))
        if old != new:
            key = f"{place}: {workload} {metric}".replace(":  ", ": ")
            yield JudgeChange("baseline", key, _numbers(old), _numbers(new), _effect(old, new))


def _numbers(entry: MetricBaseline | None) -> str:
    if entry is None:
        return NOTHING
    count = len(entry.sessions)
    return (
        f"{_median(entry):.6g} {entry.unit}, spread {_spread(entry):.2%} of {count},"
        f" anchor {entry.anchor_value:.6g}"
    )


def _effect(was: MetricBaseline | None, now: MetricBaseline | None) -> Effect:
    """Looser when the metric vanished, or when any of typical value, anchor and spread
    lets a larger loss pass.
    """
    if was is None or now is None:
        return Effect.LOOSER if now is None else Effect.STRICTER
    metric = METRICS[now.metric]
    looser = (
        was.basis != now.basis
        or metric.loss(_median(was), _median(now)) > 0
        or metric.loss(was.anchor_value, now.anchor_value) > 0
        or _spread(now) > _spread(was)
        or len(now.sessions) < len(was.sessions)
    )
    return Effect.LOOSER if looser else Effect.STRICTER


def _median(entry: MetricBaseline) -> float:
    return median(session.value for session in entry.sessions)


def _spread(entry: MetricBaseline) -> float:
    """Standard deviation between sessions over their mean (dimensionless)."""
    values = [session.value for session in entry.sessions]
    mean = fmean(values)
    return stdev(values) / abs(mean) if len(values) > 1 and mean else 0.0


def waiver_changes(base: Iterable[Waiver], head: Iterable[Waiver]) -> Iterator[JudgeChange]:
    """Every difference of the waivers. Of two for one loss the longer one counts."""
    before, after = _longest(base), _longest(head)
    for key in dict.fromkeys([*before, *after]):
        was, now = before.get(key), after.get(key)
        if was != now:
            place = f"{'-'.join(key[:3])} {key[3]} of {key[4]}"
            yield JudgeChange("waiver", place, _until(was), _until(now), _waived(was, now))


def _longest(waivers: Iterable[Waiver]) -> dict[tuple[str, ...], Waiver]:
    return {
        (one.target, one.config, one.workload, one.metric, one.build): one
        for one in sorted(waivers, key=lambda waiver: waiver.expires_on)
    }


def _until(waiver: Waiver | None) -> str:
    if waiver is None:
        return NOTHING
    largest = waiver.largest_loss_ratio
    most = "" if largest is None else f", at most {largest:.1%}"
    return f"until {waiver.expires_on}{most} by {waiver.owner}: {waiver.reason}"


def _waived(was: Waiver | None, now: Waiver | None) -> Effect:
    if was is None or now is None:
        return Effect.LOOSER if was is None else Effect.STRICTER
    if was.expires_on != now.expires_on and now.expires_on > was.expires_on:
        return Effect.LOOSER
    if was.largest_loss_ratio != now.largest_loss_ratio:
        return ordered(was.largest_loss_ratio, now.largest_loss_ratio, more_is_looser=True)
    return Effect.STRICTER if was.expires_on != now.expires_on else Effect.CHANGED
