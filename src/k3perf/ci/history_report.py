"""Nightly series to a page: values with baseline and tolerance, confirmed changes with
what changed just before them, waivers, noise and engine time. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from statistics import fmean, median, stdev
from typing import Any, Final

from k3perf.ci.history import HistoryEntry, Series, Slide
from k3perf.records.baseline import Baseline, MetricBaseline, Waiver
from k3perf.records.metric_definitions import METRICS, Direction
from k3perf.report.page.frame import html_page
from k3perf.report.page.shown import of_share, of_unit, plain

SPREAD_NIGHTS: Final = 14
CONFIRMING_NIGHTS: Final = 4
_QUANTILES: Final = 2.326 + 1.645
"""Normal quantiles of a 1 % false alarm and a 5 % miss, one-sided."""

ToleranceOf = Callable[[str, str, str, str], float | None]
"""The relative tolerance of (target, config, workload, metric), None if not gated."""


@dataclass(frozen=True, slots=True)
class HistoryContext:
    """What the series are shown against. ``today`` decides which waivers hold."""

    baselines: Mapping[tuple[str, str], Baseline]
    waivers: Sequence[Waiver]
    tolerance_of: ToleranceOf
    today: date


def history_report(
    all_series: Iterable[Series], slides: Iterable[Slide], context: HistoryContext
) -> str:
    """One self-contained page: gated metrics first, then by cell."""
    changed = {id(slide.series): slide for slide in slides}
    series = [one for one in all_series if one.entries]
    places = {name: place for place, name in enumerate(METRICS)}
    gated = {id(one): context.tolerance_of(*_names(one)) for one in series}
    series.sort(
        key=lambda one: (
            id(one) not in changed,
            gated[id(one)] is None,
            one.target,
            one.config,
            one.workload,
            places.get(one.metric, len(places)),
        )
    )
    rows = []
    data: dict[str, Any] = {}
    for number, one in enumerate(series):
        slide, tolerance = changed.get(id(one)), gated[id(one)]
        rows.append(_row(number, one, slide, tolerance, context))
        data[f"series-{number}"] = _data(one, slide, tolerance, context)
    entries = [entry for one in series for entry in one.entries]
    page = {
        "title": "k3perf history",
        "rows": rows,
        "facts": _facts(series, entries, len(changed)),
        "waivers": [_waiver(waiver, context.today) for waiver in context.waivers],
        "slides": [_slide(changed[id(one)]) for one in series if id(one) in changed],
    }
    return html_page("history.html.j2", page, data, charts=bool(rows))


def _names(series: Series) -> tuple[str, str, str, str]:
    return series.target, series.config, series.workload, series.metric


def _facts(
    series: Sequence[Series], entries: Sequence[HistoryEntry], slide_count: int
) -> list[tuple[str, str]]:
    nights = {entry.run_id for entry in entries}
    minutes = {
        (entry.run_id, entry.target, entry.config, entry.workload): entry.engine_minutes
        for entry in entries
        if entry.engine_minutes is not None
    }
    times = sorted(entry.created_at_utc for entry in entries)
    found = [
        ("series", str(len(series))),
        ("runs", str(len(nights))),
        ("confirmed changes for the worse", str(slide_count)),
    ]
    found += [("from", plain(times[0][:10])), ("to", plain(times[-1][:10]))] if times else []
    if minutes:
        found.append(("engine minutes", f"{sum(minutes.values()):,.0f}"))
    return found


def _row(
    number: int,
    series: Series,
    slide: Slide | None,
    tolerance: float | None,
    context: HistoryContext,
) -> dict[str, Any]:
    unit = METRICS[series.metric].unit if series.metric in METRICS else ""
    source = f"history.jsonl {' '.join(map(plain, _names(series)))}"
    newest = series.entries[-1]
    recorded = recorded_values(series, context.baselines)
    against = _loss(series.metric, median(recorded), newest.value) if recorded else None
    spread = spread_ratio(series.values)
    return {
        "number": number,
        "target": plain(series.target),
        "config": plain(series.config),
        "workload": plain(series.workload),
        "metric": plain(series.metric),
        "gated": tolerance is not None,
        "newest": of_unit(newest.value, unit, f"{source} newest"),
        "loss": of_share(against, f"{source} newest against the baseline"),
        "tolerance": of_share(tolerance, f"tolerances.yaml {series.metric}", signed=False),
        "slide": of_share(slide.loss_ratio if slide else None, f"{source} change"),
        "spread": of_share(spread, f"{source} spread", signed=False),
        "detectable": of_share(detectable_ratio(spread), f"{source} detectable", signed=False),
        "nights": len(series.values),
        "missing": series.missing_nights,
        "slid": slide is not None,
        "waived": any(
            (one.target, one.config, one.workload, one.metric) == _names(series)
            and one.expires_on > context.today.isoformat()
            for one in context.waivers
        ),
    }


def _loss(metric: str, was: float, now: float | None) -> float | None:
    if metric not in METRICS or now is None:
        return None
    return METRICS[metric].loss_ratio(was, now)


def spread_ratio(values: Sequence[float]) -> float | None:
    """Standard deviation of the last nights over their mean, from successive
    differences, which a change of level moves little. None for fewer than four.
    """
    last = values[-SPREAD_NIGHTS:]
    if len(last) < 4 or not fmean(last):
        return None
    steps = [later - earlier for earlier, later in pairwise(last)]
    return stdev([*steps, *(-step for step in steps)]) / math.sqrt(2) / abs(fmean(last))


def detectable_ratio(spread: float | None) -> float | None:
    """The change of level that ``CONFIRMING_NIGHTS`` nights show against
    ``SPREAD_NIGHTS`` before, by a normal test at 1 % with a power of 95 %.
    """
    if spread is None:
        return None
    return _QUANTILES * spread * math.sqrt(1 / CONFIRMING_NIGHTS + 1 / SPREAD_NIGHTS)


def recorded_values(series: Series, baselines: Mapping[tuple[str, str], Baseline]) -> list[float]:
    """The baseline's sessions in the metric's unit. A ratio is multiplied by the
    reference arm's own value, and not used without one.
    """
    baseline = baselines.get((series.target, series.config))
    part = baseline.workload(series.workload) if baseline is not None else None
    entries: tuple[MetricBaseline, ...] = (
        (*(part.metrics if part is not None else ()), *baseline.exact)
        if baseline is not None
        else ()
    )
    for entry in entries:
        if entry.metric == series.metric and entry.basis == "absolute":
            return [session.value for session in entry.sessions]
        if entry.metric == series.metric and entry.basis == "ratio":
            return [
                session.value * session.reference_value
                for session in entry.sessions
                if session.reference_value is not None
            ]
    return []


def _data(
    series: Series, slide: Slide | None, tolerance: float | None, context: HistoryContext
) -> dict[str, Any]:
    nights = [
        {
            "at": entry.created_at_utc,
            "date": plain(entry.created_at_utc),
            "value": entry.value,
            "commit": plain(entry.commit[:12]),
            "vllm": plain(entry.vllm_version),
            "sessions": entry.session_count,
            "run": plain(entry.run_id),
        }
        for entry in series.entries
    ]
    changes = []
    if slide is not None:
        changes.append({"at": slide.first.created_at_utc, "text": _candidates(slide)})
    unit = METRICS[series.metric].unit if series.metric in METRICS else ""
    return {
        "nights": nights,
        "changes": changes,
        "band": _band(series, tolerance, context),
        "unit": unit,
    }


def _band(
    series: Series, tolerance: float | None, context: HistoryContext
) -> list[dict[str, float]]:
    """From the baseline to the worst value inside the tolerance."""
    recorded = recorded_values(series, context.baselines)
    if not recorded:
        return []
    middle = median(recorded)
    lower_is_better = METRICS[series.metric].direction is Direction.LOWER_IS_BETTER
    limit = middle * (1 + (tolerance or 0.0) * (1 if lower_is_better else -1))
    return [{"low": min(middle, limit), "high": max(middle, limit), "middle": middle}]


def _candidates(slide: Slide) -> str:
    """What changed between the last night before and the first night after."""
    before = _before(slide)
    if before is None:
        return f"since commit {plain(slide.first.commit[:12])}"
    found = []
    if before.vllm_version != slide.first.vllm_version:
        found.append(f"vLLM {plain(before.vllm_version)} to {plain(slide.first.vllm_version)}")
    if before.commit != slide.first.commit:
        found.append(f"commits {plain(before.commit[:12])}..{plain(slide.first.commit[:12])}")
    return ", ".join(found) or "same commit and vLLM: look at host and driver"


def _before(slide: Slide) -> HistoryEntry | None:
    entries = slide.series.entries
    place = next(
        (place for place, one in enumerate(entries) if one.run_id == slide.first.run_id), 0
    )
    return entries[place - 1] if place else None


def _slide(slide: Slide) -> dict[str, Any]:
    unit = METRICS[slide.series.metric].unit
    names = " ".join(map(plain, _names(slide.series)))
    return {
        "name": names,
        "since": plain(slide.first.created_at_utc[:10]),
        "before": of_unit(slide.before_value, unit, f"history.jsonl {names} before"),
        "after": of_unit(slide.after_value, unit, f"history.jsonl {names} after"),
        "loss": of_share(slide.loss_ratio, f"history.jsonl {names} change"),
        "candidates": _candidates(slide),
        "nights": slide.nights_since,
    }


def _waiver(waiver: Waiver, today: date) -> dict[str, Any]:
    return {
        "name": plain(f"{waiver.target} {waiver.config} {waiver.workload} {waiver.metric}"),
        "owner": plain(waiver.owner),
        "build": plain(waiver.build),
        "reason": plain(waiver.reason),
        "expires_on": plain(waiver.expires_on),
        "holds": waiver.expires_on > today.isoformat(),
        "limit": of_share(waiver.largest_loss_ratio, "waivers.yaml", signed=False),
    }
