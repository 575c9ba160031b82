"""Nightly numbers over time: measured cells to entries, entries to series, series to
confirmed slides. Pure.

One entry is one night's value of one metric: the median over its valid sessions of each
session's median valid round (SESSION metrics: of the sessions' values). A night without
a valid session leaves no entry. ``missing_nights`` counts it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from k3perf.records.measurement import CellMeasurement
from k3perf.records.metric_definitions import METRICS, Comparison
from k3perf.records.samples import Arm
from k3perf.stats.change_point import ChangePoint, change_points, newest_step

Text = Annotated[str, Field(max_length=300)]


class HistoryEntry(BaseModel):
    """One line of ``history.jsonl`` on the ``perf-history`` branch. ``value`` None:
    measured, but no valid session. ``engine_minutes``: starts and rounds of the whole
    cell, None in older lines.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    run_id: Text
    commit: Text
    created_at_utc: Text
    vllm_version: Text
    hardware_class: Text
    target: Text
    config: Text
    workload: Text
    plan_digest: Text
    metric: Text
    value: Annotated[float, Field(allow_inf_nan=False)] | None
    session_count: int = Field(ge=0)
    engine_minutes: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


class AcknowledgedSlide(BaseModel):
    """One entry of ``acknowledged_slides.yaml``: a slide that a person knows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: Text
    config: Text
    workload: Text
    metric: Text
    day: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    by: Annotated[str, Field(min_length=1, max_length=300)]
    reason: Annotated[str, Field(min_length=8, max_length=300)]


SeriesKey = tuple[str, str, str, str, str, str]


@dataclass(frozen=True, slots=True)
class Series:
    """One metric in order of time, on one hardware class and one workload plan. Other
    numbers are not comparable.
    """

    target: str
    config: str
    workload: str
    metric: str
    entries: tuple[HistoryEntry, ...]
    missing_nights: int

    @property
    def values(self) -> tuple[float, ...]:
        """The nights that have one."""
        return tuple(entry.value for entry in self.entries if entry.value is not None)


@dataclass(frozen=True, slots=True)
class Slide:
    """A change for the worse that later nights confirm. ``loss_ratio`` compares the
    levels before and after, as ``MetricDef.loss_ratio``.
    """

    series: Series
    first: HistoryEntry
    before_value: float
    after_value: float
    loss_ratio: float | None
    p_value: float
    nights_since: int


def entries_of(
    cells: Iterable[CellMeasurement],
    *,
    run_id: str,
    commit: str,
    created_at_utc: str,
    vllm_version: str,
) -> tuple[HistoryEntry, ...]:
    """One entry for each cell and metric of the candidate's sessions."""
    return tuple(
        HistoryEntry(
            run_id=run_id,
            commit=commit,
            created_at_utc=created_at_utc,
            vllm_version=vllm_version,
            hardware_class=cell.hardware_class,
            target=cell.target,
            config=cell.config,
            workload=cell.workload,
            plan_digest=cell.plan_digest,
            metric=metric,
            value=median(values) if values else None,
            session_count=len(values),
            engine_minutes=_engine_minutes(cell),
        )
        for cell in cells
        for metric, values in session_values(cell).items()
    )


def _engine_minutes(cell: CellMeasurement) -> float | None:
    """Starts and rounds of both arms. None where rounds have no times."""
    lengths_s = [one.duration_s for session in cell.sessions for one in session.rounds]
    starts_s = [
        value.value
        for session in cell.sessions
        for name, value in session.values.items()
        if name.startswith("startup_") and value.value is not None
    ]
    known_s = [length_s for length_s in lengths_s if length_s is not None]
    if not known_s or len(known_s) < len(lengths_s):
        return None
    return round((sum(known_s) + sum(starts_s)) / 60, 4)


def session_values(cell: CellMeasurement) -> dict[str, list[float]]:
    """By metric, one value for each valid candidate session: the median valid round, or
    the session's own value.
    """
    found: dict[str, list[float]] = {}
    for session in cell.arm(Arm.CANDIDATE):
        usable = not session.invalid_reasons and not cell.invalid_reasons
        rounds: dict[str, list[float]] = {}
        for measured in session.rounds:
            for metric, value in measured.values.items():
                known = rounds.setdefault(metric, [])
                if value.value is not None and not measured.invalid_reasons:
                    known.append(value.value)
        for metric, values in rounds.items():
            found.setdefault(metric, []).extend([median(values)] if values and usable else [])
        for metric, value in session.values.items():
            found.setdefault(metric, []).extend(
                [value.value] if value.value is not None and usable else []
            )
    return found


