"""Waivers: which one covers a metric today, and on this build. Pure; the day comes from the caller."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import date

from k3perf.gate.baseline import Waiver
from k3perf.gate.outcome import Outcome
from k3perf.gate.verdict import MetricVerdict


def apply_waivers(
    verdict: MetricVerdict, cell: tuple[str, str, str], waivers: Iterable[Waiver], *, today: date, build: str
) -> tuple[MetricVerdict, tuple[str, ...]]:
    """A REGRESSED metric with a waiver in force becomes a PASS that says so; every waiver that fits but is not in force is noted."""
    notes = []
    if verdict.outcome is not Outcome.REGRESSED:
        return verdict, ()
    for waiver in waivers:
        if (waiver.target, waiver.config, waiver.workload, waiver.metric) != (*cell, verdict.metric):
            continue
        refusal = _refusal(waiver, verdict, today, build)
        if not refusal:
            text = f"waived by {waiver.owner} until {waiver.expires_on} ({waiver.reason}); {verdict.reason}"
            return replace(verdict, outcome=Outcome.PASS, waived_by=waiver.owner, reason=text), (f"{verdict.metric}: {text}",)
        notes.append(f"{verdict.metric}: the waiver of {waiver.owner} does not hold: {refusal}")
    return verdict, tuple(notes)


def _refusal(waiver: Waiver, verdict: MetricVerdict, today: date, build: str) -> str:
    if today >= date.fromisoformat(waiver.expires_on):
        return f"it stopped on {waiver.expires_on}"
    if not covers_build(waiver.build, build):
        return f"it was given for build {waiver.build}, this is {build or 'an unnamed build'}"
    bound = verdict.loss_ratio if verdict.loss_lower_bound_ratio is None else verdict.loss_lower_bound_ratio
    if waiver.largest_loss_ratio is not None and (bound is None or bound > waiver.largest_loss_ratio):
        return f"the loss grew beyond its {waiver.largest_loss_ratio:.1%}"
    return ""


def covers_build(waived: str, build: str) -> bool:
    """The same build, or one whose version begins with the waived one at a dot or plus sign."""
    return build == waived or build.startswith((f"{waived}.", f"{waived}+"))
