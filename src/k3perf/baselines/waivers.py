"""Waivers: which one covers a metric today and on this build, and which one never
could. Pure: the day comes from the caller.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import date, timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from k3perf.config.suite import Suite
from k3perf.errors import ConfigFileError
from k3perf.records.baseline import Waiver
from k3perf.records.metric_definitions import METRICS
from k3perf.records.outcome import Outcome
from k3perf.records.verdict import CellVerdict, MetricVerdict

LONGEST_DAYS: Final = 90
"""A waiver that ends later is refused: it would be a tolerance that no one reviews."""


def check_waivers(waivers: Iterable[Waiver], suite: Suite, path: Path, *, today: date) -> None:
    """Raises ConfigFileError for a waiver that can never hold: of a cell that is not
    measured, of a metric that is not judged there, or of a build that no release is
    called by. It would be ignored in silence, and the loss that it names reported. So
    is a waiver that lasts longer than ``LONGEST_DAYS`` from today.
    """
    latest = today + timedelta(days=LONGEST_DAYS)
    for index, waiver in enumerate(waivers):
        if date.fromisoformat(waiver.expires_on) > latest:
            raise ConfigFileError(
                path,
                f"{index}.expires_on",
                waiver.expires_on,
                f"a waiver lasts at most {LONGEST_DAYS} days",
                f"Write {latest} or an earlier day, and renew it while the loss is known.",
            )
        names: tuple[tuple[str, str, Collection[str]], ...] = (
            ("target", waiver.target, suite.targets),
            ("config", waiver.config, suite.configs),
            ("workload", waiver.workload, suite.workloads),
            ("metric", waiver.metric, METRICS),
        )
        for key, name, known in names:
            if name not in known:
                raise ConfigFileError(
                    path, f"{index}.{key}", name, f"no {key} has this name", _nearest(name, known)
                )
        if re.match(r"[vV]\d", waiver.build):
            raise ConfigFileError(
                path,
                f"{index}.build",
                waiver.build,
                "not a release name",
                f"Write {waiver.build[1:]}, without the v.",
            )
        key, problem = _never_judged(waiver, suite)
        if problem:
            raise ConfigFileError(
                path,
                f"{index}.{key}",
                getattr(waiver, key),
                problem,
                "Correct the waiver, or remove it.",
            )


def _never_judged(waiver: Waiver, suite: Suite) -> tuple[str, str]:
    """The key and the reason why the waiver fits no metric of any run. Both are empty
    when it fits one.
    """
    target = suite.target(waiver.target)
    reason = suite.not_collected(target, suite.config(waiver.config))
    if reason:
        return "config", f"{waiver.target} does not measure this config: {reason}"
    if waiver.workload not in (*target.workloads, *target.workloads_on_request):
        return "workload", f"{waiver.target} does not measure this workload"
    if waiver.metric not in suite.tolerances.for_cell(
        waiver.target, waiver.config, waiver.workload
    ):
        return (
            "metric",
            (
                "this metric has no tolerance in"
                f" {waiver.target}-{waiver.config}-{waiver.workload}, and is not judged there"
            ),
        )
    return "", ""


def _nearest(name: str, known: Collection[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"Did you mean {near[0]!r}?" if near else f"Use one of: {', '.join(known)}."


def apply_waivers(
    verdict: CellVerdict, waivers: Iterable[Waiver], *, today: date, build: str
) -> CellVerdict:
    """Each REGRESSED metric with a waiver in force becomes a PASS that says so. Where
    none is in force, every waiver that fits is noted with the reason. A waiver of a
    metric that passes by itself, or that was not judged, is noted as unused.
    """
    by_metric: dict[str, list[Waiver]] = {}
    for waiver in waivers:
        cell = (waiver.target, waiver.config, waiver.workload)
        if cell == (verdict.target, verdict.config, verdict.workload):
            by_metric.setdefault(waiver.metric, []).append(waiver)
    metrics, notes = [], []
    for metric in verdict.metrics:
        found = _waived(metric, by_metric.get(metric.metric, ()), today, build)
        metrics.append(found[0])
        notes += [f"{metric.metric}: {text}" for text in found[1]]
    judged = {metric.metric for metric in verdict.metrics}
    notes += [
        f"{name}: {_unused(waiver)}: the metric was not judged"
        for name, unmatched in by_metric.items()
        if name not in judged and verdict.metrics
        for waiver in unmatched
    ]
    return replace(verdict, metrics=tuple(metrics), notes=(*notes, *verdict.notes))


def _waived(
    metric: MetricVerdict, waivers: Iterable[Waiver], today: date, build: str
) -> tuple[MetricVerdict, list[str]]:
    if metric.outcome in (Outcome.PASS, Outcome.IMPROVED):
        return metric, [
            f"{_unused(waiver)}: the metric is {metric.outcome}. Remove it" for waiver in waivers
        ]
    notes: list[str] = []
    if metric.outcome is not Outcome.REGRESSED:
        return metric, notes
    for waiver in waivers:
        refusal = _refusal(waiver, metric, today, build)
        if not refusal:
            until = f"waived by {waiver.owner} until {waiver.expires_on} ({waiver.reason})"
            text = f"{until}; {metric.reason}"
            found = replace(metric, outcome=Outcome.PASS, waived_by=waiver.owner, reason=text)
            return found, [text]
        notes.append(f"the waiver of {waiver.owner} does not apply: {refusal}")
    return metric, notes


def _unused(waiver: Waiver) -> str:
    return f"the waiver of {waiver.owner} until {waiver.expires_on} matches nothing"


def _refusal(waiver: Waiver, verdict: MetricVerdict, today: date, build: str) -> str:
    if today >= date.fromisoformat(waiver.expires_on):
        return f"it expired on {waiver.expires_on}"
    if not covers_build(waiver.build, build):
        return f"it covers build {waiver.build}, this is {build or 'an unnamed build'}"
    bound = (
        verdict.loss_ratio
        if verdict.loss_lower_bound_ratio is None
        else verdict.loss_lower_bound_ratio
    )
    if waiver.largest_loss_ratio is not None and (
        bound is None or bound > waiver.largest_loss_ratio
    ):
        return f"the loss grew beyond its {waiver.largest_loss_ratio:.1%}"
    return ""


def covers_build(waived: str, build: str) -> bool:
    """The same build, or one whose version begins with the waived one at a dot or plus
    sign.
    """
    return build == waived or build.startswith((f"{waived}.", f"{waived}+"))