def unmeasured(planned: Iterable[str], cells: Iterable[CellMeasurement]) -> tuple[str, ...]:
    """The ids of ``planned`` cells without a valid candidate session among ``cells``: a
    night that lost them must not end in silence.
    """
    measured = {
        f"{cell.target}-{cell.config}-{cell.workload}"
        for cell in cells
        if not cell.invalid_reasons
        and any(not session.invalid_reasons for session in cell.arm(Arm.CANDIDATE))
    }
    return tuple(name for name in planned if name not in measured)


def series_of(entries: Iterable[HistoryEntry]) -> tuple[Series, ...]:
    """Group entries by cell, metric, hardware class and plan, each in order of time.
    One run counts once.
    """
    groups: dict[SeriesKey, dict[str, HistoryEntry]] = {}
    for entry in entries:
        key = (
            entry.target,
            entry.config,
            entry.workload,
            entry.metric,
            entry.hardware_class,
            entry.plan_digest,
        )
        groups.setdefault(key, {}).setdefault(entry.run_id, entry)
    found = []
    for (target, config, workload, metric, *_), runs in groups.items():
        ordered = tuple(
            sorted(runs.values(), key=lambda entry: (entry.created_at_utc, entry.run_id))
        )
        valued = tuple(entry for entry in ordered if entry.value is not None)
        found.append(Series(target, config, workload, metric, valued, len(ordered) - len(valued)))
    return tuple(found)


def slides(
    all_series: Iterable[Series],
    *,
    false_alarm_budget: float = 0.01,
    relevant_loss_ratio: float = 0.01,
    window_nights: int = 60,
    minimum_nights: int = 4,
    step_loss_ratio: float = 0.05,
    acknowledged: Iterable[AcknowledgedSlide] = (),
) -> tuple[Slide, ...]:
    """The newest change of each series, where it is for the worse and at least
    ``minimum_nights`` nights confirm it, worst first. A step of ``step_loss_ratio`` or
    more needs three. A slide that began by an acknowledged day is not reported again.

    One night's error rate is spent over all series in equal parts. Positive series are
    tested on the log scale. A statistical metric's loss below ``relevant_loss_ratio``
    is not a slide. Every loss of an exact metric is.
    """
    usable = [
        series
        for series in all_series
        if len(series.values) >= 2 * minimum_nights and series.metric in METRICS
    ]
    if not usable:
        return ()
    alpha = false_alarm_budget / len(usable)
    found = [
        slide
        for series in usable
        if (slide := _slide(series, alpha, window_nights, minimum_nights, step_loss_ratio))
        is not None
    ]
    found = [slide for slide in found if _relevant(slide, relevant_loss_ratio)]
    known = tuple(acknowledged)
    found = [slide for slide in found if not any(_covers(entry, slide) for entry in known)]
    return tuple(sorted(found, key=_size, reverse=True))


def _covers(entry: AcknowledgedSlide, slide: Slide) -> bool:
    series = slide.series
    named = (entry.target, entry.config, entry.workload, entry.metric)
    same = named == (series.target, series.config, series.workload, series.metric)
    return same and slide.first.created_at_utc[:10] <= entry.day


def _size(slide: Slide) -> float:
    """The share that was lost; of a level of 0 every loss is larger than any share."""
    metric = METRICS[slide.series.metric]
    if slide.loss_ratio is None:
        return math.copysign(math.inf, metric.loss(slide.before_value, slide.after_value))
    return slide.loss_ratio


def _relevant(slide: Slide, relevant_loss_ratio: float) -> bool:
    exact = METRICS[slide.series.metric].comparison is Comparison.EXACT
    return _size(slide) > 0 if exact else _size(slide) >= relevant_loss_ratio


def _slide(
    series: Series, alpha: float, window_nights: int, minimum_nights: int, step_loss_ratio: float
) -> Slide | None:
    entries = series.entries[-window_nights:]
    values = series.values[-window_nights:]
    on_log_scale = min(values) > 0
    data = [math.log(value) for value in values] if on_log_scale else list(values)
    changes = change_points(
        data, alpha=alpha, permutation_count=math.ceil(10 / alpha), minimum_segment=minimum_nights
    )
    step = newest_step(data, alpha=alpha)
    last = changes[-1] if changes else None
    if step is not None and (last is None or step.index > last.index):
        before, after = _levels(step, on_log_scale=on_log_scale)
        if (METRICS[series.metric].loss_ratio(before, after) or 0.0) >= step_loss_ratio:
            last = step
    if last is None:
        return None
    before, after = _levels(last, on_log_scale=on_log_scale)
    return Slide(
        series,
        entries[last.index],
        before,
        after,
        METRICS[series.metric].loss_ratio(before, after),
        last.p_value,
        len(values) - last.index,
    )


def _levels(change: ChangePoint, *, on_log_scale: bool) -> tuple[float, float]:
    if on_log_scale:
        return math.exp(change.mean_before), math.exp(change.mean_after)
    return change.mean_before, change.mean_after
